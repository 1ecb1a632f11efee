"""Worker processes against a daemon of this file, which speaks the worker's side of docs/protocol.md alone."""

from __future__ import annotations

import array
import fcntl
import itertools
import json
import mmap
import multiprocessing
import os
import random
import signal
import socket
import struct
import sys
import threading
from collections import deque

import numpy as np
import pytest
from conftest import eventually
from real import PATIENCE, night

import larder
from larder import _crew, _items, _link, _nested, _record, _seeds, _worker
from larder._transform import Transform
from larder.errors import Error, InvalidError, UnavailableError

HEADER = struct.Struct("<HHIQ")


class Boss:
    """Accepts workers, gives them tasks, and notes every answer."""

    def __init__(self, path, refuse="", accepts=None):
        self.path, self.refuse = str(path), refuse
        self.accepts = accepts or {}  # what the answer to WORK says of sizes; nothing, as an older daemon
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.works, self.records, self.failures, self.violations = [], {}, {}, []
        self.conns, self.sizes, self.left, self.task = [], [], 0, 0  # sizes of memory that replaced another
        self.queue: deque[dict] = deque()
        self.held = None  # a list: offsets that are not freed
        self.inputs, self.words = b"", []
        self.lock = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.conns.append(conn)
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def send(self, conn, type_, rid, payload, fd=-1):
        data = HEADER.pack(1, type_, len(payload), rid) + payload
        fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd >= 0 else []
        try:
            conn.sendmsg([data], fds)
        except OSError:
            pass

    def _serve(self, conn):
        with conn:
            self._speak(conn)

    def _speak(self, conn):
        data, fds, memory, at = b"", [], None, {}
        while True:
            try:
                part, anc, _, _ = conn.recvmsg(1 << 16, socket.CMSG_SPACE(16))
            except OSError:
                part, anc = b"", []
            for _, _, content in anc:
                fds += np.frombuffer(content, "<i4").tolist()
            if not part:
                with self.lock:
                    self.queue.extendleft(at.values())  # what it had, another one does
                    self.lock.notify_all()
                return
            data += part
            while len(data) >= 16:
                _, type_, n, rid = HEADER.unpack_from(data)
                if len(data) < 16 + n:
                    break
                payload, data = data[16 : 16 + n], data[16 + n :]
                with self.lock:
                    memory = self._frame(conn, type_, rid, payload, fds, memory, at)
                    self.lock.notify_all()

    def _frame(self, conn, type_, rid, payload, fds, memory, at):
        if type_ == 1:
            self.send(conn, 2, rid, b'{"version":"boss"}')
        elif type_ in (32, 37):
            fd = fds.pop(0)
            size = os.fstat(fd).st_size
            if fcntl.fcntl(fd, 1034) & 7 != 7:
                self.violations.append("memory without seals")
            memory = mmap.mmap(fd, size)
            os.close(fd)
            if type_ == 37:
                self.sizes.append(size)
                assert struct.unpack("<Q", payload)[0] == size
            elif self.refuse:
                self.send(conn, 5, rid, json.dumps({"reason": self.refuse, "message": "no"}).encode())
            else:
                work = json.loads(payload)
                assert work["outBytes"] == size
                self.works.append(work)
                into = os.memfd_create("in")
                os.write(into, self.inputs)
                answer = {"worker": len(self.works), "inBytes": len(self.inputs), "window": 2, **self.accepts}
                self.send(conn, 4, rid, json.dumps(answer).encode(), into)
                os.close(into)
                self._feed(conn, at, 2)
        elif type_ == 34:
            task, offset, size = struct.unpack("<QQQ", payload)
            todo = at.pop(task)
            self.records[todo["sample"], todo.get("instance", 0)] = bytes(memory[offset : offset + size])
            if self.held is None:
                self.send(conn, 36, 0, struct.pack("<Q", offset))
            else:
                self.held.append((conn, offset))
            self._feed(conn, at, 1)
        elif type_ == 35:
            todo = at.pop(struct.unpack_from("<Q", payload)[0])
            self.failures[todo["sample"]] = json.loads(payload[8:])
            self._feed(conn, at, 1)
        elif type_ == 41 and "maxWords" in self.accepts:
            fd = fds.pop(0)
            self.words.append(os.pread(fd, 1 << 20, 0))
            os.close(fd)
        elif type_ == 13:
            self.left += 1
            self.send(conn, 4, rid, b"{}")
        elif type_ != 16:
            self.violations.append(f"frame {type_}")
        return memory

    def _feed(self, conn, at, n):
        while n and self.queue:
            todo = self.queue.popleft()
            self.task += 1
            at[self.task] = todo
            fields = [
                todo.get(k, d) for k, d in (("seed", 0), ("instance", 0), ("recipe", 0), ("first", 0), ("last", 1))
            ]
            rest = (todo.get("at", 0), todo.get("bytes", 0), todo.get("timeout", 0))
            frame = struct.pack("<QQQIIIIQQQ", self.task, todo["sample"], *fields, *rest)
            self.send(conn, 33, 0, frame)
            n -= 1

    def until(self, condition):
        with self.lock:
            assert self.lock.wait_for(condition, PATIENCE), (len(self.records), self.failures, self.violations)

    def values(self, sample, instance=0):
        return _record.read(bytearray(self.records[sample, instance]))

    def close(self):
        self.listener.close()
        for c in self.conns:
            try:
                c.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@pytest.fixture
