"""What the samplers of a DataLoader of torch say: an order that larder may choose, or passes that it follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from . import _stream
from .errors import InvalidError


class Order(NamedTuple):
    """Which samples a loader gives, and in which order, as larder says it."""

    dataset: Any
    shuffle: bool
    seed: int
    rank: int | None = None
    ranks: int | None = None


class Passes:
    """The passes of a sampler, each with the draw of random numbers that torch makes when it begins an epoch."""

    def __init__(self, sampler: Any, generator: Any, eager: bool, once: bool) -> None:
        self.sampler, self.generator = sampler, generator
        self.eager = eager  # torch takes the sampler's iterator before it draws
        self.once = once  # torch draws in the first epoch only: its workers stay
        self.first: list[Any] | None = None  # the one pass of a sampler that cannot begin again
        self.begun = False

    def of_batches(self) -> Passes:
        """The same of a batch_sampler, of which ``batch_size`` is known then."""
        self.batch_size, self.first = _stream.largest(self.sampler)
        return self

    def __len__(self) -> int:
        return len(self.sampler)

    def state_dict(self) -> dict[str, bool]:
        """What the passes after it depend on, beside the generator."""
        return {"begun": self.begun}

    def load_state_dict(self, state: Mapping[str, bool]) -> None:
        """Continues as the passes did of which that was the state."""
        self.begun = bool(state["begun"])

    def __iter__(self) -> Iterator[Any]:
        if self.first:
            return self._drawn(self.first.pop())
        first = iter(self.sampler) if self.eager else None
        return self._drawn(first)

    def _drawn(self, first: Iterator[Any] | None) -> Iterator[Any]:
        self.draw()
        return iter(self.sampler) if first is None else first

    def draw(self) -> None:
        """Draws what torch draws for its workers when it begins an epoch."""
        if not (self.once and self.begun):
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        self.begun = True


def passes(loader: Any) -> Passes:
    """The passes of what a DataLoader of torch has its indices from: one at a time, or those of a batch_sampler."""
    stays = bool(loader.persistent_workers) and loader.num_workers > 0
    if own_batches(loader):
        return Passes(loader.batch_sampler, loader.generator, True, stays)
    return Passes(loader.sampler, loader.generator, loader.batch_size is None, stays)


def plain(loader: Any) -> bool:
    """Whether a DataLoader of torch has no batch_sampler, or one that cuts the sampler's indices into batches."""
    return loader.batch_sampler is None or type(loader.batch_sampler) is data.BatchSampler


def own_batches(loader: Any) -> bool:
    """Whether the batches of a DataLoader of torch are those of a batch_sampler of the script's."""
    return loader.batch_sampler is not None and (loader.batch_size is None or not plain(loader))


def shuffled(loader: Any) -> bool:
    """Whether the order of a DataLoader of torch is random without more words."""
    return plain(loader) and type(_innermost(loader)) is data.RandomSampler


def _innermost(loader: Any) -> Any:
    """The sampler of a DataLoader whose batches are plain."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler.sampler


def in_order(loader: Any) -> bool:
    """Whether the indices of a DataLoader of torch are those of the dataset, in its order."""
    return plain(loader) and type(_innermost(loader)) is data.SequentialSampler


def size(loader: Any) -> int:
    """Samples of a batch of a DataLoader whose batches are plain; without batches it is 1."""
    return 1 if loader.batch_sampler is None else int(loader.batch_sampler.batch_size)


def order(loader: Any, ranks: bool) -> Order | None:
    """The order that a DataLoader leaves to larder; None: its sampler itself says which samples come.

    ``ranks``: larder splits the samples of a DistributedSampler.

    Raises:
        InvalidError: a DistributedSampler is of another number of samples.
    """
    if not plain(loader):
        return None
    dataset: Any = loader.dataset
    sampler = _innermost(loader)
    kind = type(sampler)
    if kind is data.SequentialSampler and len(sampler.data_source) == len(dataset):
        return Order(dataset, False, _seed(loader.generator))
    if kind is data.RandomSampler and not sampler.replacement:
        if sampler.num_samples == len(sampler.data_source) == len(dataset):
            return Order(dataset, True, _seed(sampler.generator or loader.generator))
    if kind is data.SubsetRandomSampler and len(set(map(int, sampler.indices))) == len(sampler.indices) > 0:
        part = data.Subset(dataset, [int(i) for i in sampler.indices])
        return Order(part, True, _seed(sampler.generator or loader.generator))
    if kind is DistributedSampler and ranks:
        if len(sampler.dataset) != len(dataset):
            raise InvalidError(
                f"the DistributedSampler is of {len(sampler.dataset)} samples, the dataset has {len(dataset)}",
                subject="sampler",
            )
        return Order(dataset, bool(sampler.shuffle), int(sampler.seed), int(sampler.rank), int(sampler.num_replicas))
    return None


def followed(loader: Any) -> Order:
    """The order of a sampler that is followed; the seed is drawn from nothing that the sampler draws from."""
    seed = torch.initial_seed() if loader.generator is None else loader.generator.initial_seed()
    return Order(loader.dataset, False, seed & (2**64 - 1))


def read(loader: Any) -> list[Any]:
    """What larder reads of a DataLoader's samplers when it makes an order of them; torch reads it in each epoch."""
    try:
        return _read(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    except (TypeError, ValueError):
        return [None]  # which is said when the sampler is asked


def _read(sampler: Any) -> list[Any]:
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


def _seed(generator: Any) -> int:
    """A seed drawn as torch draws one, so that ``torch.manual_seed`` or ``generator`` decide it."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
