"""The small objects around a Loader: its iterator, what it lets go at its end, and what frameworks look for on it."""

from __future__ import annotations

import atexit
import collections
import time
import weakref
from typing import TYPE_CHECKING, Any

from . import _goodbye, _wire
from ._board import Board
from ._session import Session
from ._wire import Frame
from .errors import Error

if TYPE_CHECKING:
    from ._audit import RunLog
    from ._loader import Batch, Loader


class Run:
    """An epoch that was started; the Loader knows it and it does not know the Loader, so that a forgotten Loader dies at once."""

    __slots__ = ("after", "audit", "before", "board", "done", "epoch", "mark", "raised", "session", "since")

    def __init__(self, session: Session, epoch: int) -> None:
        self.session = session
        self.epoch = epoch
        self.done = False
        self.before = 0  # batches of the epoch that this rank was handed before the state that was gone on from
        self.after: dict[str, Any] = {}  # the size of the epochs after it, when it is what another job left of one
        self.audit: RunLog | None = None  # with LARDER_AUDIT_LOG
        self.board: Board | None = None  # where batches can be taken without looking at the socket
        self.since = 0.0  # when next() began to wait, by time.monotonic(), when it gave up since
        self.raised = -1  # the last step whose bad samples were raised
        # The last batch that came as a frame (None: none yet), its step (or the first one), and the board's head once it is taken.
        self.mark: tuple[Frame | None, int, int, Board | None] = (None, 0, 0, None)

    def next_step(self) -> int:
        """The first step that was not handed out; it follows from what handing out sets, so that an interrupt cannot split the two."""
        frame, step, head, board = self.mark
        if frame is not None and frame.taken is not None:
            step += 1
        return step if board is None else step + max(0, board.head - head)

    def comes(self, frame: Frame, step: int) -> None:
        """Notes that a batch is about to be taken as a frame, in its turn."""
        if self.mark[0] is not frame and step != self.next_step():
            raise _wire.protocol_error(f"step {step} of epoch {self.epoch} where step {self.next_step()} is next")
        board = self.session.board
        self.mark = (frame, step, 0 if board is None else board.head + (frame is board.frame), board)

    def goes_on(self, session: Session, step: int) -> None:
        """Changes to another session, which gives what comes from ``step`` on."""
        if self.audit is not None:
            self.audit.goes_on(step)
        self.mark = (None, step, 0, None)
        self.session = session


class Epoch:
    """The iterator of one epoch."""

    __slots__ = ("__weakref__", "_loader", "_run")

    def __init__(self, loader: Loader, run: Run) -> None:
        self._loader = loader
        self._run = run

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Batch:
        # A batch that is posted and was built ahead is handed out here: no system call, and little that caches have to hold.
        board = self._run.board
        if board is not None:
            loader = self._loader
            with loader._lock:
                if self._run.session.queue:  # the arrays of the batch before are dead: their slot goes back
                    self._run.session.flush()
                seq, frames, generation, slot, rows, epoch, _, _ = board.unpack(board.page, board.base + ((board.head & board.mask) << 6))
                if (
                    seq == board.head + 1
                    and frames == board.frames
                    and epoch == self._run.epoch
                    and rows == board.rows
                    and board.frame is None
                    and board.run is self._run
                    and len(board.held) < board.most
                ):
                    ready = board.ready.pop(slot, None)
                    if ready is not None:
                        batch, lease = ready
                        lease.generation, lease.post = generation, seq
                        board.held[slot] = lease
                        board.head = seq  # in this step it is taken
                        loader._batches += 1
                        loader._samples += rows
                        return batch
        if self._run.done:
            raise StopIteration
        return self._loader._next(self._run)


class Sampler:
    """What frameworks expect at ``loader.sampler``."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Same as ``loader.set_epoch``."""
        self._loader.set_epoch(epoch)


class Dataset:
    """What frameworks expect at ``loader.dataset``: the samples of the subset, countable."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return self._loader.num_samples

    def __repr__(self) -> str:
        return f"<larder dataset {self.uri!r}: {len(self):,} samples>"

    @property
    def uri(self) -> str:
        """Where it lies."""
        self._loader._known()
        return self._loader._uri()

    @property
    def classes(self) -> list[str]:
        """Names of the classes in label order."""
        answer = self._loader._call("InspectDataset", {"dataset": self.uri, "samples": 1})
        return [str(c) for c in (answer.get("dataset") or {}).get("classes") or ()]


class Box:
    """What has to be let go when the Loader is closed or forgotten; it does not know the Loader."""

    __slots__ = ("seat", "session", "unused")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.seat: _goodbye.Seat | None = None  # what it took last
        self.unused = ""  # name of a job that this Loader made and has not attached to


def shutdown(box: Box) -> None:
    """Leaves the job, or ends one that nobody ever used; never raises."""
    s, box.session = box.session, None
    seat, box.seat = box.seat, None
    if s is not None:
        _end(box, s)
    if seat is not None and (s is None or not s.left):
        _goodbye.say(seat)


def _end(box: Box, s: Session) -> None:
    if box.unused and s.usable:
        # Nobody would ever end it, and its name would stay taken. Another process that is about to attach registers it again.
        try:
            deadline = time.monotonic() + 2.0
            job = s.call("DescribeJob", {"name": box.unused}, deadline).get("job") or {}
            if job.get("state") == "JOB_STATE_JOINING":
                try:
                    s.call("KillJob", {"name": box.unused, "unused": True}, deadline)
                except Error as e:
                    if e.reason != "INVALID_ARGUMENT":  # a daemon that does not know the field says so
                        raise
                    s.call("KillJob", {"name": box.unused}, deadline)
        except Error:
            pass  # the daemon is going, too
    s.close(s.ring is not None)


class Grave(weakref.ref["Loader"]):
    """A Loader's weak reference to itself: when the Loader is forgotten it puts itself, in one C call, among those to be buried."""

    __slots__ = ("box",)

    # There is no __init__: see watch.
    box: Box


_graves: dict[int, Grave] = {}  # by id of the box: of Loaders that were not closed
_forgotten: collections.deque[Grave] = collections.deque()


def watch(loader: Loader, box: Box) -> None:
    """Has ``box`` let go when the Loader is forgotten (by the next call of any Loader), or at exit."""
    grave = Grave(loader, _forgotten.append)
    grave.box = box
    _graves[id(box)] = grave


def leave(box: Box) -> None:
    """Lets go of what a Loader has, now."""
    shutdown(box)
    _graves.pop(id(box), None)


def bury() -> None:
    """Lets go of what forgotten Loaders had. Not their own callback does that: what a signal handler raises in one is lost."""
    while _forgotten:
        try:
            box = _forgotten[0].box
            if box.session is not None and box.session.said_goodbye():
                box.session.ring, box.session.left = None, True
            leave(box)
            _forgotten.popleft()
        except IndexError:
            break  # another thread was faster
    _goodbye.say_owed()


@atexit.register
def _at_exit() -> None:
    bury()
    for grave in reversed(list(_graves.values())):
        leave(grave.box)
    _goodbye.say_owed(now=True)
