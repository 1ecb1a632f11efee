"""The real daemon is killed in the midst of epochs and started again on the same socket and state.dir: its clients go
on by themselves.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import eventually
from lives import record
from pace import pace
from real import HERE, NIGHTLY, PATIENCE, bugs, draw, find_binary, night, pillow
from s3 import pack

import larder
from larder import _connection, _rivals, _session

pillow()

KILLS = int(os.environ.get("LARDER_KILLS", "12" if NIGHTLY else "6"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("restart"), 6, 18)


JOBS = {
    "tape": {"seed": 3, "batch_size": 4},
    "strict": {"seed": 5, "batch_size": 5, "order": "strict", "subset": "label < 4"},
    "fixed": {"seed": 7, "batch_size": 3, "order": "fixed", "subset": "id >= 30"},
    "ranks": {"seed": 9, "batch_size": 4, "world_size": 2},
}
SAMPLES = {"tape": range(108), "strict": range(72), "fixed": range(30, 108), "ranks": range(108)}
EPOCHS = 4


class Training:
    """All jobs, a thread for each rank; `got` is what they saw."""

    def __init__(self, make, lives, uri, rng):
        self.got = {name: [[] for _ in range(EPOCHS)] for name in JOBS}
        self.count, self.running, self.failed = 0, 0, []
        self.changed = threading.Condition()
        self.threads = []
        for name, kw in JOBS.items():
            for rank in range(kw.get("world_size", 1)):
                place = {"rank": rank} if "world_size" in kw else {}
                loader = make(lives, uri, job=name, **kw, **place)
                self.threads.append(
                    threading.Thread(target=self.train, args=(name, loader, random.Random(rng.random())))
                )
        self.running = len(self.threads)
        for t in self.threads:
            t.start()

    def train(self, name, loader, rng):
        try:
            kept = None
            for epoch in range(EPOCHS):
                for batch in loader:
                    r = record(batch)
                    if kept:
                        assert record(kept[0]) == kept[1], "a batch that is held has changed"
                    kept = (batch, r)
                    del batch
                    with self.changed:
                        self.got[name][epoch].append(r)
                        self.count += 1
                        self.changed.notify()
                    pace(rng.choice((0.0, 0.002, 0.01)))
            del kept
            loader.close()
        except BaseException as e:
            self.failed.append((name, e))
            raise
        finally:
            with self.changed:
                self.running -= 1
                self.changed.notify()

    def wait(self, batches):
        """Waits until so many batches came; False when no process trains any more."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.count >= batches or self.failed or not self.running, PATIENCE)
        return self.running and not self.failed

    def end(self):
        for t in self.threads:
            t.join(PATIENCE)
        assert not self.failed and not any(t.is_alive() for t in self.threads), self.failed
        return self.got


