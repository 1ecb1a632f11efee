"""``DataLoader``: torch's signature, with samples that jobs share.

A script changes its import::

    from larder.torch import DataLoader  # was: from torch.utils.data import DataLoader

Workers run the dataset as torch's do, under the daemon's direction: what several jobs need is made once. Give the
dataset a ``name=`` and other processes share it; say ``cache="items"`` when item i is always the same, or
``share="augmented"`` when it is random. docs/guides/python-datasets.md is the guide.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from . import _checks, _dataset, _make, _places, _stream
from ._arguments import Arguments
from ._loader import Loader
from .errors import InvalidError

__all__ = ["DataLoader"]

Sample = TypeVar("Sample", covariant=True)
_FOREVER = 1e6  # seconds: torch's timeout=0
_MOST = 64  # batches ahead
_LARDER = (
    *("name", "version", "cache", "share", "transform", "job", "seed", "order", "epochs", "on_error", "ragged"),
    *("pad_value", "pad_multiple", "sample_timeout", "worker_memory", "endpoint", "on_daemon_loss", "native", "even"),
    *("return_index", "rank", "world_size", "replace", "skip_empty"),
)


class DataLoader(Generic[Sample]):
    """torch's DataLoader on larder: the same arguments, the same batches.

    Args:
        dataset: a map-style dataset. A torchvision ImageFolder whose transforms larder has with equal bits is prepared
            by the daemon itself (``native=False``: by workers). ``NativeWarning`` says once which, and why.
        batch_size, shuffle, sampler, batch_sampler, drop_last: as torch's. Samplers that say which samples there are
            and leave the order to chance (sequential, random without replacement, subset-random) get an order of
            larder's, and so do distributed ones, of which all ranks get floor(n / ranks) samples, none twice. Any other
            says itself which samples come, in which order and how often. It is asked up to 2 x (prefetched batches + 2)
            batches ahead. A batch_sampler's batches have at most as many samples as its ``batch_size`` says, or as its
            first one has.
        num_workers: worker processes of this loader; 0 runs the dataset in this process, while it waits for a batch.
        collate_fn: gets the list of samples, in this process.
        pin_memory, pin_memory_device: copies batches into pinned memory, where there is a GPU; else nothing.
        timeout: seconds that a batch may take; 0 = any.
        worker_init_fn, multiprocessing_context, persistent_workers: as torch's. Workers that stay keep the dataset as
            it was when they started.
        generator: gives the seed; so does ``torch.manual_seed``. An order repeats with ``order="fixed"`` only.
        prefetch_factor: batches ahead for each worker, 64 in all at most.
        in_order: batches always come in order.
        larder: the arguments of :class:`larder.Loader` that torch has no word for: name, version, cache, share,
            transform, job, seed, order, epochs, on_error, ragged, pad_value, pad_multiple, sample_timeout,
            worker_memory, endpoint, on_daemon_loss, native, even, return_index, rank, world_size, replace, skip_empty.

    Raises:
        TypeError: the dataset is an IterableDataset, or an argument does not exist.
        InvalidError: an argument, a sampler or an item cannot work. It is a ValueError.

    Example:
        >>> from larder.torch import DataLoader
        >>> train = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4, name="speech", cache="items")
        >>> for batch in train:
        ...     ...
    """

    def __init__(
        self: DataLoader[Any],
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        **larder: Any,
    ) -> None:
        _require_keywords(larder)
        _dataset.require_map_style(dataset)
        self.dataset = dataset
        self.num_workers = _checks.integer("num_workers", num_workers, 0, 1024)
        self.pin_memory = _checks.flag("pin_memory", pin_memory)
        self.pin_memory_device = pin_memory_device
        self.timeout = _timeout(timeout)
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.persistent_workers = _checks.flag("persistent_workers", persistent_workers)
        self.in_order = _checks.flag("in_order", in_order)
        self.prefetch_factor = _prefetch(prefetch_factor, self.num_workers)
        if self.persistent_workers and self.num_workers == 0:
            raise InvalidError("persistent_workers=True needs num_workers > 0", subject="persistent_workers")
        self.collate_fn = collate_fn
        drop_last = _checks.flag("drop_last", drop_last)
        own = False  # the batches are the batch_sampler's
        if batch_sampler is not None:
            _exclude(batch_size, shuffle, sampler, drop_last)
            own = type(batch_sampler) is not data.BatchSampler or not _known(dataset, batch_sampler.sampler)
            batch_size = None
            if not own:
                sampler, shuffle = batch_sampler.sampler, None
                batch_size, drop_last = int(batch_sampler.batch_size), bool(batch_sampler.drop_last)
        order = _given(dataset, generator) if own else _order(dataset, sampler, shuffle, generator)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler if sampler is not None else _sampler(order)
        self.batch_sampler = batch_sampler
        self._script = (sampler, batch_sampler)  # of the script; the first is the second's where there is one
        if batch_size is not None and batch_sampler is None:
            self.batch_sampler = data.BatchSampler(self.sampler, batch_size, drop_last)
        self._given: dict[str, Any] = {
            "seed": order.seed,
            "rank": order.rank,
            "world_size": order.ranks,
            "prefetch": min(_MOST, max(2, self.prefetch_factor * self.num_workers)),
            "timeout": self.timeout or _FOREVER,
            "persistent_workers": self.persistent_workers,
            **larder,
            "num_workers": self.num_workers,
            "collate_fn": _single(collate_fn, drop_last) if batch_size is None and not own else collate_fn,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "output": "torch",
            "plain": True,
        }
        follows = own or (sampler is not None and not _known(dataset, sampler))
        # What larder read of a sampler, whose order it makes; None: the sampler is asked in each epoch.
        self._read = None if follows or sampler is None else self._reads()
        self._changing: bool | None = None  # its loader is about to be replaced; True: by one that follows the sampler
        self._made = _Made(follows, order, len(dataset), 0 if self._read is None else self._batches())
        self.loader: Loader[Any] = Loader.__new__(Loader)
        self.loader._shared = _make.shared(self._following() if follows else self._ordered(order))

    def _ordered(self, order: _Order) -> Arguments:
        """The arguments of a loader whose order is larder's."""
        size = 1 if self.batch_size is None else self.batch_size
        given = {"dataset": order.dataset, "batch_size": size, "shuffle": order.shuffle, "drop_last": self.drop_last}
        return Arguments(**self._given, **given)

    def _following(self) -> Arguments:
        """The arguments of a loader whose samples the script's sampler says."""
        sampler, batch_sampler = self._script
        stays = self.persistent_workers and self.num_workers > 0
        if batch_sampler is not None:
            batches = _Passes(batch_sampler, self.generator, True, stays).of_batches()
            return Arguments(**self._given, dataset=self.dataset, batch_sampler=batches)
        size = 1 if self.batch_size is None else self.batch_size
        indices = _Passes(sampler, self.generator, self.batch_size is None, stays)
        given = {"dataset": self.dataset, "batch_size": size, "drop_last": self.drop_last, "sampler": indices}
        return Arguments(**self._given, **given)

    def _reads(self) -> list[Any]:
        """What larder would make an order of, now."""
        sampler, batch_sampler = self._script
        try:
            return _read(sampler if batch_sampler is None else batch_sampler)
        except (TypeError, ValueError):
            return [None]  # which is said when the sampler is asked

    def _batches(self) -> int:
        """The batches of an epoch that torch would have, now."""
        sampler: Any
        sampler, batch_sampler = self._script
        if batch_sampler is not None:
            return len(batch_sampler)
        n, size = len(sampler), self.batch_size or 1
        return n // size if self.drop_last else -(-n // size)

    def _look(self) -> None:
        """Follows what the script changed: the dataset, or a sampler whose indices active learning sets.

        Raises:
            InvalidError: the order belongs to several ranks, or to a state that was loaded.
        """
        shared = self.loader._shared
        sampler = self._read is not None and self._read != self._reads()
        if self._changing is None and (shared.closed or not (sampler or self._changed())):
            return
        why = ""
        if shared.settings.place.world_size > 1:
            why = "its order is that of several ranks"
        elif shared.loaded is not None and shared.loaded.left >= 0:
            why = "a state of the order before was loaded"
        if why:
            what = "sampler" if sampler else "dataset"
            raise InvalidError(
                f"the {what} was changed since this loader was made, and {why}", subject=what,
                hint=f"make a new DataLoader when you change a {what}",
            )  # fmt: skip
        self._remake(bool(self._changing) or sampler or self._made.follows)

    def _changed(self) -> bool:
        """Whether the dataset is another than the one that the loader was made of, as far as that shows at once."""
        native = self.loader._shared.settings.native
        return self._resized() if native is None else not native.still(self.dataset)

    def _resized(self) -> bool:
        """Whether a dataset that no other loader has a part in has another length than when the loader was made."""
        alone = self.loader._shared.settings.place.world_size == 1 and self._given.get("name") is None
        return alone and len(self.dataset) != self._made.rows

    def _remake(self, follow: bool) -> None:
        """Replaces the loader from the next epoch on; ``follow``: the sampler itself says which samples come."""
        before = self.loader._shared
        epoch = before.coming()
        self._changing = follow  # until the new loader is there, whatever comes between
        before.close()
        new = _make.shared(self._following() if follow else self._ordered(self._made.order))
        new.next_epoch = epoch
        self.loader._shared = new
        self._made = self._made._replace(follows=follow or self._made.follows, rows=len(self.dataset))
        if follow:
            self._read = None
        self._changing = None

    def __len__(self) -> int:
        shared = self.loader._shared
        if shared.settings.place.world_size == 1 and not shared.closed:
            now = self._made.batches if self._read is None else self._batches()
            if now != self._made.batches:  # the sampler was changed, which the next epoch follows
                return now
            if self._resized():
                return len(self.sampler if self.batch_sampler is None else self.batch_sampler)
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self._look()
        epoch = getattr(self.sampler, "epoch", None)
        if isinstance(self.sampler, DistributedSampler) and isinstance(epoch, int):
            self.loader.set_epoch(epoch)
        batches = iter(self.loader)
        native = self.loader._shared.plan is None
        pin = self.pin_memory and torch.cuda.is_available()
        return _Finished(batches, native, pin, self.pin_memory_device) if native or pin else batches

    def state_dict(self) -> dict[str, Any]:
        """The position, as StatefulDataLoader's; see :meth:`larder.Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from a position; see :meth:`larder.Loader.load_state_dict`."""
        if self._read is not None and _places.is_place(state_dict) and not self.loader._shared.closed:
            self._remake(True)  # the state was saved after the sampler had been changed
        self.loader.load_state_dict(state_dict)

    def close(self) -> None:
        """Leaves the job and ends the workers."""
        self.loader.close()

    def __enter__(self) -> DataLoader[Sample]:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<larder.torch.DataLoader of {_dataset.describe(self.dataset)}, job {self.loader.job!r}>"


