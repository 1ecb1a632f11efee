"""Measures what a change of the tiers' sizes costs the batches of running jobs, on the real daemon.

    LARDER_BIN=bin/larder .venv/bin/python bench/py/resize.py [--tier 4GiB] [--small 512MiB]
        [--repeats 5] [--json out/resize.json]

A decoded tier is filled by an epoch at full speed. Then jobs take a batch every --step milliseconds, which leaves the
daemon time for each, while the tier shrinks and grows again by larder tiers resize. What next() waited is compared with
the same jobs while nothing is resized, with the large and with the small tier. The first batch of each epoch is left
out. It also reports the daemon's resident memory beside its budgets, and the part of its processor time that the
garbage collector took (gctrace). Photographs come from $LARDER_TESTDATA/imagenet-700 (default ../shared/data), copied
as often as it takes to fill the tier, else images are drawn. """

from __future__ import annotations

import argparse
import bisect
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from loaders import ROOT, Daemon, draw

BATCH = 64
MEAN = 600_000  # bytes of a decoded photograph, about
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}


def size(text: str) -> int:
    n, unit = re.fullmatch(r"(\d+)(MiB|GiB)", text).groups()
    return int(n) * UNITS[unit]


# --- the jobs: a thread each ----------------------------------------------------------------------------------------


def child(order: dict[str, Any]) -> None:
    import larder

    ops = larder.ops
    loaders = [larder.Loader(f"imagefolder:{order['data']}", batch_size=BATCH, shuffle=True, seed=i, job=f"resize-{i}",
                             prefetch=2,
                             transform=[ops.RandomResizedCrop(224), ops.RandomHorizontalFlip()])
                             for i in range(order["jobs"])]
    for _ in loaders[0]:
        pass
    stop, waits = threading.Event(), [[] for _ in loaders]

    def run(i: int) -> None:
        while not stop.is_set():
            batches, first = iter(loaders[i]), True
            while not stop.is_set():
                time.sleep(order["step"])
                begin = time.perf_counter()
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                if not first:
                    waits[i].append((begin, time.perf_counter() - begin))
                first = False
                del batch

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(loaders))]
    print("warm", flush=True)
    for t in threads:
        t.start()
    sys.stdin.readline()
    stop.set()
    for t in threads:
        t.join()
    for loader in loaders:
        loader.close()
    print(json.dumps(sorted(w for of in waits for w in of)), flush=True)


# --- the daemon -----------------------------------------------------------------------------------------------------


def resize(args: argparse.Namespace, daemon: Daemon, to: str) -> float:
    begin = time.perf_counter()
    subprocess.run([args.bin, "--socket", daemon.socket, "tiers", "resize", f"decoded={to}"], check=True,
                   capture_output=True)
    return time.perf_counter() - begin


def within(waits: list[tuple[float, float]], begin: float, end: float) -> list[float]:
    """Waits that began or ended in the window, in milliseconds."""
    lo = bisect.bisect_left(waits, (begin - 60, 0.0))
    return [1000 * w for at, w in waits[lo:] if at <= end and at + w >= begin]


