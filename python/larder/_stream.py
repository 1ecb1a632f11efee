"""Index streams: samplers of the script, whose choices the daemon follows (docs/protocol.md, PICKS).

A ``Sampling`` is what a script says which samples come; an ``Epoch`` of it is one pass, of which some batches are known
to the daemon before they are handed out.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _places, _seeds, _wire
from ._places import Place
from ._session import Session
from .errors import InvalidError, OutOfRangeError

_HEAD = struct.Struct("<IIII")  # epoch, step of the first batch, flags, batches
_END = 1
_FRAME = 1 << 20  # bytes of PICKS that are not exceeded by more batches
_IDS = 2**32  # sample ids are below it
_MOST = 65536  # samples of a batch


class Grows(Exception):
    """The next batch of a sampler is larger than those of the job, which has delivered all before it."""


@dataclass(frozen=True, eq=False)
class Sampling:
    """Which samples come: one index at a time (``size`` of them are a batch), or whole batches, ``size`` at first."""

    indices: Any  # an iterable of indices, or of lists of them where batched is set
    batched: bool
    size: int
    drop_last: bool
    rows: npt.NDArray[np.int64] | None = None  # what the indices number; None: the dataset's samples
    samples: int | None = None  # indices are below it; None: the daemon alone has the number of ids of its dataset
    first: list[Any] | None = None  # an iterator whose first batch was looked at, and is the first epoch's

    def batches(self) -> Iterator[list[Any]]:
        """One pass, as lists of what the sampler gives."""
        if self.batched:
            return self.first.pop() if self.first else iter(self.indices)
        return self._grouped(iter(self.indices))

    def _grouped(self, indices: Iterator[Any]) -> Iterator[list[Any]]:
        while batch := list(itertools.islice(indices, self.size)):
            if len(batch) < self.size and self.drop_last:
                return
            yield batch

    def __len__(self) -> int:
        """The batches of an epoch; TypeError where the sampler does not know."""
        n = len(self.indices)
        if self.batched:
            return n
        return n // self.size if self.drop_last else -(-n // self.size)

    @property
    def counted(self) -> int:
        """Samples of a batch, for states, which count batches; 0 = the sampler gives them."""
        return 0 if self.batched else self.size

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "first": None}


class _Known(NamedTuple):
    """A batch that was taken from the sampler."""

    step: int
    packed: bytes
    picks: int  # checksum of all picks up to it
    numbers: npt.NDArray[np.int64]  # as the sampler gave them


class Epoch:
    """One pass of a sampler, as far as the daemon may know of it.

    ``known`` are the batches that were taken from the sampler and not handed out, and the last one that was. Each has
    its step and the checksum of all picks up to it, so that an interrupt cannot part them: a daemon that was restarted
    is sent them again. A pass that was begun before a state was saved is begun as it was then, and goes on behind what
    was handed out (``place``).
    """

    def __init__(self, of: Sampling, number: int, slots: int, place: Place | None = None) -> None:
        self.of = of
        self.number = number
        self.most = 2 * slots  # batches that the daemon may have before they are handed out
        if place is None:
            self.before = _places.taken(of.indices)
            self.batches, self.first = of.batches(), 0
        else:
            self.before = place.before
            self.batches, self.first = _continued(of, place)  # first: checksum of what the place has behind it
        self.known: collections.deque[_Known] = collections.deque()
        self.drawn = 0  # batches that were taken from the sampler
        self.sent = 0  # the first step that session was not sent
        self.session: Session | None = None
        self.over = False  # the sampler has no more
        self.ended = False  # session was told
        self.failed: BaseException | None = None  # the sampler raised
        # The batch behind those that were drawn, if it is too large for the job.
        self.large: tuple[bytes, npt.NDArray[np.int64]] | None = None

    def due(self, step: int) -> bool:
        """Whether the daemon is to be told of more batches; ``step`` is the next one to be handed out."""
        return not self.ended and self.drawn - step <= self.most - self.most // 4

    def picks(self, step: int) -> int:
        """Checksum of all picks before a step, which is not below that of the last ``tell``."""
        return next((k.picks for k in self.known if k.step == step - 1), self.first)

    def picked(self, step: int) -> npt.NDArray[np.int64]:
        """What the sampler gave for a batch."""
        return next((k.numbers for k in self.known if k.step == step), np.empty(0, np.int64))

    def numbers(self, step: int, ids: Any) -> npt.NDArray[np.int64]:
        """What the sampler gave for the rows of a batch; ``ids`` are their samples, some of which may be left out."""
        picked = self.picked(step)
        if len(picked) == len(ids):
            return picked
        asked = (picked if self.of.rows is None else self.of.rows[picked]).tolist()
        rows, at = [], 0
        for i in ids.tolist():
            at = asked.index(i, at)
            rows.append(at)
            at += 1
        return picked[rows]

    def tell(self, s: Session, step: int, deadline: float) -> None:
        """Tells the daemon of more batches, or of all that it may have lost.

        Raises:
            InvalidError: an index that the dataset does not have, or a batch that is empty or too large for any job.
            UnavailableError: the connection is over.
            Grows: the job has to be replaced by one with larger batches (``grow``).
        """
        if self.session is not s:
            self.session, self.sent, self.ended = s, step, False
        elif not self.due(step):
            return
        while self.known and self.known[0].step < step - 1:
            self.known.popleft()
        self._draw(step)
        if self.large is not None and step == self.drawn:
            raise Grows
        while self.sent < self.drawn or (self.over and not self.ended):
            first, size = self.sent, 0
            batches: list[bytes] = []
            for k in self.known:
                if k.step < first:
                    continue
                if batches and size + len(k.packed) > _FRAME:
                    break
                batches.append(k.packed)
                size += len(k.packed)
            last = self.over and first + len(batches) == self.drawn
            head = _HEAD.pack(self.number, first, _END if last else 0, len(batches))
            s.send(_wire.PICKS, head + b"".join(batches), deadline, "the daemon to read which samples come next")
            self.sent, self.ended = first + len(batches), last

    def _draw(self, step: int) -> None:
        """Takes batches from the sampler until the daemon may have no more."""
        if self.failed is not None:
            raise InvalidError(
                f"the sampler of this epoch was ended by {type(self.failed).__name__}", subject="sampler",
                hint="begin another epoch",
            ) from self.failed  # fmt: skip
        while not self.over and self.large is None and self.drawn - step < self.most:
            try:
                batch = next(self.batches, None)
                if batch is None:
                    self.over = True
                else:
                    packed, numbers = _pack(self.of, batch, self.drawn)
                    if len(numbers) > self.of.size:
                        self.large = packed, numbers
                    else:
                        self._append(packed, numbers)
            except BaseException as e:
                self.failed = e  # what it has left is not known any more
                raise


    def _append(self, packed: bytes, numbers: npt.NDArray[np.int64]) -> None:
        before = self.known[-1].picks if self.known else self.first
        self.known.append(_Known(self.drawn, packed, zlib.crc32(packed, before), numbers))
        self.drawn += 1

    def grow(self, step: int) -> Sampling:
        """What the sampler says to a job of larger batches, whose first step is this one."""
        assert self.large is not None
        self.of = dataclasses.replace(self.of, size=min(_MOST, max(len(self.large[1]), 2 * self.of.size)))
        self.first = self.picks(step)
        self.known.clear()
        self.drawn = self.sent = 0
        self.session, self.ended = None, False
        self._append(*self.large)
        self.large = None
        return self.of


def _pack(of: Sampling, batch: Iterable[Any], step: int) -> tuple[bytes, npt.NDArray[np.int64]]:
    """A batch as PICKS has it, and as the sampler gave it."""
    numbers = ids = _numbers(batch)
    if not 0 < len(ids) <= _MOST:
        raise InvalidError(
            f"batch {step} of the batch_sampler has {len(ids)} samples; a batch has 1 to {_MOST}",
            subject="batch_sampler",
            hint="leave empty batches out, and cut larger ones",
        )
    low, high = int(ids.min()), int(ids.max())
    most = _IDS if of.samples is None else of.samples
    if low < 0 or high >= most:
        raise OutOfRangeError(
            f"the sampler gave index {low if low < 0 else high} in batch {step}"
            + ("" if of.samples is None else f"; the dataset has {most} samples"),
            subject="sampler",
            hint=f"indices go from 0 to {most - 1}",
        )
    if of.rows is not None:
        ids = of.rows[ids]
    return struct.pack("<I", len(ids)) + ids.astype("<u4").tobytes(), numbers


def _continued(of: Sampling, place: Place) -> tuple[Iterator[list[Any]], int]:
    """A pass that begins as it did before a state was saved, behind the batches that were handed out; their checksum.

    Raises:
        InvalidError: it gives other samples up to there than it did then.
    """
    picks = 0
    with _places.put_back(of.indices, place.before):
        batches = of.batches()
        for step, batch in enumerate(itertools.islice(batches, place.step)):
            picks = zlib.crc32(_pack(of, batch, step)[0], picks)
        place.require(picks)
        first = list(itertools.islice(batches, 1))  # what draws when its pass begins has drawn then
    return itertools.chain(first, batches), picks


def _numbers(batch: Any) -> npt.NDArray[np.int64]:
    try:
        return np.fromiter((operator.index(i) for i in batch), dtype=np.int64)
    except (TypeError, OverflowError) as e:
        raise InvalidError(
            f"the sampler gave {batch!r:.200}, which are no indices: {e}", subject="sampler",
            hint="a sampler gives whole numbers; a batch_sampler gives lists of them",
        ) from e  # fmt: skip


def largest(batches: Any) -> tuple[int, list[Any] | None]:
    """The size of the batches of a batch_sampler, and its iterator where that had to be begun to know.

    Should a larger batch come, the job is replaced by one of larger batches.

    It is the attribute ``batch_size``; of a list the largest batch; else the first batch. Looking at that draws no
    random number that the first epoch would draw.
    """
    size = getattr(batches, "batch_size", None)
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size, None
    if isinstance(batches, (list, tuple)):
        return max((len(b) for b in batches), default=1), None
    before, kept = _places.taken(batches), _seeds.Kept()
    kept.__enter__()
    it = iter(batches)
    once = it is batches  # what passes once cannot begin again: what it has drawn is drawn
    try:
        first = [list(b) for b in itertools.islice(it, 1)]
    finally:
        if not once:
            kept.__exit__()
            with _places.put_back(batches, before):
                pass
    size = len(first[0]) if first else 1
    return size, [itertools.chain(first, it)] if once else None
