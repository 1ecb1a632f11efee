"""Measures what larder's promises cost those who keep to the rules: the journal, and neighbours that are slow, stopped
or killed.

    LARDER_BIN=bin/larder .venv/bin/python bench/py/promises.py [--minutes 10] [--quick] [--write]

Four jobs whose photographs lie decoded in memory, with the journal on the disk and without one. Then three such jobs
alone and beside a fourth that takes a batch in ten of their batches' time, that is stopped (SIGSTOP), or that is
killed; with tiers that hold everything, and with tiers that hold a quarter, so that what the neighbour is still owed
could keep from the others what they need. Everything runs in turn, every second time backwards. Figures are ratios of
medians, the lower end of the 95 % bootstrap interval is compared with the bar. All raw figures go to
out/bench/promises.json; --write rewrites the rows between the marks of docs/benchmarks.md. """

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import figures
import loaders
from figures import Bar, Runs, Source
from loaders import ROOT, Build, Daemon, out_dir

BEGIN, END = "<!-- promises: written by bench/py/promises.py --write -->", "<!-- end of the promises -->"
OTHERS = 3
SETTLE = 1.0  # seconds of all jobs together before something happens to the neighbour
FITS = {"all fits": (), "a quarter fits": ("tiers.total=120MiB", "tiers.decoded=104MiB", "tiers.encoded=16MiB",
                                           "tiers.augmented=0")}
FATES = ("slow", "stopped", "killed")


def flags(*keys: str) -> list[str]:
    return [f for key in keys for f in ("--set", key)]


def commands(data: str, jobs: int, epochs: int) -> list[list[str]]:
    return [["--child", "larder", data, "photographs", str(epochs), "none", str(i)] for i in range(jobs)]


def run_journal(build: Build, data: str, epochs: int, kept: bool) -> dict[str, float]:
    """Four jobs on a warm decoded tier, with a journal or with state.dir: none."""
    daemon = Daemon(build.binary, *([] if kept else flags("state.dir=none")))
    try:
        results = loaders.spawn(commands(data, 4, epochs), build.env | {"LARDER_SOCKET": daemon.socket},
                                loaders.__file__)
        return {"warm": loaders.rate(results, 1, epochs - 1)}
    finally:
        daemon.close()


# --- a neighbour ----------------------------------------------------------------------------------------------------


def child(data: str, step: float) -> None:
    """Takes batches for as long as it lives, one every step seconds."""
    import larder

    ops = larder.ops
    loader = larder.Loader(f"imagefolder:{data}", batch_size=loaders.BATCH, shuffle=True, seed=99, job="neighbour",
                           transform=[ops.RandomResizedCrop(224), ops.HFlip(), ops.ToTensor(),
                                      ops.Normalize("imagenet")])
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        for _ in loader:
            time.sleep(step)


def later(marks: list[float], at: float) -> Iterator[tuple[float, float]]:
    """The epochs of a job that began after a moment, begin and end."""
    return ((a, b) for a, b in pairwise(marks) if a >= at)


def rate_after(results: list[dict], at: float) -> float:
    """Images per second of all jobs together over their whole epochs after a moment, up to the first job's end: until
    then all of them ran."""
    end = min(r["marks"][-1] for r in results)
    total = 0.0
    for r in results:
        whole = [(a, b) for a, b in later(r["marks"], at) if b <= end]
        if not whole:
            raise SystemExit("the run is too short: no epoch of a job lies between what happened and the first job's "
                             "end; raise --epochs")
        total += r["samples"] * len(whole) / (whole[-1][1] - whole[0][0])
    return total


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """The job beside the three: its fate, and the seconds of a batch while it is slow."""

    fate: str  # of FATES
    step: float


