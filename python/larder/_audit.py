"""LARDER_AUDIT_LOG: a log of what this process was given, for `larder audit`, which believes nobody else. docs/format/audit.md has the form.

One file per process, one write per record. A batch is noted before it counts as handed out, with a checksum of its bytes, and again when the
step is over, which is when the next one is asked for; a batch that was dropped before has no second checksum, for its memory may be in use.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _parts, _restart, _wire
from ._version import __version__
from .errors import Error, InvalidError

if TYPE_CHECKING:
    from ._loader import Batch, Loader
    from ._parts import Run
    from ._ring import Ring
    from ._session import Lease, Session

_VERSION = 1
_log: _Log | None = None
_making = threading.Lock()


class _Log:
    """The file of this process."""

    def __init__(self, folder: str) -> None:
        self.pid = os.getpid()
        self.folder = folder
        self.noted = (0, 0)  # lines that are written, and their bytes; one object, so that no interrupt comes between the two
        self.runs = 0
        self.lock = threading.Lock()  # Loaders of several threads write to it
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            path = os.path.join(folder, f"audit-{self.pid}-{os.urandom(4).hex()}.log")
            self.file = open(path, "xb", buffering=0, opener=lambda p, flags: os.open(p, flags | os.O_APPEND, 0o600))
            weakref.finalize(self, self.file.close)
        except OSError as e:
            raise InvalidError(
                f"LARDER_AUDIT_LOG={folder}: {e.strerror}", subject=folder, hint="name a folder that may be written to, or unset it"
            ) from e
        self.write(r="log", v=_VERSION, pid=self.pid, client=f"python/{__version__}", boot=time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def write(self, **record: Any) -> None:
        """Appends a record."""
        with self.lock:
            lines, size = self.noted
            now = os.fstat(self.file.fileno()).st_size
            if now != size:  # an interrupt came when the line before was written and not noted
                lines += 1
            body = json.dumps({"i": lines + 1, **record}, separators=(",", ":")).encode()
            line = b"%08x %s\n" % (zlib.crc32(body), body)
            try:
                if self.file.write(line) != len(line):
                    raise OSError(0, "the disk is full")
            except OSError as e:
                raise InvalidError(f"the audit log in {self.folder} cannot be written: {e.strerror}", subject=self.folder) from e
            self.noted = (lines + 1, now + len(line))


def _process() -> _Log | None:
    """The log of this process; a forked child has one of its own."""
    global _log
    folder = os.environ.get("LARDER_AUDIT_LOG")
    if not folder:
        return None
    with _making:  # Loaders of several threads begin at once
        if _log is None or _log.pid != os.getpid() or _log.folder != folder:
            _log = _Log(folder)
        return _log


def _forked() -> None:
    """Another thread may have been making a log when this child was forked."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def checksum(ring: Ring, root: Any, rows: int) -> int:
    """CRC-32 of the values of a batch: field by field as the ring lists them, row by row, as C arrays."""
    crc = 0
    for f in ring.fields.values():
        value = ring.array(root, f, rows)
        for a in value if isinstance(value, list) else (value,):
            crc = zlib.crc32(np.ascontiguousarray(a).reshape(-1).view(np.uint8), crc)
    return crc


