"""Datasets in a bucket behind a slow line, and tars beside folders on a local disk.

    .venv/bin/python bench/py/stores.py [--minutes 15] [--images 1216] [--latency 30] [--bandwidth 8] [--only WORD]
        [--write]

The work is that of peers.py: RandomResizedCrop(224) and a flip, uint8 batches of 64. versitygw serves a folder as S3; a
line before it (bucket.py) adds the latency to every request and lets through so many MiB a second, of all connections
together. Bytes and GETs are those that came through it, from when the jobs begin; an index is made before that.

Four jobs begin together and go through one epoch: larder on `wds:s3://`, with stored bytes in memory and nothing
decoded; MosaicML streaming and LitData on `s3://` with boto3, each job with a cache of its own, as they are written
for. Tars, shards and chunks have about 16 MB each. Then four jobs of larder with a disk tier that holds the set and
nothing in memory: the tier keeps what the index reads, so the index fetches the set, and an epoch and one of four other
jobs after it read the disk. Then one job with nothing kept, in random order
and in order="blocks(8, 2MiB)". Then four jobs of larder on the same images on the local disk, as a folder and as tars,
from the page cache, and nothing is kept. Every round runs all of it in turn, every second one backwards. Figures are
medians (lowest to highest).

--only runs the rows that have the word in their name. --write rewrites the rows of docs/measurements/stores.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import figures
import loaders
import peers
import peers_env
from bucket import SHARDS, Line, Passed, slow_bucket, tars
from loaders import BATCH, NOTHING, ROOT, Daemon, out_dir
from peers_figures import outcome

from bench import machine

JOBS, CHUNK = 4, 16 << 20
ORDER = "blocks(8, 2MiB)"
LOG = "stores.log"  # below out/bench
PAGE = ROOT / "docs/measurements/stores.md"
BEGIN, END = "<!-- stores: written by bench/py/stores.py -->", "<!-- end of the stores -->"
MEMORY = ("tiers.total=512MiB", "tiers.encoded=448MiB", "tiers.decoded=0", "tiers.augmented=0")
ROWS = {"s3": "larder, wds:s3://", "mds": "MosaicML streaming, s3://", "litdata": "LitData, s3://",
        "disk": "larder, a disk tier, the epoch after the index", "again": "larder, a disk tier, the next epoch",
        "random": "larder, one job, nothing kept, random order", "blocks": f'larder, the same, order="{ORDER}"',
        "wds": "larder, wds: on the local disk", "folder": "larder, imagefolder: on the local disk"}
PEERS = {"mds": "MosaicML streaming", "litdata": "LitData"}
REMOTE = ("s3", "mds", "litdata", "disk", "again", "random", "blocks")

class Sizes(NamedTuple):
    """Bytes of the images, and of the tars that hold them."""

    images: int
    objects: int


Figures = dict[str, float]
Runs = dict[str, list[Figures]]
Cells = dict[str, Callable[[], list[Figures]]]


# --- runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """What all runs share. line is None for runs that have nothing to do with it."""

    binary: str
    data: str
    line: Line | None = None

    def passed(self) -> Passed:
        return self.line.passed() if self.line else Passed(0, 0)

    def quiet(self) -> Passed:
        """What came through until the line is quiet: answers to clients that have ended pass for a while."""
        while True:
            before = self.passed()
            time.sleep(1)
            if self.passed() == before:
                return before

    @property
    def env(self) -> dict[str, str]:
        return self.line.env if self.line else {}


def race(b: Bench, python: str, program: str, spec: dict[str, Any], env: dict[str, str]) -> Figures:
    """Jobs that begin together, one epoch each: images a second, seconds, and what came through the line."""
    children: list[subprocess.Popen] = []
    jobs = spec.get("jobs", JOBS)
    with open(out_dir() / LOG, "a") as log, tempfile.TemporaryDirectory(dir=peers.home()) as scratch:
        watch = threading.Timer(peers.PATIENCE, lambda: [peers.kill(p) for p in children])
        try:
            for job in range(jobs):
                own = {"data": b.data, "batch": BATCH, "crop": 224, "epochs": 1, "probe": "", "job": job, "jobs": jobs,
                       "scratch": scratch, "variant": "", "workers": 2, "servers": []} | spec
                children.append(subprocess.Popen(
                    [python, str(ROOT / "bench/peers" / program), json.dumps(own)], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
                    env=os.environ | b.env | env | {"PYTHONUNBUFFERED": "1"}))
            watch.start()
            for p in children:
                peers.line_of(p, "ready", LOG)
            begun = b.quiet()
            for p in children:
                p.stdin.write("go\n")
                p.stdin.flush()
            results = [json.loads(peers.line_of(p, "{", LOG)) for p in children]
            ended = b.passed()
            peers.let_end(children)
        finally:
            watch.cancel()
            for p in children:
                peers.end(p)
    seconds = max(r["marks"][1]["at"] for r in results) - min(r["marks"][0]["at"] for r in results)
    return {"rate": outcome(results)["first"], "seconds": seconds, "bytes": ended.bytes - begun.bytes,
            "gets": ended.gets - begun.gets}


@contextlib.contextmanager
def daemon(b: Bench, uri: str, *keys: str) -> Iterator[Callable[..., Figures]]:
    """A daemon with these settings, and an index that was made before: a call of what it yields is one race."""
    with tempfile.TemporaryDirectory(prefix="stores-") as cache:  # no index of an earlier run
        env = os.environ | b.env | {"XDG_CACHE_HOME": cache}
        d = Daemon(b.binary, *(f for k in (*keys, "source.readers=64") for f in ("--set", k)), env=env)
        try:
            before, begun = b.quiet().bytes, time.monotonic()
            subprocess.run([b.binary, "--socket", d.socket, "dataset", "add", uri], check=True, capture_output=True,
                           env=env)
            index = {"indexed": time.monotonic() - begun, "index": b.passed().bytes - before}
            mine = {"LARDER_SOCKET": d.socket, "PYTHONPATH": str(ROOT / "python")}

            def run(**spec: Any) -> Figures:
                of = spec | {"uri": uri, "servers": [d.process.pid]}
                return race(b, sys.executable, "run_larder.py", of, mine) | index

            yield run
        finally:
            d.close()


def larder(b: Bench, uri: str, *keys: str, **spec: Any) -> Figures:
    with daemon(b, uri, *keys) as run:
        return run(**spec)


def with_disk(b: Bench, uri: str, stored: int) -> tuple[Figures, Figures]:
    """Two races of one daemon: the disk tier is empty before the first."""
    with tempfile.TemporaryDirectory(prefix="tier-", dir=peers.home()) as tier, daemon(
            b, uri, *NOTHING, f"tiers.disk.dir={tier}", f"tiers.disk.size={2 * stored + (64 << 20)}") as run:
        return run(), run()


def absent() -> dict[str, str]:
    """Why a peer cannot run here."""
    out = {}
    for name in PEERS:
        e = peers_env.ENVIRONMENTS[name]
        if not peers_env.ready(e):
            out[name] = f"its environment is not there: bench/py/peers_env.py {name} builds it"
    return out


def shards_of(name: str, data: str, folder: pathlib.Path) -> pathlib.Path:
    """The images in a peer's own format; made once for a version of the peer, and kept."""
    e = peers_env.ENVIRONMENTS[name]
    out = folder / peers_env.shown(e.pins.read_text()).replace(" ", "-")
    if not out.is_dir():
        half = folder / f"{out.name}.half"
        shutil.rmtree(half, ignore_errors=True)
        subprocess.run([str(e.python), str(ROOT / f"bench/peers/run_{name}.py"), "convert", data, str(half),
                        str(CHUNK)], check=True, stdout=subprocess.DEVNULL)
        half.rename(out)
    return out