@pytest.mark.parametrize("seed", [int(s) for s in os.environ.get("LARDER_SEEDS", "1").split()])
def test_killed_at_random_moments(seed, folder, lives, loads):
    uri, rng = f"imagefolder:{folder}", random.Random(seed)
    whole = Training(loads, lives("quiet", "none"), uri, rng).end()  # what an undisturbed daemon gives
    total = sum(len(e) for w in whole.values() for e in w)
    shaken = lives("shaken")
    training, kills = Training(loads, shaken, uri, rng), 0
    while kills < KILLS and training.wait(
        training.count + rng.randint(0, 2 * (total - training.count) // (KILLS - kills + 2))
    ):
        pace(rng.choice((0.0, 0.001, 0.02)))
        shaken.kill()
        kills += 1
        pace(rng.choice((0.0, 0.0, 0.05)))
        shaken.start()
    got = training.end()
    assert kills >= min(10, KILLS * 5 // 6)
    for name in JOBS:
        for epoch in range(EPOCHS):
            batches, want = got[name][epoch], whole[name][epoch]
            assert sorted(map(len, batches)) == sorted(map(len, want)), (name, epoch)
            flat = [x for b in batches for x in b]
            assert sorted(x[0] for x in flat) == list(SAMPLES[name]), (name, epoch)
            assert sorted(flat) == sorted(x for b in want for x in b), "other bytes"
            if name == "fixed":
                assert batches == want
    assert not bugs(shaken.daemon.log.read_text())


def unread(loader):
    """What lies posted in the ring and was not handed out, by step."""
    s = loader._shared.resources.session
    board, out = s.board, {}
    seq = board.head + 1
    while True:
        n, _, _, slot, rows, epoch, step, _ = board.unpack(board.page, board.base + ((seq - 1 & board.mask) << 6))
        if n != seq:
            return out
        root = np.frombuffer(board.page, dtype=np.uint8, count=s.ring.slot_bytes, offset=slot * s.ring.slot_bytes)
        out[epoch, step] = record([s.ring.array(root, s.ring.fields[f], rows) for f in ("image", "label", "index")])
        seq += 1


@pytest.mark.parametrize("order", ["stratified", *night("strict", "fixed")])
def test_what_was_given_out_comes_again_under_its_number(order, folder, lives, loads):
    d = lives()
    loader = loads(d, f"imagefolder:{folder}", order=order, job="again", prefetch=4)
    again = 0
    for epoch in range(2):
        got, it = [], iter(loader)
        while True:
            batch = next(it, None)
            if batch is None:
                break
            got.append(record(batch))
            if len(got) in (1, 9, 27):
                before = {}
                while not before and len(got) < 27:
                    before = unread(loader)
                was = record(batch)
                d.restart(politely=len(got) == 9 or epoch == 1)
                assert record(batch) == was
                for (e, step), want in sorted(before.items()):
                    assert (e, step) == (epoch, len(got))
                    del batch
                    batch = next(it)
                    got.append(record(batch))
                    assert got[-1] == want
                    again += 1
        assert sorted(i for b in got for i, _, _ in b) == list(range(108))
    assert again >= 4
    next(iter(loader))  # if the end of the epoch came before the daemon died, its successor hears of it now
    stats = loader.stats()
    assert [(e.state, e.delivered) for e in stats.job.epochs if e.epoch == 1] == [("complete", 108)]
    assert stats.client.batches == 55


@pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
def test_an_order_of_blocks_goes_on(folder, tmp_path, lives, loads):
    """Each sample once an epoch, though the daemon dies: what was given out, and then blocks of what is left."""
    d = lives()
    uri = f"wds:{pack(folder, tmp_path / 'tars', 3)}"
    loader = loads(d, uri, order="blocks(3, 16KiB)", job="blocks", prefetch=3)
    for epoch in range(2):
        ids = []
        for n, batch in enumerate(loader):
            ids += [i for i, _, _ in record(batch)]
            if n in (2, 11, 20):
                d.restart(politely=n == 11 or epoch == 1)
        assert sorted(ids) == list(range(108))
        assert ids != sorted(ids)


@pytest.mark.parametrize("politely", [False, True])
def test_killed_between_epochs_and_before_the_first(politely, folder, lives, loads):
    d = lives()
    loader = loads(d, f"imagefolder:{folder}", job="between")
    d.restart(politely)
    for _ in range(2):
        assert sorted(i for *_, x in loader for i in x.tolist()) == list(range(108))
        d.restart(politely)
    loader.set_subset("label < 2")
    d.restart(politely)
    it = iter(loader)
    got = next(it)[-1].tolist()
    assert len(loader) == 9
    d.restart(politely)
    assert loader.stats().job.name == "between", "anything may be asked before the epoch continues"
    assert len(loader) == 9
    got += [i for *_, x in it for i in x.tolist()]
    assert sorted(got) == list(range(36))
    assert loader.epoch == 3


def test_a_loader_that_is_made_while_its_daemon_is_away(folder, lives, loads):
    """It waits for the next daemon, as next() does; where there never was one, and with "raise", it says so at once."""
    d, uri = lives(), f"imagefolder:{folder}"
    d.kill()
    with pytest.raises(larder.UnavailableError, match="no larder daemon answers"):
        loads(d, uri, job="impatient", on_daemon_loss="raise")
    with pytest.raises(larder.UnavailableError, match="no larder daemon answers"):
        loads(d, uri, job="none", endpoint=f"{d.socket}.never")
    refused, rest = threading.Event(), _connection.Outage.rest

    def rested(outage, error):
        refused.set()
        rest(outage, error)

    with pytest.MonkeyPatch.context() as patch, concurrent.futures.ThreadPoolExecutor(1) as pool:
        patch.setattr(_connection.Outage, "rest", rested)
        made = pool.submit(loads, d, uri, job="away")
        assert refused.wait(PATIENCE)
        d.start()
        assert sorted(i for *_, x in made.result(PATIENCE) for i in x.tolist()) == list(range(108))


def test_killed_while_loaders_are_made(folder, lives, loads):
    """Before any call of the constructor: each Loader is made, by this daemon or the next, and has its epoch."""
    d, real, calls, reached = lives(), _session.Session.call, itertools.count(), threading.Event()

    def call(session, *args, **kw):
        if next(calls) == n % 5:
            reached.set()
        return real(session, *args, **kw)

    with pytest.MonkeyPatch.context() as patch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        patch.setattr(_session.Session, "call", call)
        for n in range(KILLS):
            calls = itertools.count()
            reached.clear()
            made = [pool.submit(loads, d, f"imagefolder:{folder}", job=f"made{n}-{i}") for i in range(2)]
            for future in made:
                future.add_done_callback(lambda _: reached.set())
            assert reached.wait(PATIENCE)
            d.restart()
            for loader in made:
                assert sorted(i for *_, x in loader.result(PATIENCE) for i in x.tolist()) == list(range(108))


def test_ranks_continue(folder, lives, loads):
    d = lives()
    uri = f"imagefolder:{folder}"
    ranks = [loads(d, uri, job="ranks", rank=r, world_size=2, order=None) for r in range(2)]
    for epoch in range(3):
        its = [iter(x) for x in ranks]
        got, steps = [], 0
        while any(its):
            steps += 1
            for r in range(2):
                if its[r] is not None and (steps + r) % 3:
                    batch = next(its[r], None)
                    if batch is None:
                        its[r] = None
                    else:
                        got += batch[-1].tolist()
            if steps in (2, 7 + epoch, 19):
                d.restart()
        assert sorted(got) == list(range(108)), epoch


def test_waits_as_long_as_configured(folder, lives, loads):
    d = lives()
    loader = loads(d, f"imagefolder:{folder}", job="patient")
    it = iter(loader)
    got = [record(next(it))]
    d.kill()
    loader._shared.timeout = 0.3
    for _ in range(2):
        with pytest.raises(larder.UnavailableError, match=r"waited 0.3 s for the larder daemon") as e:
            for _ in range(20):
                got.append(record(next(it)))
        assert "state.dir" in e.value.hint and d.socket in str(e.value)
    d.start()
    loader._shared.timeout = PATIENCE
    got += [record(b) for b in it]
    assert sorted(i for b in got for i, _, _ in b) == list(range(108))
    d.kill()
    loader._shared.timeout = 0.3
    with pytest.raises(larder.UnavailableError, match=r"waited 0.3 s"):
        iter(loader)
    d.start()
    loader._shared.timeout = PATIENCE
    assert sum(1 for _ in loader) == 27


def cut(loader):
    """Ends the connection; the daemon lives."""
    s = loader._shared.resources.session
    if s._sock is not None:  # else the cut before is yet to be heard of
        s._sock.shutdown(socket.SHUT_RDWR)


def lose(loader):
    """Ends the connection for the client alone: for the daemon it seems to live on. Returns what keeps it open."""
    s = loader._shared.resources.session
    if s._sock is None:
        return None
    kept = os.dup(s._sock.fileno())
    s.fail(s._died(None))
    return kept


@pytest.mark.parametrize(
    ("restarts", "order"),
    [(0, "fixed"), (1, "stratified"), *night((0, "stratified"), (0, None), (1, "fixed"), (1, None))],
)
def test_a_cut_connection_is_gone_on_with(restarts, order, folder, lives, loads):
    """With the very next batch, however often it is cut, and also before the daemon has seen it; no epoch is begun
    afresh.
    """
    d = lives()
    loader = loads(
        d, f"imagefolder:{folder}", job="cut", batch_size=2, prefetch=2, shuffle=order is not None, order=order
    )
    rng = random.Random(7)
    for epoch in range(4):
        it, got, held, open_fds = iter(loader), [], [], []
        cuts = {rng.randrange(54): rng.choice([cut, lose]) for _ in range(6)} | {0: lose, 53: cut}
        for _ in range(restarts):
            got.append(next(it)[-1].tolist())
            d.restart()
        while True:
            how = cuts.pop(len(got), None)
            if how is not None:
                fd = how(loader)
                open_fds += [] if fd is None else [fd]
            batch = next(it, None)
            if batch is None:
                break
            got.append(batch[-1].tolist())
            held = [*held[-1:], batch]  # what it holds from before stays as it is
        assert loader.epoch == epoch + 1
        flat = [i for b in got for i in b]
        assert len(got) == 54 and sorted(flat) == list(range(108))
        if order is None:
            assert flat == list(range(108))
        assert [e.state for e in loader.stats().job.epochs if e.epoch == epoch] == ["complete"]
        for fd in open_fds:
            os.close(fd)
    assert not bugs(d.daemon.log.read_text())


def test_cut_between_epochs_and_before_anything_was_taken(folder, lives, loads):
    d = lives()
    loader = loads(d, f"imagefolder:{folder}", job="cut at 0")
    for epoch in range(3):
        it = iter(loader)
        eventually(lambda: unread(loader), PATIENCE)
        cut(loader)
        assert sorted(i for *_, x in it for i in x.tolist()) == list(range(108))
        assert [e.state for e in loader.stats().job.epochs if e.epoch == epoch] == ["complete"]
        cut(loader)  # the job has begun the next one ahead


def test_ranks_whose_connections_are_cut(folder, lives, loads):
    d = lives()
    ranks = [loads(d, f"imagefolder:{folder}", job="ranks", rank=r, world_size=2, batch_size=3) for r in range(2)]
    for _ in range(3):
        its = [iter_in_thread(r) for r in ranks]
        its = [t.result() for t in its]
        got: list[int] = []
        for n in range(18):
            if n % 5 == 2:
                (cut if n % 2 else lose)(ranks[n % 2])
            for it in its:
                got += next(it)[-1].tolist()
        assert [next(it, None) for it in its] == [None, None]
        assert sorted(got) == list(range(108))


def iter_in_thread(loader):
    return concurrent.futures.ThreadPoolExecutor(1).submit(iter, loader)


def test_no_other_client_takes_a_rank_whose_connection_is_open(folder, lives, loads, monkeypatch):
    """Also not one that knows the incarnation, and has the same process."""
    monkeypatch.setattr(_rivals, "of", lambda shared: [])  # as of two processes
    d = lives()
    loader = loads(d, f"imagefolder:{folder}", job="mine")
    it = iter(loader)
    next(it)
    other = loads(d, f"imagefolder:{folder}", job="mine")
    other._shared.held, other._shared.timeout = loader._shared.held, 2.0
    with pytest.raises(larder.RankHeldError):
        iter(other)
    assert sum(1 for _ in it) == 26


def test_no_descriptors_left(folder, lives, loads):
    """While a process has no descriptor free, next() waits for one and says so; then comes the next batch."""
    d = lives()
    loader = loads(d, f"imagefolder:{folder}", job="fds")
    it = iter(loader)
    got = next(it)[-1].tolist()
    cut(loader)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    full = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (full[0] + 20, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                full.append(os.open(os.devnull, os.O_RDONLY))
        loader._shared.timeout = 0.5
        with pytest.raises(larder.UnavailableError, match=r"waited 0.5 s"):
            for batch in it:
                got += batch[-1].tolist()
    finally:
        for fd in full:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    loader._shared.timeout = PATIENCE
    for batch in it:
        got += batch[-1].tolist()
    assert sorted(got) == list(range(108))


# interrupted as it was made: its end closes it
@pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*socket.socket fd=-1:pytest.PytestUnraisableExceptionWarning")
def test_interrupts_while_it_continues(folder, lives, loads, bell):
    """Ctrl-C at any moment of continuing after a death or a cut: the epoch continues, nothing is lost or mixed up."""
    d = lives()
    loader = loads(d, f"imagefolder:{folder}", job="interrupted", prefetch=1)
    rng = random.Random(int(os.environ.get("LARDER_SEEDS", "1").split()[0]))
    inside, interrupts, whole = False, 0, 0

    def ring(*_):
        if inside:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    try:
        for _ in range(4):
            got, it, deaths, base = (
                [],
                iter(loader),
                {rng.randrange(1, 20) for _ in range(2)},
                loader.stats().client.batches,
            )
            while True:
                if len(got) in deaths:
                    deaths.discard(len(got))
                    d.restart() if len(got) % 2 else cut(loader)
                    bell.ring(rng.randrange(100, 30_000), again=5000)
                try:
                    inside = True
                    batch = next(it, None)
                    inside = False
                except KeyboardInterrupt:
                    inside = False
                    interrupts += 1
                    if loader._shared.batches > base + len(got):
                        break  # it was handed out, and this test lost it
                    if interrupts % 2:
                        bell.silence()
                    continue
                if batch is None:
                    whole += 1
                    assert sorted(i for b in got for i, _, _ in b) == list(range(108))
                    break
                got.append(record(batch))
                assert loader._shared.batches == base + len(got)
            bell.silence()
    finally:
        inside = False
        bell.silence()
        signal.signal(signal.SIGALRM, before)
    assert sum(1 for _ in loader) == 27
    assert interrupts and whole > 0


def test_does_not_wait_when_so_configured(folder, lives, loads):
    d = lives()
    loader = loads(d, f"imagefolder:{folder}", job="hasty", on_daemon_loss="raise")
    it = iter(loader)
    next(it)
    d.restart()
    with pytest.raises(larder.UnavailableError, match="ended the connection"):
        for _ in range(20):
            next(it)
    assert sum(1 for _ in loader) == 27
    with pytest.raises(larder.InvalidError, match="on_daemon_loss"):
        loads(d, f"imagefolder:{folder}", on_daemon_loss="wiat")


def test_a_daemon_that_was_started_by_its_client_is_started_again(folder, tmp_path):
    script = (
        "import larder, os, signal\n"
        f"l = larder.Loader('imagefolder:{folder}', batch_size=4, shuffle=True, "
        f"timeout={PATIENCE}, return_index=True)\n"
        "pids, got = [], []\n"
        "for _, _, x in l:\n"
        "    got += x.tolist()\n"
        "    if len(got) in (4, 60):\n"
        "        pids.append(l.stats().pid)\n"
        "        os.kill(pids[-1], signal.SIGKILL)\n"
        "print(sorted(got) == list(range(108)), len(set(pids)), l.stats().pid)\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("LARDER_")}
    env |= {"XDG_RUNTIME_DIR": str(tmp_path), "LARDER_BIN": find_binary(), "PYTHONPATH": str(HERE.parent)}
    env |= {f"XDG_{x.upper()}_HOME": str(tmp_path / x) for x in ("cache", "state")}
    out = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    whole, daemons, pid = out.stdout.split() or ("", "", "0")
    assert (whole, daemons) == ("True", "2"), out
    os.kill(int(pid), signal.SIGTERM)
    eventually(lambda: not os.path.exists(tmp_path / "larder" / "larder.sock"), PATIENCE)


@pytest.mark.parametrize("other", [False, True])
def test_a_daemon_without_its_state(other, folder, lives, loads):
    d = lives(state="none")
    loader = loads(d, f"imagefolder:{folder}", job="forgotten")
    it = iter(loader)
    held = next(it)
    was = record(held)
    d.restart()
    if other:  # another client was there first
        second = loads(d, f"imagefolder:{folder}", job="forgotten")
        next(iter(second))
        second.close()
        third = loads(d, f"imagefolder:{folder}", job="forgotten")
    with pytest.raises(larder.StateLostError, match=r"epoch 0 of job 'forgotten' at step") as e:
        for _ in range(20):
            next(it)
    assert ("registered later" if other else "knows no job") in str(e.value)
    assert e.value.reason == "STALE" and isinstance(e.value, larder.StaleError) and "state.dir" in e.value.hint
    assert record(held) == was
    if other:
        third.close()
    assert sorted(i for *_, x in loader for i in x.tolist()) == list(range(108))
    assert loader.epoch == 2


def jobs_of(d):
    return d.daemon.cli("jobs", "ls").stdout


def ends(d, job, clock):
    """Steps the clock by more than a lease until a job has ended. No step falls into an exchange with the daemon, which
    would cut it off.
    """
    eventually(lambda: job not in jobs_of(d) or clock.advance(60), PATIENCE)


def test_a_client_that_looks_late_keeps_its_job(folder, lives, loads, clients, clock):
    """A validation may take longer than jobs.lease: while the process of a client lives its job does, whatever became
    of the daemon.
    """
    d = lives(clock=clock)
    loader = loads(d, f"imagefolder:{folder}", job="late")
    it = iter(loader)
    got = next(it)[-1].tolist()
    for how in ("death", "cut"):
        other = clients(
            d.daemon, f"imagefolder:{folder}", epochs=9, loader={"job": "gone", "batch_size": 4}, delay=1000
        )
        other.until("batch")
        if how == "cut":
            cut(loader)
        else:
            d.kill()
        other.process.kill()
        other.process.wait()
        if how == "death":
            d.start()
        # its lease began no sooner than the one of the job that lives
        ends(d, "gone", clock)
        assert "late" in jobs_of(d)
        for _ in range(4):
            got += next(it)[-1].tolist()
    for batch in it:
        got += batch[-1].tolist()
    assert sorted(got) == list(range(108))


def test_a_job_whose_client_died_while_no_daemon_ran_ends(folder, lives, loads, clients, clock):
    d = lives(clock=clock)
    other = clients(d.daemon, f"imagefolder:{folder}", epochs=9, loader={"job": "gone", "batch_size": 4}, delay=1000)
    other.until("batch")
    d.kill()
    d.start()
    assert "gone" in jobs_of(d)  # it lives, and does not know
    other.process.kill()
    other.process.wait()
    ends(d, "gone", clock)


def test_bad_samples_are_reported_once(folder, lives, loads, tmp_path):
    bad = draw(tmp_path / "bad", 2, 10)
    for n in (2, 3, 11):
        p = sorted(bad.glob("*/*"))[n]
        p.write_bytes(p.read_bytes()[:40])
    d = lives()
    loader = loads(d, f"imagefolder:{bad}", job="bad", batch_size=2, shuffle=False)
    got, reported = [], []
    it = iter(loader)
    while True:
        try:
            batch = next(it, None)
            if batch is None:
                break
            got += batch[-1].tolist()
        except larder.SampleError as e:
            reported += sorted(q.id for q in e.samples)  # of one batch, in the order in which they were tried
            d.restart()
    assert reported == [2, 3, 11] and got == [i for i in range(20) if i not in reported]
    assert sorted(q.id for q in loader.quarantined) == reported