class RunLog:
    """What is noted of one epoch."""

    def __init__(self, log: _Log, loader: Loader, run: Run, answer: dict[str, Any]) -> None:
        self.log = log
        with log.lock:
            log.runs += 1
            self.number = log.runs
        self.next = 0  # the first step that is not noted
        self.held: tuple[int, Lease, Ring, int] | None = None  # the batch that was returned last: its step, and its rows
        job = loader._job
        spec = job.get("spec") or {}
        start = {
            "job": loader._name,
            "id": int(job.get("id") or 0),
            "registered": _restart.identity(job)[1],
            "rank": loader._place.rank,
            "world": int(spec.get("worldSize") or 1),
            "inc": loader._held.incarnation if loader._held is not None else 0,
            "epoch": run.epoch,
            "n": int(answer.get("whole") or answer.get("numSamples") or job.get("subsetSize") or 0),
            "base": str(json.loads(loader._loaded.text).get("sum") or "") if answer.get("whole") and loader._loaded is not None else "",
            "batch": int(spec.get("batchSize") or 0),
            "drop_last": bool(spec.get("dropLast", False)),
            "even": str(spec.get("even") or ""),
            "on_error": str(spec.get("onError") or ""),
            "dataset": str(spec.get("dataset") or ""),
            **_source(run.session, loader._name, str(spec.get("dataset") or ""), run.epoch),
        }
        log.write(r="epoch", run=self.number, start=start)

    def write(self, kind: str, **record: Any) -> None:
        """Notes something of this epoch; in a forked child it is not this process's to note."""
        if self.log.pid == os.getpid():
            self.log.write(r=kind, run=self.number, **record)

    def comes(self, ring: Ring, header: _wire.BatchHeader) -> None:
        """Notes a batch as received."""
        root = ring.root(header)
        index = ring.fields.get("index")
        ids = None if index is None else np.asarray(ring.array(root, index, header.rows)).tolist()
        bad = [int(q.get("id") or 0) for q in (header.report or {}).get("quarantined") or ()]
        self.write("batch", step=header.step, ids=ids, rows=header.rows, bad=bad, hash=checksum(ring, root, header.rows))
        self.next = header.step + 1

    def returned(self, run: Run) -> None:
        """Remembers the batch that was handed out now, and notes one that came without a frame."""
        ring = run.session.ring
        frame, _, head, board = run.mark
        lease: Any = None if frame is None else frame.taken
        if board is not None and board.head > head:
            seq, _, generation, slot, rows, epoch, step, rank = board.unpack(board.page, board.base + (((board.head - 1) & board.mask) << 6))
            lease = board.held.get(slot)
            if seq == board.head and ring is not None:
                self.comes(ring, _wire.BatchHeader(0, slot, generation, slot * ring.slot_bytes, epoch, step, rank, rows, None))
                self.held = (step, lease, ring, rows)
            return
        if ring is not None and frame is not None and frame.batch is not None:
            self.held = (frame.batch.step, lease, ring, frame.batch.rows)

    def over(self, run: Run) -> None:
        """The step is over: the next batch was asked for."""
        held, self.held = self.held, None
        if held is not None:
            step, lease, ring, rows = held
            root = lease() if callable(lease) else None
            if root is None:
                self.write("done", step=step)
            else:
                self.write("done", step=step, hash=checksum(ring, root, rows))
        if run.next_step() > self.next and not run.done:
            self.write("missed", step=self.next, to=run.next_step())
            self.next = run.next_step()

    def goes_on(self, step: int) -> None:
        """The same epoch goes on with another session."""
        self.write("on", step=step)
        self.next = step

    def ends(self, end: dict[str, Any]) -> None:
        """The epoch is complete."""
        account = end.get("account")
        if account is not None:
            names = ("subset", "delivered", "quarantined", "dropped", "removed")
            account = {**{k: int(account.get(k) or 0) for k in names}, "state": str(account.get("state") or "")}
        self.write("end", batches=int(end.get("batches") or 0), samples=int(end.get("samples") or 0), account=account)

    def left(self, why: str) -> None:
        """The epoch was given up."""
        self.write("left", why=why)


class Epoch(_parts.Epoch):
    """The iterator of an epoch that is logged."""

    __slots__ = ()

    def __next__(self) -> Batch:
        log: RunLog = self._run.audit  # type: ignore[assignment]
        log.over(self._run)
        batch = super().__next__()
        log.returned(self._run)
        return batch


def begin(loader: Loader, run: Run, answer: dict[str, Any]) -> RunLog | None:
    """The log of an epoch that begins; None when LARDER_AUDIT_LOG is not set."""
    log = _process()
    return None if log is None else RunLog(log, loader, run, answer)


def left(run: Run | None, why: str) -> None:
    """Notes that an epoch is given up, if one runs and is logged."""
    if run is not None and run.audit is not None and not run.done:
        run.audit.left(why)


def _source(s: Session, job: str, dataset: str, epoch: int) -> dict[str, str]:
    """Where the samples of an epoch come from, as far as the daemon says. These calls look at no file: an audit must not have changes noticed."""
    try:
        known = s.call("ListDatasets", {}, time.monotonic() + 5.0).get("datasets") or []
        about = s.call("DescribeJob", {"name": job}, time.monotonic() + 5.0).get("job") or {}
    except Error:
        return {"subset": f"(of epoch {epoch})"}
    subset = str((about.get("spec") or {}).get("subset") or "")
    if int(about.get("subsetSince") or 0) > epoch:
        subset = f"(of epoch {epoch})"  # another rank has changed it since
    return {
        "subset": subset,
        "fingerprint": next((str(d.get("fingerprint") or "") for d in known if dataset in (d.get("name"), d.get("uri"))), ""),
    }
