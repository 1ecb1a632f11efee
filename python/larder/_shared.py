"""The state that the modules of a Loader share.

A Loader is a front: it holds one ``Shared`` and functions of other modules work on that. So does the iterator of an
epoch, which keeps the ``Shared`` alive without its Loader. ``Shared`` is what finalizers watch.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

from . import _finalizer
from ._arguments import Settings
from ._batches import Batches
from ._finalizer import Resources
from ._listed import Rows
from ._makers import Makers
from ._messages import Job, JobSpec, Sizes, Token
from ._places import Place
from ._plan import Plan
from ._run import Observer, Run
from ._seat import Held, Seat
from ._stats import Quarantined
from .errors import Error, JobEndedError, StaleError


class Loaded(NamedTuple):
    """A loaded state whose epoch has not begun yet."""

    text: str  # of the token
    changed: bool  # files may have changed
    epoch: int = -1  # that iter() gives first; -1 = the daemon was not asked yet
    left: int = -1  # samples of it; 0 = it is over, and iter() gives nothing; -1 also when it has given that
    before: int = 0  # batches of it that every rank was handed, in all the jobs that had a part of it
    all: int = 0  # samples of the whole epoch
    whole: int = 0  # batches of the whole epoch

    @property
    def pending(self) -> bool:
        """Whether a remainder of the epoch is left to deliver."""
        return self.left > 0

    @property
    def token(self) -> Token:
        """The part of the token that this client reads."""
        return cast(Token, json.loads(self.text))

    @property
    def samples(self) -> int:
        """How many samples the subset had when the state was saved."""
        return int(self.token.get("samples") or 0)


class Iterating(Protocol):
    """An iterator of an epoch."""

    run: Run


@dataclass(eq=False)
class Shared:
    """Everything that one Loader knows. ``next()`` and calls change it under ``lock``."""

    settings: Settings
    spec: JobSpec | None  # of a job that this Loader registers; None: it is registered already
    timeout: float  # seconds that any wait may take
    observe: Callable[[Shared, Run, Sizes], Observer | None]  # makes the observer of an epoch that begins
    plan: Plan | None = None  # of a dataset in Python
    form: Batches | Rows | None = None  # how its batches are made

    # The connection.
    lock: threading.RLock = field(default_factory=threading.RLock)
    resources: Resources = field(default_factory=Resources)
    client: str = field(default_factory=lambda: os.urandom(8).hex())  # random; with the pid it names this client
    held: Held | None = None  # the attachment, also after its connection ended
    job: Job = field(default_factory=lambda: Job())  # as the daemon described it last
    closed: bool = False
    ended: Error | None = None  # why there are no more epochs

    # Epochs.
    running: Run | None = None
    iterator: weakref.ref[Iterating] | None = None  # of the epoch that was begun last
    next_epoch: int = 0
    pinned: int | None = None  # by set_epoch
    loaded: Loaded | None = None
    place: Place | None = None  # of a state of a loader with a sampler, until its epoch has begun

    # What this Loader counted.
    quarantined: dict[int, Quarantined] = field(default_factory=dict)
    batches: int = 0
    samples: int = 0
    copies: int = 0
    wait_seconds: float = 0.0
    warned_of_kept_batches: bool = False
    warned_of_full_disk: bool = False

    def __post_init__(self) -> None:
        _live[:] = [r for r in _live if r() is not None] + [weakref.ref(self)]
        _finalizer.watch(self, self.resources)

    # ---- copies for other processes

    def portable(self) -> dict[str, Any]:
        """What a copy needs, as a dict that can be pickled: everything but the connection and the running epoch."""
        left_out = ("lock", "resources", "client", "held", "job", "running", "iterator")
        return {k: v for k, v in self.__dict__.items() if k not in left_out}

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Shared:
        """A copy that registers and attaches for itself."""
        return cls(**state)

    # ---- the job

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.settings.name

    @property
    def rank(self) -> int:
        """The rank of this process in the job."""
        return self.settings.place.rank

    @property
    def described(self) -> JobSpec:
        """The description of the job with the daemon's defaults, empty before the daemon was asked."""
        return self.job.get("spec") or JobSpec()

    @property
    def uri(self) -> str:
        """The uri of the dataset."""
        return str(self.described.get("dataset") or (self.spec or {}).get("dataset") or "")

    def seat(self, path: str, pid: int, held: Held) -> Seat:
        """The rank of this Loader at the daemon of a socket."""
        place = self.settings.place
        return Seat(path, self.name, place.rank, place.node_rank, f"{pid}.{self.client}", held)

    def require_open(self) -> None:
        """Raises StaleError when the Loader was closed."""
        if self.closed:
            raise StaleError(f"the loader of job {self.name!r} is closed", subject=self.name, hint="make a new Loader")

    def final(self, epoch: int) -> JobEndedError:
        """Why no epoch follows this one."""
        epochs = int(self.described.get("epochs") or 0)
        if 0 < epochs <= epoch + 1:
            why, hint = "has done all its epochs", "raise epochs=, or make a new Loader"
        else:
            why, hint = f"was drained and ended with epoch {epoch}", "make a new Loader to continue"
        return JobEndedError(f"job {self.name!r} {why}", subject=self.name, hint=hint)

    @property
    def makers(self) -> Makers | None:
        """Who makes the items of a dataset in Python, in this process."""
        if self.plan is None:
            return None
        makers = self.resources.makers
        if makers is None or makers.pid != os.getpid():
            makers = self.resources.makers = Makers(self.plan, self)
        return makers

    def begin_items(self, path: str) -> None:
        """Has the workers of this Loader serve its job, at the daemon of a socket."""
        makers, plan = self.makers, self.plan
        if makers is not None and plan is not None:
            patience = self.timeout if self.settings.outlives_daemon else 0.0
            recipe = str(self.job.get("recipe") or "")
            makers.begin(plan.orders(path, recipe, f"{os.getpid()}.{self.client}", patience))

    # ---- epochs

    def coming(self) -> int:
        """The number of the epoch that iter() gives; the remainder of one keeps its number whatever is pinned."""
        loaded = self.loaded
        if self.place is not None:
            return max(self.next_epoch if self.running is None else 0, self.place.epoch)
        return max(self.next_epoch, (self.pinned or 0) if loaded is None or not loaded.pending else loaded.epoch)

    @property
    def on_error(self) -> str:
        """What becomes of samples that cannot be prepared."""
        return str(self.described.get("onError") or "raise")

    def note_bad(self, bad: Iterable[Quarantined]) -> None:
        """Adds to the samples that could not be prepared."""
        for q in bad:
            self.quarantined.setdefault(q.id, q)

    def delivered(self, run: Run) -> bool:
        """Whether all batches of an epoch were handed out, as far as that is known before its end."""
        return run.stream is None and run.before + run.next_step() >= int(self.job.get("batchesPerEpoch") or 0)

    def note_size(self, sizes: Sizes, before: int = 0) -> None:
        """Takes over the size of an epoch, whose subset may have changed.

        Of a remainder (after ``before`` batches) the size is that of the whole epoch.
        """
        samples, batches, whole = sizes.get("numSamples"), sizes.get("batchesPerEpoch"), sizes.get("whole")
        if whole:
            self.job["subsetSize"] = whole
            self.job["batchesPerEpoch"] = max(int(sizes.get("wholeBatches") or 0), before + int(batches or 0))
            return
        if batches is not None:
            self.job["batchesPerEpoch"] = batches
        if samples is not None:
            self.job["subsetSize"] = samples

    def note_remainder(self) -> None:
        """Takes the sizes of the whole epoch where only the remainder of one comes."""
        loaded = self.loaded
        if loaded is not None and loaded.left >= 0 and loaded.all:
            left = self.job.get("batchesPerEpoch", 0) if loaded.left else 0
            self.note_size({"whole": loaded.all, "wholeBatches": loaded.whole, "batchesPerEpoch": left}, loaded.before)

    def begin_at(self, place: Place) -> None:
        """Has the next epoch be that of a place: of a new job, whose numbers of epochs are all free."""
        s, self.resources.session = self.resources.session, None
        self.running = None
        if s is not None:
            s.close(s.ring is not None)
        self.ended, self.pinned, self.next_epoch, self.place = None, None, place.epoch, place

    # ---- life

    def close(self) -> None:
        """Leaves the job in order."""
        self.closed = True
        if self.running is not None:
            self.running.abandon("the loader was closed")
        s = self.resources.session
        if s is not None and s.board is not None:
            s.board.stop()
        self.running = None
        _finalizer.release(self.resources)


_live: list[weakref.ref[Shared]] = []  # not a WeakSet, whose callback is Python code


def live() -> list[Shared]:
    """The state of every Loader of this process."""
    return [x for r in _live if (x := r()) is not None]


def _after_fork_in_child() -> None:
    for shared in live():
        shared.lock = threading.RLock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)
