"""Loaders of one process that want the same rank of the same job: a notebook's cell, or a module, that is run again
makes another.

The older one gives way, also when it is iterated: names that the cell left, or a traceback, may keep its iterator alive
for as long as the process. That iterator raises StaleError. A newer one gives way to an older one only when it is not
iterated, or to ``replace=True``.
"""

from __future__ import annotations

import os

from . import _daemon, _shared
from ._shared import Shared
from .errors import RankHeldError


def of(shared: Shared) -> list[Shared]:
    """The other Loaders of this process that hold the same rank of the same job of the same daemon."""
    where = _daemon.socket_path(shared.settings.endpoint)[0]
    return [r for r in _shared.live() if r is not shared and not r.closed and _same_rank(r, shared, where)]


def _same_rank(other: Shared, shared: Shared, where: str) -> bool:
    s = other.resources.session
    if s is None or s.ring is None or s.pid != os.getpid() or s.path != where:
        return False
    return other.name == shared.name and other.rank == shared.rank


def give_way(shared: Shared, rivals: list[Shared]) -> bool:
    """Closes the Loaders that may be replaced; reports whether there was one."""
    order = _shared.live()
    older = order[: next((n for n, r in enumerate(order) if r is shared), 0)]
    idle = [r for r in rivals if shared.settings.replace or not in_use(r) or any(r is x for x in older)]
    for r in idle:
        r.close()
    return bool(idle)


def in_use(shared: Shared) -> bool:
    """Reports whether an iterator of the Loader lives, in the middle of an epoch."""
    it = shared.iterator() if shared.iterator is not None else None
    return it is not None and it.run is shared.running and not it.run.done


def held(shared: Shared) -> RankHeldError:
    """The error that says that this process itself holds the rank."""
    return RankHeldError(
        f"rank {shared.rank} of job {shared.name!r} is held by a newer Loader of this process (pid {os.getpid()}), "
        "which is being iterated",
        subject=shared.name,
        hint="close() that Loader or drop its iterator, give this one replace=True, or another job name",
    )
