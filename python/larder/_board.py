"""The board of a ring: shared memory in which the daemon posts batches, so that a ready batch costs no system call.

Posts and frames of the socket are one sequence: a post says how many frames of the stream were sent before it. The
batches of several slots are built at once, ahead: ``next()`` then only reads the post and hands the batch out. A batch
counts as handed out when ``head`` has passed its post. That is one assignment, so an interrupt cannot split it.

Slots are given back in release words behind the posts; the end of a batch that was built ahead writes its word (see
_lease). The daemon reads the words when a frame comes. A client tells it (WAKE) of several slots at once: when the
daemon wants to know, and always before it sleeps.
"""

from __future__ import annotations

import collections
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from . import _wire
from ._lease import RELEASE, Lease, Queue, Words, watch_ahead
from ._messages import AttachResponse
from ._ring import Field, Ring
from ._wire import Frame

_OPEN, _TELL_AT, _WAITS, _SINCE, _POSTS, _POST_BYTES = 0, 8, 64, 72, 128, 64
_RELEASE_BYTES = 32
_UNTOLD = 64  # ends of batches after which the daemon is told whatever it has read
_AHEAD = 8  # batches that are built at once
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
# Sequence number, frames before it, generation, slot, rows, epoch, step, rank.
_POST = struct.Struct("<QQQIIIII")
# Of the second word of a post. The bit above says that a GONE is on its way: then the socket is read before any batch.
_FRAMES = (1 << 63) - 1
# These processors show stores in their order, and make loads in theirs; elsewhere batches come over the socket.
_ORDERED = os.uname().machine in ("x86_64", "i686", "amd64")


class Reader(Protocol):
    """An epoch that takes batches from a board; ``board`` is set while it may do so without reading the socket."""

    board: Board | None


def of(ring: Ring, attach: AttachResponse, held: dict[int, Frame | Lease]) -> Board | None:
    """The board that RING announces, opened; None when there is none, or when this machine cannot read it."""
    at, posts = int(attach.get("board") or 0), int(attach.get("posts") or 0)
    rows = int(attach.get("rows") or ((attach.get("job") or {}).get("spec") or {}).get("batchSize") or 0)
    if not at or not rows or not _ORDERED:
        return None
    if posts < 1 or posts & (posts - 1) or at % 8 or at + _POSTS + posts * _POST_BYTES > len(ring.memory):
        raise _wire.protocol_error(f"a board of {posts} posts at byte {at} of {len(ring.memory)}")
    words = int(attach.get("releases") or 0)
    if words and (words % 8 or words < at or words + ring.slots * _RELEASE_BYTES > len(ring.memory)):
        raise _wire.protocol_error(f"release words of {ring.slots} slots at byte {words} of {len(ring.memory)}")
    board = Board(ring, at, posts, rows, held)
    board.words = words
    return board


