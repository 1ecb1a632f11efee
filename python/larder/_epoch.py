"""One epoch from ``iter`` to its end: how it begins, where the next batch comes from, and how it is delivered."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import weakref
from typing import Any, cast

from . import _clock, _connection, _finalizer, _lease, _places, _reconnect, _rescue, _ring, _torch, _unread, _wire
from ._caller import warn
from ._listed import Rows
from ._messages import EpochEnd, Sizes
from ._mix import Mixer
from ._opaque import Unreadable
from ._run import Run
from ._session import Session
from ._shared import Loaded, Shared
from ._stats import Quarantined
from ._stream import Epoch as Stream
from ._stream import Grows, Sampling
from ._waits import Waiting
from ._wire import BatchHeader, Frame
from .errors import DatasetWarning, Error, JobEndedError, KeptBatchesWarning, StaleError, UnavailableError, of_item

_OTHER_SEED = 0x9E3779B97F4A7C15
Batch = Any  # a tuple of the fields; of a dataset in Python, what its items are made of


class Epoch:
    """The iterator of one epoch."""

    __slots__ = ("__weakref__", "run", "shared")

    def __init__(self, shared: Shared, run: Run) -> None:
        self.shared = shared
        self.run = run

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Batch:
        # A batch that is posted and was built ahead is delivered here: no system call, and little code to cache.
        board = self.run.board
        if board is not None:
            shared = self.shared
            with shared.lock:
                run, words = self.run, board.u64
                if board.queue:  # arrays of a batch that was not built ahead are dead
                    run.session.flush()
                if board.died and board.head + board.others >= words[board.tell_at] and board.unread():
                    run.session.tell()
                while True:
                    at = board.first + ((board.head & board.mask) << 3)
                    seq, slot = words[at], words[at + 3]  # and rows
                    if (
                        seq != board.head + 1
                        or words[at + 1] != board.frames
                        or words[at + 4] & 0xFFFFFFFF != run.epoch
                        or slot >> 32 != board.rows
                        or board.frame is not None
                        or board.reader is not run
                        or len(board.held) >= board.most
                    ):
                        break
                    slot &= 0xFFFFFFFF
                    generation = words[at + 2]
                    ready = board.ready.pop(slot, None)
                    if ready is not None:
                        batch, lease = ready
                        lease.generation, lease.post = generation, seq
                        board.held[slot] = lease
                        board.head = seq  # in this step it is taken
                        lease.armed.append(generation)  # if an interrupt comes before this, see Board.reap
                        shared.batches += 1
                        shared.samples += board.rows
                        return batch
                    # Then from the beginning: a signal handler may have taken the post meanwhile.
                    if not board.build(slot):
                        break
        if self.run.done:
            raise StopIteration
        return _next(self.shared, self.run)


class GivenEpoch(Epoch):
    """The iterator of an epoch whose samples the script says; it may have an observer."""

    __slots__ = ()

    def __next__(self) -> Batch:
        if self.run.observer is not None:
            self.run.observer.asked(self.run)
        try:
            batch = self._next()
        except Grows:
            self.run = _grown(self.shared, self.run)
            if self.run.observer is not None:
                self.run.observer.asked(self.run)
            batch = self._next()
        if self.run.observer is not None:
            self.run.observer.handed_out(self.run)
        return batch

    def _next(self) -> Batch:
        run = self.run
        stream = run.stream
        if stream is not None and not run.done and (stream.failed or stream.due(run.next_step())):
            return _next(self.shared, run)
        return super().__next__()


class ObservedEpoch(Epoch):
    """The iterator of an epoch that has an observer."""

    __slots__ = ()

    def __next__(self) -> Batch:
        observer = self.run.observer
        if observer is None:
            return super().__next__()
        observer.asked(self.run)
        batch = super().__next__()
        observer.handed_out(self.run)
        return batch


def begin(shared: Shared) -> Epoch:
    """The iterator of the next epoch; an unfinished one is abandoned."""
    with shared.lock:
        if shared.ended is not None:
            raise shared.ended
        _torch.refuse_worker()
        if shared.place is not None and shared.running is not None:
            shared.begin_at(shared.place)  # it was interrupted when it began
        numbers = (shared.next_epoch, shared.pinned, shared.loaded)

        def start(s: Session) -> Epoch:
            shared.next_epoch, shared.pinned, shared.loaded = numbers
            run = _start(shared, s)
            kind = Epoch if run.observer is None else ObservedEpoch
            it = (GivenEpoch if shared.settings.sampling is not None else kind)(shared, run)
            shared.iterator = weakref.ref(it)
            return it

        it = _connection.outlive(shared, start)
        if shared.settings.sampling is not None:
            _begin_stream(shared, it.run, shared.settings.sampling)
        return it


def _begin_stream(shared: Shared, run: Run, sampling: Sampling) -> None:
    """Begins a pass of the script's sampler, and tells the daemon of its first batches."""
    ring = run.session.ring
    assert ring is not None
    place = shared.place
    run.before = 0 if place is None else place.step
    run.stream = Stream(sampling, run.epoch, ring.slots, place)
    with contextlib.suppress(UnavailableError, Grows):  # next() looks for the daemon again, and replaces the job
        run.stream.tell(run.session, 0, _clock.monotonic() + shared.timeout)
    shared.place = None  # last: an interrupt before this leaves the place to the next iter()


