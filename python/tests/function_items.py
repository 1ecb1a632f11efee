"""A dataset of a function, for tests of what single items do."""

from __future__ import annotations

import os


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
        os.write(fd, b"%d\n" % i)  # one call, which no other process comes between
        os.close(fd)
        return i

    def __call__(self):
        """The items that were begun, in their order."""
        return list(map(int, self.path.read_text().split())) if self.path.exists() else []

    def hangs(self, i, times, clock):
        """Whether item ``i`` was begun more than so many times, no item since the last look, and every other worker
        rests: no other item is to feel a step of the clock.
        """
        before, self.last = self.last, self()
        return before == self.last and self.last.count(i) > times and clock.stuck()
