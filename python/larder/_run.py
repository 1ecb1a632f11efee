"""One epoch that was started: its number, its position, and its observer."""

from __future__ import annotations

from typing import Protocol

from . import _wire
from ._board import Board
from ._messages import EpochEnd, Sizes
from ._mix import Mixer
from ._ring import Ring
from ._session import Session
from ._stream import Epoch as Stream
from ._wire import BatchHeader, Frame


class Observer(Protocol):
    """Observes everything that one epoch delivers; its iterator and its Loader call it."""

    def received(self, ring: Ring, header: BatchHeader) -> None:
        """A batch came as a frame and is about to be delivered."""

    def handed_out(self, run: Run) -> None:
        """``next()`` is about to return a batch."""

    def asked(self, run: Run) -> None:
        """``next()`` was called: the step before is over."""

    def reconnected(self, step: int) -> None:
        """Another session continues the epoch from ``step`` on."""

    def ended(self, end: EpochEnd) -> None:
        """The epoch is complete."""

    def abandoned(self, why: str) -> None:
        """The epoch will not be completed."""

    def saved(self, step: int, token: str | None) -> None:
        """A state of the epoch was saved; ``token`` is the checksum of its token."""


class Run:
    """An epoch that was started. It does not reference its Loader, so that a forgotten Loader dies at once."""

    __slots__ = (
        *("after", "before", "board", "done", "epoch", "mark", "mixer", "observer", "raised", "session", "since"),
        *("stream", "unread"),
    )

    def __init__(self, session: Session, epoch: int) -> None:
        self.session = session
        self.epoch = epoch
        self.done = False
        self.before = 0  # batches of the epoch that this rank was handed before the state it resumes from
        self.after: Sizes = {}  # the size of the epochs after it, when this is the remainder of one
        self.observer: Observer | None = None
        self.mixer: Mixer | None = None  # what a recipe that ends in MixUp or CutMix does to every batch
        self.board: Board | None = None  # where batches can be taken without reading the socket
        self.since = 0.0  # since when next() waits, by time.monotonic(), when it gave up meanwhile
        self.stream: Stream | None = None  # what the script's sampler says which samples come
        self.raised = -1  # the last step whose bad samples were raised
        self.unread: tuple[int, frozenset[int]] = (-1, frozenset())  # a step, and rows of it that cannot be unpickled
        # The last batch that came as a frame (None: none yet), its step (or the first one), and the board's head once
        # that batch is taken.
        self.mark: tuple[Frame | None, int, int, Board | None] = (None, 0, 0, None)

    def next_step(self) -> int:
        """The first step that was not delivered.

        It is computed from what a delivery sets, so an interrupt cannot separate the two.
        """
        frame, step, head, board = self.mark
        if frame is not None and frame.taken is not None:
            step += 1
        return step if board is None else step + max(0, board.head - head)

    def expect(self, frame: Frame, step: int) -> None:
        """Notes that a batch is about to be taken as a frame, in its turn."""
        if self.mark[0] is not frame and step != self.next_step():
            raise _wire.protocol_error(f"step {step} of epoch {self.epoch} where step {self.next_step()} is next")
        board = self.session.board
        self.mark = (frame, step, 0 if board is None else board.head + (frame is board.frame), board)

    def continue_with(self, session: Session, step: int) -> None:
        """Changes to another session, which sends the batches from ``step`` on."""
        if self.observer is not None:
            self.observer.reconnected(step)
        self.mark = (None, step, 0, None)
        self.session = session

    def abandon(self, why: str) -> None:
        """Notifies the observer that the epoch, if it runs, is abandoned."""
        if self.observer is not None and not self.done:
            self.observer.abandoned(why)
