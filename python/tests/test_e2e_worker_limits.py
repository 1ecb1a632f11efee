"""What worker processes may take: bytes of a record and of their own memory, and time; on the real daemon."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import mmap
import os
import re
import threading
import warnings

import numpy as np
import pytest
from function_items import Items, Made
from real import PATIENCE, Daemon, night

import larder
from larder import _alike, _nested, _record, _units

pytestmark = [pytest.mark.filterwarnings(f"ignore::larder.{w}") for w in ("NotSharedWarning", "WorkerWarning")] + [
    pytest.mark.filterwarnings("ignore::larder.KeptBatchesWarning")
]
ODD = 4  # none of the items that are looked at first


@pytest.fixture
def limited(tmp_path):
    """A Loader on a daemon whose largest record is given."""
    made = []

    def start(limit, dataset, **kw):
        daemon = Daemon(tmp_path / f"limited{len(made)}", config=f"workers: {{max_record: {limit}}}\n")
        made.append((daemon, None))
        loader = larder.Loader(dataset, endpoint=daemon.socket, timeout=PATIENCE, on_error="skip", **kw)
        made[-1] = (daemon, loader)
        return daemon, loader

    yield start
    for daemon, loader in made:
        if loader is not None:
            loader.close()
        daemon.stop()


def zeros(shape):
    """An array whose memory is one byte."""
    return np.broadcast_to(np.zeros(1, np.uint8), shape)


def peak(pid):
    """The most bytes that a process has had in memory."""
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1]) << 10


GIVEN, AUTO = ("1MiB", (16, 1 << 20), "16MiB"), ("auto", (3, 1 << 30), "3GiB")


@pytest.mark.parametrize(
    ("limit", "shape", "size", "workers"),
    [(*GIVEN, 0), (*AUTO, 2), (*GIVEN, 1), *night((*AUTO, 0), (*GIVEN, 2), (*AUTO, 1))],
)
def test_a_record_that_is_too_large_is_refused_before_it_takes_memory(limited, limit, shape, size, workers):
    dataset = Items(14, lambda i: {"x": zeros(shape if i == ODD else (1, 5)), "y": i})
    daemon, loader = limited(limit, dataset, batch_size=7, num_workers=workers, ragged="list")
    batches = iter(loader)
    got = next(batches)["y"].tolist()
    crew = loader._shared.makers.crew
    pids = [m.process.pid for m in crew.members] if crew else []
    for batch in batches:
        got += batch["y"].tolist()
    assert sorted(got) == [i for i in range(14) if i != ODD]
    (bad,) = loader.quarantined
    assert bad.id == ODD
    assert f"a record of {size}, and" in bad.reason and "are the most (workers.max_record)" in bad.reason
    assert f"field x of uint8 has shape {list(shape)}, {size}" in bad.reason
    assert "a worker ended" not in daemon.log.read_text()
    if crew:
        assert pids == [m.process.pid for m in crew.members], "no worker was lost to it"
        assert max(map(peak, pids)) < 1 << 30


@pytest.mark.parametrize(
    ("limit", "bytes_", "workers"),
    [
        *(("1MiB", 1 << 20, 2), ("100001", 100_001, 0), ("1KiB", 1 << 10, 2)),
        *night(("1MiB", 1 << 20, 0), ("100001", 100_001, 2), ("1KiB", 1 << 10, 0)),
    ],
)
def test_records_up_to_the_limit_arrive(limited, limit, bytes_, workers):
    """Also where four of them are more than the memory of a worker may have."""
    most = bytes_ // 64 * 64 - 64  # behind the header

    def make(i):
        return np.random.default_rng(i).integers(0, 255, most + (i == ODD), np.uint8)

    _, loader = limited(limit, Items(20, make), batch_size=4, num_workers=workers, ragged="list", return_index=True)
    for _ in range(2):
        rows = (row for xs, ids in loader for row in zip(xs, ids.tolist(), strict=True))
        got = {i: hashlib.blake2b(x.copy()).digest() for x, i in rows}
        assert got == {i: hashlib.blake2b(make(i)).digest() for i in range(20) if i != ODD}
    assert [q.id for q in loader.quarantined] == [ODD]


@pytest.mark.parametrize("workers", [2, *night(1)])
def test_an_item_that_grows_is_left_out_and_says_so(real, tmp_path, workers):
    tried = tmp_path / "tried"
    kept = []

    def hoard(i):
        with open(tried, "a") as f:
            f.write("x")
        for _ in range(40):
            kept.append(np.ones(5_000_000, np.uint8))
        event = threading.Event()
        event.wait(PATIENCE)
        return i

    def grown(number):
        kept.append(np.ones(150_000_000, np.uint8))  # what it has before its items is not counted

    dataset = Items(16, lambda i: hoard(i) if i == ODD else i)
    loader = real(dataset, batch_size=4, num_workers=workers, worker_memory=100_000_000, worker_init_fn=grown,
                  on_error="skip")  # fmt: skip
    got = [int(x) for b in loader for x in b]
    assert sorted(got) == [i for i in range(16) if i != ODD], "all others, once each"
    (bad,) = loader.quarantined
    assert bad.id == ODD
    assert re.search(r"the process grew by [\d.]+[MG]iB, and worker_memory is 95.4MiB", bad.reason), bad.reason
    assert bad.traceback.startswith("Stack (most recent call last):") and "in hoard" in bad.traceback
    assert tried.read_text() == "xx", "once more, elsewhere"


def locked_twice(library, folder):
    """Waits in C code without end; the first word of the file that is made is 2 from then on."""
    lock = library(None).pthread_mutex_lock
    with open(folder / f"{os.getpid()}.mutex", "w+b") as f:
        f.truncate(mmap.PAGESIZE)
        mutex = (ctypes.c_char * 128).from_buffer(mmap.mmap(f.fileno(), mmap.PAGESIZE))
    return [lock(mutex), lock(mutex)]


def all_but_one(loader, said):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert sorted(int(x) for b in loader for x in b) == [i for i in range(16) if i != ODD]
    said += [str(w.message) for w in caught if w.category is larder.WorkerWarning]
    (bad,) = loader.quarantined
    assert bad.id == ODD and "sample_timeout" in bad.reason
    return bad


def test_an_item_that_hangs_in_c_says_where(private, tmp_path, clock):
    """Python code runs beside it. No worker is lost."""
    made, said = Made(tmp_path), []

    def stuck(i):
        return locked_twice(ctypes.CDLL, tmp_path)

    def hangs(times):
        words = [int.from_bytes(p.read_bytes()[:4], "little") for p in tmp_path.glob("*.mutex")]
        return words.count(2) > times and made.hangs(ODD, times, clock)

    dataset = Items(16, lambda i: stuck(i) if made.note(i) == ODD else i)
    daemon = private("", "--clock", clock.address)
    kw = {"batch_size": 4, "num_workers": 2, "sample_timeout": 3600.0, "on_error": "skip", "timeout": 1e6}
    with larder.Loader(dataset, endpoint=daemon.socket, **kw) as loader:
        with clock.stepping(4501, hangs):  # the worker ends itself after 1.25 times as long, and half a second
            bad = all_but_one(loader, said)
        assert "in stuck" in bad.traceback
    (why,) = said
    assert "killed by SIGVTALRM" not in why


def test_an_item_that_keeps_the_interpreter_says_where(real, tmp_path):
    """PyDLL keeps the interpreter to itself. No worker is lost. The kernel decides this one, by its own clock."""
    said = []

    def stuck(i):
        return locked_twice(ctypes.PyDLL, tmp_path)

    dataset = Items(16, lambda i: stuck(i) if i == ODD else i)
    bad = all_but_one(real(dataset, batch_size=4, num_workers=2, sample_timeout=2.0, on_error="skip"), said)
    assert "in stuck" in bad.traceback
    (why,) = said
    assert "killed by SIGVTALRM; C code in its item let no Python code run" in why


def test_an_item_that_hangs_in_python_has_its_traceback(real, tmp_path, clock):
    made = Made(tmp_path)

    def stuck(i):
        made.note(i)
        threading.Event().wait()

    dataset = Items(16, lambda i: stuck(i) if i == ODD else made.note(i))
    loader = real(dataset, batch_size=4, num_workers=2, sample_timeout=3600.0, on_error="skip", timeout=1e6)
    with clock.stepping(3600, lambda steps: made.hangs(ODD, steps, clock)):
        assert sorted(int(x) for b in loader for x in b) == [i for i in range(16) if i != ODD]
    (bad,) = loader.quarantined
    hung = r"Hung: the item took longer than sample_timeout \(3600 s\); it was tried [23] times"
    assert re.fullmatch(hung, bad.reason)
    assert "in stuck" in bad.traceback


def test_worker_memory_needs_workers(real):
    with pytest.raises(larder.InvalidError, match="worker_memory limits worker processes, and num_workers=0"):
        real(list(range(8)), batch_size=4, num_workers=0, worker_memory=1 << 30)


# ---- parts


def test_the_digest_of_a_record_is_that_of_its_bytes(monkeypatch):
    monkeypatch.setattr(_record, "_PART", 64)
    big = np.arange(3000, dtype=np.int16).reshape(10, 30, 10)
    arrays = [
        *(big, big.T, big[::2, ::-1], big[:0], np.broadcast_to(np.float32(2.5), (7, 9)), np.zeros((), np.uint8)),
        *(np.arange(500)[::-1], np.broadcast_to(np.arange(3), (40, 3)), np.ones(9, bool), big.astype(">i2").T),
    ]
    for n in (1, 2, 3):
        for values in itertools.combinations(arrays, n):
            leaves = [_nested.flatten(x)[0][0] for x in (*values, "text")]
            record = bytearray(_record.size(leaves))
            _record.write(leaves, record)
            assert _record.digest(leaves) == hashlib.blake2b(record, digest_size=16).hexdigest()


def test_what_is_too_large_is_compared_by_its_form():
    structure = _nested.flatten(np.zeros(3))[1]
    kept = _alike.copy(zeros((3, 1 << 30)), structure, 1 << 20)
    assert kept[0][3] is None, "no copy was made"
    assert _alike.same(zeros((3, 1 << 30)), kept, structure) and not _alike.same(zeros((2, 5)), kept, structure)


def test_sizes_are_written_as_the_daemon_writes_them():
    sizes = {0: "0B", 512: "512B", 1536: "1.5KiB", 12_900_000: "12.3MiB", 3 << 30: "3GiB", 900 << 30: "900GiB"}
    assert {n: _units.size(n) for n in sizes} == sizes
