"""Fits the waiting term of the model that splits memory (cachepolicy.MeasuredWaiting) to sweeps of the tiers.

    .venv/bin/python bench/py/waiting.py out/tiers-20.json [out/tiers-40.json ...]

Each file is a sweep that bench/py/tiers.py wrote, best at a storage rate of its own (--limit). The law says that a
sample takes as long as the most loaded resource works for it, and a part w of what the others work besides. For each w
it prints the mean error of the predicted rates, and how good the split is that the law would choose by itself: its
measured rate beside the best measured one, the worst of all groups. The last lines fit w on all files but one and try
it on that one. It measures nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

PARTS = [i / 20 for i in range(11)]  # of w that are tried


class Cell(NamedTuple):
    group: tuple[Any, ...]  # sweep, dataset, jobs, bytes
    work: tuple[float, ...]  # seconds that each resource works for a sample
    measured: float  # samples a second, the median of the runs

    def rate(self, w: float) -> float:
        """What the law predicts, samples a second."""
        most = max(self.work)
        return 1 / (most + w * (sum(self.work) - most))


def cells(name: str, sweep: dict[str, Any]) -> list[Cell]:
    """The splits of a sweep that storage, cores or memory limit: what a job cannot take says nothing of waiting."""
    out = []
    for c in sweep["cells"]:
        model = c["predicted"]["bottleneck"]
        work = tuple(part / model["rate"] for part in model["load"].values())
        if model["binding"] == "training" or not work or not c["runs"]:
            continue
        measured = statistics.median(r["rate"] for r in c["runs"])
        out.append(Cell((name, c["dataset"], c["phase"], c["budget"]), work, measured))
    return out


def error(some: Iterable[Cell], w: float) -> float:
    return statistics.fmean(abs(c.rate(w) / c.measured - 1) for c in some)


def worst_choice(some: list[Cell], w: float) -> float:
    """The measured rate of the split that the law prefers, by that of the best one: the smallest of all groups."""
    worst = 1.0
    for _, group in itertools.groupby(sorted(some, key=lambda c: c.group), key=lambda c: c.group):
        mine = list(group)
        worst = min(worst, max(mine, key=lambda c: c.rate(w)).measured / max(c.measured for c in mine))
    return worst


def fit(some: list[Cell]) -> float:
    """The part with the smallest error."""
    return min(PARTS, key=lambda w: error(some, w))


def report(sweeps: dict[str, list[Cell]]) -> str:
    lines = ["| w | " + " | ".join(f"error, {n}" for n in sweeps) + " | worst choice |", "|---" * (len(sweeps) + 2)
             + "|"]
    everything = [c for some in sweeps.values() for c in some]
    for w in PARTS:
        row = [f"{100 * error(some, w):.1f} %" for some in sweeps.values()]
        lines.append(f"| {w:.2f} | " + " | ".join(row) + f" | {worst_choice(everything, w):.2f} |")
    lines += ["", f"smallest error on all: w = {fit(everything):.2f}"]
    for name, some in sweeps.items():
        others = [c for n, of in sweeps.items() if n != name for c in of]
        if others:
            w = fit(others)
            lines.append(f"fitted without {name}: w = {w:.2f}, error on it {100 * error(some, w):.1f} %")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("sweeps", nargs="+", help="JSON that bench/py/tiers.py wrote")
    args = parser.parse_args()
    sweeps = {pathlib.Path(f).stem: cells(pathlib.Path(f).stem, json.loads(pathlib.Path(f).read_text()))
              for f in args.sweeps}
    for name, some in sweeps.items():
        if not some:
            parser.error(f"{name}: no split was measured that storage, cores or memory limit; make it with "
                         f"bench/py/tiers.py")
    print(report(sweeps))


if __name__ == "__main__":
    main()
