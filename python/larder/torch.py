"""``DataLoader``: torch's class, with samples that jobs share.

A script changes its import::

    from larder.torch import DataLoader  # was: from torch.utils.data import DataLoader

Folders of images that torchvision reads are prepared by the daemon, for all jobs that ask for them. Datasets of the
script's own are run by workers that jobs share, where ``name=`` says that two datasets are one, and ``cache="items"``
or ``share="augmented"`` what may be shared. Torch's own machinery serves everything else.
docs/guides/python-datasets.md is the guide.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from torch.utils import data

from . import _checks, _dataset, _door
from ._loader import Loader
from .errors import InvalidError

__all__ = ["DataLoader", "StatefulDataLoader"]

Sample = TypeVar("Sample", covariant=True)
_OF_TORCH = inspect.signature(data.DataLoader.__init__).parameters  # of the version that is installed


class DataLoader(data.DataLoader[Sample]):
    """torch's DataLoader: the same arguments, the same batches, and what other jobs have made already.

    Each batch holds what torch's would hold; the order of a shuffled epoch and the random draws are others. It
    registers a job when it is iterated first; making one costs nothing. ``served_by`` says who gives the batches, and a
    line says once in a process why:

    - "native": the daemon reads and prepares an ImageFolder of torchvision whose transforms larder has with equal bits.
    - "workers": ``num_workers`` processes of larder, or this process, run the dataset, because a keyword argument of
      larder says so.
    - "torch": torch's own machinery. Nothing is shared then.

    Args:
        dataset: what torch's takes.
        batch_size, shuffle, sampler, batch_sampler, drop_last: as torch's. Samplers that say which samples there are
            and leave the order to chance (sequential, random without replacement, subset-random) get an order of
            larder's where the daemon or workers serve. Any other says itself which samples come, in which order and how
            often; it is asked up to 2 x (prefetched batches + 2) batches ahead.
        num_workers, pin_memory, pin_memory_device, timeout, worker_init_fn: as torch's.
        multiprocessing_context, persistent_workers, prefetch_factor, in_order: as torch's.
        collate_fn: as torch's; it runs in this process where workers of larder serve.
        generator: gives the seed; so does ``torch.manual_seed``. An order repeats with ``order="fixed"`` only.
        fallback: "torch" (default): what the daemon and workers cannot serve, torch serves. "error": that is an error,
            and without a keyword argument of larder the dataset is run as with one. LARDER_FALLBACK says it for all.
        snapshot_every_n_steps: for scripts of torchdata's StatefulDataLoader; a state is exact at every step.
        larder: the arguments of :class:`larder.Loader` that torch has no word for: name, version, cache, share,
            transform, job, seed, order, epochs, on_error, ragged, pad_value, pad_multiple, sample_timeout,
            worker_memory, endpoint, on_daemon_loss, native, even, return_index, rank, world_size, replace, skip_empty.
            Each process of a distributed run has every sample, or what its DistributedSampler gives, unless ``even``
            or ``rank`` and ``world_size`` are given.

    Raises:
        TypeError: an argument does not exist.
        ValueError: torch refuses an argument. When it is iterated first, InvalidError: larder refuses one.

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
        later: dict[str, Any] = {"persistent_workers": persistent_workers, "pin_memory_device": pin_memory_device}
        if prefetch_factor is not None:
            later["prefetch_factor"] = prefetch_factor
        if "in_order" in _OF_TORCH:  # else batches always come in order
            later["in_order"] = in_order
        snapshot = larder.pop("snapshot_every_n_steps", 1)
        if snapshot is not None:
            _checks.integer("snapshot_every_n_steps", snapshot, 1, 2**63 - 1)
        _require_keywords(larder)
        super().__init__(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last,
            timeout, worker_init_fn, multiprocessing_context, generator, **later,
        )  # fmt: skip
        self._door = _door.Door(larder)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self._door.begin(self, super().__iter__)

    def check_worker_number_rationality(self) -> None:
        """Warns of more workers than processors where torch starts them."""
        if getattr(self, "_door", None) is not None and self._door.phase == "torch":
            super().check_worker_number_rationality()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        served = self._door.last
        if served is not None and served.made is not None and served.shared.settings.place.world_size > 1:
            return len(served.loader)
        return super().__len__()

    @property
    def _index_sampler(self) -> Any:
        inner = super()._index_sampler
        return inner if isinstance(self.dataset, data.IterableDataset) else self._door.passage.over(inner)

    @property
    def served_by(self) -> str:
        """Who serves the batches: "native", "workers" or "torch"; the first use decides it, as iterating does."""
        self._door.serving(self)
        return self._door.phase

    @property
    def promise(self) -> str:
        """What the order guarantees whatever other jobs do, in words."""
        served = self._door.active(self)
        return _door.PROMISE if served is None else served.loader.promise

    @property
    def loader(self) -> Loader[Any]:
        """The larder.Loader of the job, for its counters, its epoch and its quarantined samples.

        Raises:
            InvalidError: torch serves, so there is no job.
        """
        served = self._door.active(self)
        if served is None:
            raise InvalidError(
                f"torch serves this DataLoader, so it has no job: {self._door.why}", reason="UNSUPPORTED",
                subject="loader", hint="fallback='error' has larder serve it, or say why it cannot",
            )  # fmt: skip
        return served.loader

    def state_dict(self) -> dict[str, Any]:
        """The position, as StatefulDataLoader's; see :meth:`larder.Loader.state_dict`."""
        return self._door.state(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from a position; see :meth:`larder.Loader.load_state_dict`."""
        self._door.load(self, state_dict)

    def close(self) -> None:
        """Leaves the job and ends the workers."""
        self._door.close()
        self._iterator = None

    def __enter__(self) -> DataLoader[Sample]:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        last = self._door.last
        job = f"job {last.loader.job!r}" if last is not None else self._door.phase
        return f"<larder.torch.DataLoader of {_dataset.describe(self.dataset)}, {job}>"


StatefulDataLoader = DataLoader  # of torchdata, whose scripts change one import, too


class BatchDataset(data.IterableDataset[Any]):
    """The batches of a Loader as a dataset; see :meth:`larder.Loader.as_dataset`."""

    def __init__(self, loader: Loader[Any]) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def _require_keywords(larder: Mapping[str, Any]) -> None:
    for name in larder:
        if name not in _door.KEYWORDS:
            known = [n for n in DataLoader.__init__.__annotations__ if n not in ("self", "larder", "return")]
            raise _checks.unknown_keyword(name, [*known, *_door.KEYWORDS], "DataLoader")
