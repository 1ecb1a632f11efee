"""A dataset of a function, for tests of what single items do."""

from __future__ import annotations

import os
from pathlib import Path


class Items:
    """A dataset of a function."""

    def __init__(self, n, make):
        self.n, self.make = n, make

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        return self.make(i)


class Made:
    """What the items of a dataset note when they begin to be made, in whichever process."""

    def __init__(self, folder):
        self.path = folder / "made"
        self.last = None

    def note(self, i):
        """Notes an item, and gives it back."""
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, b"%d %d\n" % (i, os.getpid()))  # one call, which no other process comes between
        os.close(fd)
        return i

    def __call__(self):
        """The items that were begun, in their order, and the processes that did."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    def begun(self, i, times):
        """Whether item ``i`` was begun more than so many times, no item since the last look, and its process sleeps."""
        before, self.last = self.last, self()
        pids = [pid for item, pid in self.last if item == i]
        return before == self.last and len(pids) > times and sleeps(pids[-1])

    def hangs(self, i, times, clock):
        """Whether that item is at work, and every other worker rests: no other item is to feel a step of the clock."""
        return self.begun(i, times) and clock.stuck()


def sleeps(pid):
    """Whether all threads of a process wait in the kernel: who waits for the interpreter waits for one that runs."""
    try:
        tasks = [Path(f"/proc/{pid}/task/{t}/stat").read_text() for t in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return all(t.rpartition(")")[2].split()[0] == "S" for t in tasks)