def cells(b: Bench, packed: pathlib.Path, shards: dict[str, str], stored: int) -> Cells:
    """What can be run, by the rows that it gives, joined by +."""
    local = Bench(b.binary, b.data)
    remote = f"wds:s3://bench/wds/train-{{000..{SHARDS - 1:03}}}.tar"
    out: Cells = {"s3": lambda: [larder(b, remote, *MEMORY)]}
    for name, shard in shards.items():
        python = str(peers_env.ENVIRONMENTS[name].python)
        out[name] = lambda name=name, shard=shard, python=python: [
            race(b, python, f"run_{name}.py", {"remote": f"s3://bench/{shard}"}, {})]
    return out | {
        "disk+again": lambda: list(with_disk(b, remote, stored)),
        "random": lambda: [larder(b, remote, *NOTHING, jobs=1)],
        "blocks": lambda: [larder(b, remote, *NOTHING, jobs=1, order=ORDER)],
        "wds": lambda: [larder(local, f"wds:{packed}", *NOTHING)],
        "folder": lambda: [larder(local, f"imagefolder:{b.data}", *NOTHING)],
    }


def measure(args: argparse.Namespace, data: str) -> tuple[Runs, Sizes, dict[str, str]]:
    """The runs of each row, what the images take, and which peers are not among them, and why."""
    buckets = peers.home() / f"buckets-{pathlib.Path(data).name}"
    packed = tars(data, buckets / "bench" / "wds")
    stored = Sizes(sum(f.stat().st_size for f in pathlib.Path(data).glob("*/*")),
                   sum(f.stat().st_size for f in packed.iterdir()))
    missing = absent()
    shards = {n: shards_of(n, data, buckets / "bench").name for n in PEERS
              if n not in missing and args.only in n}
    runs: Runs = {}
    with slow_bucket(buckets, args.latency / 1000, args.bandwidth * (1 << 20)) as line:
        do = cells(Bench(args.bin, data, line), packed, shards, stored.objects)
        names = [n for n in do if args.only in n]
        begun, longest, rounds = time.monotonic(), 0.0, 0
        while rounds < 1 or time.monotonic() - begun + longest < 60 * args.minutes:
            start = time.monotonic()
            for name in names if rounds % 2 == 0 else reversed(names):
                for row, r in zip(name.split("+"), do[name](), strict=True):
                    runs.setdefault(row, []).append(r)
                    print(f"  {ROWS[row]}: " + ", ".join(f"{k} {v:,.1f}" for k, v in r.items()), flush=True)
            rounds += 1
            longest = max(longest, time.monotonic() - start)
    return runs, stored, missing


