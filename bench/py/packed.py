"""Measures a folder of images beside the same images packed, on the local disk, with the real daemon.

    LARDER_BIN=bin/larder .venv/bin/python bench/py/packed.py [--copies 10] [--rounds 3] [--small 500]
        [--json out/bench/packed.json]

larder pack writes the folder as WebDataset tars, as MDS shards and, if --small is not 0, as tars of images whose longer
side has at most so many pixels. Then each of them is read in turn, --rounds times, in an order that changes: the daemon
starts with a saved index and without tiers, all files of the dataset leave the page cache (posix_fadvise), and one job
takes two epochs. The first one is cold, the second one comes from the page cache. Rates are images per second, the
medians of the rounds, with their spread; processor time is that of the daemon. Photographs come from
$LARDER_TESTDATA/imagenet-700 (default ../shared/data), copied --copies times, else images are drawn. """

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from loaders import BATCH, NOTHING, ROOT, Daemon, draw, gate, out_dir, spawn


def child(uri: str) -> None:
    """One job: two epochs of training crops; prints when each began and ended."""
    import larder

    ops = larder.ops
    loader = larder.Loader(uri, batch_size=BATCH, shuffle=True, seed=1, job="packed",
                           transform=[ops.RandomResizedCrop(224), ops.RandomHorizontalFlip()])
    gate()
    marks = [time.perf_counter()]
    for _ in range(2):
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


def measure(args: argparse.Namespace, uri: str) -> dict[str, float]:
    daemon = Daemon(args.bin, *[x for n in NOTHING for x in ("--set", n)])
    try:
        subprocess.run([args.bin, "--socket", daemon.socket, "dataset", "add", uri], check=True, capture_output=True)
        forget(pathlib.Path(uri.split(":", 1)[1]))
        env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), LARDER_SOCKET=daemon.socket)
        begun = daemon.cpu()
        (r,) = spawn([["--child", uri]], env, __file__)
        cpu = daemon.cpu() - begun
    finally:
        daemon.close()
    a, b, c = r["marks"]
    return {"cold": r["samples"] / (b - a), "warm": r["samples"] / (c - b), "cpu": cpu / (2 * r["samples"])}


def datasets(args: argparse.Namespace, work: pathlib.Path) -> tuple[dict[str, str], dict[str, Any]]:
    """The datasets by name, and what packing each took."""
    photographs = pathlib.Path(os.environ.get("LARDER_TESTDATA") or ROOT.parent / "shared/data") / "imagenet-700"
    if not photographs.is_dir():
        photographs = work / "drawn"
        draw(photographs, 700)
    folder = copies(photographs, work / "folder", args.copies)
    found, packing = {"folder": f"imagefolder:{folder}"}, {}
    kinds = {"wds": ("wds", []), "mds": ("mds", [])}
    if args.small:
        kinds[f"wds, longer side {args.small}"] = ("wds", ["--max-size", str(args.small), "--quality", "90"])
    for i, (name, (scheme, flags)) in enumerate(kinds.items()):
        to = f"{scheme}:{work / f'pack{i}'}"
        begin = time.perf_counter()
        command = [args.bin, "pack", found["folder"], "--to", to, "--verify", "-o", "json", *flags]
        p = subprocess.run(command, check=True, capture_output=True, text=True)
        result = json.loads(p.stdout)
        packing[name] = {"seconds": time.perf_counter() - begin, "bytes": result["bytes"], "shards": result["shards"],
                         "encoded": result["encoded"]}
        found[name] = to
    return found, packing


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
        return
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    p.add_argument("--copies", type=int, default=10, help="of each photograph")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--small", type=int, default=500, help="pixels of the longer side of the third pack; 0 = none")
    p.add_argument("--json", default=str(out_dir() / "packed.json"))
    args = p.parse_args()
    args.bin = os.path.abspath(args.bin)
    work = out_dir() / "packed"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        found, packing = datasets(args, work)
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in found}
        for turn in range(args.rounds):
            names = list(found)
            for name in names[turn % len(names):] + names[: turn % len(names)]:
                runs[name].append(measure(args, found[name]))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("| dataset | cold, images/s | warm, images/s | daemon, CPU ms an image |\n|---|---|---|---|")
    for name, list_ in runs.items():
        cells = []
        for key, scale, digits in (("cold", 1, 0), ("warm", 1, 0), ("cpu", 1000, 2)):
            values = [scale * r[key] for r in list_]
            middle, low, high = (f"{v:.{digits}f}" for v in (statistics.median(values), min(values), max(values)))
            cells.append(f"{middle} ({low} to {high})")
        print(f"| {name} | {' | '.join(cells)} |")
    for name, r in packing.items():
        print(f"packed as {name}: {r['seconds']:.1f} s, {r['bytes'] / 2**20:.0f} MiB in {r['shards']} shards, "
              f"{r['encoded']} images encoded again")
    path = pathlib.Path(args.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"args": vars(args), "runs": runs, "packing": packing}, indent=1))


if __name__ == "__main__":
    main()
