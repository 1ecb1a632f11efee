"""Loader: what a training script sees. It asks the daemon for a job and hands out its batches; it does not prepare or cache anything."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from . import _args, _audit, _daemon, _goodbye, _ranks, _restart, _resume, _ring, _rivals, _waits, _wire
from ._facts import Facts
from ._parts import Box, Epoch, Run, bury, leave, shutdown, watch
from ._session import Session
from ._stats import Quarantined
from ._wire import Frame
from .errors import (
    Error,
    InvalidError,
    JobEndedError,
    KeptBatchesWarning,
    NotFoundError,
    PausedWarning,
    RankHeldError,
    SampleError,
    StaleError,
    StoppedError,
    UnavailableError,
    from_detail,
)

Batch = tuple[Any, ...]
T = TypeVar("T")

_LOOK = 5.0  # seconds a next() waits before it asks what it waits for: a pause, or a full disk, is told

_RANK_HELD_PATIENCE = 1.0  # seconds: the daemon may not have seen the end of a predecessor yet

_loaders: list[weakref.ref[Loader]] = []  # not a WeakSet, whose callback is Python code


def _after_fork_in_child() -> None:
    for r in _loaders:
        loader = r()
        if loader is not None:
            loader._lock = threading.RLock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)


class Loader(Facts, _resume.Resumable):
    """Batches of one training job, epoch after epoch.

    A plain re-iterable object: every ``iter(loader)`` starts the next epoch, ``break`` abandons one, ``len(loader)`` is the number
    of batches of this rank. A batch is a tuple ``(images, labels)``. Its arrays are views of shared memory; they stay valid, and
    unchanged by anybody else, for as long as any of them (or a slice, or a tensor made of it) is referenced, also after ``close()``.

    What the job is:

    * ``uri``: ``imagefolder:DIR``, the name of a dataset the daemon knows, or ``job:NAME`` for a job registered with
      ``larder jobs register``; then the arguments that describe the job must not be given again.
    * ``batch_size``: samples per rank and batch.
    * ``shuffle``: a new random order every epoch. ``order`` names its promise: "stratified" (default; "stratified(B)" with B tiles instead of 4),
      "strict", "epoch", or "fixed" = a pure function of seed and epoch; "replay:FILE" gives a recorded one again (docs/resume.md).
      In none of them is a sample early or late for ever. ``promise`` says in words what the order keeps.
    * ``seed`` of the fixed order and of random transforms.
    * ``subset``: an expression such as ``"label < 600 and id % 2 == 0"`` (docs/subsets.md).
    * ``transform``: ops of :mod:`larder.ops` or torchvision objects; without it images come as decoded, each of its own size.
    * ``drop_last`` drops a short last batch. ``even``: "drop" (default with several ranks) gives all ranks equally many samples,
      "none" does not.
    * ``share="augmented"`` lets jobs with equal recipes share augmented samples; no job ever gets the same augmented instance twice.
    * ``on_error``: "raise" (SampleError names file, offset and reason; the next ``next()`` goes on without the sample), "skip", or
      "substitute" (another sample takes its place; all ranks get equally many batches, docs/ddp.md). ``quarantined`` keeps the list.
    * ``prefetch``: batches prepared ahead. ``epochs``: after so many the job ends.
    * ``skip_empty``: accept class folders without images, as torchvision's ``allow_empty``; they keep their label and have no samples.

    Who asks:

    * ``job`` names it for people, for other ranks, and for taking over after a crash; by default run id / dataset / ordinal of the
      Loader in its process.
    * ``rank``, ``world_size``: found from torch.distributed, torchrun or Slurm when not given. All ranks are on this
      machine: a run of several machines is refused, for it does not work yet.
    * ``endpoint``: socket of the daemon (or LARDER_SOCKET); without either the daemon of this user is found, or started.
    * ``timeout`` in seconds bounds every wait; DeadlineError says what was waited for.
    * ``on_daemon_loss``: "wait" (default): when the daemon dies, ``next()`` waits up to ``timeout`` for its successor on the same socket
      and goes on with the very batch that is next, none twice and none lost; a daemon without its state raises StateLostError.
      "raise": UnavailableError at once. After `larder stop` both raise StoppedError.
    * ``replace=True`` ends another Loader of this process that is iterated under the same job name and rank. One that nobody iterates (any
      more) gives way by itself, so a notebook's cell may be run again.

    How batches look:

    * ``output``: "numpy" (default) or "torch". Images of equal size come as one array (uint8 CHW; float32 after Normalize or
      ToTensor), others as a list of uint8 HWC arrays; labels as int64.
    * ``fields``: which of "image", "label", "index" a batch has, in that order. ``return_index`` appends the int64 sample ids.

    The job is registered by the constructor, so that mistakes show at once; memory is taken at the first ``iter``. A Loader may be
    sent to a spawned process, or inherited by a forked one, and be iterated there (two processes at once on one rank:
    RankHeldError). One thread at a time may use it; dropping batches is free in any thread.
    """

    def __init__(
        self,
        uri: str,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        subset: str | None = None,
        transform: Any = None,
        job: str | None = None,
        order: str | None = None,
        drop_last: bool = False,
        even: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        output: str = "numpy",
        fields: Iterable[str] | None = None,
        return_index: bool = False,
        share: str = "none",
        on_error: str = "raise",
        prefetch: int = 2,
        epochs: int | None = None,
        skip_empty: bool = False,
        endpoint: str | None = None,
        timeout: float = 60.0,
        on_daemon_loss: str = "wait",
        replace: bool = False,
        **unknown: Any,
    ) -> None:
        if unknown:
            known = [p for p in inspect.signature(Loader.__init__).parameters if p not in ("self", "uri", "unknown")]
            raise _args.unknown_keyword(next(iter(unknown)), known)
        if not isinstance(uri, str):
            raise InvalidError(
                f"uri must be a string, not {uri!r} ({type(uri).__name__})", subject="uri", hint='write "imagefolder:/path/to/folder"'
            )
        self._output = _args.choice("output", output, ("numpy", "torch"))
        self._fields = _args.check_fields(fields, bool(return_index))
        self._endpoint = None if endpoint is None else os.fspath(endpoint)
        self._timeout = _args.seconds(timeout)
        self._known_stop = _daemon.known_stop(self._endpoint)
        self._waits = _args.choice("on_daemon_loss", on_daemon_loss, ("wait", "raise")) == "wait"
        self._held: _restart.Held | None = None
        self._client = os.urandom(8).hex()
        self._replace = _args.flag("replace", replace)
        self._iterator: weakref.ref[Epoch] | None = None
        self._loaded: _resume.Loaded | None = None
        self._pinned: int | None = None
        self._next_epoch = 0
        self._running: Run | None = None
        self._closed = False
        self._ended: Error | None = None
        self._quarantined: dict[int, Quarantined] = {}
        self._batches = self._samples = self._copies = 0
        self._wait_seconds = 0.0
        self._warned = self._told_full = False
        self._lock = threading.RLock()
        bury()  # first: one of them may have the name of this one
        _loaders[:] = [r for r in _loaders if r() is not None] + [weakref.ref(self)]
        if self._output == "torch":
            _args.torch_module()
        rank = None if rank is None else _args.integer("rank", rank, 0, 2**32 - 1)
        world_size = None if world_size is None else _args.integer("world_size", world_size, 1, 2**32 - 1)
        self._place = _ranks.find(rank, world_size)
        if uri.startswith("job:"):
            _args.refuse_described(
                uri,
                shuffle=shuffle is not False,
                seed=seed != 0,
                subset=subset is not None,
                transform=transform is not None,
                job=job is not None,
                order=order is not None,
                drop_last=drop_last is not False,
                even=even is not None,
                share=share != "none",
                on_error=on_error != "raise",
                prefetch=prefetch != 2,
                epochs=epochs is not None,
                skip_empty=skip_empty is not False,
            )
            self._name = uri[4:]
            self._spec: dict[str, Any] | None = None
            self._asked_batch_size = None if batch_size is None else _args.integer("batch_size", batch_size, 1, 65536)
        else:
            if batch_size is None:
                raise TypeError("Loader() missing 1 required keyword-only argument: 'batch_size'")
            uri = _args.absolute(uri)
            self._name = job if job is not None else _ranks.default_name(uri, self._place.world_size, self._place.within)
            self._asked_batch_size = None
            self._spec = _args.job_spec(
                name=_args.job_name(self._name),
                dataset=uri,
                subset=subset,
                batch_size=batch_size,
                shuffle=shuffle,
                order=order,
                seed=seed,
                transform=transform,
                drop_last=drop_last,
                even=even,
                place=self._place,
                share=share,
                on_error=on_error,
                prefetch=prefetch,
                epochs=epochs,
                skip_empty=skip_empty,
            )
        self._job: dict[str, Any] = {}
        self._box = Box()
        watch(self, self._box)
        try:
            self._session()
        except InvalidError as e:
            if not _resume.may_load(self, e):
                raise

    # ---- connection

    def _session(self) -> Session:
        """The connection of this process, registered; made anew after a fork, an unpickling, or the daemon's death."""
        if self._closed:
            raise StaleError(f"the loader of job {self._name!r} is closed", subject=self._name, hint="make a new Loader")
        bury()
        s = self._box.session
        if s is not None and s.usable:
            return s
        if s is not None:
            if s.error is not None:
                s.fail(s.error)  # its end was noted, and its socket may be open yet
            if not s.peer_left:
                self._held = None  # it ended for another reason than the daemon's death
        s = _daemon.open_session(self._endpoint, self._timeout, self._known_stop)
        try:
            self._register(s, time.monotonic() + self._timeout)
        except BaseException:
            s.close(False)
            raise
        self._box.session = s
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            # Children of multiprocessing leave without atexit.
            from multiprocessing import util

            util.Finalize(None, shutdown, (self._box,), exitpriority=10)
        return s

    def _register(self, s: Session, deadline: float) -> None:
        try:
            _resume.register(self, s, deadline)
        except InvalidError as e:  # another description of the job: of an older Loader of this process?
            if e.reason != "ALREADY_EXISTS" or not _rivals.give_way(self, self._rivals()):
                raise
            _resume.register(self, s, deadline)

    def _rivals(self) -> list[Loader]:
        return _rivals.of(self, [x for r in _loaders if (x := r()) is not None])

    def _attach(self, s: Session, register: bool = True) -> None:
        """Attaches the session to this rank, once; ``register``: a job that ended meanwhile is made anew."""
        if s.ring is not None:
            return
        held, inc = self._held, 0
        if held is not None and held.fits(self._job):
            inc = held.incarnation
            self._held = held._replace(unanswered=held.unanswered + 1)
            if self._box.seat is not None:
                self._box.seat = self._box.seat._replace(held=self._held)
        deadline = time.monotonic() + self._timeout
        patience = time.monotonic() + min(_RANK_HELD_PATIENCE, self._timeout)
        again = register and self._spec is not None
        while True:
            try:
                answer = s.attach(self._name, self._place.rank, self._place.node_rank, inc, f"{s.pid}.{self._client}", deadline)
                break
            except NotFoundError:
                if not again:
                    raise
                again, inc = False, 0
                self._register(s, deadline)  # the job ended since, when another process had used it and left
            except RankHeldError:
                rivals = self._rivals()
                if rivals and not _rivals.give_way(self, rivals):
                    self._held = held
                    raise _rivals.held(self) from None
                if time.monotonic() > patience:
                    self._held = held
                    raise
                time.sleep(0.05)
            except StaleError:
                if not inc or held is None or inc == held.incarnation + held.unanswered:
                    raise
                inc += 1
        assert s.ring is not None
        s.leaves_with(self)
        self._box.unused = ""
        missing = [f for f in self._fields if f not in s.ring.fields]
        if missing:
            raise s.fail(_wire.protocol_error(f"a ring without the field {missing[0]!r}"))
        if s.board is not None:
            s.board.shows([s.ring.fields[f] for f in self._fields], self._output == "torch")
        self._job = {**(answer.get("job") or self._job)}
        self._held = _restart.Held(os.getpid(), int(answer.get("incarnation") or 0), _restart.identity(self._job))
        self._box.seat = _goodbye.Seat(s.path, self._name, self._place.rank, self._place.node_rank, f"{s.pid}.{self._client}", self._held)
        self._note_size(answer)  # this rank's numbers may differ from the job's
        self._note_rest()
        rest = bool(answer.get("rest")) and self._loaded is None  # of an epoch: for another client, who loads its state
        self._next_epoch = max(self._next_epoch, int(answer.get("nextEpoch") or 0) + rest)

    def _call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return self._outliving(lambda s: s.call(method, body, time.monotonic() + self._timeout))

    def _outliving(self, act: Callable[[Session], T]) -> T:
        """Does something with a session that may be done twice; when the daemon has died since the last time, with its successor's."""
        outage: _restart.Outage | None = None
        while True:
            s, before = None, self._box.session
            try:
                s = self._session()
                return act(s)
            except UnavailableError as e:
                gone = s or before
                if gone is None or not gone.peer_left or gone.draining is not None or isinstance(e, StoppedError):
                    raise
                if not self._waits and (outage is not None or s is not before):
                    raise  # a successor is looked for once
                outage = outage or _restart.Outage(self._timeout)
                outage.rest(e)

    # ---- iterating

    def __iter__(self) -> Iterator[Batch]:
        """Starts the next epoch. An unfinished one is abandoned; its iterator raises StaleError from then on."""
        with self._lock:
            if self._ended is not None:
                raise self._ended
            _args.refuse_torch_worker()
            numbers = (self._next_epoch, self._pinned, self._loaded)

            def start(s: Session) -> Epoch:
                self._next_epoch, self._pinned, self._loaded = numbers
                run = self._start_epoch(s)
                it = (Epoch if run.audit is None else _audit.Epoch)(self, run)
                self._iterator = weakref.ref(it)
                return it

            return self._outliving(start)

    def _start_epoch(self, s: Session) -> Run:
        if s.draining is not None:
            s.close(s.ring is not None)  # the daemon waits for this; the next iter() looks for its successor
            raise s.draining
        loaded = self._loaded
        if loaded is not None and loaded.left == 0 and (self._pinned or 0) <= loaded.epoch:
            return self._nothing_left(s, loaded)
        self._attach(s)
        if s.board is not None:
            s.board.stop()
        _audit.left(self._running, "another epoch was begun")
        running = Run(s, self._coming())
        running.before = loaded.before if loaded is not None and loaded.goes_on else 0
        self._pinned = None
        self._next_epoch = running.epoch + 1  # before it is asked for: an interrupt below must not use the number twice
        self._running = running
        try:
            what = f"the daemon to start epoch {running.epoch} of job {self._name!r}"
            answer = s.request(_wire.EPOCH, _wire.epoch_payload(running.epoch), time.monotonic() + self._timeout, what)
            size = _wire.parse_json(answer.payload)
            self._note_size(size, running.before)
            if size.get("whole"):
                running.after = {"numSamples": size["whole"], "batchesPerEpoch": size.get("wholeBatches") or 0}
            running.audit = _audit.begin(self, running, size)
        except BaseException:
            running.done = True
            raise
        self._loaded = None
        return running

    def _nothing_left(self, s: Session, loaded: _resume.Loaded) -> Run:
        """The epoch of a state that was saved at its last batch: it ends at once. The job begins with the one after it."""
        self._running = run = Run(s, loaded.epoch)
        run.done = True
        self._next_epoch, self._pinned = loaded.epoch + 1, None
        run.audit = _audit.begin(self, run, {"whole": loaded.samples})
        if run.audit is not None:
            run.audit.ends({})
        self._loaded = loaded._replace(epoch=loaded.epoch + 1, left=-1)
        self._note_size({"numSamples": loaded.all, "batchesPerEpoch": loaded.whole})
        return run

    def _next(self, it: Run) -> Batch:
        s = it.session
        if s.pid != os.getpid():
            raise StaleError(
                f"this iterator of job {self._name!r} was made in process {s.pid}",
                subject=self._name,
                hint="call iter(loader) in this process",
            )
        with self._lock:
            while True:
                try:
                    return self._take(s, it)
                except Error as e:
                    if e.reason == "PROTOCOL":
                        s.fail(e)
                    if not (self._waits and s.lost(e)):
                        raise
                finally:
                    if s.board is not None and not it.since:
                        s.board.waits(0.0)
                _restart.go_on(self, it)
                s = it.session

    def _take(self, s: Session, it: Run) -> Batch:
        """The next batch of the epoch; frames of other kinds are dealt with on the way."""
        start = time.monotonic()
        begun = it.since or start  # the daemon has not been told of what it waited in vain
        deadline = start + self._timeout
        look, told = start + _LOOK, False
        bury()
        s.flush()
        s.look()
        while True:
            if it is not self._running:
                raise StaleError(
                    f"this iterator of job {self._name!r} (epoch {it.epoch}) ended when the loader was iterated again or closed",
                    subject=self._name,
                    hint="use one iterator at a time; two jobs need two Loaders",
                )
            if s.revoked is not None:
                self._ended = s.revoked
                raise s.fail(s.revoked)
            f = s.head()
            if f is None:
                if s.board is not None:
                    s.board.waits(begun)
                if s.pump(min(deadline, look), posts=True):
                    continue
                job = _waits.ask(self, s)
                if job.get("paused"):
                    deadline = time.monotonic() + self._timeout  # whoever paused it decides how long
                    if not told:
                        told = True
                        warnings.warn(
                            f"job {self._name!r} is paused: next() waits until `larder jobs unpause {self._name}`", PausedWarning, stacklevel=4 + (it.audit is not None)
                        )
                elif time.monotonic() >= deadline:
                    it.since, it.board = begun, None  # the next batch is to end the wait, so it is not taken unseen
                    raise _waits.late(self, s, it, time.monotonic() - start, job)
                else:
                    _waits.tell(self, it, job)
                look = time.monotonic() + _LOOK
                continue
            if f.type == _wire.BATCH and f.batch is not None:
                if f.batch.epoch != it.epoch:
                    s.discard(f)  # of an epoch that was abandoned
                    continue
                it.comes(f, f.batch.step)
                self._report(it, f)
                if it.audit is not None and s.ring is not None:
                    it.audit.comes(s.ring, f.batch)
                if f.batch.rows == 0:
                    s.discard(f)
                    continue
                batch = self._deliver(s, it, f, time.monotonic() - begun)
                it.since = 0.0
                return batch
            if f.type == _wire.EPOCH_END:
                end = _wire.parse_json(f.payload)
                if int(end.get("epoch") or 0) != it.epoch:
                    f.taken = True
                    continue
                if end.get("final") and s.draining is None:  # a daemon that stops is named by the next iter()
                    self._ended = self._final(it.epoch)
                if it.audit is not None:
                    it.audit.ends(end)
                it.done = True
                it.board = None
                self._note_size(it.after)
                f.taken = True
                raise StopIteration
            if f.type == _wire.SEGMENT:
                segment, slot, size = _wire.parse_segment(f.payload)
                assert s.ring is not None
                s.ring.replace(segment, slot, size, os.dup(f.fd))
                f.taken = True
                os.close(f.fd)
                f.fd = -1
                continue
            if f.type == _wire.GONE:
                e = from_detail(_wire.parse_json(f.payload))
                if isinstance(e, JobEndedError):
                    self._ended = e
                f.taken = True
                raise s.fail(e)
            raise _wire.protocol_error(f"{_wire.NAMES[f.type - 1]} in an epoch")

    def _report(self, it: Run, f: Frame) -> None:
        """Notes quarantined samples; with on_error="raise" raises SampleError, once for a batch."""
        assert f.batch is not None
        if it.raised >= f.batch.step or not f.batch.report:
            return
        bad = tuple(Quarantined.from_json(q) for q in f.batch.report.get("quarantined") or ())
        for q in bad:
            self._quarantined.setdefault(q.id, q)
        it.raised = f.batch.step
        if bad and str((self._job.get("spec") or {}).get("onError") or "raise") == "raise":
            raise SampleError(bad)

    def _deliver(self, s: Session, it: Run, f: Frame, waited: float) -> Batch:
        b, ring = f.batch, s.ring
        assert b is not None and ring is not None
        root = ring.root(b)
        values = [ring.array(root, ring.fields[name], b.rows) for name in self._fields]
        # With the batch before, which the loop variable still names, two are held; more means that the caller keeps batches.
        others = len(s.held) - (b.slot in s.held)  # it is there when an earlier next() was interrupted
        keeps = ring.slots - others - 1 < min(2, ring.slots - 2)
        # The root's death gives the slot back, but only once this very lease has taken the frame, in one step below: an interrupt
        # before that leaves the batch to the next next(), and a root that lives on in a traceback can do no harm later.
        lease = s.lease(root, f, b.slot, int(waited * 1e6))
        if keeps:
            values = [_ring.copy(v) for v in values]
        if self._output == "torch":
            values = [_args.to_torch(v) for v in values]
        batch = tuple(values)
        s.held[b.slot] = f
        f.taken = lease  # handed out, and counted before anything is called that an interrupt could end
        self._batches += 1
        self._samples += b.rows
        self._wait_seconds += waited
        if s.board is not None:
            s.board.settle()
            s.board.serve(it)
        if keeps:
            self._copies += 1
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"job {self._name!r}: {others + 1} batches are kept referenced, so the loader hands out copies; "
                    f"drop batches (or copy what you keep), or raise prefetch= (now {ring.slots - 2})",
                    KeptBatchesWarning,
                    stacklevel=5 + (it.audit is not None),
                )
        return batch

    def _known(self) -> None:
        if not self._job:
            with self._lock:
                self._session()

    # ---- life

    def close(self) -> None:
        """Leaves the job in order; calling it again is fine. Batches that are still referenced stay valid."""
        self._closed = True
        _audit.left(self._running, "the loader was closed")
        s = self._box.session
        if s is not None and s.board is not None:
            s.board.stop()
        self._running = None
        leave(self._box)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = " closed" if self._closed else ""
        return f"<larder.Loader{closed} job={self._name!r} rank={self._place.rank}/{self._place.world_size} epoch={self.epoch}>"

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the connection: the copy registers and attaches for itself."""
        state = dict(self.__dict__)
        for k in ("_lock", "_box", "_running", "_iterator"):
            del state[k]
        state["_job"] = {}
        state["_held"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()
        _loaders[:] = [r for r in _loaders if r() is not None] + [weakref.ref(self)]
        self._running = None
        self._client = os.urandom(8).hex()
        self._iterator = None
        self._box = Box()
        watch(self, self._box)
