"""What a slow next() waits for, as the daemon sees it (docs/cli.md lists the causes)."""

from __future__ import annotations

import time

from . import _clock, _messages
from ._caller import warn
from ._makers import Makers
from ._messages import Job, JobRequest, Wait
from ._run import Run
from ._session import Session
from ._shared import Shared
from .errors import DeadlineError, Error, PausedWarning, StateFullWarning, StorageError, StorageWarning

_GLANCE = 0.25  # seconds between two looks at the workers
_LOOK = 5.0  # seconds next() waits before it requests the cause of the wait, and warns of a pause or a full disk

_HELP = {
    "rank": "every rank iterates its Loader; one for rank 0 alone, as in a validation, has rank=0, world_size=1; ",
    "disk": "make room on that disk, larder continues by itself; ",
    "storage": "raise timeout= if storage is that slow; ",
    "cores": "raise timeout= if preparing a batch takes that long; ",
}


class Waiting:
    """One call of next() that may have to wait."""

    def __init__(self, shared: Shared, run: Run) -> None:
        self.shared, self.run = shared, run
        # Statistics read the real clock. Calls that gave up count: the daemon has not seen them end.
        self.since = run.since or time.monotonic()
        self.start = self.deadline = self.look = 0.0  # by the clock that decides, once there is something to wait for
        self.warned_of_pause = False
        self.warned_of_storage = False

    def more(self, s: Session) -> None:
        """Waits for something to come; raises when it takes too long, or when the connection is over."""
        if not self.start:
            self.start = _clock.monotonic()
            self.deadline, self.look = self.start + self.shared.timeout, self.start + _LOOK
        if s.board is not None:
            s.board.waits(self.since)
        makers = self.shared.resources.makers
        if makers is not None:
            if self._items(s, makers):
                return
        elif s.pump(min(self.deadline, self.look), posts=True):
            return
        job = _ask(self.shared, s)
        outage = _outage(self.shared, job)
        if job.get("paused"):
            self.deadline = _clock.monotonic() + self.shared.timeout  # the user who paused it decides how long
            if not self.warned_of_pause:
                self.warned_of_pause = True
                name = self.shared.name
                text = f"job {name!r} is paused: next() waits until `larder jobs unpause {name}`"
                warn(text, PausedWarning)
        elif outage is not None and (outage.get("outage") or {}).get("over"):
            raise self._give_up(self._outlasted(outage))
        elif outage is not None and self.shared.settings.patient:
            self.deadline = _clock.monotonic() + self.shared.timeout  # the daemon decides how long
            self._warn(job, outage)
        elif _clock.monotonic() >= self.deadline:
            raise self._give_up(self._late(s, job))
        else:
            self._warn(job, outage)
        self.look = _clock.monotonic() + _LOOK

    def _items(self, s: Session, makers: Makers) -> bool:
        """Waits while workers of this Loader, or this process, make items; False when it is time to ask why it takes so
        long.
        """
        makers.check(self.shared.batches)
        end = min(self.deadline, self.look)
        s.pump(min(end, _clock.monotonic() + _GLANCE), posts=True, also=makers.fds)
        makers.step()
        return _clock.monotonic() < end

    def seconds(self) -> float:
        """How long this call has waited, in seconds."""
        return time.monotonic() - self.since

    def _give_up(self, error: Error) -> Error:
        """Notes that this call ends without a batch, and returns its error."""
        # The next batch must end the wait, so it is taken only after a look at the socket.
        self.run.since, self.run.board = self.since, None
        return error

    def _warn(self, job: Job, outage: Wait | None) -> None:
        """Warns of a full disk, once in the life of a Loader, and of storage that fails, once in this call."""
        if outage is not None and not self.warned_of_storage:
            self.warned_of_storage = True
            warn(f"job {self.shared.name!r} waits for {outage.get('text') or 'storage'}", StorageWarning)
        word, words = _cause(self.shared, job)
        if word == "disk" and not self.shared.warned_of_full_disk:
            self.shared.warned_of_full_disk = True
            warn(f"job {self.shared.name!r} waits for {words}", StateFullWarning)

    def _outlasted(self, wait: Wait) -> Error:
        """The error of a next() that waits for storage which has failed for too long."""
        shared, outage = self.shared, wait.get("outage") or {}
        return StorageError(
            f"storage of job {shared.name!r} has failed for {outage.get('seconds') or 0:.0f} s: "
            f"{outage.get('why') or 'no reason given'}",
            subject=shared.name,
            hint="mend the storage, then call next() again: the epoch goes on, and no sample is lost; "
            "`larder dataset refresh` if files are gone for good; source.outage_timeout of the daemon "
            f"({outage.get('limitSeconds') or 0:g} s) is how long next() waits",
        )

    def _late(self, s: Session, job: Job) -> Error:
        """The error of a next() that has waited too long."""
        shared, waited = self.shared, _clock.monotonic() - self.start
        alive = bool(job) or s.answers()
        if s.error is not None:
            return s.error
        word, words = _cause(shared, job)
        state = "the daemon does not answer"
        hint = f"is process {s.daemon_pid} stopped or overloaded? next() may be called again"
        if alive:
            state = f"it waits for {words}" if words else "the daemon answers, but the batch is not ready"
            hint = (
                f"{_HELP.get(word, '')}`larder jobs describe {shared.name}` shows what it waits for; "
                f"next() may be called again; timeout= is {shared.timeout:g} s"
            )
        error = DeadlineError(
            f"waited {waited:.1f} s for a batch of epoch {self.run.epoch} of job {shared.name!r}, rank {shared.rank}: "
            f"{state}",
            subject=shared.name,
            hint=hint,
        )
        error.cause = word
        return error


def _ask(shared: Shared, s: Session) -> Job:
    """The job as the daemon sees it at this moment; empty when it does not answer at once."""
    try:
        return s.call(_messages.DESCRIBE_JOB, JobRequest(name=shared.name), _clock.monotonic() + 1.0).get("job") or {}
    except Error:
        return {}


def _outage(shared: Shared, job: Job) -> Wait | None:
    """What waits for storage that fails by a Job message: this rank, else one that it may wait for; None = nobody."""
    ranks = sorted(job.get("ranks") or (), key=lambda r: int(r.get("rank") or 0) != shared.rank)
    waits: list[Wait] = [r.get("wait") or {} for r in ranks]
    return next((w for w in waits if w.get("outage")), None)


def _cause(shared: Shared, job: Job) -> tuple[str, str]:
    """What this rank waits for by a Job message, as a word and as a sentence; empty when it does not say."""
    mine = next((r for r in job.get("ranks") or () if int(r.get("rank") or 0) == shared.rank), None)
    wait = (job if mine is None else mine).get("wait") or job.get("wait") or {}
    return str(wait.get("cause") or ""), str(wait.get("text") or "")
