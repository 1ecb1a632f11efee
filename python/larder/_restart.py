"""Going on after the daemon died or the connection was cut, in the midst of an epoch: a client says which step it needs next.

After a death a successor puts every job back from its journal; a daemon that lives keeps for the rank what was sent and may not have come.

A rank is taken again only where nothing can be mixed up: the job must be the one that was attached to (same id, registered at the same
moment), and the incarnation that was held goes with the request, so that a client that was replaced meanwhile is told so.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _daemon, _wire
from .errors import Error, JobEndedError, NotFoundError, StaleError, StateLostError, StoppedError, UnavailableError

if TYPE_CHECKING:
    from ._loader import Loader
    from ._parts import Run
    from ._session import Session

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.5  # seconds between two looks for a daemon; each is twice the one before


class Held(NamedTuple):
    """What this process held when its daemon died.

    A daemon may die when it has written that an ATTACH is served and has not said so. So every one without an answer may have made an
    incarnation, which is this client's own.
    """

    pid: int
    incarnation: int
    job: tuple[str, str]  # see identity
    unanswered: int = 0  # ATTACHes since then

    def fits(self, job: dict[str, Any]) -> bool:
        """Whether it is this process's, and this very job's."""
        return self.pid == os.getpid() and self.job == identity(job)


def identity(job: dict[str, Any]) -> tuple[str, str]:
    """What tells a job from a later one of the same name; it survives the daemon with the job."""
    return str(job.get("id") or ""), str(job.get("registeredAt") or "")


class Outage:
    """The time without a daemon: longer and longer pauses up to a deadline."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.pause = _FIRST_PAUSE

    @property
    def left(self) -> float:
        """Seconds to the deadline, at least a little."""
        return max(0.01, self.deadline - time.monotonic())

    def rest(self, error: UnavailableError) -> None:
        """Sleeps until it is time to look again; raises when there is no time left."""
        if time.monotonic() >= self.deadline:
            raise UnavailableError(
                f"{error.message}; waited {self.timeout:g} s for the larder daemon to come back",
                subject=error.subject,
                hint="start `larder serve` again, on the same state.dir: then iteration goes on where it was; timeout= is how long to "
                "wait, on_daemon_loss='raise' does not wait",
            ) from error
        time.sleep(min(self.pause, self.left))
        self.pause = min(2 * self.pause, _LONGEST_PAUSE)


def go_on(loader: Loader, run: Run) -> None:
    """Takes an epoch to another connection, of the same daemon or the one that follows it, at the first step that was not handed out.

    Raises StoppedError when somebody stopped the daemon and none runs, UnavailableError when none comes in time (calling next() again waits again), StateLostError when it does not have the epoch,
    StaleError when the rank was given to another client.
    """
    old = run.session
    # Its ring may still have batches ready. The daemon is about to be asked for them again, so they must not be used, not even when this
    # is interrupted and next() looks at the old session once more: the daemon would know less than this client has.
    old.forsaken = True
    if old.error is not None:
        old.fail(old.error)
    outage = Outage(loader._timeout)
    while True:
        try:
            _resume(loader, run, outage)
            return
        except StoppedError:
            raise  # nobody is to be waited for
        except UnavailableError as e:
            outage.rest(e)


def _resume(loader: Loader, run: Run, outage: Outage) -> None:
    step, held = run.next_step(), loader._held
    s = _daemon.open_session(loader._endpoint, outage.left, loader._known_stop)
    try:
        _recognise(loader, s, held, run, step, time.monotonic() + loader._timeout)
        loader._attach(s, register=False)
        what = f"the daemon to go on with epoch {run.epoch} of job {loader._name!r} at step {step}"
        try:
            answer = s.request(_wire.EPOCH, _wire.epoch_payload(run.epoch, step + 1), time.monotonic() + loader._timeout, what)
        except StaleError as e:
            raise _lost(loader, run, step, e.message) from e
        loader._note_size(_wire.parse_json(answer.payload), run.before)
        before, loader._box.session = loader._box.session, s
        run.goes_on(s, step)
    except BaseException as e:
        if run.session is not s:
            s.close(False)
        if isinstance(e, StaleError) and not isinstance(e, StateLostError):
            loader._ended = e
        raise
    if before is not None and before is not s:
        before.close(False)  # of a stats() or keys() while the daemon was just back


def _recognise(loader: Loader, s: Session, held: Held | None, run: Run, step: int, deadline: float) -> None:
    """Raises unless the daemon has the very job that was attached to, alive."""
    try:
        job = s.call("DescribeJob", {"name": loader._name}, deadline).get("job") or {}
    except NotFoundError as e:
        raise _lost(loader, run, step, "it knows no job of that name") from e
    if held is None or not held.fits(job):
        raise _lost(loader, run, step, "the job of that name is another one, registered later")
    if job.get("state") in ("JOB_STATE_DEAD", "JOB_STATE_DONE"):
        loader._ended = JobEndedError(
            f"job {loader._name!r} ended while its daemon was away: {job.get('endedReason') or 'no reason given'}",
            subject=loader._name,
            hint="make a new Loader; jobs.lease is how long a daemon waits for a client whose process it cannot see",
        )
        raise loader._ended


def _lost(loader: Loader, run: Run, step: int, why: str) -> Error:
    return StateLostError(
        f"the larder daemon cannot go on with epoch {run.epoch} of job {loader._name!r} at step {step}: {why}",
        subject=loader._name,
        hint="iter(loader) begins a new epoch, which has all samples again; for epochs that survive the daemon, give it a folder that "
        "stays (state.dir, not `none`)",
    )
