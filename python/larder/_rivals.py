"""Loaders of one process that want the same rank of the same job: a notebook's cell that is run again makes a second one.

The older one gives way when nobody iterates it: its epoch is over, was left, or ended in an exception (whose traceback may keep the Loader
alive for ever). While an iterator of it lives it stays, unless the newer one says ``replace=True``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import _daemon
from .errors import RankHeldError

if TYPE_CHECKING:
    from ._loader import Loader


def of(loader: Loader, all_of_them: list[Loader]) -> list[Loader]:
    """The other Loaders of this process that hold the same rank of the same job of the same daemon."""
    where = _daemon.socket_path(loader._endpoint)[0]
    return [
        r
        for r in all_of_them
        if r is not loader
        and r._name == loader._name
        and r._place.rank == loader._place.rank
        and not r._closed
        and r._box.session is not None
        and r._box.session.ring is not None
        and r._box.session.pid == os.getpid()
        and r._box.session.path == where
    ]


def give_way(loader: Loader, rivals: list[Loader]) -> bool:
    """Closes those that may be replaced; whether there was one."""
    idle = [r for r in rivals if loader._replace or not in_use(r)]
    for r in idle:
        r.close()
    return bool(idle)


def in_use(loader: Loader) -> bool:
    """Whether an iterator of it lives, in the midst of an epoch."""
    it = loader._iterator() if loader._iterator is not None else None
    return it is not None and it._run is loader._running and not it._run.done


def held(loader: Loader) -> RankHeldError:
    """The error that says that the holder is this very process."""
    return RankHeldError(
        f"rank {loader._place.rank} of job {loader._name!r} is held by another Loader of this process (pid {os.getpid()}), which is being iterated",
        subject=loader._name,
        hint="close() that Loader or drop its iterator, give this one replace=True, or another job name",
    )
