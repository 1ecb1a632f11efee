"""Runs that measure the hand-over of a ready batch, for bench.py: how long next() takes, and what it costs both sides
in processor time.

next: 8 jobs on one daemon, everything in memory, each consumer sleeps 50 ms between two batches of 8 uint8 images of
3x224x224, so that the machine is not full; the share of it that was busy is printed, and with 70 % or more the figures
do not count. Times are of one next(), and of dropping the batch before, which gives its slot back.

least: the same 8 consumers without larder: a call of about as much Python code as next() runs, on memory of the
process itself, that returns an array made before the pause. It says what a pause costs an interpreter here.

cpu: processor time of a batch of 256x3x224x224 uint8 that is ready until it has been dropped again, both sides
together, its filling excluded. larder: the client's side on such batches, and the whole daemon on batches of one image
of one pixel, which still has planning, journal and the filling of that pixel in it: an upper bound. torch: DataLoader
with one worker whose dataset gives whole batches, each a copy made for it (fresh), or always the same one in shared
memory (shared). Every consumer sleeps between two batches. Of each consumer everything counts that its process does
from the third batch of an epoch to the last. What the beginning and the end of the epoch cost beside is a figure of its
own (edges): torch starts a worker there, larder asks the daemon for the epoch. """

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import pathlib
import statistics
import sys
import threading
import time

from loaders import Build, Daemon, cpu_of, gate, photographs, spawn

JOBS, PAUSE, SMALL = 8, 0.05, 8
FIRST = 3  # batches of an epoch that belong to its beginning
SHAPE = (256, 3, 224, 224)


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


def busy() -> tuple[int, int]:
    """Ticks of all processors: not idle, and all."""
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


# --- children -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Consumer:
    """A job that sleeps between two batches."""

    data: str
    number: int
    batch: int  # samples
    pause: float  # seconds
    batches: int
    recipe: str  # crop or pixel

    def command(self) -> list[str]:
        return ["--child", "next", json.dumps(dataclasses.asdict(self))]


def child_next(job: Consumer) -> None:
    import larder

    ops = larder.ops
    first = {"crop": ops.RandomResizedCrop(224), "pixel": ops.CenterCrop(1)}[job.recipe]
    loader = larder.Loader(f"imagefolder:{job.data}", batch_size=job.batch, shuffle=True, seed=job.number,
                           job=f"handover-{job.number}", drop_last=True, transform=[first, ops.ToImage()])
    for _ in loader:  # from here on every sample is in memory
        pass
    del _
    waits: list[float] = []
    drops: list[float] = []
    cpu: list[float] = []
    gate()
    while len(waits) < job.batches:
        it = iter(loader)
        while True:
            time.sleep(job.pause)
            c, t = time.process_time(), time.perf_counter()
            value = next(it, None)
            taken = time.perf_counter()
            if value is None:
                break
            del value
            dropped = time.perf_counter()
            cpu.append(time.process_time() - c)
            waits.append(taken - t)
            drops.append(dropped - taken)
    daemon = cpu_of(int(os.environ["LARDER_BENCH_DAEMON"]))
    loader.close()
    print(json.dumps({"waits": waits, "drops": drops, "cpu": cpu, "end": daemon}), flush=True)


class Least:
    """An iterator that does what the short way of larder's next() does, with nothing behind it."""

    def __init__(self, page: memoryview) -> None:
        self.lock, self.words, self.head, self.mask, self.first = threading.RLock(), page.cast("Q"), 0, 3, 16
        self.ready: dict[int, tuple[object, list[int]]] = {}
        self.held: dict[int, list[int]] = {}
        self.frames = self.rows = self.batches = self.samples = 0

    def __next__(self) -> object:
        with self.lock:
            words = self.words
            at = self.first + ((self.head & self.mask) << 3)
            seq, slot = words[at], words[at + 3]
            if (seq != 0 or words[at + 1] != self.frames or words[at + 4] & 0xFFFFFFFF != 0 or slot >> 32 != self.rows
                    or len(self.held) > 1):
                raise StopIteration
            slot &= 0xFFFFFFFF
            batch, lease = self.ready.pop(slot)
            self.held[slot] = lease
            self.head = self.head + 1
            lease.append(words[at + 2])
            self.batches += 1
            self.samples += self.rows
            return batch


def child_least(pause: float, batches: int) -> None:
    """As child_next, of Least."""
    import numpy as np

    page = mmap.mmap(-1, 8 << 20)
    it = Least(memoryview(page))
    waits: list[float] = []
    drops: list[float] = []
    gate()
    for _ in range(batches):
        root = np.frombuffer(page, np.uint8, 4 << 20, 0)
        it.ready[0] = (np.ndarray((SMALL, *SHAPE[1:]), np.uint8, root), [])
        del root
        time.sleep(pause)
        t = time.perf_counter()
        value = next(it)
        taken = time.perf_counter()
        del value
        drops.append(time.perf_counter() - taken)
        waits.append(taken - t)
    print(json.dumps({"waits": waits, "drops": drops}), flush=True)


def child_epoch(data: str, batch: int, pause: float, batches: int) -> None:
    """One epoch of so many batches, after one that brought its samples into memory."""
    import larder

    ops = larder.ops
    loader = larder.Loader(f"imagefolder:{data}", batch_size=batch, shuffle=True, job="handover", drop_last=True,
                           subset=f"id < {batch * batches}",
                           transform=[ops.Resize([224, 224]), ops.ToImage()])
    for _ in loader:
        pass
    del _
    gate()
    spent = [time.process_time()]
    it = iter(loader)
    while True:
        time.sleep(pause)
        value = next(it, None)
        if value is None:
            break
        del value
        spent.append(time.process_time())
    end = time.process_time()
    loader.close()
    assert len(spent) == batches + 1, len(spent)
    print(json.dumps(costs(spent, end)), flush=True)


