"""Measures a folder of images beside the same images packed, on the local disk, a limited disk and S3.

    LARDER_BIN=bin/larder .venv/bin/python bench/py/packed.py [--copies 4] [--minutes 10] [--pairs 9] [--small 500]
        [--write] [--json out/bench/packed.json]

larder pack writes the folder as WebDataset tars, as MDS shards and, if --small is not 0, as tars of images whose longer
side has at most so many pixels. Then each of them is read in turn, in an order that changes, as often as the minutes
allow and at least once: the daemon starts with a saved index and without tiers, and one job reads them

- from the local disk, two epochs: all files leave the page cache (posix_fadvise) before the first one, which is cold,
  and the second one comes from the page cache;
- from the page cache with source.storage_limit, one epoch: --limit MiB a second;
- from S3 (versitygw) behind a line of --latency ms and --bandwidth MiB a second, one epoch.

Then the folder and the tars are read from the local disk in --pairs pairs, every second one the other way round: the
median of the pairs' ratios has to reach the bar.

Rates are images per second, the medians of the rounds, with their spread; processor time is that of the daemon, in the
epochs on the local disk. Photographs come from $LARDER_TESTDATA/imagenet-700 (default ../shared/data), copied --copies
times, else images are drawn. --write rewrites the rows of docs/measurements/stores.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from typing import Any

import figures
from bucket import Line, slow_bucket
from loaders import BATCH, NOTHING, ROOT, Daemon, draw, gate, out_dir, spawn

from bench import machine

BUCKET = "bench"
PAGE = ROOT / "docs/measurements/stores.md"
BEGIN, END = "<!-- packed: written by bench/py/packed.py -->", "<!-- end of packed -->"


def child(uri: str, epochs: int) -> None:
    """One job over epochs of training crops; prints when each began and ended."""
    import larder

    ops = larder.ops
    loader = larder.Loader(uri, batch_size=BATCH, shuffle=True, seed=1, job="packed",
                           transform=[ops.RandomResizedCrop(224), ops.RandomHorizontalFlip()])
    gate()
    marks = [time.perf_counter()]
    for _ in range(epochs):
        assert sum(len(labels) for _, labels in loader) == loader.num_samples
        marks.append(time.perf_counter())
    loader.close()
    print(json.dumps({"marks": marks, "samples": loader.num_samples}), flush=True)


def copies(folder: pathlib.Path, out: pathlib.Path, times: int) -> pathlib.Path:
    """The folder, with each of its files copied so many times: copies of a file lie apart on the disk."""
    for source in sorted(p for p in folder.rglob("*") if p.is_file()):
        to = out / source.parent.name
        to.mkdir(parents=True, exist_ok=True)
        for i in range(times):
            shutil.copyfile(source, to / f"{i:03}-{source.name}")
    return out


def forget(path: pathlib.Path) -> None:
    """Takes the files of a dataset out of the page cache."""
    os.sync()
    for p in path.rglob("*"):
        if p.is_file():
            fd = os.open(p, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def read(args: argparse.Namespace, uri: str, epochs: int, env: dict[str, str], *keys: str) -> dict[str, float]:
    """Images a second of each epoch of one job, and seconds of the daemon's processor time for an image."""
    with tempfile.TemporaryDirectory(prefix="packed-") as cache:
        env = os.environ | env | {"XDG_CACHE_HOME": cache}
        daemon = Daemon(args.bin, *[x for n in (*NOTHING, *keys) for x in ("--set", n)], env=env)
        try:
            subprocess.run([args.bin, "--socket", daemon.socket, "dataset", "add", uri], check=True,
                           capture_output=True, env=env)
            if epochs > 1:
                forget(pathlib.Path(uri.split(":", 1)[1]))
            begun = daemon.cpu()
            mine = env | {"PYTHONPATH": str(ROOT / "python"), "LARDER_SOCKET": daemon.socket}
            (r,) = spawn([["--child", uri, str(epochs)]], mine, __file__)
            cpu = daemon.cpu() - begun
        finally:
            daemon.close()
    out = {f"epoch{i}": r["samples"] / (b - a) for i, (a, b) in enumerate(pairwise(r["marks"]))}
    return out | {"cpu": cpu / (epochs * r["samples"])}


def measure(args: argparse.Namespace, path: str, line: Line) -> dict[str, float]:
    """One dataset, scheme:path, on the local disk, the limited disk and S3; path is below the bucket's folder."""
    scheme, folder = path.split(":", 1)
    local = read(args, path, 2, {})
    limited = read(args, path, 1, {}, f"source.storage_limit={args.limit}MiB")
    remote = f"{scheme}:s3://{BUCKET}/{pathlib.Path(folder).name}"
    return {"cold": local["epoch0"], "warm": local["epoch1"], "cpu": local["cpu"], "limited": limited["epoch0"],
            "s3": read(args, remote, 1, line.env, "source.readers=64")["epoch0"]}


def pair(args: argparse.Namespace, found: dict[str, str], turn: int) -> dict[str, float]:
    """Images a second of the folder and of its tars, one after the other, from the local disk."""
    out = {}
    for name in ("folder", "wds") if turn % 2 == 0 else ("wds", "folder"):
        r = read(args, found[name], 2, {})
        out |= {f"{name}, cold": r["epoch0"], f"{name}, warm": r["epoch1"]}
    return out


