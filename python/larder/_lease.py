"""The life of one delivered batch, watched by a weak reference to its root array.

No callback of the interpreter runs Python code (see _session): a signal handler could run inside it, and what that
raises (Ctrl-C) would be lost. The death of a root is one call into C:

- of a batch that was built ahead, it gives the slot back in the release word of its board;
- of any other batch, it appends its lease to a queue, and the next ``next()`` or call of the Loader releases the slot.
"""

from __future__ import annotations

import collections
import functools
import struct
import time
import weakref
from typing import Any, NamedTuple

import numpy.typing as npt

from ._wire import Frame

# A release word: when it was given back (monotonic nanoseconds), microseconds waited for the batch, zero, generation.
# They are packed in this order, and the generation is what counts.
RELEASE = struct.Struct("<QIIQ")


class Lease(weakref.ref["npt.NDArray[Any]"]):
    """A weak reference to the root array of one delivery.

    A batch that came as a frame counts as handed out once ``frame.taken`` is this lease; one that was built ahead once
    the board's head has passed its post. A root that dies otherwise releases nothing.
    """

    __slots__ = ("armed", "frame", "generation", "post", "slot", "waited_us")

    # There is no __init__: one lease is made for every batch, by ``watch`` or ``watch_ahead``.
    frame: Frame | None
    slot: int
    generation: int
    waited_us: int
    post: int  # its sequence number on the board; 0 = it has not been handed out
    armed: list[int]  # of a batch that was built ahead: the generation, once its death is to give the slot back

    def handed_out(self) -> bool:
        """Reports whether the caller got the batch, which came as a frame."""
        return self.frame is not None and self.frame.taken is self


Queue = collections.deque[bytes | Lease]  # small frames to send, and leases whose roots have died


def watch(queue: Queue, root: npt.NDArray[Any], frame: Frame, slot: int, waited_us: int) -> Lease:
    """Has the death of ``root`` put its lease into ``queue``."""
    lease = Lease(root, queue.append)
    lease.frame, lease.slot, lease.waited_us = frame, slot, waited_us
    lease.generation = 0 if frame.batch is None else frame.batch.generation
    lease.post, lease.armed = 0, []
    return lease


class Words(NamedTuple):
    """Where the release word of a slot is, and who wants to know that it was written."""

    page: Any
    at: int
    held: dict[int, Frame | Lease]  # by slot: batches that the caller's arrays keep
    died: collections.deque[None]  # grows by one item with each word


def watch_ahead(words: Words, root: npt.NDArray[Any], slot: int) -> Lease:
    """Has the death of ``root`` give the slot back, if the lease is armed then.

    That is one call of ``next``, which makes these calls, all in C: ``RELEASE.pack_into(page, at, now, 0, 0,
    generation)``, ``died.append(None)``, ``held.pop(slot, None)``. Each ``map`` calls its function with what the
    iterators behind it give; the last one of the innermost is ``armed``, and while that is empty nothing is called.
    """
    armed: list[int] = []
    now = iter(time.monotonic_ns, None)
    written = map(RELEASE.pack_into, (words.page,), (words.at,), now, (0,), (0,), armed)
    noted = map(words.died.append, written)
    lease = Lease(root, functools.partial(next, map(words.held.pop, (slot,), noted)))
    lease.frame, lease.slot, lease.waited_us = None, slot, 0
    lease.generation, lease.post, lease.armed = 0, 0, armed
    return lease