def run_others(build: Build, data: str, epochs: int, fits: str, beside: Neighbour | None) -> dict[str, float]:
    """Three jobs, alone or beside a neighbour."""
    fate = beside.fate if beside else ""
    daemon = Daemon(build.binary, *flags(*FITS[fits]))
    neighbour: subprocess.Popen[str] | None = None
    happened: list[float] = []
    try:
        env = build.env | {"LARDER_SOCKET": daemon.socket}
        if beside:
            neighbour = subprocess.Popen([sys.executable, __file__, "--child", data,
                                          str(beside.step if fate == "slow" else 0.0)],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
            if neighbour.stdout.readline().strip() != "ready":
                raise SystemExit("the neighbour did not start; the daemon says:\n" + daemon.logged())

        def begin() -> None:
            if neighbour is not None:
                neighbour.stdin.write("go\n")
                neighbour.stdin.flush()

        def happen() -> None:
            time.sleep(SETTLE)
            if neighbour is not None and fate != "slow":
                neighbour.send_signal(signal.SIGSTOP if fate == "stopped" else signal.SIGKILL)
            happened.append(time.perf_counter())

        results = loaders.spawn(commands(data, OTHERS, epochs), env, loaders.__file__, begin, happen)
        if neighbour is not None and fate == "slow" and neighbour.poll() is not None:
            raise SystemExit(f"the neighbour ended ({neighbour.returncode})")
        return {"rate": rate_after(results, happened[0]), "batch": loaders.BATCH * OTHERS / rate_after(results,
            happened[0])}
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()
        daemon.close()


# --- all of it ------------------------------------------------------------------------------------------------------


def bars() -> list[Bar]:
    out = [Bar("4 jobs, warm, journal on the disk", Source("journal", "warm"), 0.98, (Source("no journal", "warm"),),
               "state.dir: none")]
    for fits in FITS:
        for fate in FATES:
            what = {"slow": "ten times slower", "stopped": "stopped", "killed": "killed"}[fate]
            out.append(Bar(f"3 jobs, {fits}, beside one that is {what}", Source(f"{fits}, {fate}", "rate"), 0.95,
                           (Source(f"{fits}, alone", "rate"),), "the three alone"))
    return out


def measure(build: Build, data: str, minutes: float, quick: bool, epochs: int) -> Runs:
    runs: Runs = {}

    def step_of(fits: str) -> float:
        return 10 * sorted(r["batch"] for r in runs[f"{fits}, alone"])[len(runs[f"{fits}, alone"]) // 2]

    steps: list[tuple[str, Callable[[], dict[str, float]]]] = []
    for kept in (True, False):
        steps.append(("journal" if kept else "no journal", lambda kept=kept: run_journal(build, data, epochs, kept)))
    for fits in FITS:
        long = epochs if fits == "all fits" else max(3, epochs // 3)
        steps.append((f"{fits}, alone", lambda fits=fits, long=long: run_others(build, data, long, fits, None)))
        for fate in FATES:
            steps.append((f"{fits}, {fate}", lambda fits=fits, fate=fate, long=long: run_others(
                build, data, long, fits, Neighbour(fate, step_of(fits)))))
    return figures.in_turn(steps, minutes, quick, runs)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    parser.add_argument("--minutes", type=float, default=10, help="at least three repeats are made, whatever they take")
    parser.add_argument("--epochs", type=int, default=45, help="of a run of which everything fits; a third of it "
                                                               "where a quarter fits")
    parser.add_argument("--quick", action="store_true", help="once, to see that it runs: nothing is shown by it")
    parser.add_argument("--write", action="store_true", help="rewrite the rows of docs/benchmarks.md")
    args = parser.parse_args()
    runs = measure(Build("larder", args.bin, ROOT), loaders.photographs(), args.minutes, args.quick, args.epochs)
    version = subprocess.run([args.bin, "version", "-o", "json"], check=True, capture_output=True, text=True).stdout
    (out_dir() / "promises.json").write_text(json.dumps({"version": json.loads(version), "runs": runs}, indent=1))
    lines = figures.bars_table([figures.figure(b, runs) for b in bars()])
    lines += figures.runs_table(runs, {"warm": "images/s", "rate": "images/s of the three"})
    print("\n".join(lines))
    if args.write:
        named = (f"`bench/py/promises.py`, {time.strftime('%Y-%m-%d')}, {json.loads(version)['version']}; "
                 f"load before it {os.getloadavg()[2]:.1f}.")
        figures.replace_between(pathlib.Path(ROOT / "docs/benchmarks.md"), [named, "", *lines], BEGIN, END)


if __name__ == "__main__":
    main()
