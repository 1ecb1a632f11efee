"""Fixtures of the tests with real frameworks; `make test-frameworks` runs them in environments of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import Training
from real import Daemon, draw

SAMPLES = 560
BATCHES = 18  # of 32


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("images"), 7, SAMPLES // 7, size=(8, 24))


class Lives:
    """A daemon that may be killed and started again, on one socket and one state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        config = f"tiers: {{total: 64MiB}}\nmemory: {{limit: 2GiB}}\nstate: {{dir: {self.folder}/state-dir}}\n"
        self.daemon = Daemon(self.folder, config=config)

    def restart(self) -> None:
        self.daemon.kill()
        self.start()


@pytest.fixture
def lives(tmp_path):
    x = Lives(tmp_path / "daemon")
    yield x
    x.daemon.stop()


@pytest.fixture
def training(tmp_path, lives, images):
    def make(script, **given):
        return Training(script, tmp_path / "training", lives.daemon, f"imagefolder:{images}", **given)

    return make
