"""All errors of larder, as one tree of exceptions::

    Error                       reason, subject, message, hint, retry_after
    ├── InvalidError            also ValueError: an argument, subset, recipe or name that cannot work
    │   └── OutOfRangeError     also IndexError: an index that the dataset does not have
    ├── NotFoundError           no such job or dataset, or a folder that cannot be read
    ├── RankHeldError           a live process holds this (job, rank)
    ├── StaleError              an iterator or attachment that something newer replaced
    │   └── StateLostError      the daemon came back without the epoch that was running
    ├── StateError              a state_dict that cannot be resumed from: edited, of other files, of another log
    ├── SampleError             a sample that cannot be decoded: file, offset, why, id, key; of an item in Python
    │                           that raised, also that exception's class
    ├── JobEndedError           the job was killed, drained or has done its epochs
    ├── DeniedError             also PermissionError: this user may not do that
    ├── UnavailableError        also ConnectionError: no daemon, a dead one, or one that is draining
    │   └── StoppedError        a user stopped the daemon on purpose (`larder stop`)
    └── DeadlineError           also TimeoutError, and RuntimeError as torch's: a wait took longer than ``timeout``
        └── StorageError        storage has failed for longer than the daemon waits

``reason`` is a stable upper-case word (docs/errors.md lists all); ``subject`` is what it is about; ``hint`` names the
fix.
"""

from __future__ import annotations

import functools
from typing import Any

from ._messages import ErrorDetail
from ._stats import Quarantined


class Error(Exception):
    """The base of all errors of larder; ``str()`` gives the message and, in parentheses, what to do."""

    default_reason = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        subject: str = "",
        hint: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.subject = subject
        self.hint = hint
        self.retry_after = retry_after  # seconds, when trying again can help

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        return f"{self.message}{chr(10) if chr(10) in self.message else ' '}({self.hint})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel between processes (multiprocessing, concurrent.futures) with everything they say.
        return _rebuild, (type(self), self.message, dict(self.__dict__))


class InvalidError(Error, ValueError):
    """An argument, subset, recipe, size or name that can never work as given."""

    default_reason = "INVALID_ARGUMENT"


class OutOfRangeError(InvalidError, IndexError):
    """An index of a sample that its dataset does not have."""


class JobLimitError(InvalidError):
    """As many jobs live as the daemon serves: end one, or raise jobs.max."""


class DiskFullError(InvalidError):
    """The disk of the daemon's state directory is full; the message says how much room is needed."""


class RingMemoryError(InvalidError):
    """The daemon's memory for rings does not suffice for the batches of the job; the message has both numbers."""


class NotFoundError(Error):
    """There is no such job, dataset or sample, or the folder cannot be read."""

    default_reason = "NOT_FOUND"


class RankHeldError(Error):
    """A live process holds this (job, rank); the message names it."""

    default_reason = "RANK_HELD"


class StaleError(Error):
    """The iterator or attachment was replaced by a newer one."""

    default_reason = "STALE"


class StateLostError(StaleError):
    """The daemon was restarted and lost the state of the running epoch.

    Its ``state.dir`` is ``none`` or another folder, or the job of that name is another one.

    ``iter(loader)`` begins a new epoch.
    """


class StateError(Error):
    """A state_dict that cannot be resumed from; the message says why, the hint what to do."""

    default_reason = "TOKEN_INVALID"


class JobEndedError(Error):
    """The job was killed, drained, or has done its epochs."""

    default_reason = "JOB_ENDED"


class DeniedError(Error, PermissionError):
    """This user may not speak to the daemon, read that dataset through it, or touch that job."""

    default_reason = "PERMISSION_DENIED"


class UnavailableError(Error, ConnectionError):
    """No daemon answers, it died, or it is draining."""

    default_reason = "UNAVAILABLE"
    gone = False  # a daemon was there and has ended: another one may take its place


class StoppedError(UnavailableError):
    """A user stopped the daemon with `larder stop`; the message names who.

    A Loader that was made before the stop starts no other daemon: its ``next()`` and ``iter()`` raise this at once
    until a daemon serves the socket again. A new Loader starts one.
    """

    default_reason = "STOPPED"


class DeadlineError(Error, TimeoutError, RuntimeError):
    """A wait took longer than the Loader's ``timeout``; the message says what was waited for.

    ``cause`` says it in a word (docs/errors.md).
    """

    default_reason = "DEADLINE"
    cause = ""


class StorageError(DeadlineError):
    """The storage of the dataset has failed for longer than the daemon's ``source.outage_timeout``.

    No sample is lost: the job stays, and ``next()`` gives its next batch once storage answers.
    """

    default_reason = "STORAGE_FAILED"
    cause = "storage"


class SampleError(Error):
    """One or more samples of a batch could not be prepared; ``samples`` has them all, the attributes the first one."""

    default_reason = "SAMPLE_BAD"

    def __init__(self, samples: tuple[Quarantined, ...], **kw: Any) -> None:
        first = samples[0]
        more = f" (and {len(samples) - 1} more in this batch)" if len(samples) > 1 else ""
        kw.setdefault("subject", first.path or first.key)
        kw.setdefault(
            "hint",
            "the next call of next() gives the batch without it; on_error='skip' or 'substitute' raises nothing",
        )
        at = "" if first.offset is None else f" at byte {first.offset}"
        super().__init__(f"{first.path or first.key}: cannot prepare sample {first.id}{at}: {first.reason}{more}", **kw)
        self.samples = samples
        self.id = first.id
        self.key = first.key
        self.file = first.path
        self.offset = first.offset  # byte of the damage, where the decoder reports it; else None
        self.why = first.reason  # in words; `reason` is the stable word SAMPLE_BAD


