"""Runs of a command that are killed until one comes to its end."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

import pytest


def timed(run: Callable[[], object], most: float) -> float:
    """Seconds of a whole run, at most so many: a machine that stood still meanwhile tells nothing."""
    begin = time.monotonic()
    run()
    return min(time.monotonic() - begin, most)


def run_killed(command: Sequence[str], whole: float, runs: int, kills: int, part: float = 0.6,
               env: Mapping[str, str] | None = None, killed: Callable[[], None] = lambda: None) -> None:
    """Starts a command again and again, up to so many runs, and kills it after 0.05 to part of the seconds of a whole
    run; after so many kills it has 120 s. killed is called after each."""
    pick, done = random.Random(1), 0
    for _ in range(runs):
        p = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)
        try:
            p.wait(timeout=whole * pick.uniform(0.05, part) if done < kills else 120)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGKILL)
            p.wait()
            done += 1
            killed()
            continue
        assert p.returncode == 0
        break
    else:
        pytest.fail("no run came to its end")
    assert done > 0