def boss(tmp_path):
    b = Boss(tmp_path / "b.sock")
    yield b
    b.close()
    assert b.violations == []


@pytest.fixture
def crews():
    made = []
    yield made
    for c in made:
        c.stop()
    assert not [p for p in multiprocessing.active_children() if p.name.startswith("larder-worker")]


class Noise:
    """Items that draw from every global generator; some do what items must not, and then touch ``begun``."""

    def __init__(self, n=100, bad=None, begun=None):
        self.n, self.bad, self.begun = n, bad or {}, begun

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        what = self.bad.get(i)
        if what == "raise":
            raise ValueError(f"item {i} is broken")
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "hang":
            if self.begun is not None:
                self.begun.touch()
            threading.Event().wait()
        if what == "none":
            return None
        if what == "shape":
            return {"x": np.zeros((2, 2)), "y": i}
        if what == "print":
            print("printed by an item")
        if what == "fork" and os.fork() == 0:
            os._exit(0)
        if what == "exit":
            sys.exit(3)
        return {"x": np.array([random.random(), np.random.rand()]), "y": i}


def twice(item):
    return {"x": item["x"] * 2, "y": item["y"]}


def shifted(item, rng):
    return {"x": item["x"] + rng.random(), "y": item["y"]}


def work(base, count=2, steps=(), **more):
    kw = {
        "base": base, "steps": list(steps), "layouts": (), "look": _items.Look((0,), (1,), True), "timeout": 60.0,
        "number": 0, "count": count, "seed": 5, "init": None, "memory": 0, "torch": False, "main": False, **more,
    }  # fmt: skip
    return _worker.Work(**kw)


def start(crews, boss, base, count=2, method=None, steps=(), **more):
    crew = _crew.Crew(work(base, count, steps, **more), _crew.context(method))
    crews.append(crew)
    probe = crew.probe(PATIENCE)
    crew.serve(_worker.Orders(boss.path, "python:x@1", ("abc",), "me", probe.layouts, probe.bytes, PATIENCE))
    return crew


def expected(sample, seed=0, instance=0):
    _seeds.seed_globals(_seeds.key(seed, instance, sample, 0))
    return [random.random(), np.random.rand()]


@pytest.mark.parametrize("method", ["fork", "spawn", *night("forkserver")])
def test_workers_make_items_and_leave(boss, crews, method):
    boss.queue.extend({"sample": i, "instance": k, "seed": 9} for i in range(30) for k in (0, 1))
    crew = start(crews, boss, Noise(), 2, method)
    boss.until(lambda: len(boss.records) == 60 and len(boss.works) == 2)
    for i, k in boss.records:
        x, y = boss.values(i, k)
        assert y == i and x.tolist() == expected(i, 9, k), "random state depends on the task alone"
    (work, _) = boss.works
    assert work["dataset"] == "python:x@1" and work["recipes"] == ["abc"] and work["client"] == "me" and work["pid"]
    crew.stop()
    boss.until(lambda: boss.left == 2)


