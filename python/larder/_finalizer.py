"""The resources that a Loader must release when it is closed or forgotten.

A forgotten Loader runs no Python code (see _session): its death sends DETACH and queues its finalizer, each in one call
into C. The next call of any Loader of the process runs what is queued; ``atexit`` runs the rest.
"""

from __future__ import annotations

import atexit
import collections
import weakref

from . import _clock, _detach, _messages
from ._makers import Makers
from ._messages import JobRequest, KillJobRequest
from ._seat import Seat
from ._session import Session
from .errors import Error


class Resources:
    """The resources to release. They do not reference their Loader, so that a forgotten one dies at once."""

    __slots__ = ("makers", "seat", "session", "unused")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.seat: Seat | None = None  # the last one taken
        self.makers: Makers | None = None  # of a dataset in Python
        self.unused = ""  # name of a job that this Loader made and has not attached to


def shutdown(resources: Resources) -> None:
    """Leaves the job, or ends one that was never used; never raises."""
    makers, resources.makers = resources.makers, None
    s, resources.session = resources.session, None
    seat, resources.seat = resources.seat, None
    if s is not None:
        _end(resources, s)
    if seat is not None and (s is None or not s.detached):
        _detach.detach(seat)
    if makers is not None:
        makers.stop()


def _end(resources: Resources, s: Session) -> None:
    if resources.unused and s.usable:
        # No client would ever end it, and its name would stay taken. A process about to attach registers it again.
        try:
            deadline = _clock.monotonic() + 2.0
            job = s.call(_messages.DESCRIBE_JOB, JobRequest(name=resources.unused), deadline).get("job") or {}
            if job.get("state") == "JOB_STATE_JOINING":
                try:
                    s.call(_messages.KILL_JOB, KillJobRequest(name=resources.unused, unused=True), deadline)
                except Error as e:
                    if e.reason != "INVALID_ARGUMENT":  # the answer of a daemon that does not know the field
                        raise
                    s.call(_messages.KILL_JOB, KillJobRequest(name=resources.unused), deadline)
        except Error:
            pass  # the daemon is stopping, too
    s.close(s.ring is not None)


class Finalizer(weakref.ref[object]):
    """A weak reference to the owner of resources, which queues itself, in one C call, when the owner dies."""

    __slots__ = ("resources",)

    # There is no __init__: see watch.
    resources: Resources


_finalizers: dict[int, Finalizer] = {}  # by id of the resources: those that were not released
_queue: collections.deque[Finalizer] = collections.deque()  # of owners that died


def watch(owner: object, resources: Resources) -> None:
    """Has ``resources`` released when ``owner`` is forgotten (by the next call of any Loader), or at exit."""
    finalizer = Finalizer(owner, _queue.append)
    finalizer.resources = resources
    _finalizers[id(resources)] = finalizer


def release(resources: Resources) -> None:
    """Releases the resources now."""
    shutdown(resources)
    _finalizers.pop(id(resources), None)


def run_pending() -> None:
    """Releases what forgotten Loaders held. A callback would lose what a signal handler raises."""
    while _queue:
        try:
            resources = _queue[0].resources
            if resources.session is not None and resources.session.owner_detached():
                resources.session.ring, resources.session.detached = None, True
            release(resources)
            _queue.popleft()
        except IndexError:
            break  # another thread was faster
    _detach.retry()


@atexit.register
def _at_exit() -> None:
    run_pending()
    for finalizer in reversed(list(_finalizers.values())):
        release(finalizer.resources)
    _detach.retry(now=True)
