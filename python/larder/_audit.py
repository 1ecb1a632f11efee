"""LARDER_AUDIT_LOG: a log of what this process received, which `larder audit` checks (docs/format/audit.md).

An observer of epochs (see _run.Observer) writes it: one file per process, one write per record. A batch is noted before
it counts as handed out, with a checksum of its bytes, and again when the step is over, which is when the next batch is
asked for. A batch that was dropped before that has no second checksum, because its memory may be in use again.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
import zlib
from typing import Any

import numpy as np

from . import _clock, _messages, _seat, _wire
from ._lease import Lease
from ._messages import Empty, EpochEnd, JobRequest, Sizes
from ._ring import Ring
from ._run import Run
from ._session import Session
from ._shared import Shared
from ._version import __version__
from .errors import Error, InvalidError

_VERSION = 1
_log: _Log | None = None
_making = threading.Lock()


class _Log:
    """The file of this process."""

    def __init__(self, folder: str) -> None:
        self.pid = os.getpid()
        self.folder = folder
        self.noted = (0, 0)  # lines written, and their bytes; one object, so that no interrupt splits them
        self.runs = 0
        self.lock = threading.Lock()  # Loaders of several threads write to it
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            path = os.path.join(folder, f"audit-{self.pid}-{os.urandom(4).hex()}.log")
            self.file = open(path, "xb", buffering=0, opener=lambda p, flags: os.open(p, flags | os.O_APPEND, 0o600))
            weakref.finalize(self, self.file.close)
        except OSError as e:
            raise InvalidError(
                f"LARDER_AUDIT_LOG={folder}: {e.strerror}",
                subject=folder,
                hint="name a folder that may be written to, or unset it",
            ) from e
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.write(r="log", v=_VERSION, pid=self.pid, client=f"python/{__version__}", boot=boot)

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
                raise InvalidError(
                    f"the audit log in {self.folder} cannot be written: {e.strerror}", subject=self.folder
                ) from e
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
            if isinstance(a, str | bytes):
                crc = zlib.crc32(a.encode() if isinstance(a, str) else a, crc)
            else:
                crc = zlib.crc32(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data, crc)
    return crc


class RunLog:
    """The observer that notes one epoch."""

    def __init__(self, log: _Log, shared: Shared, run: Run, sizes: Sizes) -> None:
        self.log = log
        with log.lock:
            log.runs += 1
            self.number = log.runs
        self.next = 0  # the first step that is not noted
        self.held: tuple[int, Lease, Ring, int] | None = None  # the last batch handed out: step, lease, ring, rows
        job, spec, loaded = shared.job, shared.described, shared.loaded
        base = loaded.token.get("sum") if sizes.get("whole") and loaded is not None else ""
        start = {
            "job": shared.name,
            "id": int(job.get("id") or 0),
            "registered": _seat.identity(job)[1],
            "rank": shared.rank,
            "world": int(spec.get("worldSize") or 1),
            "inc": shared.held.incarnation if shared.held is not None else 0,
            "epoch": run.epoch,
            "n": int(sizes.get("whole") or sizes.get("numSamples") or job.get("subsetSize") or 0),
            "base": str(base or ""),
            "batch": int(spec.get("batchSize") or 0),
            "drop_last": bool(spec.get("dropLast", False)),
            "stream": str(spec.get("order") or "") == "given",
            "even": str(spec.get("even") or ""),
            "on_error": str(spec.get("onError") or ""),
            "dataset": str(spec.get("dataset") or ""),
            **_source(run.session, shared.name, str(spec.get("dataset") or ""), run.epoch),
        }
        indices = (shared.spec or {}).get("indices")
        if indices:  # the daemon does not repeat them
            start["subset"] = f"(indices {zlib.crc32(indices.encode()):08x})"
        log.write(r="epoch", run=self.number, start=start)

    def write(self, kind: str, **record: Any) -> None:
        """Writes a record of this epoch; a forked child does not write into its parent's log."""
        if self.log.pid == os.getpid():
            self.log.write(r=kind, run=self.number, **record)

    def received(self, ring: Ring, header: _wire.BatchHeader) -> None:
        """Notes a batch before it is delivered."""
        root = ring.root(header)
        index = ring.fields.get("index")
        ids = None if index is None else np.asarray(ring.array(root, index, header.rows)).tolist()
        bad = [int(q.get("id") or 0) for q in (header.report or {}).get("quarantined") or ()]
        crc = checksum(ring, root, header.rows)
        self.write("batch", step=header.step, ids=ids, rows=header.rows, bad=bad, hash=crc)
        self.next = header.step + 1

    def handed_out(self, run: Run) -> None:
        """Remembers the batch that is delivered, and notes one that came without a frame."""
        ring = run.session.ring
        frame, _, head, board = run.mark
        lease: Any = None if frame is None else frame.taken
        if board is not None and board.head > head:
            at = board.base + (((board.head - 1) & board.mask) << 6)
            seq, _, generation, slot, rows, epoch, step, rank = board.unpack(board.page, at)
            lease = board.held.get(slot)
            if seq == board.head and ring is not None:
                offset = slot * ring.slot_bytes
                self.received(ring, _wire.BatchHeader(0, slot, generation, offset, epoch, step, rank, rows, None))
                self.held = (step, lease, ring, rows)
            return
        if ring is not None and frame is not None and frame.batch is not None:
            self.held = (frame.batch.step, lease, ring, frame.batch.rows)

    def asked(self, run: Run) -> None:
        """Notes that the step before is over, with the checksum of its batch if it still lives."""
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

    def reconnected(self, step: int) -> None:
        """Notes that another session continues the epoch."""
        self.write("on", step=step)
        self.next = step

    def ended(self, end: EpochEnd) -> None:
        """Notes the end of the epoch, with its account when this rank was the last one."""
        ledger = end.get("account")
        account: dict[str, int | str] | None = None
        if ledger is not None:
            account = {
                "subset": int(ledger.get("subset") or 0),
                "delivered": int(ledger.get("delivered") or 0),
                "quarantined": int(ledger.get("quarantined") or 0),
                "dropped": int(ledger.get("dropped") or 0),
                "removed": int(ledger.get("removed") or 0),
                "state": str(ledger.get("state") or ""),
            }
        self.write("end", batches=int(end.get("batches") or 0), samples=int(end.get("samples") or 0), account=account)

    def abandoned(self, why: str) -> None:
        """Notes that the epoch was abandoned."""
        self.write("left", why=why)

    def saved(self, step: int, token: str | None) -> None:
        """Notes that a state was saved, by the checksum of its token."""
        self.write("saved", step=step, token=token)