def test_steps_run_behind_an_item_and_from_a_record(boss, crews):
    steps = [Transform(twice, "1", False, {}), Transform(shifted, "1", True, {})]
    leaves, _ = _nested.flatten({"x": np.array([1.0, 2.0]), "y": 7})
    record = bytearray(_record.size(leaves))
    _record.write(leaves, record)
    boss.inputs = bytes(64) + bytes(record)
    boss.queue.extend([
        {"sample": 1, "first": 0, "last": 3, "seed": 4, "instance": 2},
        {"sample": 7, "first": 1, "last": 3, "seed": 4, "instance": 2, "at": 64, "bytes": len(record)},
        {"sample": 2, "first": 0, "last": 2},
    ])  # fmt: skip
    start(crews, boss, Noise(), 1, steps=steps)
    boss.until(lambda: len(boss.records) == 3)
    shift = [_seeds.generator(_seeds.key(4, 2, i, 2)).random() for i in (1, 7)]
    assert boss.values(1, 2)[0].tolist() == [2 * v + shift[0] for v in expected(1, 4, 2)]
    assert boss.values(7, 2)[0].tolist() == [2 + shift[1], 4 + shift[1]]
    assert boss.values(2)[0].tolist() == [2 * v for v in expected(2)]


def test_bad_items_are_reported_with_words_and_the_worker_goes_on(boss, crews, capfd, tmp_path, clock):
    bad = {2: "raise", 3: "none", 4: "shape", 5: "hang", 6: "print", 7: "fork", 8: "exit"}
    boss.queue.extend({"sample": i, "timeout": 3_600_000} for i in range(10))
    begun = tmp_path / "begun"
    start(crews, boss, Noise(10, bad, begun), 1)
    eventually(begun.exists)
    clock.advance(3599)
    assert 5 not in boss.failures
    clock.advance(1)
    boss.until(lambda: len(boss.records) + len(boss.failures) == 10)
    said = {i: f"{f['type']}: {f['message']}" for i, f in boss.failures.items()}
    assert set(said) == {2, 3, 4, 5, 8}
    assert said[2] == "ValueError: item 2 is broken" and "raise ValueError" in boss.failures[2]["traceback"]
    assert "the sample is NoneType, which is no data" in said[3]
    assert "field x has shape [2, 2], and [2] in other items" in said[4]
    assert "sample_timeout (3600 s)" in said[5] and "threading.Event().wait()" in boss.failures[5]["traceback"]
    assert said[8] == "SystemExit: 3"
    assert capfd.readouterr().out == "printed by an item\n", "what a dataset prints goes where it goes"


def test_a_worker_that_dies_is_replaced(boss, crews):
    crew = start(crews, boss, Noise(10, {4: "die"}), 2)
    boss.until(lambda: len(boss.works) == 2)
    pids = {m.process.pid for m in crew.members}
    os.kill(crew.members[0].process.pid, signal.SIGKILL)
    crew.members[0].process.join()
    with pytest.warns(larder.WorkerWarning, match="killed by SIGKILL"):
        crew.check(0)
    assert len(pids & {m.process.pid for m in crew.members}) == 1
    boss.until(lambda: len(boss.works) >= 3)


def test_workers_that_die_again_and_again_before_they_work_end_the_wait(boss, crews, tmp_path):
    dies = tmp_path / "dies"
    crew = start(
        crews, boss, Noise(10), 1, init=lambda number: os.kill(os.getpid(), signal.SIGKILL if dies.exists() else 0)
    )
    dies.touch()
    os.kill(crew.members[0].process.pid, signal.SIGKILL)
    with pytest.raises(UnavailableError, match=r"killed by SIGKILL.*num_workers=0"), pytest.warns(larder.WorkerWarning):
        eventually(lambda: crew.check(0) is not None)


def test_a_record_larger_than_the_memory_moves_to_a_new_one(boss, crews):
    class Large:
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return np.full(9_000_000 if i == 7 else 10 + i % 2, i, np.uint8)

    boss.queue.extend({"sample": i} for i in range(40))
    start(crews, boss, Large(), 1)
    boss.until(lambda: len(boss.records) == 40)
    assert len(boss.sizes) == 2 and boss.sizes[0] < 9_000_000 < boss.sizes[1]  # what it begins with, and one more
    assert all((boss.values(i)[0] == i).all() for i in range(40)) and boss.values(7)[0].size == 9_000_000


