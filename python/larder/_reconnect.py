"""Continues an epoch over another connection: the client says which step it needs next.

After a crash a successor restarts every job from its journal; a daemon that lives keeps for the rank what was sent and
may not have arrived.

A rank is taken again only where nothing can be mixed up: the job must be the one that was attached to (same id,
registered at the same moment), and the request names the incarnation that was held, so that a client that was replaced
meanwhile learns of it.
"""

from __future__ import annotations

from typing import cast

from . import _clock, _connection, _daemon, _messages, _wire
from ._connection import Outage
from ._messages import JobRequest, Sizes
from ._run import Run
from ._seat import Held
from ._session import Session
from ._shared import Shared
from .errors import Error, JobEndedError, NotFoundError, StaleError, StateLostError, StoppedError, UnavailableError


def reconnect(shared: Shared, run: Run) -> None:
    """Moves an epoch to another connection, of the same daemon or its successor, at the first undelivered step.

    Raises:
        StoppedError: a user stopped the daemon, and none runs.
        UnavailableError: none came in time; calling ``next()`` again waits again.
        StateLostError: it does not have the epoch.
        StaleError: another client has the rank.
    """
    old = run.session
    # Its ring may still have batches ready. The daemon is about to be asked for them again, so they must not be used,
    # not even when this is interrupted and next() looks at the old session once more: the daemon would know less than
    # this client has.
    old.superseded = True
    if old.error is not None:
        old.fail(old.error)
    outage = Outage(shared.timeout)
    while True:
        try:
            _attempt(shared, run, outage)
            _connection.forget_frames(old.error)
            return
        except StoppedError:
            raise  # no successor is expected
        except UnavailableError as e:
            outage.rest(e)


def _attempt(shared: Shared, run: Run, outage: Outage) -> None:
    step, held = run.next_step(), shared.held
    s = _daemon.open_session(shared.settings.endpoint, outage.left, shared.settings.known_stop)
    try:
        _recognise(shared, s, held, run, step)
        _connection.attach(shared, s, register=False)
        what = f"the daemon to continue epoch {run.epoch} of job {shared.name!r} at step {step}"
        try:
            payload = _wire.epoch_payload(run.epoch, step + 1)
            answer = s.request(_wire.EPOCH, payload, _clock.monotonic() + shared.timeout, what)
        except StaleError as e:
            raise _lost(shared, run, step, e.message) from e
        shared.note_size(cast(Sizes, _wire.parse_json(answer.payload)), run.before)
        before, shared.resources.session = shared.resources.session, s
        run.continue_with(s, step)
    except BaseException as e:
        if run.session is not s:
            s.close(False)
        if isinstance(e, StaleError) and not isinstance(e, StateLostError):
            shared.ended = e
        raise
    if before is not None and before is not s:
        before.close(False)  # of a stats() or keys() when the daemon had just come back


def _recognise(shared: Shared, s: Session, held: Held | None, run: Run, step: int) -> None:
    """Raises unless the daemon has the very job that was attached to, alive."""
    deadline = _clock.monotonic() + shared.timeout
    try:
        job = s.call(_messages.DESCRIBE_JOB, JobRequest(name=shared.name), deadline).get("job") or {}
    except NotFoundError as e:
        raise _lost(shared, run, step, "it knows no job of that name") from e
    if held is None or not held.fits(job):
        raise _lost(shared, run, step, "the job of that name is another one, registered later")
    if job.get("state") in ("JOB_STATE_DEAD", "JOB_STATE_DONE"):
        shared.ended = JobEndedError(
            f"job {shared.name!r} ended while its daemon was away: {job.get('endedReason') or 'no reason given'}",
            subject=shared.name,
            hint="make a new Loader; jobs.lease is how long a daemon waits for a client whose process it cannot see",
        )
        raise shared.ended


def _lost(shared: Shared, run: Run, step: int, why: str) -> Error:
    return StateLostError(
        f"the larder daemon cannot continue epoch {run.epoch} of job {shared.name!r} at step {step}: {why}",
        subject=shared.name,
        hint="iter(loader) begins a new epoch, which has all samples again; for epochs that survive the daemon, give "
        "it a folder that stays (state.dir, not `none`)",
    )
