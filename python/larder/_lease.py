"""The life of one delivered batch, watched by a weak reference to its root array.

No callback of the interpreter runs Python code (see _session): the death of a root appends its lease to a queue, in one
C call, and the next ``next()`` or call of the Loader releases the slot.
"""

from __future__ import annotations

import collections
import weakref
from typing import Any, Protocol

import numpy.typing as npt

from ._wire import Frame


class Posted(Protocol):
    """The part of the board that a lease uses: the batches held by slot, and the number of the last post taken."""

    held: dict[int, Frame | Lease]
    head: int


class Lease(weakref.ref["npt.NDArray[Any]"]):
    """A weak reference to the root array of one delivery, whose death queues this lease.

    A batch that came as a frame counts as handed out once ``frame.taken`` is this lease; a posted one once the slot is
    held by this lease and the board's head has passed its post. A root that dies otherwise releases nothing.
    """

    __slots__ = ("confirmed", "frame", "generation", "post", "slot", "waited_us")

    # There is no __init__: one lease is made for every batch, by ``watch``.
    frame: Frame | None
    slot: int
    generation: int
    waited_us: int
    post: int  # its sequence number on the board
    confirmed: bool  # it was seen to have been handed out

    def handed_out(self, board: Posted | None) -> bool:
        """Reports whether the caller got the batch."""
        if self.frame is not None:
            return self.frame.taken is self
        if not self.confirmed:
            self.confirmed = board is not None and board.held.get(self.slot) is self and 0 < self.post <= board.head
        return self.confirmed


Queue = collections.deque[bytes | Lease]  # small frames to send, and leases whose roots have died


def watch(queue: Queue, root: npt.NDArray[Any], frame: Frame | None, slot: int, waited_us: int) -> Lease:
    """Has the death of ``root`` put its lease into ``queue``."""
    lease = Lease(root, queue.append)
    lease.frame, lease.slot, lease.waited_us = frame, slot, waited_us
    lease.generation = 0 if frame is None or frame.batch is None else frame.batch.generation
    lease.post, lease.confirmed = 0, False
    return lease