def test_a_worker_keeps_to_what_the_daemon_accepts(tmp_path, crews):
    limits = {"maxRecord": 1 << 20, "maxMemory": 4 << 20, "maxWords": 64 << 10}
    boss = Boss(tmp_path / "l.sock", accepts=limits)
    sizes = {3: 2 << 20, 5: (1 << 20) - 128, 6: 1 << 20}

    class Odd:
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return np.full(sizes.get(i, 5 + i % 2), i, np.uint8)

    boss.queue.extend({"sample": i} for i in range(8))
    start(crews, boss, Odd(), 1)
    boss.until(lambda: len(boss.records) + len(boss.failures) == 8)
    assert {i: f["type"] for i, f in boss.failures.items()} == {3: "InvalidError", 6: "InvalidError"}
    assert "a record of 2MiB, and 1MiB are the most (workers.max_record)" in boss.failures[3]["message"]
    assert boss.values(5)[0].size == sizes[5] and max(boss.sizes) <= limits["maxMemory"]
    assert [w.rstrip(b"\0") for w in boss.words] == [b"\n"], "it has said nothing yet"
    boss.close()
    assert boss.violations == []


def test_memory_is_reused_only_when_it_is_free(boss, crews):
    """Records that are not freed keep their place; the worker waits for room."""
    boss.held = []
    boss.queue.extend({"sample": i} for i in range(6))

    class Halves:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return np.full(400_000, i, np.uint8)

    start(crews, boss, Halves(), 1)
    while len(boss.records) < 6:
        boss.until(lambda: boss.held)
        with boss.lock:
            conn, offset = boss.held.pop(0)
            boss.send(conn, 36, 0, struct.pack("<Q", offset))
    assert all((boss.values(i)[0] == i).all() for i in range(6))


def test_places_in_memory_do_not_overlap():
    rng = random.Random(3)
    m = _link.Memory(1 << 16)
    for _ in range(3000):
        if m.taken and rng.random() < 0.5:
            m.free(rng.choice(list(m.taken)))
        at = m.place(rng.randint(1, 20000))
        spans = sorted((o, o + n) for o, n in m.taken.items())
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)) and (
            not spans or spans[-1][1] <= m.size
        )
        assert at % 64 == 0 or at == -1
    m.close()


def test_records_go_round_in_the_memory_and_leave_the_mark_alone():
    m = _link.Memory(1 << 12)
    order, was = [], -1
    for n in range(200):
        at = m.place(1000)
        while at < 0:
            m.free(order.pop(0))
            at = m.place(1000)
        assert at >= 64 and at != was
        m.mark(n)
        assert m.map[:8] == struct.pack("<Q", n)
        order.append(at)
        was = at
    assert len(order) > 2
    for at in order:
        m.free(at)
    assert m.place(m.size - 64) == 64
    m.close()