class Board:
    """The client's side of the board.

    ``next()`` uses it under the Loader's lock; ``close`` may be called in any thread.
    """

    __slots__ = (
        "at", "base", "closed", "died", "fence", "finish", "first", "frame", "frames", "given", "head", "held", "mask",
        "most", "others", "page", "queue", "reader", "ready", "ring", "rows", "tell_at", "told", "u64", "unpack",
        "views", "words",
    )  # fmt: skip

    def __init__(self, ring: Ring, at: int, posts: int, rows: int, held: dict[int, Frame | Lease]) -> None:
        self.ring = ring
        self.page = ring.memory
        self.at, self.base, self.mask = at, at + _POSTS, posts - 1
        self.rows = rows  # of a batch that can be built ahead
        self.held = held
        self.queue: Queue = collections.deque()  # of the session
        self.most = ring.slots - min(2, ring.slots - 2)  # as many held batches or more: the next one is a copy
        self.unpack = _POST.unpack_from
        self.u64 = memoryview(self.page)[: len(self.page) & -8].cast("Q")  # the same memory, read with fewer steps
        self.first = self.base >> 3  # in u64: the first post
        self.tell_at = (at + _TELL_AT) >> 3  # where the daemon says when to tell, and behind it how many words it read
        self.head = 0  # sequence number of the last post that was taken
        self.frames = 0  # of the stream, taken when ``head`` was
        self.frame: Frame | None = None  # the post behind ``head``, when it was looked at as a frame
        self.ready: dict[int, tuple[Any, Lease]] = {}  # by slot: built ahead
        self.views: list[tuple[Any, ...]] = []  # of a whole batch: shape, dtype, offset, strides
        self.finish: Callable[[list[Any], int], Any] | None = None
        self.words = 0  # where the release words are; 0 = an older daemon, which needs RELEASE frames
        self.died: collections.deque[None] = collections.deque()  # an item for each word that the end of a batch wrote
        self.given = 0  # words that were written otherwise
        self.told = 0  # of these, those that the daemon was told of
        self.others = 0  # batches that were taken, and came as frames
        self.reader: Reader | None = None  # the epoch that takes batches from here without reading the socket
        self.closed = False
        self.fence = threading.Lock()
        _U32.pack_into(self.page, at + _OPEN, 1)

    def describe(self, fields: list[Field], finish: Callable[[list[Any], int], Any]) -> None:
        """Sets what a batch is made of, and what makes it of the arrays of its fields and the number of rows."""
        root = np.frombuffer(self.page, dtype=np.uint8, count=self.ring.slot_bytes)
        for f in fields:
            self.ring.array(root, f, self.rows)  # raises when a slot cannot have that
        self.views = [((self.rows, *f.shape), f.dtype, f.offset, f.strides) for f in fields]
        self.finish = finish

    def post(self) -> tuple[int, ...] | None:
        """The post behind ``head``, if there is one."""
        p: tuple[int, ...] = self.unpack(self.page, self.base + ((self.head & self.mask) << 6))
        return p if p[0] == self.head + 1 else None

    def next(self, frames: int) -> Frame | None:
        """The post behind ``head`` as a frame, if ``frames`` of the stream were taken and it is its turn."""
        f = self.frame
        if f is not None:
            if f.taken is None:
                return f
            self.settle()
        p = self.post()
        if p is None or p[1] & _FRAMES != frames:
            return None
        _, _, generation, slot, rows, epoch, step, rank = p
        f = Frame(_wire.BATCH, 0, b"")
        f.batch = _wire.BatchHeader(0, slot, generation, slot * self.ring.slot_bytes, epoch, step, rank, rows, None)
        self.frames = frames
        self.frame = f
        return f

    def settle(self) -> None:
        """Passes a post that was taken as a frame."""
        if self.frame is not None and self.frame.taken is not None:
            self.head, self.frame = self.head + 1, None

    def sleeps(self, frames: int) -> bool:
        """Asks the daemon to wake this client at the next post; False when one is there after ``frames`` frames."""
        _U32.pack_into(self.page, self.at + _WAITS, 1)
        with self.fence:  # the store is seen before the load below is made
            pass
        p = self.post()
        if p is None or p[1] & _FRAMES > frames:
            return True
        self.woken()
        return False

    def woken(self) -> None:
        """Cancels the request to be woken."""
        _U32.pack_into(self.page, self.at + _WAITS, 0)

    def waits(self, since: float) -> None:
        """Publishes since when next() waits, by ``time.monotonic()``; 0 = it does not wait."""
        _U64.pack_into(self.page, self.at + _SINCE, int(since * 1e9))

    def serve(self, reader: Reader) -> None:
        """From now on ``reader`` takes what is posted for it without reading the socket."""
        if not self.closed:
            self.reader = reader
            reader.board = self

    def stop(self) -> None:
        """Ends the direct reading: every further batch is taken after a look at the socket."""
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.board = None

    def give_back(self, slot: int, generation: int, waited_us: int) -> None:
        """Gives a slot back in its release word. An interrupt may repeat it."""
        self.given += 1
        at = self.words + slot * _RELEASE_BYTES
        RELEASE.pack_into(self.page, at, time.monotonic_ns(), min(waited_us, _wire.U32_MAX), 0, generation)

    def untold(self) -> bool:
        """Reports whether the daemon may not know of every slot that was given back."""
        return bool(self.died) or self.given != self.told

    def due(self) -> bool:
        """Reports whether the daemon wants to be told of what was given back."""
        return self.head + self.others >= self.u64[self.tell_at] and self.untold()

    def unread(self) -> bool:
        """Reports whether the daemon has not read every word yet, as far as can be seen without telling.

        It reads all of them when any client tells.
        """
        return self.u64[self.tell_at + 1] < self.head + self.others - len(self.held) or len(self.died) > _UNTOLD

    def note_told(self, died: int, given: int) -> None:
        """Notes that the daemon looks at what was given back when ``died`` and ``given`` had these values."""
        self.told = max(self.told, given)
        while died > 0 and self.died:
            self.died.popleft()
            died -= 1

    def reap(self) -> None:
        """Gives back what an interrupt left: batches that were handed out, and whose end was not awaited yet."""
        for slot, lease in list(self.held.items()):
            if isinstance(lease, Lease) and 0 < lease.post <= self.head and lease() is None:
                self.give_back(slot, lease.generation, 0)
                self.held.pop(slot, None)

    def build(self, slot: int) -> bool:
        """Builds the next batch of a slot, and of some others that have none; False when the slot cannot have one."""
        size, slots, built = self.ring.slot_bytes, self.ring.slots, 0
        if self.closed or not self.words or slot >= slots or self.finish is None:
            return False
        for i in (*range(slot, slots), *range(slot)):
            if i in self.ready:
                continue
            root = np.frombuffer(self.page, np.uint8, size, i * size)
            values: list[Any] = [
                np.ndarray(shape, dtype, root, offset, strides) for shape, dtype, offset, strides in self.views
            ]
            words = Words(self.page, self.words + i * _RELEASE_BYTES, self.held, self.died)
            self.ready[i] = (self.finish(values, self.rows), watch_ahead(words, root, i))
            built += 1
            if built == _AHEAD:
                break
        return True

    def disarm(self) -> None:
        """In a forked child: the end of its copies of the arrays must not give the parent's batches back."""
        for lease in self.held.values():
            if isinstance(lease, Lease):
                lease.armed.clear()

    def close(self) -> None:
        """Drops the batches that were built ahead."""
        self.closed = True
        self.stop()
        self.ready.clear()