def _grown(shared: Shared, run: Run) -> Run:
    """Continues an epoch in a job of larger batches, which takes the place of the one before."""
    stream, sampling = run.stream, shared.settings.sampling
    assert stream is not None and sampling is not None and shared.spec is not None
    with shared.lock:
        step = run.next_step()
        there = _places.state(run.epoch, run.before + step, sampling.counted, stream.before, stream.picks(step))
        sampling = stream.grow(step)
        run.abandon("its batches have grown")
        run.done = True
        shared.settings = dataclasses.replace(shared.settings, sampling=sampling)
        shared.spec["batchSize"] = sampling.size
        # Its instances are numbered from the beginning: under the seed of before a sample would come as it was.
        shared.spec["seed"] = str((int(shared.spec.get("seed") or 0) + _OTHER_SEED) % 2**64)
        place = _places.place(there)
        shared.begin_at(place)
        new = _connection.outlive(shared, lambda s: _start(shared, s))
        ring = new.session.ring
        assert ring is not None
        new.before, new.stream, stream.most = place.step, stream, 2 * ring.slots
        shared.place = None
        return new


def _start(shared: Shared, s: Session) -> Run:
    if s.draining is not None:
        s.close(s.ring is not None)  # the daemon waits for this; the next iter() looks for its successor
        raise s.draining
    loaded = shared.loaded
    if loaded is not None and loaded.left == 0 and (shared.pinned or 0) <= loaded.epoch:
        return _nothing_left(shared, s, loaded)
    _connection.attach(shared, s)
    if s.board is not None:
        s.board.stop()
    if shared.running is not None:
        shared.running.abandon("another epoch was begun")
        shared.running.done |= shared.delivered(shared.running)  # its iterator ends as it would have
    run = Run(s, shared.coming())
    run.before = loaded.before if loaded is not None and loaded.pending else 0
    schema = shared.job.get("schema") or (shared.spec or {}).get("schema") or {}
    run.mixer = Mixer.of(shared.described, shared.rank, None if shared.form is None else schema.get("fields") or [])
    shared.pinned = None
    shared.next_epoch = run.epoch + 1  # before it is asked for: an interrupt below must not use the number twice
    shared.running = run
    try:
        if shared.makers is not None:
            shared.makers.clear()  # before anything of the epoch is asked for
        what = f"the daemon to start epoch {run.epoch} of job {shared.name!r}"
        deadline = _clock.monotonic() + shared.timeout
        answer = s.request(_wire.EPOCH, _wire.epoch_payload(run.epoch), deadline, what)
        sizes = cast(Sizes, _wire.parse_json(answer.payload))
        shared.note_size(sizes, run.before)
        whole = sizes.get("whole")
        if whole:
            run.after = {"numSamples": whole, "batchesPerEpoch": sizes.get("wholeBatches") or 0}
        run.observer = shared.observe(shared, run, sizes)
        shared.begin_items(s.path)
    except BaseException:
        run.done = True
        raise
    shared.loaded = None
    return run


def _nothing_left(shared: Shared, s: Session, loaded: Loaded) -> Run:
    """The epoch of a state that was saved at its last batch: it ends at once. The job begins with the next one."""
    shared.running = run = Run(s, loaded.epoch)
    run.done = True
    shared.next_epoch, shared.pinned = loaded.epoch + 1, None
    run.observer = shared.observe(shared, run, {"whole": loaded.samples})
    if run.observer is not None:
        run.observer.ended({})
    shared.loaded = loaded._replace(epoch=loaded.epoch + 1, left=-1)
    shared.note_size({"numSamples": loaded.all, "batchesPerEpoch": loaded.whole})
    return run


