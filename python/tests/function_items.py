"""A dataset of a function, for tests of what single items do."""

from __future__ import annotations


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
