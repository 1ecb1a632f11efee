"""Fixtures: the package from this source tree, an environment without ranks or daemons, and a fake daemon."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

import collected  # noqa: E402
import golden_files  # noqa: E402
import nginx  # noqa: E402
from bell import Bell  # noqa: E402
from clock_fixture import clock  # noqa: E402, F401 - a fixture
from fake_daemon import FakeDaemon  # noqa: E402
from lives import CROP, Lives  # noqa: E402
from pace import eventually  # noqa: E402, F401 - for tests
from real import NIGHTLY, PATIENCE, Client, Daemon, draw, find_binary  # noqa: E402
from s3 import World  # noqa: E402

import larder  # noqa: E402

# Python is to keep what it compiles: without, each process of the tests rewrites the asserts of all test modules again,
# which takes as long as to import torch, twice. Git ignores the files.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The frameworks' tests have environments of their own (make test-frameworks), and a conftest that would hide this one.
collect_ignore = ["frameworks"]

# A shell that starts a command in the background has it ignore Ctrl-C, and its children too; some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)

_ENV = (
    "LARDER_SOCKET RANK WORLD_SIZE LOCAL_RANK GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID "
    "SLURM_PROCID SLURM_NTASKS SLURM_JOB_ID SLURM_STEP_ID SLURM_NODEID SLURM_NNODES XDG_RUNTIME_DIR"
).split()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the tests of the nightly lane, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the nightly lane. A test that is named by its own id runs, and all run where the environment asks for
    many cases.
    """
    asked = NIGHTLY or {"LARDER_CASES", "LARDER_RESUMES"} & set(os.environ)
    if config.getoption("--nightly") or asked:
        return
    collected.keep(config, items)
    named = tuple(a.rpartition("/")[2] for a in config.args if "::" in a)
    night = [i for i in items if i.get_closest_marker("nightly")]
    left = [i for i in night if not i.nodeid.rpartition("/")[2].startswith(named)] if named else night
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [i for i in items if i not in set(left)]