def _next(shared: Shared, run: Run) -> Batch:
    """The next batch, from another connection when this one has ended."""
    s = run.session
    if s.pid != os.getpid():
        raise StaleError(
            f"this iterator of job {shared.name!r} was made in process {s.pid}",
            subject=shared.name,
            hint="call iter(loader) in this process",
        )
    with shared.lock:
        while True:
            try:
                return _take(shared, s, run)
            except Error as e:
                if e.reason == "PROTOCOL":
                    s.fail(e)
                if not (shared.settings.outlives_daemon and s.lost(e)):
                    raise
            finally:
                if s.board is not None and not run.since:
                    s.board.waits(0.0)
            _reconnect.reconnect(shared, run)
            s = run.session


def _take(shared: Shared, s: Session, run: Run) -> Batch:
    """The next batch of the epoch; handles frames of other kinds on the way."""
    waiting = Waiting(shared, run)
    _finalizer.run_pending()
    s.flush()
    s.look()
    if run.stream is not None and not run.done:
        run.stream.tell(s, run.next_step(), _clock.monotonic() + shared.timeout)
    while True:
        _require_current(shared, s, run)
        f = s.head()
        if f is None:
            waiting.more(s)
        elif f.type == _wire.BATCH and f.batch is not None:
            if f.batch.epoch != run.epoch:
                s.discard(f)  # of an epoch that was abandoned
                continue
            run.expect(f, f.batch.step)
            bad = _bad(f.batch)
            lacking = _rescue.made(shared, run, f.batch, bad)
            if not lacking:
                _report(shared, run, f.batch, bad)
            if run.observer is not None and s.ring is not None:
                run.observer.received(s.ring, f.batch)
            if f.batch.rows == 0:
                s.discard(f)
                if lacking:
                    return _rescue.alone(shared, lacking)
                if run.stream is not None:  # many such batches must not use up the picks that were sent
                    run.stream.tell(s, run.next_step(), _clock.monotonic() + shared.timeout)
                continue
            if _unread.rows(run, f.batch) == []:
                s.discard(f)
                continue
            try:
                batch = _hand_out(shared, run, f, f.batch, waiting.seconds())
            except Unreadable as torn:
                assert s.ring is not None
                _unread.note(shared, run, s.ring, f.batch, torn)
                continue
            run.since = 0.0
            return _rescue.joined(batch, lacking) if lacking else batch
        elif f.type == _wire.EPOCH_END:
            _end(shared, s, run, f)
        elif f.type == _wire.SEGMENT:
            segment, slot, size = _wire.parse_segment(f.payload)
            assert s.ring is not None
            s.ring.replace(segment, slot, size, os.dup(f.fd))
            f.taken = True
            os.close(f.fd)
            f.fd = -1
        elif f.type == _wire.GONE:
            e = _wire.parse_error(f.payload)
            if isinstance(e, JobEndedError):
                shared.ended = e
            f.taken = True
            raise s.fail(e)
        else:
            raise _wire.protocol_error(f"{_wire.NAMES[f.type - 1]} in an epoch")


def _require_current(shared: Shared, s: Session, run: Run) -> None:
    """Raises when the Loader was iterated again or closed, or another client has the rank."""
    if run is not shared.running:
        raise StaleError(
            f"this iterator of job {shared.name!r} (epoch {run.epoch}) ended when the loader was iterated again or "
            "closed, or when a newer Loader of this process took its job",
            subject=shared.name,
            hint="use one iterator at a time; two jobs need two Loaders",
        )
    if s.revoked is not None:
        shared.ended = s.revoked
        raise s.fail(s.revoked)


def _end(shared: Shared, s: Session, run: Run, f: Frame) -> None:
    """Raises StopIteration, unless the EPOCH_END is that of an abandoned epoch."""
    end = cast(EpochEnd, _wire.parse_json(f.payload))
    if int(end.get("epoch") or 0) != run.epoch:
        f.taken = True
        return
    if end.get("final") and s.draining is None:  # a daemon that stops is named by the next iter()
        shared.ended = shared.final(run.epoch)
    if run.observer is not None:
        run.observer.ended(end)
    _say_if_empty(shared, run, end)
    run.done = True
    run.board = None
    shared.note_size(run.after)
    f.taken = True
    raise StopIteration


