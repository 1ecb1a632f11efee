"""Counts how often two jobs of order="blocks(8, 4KiB)" read each block, on files of five formats' own writers.

    LARDER_BIN=bin/larder .venv/bin/python bench/py/blocks.py [--rows 2400] [--seeds 2] [--epochs 4] [--write]

python/tests/block_files.py writes the rows, in very uneven blocks, in the environment .venv-formats. The jobs take
batches of 8 in three slots, one batch after the other, so nothing depends on time; tiers have 2 MiB. First one job goes
through an epoch alone. Then, each time on a daemon of its own:

- together: two jobs begin at once;
- 40 %: the second one begins when the first has had 40 % of its epoch;
- half: two jobs begin at once, and the second gets a batch for every second one of the first.

They go on for four epochs of the first job. What a row says is the reads of both as a part of blocks x epochs, without
the 40 % of the blocks that the first one had by itself: the mean over the seeds, and the highest. --write rewrites the
rows of docs/measurements/orders.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import figures
from loaders import ROOT, Daemon, out_dir

sys.path.insert(0, str(ROOT / "python"))

import larder

PAGE = ROOT / "docs/measurements/orders.md"
BEGIN, END = "<!-- blocks: written by bench/py/blocks.py -->", "<!-- end of blocks -->"
BATCH, ORDER, BAR = 8, "blocks(8, 4KiB)", 1.1
TIERS = ("tiers.total=2MiB", "memory.limit=1GiB")
FORMATS = {"parquet": "parquet, row groups", "hf": "Arrow, record batches", "mds": "mds, ranges",
           "tars": "wds, .tar.gz", "lines": ".jsonl.gz"}
# the part of the first epoch that the first job has alone, and batches of the second job for two of the first
CASES = {"together": (0.0, 2), "40 %": (0.4, 2), "half": (0.0, 1)}


class Walker:
    """A job that is handed one batch after the other, through any number of epochs."""

    def __init__(self, daemon: Daemon, uri: str, seed: int) -> None:
        self.loader: Any = larder.Loader(uri, batch_size=BATCH, shuffle=True, seed=seed, order=ORDER, prefetch=1,
                                         ragged="list", endpoint=daemon.socket)
        self.batches = iter(self.loader)
        self.samples = 0

    def step(self) -> None:
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        self.samples += len(next(iter(batch.values())))

    def counters(self) -> Any:
        return self.loader.stats().job.counters


@dataclass
class Pair:
    first: int  # reads
    second: int
    shared: float  # of the samples of the second job, from blocks that were read for the first
    ratio: float


def alone(args: argparse.Namespace, uri: str) -> tuple[int, int]:
    """Blocks, and bytes read in an epoch of a lone job."""
    daemon = Daemon(args.bin, *(x for t in TIERS for x in ("--set", t)))
    try:
        job = Walker(daemon, uri, 1)
        for _ in job.batches:
            pass
        out = job.counters().source_reads, job.counters().source_bytes
        job.loader.close()
    finally:
        daemon.close()
    return out


def pair(args: argparse.Namespace, uri: str, blocks: int, case: str, seed: int) -> Pair:
    late, steps = CASES[case]
    daemon = Daemon(args.bin, *(x for t in TIERS for x in ("--set", t)))
    try:
        a = Walker(daemon, uri, 2 * seed)
        while a.samples < late * args.rows:
            a.step()
        end = a.samples + args.epochs * args.rows
        b, turn = Walker(daemon, uri, 2 * seed + 1), 0
        while a.samples < end:
            a.step()
            turn += 1
            if steps == 2 or turn % 2 == 0:
                b.step()
        first, second = a.counters().source_reads, b.counters().source_reads
        shared = b.counters().hits["shared_block"] / b.samples
        a.loader.close()
        b.loader.close()
    finally:
        daemon.close()
    return Pair(first, second, shared, (first + second - late * blocks) / (args.epochs * blocks))


def rows(runs: dict[str, Any]) -> list[str]:
    head = ["format", "blocks", "bytes read in an epoch alone", *(f"reads, {c}" for c in CASES),
            "of the second job's samples, from blocks of the first (40 %)", f"bar: ≤ {BAR}"]
    out = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, r in runs.items():
        cells, worst = [FORMATS[name], f"{r['blocks']:,}", f"{r['bytes']:,}"], 0.0
        for case in CASES:
            ratios = [p.ratio for p in r[case]]
            worst = max(worst, *ratios)
            cells.append(f"{sum(ratios) / len(ratios):.2f} ({max(ratios):.2f})")
        shared = [p.shared for p in r["40 %"]]
        cells += [f"{100 * sum(shared) / len(shared):.0f} %", "met" if worst <= BAR else f"missed: {worst:.3f}"]
        out.append("| " + " | ".join(cells) + " |")
    return out


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    p.add_argument("--python", default=str(ROOT / ".venv-formats/bin/python"), help="an interpreter with the writers")
    p.add_argument("--rows", type=int, default=2400)
    p.add_argument("--seeds", type=int, default=2)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--write", action="store_true", help="rewrite the rows of docs/measurements/orders.md")
    args = p.parse_args()
    args.bin = os.path.abspath(args.bin)
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="blocks-", dir=out_dir()) as work:
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": f"{work}/home"}
        script = [args.python, "-W", "ignore", str(ROOT / "python/tests/block_files.py"), work, str(args.rows), "1"]
        subprocess.run([*script, *FORMATS], check=True, env=env, stdout=sys.stderr)
        for name in FORMATS:
            uri = pathlib.Path(work, f"{name}.uri").read_text()
            blocks, size = alone(args, uri)
            runs[name] = {"blocks": blocks, "bytes": size}
            for case in CASES:
                runs[name][case] = [pair(args, uri, blocks, case, seed) for seed in range(1, args.seeds + 1)]
                for r in runs[name][case]:
                    print(name, case, r, file=sys.stderr, flush=True)
    version = json.loads(subprocess.run([args.bin, "version", "-o", "json"], check=True, capture_output=True,
                                        text=True).stdout)
    lines = [f"`bench/py/blocks.py`, {time.strftime('%Y-%m-%d')}, {version['version']}: {args.rows:,} rows, "
             f"{args.seeds} seeds, {args.epochs} epochs; mean (highest).", "", *rows(runs)]
    print("\n".join(lines))
    if args.write:
        figures.replace_between(PAGE, lines, BEGIN, END)


if __name__ == "__main__":
    main()
