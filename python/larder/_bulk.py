"""Several tasks of a worker at once: items that take microseconds each, where the way to each of them costs more.

Items that draw nothing from the global generators need no random state of their own. A ``Bulk`` makes them under one
state, by the dataset's ``__getitems__`` where it has one, and looks afterwards whether something was drawn. If so, it
makes them again one by one, each under its own state, and does so with all that follow.

That does not see all: a ``__getitems__`` may give items that depend on each other, items may differ by a state that is
read behind our back, and a dataset may write its next item over the last one. So the first items of a Bulk, and some
now and then, are proven: made one by one, handed over before the next, and made once more in the quick way to compare.

Tiny items come in groups: the worker marks that it is at several, and looks at the clock, once for each group.
"""

from __future__ import annotations

import functools
import operator
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _alike, _dataset, _items
from ._builtin import Builtin
from ._nested import Structure
from ._seeds import Still

_BUDGET = 0.002  # seconds of work after which items are handed over
_CALL = 0.01  # seconds that a call of __getitems__ is to take at most
_QUICK = 0.0005  # seconds that an item takes at most whose random state is worth a thought
_FIRST = 8  # items of the first call of __getitems__
_PROOFS = 8  # items at first that are proven
_AGAIN = 64  # calls after which some are again
_TINY = 0.00002  # seconds that an item takes at most that is made in a group
_GROUP = 32  # items of one
_CHECKED = 2  # calls of __getitems__ at first whose items are all made again
_ARRAYS = (np.ndarray, np.memmap)
_said: set[type] = set()
_CHECK = 0.02  # seconds that this is to take at most


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
        self.largest = 1 << 62  # bytes of an item that is compared with another one: larger ones are refused
        self._lock = lock
        self._seeded = False  # each item has a state of its own
        self._maker, self._begins = maker, begins
        self._still = Still()
        self._draws = any(s.random for s in maker.steps)
        self._seconds = 0.0  # that an item takes, of late; 0 = not known
        self._extra = 0.0  # seconds of this call that went into making items again
        self._calls = self._asked = 0  # of make, and of __getitems__
        self._proofs = _PROOFS  # items to prove
        self._proven: list[tuple[Any, _alike.Copy | None, Structure]] = []  # the last of those, with what they were
        self._overwrites = False  # the dataset writes an item over the last one
        self._looks = True  # whether items share memory
        base = maker.base
        self._get = functools.partial(
            operator.getitem if hasattr(base, "__getitem__") else _dataset.fetch, base
        )  # fmt: skip
        self._several = _several(base)
        self._array = type(base) in _ARRAYS

    def make(self, run: Run, most: int) -> BaseException | None:
        """Makes up to ``most`` items, those of a few milliseconds; what is returned stands for the item behind them.

        Together that is at least one.
        """
        self._clear(run, True)
        began, first, self._extra = time.monotonic(), run.at, 0.0
        self._calls += 1
        if self._calls % _AGAIN == 0 and not self._overwrites:
            self._proofs = max(self._proofs, 2)
        if self._proofs:
            error = self._prove(run)
        else:
            error = self._make(run, first + (1 if self._overwrites else min(most, run.left)))
        n = self.first + len(self.items) - first + (error is not None)
        took = (time.monotonic() - began - self._extra) / n
        self._seconds = max(took, self._seconds - (self._seconds - took) / 4)
        return error

    # ---- proofs

    def _prove(self, run: Run) -> BaseException | None:
        """Makes one item under its own state; a quick one is compared with what the shared state gives."""
        structure = self._maker.layouts[run.key.last - 1].structure
        self._begins(run.id + run.at)
        began = time.monotonic()
        try:
            item = self._single(run, run.at)
            made = time.monotonic()
            kept = None
            if made - began < _BUDGET:  # others are not held
                kept = _alike.copy(item, structure, self.largest)
                if not all(_alike.same(*proven) for proven in self._proven):
                    self._overwrites = True
            if made - began < _QUICK and not self._draws and not self._provable(run, kept, structure):
                self._draws = True
                item = self._single(run, run.at)
                kept = _alike.copy(item, structure, self.largest)
        except (Exception, SystemExit) as e:
            return e
        finally:
            self._proofs -= 1
        self._extra += time.monotonic() - made
        if kept is not None:
            self._proven.append((item, kept, structure))
        if not self._proofs or self._overwrites:
            self._proofs, self._proven = 0, []
        self.items.append(item)
        return None

    def _provable(self, run: Run, kept: _alike.Copy | None, structure: Structure) -> bool:
        """Whether the next item is the same under the shared state, and draws nothing."""
        self._still.begin()
        try:
            item = self._steps(run, self._get(run.samples[run.at]))
        except (Exception, SystemExit):
            return False
        return not self._still.moved() and _alike.same(item, kept, structure)

    def _single(self, run: Run, k: int) -> Any:
        """An item under its own state."""
        item, key = None, run.key
        for number in range(key.last):
            item = self._maker.step(item, key.seed, run.instances[k], run.samples[k], number)
        return item

    def _trusted(self, run: Run, made: list[Any], shared: bool) -> int:
        """How many of the items that __getitems__ gave are to be used; 0: they are not the items one by one.

        All items of the first calls, and of a call whose items share memory, are made again; some of another call.
        """
        if self._still.moved():
            return len(made)  # they are not used
        began, n = time.monotonic(), len(made)
        first = self._asked <= _CHECKED
        places = range(n) if first or shared else range(n // 16, n, max(n // 8, 1))
        structure = self._maker.layouts[run.key.last - 1].structure
        kept = [_alike.copy(made[k], structure, self.largest) for k in places]
        try:
            for k, x in zip(places, kept, strict=True):
                self._begins(run.id + run.at + k)
                if not _alike.same(self._single(run, run.at + k), x, structure):
                    return 0
                if not shared and time.monotonic() - began > _CHECK:  # the first write may be in the last place
                    n = k + 1 if first else n
                    break
        except (Exception, SystemExit):
            return 0
        finally:
            self._still.begin()
            self._extra += time.monotonic() - began
        self._looks = self._looks and not shared  # they share what is never written to
        return n if all(_alike.same(made[k], x, structure) for k, x in zip(places, kept, strict=True)) else 0

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
                error = self._held(run, end)
            if not self._still.drew():
                return error
            self._draws = True
            self._clear(run, True)  # what was handed over meanwhile had drawn nothing
        return self._held(run, end) if run.at < end else None

    def _held(self, run: Run, end: int) -> BaseException | None:
        """Makes items one by one; where they share memory, those to come are proven first."""
        error = self._one_by_one(run, end)
        n = len(self.items)
        if not self._shared(run, self.items):
            return error
        self._looks = False  # again: they may share what is never written to
        self._proofs = n + 1
        moved = not self._seeded and self._still.drew()
        self._draws = self._draws or moved
        self._clear(run, True)
        error = self._one_by_one(run, run.at + 1)
        self._still.begin()  # this one is certain
        return error

    def _shared(self, run: Run, items: Sequence[Any]) -> bool:
        """Whether items of the run, from ``run.at`` on, share memory, as far as that is not known to be harmless."""
        if not self._looks or len(items) < 2 or not _alike.shares(items):
            return False
        samples = run.samples[run.at : run.at + len(items)]
        return len(set(samples)) == len(samples)  # a sample that is asked for twice may well be the same object

    def _call(self, run: Run, end: int) -> BaseException | None:
        """Makes the items by __getitems__, or none if that is not there or does not give them."""
        end = min(end, run.at + (int(_CALL / self._seconds) if self._asked and self._seconds else _FIRST))
        if self._several is None or end - run.at < 2:
            return None
        checks = not self._array and (self._asked < _CHECKED or self._asked % _AGAIN == 0)
        self._asked += 1
        self._begins(0)
        found: Any
        try:
            found = self._several(run.samples[run.at : end])
            found = list(found) if isinstance(found, list | tuple | np.ndarray) else []
        except (Exception, SystemExit):
            found = []
        if len(found) != end - run.at or not (self._array or self._nests(found)):
            self._several = None  # what is wrong with it, or with an item, shows when they come one by one
            return None
        shared = not self._array and self._shared(run, found)
        checks = checks or shared
        made, error = ([] if checks else self.items), None
        if run.key.last == 1:
            made += found
        else:
            error = self._several_steps(run, found, made)
        if checks:
            trusted = 0 if error else self._trusted(run, made, shared or self._shared(run, made))
            if trusted:
                self.items += made[:trusted]
                return None
            if error is None:
                self._several = None
                _say(self._maker.base)
            self._proofs = max(self._proofs, _PROOFS)
            return None
        return error

    def _several_steps(self, run: Run, found: list[Any], made: list[Any]) -> BaseException | None:
        for k, item in enumerate(found, run.at):
            self._begins(run.id + k)
            try:
                made.append(self._steps(run, item))
            except (Exception, SystemExit) as e:
                return e
        return None

    def _nests(self, found: list[Any]) -> bool:
        """Whether items are items, where they could be columns by their number."""
        structure = self._maker.layouts[0].structure
        structure = structure.data or structure
        if len(found) > max(_FIRST, len(structure.parts)):
            return True
        return all(_alike.leaves(x, structure) is not None for x in found)

    def _steps(self, run: Run, item: Any) -> Any:
        for step in self._maker.steps[: run.key.last - 1]:
            item = item if isinstance(step, Builtin) else step.run(item, None)
        return item

    def _in_groups(self, run: Run, end: int) -> BaseException | None:
        """Makes tiny items, as far as they are tiny. The one that does not come is left to ``_one_by_one``."""
        items, late = self.items, time.monotonic() + _BUDGET
        at = self.first
        while at < end:
            stop = min(at + _GROUP, end)
            self._begins(0)
            try:
                items.extend(map(self._get, run.samples[at:stop]))
            except TimeoutError:  # the group took long, which says nothing of this item
                return None
            except (Exception, SystemExit) as e:
                return e
            at = stop
            if len(items) < at - self.first or time.monotonic() > late:  # StopIteration ends a map
                return None
        return None

    def _one_by_one(self, run: Run, end: int) -> BaseException | None:
        items, seeded, steps = self.items, self._seeded, run.key.last > 1
        if not seeded and not steps and 0 < self._seconds < _TINY:
            error = self._in_groups(run, end)
            if error is not None or items:
                return error
        clock, begins, get = time.monotonic, self._begins, self._get
        late = clock() + _BUDGET
        for k in range(self.first, end):
            begins(run.id + k)
            try:
                if seeded:
                    item = self._single(run, k)
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
    if type(base) in _ARRAYS and base.ndim:
        return functools.partial(operator.getitem, base)
    if getattr(base, "_format_type", None) == "custom":
        return None  # datasets: a function of the script makes something of each batch
    call = getattr(base, "__getitems__", None)
    return call if callable(call) else None


def _say(base: Any) -> None:
    """Says on the output of the worker, once, that __getitems__ is not used."""
    if type(base) in _said:
        return
    _said.add(type(base))
    text = (
        f"larder: a worker asks for the items of {_dataset.describe(base)} one by one: its __getitems__ gives other "
        "items than its __getitem__\n"
    )
    try:
        os.write(2, text.encode(errors="replace"))
    except OSError:
        pass