def _say_if_empty(shared: Shared, run: Run, end: EpochEnd) -> None:
    """Warns of an epoch without a sample: whatever is bad in all of them, a loop over the loader would say nothing."""
    account = end.get("account") or {}
    bad = int(account.get("quarantined") or 0)
    if int(account.get("delivered") or 0) == 0 and bad > 0 and shared.quarantined:
        first = next(iter(shared.quarantined.values()))
        warn(
            f"job {shared.name!r}: none of the {bad} samples of epoch {run.epoch} could be prepared; the first, "
            f"{first.key}: {first.reason}",
            DatasetWarning,
        )


def _bad(b: BatchHeader) -> tuple[Quarantined, ...]:
    """The quarantined samples of a batch."""
    return tuple(Quarantined.from_json(q) for q in (b.report or {}).get("quarantined") or ())


def _report(shared: Shared, run: Run, b: BatchHeader, bad: tuple[Quarantined, ...]) -> None:
    """Notes quarantined samples; with on_error="raise" raises SampleError, once for a batch."""
    if run.raised >= b.step or not b.report:
        return
    shared.note_bad(bad)
    run.raised = b.step
    if bad and shared.on_error == "raise":
        makers, base = shared.resources.makers, None if shared.plan is None else shared.plan.part.base
        cause = None if makers is None else makers.cause(bad[0].id)
        raise of_item(bad, type(cause) if cause is not None else _kind(bad[0].reason, base)) from cause


def _kind(reason: str, base: Any) -> type[BaseException] | None:
    """The class of the exception that a worker names, where Python or the dataset's module has it."""
    name = reason.partition(":")[0]
    for module in ("builtins", type(base).__module__, "__main__"):
        found = getattr(sys.modules.get(module), name, None)
        if base is not None and isinstance(found, type) and issubclass(found, BaseException):
            return found
    return None


def _hand_out(shared: Shared, run: Run, f: Frame, b: BatchHeader, waited: float) -> Batch:
    """Wraps a batch that came as a frame, or was looked at as one, and counts it as delivered."""
    s = run.session
    ring = s.ring
    assert ring is not None
    root = ring.root(b)
    values = [ring.array(root, ring.fields[name], b.rows) for name in shared.settings.fields]
    # With the batch before, which the loop variable still names, two are held; more: the caller keeps batches.
    others = len(s.held) - (b.slot in s.held)  # it is there when an earlier next() was interrupted
    keeps = run.mixer is None and ring.slots - others - 1 < min(2, ring.slots - 2)
    # The root's death releases the slot, but only once this very lease has taken the frame, in one step below: an
    # interrupt before that leaves the batch to the next next(), and a root that lives on in a traceback does no harm.
    lease = _lease.watch(s.queue, root, f, b.slot, int(waited * 1e6))
    if run.mixer is not None:  # into memory of its own; the slot is released with the root, at the end of this call
        hwc = shared.form is None and ring.fields["image"].hwc
        values = run.mixer.mix(shared.settings.fields, values, hwc, run.epoch, run.before + b.step)
    elif keeps:
        values = [_ring.copy(v) for v in values]
    if isinstance(shared.form, Rows) and shared.form.given and run.stream is not None:
        values[-1] = run.stream.numbers(b.step, values[-1])
    if shared.form is not None:
        rows = _unread.rows(run, b)
        values = values if rows is None else _unread.left(values, rows)
        batch: Batch = shared.form.make(values, b.rows if rows is None else len(rows))
    else:
        if shared.settings.output == "torch":
            values = [_torch.tensors(v) for v in values]
        batch = tuple(values)
    s.held[b.slot] = f
    f.taken = lease  # handed out, and counted before anything is called that an interrupt could end
    shared.batches += 1
    shared.samples += b.rows
    shared.wait_seconds += waited
    if s.board is not None:
        s.board.others += f.number > 0
        s.board.settle()
        if run.mixer is None and (shared.form is None or shared.form.ahead):
            s.board.serve(run)
    if keeps:
        shared.copies += 1
        if not shared.warned_of_kept_batches:
            shared.warned_of_kept_batches = True
            warn(
                f"job {shared.name!r}: {others + 1} batches are kept referenced, so the loader hands out copies; "
                f"drop batches (or copy what you keep), or raise prefetch= (now {ring.slots - 2}; of a DataLoader: "
                "prefetch_factor= with num_workers=)",
                KeptBatchesWarning,
            )
    return batch
