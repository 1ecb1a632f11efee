"""The connection of a Loader: made when it is needed, registered, attached to its rank, replaced when it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from . import _clock, _daemon, _finalizer, _registration, _rivals, _seat, _torch, _wire
from ._messages import AttachResponse, Method, Request, Response
from ._seat import Held
from ._session import Session
from ._shared import Shared
from .errors import InvalidError, NotFoundError, RankHeldError, StaleError, StoppedError, UnavailableError

_RANK_HELD_PATIENCE = 1.0  # seconds: the daemon may not have seen the end of a predecessor yet
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5  # seconds between two looks for a daemon; each is twice the one before
T = TypeVar("T")


def forget_frames(error: BaseException | None) -> None:
    """Lets go of the frames that an error passed, which would live until the garbage collector runs.

    A session names the error that ended it, and the frames name the session. They name the caller's frames too, whose
    variables hold batches: the ring would count those as kept.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class Outage:
    """The retries while there is no daemon: longer and longer pauses up to a deadline."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.deadline = _clock.monotonic() + timeout
        self.pause = _FIRST_PAUSE

    @property
    def left(self) -> float:
        """Seconds to the deadline, at least a little."""
        return max(0.01, self.deadline - _clock.monotonic())

    def rest(self, error: UnavailableError) -> None:
        """Sleeps until it is time to look again; raises when there is no time left."""
        if _clock.monotonic() >= self.deadline:
            raise UnavailableError(
                f"{error.message}; waited {self.timeout:g} s for the larder daemon to come back",
                subject=error.subject,
                hint="start `larder serve` again, on the same state.dir: then iteration continues where it was; "
                "timeout= is how long to wait, on_daemon_loss='raise' does not wait",
            ) from error
        forget_frames(error)
        _clock.sleep(min(self.pause, self.left))
        self.pause = min(2 * self.pause, _LONGEST_PAUSE)


def connect(shared: Shared) -> Session:
    """The connection of this process, registered; replaced after a fork, an unpickling, or a crash of the daemon."""
    shared.require_open()
    _finalizer.run_pending()
    s = shared.resources.session
    if s is not None and s.usable:
        return s
    if s is not None:
        if s.error is not None:
            s.fail(s.error)  # its end was noted, and its socket may be open yet
        if not s.peer_left:
            shared.held = None  # it ended for another reason than the daemon's end
    s = _daemon.open_session(shared.settings.endpoint, shared.timeout, shared.settings.known_stop)
    try:
        _register(shared, s, _clock.monotonic() + shared.timeout)
    except BaseException:
        s.close(False)
        raise
    shared.resources.session = s
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        # Children of multiprocessing leave without atexit.
        from multiprocessing import util

        util.Finalize(None, _finalizer.shutdown, (shared.resources,), exitpriority=10)
    return s


def begin(shared: Shared) -> None:
    """``connect`` for a Loader that is being made: a daemon that is killed meanwhile, or was, is waited for."""
    outage: Outage | None = None
    while True:
        try:
            connect(shared)
            return
        except UnavailableError as e:
            waits = e.gone or (outage is not None and not isinstance(e, StoppedError))
            if not (waits and shared.settings.outlives_daemon):
                raise
            outage = outage or Outage(shared.timeout)
            outage.rest(e)


def know(shared: Shared) -> None:
    """Asks the daemon to describe the job, unless it has."""
    if not shared.job:
        with shared.lock:
            connect(shared)


def _register(shared: Shared, s: Session, deadline: float) -> None:
    try:
        _registration.register(shared, s, deadline)
    except InvalidError as e:  # another description of the job: of an older Loader of this process?
        if e.reason != "ALREADY_EXISTS" or not _rivals.give_way(shared, _rivals.of(shared)):
            raise
        _registration.register(shared, s, deadline)


def attach(shared: Shared, s: Session, register: bool = True) -> None:
    """Attaches the session to the rank, once; ``register``: a job that ended meanwhile is registered again."""
    if s.ring is not None:
        return
    answer = _attach(shared, s, register)
    ring = s.ring
    assert ring is not None
    s.detach_with(shared)
    shared.resources.unused = ""
    fields = shared.settings.fields
    missing = [f for f in fields if f not in ring.fields]
    if missing:
        raise s.fail(_wire.protocol_error(f"a ring without the field {missing[0]!r}"))
    if s.board is not None and (shared.form is None or shared.form.ahead):
        s.board.describe([ring.fields[f] for f in fields], _finish(shared))
    shared.job = (answer.get("job") or shared.job).copy()
    shared.held = Held(os.getpid(), int(answer.get("incarnation") or 0), _seat.identity(shared.job))
    shared.resources.seat = shared.seat(s.path, s.pid, shared.held)
    shared.note_size(answer)  # this rank's numbers may differ from the job's
    shared.note_remainder()
    remainder = bool(answer.get("rest")) and shared.loaded is None  # for another client, who loads its state
    shared.next_epoch = max(shared.next_epoch, int(answer.get("nextEpoch") or 0) + remainder)


def _finish(shared: Shared) -> Callable[[list[Any], int], Any]:
    """What makes a batch of the arrays of its fields and the number of its rows."""
    if shared.form is not None:
        return shared.form.make
    if shared.settings.output == "torch":
        return lambda values, _: tuple(_torch.tensors(v) for v in values)
    return lambda values, _: tuple(values)


def _attach(shared: Shared, s: Session, register: bool) -> AttachResponse:
    """Asks for the rank until it is free, or known to be another's."""
    held, inc = shared.held, 0
    if held is not None and held.fits(shared.job):
        inc = held.incarnation
        shared.held = held._replace(unanswered=held.unanswered + 1)
        if shared.resources.seat is not None:
            shared.resources.seat = shared.resources.seat._replace(held=shared.held)
    deadline = _clock.monotonic() + shared.timeout
    patience = _clock.monotonic() + min(_RANK_HELD_PATIENCE, shared.timeout)
    again = register and shared.spec is not None
    seat = shared.seat(s.path, s.pid, Held(s.pid, inc, ("", "")))
    while True:
        try:
            return s.attach(_seat.attach_request(seat, inc), deadline)
        except NotFoundError:
            if not again:
                raise
            again, inc = False, 0
            _register(shared, s, deadline)  # the job ended since, when another process had used it and left
        except RankHeldError:
            rivals = _rivals.of(shared)
            if rivals and not _rivals.give_way(shared, rivals):
                shared.held = held
                raise _rivals.held(shared) from None
            if _clock.monotonic() > patience:
                shared.held = held
                raise
            _clock.sleep(0.05)
        except StaleError:
            if not inc or held is None or inc == held.incarnation + held.unanswered:
                raise
            inc += 1


def call(shared: Shared, method: Method[Request, Response], body: Request) -> Response:
    """Calls a method of the daemon, or of its successor."""
    with shared.lock:
        return outlive(shared, lambda s: s.call(method, body, _clock.monotonic() + shared.timeout))


def outlive(shared: Shared, act: Callable[[Session], T]) -> T:
    """Runs an idempotent operation; with the daemon's successor if the daemon crashed since the last use."""
    outage: Outage | None = None
    while True:
        s, before = None, shared.resources.session
        try:
            s = connect(shared)
            return act(s)
        except UnavailableError as e:
            gone = s or before
            if gone is None or not gone.peer_left or gone.draining is not None or isinstance(e, StoppedError):
                raise
            if not shared.settings.outlives_daemon and (outage is not None or s is not before):
                raise  # a successor is looked for once
            outage = outage or Outage(shared.timeout)
            outage.rest(e)