@functools.cache
def _raised(kind: Any) -> Any:
    """SampleError as a class of an exception that an item raised, too."""

    def reduce(self: SampleError) -> tuple[Any, ...]:
        return _rebuild_raised, (kind, self.message, dict(self.__dict__))

    return type("SampleError", (SampleError, kind), {"__module__": SampleError.__module__, "__reduce__": reduce})


def of_item(samples: tuple[Quarantined, ...], kind: type[BaseException] | None) -> SampleError:
    """The error of samples, of which the first one raised an exception of that kind: it is an instance of both."""
    if kind is not None and issubclass(kind, Exception) and not issubclass(kind, Error):
        try:
            of_both: Any = kind
            made: SampleError = _raised(of_both)(samples)
            return made
        except Exception:
            pass  # a class whose constructor asks for more than a message
    return SampleError(samples)


class KeptBatchesWarning(UserWarning):
    """User code keeps so many batches that the loader has to deliver copies."""


class StateChangedWarning(UserWarning):
    """``load_state_dict`` left something out, or found it changed since the state was saved."""


class DatasetWarning(UserWarning):
    """A dataset has files that look like samples and are none, or classes without any, which is said once a process; or
    none of an epoch's samples could be prepared.
    """


class NotSharedWarning(UserWarning):
    """A dataset without a name, or a step without a fingerprint: it works, and other jobs cannot share its samples."""


class NativeWarning(UserWarning):
    """Workers run a torchvision ImageFolder, not the daemon itself; the message says why."""


class RandomItemWarning(UserWarning):
    """``cache="items"`` was declared for a dataset whose items are random: every epoch would see the same ones."""


class FieldsWarning(UserWarning):
    """Built-in ops move the image of each sample, and a field that looks like its mask is not named."""


class WorkerWarning(UserWarning):
    """A worker process ended; another one took its place. A Loader warns of it once."""


class OneRankWarning(UserWarning):
    """A task of Slurm has every sample, because nothing says that the tasks train one model; the message has more."""


class UnknownVariableWarning(UserWarning):
    """An environment variable begins with LARDER_ and means nothing; the message has the nearest known name."""


class StorageWarning(UserWarning):
    """The storage of a dataset fails as a whole; ``next()`` waits for it, for as long as the message says."""


class StateFullWarning(UserWarning):
    """The disk of the daemon's state directory is full, so ``next()`` waits for room. A Loader warns of it once."""


class PausedWarning(UserWarning):
    """A user paused the job (`larder jobs pause`), so ``next()`` waits until it is unpaused."""


def _rebuild(cls: type[Error], message: str, state: dict[str, Any]) -> Error:
    e = cls.__new__(cls)
    Exception.__init__(e, message)
    e.__dict__.update(state)
    return e


def _rebuild_raised(kind: Any, message: str, state: dict[str, Any]) -> Error:
    return _rebuild(_raised(kind), message, state)


_BY_REASON: dict[str, type[Error]] = {
    "INVALID_ARGUMENT": InvalidError,
    "ALREADY_EXISTS": InvalidError,
    "SUBSET_SYNTAX": InvalidError,
    "SUBSET_EMPTY": InvalidError,
    "DATASET_EMPTY": InvalidError,
    "RECIPE_INVALID": InvalidError,
    "RESOURCE_EXCEEDED": InvalidError,
    "JOB_LIMIT": JobLimitError,
    "DISK_FULL": DiskFullError,
    "RING_MEMORY": RingMemoryError,
    "CONFIG_INVALID": InvalidError,
    "UNSUPPORTED": InvalidError,
    "NOT_FOUND": NotFoundError,
    "DATASET_UNREADABLE": NotFoundError,
    "RANK_HELD": RankHeldError,
    "STALE": StaleError,
    "TOKEN_INVALID": StateError,
    "JOB_ENDED": JobEndedError,
    "PERMISSION_DENIED": DeniedError,
    "UNAUTHENTICATED": DeniedError,
    "UNAVAILABLE": UnavailableError,
    "STOPPED": StoppedError,
}


def from_detail(detail: ErrorDetail) -> Error:
    """Makes the exception of an ErrorDetail message (docs/protocol.md); an unknown reason gives a plain Error."""
    reason = str(detail.get("reason", "")) or "INTERNAL"
    retry = detail.get("retryAfter")
    seconds: float | None = None
    if isinstance(retry, str) and retry.endswith("s"):
        try:
            seconds = float(retry[:-1])
        except ValueError:
            seconds = None
    return _BY_REASON.get(reason, Error)(
        str(detail.get("message", "")) or "the daemon reported an error without words",
        reason=reason,
        subject=str(detail.get("subject", "")),
        hint=str(detail.get("hint", "")),
        retry_after=seconds,
    )
