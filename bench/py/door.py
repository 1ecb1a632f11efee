"""Measures what larder.torch.DataLoader adds where torch's own machinery serves: nothing is shared there.

    .venv/bin/python bench/py/door.py [--rounds 15]

Small rows without workers, a table of integers, loaders that are made, iterated once and dropped, a costly collate_fn
beside a training step with two workers. torch's class and larder's take turns in one process; figures are medians of
ratios, with the bar of each row. The exit code is 1 when a bar was missed. """

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import larder.torch
import numpy as np
import torch
from torch.utils import data


class Row(NamedTuple):
    """A script, and what it may take in torch's times."""

    name: str
    run: Callable[[Any], None]
    bar: float


class Rows:
    """20,000 small rows that cost nothing to make."""

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> int:
        return index


TABLE = np.arange(400_000).reshape(100_000, 4)


def drain(batches: Iterator[Any]) -> None:
    for _ in batches:
        pass


def many(make: Any) -> None:
    """300 loaders of 64 items."""
    items = list(range(64))
    for _ in range(300):
        drain(iter(make(items, 8, shuffle=True)))


def slow_collate(batch: list[int]) -> torch.Tensor:
    time.sleep(0.03)
    return torch.tensor(batch)


def steps(make: Any) -> None:
    """30 steps of 30 ms, each beside 30 ms of collate_fn."""
    for _ in make(Rows(), 667, num_workers=2, collate_fn=slow_collate):
        time.sleep(0.03)


ROWS = (
    Row("20,000 rows, batches of 64, no workers", lambda make: drain(iter(make(Rows(), 64))), 1.2),
    Row("20,000 rows, one by one, no workers", lambda make: drain(iter(make(Rows()))), 1.2),
    Row("20,000 rows, shuffled, no workers", lambda make: drain(iter(make(Rows(), 64, shuffle=True))), 1.2),
    Row("a table of 100,000 rows, no workers", lambda make: drain(iter(make(TABLE, 64))), 1.2),
    Row("300 loaders of 64 items", many, 2.0),
    Row("20,000 rows, 2 workers", lambda make: drain(iter(make(Rows(), 64, num_workers=2))), 1.1),
    Row("30 ms of collate_fn beside 30 ms of step, 2 workers", steps, 1.1),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    missed = 0
    print(f"{'':52} {'torch, ms':>10} {'larder, ms':>10} {'ratio':>6}  bar")
    for row in ROWS:
        pairs = []
        for n in range(rounds):
            took = {}
            for which in ("torch", "larder")[:: -1 if n % 2 else 1]:
                made = data.DataLoader if which == "torch" else larder.torch.DataLoader
                began = time.perf_counter()
                row.run(made)
                took[which] = time.perf_counter() - began
            pairs.append((took["torch"], took["larder"]))
        ratio = statistics.median(b / a for a, b in pairs)
        missed += ratio > row.bar
        theirs, ours = (1000 * statistics.median(x) for x in zip(*pairs, strict=True))
        verdict = "missed" if ratio > row.bar else "met"
        print(f"{row.name:52} {theirs:10.1f} {ours:10.1f} {ratio:6.2f}  {row.bar} {verdict}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
