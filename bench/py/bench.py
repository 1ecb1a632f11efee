"""make bench: larder beside its peers, all of it in turn in one run, against the bars of docs/benchmarks.md.

    .venv/bin/python bench/py/bench.py [--minutes 14] [--quick] [--only WORD] [--write]
    .venv/bin/python bench/py/bench.py --base REF [...]        make bench-compare BASE=REF

Every repetition runs everything once, every second one backwards, as often as the minutes allow, and at least three
times. Figures are medians; intervals are 95 % bootstrap intervals of ratios of medians; the end of the interval that is
worse for larder is compared with the bar. Torch's DataLoader counts with the best of 0, 1 and 2 workers. All raw
figures go to out/bench/live.json (change.json with --base); --write rewrites the rows between the marks of
docs/benchmarks.md. Peers that this machine cannot have are named, with the reason.

With --base nothing but larder runs: this tree and the one of a git ref, which is built in a worktree, take turns.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import pathlib
import platform
import re
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import figures
import handover
import loaders
import native
import peer_tensorsocket
from figures import Bar, Figure, Runs, Source
from loaders import ROOT, Build, Work, out_dir
from peer_tensorsocket import Shape

WORKERS = (0, 1, 2)


def processors() -> int:
    return len(os.sched_getaffinity(0))


@dataclass
class Step:
    """What runs in each repetition, or once, under a label."""

    label: str
    run: Callable[[], dict[str, float]]
    times: int = 1 << 30


def larder_steps(build: Build, quick: bool, loop: str, prefix: str = "") -> list[Step]:
    data, tiny = loaders.photographs(), functools.cache(lambda: loaders.draw_tiny(2_000 if quick else 60_000))
    few = 2 if quick else 8
    gather, inner = (functools.cache(lambda p=p: native.tests(build, p)) for p in ("engine", "prep"))
    steps = [
        Step("1 job, larder, nothing kept",
             lambda: loaders.run_larder(build, data, 1, Work(1 if quick else 6, kept=False))),
        Step("1 job, larder", lambda: loaders.run_larder(build, data, 1, Work(few))),
        Step("4 jobs, larder", lambda: loaders.run_larder(build, data, 4, Work(few))),
        Step("4 jobs, larder, share=augmented",
             lambda: loaders.run_larder(build, data, 4, Work(few, share="augmented"))),
        Step("4 jobs, larder, uint8", lambda: loaders.run_larder(build, data, 4, Work(few, "uint8"))),
        Step("4 jobs, larder, uint8, share=augmented",
             lambda: loaders.run_larder(build, data, 4, Work(few, "uint8", "augmented"))),
        Step("tiny images, larder", lambda: loaders.run_larder(build, tiny(), 1, Work(3, "tiny"))),
        Step("next() of 8 jobs, larder", lambda: handover.run_next(build, 2 if quick else 8)),
        Step("next() of 8 jobs, least", lambda: handover.run_least(2 if quick else 8)),
        Step("hand-over, larder", lambda: handover.run_larder(build, tiny(), 7 if quick else 40)),
        Step("gather", lambda: native.run_gather(build, gather(), 5 if quick else 60)),
        Step("file to sample, one thread", lambda: native.run_prep(build, loop, 60 if quick else 700, 1)),
        *([Step("bare C loops, one for each processor", lambda: native.run_bare(loop, processors(), 60 if quick
                                                                                else 700, 2))] if loop else []),
        Step("allocations", lambda: loaders.run_allocations(build, data, 4 if quick else 24), 1),
        Step("allocations, inner loops", lambda: native.run_inner(build, inner(), gather()), 1),
    ]
    if not quick:
        steps.append(Step("churn", lambda: loaders.run_churn(build, data, 2), 1))
    return [Step(prefix + s.label, s.run, s.times) for s in steps]


def torch_steps(quick: bool) -> list[Step]:
    data, tiny = loaders.photographs(), functools.cache(lambda: loaders.draw_tiny(2_000 if quick else 60_000))
    out = []
    for w in WORKERS:
        out += [
            Step(f"1 job, torch, {w} workers", lambda w=w: loaders.run_torch(data, 1, w, 1 if quick else 2)),
            Step(f"4 jobs, torch, {w} workers", lambda w=w: loaders.run_torch(data, 4, w, 1 if quick else 2)),
            Step(f"tiny images, torch, {w} workers", lambda w=w: loaders.run_torch(tiny(), 1, w, 1, kind="tiny")),
        ]
    return [
        *out,
        Step("hand-over, torch, a fresh tensor", lambda: handover.run_torch(True, 8 if quick else 25)),
        Step("hand-over, torch, a tensor in shared memory", lambda: handover.run_torch(False, 8 if quick else 25)),
    ]


def tensorsocket_steps(python: str, quick: bool) -> list[Step]:
    data = loaders.photographs()
    out = [Step(f"4 jobs, TensorSocket, shared memory, {w} workers",
                lambda w=w: peer_tensorsocket.run(python, data, Shape(4, w, 3 if quick else 5, shared=True)))
           for w in WORKERS]
    if not quick:
        out.append(Step("4 jobs, TensorSocket, pickled, 2 workers",
                        lambda: peer_tensorsocket.run(python, data, Shape(4, 2, 15, shared=False)), 1))
    return out


def bars() -> list[Bar]:
    def torch(jobs: str, key: str, workers: tuple[int, ...] = WORKERS) -> tuple[Source, ...]:
        return tuple(Source(f"{jobs}, torch, {w} workers", key) for w in workers)

    socket = tuple(Source(f"4 jobs, TensorSocket, shared memory, {w} workers", "warm") for w in WORKERS)
    best = "torch DataLoader, best of 0-2 workers"
    cold = Source("1 job, larder, nothing kept", "per_cpu_second")
    single, whole = (Source("file to sample, one thread", key) for key in ("bare", "bare_batch"))
    shared = Source("4 jobs, larder, share=augmented", "warm")
    both = Source("hand-over, larder", "both")

    def full(runs: Runs) -> str:
        busy = Source("next() of 8 jobs, larder", "busy").values(runs)
        return f"does not count: {100 * statistics.median(busy):.0f} % busy" if busy and statistics.median(
            busy) >= 0.7 else ""

    return [
        Bar("1 job, cold, images per CPU-second of both sides", cold, 1.9, torch("1 job", "per_cpu_second", (0,)),
            "torch DataLoader, 0 workers"),
        Bar("the same, daemon and client", cold, 0.95, (whole,),
            "the bare C loop of the same work: from file to batch"),
        Bar("the same (not the bar)", cold, 0.95, (Source("bare C loops, one for each processor", "per_cpu_second"),),
            "as many bare C loops at once as there are processors"),
        Bar("one thread of it, file to sample (not the bar)", Source("file to sample, one thread", "larder"), 0.95,
            (single,), "the bare C loop, both from memory to one place"),
        Bar("1 job, cold, wall", Source("1 job, larder, nothing kept", "wall"), 2.0, torch("1 job", "warm"), best),
        Bar("4 jobs, own augmentation, warm decoded tier", Source("4 jobs, larder", "warm"), 6, torch("4 jobs", "warm"),
            best),
        Bar("4 jobs, own augmentation, first epoch", Source("4 jobs, larder", "cold"), 3.5, torch("4 jobs", "warm"),
            best),
        Bar('4 jobs, share="augmented"', shared, 8, torch("4 jobs", "warm"), best),
        Bar('4 jobs, share="augmented"', shared, 1.5, socket, "TensorSocket, shared memory"),
        Bar("warm gather, CHW, GB per CPU-second", Source("gather", "chw"), 0.7, (Source("gather", "chw_memcpy"),),
            "memcpy"),
        Bar("warm gather, HWC, GB per CPU-second", Source("gather", "hwc"), 0.7, (Source("gather", "hwc_memcpy"),),
            "memcpy"),
        Bar("hand-over of 256x3x224x224 uint8, CPU of both sides", both, 100,
            (Source("hand-over, torch, a fresh tensor", "both"),), "torch, a fresh tensor", inverse=True),
        Bar("the same", both, 5, (Source("hand-over, torch, a tensor in shared memory", "both"),),
            "torch, a tensor in shared memory", inverse=True),
        Bar("next() on a prefetch hit, 8 jobs: p50", Source("next() of 8 jobs, larder", "p50_us"), 20, at_least=False,
            unit="µs", valid=full),
        Bar("next() on a prefetch hit, 8 jobs: p99", Source("next() of 8 jobs, larder", "p99_us"), 300, at_least=False,
            unit="µs", valid=full),
        Bar("as much Python with nothing behind it: p50 (not the bar)", Source("next() of 8 jobs, least", "p50_us"), 20,
            at_least=False, unit="µs", valid=full),
        Bar("allocations per sample in steady state, daemon", Source("allocations", "a_sample"), 2, at_least=False,
            unit="", counted=True),
        Bar("allocations in decode, kernels, gather", Source("allocations, inner loops", "most"), 0, at_least=False,
            unit="", counted=True),
        Bar("RSS ÷ configured budget under churn", Source("churn", "rss_of_limit"), 1.05, at_least=False, unit="",
            counted=True),
        Bar("collector's part of the processors' time under churn", Source("churn", "gc_of_cpu"), 0.01, at_least=False,
            unit="%", counted=True),
        Bar("tiny samples, 1 job, warm", Source("tiny images, larder", "warm"), 3, torch("tiny images", "warm"), best),
    ]


# What more of is better, and less of.
BETTER = {"cold": True, "warm": True, "wall": True, "per_cpu_second": True, "daemon_per_cpu_second": True,
          "larder": True, "chw": True, "hwc": True,
          "p50_us": False, "p99_us": False, "drop_p50_us": False, "both": False, "client": False, "daemon": False,
          "a_sample": False, "rss": False, "rss_of_limit": False}


def stalls(runs: list[dict[str, float]]) -> bool:
    """A peer that stalled twice and never worked: to wait for it again would only take time from the others."""
    return len(runs) > 1 and all(set(r) == {"stalled"} for r in runs)


def measure(steps: list[Step], minutes: float, most: int) -> Runs:
    runs: Runs = {s.label: [] for s in steps}
    loaders.into_page_cache(loaders.photographs())
    begun, longest = time.monotonic(), 0.0
    done = 0
    while done < most and (done < figures.FEWEST or time.monotonic() - begun + longest < 60 * minutes):
        start = time.monotonic()
        for s in steps if done % 2 == 0 else reversed(steps):
            if len(runs[s.label]) >= s.times or stalls(runs[s.label]):
                continue
            r = s.run()
            if "inner loops" in s.label:
                r["most"] = max(r.values())
            runs[s.label].append(r)
            print(f"  [{time.monotonic() - begun:4.0f} s] {s.label}: " + ", ".join(f"{k} {v:,.3g}" for k,
                v in r.items()), flush=True)
        done += 1
        longest = max(longest if done > 2 else 0, time.monotonic() - start)  # the first one has what runs once
        print(f"repetition {done} took {time.monotonic() - start:.0f} s", flush=True)
    return runs


def machine() -> dict[str, object]:
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.*)", info)
    memory = int(re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) / (1 << 20)
    try:
        import torch
        import torchvision

        peers = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    except ImportError:
        peers = ""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True,
                            text=True).stdout.strip()
    return {"processor": model[1] if model else platform.machine(), "processors": processors(),
            "memory_gib": round(memory, 1),
            "kernel": platform.release(), "python": platform.python_version(), "peers": peers, "commit": commit,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "load_before": os.getloadavg()[0]}


def base_build(ref: str) -> Build:
    """The larder of a git ref, built in a worktree under out/bench."""
    tree = out_dir() / "base"
    if tree.exists():
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
    subprocess.run(["git", "worktree", "add", "--force", "--detach", str(tree), ref], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run(["make", "build"], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    return Build("base", str(tree / "bin/larder"), tree)


def compare(args: argparse.Namespace, this: Build, loop: str) -> None:
    base = base_build(args.base)
    sides = [larder_steps(b, args.quick, loop, f"{b.name}: ") for b in (base, this)]
    steps = [s for pair in zip(*sides, strict=True) for s in pair if args.only in s.label]
    if not steps:
        raise SystemExit(f"no run is called like {args.only!r}")
    about = machine()
    runs = measure(steps, args.minutes, args.repeats)
    out = out_dir() / "change.json"
    out.write_text(json.dumps({"kind": "bars", "machine": about, "base": args.base, "runs": runs}, indent=1))
    print(f"\n{args.base} against this tree; below 2 % nothing is claimed\n\n"
          + "\n".join(figures.change_table(runs, "base", "this", BETTER)) + f"\n\nraw figures: {out}")


def page(about: dict[str, object], found: list[Figure], runs: Runs, absent: dict[str, str], command: str) -> list[str]:
    keys = {"cold": "first epoch, img/s", "warm": "later epochs, img/s", "per_cpu_second": "img per CPU-second"}
    other = {"both": "CPU ms a batch, both sides", "client": "client", "daemon": "daemon",
             "edges_ms": "an epoch's edges, ms", "p50_us": "p50 µs", "p99_us": "p99 µs",
             "drop_p50_us": "giving back, p50 µs", "drop_p99_us": "p99 µs"}
    return [
        f"`{command}`, {about['date']}, {about['commit']}: {about['processors']} processors ({about['processor']}), "
        f"{about['memory_gib']} GiB, {about['peers']};",
        f"load before it {about['load_before']:.1f}. Medians; the worse end of the interval is compared with the bar.",
        "", *figures.bars_table(found), *figures.runs_table(runs, keys), *figures.runs_table(runs, other),
        *([""] if absent else []), *(f"{name}: not reachable ({why})." for name, why in absent.items()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    parser.add_argument("--minutes", type=float, default=14)
    parser.add_argument("--repeats", type=int, default=50, help="at most so many repetitions")
    parser.add_argument("--quick", action="store_true", help="short settings, to try the programs: no figure of it "
                                                             "means anything")
    parser.add_argument("--only", default="", help="run only what has this in its label")
    parser.add_argument("--base", default="", help="a git ref to compare this tree with")
    parser.add_argument("--write", action="store_true", help="rewrite the rows of docs/benchmarks.md")
    args = parser.parse_args()
    if args.write and (args.quick or args.only or args.base):
        raise SystemExit("--write wants everything, in full: not with --quick, --only or --base")
    this = Build("this", args.bin, ROOT)
    loop, no_loop = native.bare()
    if args.base:
        compare(args, this, loop)
        return
    absent = {"the bare C loop": no_loop} if no_loop else {}
    about = machine()
    steps = larder_steps(this, args.quick, loop)
    if about["peers"]:
        steps += torch_steps(args.quick)
        python, why = peer_tensorsocket.install()
        if python:
            steps += tensorsocket_steps(python, args.quick)
        else:
            absent["TensorSocket"] = why
    else:
        absent["torch"] = "it is not installed: make setup"
    steps = [s for s in steps if args.only in s.label]
    if not steps:
        raise SystemExit(f"no run is called like {args.only!r}")
    print(f"data: {pathlib.Path(loaders.photographs()).name}; {about}", flush=True)
    runs = measure(steps, args.minutes, args.repeats)
    found = [figures.figure(b, runs) for b in bars() if not args.only or b.mine.values(runs)]
    words = [f"--{k} {v}" if v is not True else f"--{k}" for k,
             v in (("quick", args.quick), ("only", shlex.quote(args.only) if args.only else "")) if v]
    lines = page(about, found, runs, absent, " ".join(["make bench", *words]))
    print("\n" + "\n".join(lines))
    out = out_dir() / "live.json"
    out.write_text(json.dumps({
        "kind": "bars", "machine": about, "absent": absent, "runs": runs,
        "bars": [{"what": f.bar.what, "value": f.value, "low": f.low, "high": f.high, "bar": f.bar.bar,
                  "at_least": f.bar.at_least, "unit": f.bar.unit,
                  "reference": f.best or f.bar.named, "met": f.met, "why": f.why} for f in found],
    }, indent=1))
    print(f"\nraw figures: {out}")
    if args.write:
        figures.replace_between(ROOT / "docs/benchmarks.md", lines)


if __name__ == "__main__":
    main()