def costs(spent: list[float], end: float) -> dict[str, float]:
    """What a batch takes, and the edges of the epoch: seconds before it and after each of its batches, and at its
    end."""
    each = (spent[-1] - spent[FIRST]) / (len(spent) - 1 - FIRST)
    return {"cpu": each, "edges": spent[FIRST] - spent[0] - FIRST * each + end - spent[-1]}


class Passed:
    """A dataset of whole batches: a copy for every one, or the same one in shared memory. It counts what the filling
    takes."""

    def __init__(self, fresh: bool, batches: int) -> None:
        import torch

        self.fresh, self.batches = fresh, batches
        self.filling = torch.zeros(1, dtype=torch.float64).share_memory_()
        self.batch = torch.full(SHAPE, 7, dtype=torch.uint8)
        if not fresh:
            self.batch.share_memory_()

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, _index: int) -> object:
        if not self.fresh:
            return self.batch
        c = time.thread_time()
        batch = self.batch.clone()
        self.filling += time.thread_time() - c
        return batch


def child_torch(fresh: bool, batches: int) -> None:
    import torch

    torch.set_num_threads(1)
    data = Passed(fresh, batches + 4)
    gate()
    spent = [time.process_time()]
    it = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=1))
    worker = it._workers[0].pid
    for batch in it:
        del batch
        spent.append(time.process_time() + cpu_of(worker) - float(data.filling))
        if len(spent) > batches:  # the worker is still there
            break
        time.sleep(0.1)
    print(json.dumps(costs(spent, spent[-1])), flush=True)


# --- runs -----------------------------------------------------------------------------------------------------------


def command(*words: object) -> list[str]:
    return ["--child", *map(str, words)]


def run_next(build: Build, seconds: float) -> dict[str, float]:
    daemon = Daemon(build.binary)
    try:
        env = build.env | {"LARDER_SOCKET": daemon.socket, "LARDER_BENCH_DAEMON": str(daemon.process.pid)}
        marks: list[tuple[int, int]] = []
        batches = int(seconds / PAUSE)
        results = spawn([Consumer(photographs(), i, SMALL, PAUSE, batches, "crop").command() for i in range(JOBS)],
                        env, __file__, lambda: marks.append(busy()))
        marks.append(busy())
    finally:
        daemon.close()
    waits = [1e6 * w for r in results for w in r["waits"]]
    drops = [1e6 * w for r in results for w in r["drops"]]
    return {"p50_us": quantile(waits, 0.5), "p99_us": quantile(waits, 0.99), "drop_p50_us": quantile(drops, 0.5),
            "drop_p99_us": quantile(drops, 0.99),
            "client_cpu_us": 1e6 * statistics.mean([c for r in results for c in r["cpu"]]), "batches": len(waits),
            "busy": (marks[1][0] - marks[0][0]) / max(1, marks[1][1] - marks[0][1])}


def run_least(seconds: float) -> dict[str, float]:
    results = spawn([command("least", PAUSE, int(seconds / PAUSE)) for _ in range(JOBS)], dict(os.environ), __file__)
    waits, drops = ([1e6 * w for r in results for w in r[k]] for k in ("waits", "drops"))
    return {"p50_us": quantile(waits, 0.5), "p99_us": quantile(waits, 0.99), "drop_p50_us": quantile(drops, 0.5),
            "drop_p99_us": quantile(drops, 0.99)}


def run_larder(build: Build, many: str, batches: int) -> dict[str, float]:
    """many has images for an epoch of so many batches."""
    words = {"client": command("epoch", many, SHAPE[0], 0.1, batches),
             "daemon": Consumer(photographs(), 0, 1, 0.005, 20 * batches, "pixel").command()}
    out: dict[str, float] = {}
    for side, child in words.items():
        daemon = Daemon(build.binary)
        try:
            env = build.env | {"LARDER_SOCKET": daemon.socket, "LARDER_BENCH_DAEMON": str(daemon.process.pid)}
            begin: list[float] = []
            [r] = spawn([child], env, __file__, lambda d=daemon, b=begin: b.append(d.cpu()))
        finally:
            daemon.close()
        if side == "client":
            out |= {"client": 1e3 * r["cpu"], "edges_ms": 1e3 * r["edges"]}
        else:
            out["daemon"] = 1e3 * (r["end"] - begin[0]) / len(r["cpu"])
    return out | {"both": out["client"] + out["daemon"]}


def run_torch(fresh: bool, batches: int) -> dict[str, float]:
    [r] = spawn([command("torch", int(fresh), batches)], dict(os.environ), __file__)
    return {"both": 1e3 * r["cpu"], "edges_ms": 1e3 * r["edges"]}


def main() -> None:
    kind, *rest = sys.argv[2:]
    if kind == "next":
        child_next(Consumer(**json.loads(rest[0])))
    elif kind == "least":
        child_least(float(rest[0]), int(rest[1]))
    elif kind == "epoch":
        data, batch, pause, batches = rest
        child_epoch(data, int(batch), float(pause), int(batches))
    else:
        child_torch(rest[0] == "1", int(rest[1]))


if __name__ == "__main__":
    main()
