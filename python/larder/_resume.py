"""Resuming: what state_dict() returns, and how a Loader goes on from it.

The state is a token that the daemon makes: it names a place in its log of orders (or, portable, has in it what was handed out). It is
opaque here. A Loader that loads one registers its job anew with it; the daemon answers which epoch there is to go on with.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _daemon, _ranks
from .errors import (
    DatasetWarning,
    DeadlineError,
    Error,
    InvalidError,
    NotFoundError,
    RankHeldError,
    StaleError,
    StateChangedWarning,
    UnavailableError,
)

if TYPE_CHECKING:
    from ._loader import Loader
    from ._parts import Box, Run
    from ._session import Session

_PATIENCE = 1.0  # seconds: the daemon may not have seen the end of a predecessor yet


class Loaded(NamedTuple):
    """A state that was loaded and not gone on with yet."""

    text: str  # of the token
    changed: bool  # files may have changed
    epoch: int = -1  # that iter() gives first; -1 = the daemon was not asked yet
    left: int = -1  # samples of it; 0 = it is over, and iter() gives nothing; -1 also when it has given that
    before: int = 0  # batches of it that every rank was handed, in all the jobs that had a part of it
    all: int = 0  # samples of the whole epoch
    whole: int = 0  # batches of the whole epoch

    @property
    def goes_on(self) -> bool:
        """Whether there is something left that was not gone on with yet."""
        return self.left > 0

    @property
    def samples(self) -> int:
        """Of the subset, when it was saved."""
        return int(json.loads(self.text).get("samples") or 0)


class Resumable:
    """The part of Loader that saves and loads where it is."""

    _name: str
    _job: dict[str, Any]
    _lock: threading.RLock
    _box: Box
    _loaded: Loaded | None
    _place: _ranks.Place
    _running: Run | None
    _next_epoch: int
    _pinned: int | None
    _closed: bool
    _ended: Error | None

    def _call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _note_size(self, answer: dict[str, Any], before: int = 0) -> None:
        raise NotImplementedError

    def _known(self) -> None:
        raise NotImplementedError

    def _session(self) -> Session:
        raise NotImplementedError

    def state_dict(self, *, portable: bool = False) -> dict[str, Any]:
        """Where this Loader is, for ``load_state_dict``: small, JSON-able, and the same on every rank that was handed as many batches.

        It counts batches that were handed to the script, not those prepared ahead: between two steps of a training loop it says that
        the batch of the step before was used. Save it with the model, in one place of the loop on all ranks.

        The token names a place in the daemon's log of orders, which it keeps in ``state.dir`` (``state.orders`` bounds how much of it).
        ``portable=True`` puts what was handed out into it (one bit a sample before compression), so that it needs no log: for another
        machine, another daemon, or a checkpoint that is kept for long. It is for the same files: a copy need not keep modification times.
        """
        with self._lock:
            loaded = self._loaded
            if loaded is not None and loaded.left >= 0 and not portable:
                return dict(json.loads(loaded.text))
            self._known()
            run = self._running
            if loaded is not None:
                epoch, step = loaded.epoch, 0
            elif run is not None and not run.done:
                epoch, step = run.epoch, run.next_step()
            else:
                epoch, step = max(self._next_epoch, self._pinned or 0), 0
            body = {"name": self._name, "id": int(self._job.get("id") or 0), "epoch": epoch, "step": step, "portable": portable}
            if run is not None and not run.done and run.before:
                body["before"] = run.before
            state = dict(json.loads(str(self._call("GetState", body).get("token") or "{}")))
            if run is not None and run.audit is not None and not run.done:
                run.audit.write("saved", step=step, token=state.get("sum"))
            return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Goes on from what ``state_dict()`` returned: the next ``iter`` gives exactly what was left of that epoch, then come whole ones.

        World size, batch size, ``drop_last`` and the order's name may be others than when it was saved; dataset and subset must be the
        same. Call it in every rank with the same state, before ``iter`` or instead of going on. ``len(loader)`` stays the length of the
        whole epoch, and ``step`` is how much of it was handed out. A state of the last batch of an epoch gives an empty one first, as the loop that saved it would have
        ended there; one that was saved after the loop gives the next epoch.

        Raises StateError when that cannot be: the state was edited, is of another dataset, of a daemon whose log this one does not
        have, or of an order that is not kept any more; or files changed since, which it names. ``strict=False`` goes on with the files
        as they are: new ones are given with the rest, those that are gone are not, and a StateChangedWarning says which.
        """
        if not isinstance(state_dict, Mapping):
            raise InvalidError(
                f"load_state_dict takes what state_dict() returned, not {type(state_dict).__name__}", subject="state_dict"
            )
        try:
            text = json.dumps(dict(state_dict))
        except (TypeError, ValueError) as e:
            raise InvalidError(
                f"the state is none of larder: {e}", subject="state_dict", hint="pass what Loader.state_dict() returned"
            ) from e
        with self._lock:
            if self._closed:
                raise StaleError(f"the loader of job {self._name!r} is closed", subject=self._name, hint="make a new Loader")
            before = self._loaded
            s, self._box.session = self._box.session, None
            self._running = None
            if s is not None:
                s.close(s.ring is not None)
            self._loaded = Loaded(text, not strict)
            try:
                self._session()
            except BaseException:
                self._loaded = before
                raise
            assert self._loaded is not None
            self._ended = None
            self._pinned = None
            self._next_epoch = self._loaded.epoch

    @property
    def epoch(self) -> int:
        """Number of the running epoch, or of the next one when none is running."""
        r = self._running
        return r.epoch if r is not None and not r.done else self._coming()

    @property
    def step(self) -> int:
        """Batches of the running epoch that were handed out, those before a loaded state included; 0 when none is running.

        ``len(loader) - loader.step`` are left, as long as batch size and world size are those of the state.
        """
        with self._lock:
            r, loaded = self._running, self._loaded
            if loaded is not None and loaded.left >= 0:
                return loaded.before
            return 0 if r is None or r.done else r.before + r.next_step()

    def _coming(self) -> int:
        """The number of the epoch that iter() gives; what is left of one keeps its number whatever is pinned."""
        loaded = self._loaded
        return max(self._next_epoch, (self._pinned or 0) if loaded is None or not loaded.goes_on else loaded.epoch)

    def _note_rest(self) -> None:
        """Has the sizes say the whole of an epoch of which only the rest comes."""
        loaded = self._loaded
        if loaded is not None and loaded.left >= 0 and loaded.all:
            left = self._job.get("batchesPerEpoch") if loaded.left else 0
            self._note_size({"whole": loaded.all, "wholeBatches": loaded.whole, "batchesPerEpoch": left}, loaded.before)


