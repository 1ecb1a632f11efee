"""The DETACH of a Loader whose connection has ended: its process lives, so the daemon would wait for it to come back.

It goes over a new connection to whichever daemon serves the socket now; none is started. When none serves it, the next
call of any Loader of this process tries again, and the end of the process once more.
"""

from __future__ import annotations

import os

from . import _clock, _daemon, _messages
from ._messages import JobRequest
from ._seat import Seat, attach_request
from .errors import Error, StaleError, UnavailableError

_SECONDS = 1.0  # for all of one DETACH
_PAUSE = 1.0  # seconds between two looks for a daemon
_MOST = 64  # that wait: daemons that never come back must not cost memory forever

_waiting: list[Seat] = []  # whose daemon was not there
_next_look = 0.0


def detach(seat: Seat) -> None:
    """Leaves the seat, now or when there is a daemon again; takes a second at most, and never raises."""
    global _next_look
    if not _settled(seat):
        _waiting[:] = [*_waiting, seat][-_MOST:]
        _next_look = _clock.monotonic() + _PAUSE


def retry(now: bool = False) -> None:
    """Leaves the seats whose daemon was not there, when it is time to look again."""
    global _next_look
    if not _waiting or (not now and _clock.monotonic() < _next_look):
        return
    _next_look = _clock.monotonic() + _PAUSE
    away: set[str] = set()
    for seat in tuple(_waiting):
        if seat.path in away:
            continue
        if not _settled(seat):
            away.add(seat.path)
        else:
            _waiting[:] = [x for x in _waiting if x is not seat]


def _settled(seat: Seat) -> bool:
    """Leaves the seat; False when no daemon answers."""
    if seat.held.pid != os.getpid():
        return True  # the parent's
    deadline = _clock.monotonic() + _SECONDS
    try:
        s = _daemon.reach(seat.path, _SECONDS)
    except UnavailableError:
        return False
    except Error:
        return True  # it does not answer: it is not waited for a second time
    try:
        job = s.call(_messages.DESCRIBE_JOB, JobRequest(name=seat.job), deadline).get("job") or {}
        if not seat.held.fits(job) or job.get("state") in ("JOB_STATE_DEAD", "JOB_STATE_DONE"):
            return True
        first = seat.held.incarnation
        for incarnation in range(first, first + seat.held.unanswered + 1):
            try:
                s.attach(attach_request(seat, incarnation), deadline)
            except StaleError:
                continue  # another client's, or that of an ATTACH that had no answer
            s.close(True, max(0.01, deadline - _clock.monotonic()))
            return s.detached
    except UnavailableError:
        return False
    except Error:
        return True  # the job has ended, or another client has the rank
    finally:
        s.close(False)
    return True