class BatchDataset(data.IterableDataset[Any]):
    """The batches of a Loader as a dataset; see :meth:`larder.Loader.as_dataset`."""

    def __init__(self, loader: Loader[Any]) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class _Finished:
    """Batches after what torch does to them last: lists, pinned memory."""

    def __init__(self, batches: Iterator[Any], native: bool, pin: bool, device: str) -> None:
        self.batches, self.native, self.pin, self.device = batches, native, pin, device

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self.batches)
        if self.native:
            batch = list(batch)
        if self.pin:
            of_torch: Any = importlib.import_module("torch.utils.data._utils.pin_memory")
            batch = of_torch.pin_memory(batch, *([self.device] if self.device else []))
        return batch


def _single(collate_fn: Callable[[Any], Any] | None, drop_last: bool) -> _Single:
    if drop_last:
        raise InvalidError("batch_size=None has no batches, so drop_last cannot be True", subject="drop_last")
    return _Single(collate_fn)


class _Single:
    """What batch_size=None makes of the one sample of a batch."""

    def __init__(self, convert: Callable[[Any], Any] | None) -> None:
        self.convert = convert

    def __call__(self, samples: list[Any]) -> Any:
        if self.convert is not None:
            return self.convert(samples[0])
        of_torch: Any = importlib.import_module("torch.utils.data._utils.collate")
        return of_torch.default_convert(samples[0])


