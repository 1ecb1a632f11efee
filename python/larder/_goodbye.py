"""The goodbye of a Loader whose connection had ended: its process lives, so the daemon would wait for it to come back.

It is said over a new connection to whichever daemon serves the socket now; none is started. When none serves it, the next call of any
Loader of this process says it, or its end.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from . import _daemon
from ._restart import Held
from .errors import Error, StaleError, UnavailableError

_SECONDS = 1.0  # for all of one goodbye
_PAUSE = 1.0  # seconds between two looks for a daemon


class Seat(NamedTuple):
    """What a Loader holds of a job: what its goodbye is about."""

    path: str  # of the socket
    job: str
    rank: int
    node_rank: int
    client: str  # what the daemon knows this client by
    held: Held


_MOST = 64  # that are owed; daemons that never come again owe nothing for ever

_owed: list[Seat] = []  # nobody was there to hear it
_next_look = 0.0


def say(seat: Seat) -> None:
    """Gives the seat up, now or when there is a daemon again; takes a second at most, and never raises."""
    global _next_look
    if not _said(seat):
        _owed[:] = [*_owed, seat][-_MOST:]
        _next_look = time.monotonic() + _PAUSE


def say_owed(now: bool = False) -> None:
    """Says what nobody was there to hear, when it is time to look again."""
    global _next_look
    if not _owed or not now and time.monotonic() < _next_look:
        return
    _next_look = time.monotonic() + _PAUSE
    away: set[str] = set()
    for seat in tuple(_owed):
        if seat.path in away:
            continue
        if not _said(seat):
            away.add(seat.path)
        else:
            _owed[:] = [x for x in _owed if x is not seat]


def _said(seat: Seat) -> bool:
    """Whether there is nothing more to be said."""
    if seat.held.pid != os.getpid():
        return True  # the parent's
    deadline = time.monotonic() + _SECONDS
    try:
        s = _daemon.reach(seat.path, _SECONDS)
    except UnavailableError:
        return False
    except Error:
        return True  # it does not answer: it is not waited for a second time
    try:
        job = s.call("DescribeJob", {"name": seat.job}, deadline).get("job") or {}
        if not seat.held.fits(job) or job.get("state") in ("JOB_STATE_DEAD", "JOB_STATE_DONE"):
            return True
        first = seat.held.incarnation
        for incarnation in range(first, first + seat.held.unanswered + 1):
            try:
                s.attach(seat.job, seat.rank, seat.node_rank, incarnation, seat.client, deadline)
            except StaleError:
                continue  # somebody else's, or that of an ATTACH that had no answer
            s.close(True, max(0.01, deadline - time.monotonic()))
            return s.left
    except UnavailableError:
        return False
    except Error:
        return True  # the job has ended, or another client has the rank
    finally:
        s.close(False)
    return True
