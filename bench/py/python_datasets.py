"""Measures what datasets in Python cost through larder's worker processes, beside torch's DataLoader.

    LARDER_BIN=bin/larder .venv/bin/python bench/py/python_datasets.py [--minutes 10] [--quick] [--write]

Photographs by Pillow and torchvision with two workers; four jobs that share them with as many workers in all as four
DataLoaders have; windows of tokens of 4 KiB, made anew and kept; and the hand-over of a record of 150 KB from a worker
to its batch, as processor time of daemon, workers and job. The same dataset goes to both loaders, and they run in turn,
every second time backwards. Figures are ratios of medians, and the lower end of the 95 % bootstrap interval is compared
with the bar. Rates are those of whole epochs, the first one from its first batch on, when the workers have started. All
raw figures go to out/bench/python_datasets.json; --write rewrites the rows between the marks of docs/benchmarks.md. """

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import figures
import loaders
from figures import Bar, Source
from loaders import ROOT, Build, Daemon, out_dir

BEGIN, END = ("<!-- python datasets: written by bench/py/python_datasets.py --write -->",
              "<!-- end of the python datasets -->")
WORKERS, JOBS = 2, 4
EPOCHS = 4
UNITS = {"first": "first epoch, samples/s", "later": "later epochs, samples/s", "cpu": "µs of CPU a sample"}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A dataset to measure: its batches, and how it is made from the folder of photographs."""

    batch: int
    make: Callable[[str], object]


class Photographs:
    """What most scripts do: open a JPEG with Pillow, crop, flip and normalize it with torchvision."""

    def __init__(self, folder: str) -> None:
        from torchvision import datasets, transforms

        self.base = datasets.ImageFolder(folder, transforms.Compose([
            transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
            transforms.Normalize(*loaders.IMAGENET)]))

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> object:
        return self.base[index]


class Tokens:
    """Windows of 512 tokens (int64, 4 KiB) of a text in memory."""

    def __init__(self, _folder: str) -> None:
        import numpy as np

        self.text = np.arange(20_000 * 512, dtype=np.int64) % 50_257

    def __len__(self) -> int:
        return len(self.text) // 512

    def __getitem__(self, index: int) -> object:
        import torch

        return torch.from_numpy(self.text[512 * index:512 * (index + 1)])


class Blocks:
    """Records of 150 KB that cost nothing to make: what remains is the way to the batch."""

    def __init__(self, _folder: str) -> None:
        import torch

        self.all = torch.zeros(16, 150_528, dtype=torch.uint8)

    def __len__(self) -> int:
        return 4_000

    def __getitem__(self, index: int) -> object:
        return self.all[index % 16]


KINDS = {"photographs": Kind(64, Photographs), "tokens": Kind(256, Tokens), "blocks": Kind(64, Blocks)}


# --- children: one job each -----------------------------------------------------------------------------------------


def child(which: str, kind: str, folder: str, cache: str, job: str, workers: int) -> None:
    """Iterates, and prints when epochs began and ended, and the processor time of the job and its workers."""
    import torch

    torch.set_num_threads(1)
    k = KINDS[kind]
    dataset = k.make(folder)
    options: dict[str, object] = {"batch_size": k.batch, "shuffle": True, "num_workers": workers,
                                  "persistent_workers": workers > 0}
    if which == "torch":
        loader = torch.utils.data.DataLoader(dataset, **options)
    else:
        import larder.torch

        named = {"name": kind, "cache": "items"} if cache == "items" else {}
        loader = larder.torch.DataLoader(dataset, job=job, fallback="error", **options, **named)
        assert loader.loader.job == job  # it is registered before the clock runs
    loaders.gate()
    cpu, marks = loaders.cpu_seconds(), [time.perf_counter()]
    for _ in range(EPOCHS):
        n = 0
        for batch in loader:
            if len(marks) == 1 and n == 0:
                marks[0] = time.perf_counter()  # the workers have started
            n += rows_of(batch)
        assert n == len(dataset), n
        marks.append(time.perf_counter())
    if which == "larder":
        loader.close()  # without it they would end with the process, and their processor time would not be seen
    del loader, batch  # joins its workers
    print(json.dumps({"marks": marks, "cpu": loaders.cpu_seconds() - cpu, "samples": len(dataset),
                      "late": k.batch}), flush=True)


def rows_of(batch: object) -> int:
    return len(batch[0]) if isinstance(batch, (list, tuple)) else len(batch)


# --- runs -----------------------------------------------------------------------------------------------------------


def rates(results: Sequence[dict], daemon_cpu: float = 0.0) -> dict[str, float]:
    """Samples per second of all jobs together in the first epoch and in the others, and their processor time."""
    def rate(first: int, last: int) -> float:
        begin, end = min(r["marks"][first] for r in results), max(r["marks"][last] for r in results)
        some = sum(r["samples"] * (last - first) - (r["late"] if first == 0 else 0) for r in results)
        return some / (end - begin)

    n = len(results[0]["marks"]) - 1
    cpu = daemon_cpu + sum(r["cpu"] for r in results)
    return {"first": rate(0, 1), "later": rate(1, n), "cpu": 1e6 * cpu / sum(r["samples"] * n for r in results)}


def run(build: Build, which: str, args: Sequence[str], jobs: int, workers: int) -> dict[str, float]:
    """Jobs at once, each with so many workers: by larder on a daemon of their own, or by torch."""
    def commands() -> list[list[str]]:
        return [["--child", which, *args, f"job-{i}", str(workers)] for i in range(jobs)]

    if which == "torch":
        return rates(loaders.spawn(commands(), build.env, __file__))
    daemon = Daemon(build.binary, "--set", "tiers.total=1GiB")
    try:
        before = daemon.cpu()
        results = loaders.spawn(commands(), build.env | {"LARDER_SOCKET": daemon.socket}, __file__)
        return rates(results, daemon.cpu() - before)
    finally:
        daemon.close()


def steps_of(build: Build, folder: str) -> list[tuple[str, Callable[[], dict[str, float]]]]:
    """What is measured, in turn."""
    def step(which: str, kind: str, cache: str, jobs: int, workers: int) -> Callable[[], dict[str, float]]:
        return lambda: run(build, which, [kind, folder, cache], jobs, workers)

    return [
        ("photographs, torch", step("torch", "photographs", "none", 1, WORKERS)),
        ("photographs, larder", step("larder", "photographs", "none", 1, WORKERS)),
        ("4 jobs, torch", step("torch", "photographs", "none", JOBS, 1)),
        ("4 jobs, larder", step("larder", "photographs", "items", JOBS, 1)),
        ("tokens, torch", step("torch", "tokens", "none", 1, WORKERS)),
        ("tokens, larder", step("larder", "tokens", "none", 1, WORKERS)),
        ("tokens kept, larder", step("larder", "tokens", "items", 1, WORKERS)),
        ("blocks, torch", step("torch", "blocks", "none", 1, WORKERS)),
        ("blocks, larder", step("larder", "blocks", "none", 1, WORKERS)),
    ]


def bars() -> list[Bar]:
    def over(what: str, mine: str, key: str, bar: float, of: str, end: float | None = None) -> Bar:
        return Bar(what, Source(mine, key), bar, (Source(of, key),), "torch's DataLoader", end=end)

    return [
        over("photographs, Pillow, torchvision, 2 workers", "photographs, larder", "later", 1.0, "photographs, torch",
             end=0.95),
        over("4 jobs sharing, first epoch", "4 jobs, larder", "first", 3.6, "4 jobs, torch"),
        over("4 jobs sharing, later epochs, `cache=\"items\"`", "4 jobs, larder", "later", 10, "4 jobs, torch"),
        over("tokens of 4 KiB, made anew", "tokens, larder", "later", 3, "tokens, torch"),
        over("tokens of 4 KiB, `cache=\"items\"`", "tokens kept, larder", "later", 3, "tokens, torch"),
        Bar("a record of 150 KB, worker to batch, both sides", Source("blocks, larder", "cpu"), 60, at_least=False,
            unit="µs"),
    ]


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:7], int(sys.argv[7]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    parser.add_argument("--minutes", type=float, default=10, help="at least three repeats are made, whatever they take")
    parser.add_argument("--only", default="", help="measure only what has this word in its name")
    parser.add_argument("--quick", action="store_true", help="once, to see that it runs: nothing is shown by it")
    parser.add_argument("--write", action="store_true", help="rewrite the rows of docs/benchmarks.md")
    args = parser.parse_args()
    if args.write and args.only:
        parser.error("--write needs all of it")
    load = os.getloadavg()[2]
    steps = [s for s in steps_of(Build("larder", args.bin, ROOT), str(loaders.photographs())) if args.only in s[0]]
    runs = figures.in_turn(steps, args.minutes, args.quick)
    version = subprocess.run([args.bin, "version", "-o", "json"], check=True, capture_output=True, text=True).stdout
    raw = {"version": json.loads(version), "runs": runs}
    (out_dir() / "python_datasets.json").write_text(json.dumps(raw, indent=1))
    lines = figures.bars_table([figures.figure(b, runs) for b in bars() if b.mine.label in runs])
    lines += figures.runs_table(runs, UNITS)
    print("\n".join(lines))
    if args.write:
        named = (f"`bench/py/python_datasets.py`, {time.strftime('%Y-%m-%d')}, {json.loads(version)['version']}; "
                 f"load before it {load:.1f}.")
        figures.replace_between(pathlib.Path(ROOT / "docs/benchmarks.md"), [named, "", *lines], BEGIN, END)


if __name__ == "__main__":
    main()