class _Order:
    """Which samples a loader gives, and in which order, as larder says it."""

    def __init__(self, dataset: Any, shuffle: bool, seed: int, generator: Any) -> None:
        self.dataset, self.shuffle, self.seed, self.generator = dataset, shuffle, seed, generator
        self.rank: int | None = None
        self.ranks: int | None = None


class _Made(NamedTuple):
    """What a loader was made of."""

    follows: bool  # the sampler itself says which samples come
    order: _Order
    rows: int  # of the dataset
    batches: int  # torch's, of what was read of a sampler; 0: nothing was


def _order(dataset: Any, sampler: Any, shuffle: bool | None, generator: Any) -> _Order:
    if sampler is None:
        random = _checks.flag("shuffle", False if shuffle is None else shuffle)
        return _Order(dataset, random, _seed(generator), generator)
    if shuffle:
        raise InvalidError("sampler= and shuffle=True exclude each other", subject="sampler")
    kind = type(sampler)
    if not _known(dataset, sampler):
        return _given(dataset, generator)
    if kind is data.SequentialSampler:
        return _Order(dataset, False, _seed(generator), generator)
    if kind is data.RandomSampler:
        return _Order(dataset, True, _seed(sampler.generator or generator), generator)
    if kind is data.SubsetRandomSampler:
        part = data.Subset(dataset, [int(i) for i in sampler.indices])
        return _Order(part, True, _seed(sampler.generator or generator), generator)
    if len(sampler.dataset) != len(dataset):
        raise InvalidError(
            f"the DistributedSampler is of {len(sampler.dataset)} samples, the dataset has {len(dataset)}",
            subject="sampler",
        )
    order = _Order(dataset, bool(sampler.shuffle), int(sampler.seed), generator)
    order.rank, order.ranks = int(sampler.rank), int(sampler.num_replicas)
    return order


