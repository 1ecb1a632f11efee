"""A client's hold on a job: enough to take its rank again, or to leave it, over another connection."""

from __future__ import annotations

import os
from typing import NamedTuple

from ._messages import AttachRequest, Job


class Held(NamedTuple):
    """The attachment of this process.

    A daemon may crash after it has written that an ATTACH is served and before it answers. So every ATTACH without an
    answer may have made an incarnation, which is this client's own.
    """

    pid: int
    incarnation: int
    job: tuple[str, str]  # see identity
    unanswered: int = 0  # ATTACHes since then

    def fits(self, job: Job) -> bool:
        """Reports whether the attachment belongs to this process and this very job."""
        return self.pid == os.getpid() and self.job == identity(job)


def identity(job: Job) -> tuple[str, str]:
    """The mark that distinguishes a job from a later one of the same name; the journal keeps it with the job."""
    return str(job.get("id") or ""), str(job.get("registeredAt") or "")


class Seat(NamedTuple):
    """The rank of a job that a client holds."""

    path: str  # of the daemon's socket
    job: str
    rank: int
    node_rank: int
    client: str  # names this client in all its ATTACHes
    held: Held


def attach_request(seat: Seat, incarnation: int) -> AttachRequest:
    """The ATTACH that takes ``seat``; ``incarnation`` is the one that was held before, or 0."""
    body: AttachRequest = {
        "job": seat.job,
        "rank": seat.rank,
        "nodeRank": seat.node_rank,
        "pid": os.getpid(),
        "client": seat.client,
    }
    if incarnation:
        body["incarnation"] = str(incarnation)
    return body
