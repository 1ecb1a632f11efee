"""Several tasks of a worker at once: items that take microseconds each, where the way to each of them costs more.

Items that draw nothing from the global generators need no random state of their own. A ``Bulk`` makes them under one
state, by the dataset's ``__getitems__`` where it has one, and looks afterwards whether something was drawn. If so, it
makes them again one by one, each under its own state, and does so with all that follow.
"""

from __future__ import annotations

import functools
import operator
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


class Made(NamedTuple):
    """The items of the next tasks of a run, and why there is none of the task behind them; None: there are more."""

    items: list[Any]
    error: BaseException | None = None


class Bulk:
    """Makes the items of runs, for one Maker. ``begins`` is told the task of each item, or 0 before several at once."""

    def __init__(self, maker: _items.Maker, begins: Callable[[int], None]) -> None:
        self._maker, self._begins = maker, begins
        self._still = Still()
        self._draws = any(s.random for s in maker.steps)
        self._seconds = 0.0  # that an item takes, of late; 0 = not known
        base = maker.base
        self._get = functools.partial(
            operator.getitem if hasattr(base, "__getitem__") else _dataset.fetch, base
        )  # fmt: skip
        self._several = _several(base)

    def make(self, run: Run, most: int) -> Made:
        """Makes at least one item and at most ``most``, those of a few milliseconds; an error stands for an item."""
        began = time.monotonic()
        made = self._made(run, min(most, run.left))
        n = len(made.items) + (made.error is not None)
        took = (time.monotonic() - began) / n
        self._seconds = max(took, self._seconds - (self._seconds - took) / 4)
        return made

    def _made(self, run: Run, n: int) -> Made:
        if not self._draws and n > 1 and self._seconds < (_CALL if self._several else _QUICK):
            self._still.begin()
            made = self._called(run, n) or self._one_by_one(run, n, False)
            if not self._still.moved():
                return made
            self._draws = True
        return self._one_by_one(run, n, True)

    def _called(self, run: Run, n: int) -> Made | None:
        """The items by __getitems__; None = it is not there, or does not give them."""
        n = min(n, int(_CALL / self._seconds) if self._seconds else _FIRST)
        if self._several is None or n < 2:
            return None
        self._begins(0)
        try:
            items = list(self._several(run.samples[run.at : run.at + n]))
        except (Exception, SystemExit):
            items = []
        if len(items) != n:
            self._several = None  # what is wrong with it, or with an item, shows when they come one by one
            return None
        for k in range(n if self._maker.steps[: run.key.last - 1] else 0):
            self._begins(run.id + run.at + k)
            try:
                items[k] = self._steps(run, items[k])
            except (Exception, SystemExit) as e:
                return Made(items[:k], e)
        return Made(items)

    def _steps(self, run: Run, item: Any) -> Any:
        for step in self._maker.steps[: run.key.last - 1]:
            item = item if isinstance(step, Builtin) else step.run(item, None)
        return item

    def _one_by_one(self, run: Run, n: int, seeded: bool) -> Made:
        items: list[Any] = []
        key, clock, begins, get = run.key, time.monotonic, self._begins, self._get
        steps = key.last > 1
        end = clock() + _BUDGET
        for k in range(run.at, run.at + n):
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
                return Made(items, e)
            items.append(item)
            if clock() > end:
                break
        return Made(items)


def _several(base: Any) -> Callable[[list[int]], Any] | None:
    """What gives several items of a dataset at once."""
    if type(base) in (np.ndarray, np.memmap) and base.ndim:
        return functools.partial(operator.getitem, base)
    call = getattr(base, "__getitems__", None)
    return call if callable(call) else None
