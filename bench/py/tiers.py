"""Sweeps how memory is split among the tiers of the real daemon, and compares the measured rates with what the models
predict.

    LARDER_BIN=bin/larder .venv/bin/python bench/py/tiers.py [--quick] [--json out/tiers.json]     measures
    .venv/bin/python bench/py/tiers.py --report out/tiers.json
        writes docs/measurements/tiers.md and docs/img

Every split of a budget in steps of 20 % is measured, and the split that larder tune chooses, for one job, for four that
run side by side, for four that start a quarter of an epoch apart and for three with batches of 25, 50 and 75 that share
augmented samples, on photographs ($LARDER_TESTDATA/imagenet-700, or --data) and on a drawn dataset of which little
fits. Storage is held to --storage-limit inside larder, past the page cache. Repeats are interleaved: the whole grid
once, in a new order, then again. A run fills its tiers with a first epoch at full speed, then the limit is set (SIGHUP)
and the window opens. It needs NumPy only.

The second part measures reads of four staggered jobs against the lower bound of their trace (larder bench bound).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import tiers_report
from loaders import ROOT, Daemon

BATCH = 16
PREFETCH = 2
LEAST = 4.0  # seconds of a window


class Phase(NamedTuple):
    batches: tuple[int, ...]  # of each job
    # jobs share augmented samples in every split, also where no tier keeps them; else only where one does
    share: bool = False


PHASES = {"alone": Phase((BATCH,)), "aligned": Phase((BATCH,) * 4), "staggered": Phase((BATCH,) * 4),
          "unlike": Phase((25, 50, 75), True)}
JOBS = {name: len(p.batches) for name, p in PHASES.items()}


class Setting(NamedTuple):
    crop: int  # pixels of what is delivered
    limit: str  # of storage
    budgets: tuple[int, int]  # bytes


# Of the photographs a third and one and a half fit in their stored form, of the drawn images an eighth and a third. The
# limits are so low that storage is what binds in most of the grid on two cores that others use too.
SETTINGS = {"imagenet-700": Setting(224, "10MB/s", (24 << 20, 112 << 20)),
            "drawn": Setting(96, "4MB/s", (1536 << 10, 4 << 20))}
Group = tuple[str, str, int]  # dataset, phase, budget: what is compared with one another
# jobs that one read serves, one decode of what is encoded in memory, one augmentation that no tier keeps
Degrees = dict[Group, list[float]]
# what the daemon indexes, see internal/source
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
SHRINK = 3  # the drawn images' sides, of those of larder demo
MODELS = ("bottleneck", "seneca")


# --- the jobs -------------------------------------------------------------------------------------------------------


def cpu_of(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_busy() -> float:
    """Seconds that all processors together were busy since the start of the machine, without what is nice: it gives
    way."""
    user, _nice, system, _idle, _wait, irq, soft, steal = map(int, pathlib.Path("/proc/stat").read_text().split("\n",
        1)[0].split()[1:9])
    return (user + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


class Jobs:
    """All jobs of a run, a thread each: next() waits outside the interpreter's lock, and nothing is done with the
    batches."""

    def __init__(self, order: dict[str, Any]) -> None:
        import larder

        ops = larder.ops
        self.order, self.n = order, order["jobs"]
        self.loaders = [
            larder.Loader(f"imagefolder:{order['data']}", batch_size=order["batch"][i], shuffle=True, seed=i,
                          job=f"sweep-{i}", order=order["order"],
                          share=order["share"], prefetch=order["prefetch"],
                          transform=[ops.RandomResizedCrop(order["crop"]), ops.RandomHorizontalFlip()])
            for i in range(self.n)
        ]
        self.size = self.loaders[0].num_samples
        # when a batch came, and its samples, by job
        self.marks: list[list[tuple[float, int]]] = [[] for _ in range(self.n)]
        self.epochs: list[list[int]] = [[] for _ in range(self.n)]  # where in marks its epochs begin
        self.edges: dict[str, dict[str, Any]] = {}
        self.due = [threading.Event() for _ in range(self.n)]
        self.over = threading.Event()
        self.failed: list[BaseException] = []

    def edge(self, name: str, i: int) -> None:
        """The daemon's counters, taken by a job between two batches."""
        totals = self.loaders[i].stats().totals
        counters = {k: getattr(totals, k) for k in ("source_reads", "source_bytes", "decodes", "augments",
                                                    "samples_delivered")}
        self.edges[name] = counters | {"hits": dict(totals.hits), "at": time.perf_counter(),
                                       "daemon_cpu": cpu_of(self.order["pid"]),
                                       "own_cpu": time.process_time(), "busy": machine_busy()}

    def long_enough(self) -> bool:
        """Whether the window, if it is open, has LEAST seconds: jobs that run on hits read an epoch in one."""
        begin = self.edges.get("open")
        return self.order["whole"] or (begin is not None and time.perf_counter() - begin["at"] >= LEAST)

    def epoch(self, i: int, nth: int | None) -> None:
        marks, n = self.marks[i], self.n
        self.epochs[i].append(len(marks))
        got = 0
        for _images, labels in self.loaders[i]:
            got += len(labels)
            marks.append((time.perf_counter(), len(labels)))
            del _images
            if nth == 0 and i == 0:  # the first job starts the others
                for k in range(1, n):
                    if got * n >= k * self.size:
                        self.due[k].set()
            done = nth is not None and i == 0 and nth + got / self.size >= self.order["last"]
            if done and not self.over.is_set() and self.long_enough():
                self.edge("close", i)
                self.over.set()
            if self.over.is_set() and not self.order["whole"]:
                return
        assert got == self.size, (got, self.size)

    def run(self, i: int, epochs: int) -> None:
        try:
            self.due[i].wait()
            if i == self.n - 1:
                self.edge("open", i)
            for e in range(epochs) if self.order["whole"] else itertools.count():
                if self.over.is_set() and not self.order["whole"]:
                    break
                self.epoch(i, e)
        except BaseException as e:  # reported to the parent
            self.failed.append(e)
            self.over.set()
            for d in self.due:
                d.set()

    def all(self, f: Any) -> None:
        threads = [threading.Thread(target=f, args=(i,)) for i in range(self.n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if self.failed:
            raise self.failed[0]

    def warm(self) -> None:
        """An epoch of one job fills the tiers that outlive an epoch; augmented samples do not."""
        self.epoch(0, None)

    def measure(self) -> dict[str, Any]:
        staggered = self.order["phase"] == "staggered"
        for k in range(self.n if not staggered else 1):
            self.due[k].set()
        self.all(lambda i: self.run(i, self.order["epochs"]))
        begin, end = self.edges["open"], self.edges["close"]
        got = sum(n for m in self.marks for t, n in m if begin["at"] < t <= end["at"])
        window = {k: end[k] - begin[k] for k in ("source_reads", "source_bytes", "decodes", "augments",
                                                 "samples_delivered", "daemon_cpu", "own_cpu", "busy")}
        window["hits"] = {k: end["hits"].get(k, 0) - begin["hits"].get(k, 0) for k in end["hits"]}
        seconds = end["at"] - begin["at"]
        return window | {"seconds": seconds, "delivered": got, "rate": got / seconds, "samples": self.size,
                         "foreign": max(0.0, window["busy"] - window["daemon_cpu"] - window["own_cpu"]) / seconds}

    def trace(self) -> list[dict[str, Any]]:
        """What was delivered, for larder bench bound: by epoch of a job, instants in microseconds and samples."""
        out = []
        for i, starts in enumerate(self.epochs):
            for a, b in itertools.zip_longest(starts, starts[1:]):
                steps = [[int(1e6 * t), n] for t, n in self.marks[i][a:b]]
                if steps:
                    out.append({"job": i, "steps": steps})
        return out


def child(order: dict[str, Any]) -> None:
    jobs = Jobs(order)
    if not order["cold"]:
        jobs.warm()
    print("warm", flush=True)
    sys.stdin.readline()
    if not order["cold"]:
        for m, e in zip(jobs.marks, jobs.epochs, strict=True):
            m.clear(), e.clear()
    result = jobs.measure()
    if order["cold"]:
        result["trace"] = jobs.trace()
        result["totals"] = {k: getattr(jobs.loaders[0].stats().totals, k) for k in ("source_reads", "decodes",
            "samples_delivered")}
    for loader in jobs.loaders:
        loader.close()
    print(json.dumps(result), flush=True)


# --- runs -----------------------------------------------------------------------------------------------------------


class Throttled(Daemon):
    """A daemon with tiers of given bytes, whose storage is not limited at first."""

    def __init__(self, args: argparse.Namespace, split: tuple[int, int, int], limit: str = "") -> None:
        self.config = tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False)
        e, d, a = split
        self.tiers = (f"tiers: {{total: {e + d + a}, encoded: {e}, decoded: {d}, augmented: {a}}}\n"
                      f"prep: {{workers: {args.workers}}}\n")
        self.write(limit)
        super().__init__(args.bin, "--config", self.config.name)

    def write(self, limit: str) -> None:
        pathlib.Path(self.config.name).write_text(self.tiers + f"source: {{storage_limit: \"{limit}\"}}\n")

    def throttle(self, limit: str) -> None:
        self.write(limit)
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while "key=source.storage_limit" not in pathlib.Path(self.log.name).read_text():
            if time.monotonic() > deadline:
                raise SystemExit("the daemon did not take the storage limit:\n"
                                 + pathlib.Path(self.log.name).read_text())
            time.sleep(0.01)

    def close(self) -> None:
        super().close()
        os.unlink(self.config.name)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a daemon and its jobs. cold: no warm-up, all epochs to their end, and the trace of everything; batches
    are small then, so that little is in flight."""

    name: str  # of the dataset, in SETTINGS
    data: str  # its folder
    phase: str
    split: tuple[int, int, int]  # bytes: encoded, decoded, augmented
    share: bool
    order: str = "stratified"
    epochs: int | None = None  # None: one, or what staggered jobs need
    cold: bool = False

    def spec(self, pid: int) -> dict[str, Any]:
        """What the process of the jobs is given; pid is the daemon's."""
        last = self.epochs or (1.75 if self.phase == "staggered" else 1)
        jobs = JOBS[self.phase]
        return {"data": self.data, "jobs": jobs, "phase": self.phase, "share": "augmented" if self.share else "none",
                "order": self.order, "cold": self.cold, "whole": self.cold, "last": last, "epochs": math.ceil(last),
                "pid": pid, "crop": SETTINGS[self.name].crop,
                "batch": [4] * jobs if self.cold else PHASES[self.phase].batches,
                "prefetch": 1 if self.cold else PREFETCH}


def run(args: argparse.Namespace, one: Run) -> dict[str, Any]:
    """Starts a daemon, its jobs, a warm-up, and measures a window of one epoch's length, which begins when the last job
    does."""
    limit = SETTINGS[one.name].limit
    daemon = Throttled(args, one.split, limit if one.cold else "")
    try:
        spec = one.spec(daemon.process.pid)
        env = dict(os.environ, PYTHONPATH=f"{ROOT / 'python'}", LARDER_SOCKET=daemon.socket)
        p = subprocess.Popen([sys.executable, __file__, "--child", json.dumps(spec)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True, env=env)
        try:
            if p.stdout.readline().strip() != "warm":
                raise SystemExit("the jobs did not start; the daemon says:\n"
                                 + pathlib.Path(daemon.log.name).read_text())
            if not one.cold:
                daemon.throttle(limit)
            out, _ = p.communicate("go\n", timeout=600)
        finally:
            if p.poll() is None:
                p.kill()
                p.wait()
        if p.returncode:
            raise SystemExit(f"the jobs failed ({p.returncode})")
        return json.loads(out.splitlines()[-1])
    finally:
        daemon.close()


def larder(args: argparse.Namespace, *command: str, stdin: str | None = None) -> Any:
    done = subprocess.run([args.bin, *command, "-o", "json"], input=stdin, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"larder {' '.join(command)}:\n{done.stderr}")
    return json.loads(done.stdout)


def profile(args: argparse.Namespace, name: str, data: str, path: str) -> dict[str, Any]:
    """Measures the machine as larder profile does, storage held to the same limit, workers as the daemon has them."""
    workers = [] if args.workers == "auto" else ["--workers", args.workers]
    recipe = f"- RandomResizedCrop: {{size: {SETTINGS[name].crop}}}\n- RandomHorizontalFlip\n"
    return larder(args, "profile", f"imagefolder:{data}", "--recipe", "-", "--seconds", str(args.profile_seconds),
                  "--storage-limit",
                  SETTINGS[name].limit, "--save", path, *workers, stdin=recipe)


def on_cores(p: dict[str, Any], cores: float) -> dict[str, Any]:
    """The profile of a machine of which larder has so many cores: rates are what the processor time of a sample
    allows."""
    return p | {"rates": {k: v * cores for k, v in p["samples_per_cpu_second"].items()}}


def middle(profiles: list[dict[str, Any]]) -> dict[str, Any]:
    """The profile whose every figure is the median of the profiles'."""
    def merge(*v: Any) -> Any:
        if isinstance(v[0], dict):
            return {k: merge(*(x[k] for x in v)) for k in v[0]}
        if isinstance(v[0], float) and not isinstance(v[0], bool):
            return statistics.median(v)
        return v[0]

    return merge(*profiles)


@dataclasses.dataclass(frozen=True)
class Question:
    """What larder tune is asked: to choose a split of a group's budget, or to predict the rates of given splits."""

    profile: str  # the file
    group: Group
    share: bool
    model: str = "bottleneck"
    splits: Sequence[tuple[int, int, int]] = ()  # bytes: encoded, decoded, augmented


def tune(args: argparse.Namespace, degrees: Degrees, q: Question) -> dict[str, Any]:
    flags = [x for e, d, a in q.splits for x in ("--split", f"encoded={e},decoded={d},augmented={a}")]
    jobs = JOBS[q.group[1]]
    if q.group in degrees:
        known = degrees[q.group][: 3 if q.share else 2]
        flags += ["--degree", ",".join(str(min(max(x, 1), jobs) if x else 0) for x in known)]
    return larder(args, "tune", "--profile", q.profile, "--budget", str(q.group[2]), "--jobs", str(jobs),
                  "--model", q.model, *flags, *(["--share"] if q.share else []))


def together(args: argparse.Namespace, data: dict[str, str], grid: list[dict[str, Any]]) -> Degrees:
    """How many jobs one read serves, one decode of what is encoded in memory, and one augmentation, by group; 0 where
    that is not known. Of a run in which all memory is encoded. The daemon measures the same of its jobs: jobs side by
    side read everything together, others do not."""
    out: Degrees = {}
    for g in dict.fromkeys(map(key, grid)):
        if JOBS[g[1]] > 1:
            r = run(args, Run(g[0], data[g[0]], g[1], (g[2], 0, 0), True))
            held = min(1, g[2] * 15 / 16 / stored(data[g[0]]))
            out[g] = degrees_of(r, held)
            print(f"  {g}: one read serves {out[g][0]:.2f} jobs, one decode {out[g][1]:.2f}, one augmentation "
                  f"{out[g][2]:.2f}", file=sys.stderr, flush=True)
    return out


def degrees_of(r: dict[str, Any], held: float) -> list[float]:
    """As internal/coordinator/degree.go counts them, where nothing but a part of the encoded samples is held."""
    n, reads, decodes = r["delivered"], r["source_reads"], r["decodes"] - r["source_reads"]
    return [n * (1 - held) / reads if held <= 0.8 and reads else 0, n * held / decodes if held >= 0.2 and decodes > 0
            else 0, n / max(r["augments"], 1)]


def stored(data: str) -> int:
    """Bytes of all images, each in whole pages."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(-(-f.stat().st_size // page) * page for f in pathlib.Path(data).rglob("*")
               if f.suffix.lower() in SUFFIXES)


def simplex(step: int) -> list[tuple[int, int, int]]:
    """All splits of 100 % in steps, as percentages of encoded, decoded, augmented."""
    return [(e, d, 100 - e - d) for e in range(100, -1, -step) for d in range(100 - e, -1, -step)]


def bytes_of(split: tuple[int, int, int], budget: int) -> tuple[int, int, int]:
    return tuple(budget * p // 100 for p in split)


# --- the sweep ------------------------------------------------------------------------------------------------------


def cells(args: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    out = []
    for name, phase in itertools.product(names, args.phases):
        step = max(args.step, 50) if phase in args.coarse.split(",") else args.step
        for budget in SETTINGS[name].budgets[: args.budgets]:
            for split in simplex(step):
                share = split[2] > 0 or PHASES[phase].share
                out.append({"dataset": name, "phase": phase, "budget": budget, "percent": split,
                            "split": bytes_of(split, budget), "share": share})
    return out


def key(c: dict[str, Any]) -> Group:
    return c["dataset"], c["phase"], c["budget"]


def choose(args: argparse.Namespace, grid: list[dict[str, Any]], files: dict[str, str], degrees: Degrees) -> None:
    """Adds what larder tune chooses to the grid, as the daemon's jobs would: shared augmentation is offered to jobs of
    one recipe, and they share whatever the split is."""
    for g in sorted(set(map(key, grid))):
        name, phase, budget = g
        s = tune(args, degrees, Question(files[name], g, JOBS[phase] > 1))["split"]
        split = (s["encoded_bytes"], s["decoded_bytes"], s["augmented_bytes"])
        grid.append({"dataset": name, "phase": phase, "budget": budget, "percent": "chosen", "split": split,
                     "share": JOBS[phase] > 1})


def predict(args: argparse.Namespace, grid: list[dict[str, Any]], files: dict[str, str], degrees: Degrees) -> None:
    for g, group in itertools.groupby(sorted(grid, key=key), key):
        (name, phase, _), mine = g, list(group)
        for model in MODELS:
            for share in (False, True):
                some = [c for c in mine if c["share"] == share]
                if not some:
                    continue
                answer = tune(args, degrees, Question(files[name], g, share and JOBS[phase] > 1, model,
                                                      [c["split"] for c in some]))
                for c, x in zip(some, answer["candidates"][-len(some):], strict=True):
                    c.setdefault("predicted", {})[model] = {"rate": x["samples_per_second"], "binding": x["binding"],
                                                            "load": x.get("load", {})}
        # And for the cores that each run had: those that others were not on.
        whole = json.loads(pathlib.Path(files[name]).read_text())
        for c in mine:
            for r in c["runs"]:
                had = max(os.cpu_count() - r["foreign"], 0.05)
                pathlib.Path(files[name] + ".had").write_text(json.dumps(on_cores(whole, had)))
                asked = Question(files[name] + ".had", g, c["share"] and JOBS[phase] > 1, splits=[c["split"]])
                best = tune(args, degrees, asked)["candidates"][-1]
                r["cores"], r["predicted"], r["binding"] = had, best["samples_per_second"], best["binding"]


def sweep(args: argparse.Namespace, data: dict[str, str], work: pathlib.Path) -> dict[str, Any]:
    profiles: dict[str, list[dict[str, Any]]] = {n: [] for n in data}
    files = {n: str(work / f"{n}.json") for n in data}

    def look() -> None:
        for n, d in data.items():
            profiles[n].append(profile(args, n, d, files[n]))
            pathlib.Path(files[n]).write_text(json.dumps(middle(profiles[n])))

    part, done = pathlib.Path(args.json + ".part"), 0
    if args.go_on and part.is_file():
        kept = json.loads(part.read_text())
        if (kept["version"], kept["seed"], kept["repeats"]) != (larder(args, "version"), args.seed, args.repeats):
            raise SystemExit(f"{part} was begun by another build, or with another --seed or --repeats: leave --go-on "
                             f"out")
        grid, profiles, done, before = kept["grid"], kept["profiles"], kept["done"], kept["seconds"]
        degrees = {tuple(g): of for g, of in kept["degrees"]}
        for n in data:
            pathlib.Path(files[n]).write_text(json.dumps(middle(profiles[n])))
    else:
        # one look may meet a moment in which the machine had other work, and the choice rests on it
        for _ in range(1 if args.quick else 3):
            look()
        grid, before = cells(args, list(data)), 0.0
        degrees = together(args, data, grid)
        choose(args, grid, files, degrees)
        for c in grid:
            c["runs"] = []
    begun, first = time.monotonic(), done
    rnd = random.Random(args.seed)
    for n, (repeat, i) in enumerate([(r, i) for r in range(args.repeats) for i in rnd.sample(range(len(grid)),
        len(grid))]):
        if n < done or time.monotonic() - begun > 60 * args.minutes:
            continue
        if repeat and n % len(grid) == 0:
            look()
        c = grid[i]
        c["runs"].append(run(args, Run(c["dataset"], data[c["dataset"]], c["phase"], c["split"], c["share"])))
        done = n + 1
        if done % 10 == 0:
            seconds = time.monotonic() - begun
            part.write_text(json.dumps({"version": larder(args, "version"), "seed": args.seed, "repeats": args.repeats,
                                        "grid": grid, "profiles": profiles,
                                        "degrees": list(degrees.items()), "done": done, "seconds": before + seconds}))
            left = seconds / (done - first) * (args.repeats * len(grid) - done)
            print(f"  {done} of {args.repeats * len(grid)} runs, about {left / 60:.0f} min to go", file=sys.stderr,
                  flush=True)
    part.unlink(missing_ok=True)
    begun -= before
    predict(args, grid, files, degrees)
    return {"cells": grid, "profiles": profiles, "degrees": list(degrees.items()), "seconds": time.monotonic() - begun}


# --- reads against the lower bound ----------------------------------------------------------------------------------


def reads(args: argparse.Namespace, name: str, data: str) -> list[dict[str, Any]]:
    """Four jobs a quarter of an epoch apart, an encoded tier that holds 20 % of the samples (in whole pages, a
    sixteenth kept free), for some epochs from the first read on. The bound is counted with what the tier holds and what
    is in flight: rings, and what is being prepared."""
    samples = sum(f.suffix.lower() in SUFFIXES for f in pathlib.Path(data).rglob("*"))
    held, budget = samples // 5, stored(data) // 5 * 16 // 15
    out = []
    for order in ("epoch", "stratified", "strict"):
        for _ in range(args.repeats if not args.quick else 1):
            r = run(args, Run(name, data, "staggered", (budget, 0, 0), False, order, args.read_epochs, cold=True))
            workers = os.cpu_count() if args.workers == "auto" else int(args.workers)
            # 3 slots of 4 in each of 4 rings; for each worker 2 preparations handed out and as many working copies, at
            # most
            flying = 4 * 3 * 4 + 4 * workers
            trace = {"subset": samples, "jobs": 4, "cache": held + flying, "epochs": r.pop("trace")}
            bound = larder(args, "bench", "bound", "--trace", "-", stdin=json.dumps(trace))
            alone = larder(args, "bench", "bound", "--trace", "-", stdin=json.dumps(trace | {"cache": held}))
            out.append({"dataset": name, "order": order, "reads": r["totals"]["source_reads"],
                        "delivered": r["totals"]["samples_delivered"], "held": held,
                        "flying": flying, "bound": bound["lower_bound"], "bound_of_tier": alone["lower_bound"],
                        "rate": r["rate"]})
            print(f"  reads, {order}: {out[-1]}", file=sys.stderr, flush=True)
    return out


# --- command --------------------------------------------------------------------------------------------------------


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    parser.add_argument("--data",
                        default=str(pathlib.Path(os.environ.get("LARDER_TESTDATA",
                                                                ROOT / "../shared/data")) / "imagenet-700"))
    parser.add_argument("--drawn", type=int, default=1500, help="images to draw")
    parser.add_argument("--datasets", default="imagenet-700,drawn")
    parser.add_argument("--phases", default=",".join(JOBS), help="of " + ", ".join(JOBS))
    parser.add_argument("--workers", default="auto", help="prep.workers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--step", type=int, default=20, help="of the splits, %%")
    parser.add_argument("--coarse", default="", help="phases that are measured in steps of 50 %% only")
    parser.add_argument("--budgets", type=int, default=2)
    parser.add_argument("--limit", default="", help="hold storage to this rate instead of that of each dataset, e.g. "
                                                    "20MB/s")
    parser.add_argument("--read-epochs", type=int, default=8)
    parser.add_argument("--profile-seconds", type=float, default=12)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run of the sweep after so long")
    parser.add_argument("--only", choices=["sweep", "reads"])
    parser.add_argument("--quick", action="store_true", help="a coarse grid, once: about three minutes")
    parser.add_argument("--go-on", action="store_true", help="with a sweep that was cut off: its runs are beside "
                                                             "--json, in .part")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the runs")
    parser.add_argument("--json", default=str(ROOT / "out/tiers.json"))
    parser.add_argument("--report", metavar="JSON", nargs="+", help="measure nothing: write tables and plots of these "
                                                                    "figures into docs")
    args = parser.parse_args()
    if args.report:
        tiers_report.write([json.loads(pathlib.Path(f).read_text()) for f in args.report], ROOT / "docs")
        return
    args.phases = [p for p in args.phases.split(",") if p]
    for p in args.phases:
        if p not in JOBS:
            parser.error(f"--phases {p}: choose of {', '.join(JOBS)}")
    if args.quick:
        args.step, args.coarse, args.repeats, args.budgets, args.read_epochs, args.profile_seconds = 100, "", 1, 1, 3, 4
    names = [n for n in args.datasets.split(",") if n]
    if args.limit:
        SETTINGS.update({n: SETTINGS[n]._replace(limit=args.limit) for n in names})
    with tempfile.TemporaryDirectory(prefix="larder-tiers-") as tmp:
        data: dict[str, str] = {}
        for n in names:
            if n == "drawn":
                data[n] = f"{tmp}/drawn"
                subprocess.run([args.bin, "demo-draw", data[n], "--samples", str(args.drawn), "--shrink", str(SHRINK)],
                               check=True)
            elif pathlib.Path(args.data).is_dir():
                data[n] = str(pathlib.Path(args.data).resolve())
            else:
                parser.error(f"{args.data} is no folder: give --data or $LARDER_TESTDATA, or --datasets drawn")
        result: dict[str, Any] = {"kind": "tiers", "settings": {n: SETTINGS[n]._asdict() for n in names},
                                  "workers": args.workers, "processors": os.cpu_count(), "batch": BATCH,
                                  "version": larder(args, "version"), "repeats": args.repeats, "step": args.step}
        path = pathlib.Path(args.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            result = json.loads(path.read_text()) | result  # the other half of an earlier run stays
        if args.only != "reads":
            result |= sweep(args, data, pathlib.Path(tmp))
            path.write_text(json.dumps(result))
        if args.only != "sweep":
            first = names[0]
            result["reads"] = reads(args, first, data[first])
            path.write_text(json.dumps(result))
        print(tiers_report.text(tiers_report.merge([result])))
        print(f"raw figures: {path}")


if __name__ == "__main__":
    main()