# --- figures --------------------------------------------------------------------------------------------------------


def span(values: list[float], digits: int = 0) -> str:
    if len(values) == 1:
        return f"{values[0]:,.{digits}f}"
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def middle(runs: Runs, row: str, key: str = "rate") -> float:
    return statistics.median([r[key] for r in runs[row]])


def with_index(runs: Runs, row: str) -> str:
    """How long the index took, and the images a second of index and epoch together."""
    rates = [r["rate"] * r["seconds"] / (r["seconds"] + r["indexed"]) for r in runs[row]]
    return f"in {span([r['indexed'] for r in runs[row]], 1)} s; index and epoch together: {span(rates)} images/s"


def bars(runs: Runs, stored: Sizes, missing: dict[str, str]) -> list[str]:
    """What the runs say of the bars: a line for each whose rows were run."""
    out = []
    if "s3" in runs:
        index = span([r["index"] / stored.images for r in runs["s3"]], 2)
        out.append(f"- The index read {index} bytes for each byte of the images before the epoch,\n  "
                   f"{with_index(runs, 's3')}. The shards of the others\n  come with an index.")
        out += [f"- larder beside {title}: {middle(runs, 's3') / middle(runs, name):.1f}x (bar: 3x)."
                for name, title in PEERS.items() if name in runs]
    if "disk" in runs:
        first, later = ([r["bytes"] / stored.objects for r in runs[row]] for row in ("disk", "again"))
        both = [f + r["index"] / stored.objects for f, r in zip(first, runs["disk"], strict=True)]
        out.append(f"- With a disk tier that holds the set, {span(both, 3)} bytes for each byte of the tars by the\n  "
                   f"index and the first epoch together (bar: 1.02), {span(first, 3)} of them by the\n  epoch, and "
                   f"{span(later, 3)} after it (bar: 0). The index was made\n  {with_index(runs, 'disk')}.")
    if {"random", "blocks"} <= set(runs):
        out.append(f'- order="{ORDER}" beside random order: {middle(runs, "blocks") / middle(runs, "random"):.2f}x '
                   f'images/s, with {middle(runs, "blocks", "gets") / middle(runs, "random", "gets"):.2f} of the GETs.')
    if {"wds", "folder"} <= set(runs):
        out.append("- Tars beside a folder on the local disk: "
                   f"{middle(runs, 'wds') / middle(runs, 'folder'):.2f}x (bar: 1.0x).")
    return out + [f"- {PEERS[name]}: not measured ({why})." for name, why in missing.items()]


def lines_of(runs: Runs, stored: Sizes, missing: dict[str, str], args: argparse.Namespace) -> list[str]:
    """The part of the page that a run writes."""
    about, line_rate = machine(), args.bandwidth * (1 << 20)
    out = [f"{about['date']}, {about['commit']}: {about['processor']}, {about['processors']} processors, load before "
           f"it {about['load_before']:.1f}. {JOBS} jobs, {args.images} photographs ({stored.images / 1e6:.0f} MB), "
           "one epoch;",
           f"a line with {args.latency} ms and {args.bandwidth:g} MiB/s; rounds: {max(map(len, runs.values()))}.", "",
           "| system | images/s of all jobs | part of the line's bandwidth | bytes fetched for each byte of an image "
           "| GETs |", "|---|---|---|---|---|"]
    for row, title in ROWS.items():
        if some := runs.get(row):
            used = span([r["bytes"] / r["seconds"] / line_rate for r in some], 2) if row in REMOTE else ""
            part = span([r["bytes"] / stored.images for r in some], 2) if row in REMOTE else ""
            gets = span([r["gets"] for r in some]) if row in REMOTE else ""
            out.append(f"| {title} | {span([r['rate'] for r in some])} | {used} | {part} | {gets} |")
    return [*out, "", *bars(runs, stored, missing)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--images", type=int, default=1216)
    parser.add_argument("--latency", type=int, default=30, help="milliseconds that every request waits")
    parser.add_argument("--bandwidth", type=float, default=8, help="MiB a second through the line")
    parser.add_argument("--only", default="", metavar="WORD", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    parser.add_argument("--write", action="store_true", help="rewrite the rows of docs/measurements/stores.md")
    args = parser.parse_args()
    if args.write and args.only:
        parser.error("--write wants everything: not with --only")
    if not any(args.only in row for row in ROWS):
        parser.error(f"--only: no row is called like {args.only!r}; rows are {', '.join(ROWS)}")
    args.bin = os.path.abspath(args.bin)
    loaders.photographs()  # says early what is missing
    runs, stored, missing = measure(args, peers.photographs(args.images))
    lines = lines_of(runs, stored, missing, args)
    print("\n".join(lines))
    found = {"runs": runs, "stored": stored._asdict(), "machine": machine()}
    (out_dir() / "stores.json").write_text(json.dumps(found, indent=1))
    if args.write:
        figures.replace_between(PAGE, lines, BEGIN, END)


if __name__ == "__main__":
    main()
