"""A daemon that speaks docs/protocol.md over a real socket with real memfds, on made-up samples, with faults on
request.

Dataset ``fake:N`` has N samples; sample i has label i % 10 and key ``class<label>/<i>.jpg``. With an op of fixed size
images are (3, 8, 10) uint8 (float32 after Normalize), else ragged. ``fake_samples`` has what a client must see. Freed
slots are overwritten with 0xCC, so that a client that uses released memory shows wrong values; every breach of the
protocol is noted in ``violations``.

As a program it stands in for the binary: ``fake_daemon.py serve --socket PATH --idle-exit 10m``.
"""

from __future__ import annotations

import array
import fcntl
import itertools
import json
import mmap
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any

import numpy as np
from fake_samples import SHAPE, expected_fixed, expected_ragged

HEADER = struct.Struct("<HHIQ")
BATCH = struct.Struct("<IIQQIIIIII")
POST = struct.Struct("<QQIIIII")
FRAMED = (8, 10, 12, 17)  # SEGMENT, BATCH, EPOCH_END, GONE: posts are in one order with them
POISON = 0xCC
PATIENCE = 120.0  # seconds
FIXED_OPS = ("RandomResizedCrop", "CenterCrop")
_numbers = itertools.count()


def memfd(size: int, name: str = "fake") -> tuple[int, mmap.mmap]:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    m = mmap.mmap(fd, size)
    fcntl.fcntl(fd, 1033, 1 | 2 | 4)  # F_ADD_SEALS: SEAL, SHRINK, GROW
    return fd, m


def detail(reason: str, message: str, hint: str = "", subject: str = "") -> dict[str, str]:
    return {"reason": reason, "message": message, "hint": hint, "subject": subject}


class Refused(Exception):
    def __init__(self, *a: str) -> None:
        self.detail = detail(*a)


