"""Measures what a daemon costs when no sample is in memory, and compares builds of it.

    .venv/bin/python bench/live/cold.py bin/before/larder bin/after/larder [--repeats 7] [--epochs 3] [--json out/cold.json]

One job, tiers of 0 bytes, so that every sample is read (from the page cache), decoded and augmented each time: ImageFolder,
RandomResizedCrop(224), horizontal flip, ToTensor, Normalize, batches of 64, float32. The builds take turns. The figure is decoded
images per second of processor time of the daemon, beginning and end of it included; ratios are to the first build, of medians, with
95 % bootstrap intervals. Photographs are read from $LARDER_TESTDATA/imagenet-700 (default ../shared/data), else images are drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import tempfile

import loaders
from loaders import ROOT, Daemon, draw, spawn

NOTHING = ("tiers.total=64MiB", "tiers.encoded=0", "tiers.decoded=0", "tiers.augmented=0")


def measure(binary: str, data: str, epochs: int) -> dict[str, float]:
    daemon = Daemon(binary, *(flag for key in NOTHING for flag in ("--set", key)))
    try:
        [client] = spawn([["--child", "larder", data, str(epochs), "none", "0"]],
                         dict(os.environ, PYTHONPATH=str(ROOT / "python"), LARDER_SOCKET=daemon.socket), script=loaders.__file__)
        decodes, cpu = daemon.stats(binary)["totals"]["decodes"], daemon.cpu()
        # What is late in one epoch and early in the next may be decoded once for both.
        assert int(decodes) >= 0.9 * epochs * client["samples"], f"{decodes} decodes: something was in memory"
        return {"per_cpu_second": int(decodes) / cpu, "decodes": int(decodes), "cpu": cpu, "client_cpu": client["cpu"]}
    finally:
        daemon.close()


def interval(mine: list[float], base: list[float]) -> tuple[float, float]:
    rng = random.Random(1)
    ratios = sorted(statistics.median(rng.choices(mine, k=len(mine))) / statistics.median(rng.choices(base, k=len(base))) for _ in range(4000))
    return ratios[100], ratios[3899]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bins", nargs="+", help="builds of larder; ratios are to the first one")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--json", default=str(ROOT / "out/cold.json"))
    args = parser.parse_args()
    photographs = pathlib.Path(os.environ.get("LARDER_TESTDATA", ROOT / "../shared/data")) / "imagenet-700"
    drawn = None if photographs.is_dir() else tempfile.mkdtemp(prefix="larder-images-")
    if drawn:
        draw(pathlib.Path(drawn))
    data = drawn or str(photographs.resolve())
    print(f"data: {'drawn images' if drawn else photographs.name}; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; {args.repeats} repeats of {args.epochs} epochs")
    results: dict[str, list[dict[str, float]]] = {b: [] for b in args.bins}
    for i in range(args.repeats):
        for b in args.bins[i % len(args.bins):] + args.bins[:i % len(args.bins)]:
            r = measure(b, data, args.epochs)
            results[b].append(r)
            print(f"  {b}: {r['per_cpu_second']:.0f} images per CPU-second of the daemon ({r['decodes']} in {r['cpu']:.2f} s)", flush=True)
    base = [r["per_cpu_second"] for r in results[args.bins[0]]]
    print("\n| build | images per CPU-second of the daemon | to the first |\n|---|---|---|")
    for b, runs in results.items():
        mine = [r["per_cpu_second"] for r in runs]
        low, high = interval(mine, base)
        print(f"| {b} | {statistics.median(mine):,.0f} | {statistics.median(mine) / statistics.median(base):.2f}x ({low:.2f}-{high:.2f}) |")
    path = pathlib.Path(args.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": "drawn" if drawn else "imagenet-700", "processors": os.cpu_count(), "results": results}, indent=1))
    if drawn:
        shutil.rmtree(drawn)


if __name__ == "__main__":
    main()
