"""Several tasks of a worker at once: items that take microseconds each, where the way to each of them costs more.

Items that draw nothing from the global generators need no random state of their own. A ``Bulk`` makes them under one
state, by the dataset's ``__getitems__`` where it has one, and looks afterwards whether something was drawn. If so, it
makes them again one by one, each under its own state, and does so with all that follow.
"""

from __future__ import annotations

import functools
import operator
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import _dataset, _items
from ._builtin import Builtin
from ._seeds import Still

_BUDGET = 0.002  # seconds of work after which items are handed over
_CALL = 0.01  # seconds that a call of __getitems__ is to take at most
_QUICK = 0.0005  # seconds that an item takes at most whose random state is worth a thought
_FIRST = 8  # items of the first call of __getitems__


class Key(NamedTuple):
    """What tasks of a run have in common: the steps from ``first`` up to ``last`` (excluded)."""

    seed: int
    recipe: int
    first: int
    last: int
    timeout_ms: int


class Run:
    """Tasks whose numbers follow each other, from ``id`` on; those before ``at`` are answered."""

    __slots__ = ("at", "id", "instances", "key", "samples")

    def __init__(self, id_: int, key: Key, samples: list[int], instances: list[int]) -> None:
        self.id, self.key, self.samples, self.instances, self.at = id_, key, samples, instances, 0

    @property
    def left(self) -> int:
        """How many are not answered."""
        return len(self.samples) - self.at

    def append(self, other: Run) -> bool:
        """Takes the tasks of another run in, if they follow."""
        if other.key != self.key or other.id != self.id + len(self.samples):
            return False
        self.samples += other.samples
        self.instances += other.instances
        return True


class Bulk:
    """Makes the items of runs, for one Maker. ``begins`` is told the task of each item, or 0 before several at once.

    ``items`` are those of the tasks from ``first`` of the run on. They grow while an item is made, and another thread
    that holds ``lock`` may hand over those that are certain.
    """

    def __init__(self, maker: _items.Maker, begins: Callable[[int], None], lock: threading.Lock) -> None:
        self.run: Run | None = None  # of which items are made
        self.items: list[Any] = []
        self.first = 0
        self._lock = lock
        self._seeded = False  # each item has a state of its own
        self._maker, self._begins = maker, begins
        self._still = Still()
        self._draws = any(s.random for s in maker.steps)
        self._seconds = 0.0  # that an item takes, of late; 0 = not known
        base = maker.base
        self._get = functools.partial(
            operator.getitem if hasattr(base, "__getitem__") else _dataset.fetch, base
        )  # fmt: skip
        self._several = _several(base)

    def make(self, run: Run, most: int) -> BaseException | None:
        """Makes up to ``most`` items, those of a few milliseconds; what is returned stands for the item behind them.

        Together that is at least one.
        """
        self._clear(run, True)
        began, first = time.monotonic(), run.at
        error = self._make(run, first + min(most, run.left))
        n = self.first + len(self.items) - first + (error is not None)
        took = (time.monotonic() - began) / n
        self._seconds = max(took, self._seconds - (self._seconds - took) / 4)
        return error

    def certain(self) -> list[Any]:
        """The items that are not to be made again. Only for who holds the lock."""
        items = list(self.items)
        return items if items and (self._seeded or not self._still.moved()) else []

    def _clear(self, run: Run, seeded: bool) -> None:
        with self._lock:
            self.run, self.items, self.first, self._seeded = run, [], run.at, seeded

    def _make(self, run: Run, end: int) -> BaseException | None:
        """Makes items up to ``end`` of the run."""
        limit = _CALL if self._several else _QUICK
        if not self._draws and end - run.at > 1 and self._seconds < limit:
            self._still.begin()
            self._clear(run, False)
            error = self._call(run, end) if self._several else None
            if error is None and not self.items:
                error = self._one_by_one(run, end)
            if not self._still.moved():
                return error
            self._draws = True
            self._clear(run, True)  # what was handed over meanwhile had drawn nothing
        return self._one_by_one(run, end) if run.at < end else None

    def _call(self, run: Run, end: int) -> BaseException | None:
        """Makes the items by __getitems__, or none if that is not there or does not give them."""
        end = min(end, run.at + (int(_CALL / self._seconds) if self._seconds else _FIRST))
        if self._several is None or end - run.at < 2:
            return None
        self._begins(0)
        try:
            found = list(self._several(run.samples[run.at : end]))
        except (Exception, SystemExit):
            found = []
        if len(found) != end - run.at:
            self._several = None  # what is wrong with it, or with an item, shows when they come one by one
            return None
        if run.key.last == 1:
            self.items += found
            return None
        for k, item in enumerate(found, run.at):
            self._begins(run.id + k)
            try:
                self.items.append(self._steps(run, item))
            except (Exception, SystemExit) as e:
                return e
        return None

    def _steps(self, run: Run, item: Any) -> Any:
        for step in self._maker.steps[: run.key.last - 1]:
            item = item if isinstance(step, Builtin) else step.run(item, None)
        return item

    def _one_by_one(self, run: Run, end: int) -> BaseException | None:
        items, seeded, steps = self.items, self._seeded, run.key.last > 1
        key, clock, begins, get = run.key, time.monotonic, self._begins, self._get
        late = clock() + _BUDGET
        for k in range(self.first, end):
            begins(run.id + k)
            try:
                if seeded:
                    item = None
                    for number in range(key.last):
                        item = self._maker.step(item, key.seed, run.instances[k], run.samples[k], number)
                else:
                    item = get(run.samples[k])
                    if steps:
                        item = self._steps(run, item)
            except (Exception, SystemExit) as e:
                return e
            items.append(item)
            if clock() > late:
                break
        return None


def _several(base: Any) -> Callable[[list[int]], Any] | None:
    """What gives several items of a dataset at once."""
    if type(base) in (np.ndarray, np.memmap) and base.ndim:
        return functools.partial(operator.getitem, base)
    call = getattr(base, "__getitems__", None)
    return call if callable(call) else None