def measure(args: argparse.Namespace, data: str) -> dict[str, Any]:
    small = size(args.small)
    os.environ["GODEBUG"] = "gctrace=1"
    daemon = Daemon(args.bin, "--set", f"tiers.total={args.tier}", "--set", "tiers.encoded=0", "--set",
                    "tiers.augmented=0",
                    "--set", f"tiers.decoded={args.tier}", "--set", f"memory.limit={args.limit}")
    windows: dict[str, list[tuple[float, float]]] = {"large tier": [], "shrinking": [], "small tier": [],
                                                     "growing, and refilling": []}
    shrinks, grows, resident = [], [], []
    order = {"data": data, "jobs": args.jobs, "step": args.step / 1000}
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), LARDER_SOCKET=daemon.socket)
    p = subprocess.Popen([sys.executable, __file__, "--child", json.dumps(order)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True, env=env)
    try:
        if p.stdout.readline().strip() != "warm":
            raise SystemExit("the jobs did not start; the daemon says:\n" + pathlib.Path(daemon.log.name).read_text())

        def window(name: str, seconds: float, to: str = "") -> None:
            begin = time.perf_counter()
            if to:
                (shrinks if to == args.small else grows).append(resize(args, daemon, to))
            time.sleep(seconds)
            windows[name].append((begin, time.perf_counter()))

        time.sleep(2)
        for _ in range(args.repeats):
            tiers = {t["form"]: t for t in daemon.stats(args.bin)["tiers"]}
            resident.append({"rss": daemon.rss(), "used": int(tiers["decoded"]["used"]),
                             "budget": int(tiers["decoded"]["budget"])})
            window("large tier", args.seconds)
            window("shrinking", 1, args.small)
            if (used := int(next(t for t in daemon.stats(args.bin)["tiers"]
                                 if t["form"] == "decoded")["used"])) > small:
                raise SystemExit(f"the tier holds {used} bytes after it shrank to {small}")
            window("small tier", args.seconds)
            window("growing, and refilling", args.seconds, args.tier)
            time.sleep(args.refill)
        rings = sum(int(r.get("ring_bytes", 0)) for j in daemon.stats(args.bin)["jobs"] for r in j.get("ranks", []))
        waits, _ = p.communicate("stop\n", timeout=120)
        log = pathlib.Path(daemon.log.name).read_text()
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
        daemon.close()
    if p.returncode:
        raise SystemExit(f"the jobs failed ({p.returncode})")
    all_waits = [tuple(w) for w in json.loads(waits.splitlines()[-1])]
    gc = re.findall(r"^gc \d+ @[\d.]+s (\d+)%", log, re.M)
    return {"waits": {name: [w for b, e in of for w in within(all_waits, b, e)] for name, of in windows.items()},
            "shrink_seconds": shrinks,
            "grow_seconds": grows, "resident": resident, "rings": rings, "gc_percent": int(gc[-1]) if gc else None}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    parser.add_argument("--tier", default="4GiB", help="the large size of the decoded tier")
    parser.add_argument("--small", default="512MiB")
    parser.add_argument("--limit", default="8GiB", help="memory.limit of the daemon")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--step", type=float, default=200, help="milliseconds between a job's batches")
    parser.add_argument("--seconds", type=float, default=8, help="of a window")
    parser.add_argument("--refill", type=float, default=10, help="seconds to fill the tier before the next repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", default=str(ROOT / "out/resize.json"))
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="larder-resize-"))
    try:
        photographs = pathlib.Path(os.environ.get("LARDER_TESTDATA", ROOT / "../shared/data")) / "imagenet-700"
        if not photographs.is_dir():
            photographs = folder / "drawn"
            draw(photographs)
        files = sorted(f for f in photographs.rglob("*") if f.is_file() and f.suffix.lower() in (".jpg", ".jpeg"))
        copies = -(-size(args.tier) // (MEAN * len(files)))
        for n in range(copies):  # copies, not links: one file is one object, whatever its names
            for f in files:
                to = folder / "data" / f"{f.parent.name}-{n}" / f.name
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(f, to)
        r = measure(args, str(folder / "data"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{args.jobs} jobs, a batch of {BATCH} every {args.step:g} ms, {copies * len(files)} images, tier "
          f"{args.tier} to {args.small} and back, {args.repeats} times")
    print("| while | batches | p50 | p99 | longest wait of next() |\n|---|---|---|---|---|")
    for name, w in r["waits"].items():
        w.sort()
        if w:
            print(f"| {name} | {len(w)} | {w[len(w) // 2]:.1f} ms | {w[int(len(w) * 0.99)]:.1f} ms | {w[-1]:.1f} ms |")
    print(f"shrinking takes {statistics.median(r['shrink_seconds']):.2f} s, growing "
          f"{statistics.median(r['grow_seconds']):.2f} s (medians)")
    x = max(r["resident"], key=lambda m: m["rss"])
    print(f"resident {x['rss'] >> 20} MiB for a tier of {x['budget'] >> 20} MiB ({x['used'] >> 20} MiB used) and "
          f"rings of {r['rings'] >> 20} MiB; "
          f"garbage collector {r['gc_percent']} % of the time since the start")
    path = pathlib.Path(args.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(vars(args) | r, indent=1))


if __name__ == "__main__":
    main()