def pytest_collection_finish() -> None:
    """Many tests and fixtures collect garbage: not in the modules and the tests, which take it a tenth of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that runs the tests under torchrun or Slurm must not change them."""
    for name in _ENV:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def audited(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """What clients of a real daemon were given is audited after every test: anything lost, repeated, foreign or altered
    fails it.

    A test that has its daemon leave damaged samples out without a word, or writes into batches, says so:
    ``@pytest.mark.audit("--in-place")``.
    """
    if "e2e" not in request.module.__name__:
        yield
        return
    folder = tmp_path_factory.mktemp("audit")
    monkeypatch.setenv("LARDER_AUDIT_LOG", str(folder))
    yield
    if any(folder.iterdir()):
        marks = [a for m in request.node.iter_markers("audit") for a in m.args]
        out = subprocess.run(
            [find_binary(), "audit", str(folder), *marks], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert out.returncode == 0, f"{out.stderr}{out.stdout}"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A fake daemon; at the end it must not have seen any breach of the protocol."""
    d = FakeDaemon(str(tmp_path / "s.sock"))
    yield d
    gc.collect()
    d.kill()
    assert d.violations == []
    assert d.repeated == 0 or d.interrupted


@pytest.fixture
def load(daemon: FakeDaemon) -> Iterator[Callable[..., larder.Loader]]:
    """Makes loaders on the fake daemon and closes them."""
    made: list[larder.Loader] = []

    def make(uri: str = "fake:100", **kw: Any) -> larder.Loader:
        kw.setdefault("endpoint", daemon.path)
        kw.setdefault("timeout", PATIENCE)
        if not uri.startswith("job:"):
            kw.setdefault("batch_size", 8)
        loader = larder.Loader(uri, **kw)
        made.append(loader)
        return loader

    yield make
    for loader in made:
        loader.close()


@pytest.fixture
def torch() -> Any:
    """PyTorch; missing is a skip, or a failure with LARDER_REQUIRE_TORCH=1."""
    if os.environ.get("LARDER_REQUIRE_TORCH") == "1":
        import torch

        return torch
    return pytest.importorskip("torch", reason="PyTorch is not installed")


# ---- the real daemon


@pytest.fixture(scope="session")
def pictures(tmp_path_factory) -> Path:
    """72 small drawn images in 8 classes, for copies."""
    return draw(tmp_path_factory.mktemp("pictures"), 8, 9)


@pytest.fixture(scope="module")
def small(pictures, tmp_path_factory) -> Path:
    """72 small drawn images in 8 classes, in a folder of the module: a dataset that no other module has read."""
    return shutil.copytree(pictures, tmp_path_factory.mktemp("small"), dirs_exist_ok=True)


@pytest.fixture(scope="session")
def golden(tmp_path_factory) -> Path:
    """A folder with the sets of golden/make.py."""
    return golden_files.unpack(tmp_path_factory.mktemp("golden") / "sets")


SHARED = "tiers: {total: 64MiB}\nmemory: {limit: 2GiB}\n"


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """The daemon of all tests that do not need one of their own; each process of pytest-xdist has one."""
    d = Daemon(tmp_path_factory.mktemp("server"), config=SHARED)
    yield d
    d.stop()


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    """The shared daemon. What jobs a module leaves there end with it, so that the next one finds their names free.

    A module whose tests count what is read and made, or which declares datasets in Python by name, says
    ``OWN_DAEMON = True``: what others left in the tiers, and their names, would change the result.
    """
    if getattr(request.module, "OWN_DAEMON", False):
        d = Daemon(tmp_path_factory.mktemp("server"), config=SHARED)
        yield d
        d.stop()
        return
    shared = request.getfixturevalue("shared")
    yield shared
    for job in json.loads(shared.cli("jobs", "ls", "-o", "json").stdout).get("jobs", []):
        shared.cli("jobs", "kill", job["spec"]["name"], check=False)


@pytest.fixture
def real(server):
    """Loaders on the shared daemon."""
    with contextlib.ExitStack() as stack:

        def make(uri, **kw):
            kw.setdefault("endpoint", server.socket)
            kw.setdefault("timeout", PATIENCE)
            return stack.enter_context(larder.Loader(uri, **kw))

        yield make


@pytest.fixture
def private(tmp_path):
    """Daemons with a configuration of their own."""
    made: list[Daemon] = []

    def make(config: str = "", *arguments: str) -> Daemon:
        d = Daemon(tmp_path / f"daemon{len(made)}", *arguments, config=config)
        made.append(d)
        return d

    yield make
    for d in made:
        d.stop()


@pytest.fixture
def clients(tmp_path):
    """Client processes, ended whatever happens."""
    made: list[Client] = []

    def make(daemon: Daemon, uri: str, **orders) -> Client:
        made.append(Client(tmp_path / "clients", daemon, uri, **orders))
        return made[-1]

    yield make
    for c in made:
        c.close()


@pytest.fixture
def lives(tmp_path):
    """Daemons that are killed and started again."""
    made = []

    def make(folder="d", state=None, more="", clock=None):
        made.append(Lives(tmp_path / folder, state, more, clock))
        return made[-1]

    yield make
    gc.collect()
    for x in made:
        x.daemon.stop()


@pytest.fixture
def loads():
    """Makes loaders on one of `lives`."""
    made = []

    def make(lives, uri, **kw):
        kw = {
            "batch_size": 4,
            "shuffle": True,
            "transform": [CROP],
            "return_index": True,
            "endpoint": lives.socket,
            "timeout": PATIENCE,
        } | kw
        made.append(larder.Loader(uri, **kw))
        return made[-1]

    yield make
    for x in made:
        x.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Daemons that read from a store, and an environment with its keys; the daemons end with the test."""
    w = World(tmp_path, monkeypatch)
    yield w
    for d in w.live:
        d.stop()


@pytest.fixture
def over_https(tmp_path, monkeypatch):
    """Loaders of datasets below a folder that nginx serves, on a daemon that knows the server: takes the folder."""
    with contextlib.ExitStack() as stack:
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy", "AWS_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)

        def make(root):
            server = nginx.Server(tmp_path / "nginx", root)
            stack.callback(server.stop)
            monkeypatch.setenv("SSL_CERT_FILE", str(server.authority))
            tiers = {"tiers": {"total": "0"}, "memory": {"limit": "2GiB"}, "stores": {"https": {"hedge": "0"}}}
            d = Daemon(tmp_path / "https", config=json.dumps(tiers))
            stack.callback(d.stop)

            def load(uri, **kw):
                address = nginx.over_web(uri, root, server.host)
                return stack.enter_context(larder.Loader(address, endpoint=d.socket, timeout=PATIENCE, **kw))

            return load

        yield make


@pytest.fixture
def bell() -> Iterator[Bell]:
    """Signals at random moments."""
    with Bell() as b:
        yield b


@pytest.fixture
def steady(monkeypatch):
    """A clock that runs by a microsecond each time it is read, for what is decided by how long items take."""
    readings = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(readings) * 1e-6)