def observe(shared: Shared, run: Run, sizes: Sizes) -> RunLog | None:
    """The log of an epoch that begins; None when LARDER_AUDIT_LOG is not set."""
    log = _process()
    return None if log is None else RunLog(log, shared, run, sizes)


def _source(s: Session, job: str, dataset: str, epoch: int) -> dict[str, str]:
    """Where the samples of an epoch come from, as far as the daemon says.

    These calls look at no file: an audit must not be what makes the daemon notice changes.
    """
    try:
        known = s.call(_messages.LIST_DATASETS, Empty(), _clock.monotonic() + 5.0).get("datasets") or []
        about = s.call(_messages.DESCRIBE_JOB, JobRequest(name=job), _clock.monotonic() + 5.0).get("job") or {}
    except Error:
        return {"subset": f"(of epoch {epoch})"}
    spec = about.get("spec") or {}
    subset = str(spec.get("subset") or "")
    if int(about.get("subsetSince") or 0) > epoch:
        subset = f"(of epoch {epoch})"  # another rank has changed it since
    return {
        "subset": subset,
        "fingerprint": next((str(d.get("fingerprint") or "") for d in known if _named(d, dataset)), ""),
    }


def _named(d: _messages.DatasetMessage, dataset: str) -> bool:
    return dataset in (d.get("name"), d.get("uri"))
