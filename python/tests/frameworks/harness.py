"""Runs a training script again and again, as a user restarts it after a crash, and counts what it was trained
on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pace import eventually
from real import HERE, PATIENCE, Daemon

SCRIPTS = Path(__file__).resolve().parent / "scripts"
KILLED = -9


class Training:
    """A training that dies and comes back: its checkpoints, its runs, and the batches that count."""

    def __init__(self, script: str, folder: Path, daemon: Daemon, uri: str, **given: Any) -> None:
        self.script, self.folder, self.daemon = script, folder, daemon
        (folder / "checkpoints").mkdir(parents=True)
        self.given = {"uri": uri, "folder": str(folder), "batch": 32, "epochs": 3, **given}
        self.runs = 0
        self.counted: list[dict[str, Any]] = []  # batches of the model that is left
        self.validated: list[dict[str, Any]] = []

    def start(self, **given: Any) -> subprocess.Popen[str]:
        """Starts the script, which takes the newest checkpoint."""
        self.runs += 1
        arguments = {**self.given, **given, "socket": self.daemon.socket, "run": self.runs}
        env = {**os.environ, "PYTHONPATH": str(HERE.parent), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, str(SCRIPTS / self.script), json.dumps(arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)

    def finish(self, process: subprocess.Popen[str], code: int) -> list[dict[str, Any]]:
        """Waits for the end of a run, and takes what it says into account."""
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, out[-6000:]
        said = self.said()
        begin = said[0]["resumed"]
        assert [s["kind"] for s in said if s["kind"] in ("start", "end")] == ["start"] + ["end"] * (code == 0)
        # What came after the checkpoint that the run began with is lost with the model that had it.
        self.counted = [s for s in self.counted if s["step"] <= begin] + [s for s in said if s["kind"] == "train"]
        self.validated = [s for s in self.validated if s["step"] < begin] + [s for s in said if s["kind"] == "val"]
        return said

    def said(self) -> list[dict[str, Any]]:
        """The log of the newest run."""
        log = self.folder / f"run{self.runs}.log"
        return [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")] if log.exists() else []

    def until(self, process: subprocess.Popen[str], step: int) -> None:
        """Waits until a run has got to a step."""

        def there() -> bool:
            assert process.poll() is None, "it did not get there"
            return any(s["kind"] == "train" and s["step"] >= step for s in self.said())

        eventually(there)

    def run(self, code: int = 0, **given: Any) -> list[dict[str, Any]]:
        """One run, from start to end."""
        return self.finish(self.start(**given), code)

    def check(self, samples: int, epochs: Iterable[int], batches: int | None = None, ranks: int = 1) -> None:
        """Every epoch has every sample exactly once, over all runs and ranks; steps are counted without a gap."""
        steps = sorted(s["step"] for s in self.counted)
        assert steps == sorted(ranks * list(range(1, len(steps) // ranks + 1))), steps
        by_epoch: dict[int, list[int]] = {}
        sizes: Counter[int] = Counter()
        for s in self.counted:
            by_epoch.setdefault(s["epoch"], []).extend(s["ids"])
            sizes[s["epoch"]] += 1
        sizes_text = f"batches by epoch {dict(sizes)}"
        assert sorted(by_epoch) == list(epochs), sizes_text
        for epoch, ids in by_epoch.items():
            twice = [i for i, n in Counter(ids).items() if n > 1]
            lost = len(set(range(samples)) - set(ids))
            assert not twice and len(ids) == samples, (
                f"epoch {epoch}: {lost} of {samples} lost, {len(twice)} twice; {sizes_text}"
            )
        if batches is not None:
            assert all(n == batches for n in sizes.values()), sizes_text