def test_answers_are_gathered_while_they_are_quick(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(_worker.time, "monotonic", lambda: now[0])
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    there.settimeout(PATIENCE)
    link = _link.Link(here)
    sizes = []
    for wait in (0.0, 0.0001, 0.0001, 1.0, 0.0001):
        now[0] += wait
        link.answer(34, b"x" * 24)
        there.setblocking(False)
        try:
            sizes.append(len(there.recv(1 << 12)) // 40)
        except BlockingIOError:
            sizes.append(0)
    assert sizes == [1, 0, 0, 3, 0]  # the one behind a slow item takes along those that waited
    link.flush()
    assert len(there.recv(1 << 12)) == 40
    link.close()
    there.close()


def test_a_worker_finds_the_next_daemon(boss, crews, tmp_path):
    boss.queue.extend({"sample": i} for i in range(3))
    crew = start(crews, boss, Noise(), 1)
    boss.until(lambda: len(boss.records) == 3)
    pid = crew.members[0].process.pid
    boss.close()
    os.unlink(boss.path)
    second = Boss(boss.path)
    second.queue.extend({"sample": i} for i in range(3))
    second.until(lambda: len(second.records) == 3)
    assert crew.members[0].process.pid == pid and crew.members[0].alive
    second.close()


def test_a_daemon_that_refuses_is_quoted(tmp_path, crews):
    boss = Boss(tmp_path / "r.sock", refuse="NOT_FOUND")
    crew = start(crews, boss, Noise(), 1)
    with pytest.raises(Error, match="no"):
        eventually(lambda: crew.check(0) is not None)
    boss.close()


def orphan(path, pipe):
    crew = _crew.Crew(work(Noise(), 1, main=True), _crew.context("fork"))
    probe = crew.probe(PATIENCE)
    crew.serve(_worker.Orders(path, "python:x@1", ("abc",), "me", probe.layouts, probe.bytes, PATIENCE))
    pipe.send(crew.members[0].process.pid)
    signal.pause()


@pytest.mark.parametrize("task", ["idle", "hang"])
def test_workers_die_with_their_client(boss, task):
    if task == "hang":
        boss.queue.append({"sample": 1})
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    client = context.Process(target=orphan, args=(boss.path, theirs))
    client.start()
    pid = ours.recv()
    boss.until(lambda: len(boss.works) == 1)
    client.kill()
    client.join()
    eventually(lambda: ended(pid))


def ended(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def init(number):
    assert number in (0, 1)
    random.seed(1)
    Noise.number = number


class Info:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        import torch

        info = torch.utils.data.get_worker_info()
        return [info.id, info.num_workers, int(info.dataset is not None), Noise.number]


def test_worker_init_and_worker_info(boss, crews, torch):
    boss.queue.extend({"sample": i} for i in range(4))
    start(crews, boss, Info(), 2, init=init, torch=True)
    boss.until(lambda: len(boss.records) == 4)
    for i in range(4):
        number, count, dataset, seen = boss.values(i)[0]
        assert number in (0, 1) and count == 2 and dataset == 1 and seen == number


def broken(number):
    raise RuntimeError(f"no worker {number} today")


def test_a_worker_that_cannot_start_says_why(crews):
    crew = _crew.Crew(work(Noise(), 1, init=broken), _crew.context(None))
    crews.append(crew)
    with pytest.raises(Error, match=r"(?s)RuntimeError: no worker 0 today.*in broken"):
        crew.probe(PATIENCE)


def test_an_item_that_ends_the_process_is_looked_at_once(crews, tmp_path, clock):
    look, begun = _items.Look((0, 5), (2, 3), False), tmp_path / "begun"
    bad = Noise(10, {0: "die", 2: "die", 3: "hang"}, begun)
    crew = _crew.Crew(work(bad, 1, look=look, timeout=3600.0), _crew.context(None))
    crews.append(crew)
    with clock.stepping(3600, lambda steps: not steps and begun.exists()):
        probe = crew.probe(3601.0)
    assert [(f.sample, f.type) for f in probe.failures] == [(0, "Died"), (2, "Died"), (3, "Hung")]
    crew = _crew.Crew(work(Noise(10, dict.fromkeys(range(10), "die")), 1, look=look), _crew.context(None))
    crews.append(crew)
    with pytest.raises(larder.SampleError, match=r"sample 0: it ended .*killed by SIGKILL.* the 4 items") as e:
        crew.probe(PATIENCE)
    assert [q.id for q in e.value.samples] == [0, 5, 2, 3]


def test_what_cannot_be_sent_to_a_process(crews):
    crew = _crew.Crew(work([lambda: 1], 1), _crew.context("spawn"))
    crews.append(crew)
    with pytest.raises(InvalidError, match="cannot be sent to a worker started by spawn"):
        crew.probe(PATIENCE)
    for bad in ("threads", 5):
        with pytest.raises(InvalidError, match="multiprocessing_context"):
            _crew.context(bad)


def test_a_worker_that_grows_is_ended(boss, crews):
    kept = []

    class Leaky:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            if i == 2:
                kept.append(np.ones(40_000_000))
                threading.Event().wait()
            return i

    boss.queue.extend([{"sample": 2}])
    crew = start(crews, boss, Leaky(), 1, memory=100_000_000)
    eventually(lambda: not crew.members[0].alive)
    assert crew.members[0].process.exitcode == 1
