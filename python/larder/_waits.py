"""What a next() that takes long waits for, as the daemon sees it (docs/cli.md lists the causes)."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

from .errors import DeadlineError, Error, StateFullWarning

if TYPE_CHECKING:
    from ._loader import Loader
    from ._parts import Run
    from ._session import Session

_HELP = {
    "rank": "every rank iterates its Loader; one for rank 0 alone, as in a validation, has rank=0, world_size=1; ",
    "disk": "make room on that disk, larder goes on by itself; ",
    "storage": "raise timeout= if storage is that slow; ",
    "cores": "raise timeout= if preparing a batch takes that long; ",
}


def ask(loader: Loader, s: Session) -> dict[str, Any]:
    """The job as the daemon sees it at this moment; empty when it does not say so at once."""
    try:
        return dict(s.call("DescribeJob", {"name": loader._name}, time.monotonic() + 1.0).get("job") or {})
    except Error:
        return {}


def cause(loader: Loader, job: dict[str, Any]) -> tuple[str, str]:
    """What this rank waits for, in a word and in many, by a Job message; empty when it does not say."""
    mine = next((r for r in job.get("ranks") or () if int(r.get("rank") or 0) == loader._place.rank), job)
    wait = mine.get("wait") or job.get("wait") or {}
    return str(wait.get("cause") or ""), str(wait.get("text") or "")


def tell(loader: Loader, it: Run, job: dict[str, Any]) -> None:
    """Warns of a full disk, once."""
    word, words = cause(loader, job)
    if word == "disk" and not loader._told_full:
        loader._told_full = True
        message = f"job {loader._name!r} waits for {words}"
        warnings.warn(message, StateFullWarning, stacklevel=5 + (it.audit is not None))


def late(loader: Loader, s: Session, it: Run, waited: float, job: dict[str, Any]) -> Error:
    """The error of a next() that has waited for so many seconds."""
    alive = bool(job) or s.answers()
    if s.error is not None:
        return s.error
    word, words = cause(loader, job)
    state = "the daemon does not answer"
    hint = f"is process {s.daemon_pid} stopped or overloaded? next() may be called again"
    if alive:
        state = f"it waits for {words}" if words else "the daemon answers, but the batch is not ready"
        hint = (
            f"{_HELP.get(word, '')}`larder jobs describe {loader._name}` tells what it waits for; next() may be called again; "
            f"timeout= is {loader._timeout:g} s"
        )
    who = f"job {loader._name!r}, rank {loader._place.rank}"
    error = DeadlineError(
        f"waited {waited:.1f} s for a batch of epoch {it.epoch} of {who}: {state}", subject=loader._name, hint=hint
    )
    error.cause = word
    return error
