"""Runs of a command that are killed until one comes to its end."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from real import PATIENCE


def moved(process: subprocess.Popen[bytes]) -> int:
    """Bytes that a process has read and written, its work by which no clock counts; 0 when it has ended."""
    try:
        words = Path(f"/proc/{process.pid}/io").read_text().split()  # rchar: N wchar: N
    except OSError:
        return 0
    return int(words[1]) + int(words[3])


def work(command: Sequence[object], env: Mapping[str, str] | None = None) -> int:
    """Runs a command to its end; the bytes that it moved."""
    p, most = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, env=env), 0
    while p.poll() is None:
        most = max(most, moved(p))
    assert p.returncode == 0
    return most


def run_killed(
    command: Sequence[str],
    whole: int,
    runs: int,
    kills: int,
    env: Mapping[str, str] | None = None,
    killed: Callable[[], None] = lambda: None,
) -> None:
    """Starts a command again and again, up to so many runs, and kills it after 0.01 to 0.3 of the work of a whole run;
    after so many kills it may come to its end. killed is called after each."""
    pick, done = random.Random(1), 0
    for _ in range(runs):
        p = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)
        end = whole * pick.uniform(0.01, 0.3)
        while done < kills and p.poll() is None:
            if moved(p) >= end:
                p.send_signal(signal.SIGKILL)
                break
        if p.wait(PATIENCE) == -signal.SIGKILL:
            done += 1
            killed()
            continue
        assert p.returncode == 0
        break
    else:
        pytest.fail("no run came to its end")
    assert done > 0
