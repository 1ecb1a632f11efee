"""Benchmarks the real daemon against torch's DataLoader on the same images, interleaved in one run.

    LARDER_BIN=bin/larder .venv/bin/python bench/live/loaders.py [--repeats 3] [--json out/loaders.json]

The work is ImageFolder, RandomResizedCrop(224), horizontal flip, ToTensor, Normalize, batches of 64, float32. Rates are
medians over the repeats, in images per second of all jobs together; the spread stands behind them. Photographs are read
from $LARDER_TESTDATA/imagenet-700 (default ../shared/data) if they are there, else images are drawn; the output says which.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH = 64


def cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


# --- children: one job each -----------------------------------------------------------------------------------------


def gate() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def child_larder(data: str, epochs: int, share: str, number: int) -> None:
    import larder

    ops = larder.ops
    loader = larder.Loader(
        f"imagefolder:{data}", batch_size=BATCH, shuffle=True, seed=number, job=f"bench-{number}", share=share,
        transform=[ops.RandomResizedCrop(224), ops.HFlip(), ops.ToTensor(), ops.Normalize("imagenet")],
    )
    gate()
    marks = [time.perf_counter()]
    for _ in range(epochs):
        n = sum(len(labels) for _, labels in loader)
        assert n == loader.num_samples, n
        marks.append(time.perf_counter())
    loader.close()
    print(json.dumps({"marks": marks, "cpu": cpu_seconds(), "samples": loader.num_samples}), flush=True)


def child_torch(data: str, epochs: int, workers: int) -> None:
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    dataset = datasets.ImageFolder(data, transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]))
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    gate()
    marks = [time.perf_counter()]
    for _ in range(epochs):
        assert sum(len(labels) for _, labels in loader) == len(dataset)
        marks.append(time.perf_counter())
    del loader
    print(json.dumps({"marks": marks, "cpu": cpu_seconds(), "samples": len(dataset)}), flush=True)


# --- runs -----------------------------------------------------------------------------------------------------------


class Daemon:
    def __init__(self, binary: str, *flags: str) -> None:
        self.dir = tempfile.mkdtemp(prefix="larder-bench-")
        self.socket = f"{self.dir}/larder.sock"
        self.log = open(f"{self.dir}/log", "w")
        self.process = subprocess.Popen([binary, "serve", "--socket", self.socket, *flags], stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the daemon did not start:\n" + pathlib.Path(f"{self.dir}/log").read_text())

    def cpu(self) -> float:
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss(self) -> int:
        return int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stats(self, binary: str) -> dict:
        out = subprocess.run([binary, "--socket", self.socket, "stats", "-o", "json"], check=True, capture_output=True, text=True)
        return json.loads(out.stdout)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def spawn(commands: list[list[str]], env: dict[str, str], script: str = __file__, begin: Callable[[], None] = lambda: None) -> list[dict]:
    """Runs a script once for each command, all from the same moment, at which begin is called; returns what they print last."""
    jobs = [subprocess.Popen([sys.executable, script, *c], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) for c in commands]
    try:
        for j in jobs:
            if j.stdout.readline().strip() != "ready":
                raise SystemExit(f"a job did not start: {j.args}")
        begin()
        for j in jobs:
            j.stdin.write("go\n")
            j.stdin.flush()
        results = [json.loads(j.communicate()[0].splitlines()[-1]) for j in jobs]
    finally:
        for j in jobs:
            if j.poll() is None:
                j.kill()
    return results


def rate(results: list[dict], first: int, last: int) -> float:
    """Images per second of all jobs between the beginning of epoch first and the end of epoch last."""
    begin, end = min(r["marks"][first] for r in results), max(r["marks"][last + 1] for r in results)
    return sum(r["samples"] for r in results) * (last - first + 1) / (end - begin)


def run_larder(args: argparse.Namespace, env: dict[str, str], jobs: int, share: str = "none") -> dict[str, float]:
    daemon = Daemon(args.bin)
    try:
        results = spawn([["--child", "larder", args.data, str(args.epochs), share, str(i)] for i in range(jobs)], env | {"LARDER_SOCKET": daemon.socket})
        totals = daemon.stats(args.bin)["totals"]
        cpu = daemon.cpu() + sum(r["cpu"] for r in results)
        delivered = sum(r["samples"] for r in results) * args.epochs
        return {"cold": rate(results, 0, 0), "warm": rate(results, 1, args.epochs - 1), "all": rate(results, 0, args.epochs - 1),
                "per_cpu_second": delivered / cpu, "decodes": float(totals["decodes"]), "rss": float(daemon.rss())}
    finally:
        daemon.close()


def run_torch(args: argparse.Namespace, env: dict[str, str], jobs: int, workers: int) -> dict[str, float]:
    results = spawn([["--child", "torch", args.data, str(args.epochs), str(workers)] for _ in range(jobs)], env)
    delivered = sum(r["samples"] for r in results) * args.epochs
    return {"cold": rate(results, 0, 0), "warm": rate(results, 1, args.epochs - 1), "all": rate(results, 0, args.epochs - 1),
            "per_cpu_second": delivered / sum(r["cpu"] for r in results)}


def draw(folder: pathlib.Path, count: int = 600) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(1)
    for i in range(count):
        h, w = rng.integers(350, 500, 2)
        y, x = np.mgrid[0:h, 0:w]
        a = np.stack([(x * rng.uniform(0.2, 1) + y * rng.uniform(0.2, 1)) % 256 for _ in range(3)], -1) + rng.normal(0, 20, (h, w, 3))
        path = folder / f"class{i % 10:02d}" / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(a.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        kind, data, *rest = sys.argv[2:]
        {"larder": lambda: child_larder(data, int(rest[0]), rest[1], int(rest[2])), "torch": lambda: child_torch(data, int(rest[0]), int(rest[1]))}[kind]()
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--json", default=str(ROOT / "out/loaders.json"))
    args = parser.parse_args()
    photographs = pathlib.Path(os.environ.get("LARDER_TESTDATA", ROOT / "../shared/data")) / "imagenet-700"
    drawn = None
    if photographs.is_dir():
        args.data = str(photographs.resolve())
    else:
        drawn = tempfile.mkdtemp(prefix="larder-images-")
        draw(pathlib.Path(drawn))
        args.data = drawn
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"))
    print(f"data: {'drawn images' if drawn else photographs.name}; {os.cpu_count()} processors; {args.repeats} repeats of {args.epochs} epochs")
    peers = {f"torch, {w} workers": (lambda jobs, w=w: run_torch(args, env, jobs, w)) for w in (0, 1, 2)}
    ours = {"larder": lambda jobs: run_larder(args, env, jobs), "larder, share=augmented": lambda jobs: run_larder(args, env, jobs, "augmented")}
    results: dict[str, list[dict[str, float]]] = {}
    for _ in range(args.repeats):
        for jobs in (1, 4):
            for name, run in (ours | peers).items():
                if jobs == 1 and "share" in name:
                    continue
                r = run(jobs)
                results.setdefault(f"{jobs} jobs, {name}", []).append(r)
                print(f"  {jobs} jobs, {name}: " + ", ".join(f"{k} {v:,.0f}" for k, v in r.items()), flush=True)
    print("\n| what | " + "first epoch | later epochs | images per CPU-second | of the best torch (later epochs) |\n|---|---|---|---|---|")

    def median(name: str, key: str) -> float:
        return statistics.median(r[key] for r in results[name])

    for jobs in (1, 4):
        best = max(median(f"{jobs} jobs, {p}", "warm") for p in peers)
        for name in (ours | peers):
            full = f"{jobs} jobs, {name}"
            if full in results:
                print(f"| {full} | {median(full, 'cold'):,.0f}/s | {median(full, 'warm'):,.0f}/s | {median(full, 'per_cpu_second'):,.0f} | "
                      f"{median(full, 'warm') / best:.2f}x |")
    path = pathlib.Path(args.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": "drawn" if drawn else "imagenet-700", "processors": os.cpu_count(), "results": results}, indent=1))
    print(f"\nraw figures: {path}")
    if drawn:
        shutil.rmtree(drawn)


if __name__ == "__main__":
    main()
