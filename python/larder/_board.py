"""The board of a ring: shared memory in which the daemon posts batches, so that a ready batch costs no system call.

Posts and frames of the socket are one sequence: a post says how many frames of the stream were sent before it. The
batch of a slot is built ahead, when the slot is released: ``next()`` then only reads the post and hands the batch out.
A batch counts as handed out when ``head`` has passed its post. That is one assignment, so an interrupt cannot split it.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from . import _wire
from ._lease import Lease, Queue, watch
from ._messages import AttachResponse
from ._ring import Field, Ring
from ._wire import Frame

_OPEN, _WAITS, _SINCE, _POSTS, _POST_BYTES = 0, 64, 72, 128, 64
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
    return Board(ring, at, posts, rows, held)


class Board:
    """The client's side of the board.

    ``next()`` uses it under the Loader's lock; ``prepare`` and ``close`` may be called in any thread.
    """

    __slots__ = (
        "at", "base", "closed", "fence", "finish", "frame", "frames", "head", "held", "mask", "most", "page", "reader", "ready",
        "ring", "rows", "unpack", "views",
    )  # fmt: skip

    def __init__(self, ring: Ring, at: int, posts: int, rows: int, held: dict[int, Frame | Lease]) -> None:
        self.ring = ring
        self.page = ring.memory
        self.at, self.base, self.mask = at, at + _POSTS, posts - 1
        self.rows = rows  # of a batch that can be built ahead
        self.held = held
        self.most = ring.slots - min(2, ring.slots - 2)  # as many held batches or more: the next one is a copy
        self.unpack = _POST.unpack_from
        self.head = 0  # sequence number of the last post that was taken
        self.frames = 0  # of the stream, taken when ``head`` was
        self.frame: Frame | None = None  # the post behind ``head``, when it was looked at as a frame
        self.ready: dict[int, tuple[Any, Lease]] = {}  # by slot: built ahead
        self.views: list[tuple[Any, ...]] = []  # of a whole batch: shape, dtype, offset, strides
        self.finish: Callable[[list[Any], int], Any] | None = None
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

    def prepare(self, queue: Queue, slot: int) -> None:
        """Builds the next batch of a slot that was released; its lease goes to ``queue`` when its arrays die."""
        if self.closed or slot in self.ready or self.finish is None:
            return
        size = self.ring.slot_bytes
        root = np.frombuffer(self.page, np.uint8, size, slot * size)
        values: list[Any] = [
            np.ndarray(shape, dtype, root, offset, strides) for shape, dtype, offset, strides in self.views
        ]
        batch = self.finish(values, self.rows)
        lease = watch(queue, root, None, slot, 0)
        self.ready[slot] = (batch, lease)

    def close(self) -> None:
        """Drops the batches that were built ahead."""
        self.closed = True
        self.stop()
        self.ready.clear()