def may_load(loader: Loader, error: InvalidError) -> bool:
    """Whether a job of the loader's name that has another description has no client (any more): loading a state replaces it.

    Any other use of the loader raises the same error as the constructor would have.
    """
    if error.reason != "ALREADY_EXISTS":
        return False
    s = _daemon.open_session(loader._endpoint, loader._timeout, loader._known_stop)
    try:
        patience = time.monotonic() + _PATIENCE
        while True:
            job = s.call("DescribeJob", {"name": loader._name}, time.monotonic() + loader._timeout).get("job") or {}
            if not any(r.get("attached") for r in job.get("ranks") or ()):
                return True
            if time.monotonic() > patience:
                return False
            time.sleep(0.05)
    except Error:
        return False
    finally:
        s.close(False)


def register(loader: Loader, s: Session, deadline: float) -> None:
    """Asks the daemon for the loader's job, or for what is left of it."""
    spec = loader._spec
    if spec is None:
        _describe(loader, s, deadline)
        spec = loader._job.get("spec") or {}
        if loader._loaded is None:
            return
    body: dict[str, Any] = {"spec": spec}
    loaded = loader._loaded
    if loaded is not None:
        body |= {"resume": loaded.text, "resumeChanged": loaded.changed}
    # The ranks of a job let go of it one after the other; a client that was killed may not have been missed yet.
    patience = time.monotonic() + (loader._timeout if loader._place.world_size > 1 else min(_PATIENCE, loader._timeout))
    while True:
        try:
            answer = s.call("RegisterJob", body, deadline)
            break
        except DeadlineError as e:
            e.hint = "a large dataset takes long to index the first time: `larder dataset add URI` does it beforehand, or raise timeout="
            raise
        except RankHeldError:
            if time.monotonic() > min(patience, deadline - 0.1):
                raise
            time.sleep(0.05)
    loader._job = answer.get("job") or {}
    if loader._place.rank == 0:
        for note in answer.get("datasetNotes") or ():
            DatasetWarning.tell(spec.get("dataset", ""), str(note))
    loader._box.unused = loader._name if answer.get("created") else ""
    if loaded is None:
        return
    resumed = answer.get("resumed")
    if resumed is None:
        raise UnavailableError("the daemon is older than this client and cannot resume", hint="restart it: larder serve")
    if loaded.epoch < 0:
        token = json.loads(loaded.text)
        loader._loaded = loaded._replace(
            epoch=int(resumed.get("epoch") or 0),
            left=int(resumed.get("left") or 0),
            before=int(token.get("before") or 0) + int(token.get("step") or 0),
            all=int(resumed.get("whole") or 0),
            whole=int(resumed.get("wholeBatches") or 0),
        )
        for note in resumed.get("notes") or ():
            warnings.warn(f"job {loader._name!r}: {note}", StateChangedWarning, stacklevel=5)
    loader._note_rest()


def _describe(loader: Loader, s: Session, deadline: float) -> None:
    """Looks up a job that was registered elsewhere, and checks that it fits."""
    try:
        loader._job = s.call("DescribeJob", {"name": loader._name}, deadline).get("job") or {}
    except NotFoundError as e:
        e.hint = e.hint or "register it first: larder jobs register -f job.yaml"
        raise
    spec = loader._job.get("spec") or {}
    size = int(spec.get("batchSize") or 0)
    if loader._asked_batch_size not in (None, size):
        raise InvalidError(
            f"job {loader._name!r} was registered with batch_size {size}, not {loader._asked_batch_size}",
            subject=loader._name,
            hint="leave batch_size out",
        )
    world = int(spec.get("worldSize") or 1)
    if world != loader._place.world_size:
        raise InvalidError(
            f"job {loader._name!r} was registered with world_size {world}; this process is rank {loader._place.rank} of "
            f"{loader._place.world_size} ({loader._place.source})",
            subject=loader._name,
            hint="register it with the world_size it runs with, or pass rank= and world_size=",
        )