def bars(pairs: list[dict[str, float]]) -> list[str]:
    """The rows of tars beside the folder."""
    runs = {"pairs": pairs}
    return figures.bars_table([figures.figure(figures.Bar(
        f"tars beside a folder, {where}", figures.Source("pairs", f"wds, {key}"), 1.0,
        (figures.Source("pairs", f"folder, {key}"),), "`imagefolder:` of the same images"), runs)
        for key, where in (("cold", "local disk, cold"), ("warm", "local disk, page cache"))])


def datasets(args: argparse.Namespace, work: pathlib.Path) -> tuple[dict[str, str], dict[str, Any]]:
    """The datasets by name, and what packing each took."""
    photographs = pathlib.Path(os.environ.get("LARDER_TESTDATA") or ROOT.parent / "shared/data") / "imagenet-700"
    if not photographs.is_dir():
        photographs = work / "drawn"
        draw(photographs, 700)
    bucket = work / BUCKET
    folder = copies(photographs, bucket / "folder", args.copies)
    found, packing = {"folder": f"imagefolder:{folder}"}, {}
    kinds = {"wds": ("wds", []), "mds": ("mds", [])}
    if args.small:
        kinds[f"wds, longer side {args.small}"] = ("wds", ["--max-size", str(args.small), "--quality", "90"])
    for i, (name, (scheme, flags)) in enumerate(kinds.items()):
        to = f"{scheme}:{bucket / f'pack{i}'}"
        begin = time.perf_counter()
        command = [args.bin, "pack", found["folder"], "--to", to, "--verify", "-o", "json", *flags]
        p = subprocess.run(command, check=True, capture_output=True, text=True)
        result = json.loads(p.stdout)
        packing[name] = {"seconds": time.perf_counter() - begin, "bytes": result["bytes"], "shards": result["shards"],
                         "encoded": result["encoded"]}
        found[name] = to
    return found, packing


def lines_of(args: argparse.Namespace, runs: dict[str, list[dict[str, float]]], packing: dict[str, Any],
             pairs: list[dict[str, float]]) -> list[str]:
    """The part of the page that a run writes."""
    about, rounds = machine(), max(map(len, runs.values()))
    out = [f"{about['date']}, {about['commit']}: {about['processor']}, {about['processors']} processors, load before "
           f"it {about['load_before']:.1f}. {args.copies} copies of each photograph; a limit of",
           f"{args.limit:g} MiB/s; "
           f"a line of {args.latency} ms and {args.bandwidth:g} MiB/s; rounds: {rounds}. Images a second:", "",
           "| dataset | local disk, cold | local disk, page cache | limited disk | S3 | daemon, CPU ms an image |",
           "|---|---|---|---|---|---|"]
    for name, list_ in runs.items():
        cells = []
        for key, scale, digits in (("cold", 1, 0), ("warm", 1, 0), ("limited", 1, 0), ("s3", 1, 0), ("cpu", 1000, 2)):
            values = [scale * r[key] for r in list_]
            middle, low, high = (f"{v:,.{digits}f}" for v in (statistics.median(values), min(values), max(values)))
            cells.append(middle if len(values) == 1 else f"{middle} ({low} to {high})")
        out.append(f"| {name} | {' | '.join(cells)} |")
    return [*out, ""] + [
        f"- Packed as {name}: {r['seconds']:.1f} s, {r['bytes'] / 2**20:.0f} MiB in {r['shards']} shards, "
        f"{r['encoded']} images encoded again." for name, r in packing.items()] + (
            ["", f"{len(pairs)} pairs of the folder and the tars, in turn:", "", *bars(pairs)] if pairs else [])


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    p.add_argument("--copies", type=int, default=4, help="of each photograph")
    p.add_argument("--minutes", type=float, default=10, help="rounds begin as long as they end within so many")
    p.add_argument("--pairs", type=int, default=9, help="of the folder and the tars on the local disk; 0 = none")
    p.add_argument("--small", type=int, default=500, help="pixels of the longer side of the third pack; 0 = none")
    p.add_argument("--limit", type=float, default=20, help="MiB a second of the limited disk")
    p.add_argument("--latency", type=int, default=30, help="milliseconds that every request to S3 waits")
    p.add_argument("--bandwidth", type=float, default=32, help="MiB a second from S3")
    p.add_argument("--json", default=str(out_dir() / "packed.json"))
    p.add_argument("--write", action="store_true", help="rewrite the rows of docs/measurements/stores.md")
    args = p.parse_args()
    args.bin = os.path.abspath(args.bin)
    return args


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]))
        return
    args = arguments()
    work = out_dir() / "packed"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        found, packing = datasets(args, work)
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in found}
        with slow_bucket(work, args.latency / 1000, args.bandwidth * (1 << 20)) as line:
            begun, longest, turn = time.monotonic(), 0.0, 0
            while turn < 1 or time.monotonic() - begun + longest < 60 * args.minutes:
                start, names = time.monotonic(), list(found)
                for name in names[turn % len(names):] + names[: turn % len(names)]:
                    runs[name].append(measure(args, found[name], line))
                turn += 1
                longest = max(longest, time.monotonic() - start)
        pairs = [pair(args, found, turn) for turn in range(args.pairs)]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    lines = lines_of(args, runs, packing, pairs)
    print("\n".join(lines))
    path = pathlib.Path(args.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"args": vars(args), "runs": runs, "packing": packing, "pairs": pairs}, indent=1))
    if args.write:
        figures.replace_between(PAGE, lines, BEGIN, END)


if __name__ == "__main__":
    main()
