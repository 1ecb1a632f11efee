"""Torch's own machinery as what serves a DataLoader: its iterators, and the places of their passes.

A place is that of a loader with a sampler (``_places``), so a state that was saved here can be loaded where workers of
larder serve, and the other way round.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch.utils import data

from . import _places, _samplers
from ._places import Before, Place
from .errors import InvalidError, StateError

_FOLDED = 256  # batches whose picks are put into a sum at once


class Pass:
    """One pass of the samplers, and how much of it was handed out.

    Without workers that is what was taken from the samplers; workers are ahead, so ``Watched`` counts there.
    """

    __slots__ = ("base", "before", "count", "epoch", "fold", "over", "picks", "total")

    def __init__(self, epoch: int, before: Before, base: int) -> None:
        self.epoch = epoch
        self.before = before  # what the samplers were
        self.base = base  # batches that are in no list: those before a loaded state, and those that are in the sum
        self.total: int | None = 0  # a sum of their picks; None: they have none that is equal in every process
        self.picks: list[Any] = []  # of the batches after them that were taken from the samplers
        self.count: int | None = None  # of those of the pass that were handed out; None: all
        self.fold = _FOLDED  # picks that are kept
        self.over = False

    def step(self) -> int:
        """How many batches of the pass were handed out."""
        return self.base + len(self.picks) if self.count is None else self.count

    def sum(self) -> int | None:
        """A sum of the picks of those."""
        return _sum(self.total, self.picks[: self.step() - self.base])

    def counted(self, indices: Iterator[Any]) -> Iterator[Any]:
        """The same indices, noted as they are taken."""
        picks, note = self.picks, self.picks.append
        for x in indices:
            note(x)
            yield x
            if len(picks) >= self.fold:
                self.total = _sum(self.total, picks[:_FOLDED])
                self.base += _FOLDED
                del picks[:_FOLDED]
        if self.count is None:
            self.over = True


class Passage:
    """The passes of the samplers of one DataLoader, which torch's iterators ask for their indices."""

    def __init__(self) -> None:
        self.running: Pass | None = None  # the last one that was begun
        self.epochs = 0  # passes that were begun
        self.place: Place | None = None  # of a state that was loaded, until its pass has begun
        self.inner: Any = ()  # gives torch's indices
        self.root: _samplers.Passes | None = None  # what states are of
        self.workers = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "running": None, "root": None}

    def begin(self, loader: Any, iterate: Callable[[], Any]) -> Any:
        """Torch's iterator of the next epoch."""
        if isinstance(loader.dataset, data.IterableDataset):
            return iterate()
        root = self._root_of(loader)
        self.workers = loader.num_workers > 0
        place = self.place
        if place is None:
            run = Pass(self.epochs, Before({}, {}) if _samplers.in_order(loader) else _places.taken(root), 0)
        else:
            run = Pass(place.epoch, place.before, place.step)
        if self.workers:
            run.count, run.fold = run.base, 2 * _FOLDED + loader.num_workers * (loader.prefetch_factor or 2)
        before, self.running = self.running, run
        try:
            it = iterate()
        except BaseException:
            self.running = before
            raise
        self.epochs = run.epoch + 1
        root.begun = True
        if self.workers:
            if not hasattr(it, "larder_pass"):  # workers that stay have one iterator for all epochs
                kind: Any = type(it)
                it.__class__ = _watched(kind)
            it.larder_pass = run
        return it

    def over(self, inner: Any) -> Passage:
        """These passes, of what a DataLoader's iterator asks for its indices."""
        self.inner = inner
        return self

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        run = self.running
        if run is None:
            return iter(self.inner)
        if self.place is not None:
            return self._continued(run, self.place)
        return run.counted(iter(self.inner))

    def _continued(self, run: Pass, place: Place) -> Iterator[Any]:
        """A pass that begins as it did before a state was saved, behind the batches that were handed out."""
        assert self.root is not None
        with _places.put_back(self.root, place.before):
            indices = iter(self.inner)
            self.root.draw()
            if self.workers:
                indices = iter(self.inner)  # torch begins twice there
            total = _sum(0, itertools.islice(indices, place.step))
            if place.state.get("sum") not in (None, total):
                raise place.another_pass()
            first = list(itertools.islice(indices, 1))  # what draws when its pass begins has drawn then
        self.place, run.total = None, total
        yield from run.counted(itertools.chain(first, indices))

    def _root_of(self, loader: Any) -> _samplers.Passes:
        if self.root is None:
            self.root = _samplers.passes(loader)
        return self.root

    # ---- states

    def state(self, loader: Any) -> dict[str, Any]:
        """The place of the last pass that was begun.

        Raises:
            StateError: the dataset is an IterableDataset.
        """
        if isinstance(loader.dataset, data.IterableDataset):
            raise StateError(
                "an IterableDataset has no place that this loader knows of", subject="dataset",
                hint="save the state of the dataset, or give it numbered items",
            )  # fmt: skip
        if self.place is not None:
            return dict(self.place.state)
        run, size = self.running, _counted(loader)
        if run is None or run.over:
            state = _places.state(self.epochs, 0, size, _places.taken(self._root_of(loader)))
            return {**state, "picks": None, "sum": 0}
        return {**_places.state(run.epoch, run.step(), size, run.before), "picks": None, "sum": run.sum()}

    def load(self, loader: Any, saved: Mapping[str, Any], why: str) -> None:
        """Has the next epoch be the rest of a pass.

        Raises:
            StateError: the state is of a loader that the daemon served.
            InvalidError: it is none, or one of other batches.
        """
        if isinstance(saved, Mapping) and saved and not _places.is_place(saved):
            raise StateError(
                "the state was saved by a loader whose order the daemon chose, and torch serves this one: "
                f"{why}", subject="state_dict", hint="make the loader as it was made when the state was saved",
            )  # fmt: skip
        if isinstance(loader.dataset, data.IterableDataset):
            raise InvalidError("an IterableDataset cannot continue at a place", subject="state_dict")
        self.place = _places.place(saved, _counted(loader))
        self._root_of(loader)


def _counted(loader: Any) -> int:
    """Samples of a batch, for states, which count batches; 0 = the batch_sampler gives them."""
    if loader.batch_sampler is None:
        return 1
    return 0 if _samplers.own_batches(loader) else int(loader.batch_size)


def _sum(total: int | None, batches: Iterable[Any]) -> int | None:
    """A sum of picks and those of more batches, equal in every process; None where they are not all numbers."""
    for picks in batches:
        first = picks[0] if type(picks) is list and picks else picks
        if total is None or (type(first) is not int and first != []):
            total = None
        else:
            total = hash((total, hash(tuple(picks)) if type(picks) is list else picks))
    return total


@functools.cache
def _watched(kind: Any) -> Any:
    """The class of torch's iterator, with a count of what it has given."""

    class Watched(kind):  # type: ignore[misc]
        def __next__(self) -> Any:
            try:
                batch = super().__next__()
            except StopIteration:
                self.larder_pass.over = True
                raise
            self.larder_pass.count += 1
            return batch

    Watched.__name__, Watched.__qualname__, Watched.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    return Watched