class FakeDaemon:
    def __init__(self, path: str, *, mute: bool = False) -> None:
        self.path = path
        self.name = f"fake-{next(_numbers)}-"  # of its memory in /proc/self/maps
        self.lock = threading.RLock()
        self.jobs: dict[str, dict[str, Any]] = {}
        self.peers: list[Peer] = []
        self.violations: list[str] = []
        self.releases: list[tuple[int, int, int]] = []  # slot, generation, waited us
        self.repeated = 0  # releases of what was released before
        self.interrupted = False  # set by tests that interrupt
        self.calls: list[str] = []
        self.hellos: list[dict[str, Any]] = []
        self.detached: list[str] = []
        self.bad: set[int] = set()  # samples that cannot be decoded
        self.hold = False  # deliver nothing
        self.drained = False  # every epoch is the last one of its job
        self.board = True  # offer one to attachments with images of one size
        self.words = True  # beside it, release words
        self.group = 1  # slots that clients are to give back before they tell; 0 = only before they sleep
        self.told = 0  # WAKE frames from clients
        self.posts = self.wakes = 0
        self.mute = mute  # accept, read, never answer
        self.refuse_method = ""
        self.wait: dict[str, Any] = {}  # what every job waits for
        self.knows_unused = True  # the field of KillJob
        self.prefix = b""  # sent before every RESULT: garbage for the client
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            p = Peer(self, conn)
            with self.lock:
                self.peers.append(p)
                p.thread.start()
            del p  # or this frame keeps the last ring mapped

    def kill(self) -> None:
        """What SIGKILL looks like from outside."""
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # twice
        self.thread.join(PATIENCE)
        self.listener.close()
        for p in list(self.peers):
            p.drop()
        for p in list(self.peers):
            p.thread.join(PATIENCE)

    def attached(self) -> list[Peer]:
        with self.lock:
            return [p for p in self.peers if p.job and p.alive]

    def resume(self) -> None:
        self.hold = False
        for p in self.attached():
            p.feed()

    def gone(self, job: str, reason: str, message: str) -> None:
        for p in self.attached():
            if p.job == job:
                p.last()
                p.send(17, 0, json.dumps(detail(reason, message)).encode())
                p.job = ""

    # ---- the service

    def call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(method)
        if method == self.refuse_method:
            raise Refused("INTERNAL", "asked to refuse")
        if method == "RegisterJob":
            spec = body["spec"]
            job, created = self.jobs.get(spec["name"]), False
            if job is None:
                created = True
                job = self.jobs[spec["name"]] = {
                    "spec": spec,
                    "ids": self.select(spec),
                    "orders": {},
                    "next": {},
                    "delivered": 0,
                }
            elif job["spec"] != spec:
                raise Refused(
                    "ALREADY_EXISTS",
                    f"job {spec['name']!r} exists with another spec",
                    "choose another job=",
                    spec["name"],
                )
            return {"job": self.describe(job), "created": created}
        if method == "DescribeJob":
            if body["name"] not in self.jobs:
                raise Refused("NOT_FOUND", f"no job {body['name']!r}", "", body["name"])
            return {"job": self.describe(self.jobs[body["name"]])}
        if method == "KillJob":
            if "unused" in body and not self.knows_unused:
                raise Refused("INVALID_ARGUMENT", "the JSON is no KillJobRequest")
            return {"job": self.describe(self.jobs.pop(body["name"]))}
        if method == "ResolveKeys":
            return {"samples": [{"id": i, "key": f"class{int(i) % 10}/{i}.jpg"} for i in body["ids"]]}
        if method == "InspectDataset":
            return {"dataset": {"uri": body["dataset"], "classes": [f"class{i}" for i in range(10)]}, "selected": "10"}
        if method == "GetStats":
            jobs = [self.describe(j) for j in self.jobs.values()]
            totals = {"decodes": "18446744073709551615", "hits": {"decoded": "12"}, "waitSeconds": 1.5}
            return {
                "stats": {
                    "version": "fake",
                    "pid": os.getpid(),
                    "uptime": "2.5s",
                    "totals": totals,
                    "jobs": jobs,
                    "parity": True,
                    "tiers": [{"form": "decoded", "budget": "1024", "used": "512", "policy": "need"}],
                    "decoder": "fake",
                }
            }
        raise Refused("UNSUPPORTED", f"the fake has no {method}")

    def select(self, spec: dict[str, Any]) -> list[int]:
        scheme, _, n = spec["dataset"].partition(":")
        if scheme != "fake":
            raise Refused("NOT_FOUND", f"no dataset {spec['dataset']!r}", "add it", spec["dataset"])
        expr = spec.get("subset") or "True"
        try:
            code = compile(expr, "subset", "eval")
            ids = [i for i in range(int(n)) if eval(code, {"__builtins__": {}}, {"id": i, "label": i % 10})]
        except (SyntaxError, NameError) as e:
            raise Refused(
                "SUBSET_SYNTAX", f"cannot read the subset: {e}\n  {expr}\n  ^", "did you mean label?", "subset"
            ) from None
        if not ids:
            raise Refused(
                "SUBSET_EMPTY", f"the subset {expr!r} selects none of {n} samples", "labels go from 0 to 9", "subset"
            )
        return ids

    def per_rank(self, job: dict[str, Any]) -> int:
        spec = job["spec"]
        n, world, b = len(job["ids"]), spec.get("worldSize", 1), spec["batchSize"]
        n = n // world
        return n // b if spec.get("dropLast") else -(-n // b)

    def describe(self, job: dict[str, Any]) -> dict[str, Any]:
        epochs = [{"epoch": e, "subset": str(len(job["ids"])), "state": "complete"} for e in sorted(job["orders"])]
        return {
            "id": 1,
            "spec": job["spec"],
            "state": "JOB_STATE_LIVE" if job["next"] else "JOB_STATE_JOINING",
            "subsetSize": str(len(job["ids"])),
            "epochs": epochs,
            "batchesPerEpoch": str(self.per_rank(job)),
            "counters": {"samplesDelivered": str(job["delivered"])},
            "promise": "fake",
            "wait": self.wait,
            "ranks": [
                {"rank": p.rank, "attached": True} for p in list(self.peers) if p.alive and p.job == job["spec"]["name"]
            ],
        }

    def order(self, job: dict[str, Any], epoch: int) -> list[int]:
        if epoch not in job["orders"]:
            ids = list(job["ids"])
            if job["spec"].get("shuffle"):
                random.Random(f"{job['spec']['name']}/{epoch}").shuffle(ids)
            world = job["spec"].get("worldSize", 1)
            job["orders"][epoch] = ids[: len(ids) // world * world]
        return job["orders"][epoch]


class Peer:
    def __init__(self, daemon: FakeDaemon, conn: socket.socket) -> None:
        self.d, self.conn = daemon, conn
        self.alive = True
        self.wlock = threading.Lock()
        self.job = ""
        self.frames = self.posts = 0
        self.board: int | None = None
        self.words = self.words_read = 0
        self.delivered = 0  # batches
        self.thread = threading.Thread(target=self._run, daemon=True)

    # ---- frames

    def send(self, type_: int, rid: int, payload: bytes, fd: int = -1) -> None:
        data = HEADER.pack(1, type_, len(payload), rid) + payload
        self.frames += type_ in FRAMED
        with self.wlock:
            try:
                if fd >= 0:
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                    sent = self.conn.sendmsg([data], ancillary)
                    data = data[sent:]
                self.conn.sendall(data)
            except OSError:
                self.alive = False

    def drop(self) -> None:
        try:
            self.conn.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _read(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            part = self.conn.recv(n - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def _run(self) -> None:
        try:
            while True:
                abi, type_, length, rid = HEADER.unpack(self._read(16))
                payload = self._read(length)
                if abi != 1:
                    self.d.violations.append(f"abi {abi}")
                if not self.d.mute:
                    self.handle(type_, rid, payload)
        except (EOFError, OSError):
            pass
        finally:
            self.alive = False
            with self.d.lock:
                self.job = ""
            self.conn.close()

    def handle(self, type_: int, rid: int, payload: bytes) -> None:
        if type_ == 11:
            slot, waited, gen = struct.unpack("<IIQ", payload)
            if self.words and self.segments[0][self.board]:
                self.d.violations.append("RELEASE from a client that has release words")
            self.release(slot, gen, waited)
            return
        self.collect()
        if type_ == 18:
            if not self.words:
                self.d.violations.append("WAKE from a client without release words")
            self.d.told += 1
            self.feed()
            return
        try:
            if type_ == 1:
                self.d.hellos.append(json.loads(payload))
                self.send(
                    2, rid, json.dumps({"version": "fake", "abi": 1, "pid": os.getpid(), "unknownField": [1]}).encode()
                )
            elif type_ == 3:
                body = json.loads(payload)
                with self.d.lock:
                    result = self.d.call(body["method"], body["body"])
                self.send(4, rid, json.dumps(result).encode())
            elif type_ == 6:
                self.attach(rid, json.loads(payload))
            elif type_ == 9:
                self.start(struct.unpack("<II", payload)[0])
                self.feed(early=True)  # a batch may come before RESULT
                self.send(4, rid, b"{}")
                self.feed()
            elif type_ == 13:
                self.d.detached.append(self.job)
                self.job = ""
                self.send(4, rid, b"{}")
            elif type_ == 15:
                self.send(16, rid, b"")
            elif type_ == 16:
                self.d.calls.append("PONG")
            else:
                self.d.violations.append(f"frame type {type_} from a client")
        except Refused as e:
            self.send(5, rid, json.dumps(e.detail).encode())

    # ---- the ring

    def attach(self, rid: int, body: dict[str, Any]) -> None:
        with self.d.lock:
            job = self.d.jobs.get(body["job"])
            if job is None:
                raise Refused("NOT_FOUND", f"no job {body['job']!r}")
            rank = body.get("rank", 0)
            for p in self.d.attached():
                if p is not self and p.job == body["job"] and p.rank == rank:
                    raise Refused(
                        "RANK_HELD",
                        f"rank {rank} of {body['job']!r} is held by process {p.client_pid}",
                        "",
                        body["job"],
                    )
            self.job, self.rank, self.client_pid = body["job"], rank, body["pid"]
        spec = job["spec"]
        names = [op["name"] for op in spec.get("transform") or ()]
        self.ragged = not any(n in FIXED_OPS for n in names)
        self.normalized = "Normalize" in names
        self.slots = (spec.get("prefetch") or 2) + 2
        rows = spec["batchSize"]
        size = int(np.prod(SHAPE)) * (4 if self.normalized else 1)
        image = {"name": "image", "dtype": "uint8", "offset": 0, "ragged": True}
        stride = 0
        if not self.ragged:
            stride = (size + 63) // 64 * 64  # more than the sample: strides must be honoured
            image = {
                "name": "image",
                "dtype": "float32" if self.normalized else "uint8",
                "shape": SHAPE,
                "offset": "0",
                "sampleBytes": str(stride),
                "layout": "CHW",
            }
        image_bytes = ((rows * (24 + 600) if self.ragged else rows * stride) + 63) // 64 * 64
        self.offsets = {"image": 0, "label": image_bytes, "index": image_bytes + (rows * 8 + 63) // 64 * 64}
        self.image_bytes, self.stride = image_bytes, stride
        self.slot_bytes = (self.offsets["index"] + rows * 8 + 4095) // 4096 * 4096
        total = self.slots * self.slot_bytes
        self.mask = (1 << self.slots.bit_length()) - 1
        board: int | None = None
        if self.d.board and not self.ragged:
            board, total = total, total + 128 + 64 * (self.mask + 1)
            if self.d.words:
                self.words, total = total, total + 32 * self.slots
        fd, m = memfd(total, self.d.name)
        self.segments = {0: m}
        self.board = board  # last: a test that sees it looks into the segment
        self.slot_segment = [0] * self.slots
        self.next_segment = 1
        self.generation = [0] * self.slots
        self.leased = [False] * self.slots
        self.epoch, self.plan, self.sent, self.ended = -1, [], 0, True
        fields = [image] + [
            {"name": n, "dtype": "int64", "offset": str(self.offsets[n]), "sampleBytes": "8"}
            for n in ("label", "index")
        ]
        answer = {
            "job": self.d.describe(job),
            "incarnation": "1",
            "slots": self.slots,
            "slotBytes": str(self.slot_bytes),
            "segmentBytes": str(total),
            "fields": fields,
            "batchesPerEpoch": str(self.d.per_rank(job)),
            "numSamples": str(len(job["ids"])),
            "nextEpoch": job["next"].get(rank, 0),
        }
        if self.board is not None:
            answer |= {"board": str(self.board), "posts": self.mask + 1}
        if self.words:
            answer["releases"] = str(self.words)
        self.send(7, rid, json.dumps(answer).encode(), fd)
        os.close(fd)

    def start(self, epoch: int) -> None:
        with self.d.lock:
            job = self.d.jobs[self.job]
            if epoch <= self.epoch:
                self.d.violations.append(f"epoch {epoch} after {self.epoch}")
            ids = self.d.order(job, epoch)[self.rank :: job["spec"].get("worldSize", 1)]
            b = job["spec"]["batchSize"]
            self.plan = [ids[i : i + b] for i in range(0, len(ids), b)][: self.d.per_rank(job)]
            job["next"][self.rank] = epoch + 1
            self.epoch, self.sent, self.ended = epoch, 0, False

    def feed(self, early: bool = False) -> None:
        with self.d.lock:
            while not self.ended and not self.d.hold and self.alive and self.job:
                if self.sent == len(self.plan):
                    self.ended = True
                    spec = self.d.jobs[self.job]["spec"]
                    final = self.d.drained or spec.get("epochs", 0) == self.epoch + 1
                    self.send(
                        12, 0, json.dumps({"epoch": self.epoch, "batches": str(self.sent), "final": final}).encode()
                    )
                    return
                free = [s for s in range(self.slots) if not self.leased[s]]
                if not free:
                    return
                self.deliver(free[0])
                if early:
                    return

    def deliver(self, slot: int) -> None:
        job = self.d.jobs[self.job]
        wanted = self.plan[self.sent]
        bad = [i for i in wanted if i in self.d.bad]
        ids = [i for i in wanted if i not in self.d.bad]
        if job["spec"].get("onError") == "substitute":
            ids += [1000 + i for i in bad]
        m, base, first = self.place(slot, ids)
        buf = np.frombuffer(m, dtype=np.uint8)[base:]
        for name, values in (("label", [i % 10 for i in ids]), ("index", ids)):
            at = self.offsets[name]
            buf[at : at + 8 * len(ids)] = np.array(values, dtype="<i8").view(np.uint8)
        if self.ragged:
            at = first
            for r, i in enumerate(ids):
                a = expected_ragged(i)
                buf[24 * r : 24 * r + 24] = np.frombuffer(struct.pack("<QIIII", at, *a.shape, 0), dtype=np.uint8)
                buf[at : at + a.size] = a.ravel()
                at += a.size
        else:
            for r, i in enumerate(ids):
                a = expected_fixed(i, self.epoch, self.normalized).astype("<f4" if self.normalized else "u1")
                buf[r * self.stride : r * self.stride + a.nbytes] = a.ravel().view(np.uint8)
        del buf
        self.generation[slot] += 1
        self.leased[slot] = True
        report = b""
        if bad:
            records = [
                {
                    "id": str(i),
                    "key": f"class{i % 10}/{i}.jpg",
                    "path": f"/data/{i}.jpg",
                    "offset": "0",
                    "damagedAt": "17",
                    "reason": "truncated",
                }
                for i in bad
            ]
            report = json.dumps({"quarantined": records}).encode()
        head = BATCH.pack(
            self.slot_segment[slot],
            slot,
            self.generation[slot],
            base,
            self.epoch,
            self.sent,
            self.rank,
            len(ids),
            bool(bad),
            0,
        )
        job["delivered"] += len(ids)
        self.sent += 1
        self.delivered += 1
        if self.words:
            # After `delivered` - `slots` + `group` batches that many are given back, if the client holds none.
            tell_at = self.delivered - self.slots + self.d.group if self.d.group else 1 << 40
            struct.pack_into("<Q", self.segments[0], self.board + 8, max(0, tell_at))
        if not bad and self.board is not None and self.segments[0][self.board] == 1:
            self.post(slot, len(ids))
        else:
            self.send(10, 0, head + report)

    def post(self, slot: int, rows: int) -> None:
        m, at = self.segments[0], self.board + 128 + 64 * (self.posts & self.mask)
        POST.pack_into(m, at + 8, self.frames, self.generation[slot], slot, rows, self.epoch, self.sent - 1, self.rank)
        self.posts += 1
        self.d.posts += 1
        m[at : at + 8] = struct.pack("<Q", self.posts)  # the last
        if m[self.board + 64]:
            m[self.board + 64] = 0
            self.d.wakes += 1
            self.send(18, 0, b"")

    def last(self) -> None:
        """Marks what is posted: a GONE follows."""
        if self.board is not None:
            for i in range(self.mask + 1):
                self.segments[0][self.board + 128 + 64 * i + 15] |= 0x80

    def place(self, slot: int, ids: list[int]) -> tuple[mmap.mmap, int, int]:
        """The slot's memory, its first byte, and where values of ragged rows begin; a batch that does not fit gets a
        segment of its own.
        """
        values = sum(expected_ragged(i).size for i in ids) if self.ragged else 0
        own = self.slot_segment[slot]
        if own == 0 and 24 * len(ids) + values <= self.image_bytes:
            return self.segments[0], slot * self.slot_bytes, 24 * len(ids)
        if own == 0 or self.slot_bytes + values > len(self.segments[own]):
            new, self.next_segment = self.next_segment, self.next_segment + 1
            size = self.slot_bytes + 2 * values
            fd, m = memfd(size, self.d.name)
            if own:
                del self.segments[own]
            self.segments[new] = m
            self.slot_segment[slot] = new
            self.send(8, 0, struct.pack("<IIQ", new, slot, size), fd)
            os.close(fd)
        return self.segments[self.slot_segment[slot]], 0, self.slot_bytes

    def collect(self) -> None:
        """Takes what was given back in release words."""
        if not self.words:
            return
        for slot in range(self.slots):
            with self.d.lock:
                at, waited, _zero, gen = struct.unpack_from("<QIIQ", self.segments[0], self.words + 32 * slot)
                if not self.leased[slot] or gen != self.generation[slot]:
                    continue
                assert 0 < at <= time.monotonic_ns(), at
                self.release(slot, gen, waited, feed=False)
                self.words_read += 1
                struct.pack_into("<Q", self.segments[0], self.board + 16, self.words_read)

    def release(self, slot: int, gen: int, waited: int, feed: bool = True) -> None:
        with self.d.lock:
            self.d.releases.append((slot, gen, waited))
            if not self.leased[slot] and self.generation[slot] == gen:
                self.d.repeated += 1  # harmless, and only after an interrupt
                return
            if not self.leased[slot] or self.generation[slot] != gen:
                self.d.violations.append(
                    f"release of slot {slot}, generation {gen}; leased {self.leased[slot]}, is {self.generation[slot]}"
                )
                return
            self.leased[slot] = False
            m = self.segments[self.slot_segment[slot]]
            if self.slot_segment[slot] == 0:
                m[slot * self.slot_bytes : (slot + 1) * self.slot_bytes] = bytes([POISON]) * self.slot_bytes
            else:
                m[:] = bytes([POISON]) * len(m)
        if feed:
            self.feed()


def main() -> None:
    path = sys.argv[sys.argv.index("--socket") + 1]
    if os.environ.get("FAKE_FAIL"):
        print("larder: cannot do it\nbecause the test says so", file=sys.stderr)
        raise SystemExit(3)
    if os.environ.get("FAKE_HOLD"):
        with open(os.environ["FAKE_HOLD"]):  # a FIFO, until somebody opens its other end
            pass
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with open(path + ".starts", "a") as f:
        f.write(f"{os.getpid()} {' '.join(sys.argv[1:])}\n")
    if os.path.exists(path):
        os.unlink(path)
    FakeDaemon(path)
    print(json.dumps({"socket": path, "http": "", "pid": os.getpid(), "version": "fake"}), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