class _Passes:
    """The passes of a sampler, each with the draw of random numbers that torch makes when it begins an epoch."""

    def __init__(self, sampler: Any, generator: Any, eager: bool, once: bool) -> None:
        self.sampler, self.generator = sampler, generator
        self.eager = eager  # torch takes the sampler's iterator before it draws
        self.once = once  # torch draws in the first epoch only: its workers stay
        self.first: list[Any] | None = None  # the one pass of a sampler that cannot begin again
        self.begun = False

    def of_batches(self) -> _Passes:
        """The same of a batch_sampler, of which ``batch_size`` is known then."""
        self.batch_size, self.first = _stream.largest(self.sampler)
        return self

    def __len__(self) -> int:
        return len(self.sampler)

    def state_dict(self) -> dict[str, bool]:
        """What the passes after it depend on, beside the generator."""
        return {"begun": self.begun}

    def load_state_dict(self, state: Mapping[str, bool]) -> None:
        """Goes on as the passes did of which that was the state."""
        self.begun = bool(state["begun"])

    def __iter__(self) -> Iterator[Any]:
        if self.first:
            return self._drawn(self.first.pop())
        first = iter(self.sampler) if self.eager else None
        return self._drawn(first)

    def _drawn(self, first: Iterator[Any] | None) -> Iterator[Any]:
        if not (self.once and self.begun):
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        self.begun = True
        return iter(self.sampler) if first is None else first


def _given(dataset: Any, generator: Any) -> _Order:
    """The order of a sampler of the script's own; the seed is drawn from nothing that the sampler draws from."""
    _require_generator(generator)
    seed = torch.initial_seed() if generator is None else generator.initial_seed()
    return _Order(dataset, False, seed & (2**64 - 1), generator)


def _known(dataset: Any, sampler: Any) -> bool:
    """Whether a sampler says which samples there are, and leaves the order to larder."""
    kind = type(sampler)
    if kind is data.SequentialSampler:
        return len(sampler.data_source) == len(dataset)
    if kind is data.RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source) == len(dataset)
    if kind is data.SubsetRandomSampler:
        return len(set(map(int, sampler.indices))) == len(sampler.indices) > 0
    return kind is DistributedSampler


def _read(sampler: Any) -> list[Any]:
    """What larder reads of a sampler when it makes an order of its own of it; torch reads that in each epoch."""
    kind = type(sampler)
    if kind is data.BatchSampler:
        return [sampler.batch_size, sampler.drop_last, id(sampler.sampler), *_read(sampler.sampler)]
    if kind is data.SubsetRandomSampler:
        return [int(i) for i in sampler.indices]
    if kind is data.RandomSampler:
        return [sampler.replacement, sampler.num_samples == len(sampler.data_source)]
    if kind is DistributedSampler:
        return [sampler.shuffle, sampler.seed, sampler.rank, sampler.num_replicas]
    return []


def _sampler(order: _Order) -> Any:
    """The object that frameworks expect at ``loader.sampler``."""
    if order.shuffle:
        return data.RandomSampler(order.dataset, generator=order.generator)
    return data.SequentialSampler(order.dataset)


def _exclude(size: Any, shuffle: Any, sampler: Any, drop_last: bool) -> None:
    """Raises InvalidError where arguments say again what a batch_sampler says."""
    if size != 1 or shuffle or sampler is not None or drop_last:
        raise InvalidError(
            "batch_sampler= excludes batch_size, shuffle, sampler and drop_last", subject="batch_sampler"
        )


def _seed(generator: Any) -> int:
    """A seed drawn as torch draws one, so that ``torch.manual_seed`` or ``generator`` decide it."""
    _require_generator(generator)
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _require_generator(generator: Any) -> None:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InvalidError(f"generator must be a torch.Generator, not {generator!r}", subject="generator")


def _timeout(timeout: Any) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise InvalidError(f"timeout is {timeout!r}; it must be a number of seconds, 0 for any", subject="timeout")
    return float(timeout)


def _prefetch(factor: Any, workers: int) -> int:
    if factor is None:
        return 2
    if workers == 0:
        raise InvalidError("prefetch_factor= needs num_workers > 0", subject="prefetch_factor")
    return _checks.integer("prefetch_factor", factor, 1, 2**31)


def _require_keywords(larder: Mapping[str, Any]) -> None:
    for name in larder:
        if name not in _LARDER:
            mine = [n for n in DataLoader.__init__.__annotations__ if n not in ("larder", "return")]
            raise _checks.unknown_keyword(name, [*mine, *_LARDER], "DataLoader")
