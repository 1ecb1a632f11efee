"""Runs a training function in two processes at once, and prints what both were given and what was made for it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import larder


def main(train: Callable[[int, int, Path], None], prepare: Callable[[Path], object] | None = None) -> int:
    """Runs the file that calls this twice, as jobs 0 and 1.

    ``train(job, epochs, folder)`` is one training script; ``prepare(folder)`` writes what both read.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--job", type=int, help="be one of the two jobs")
    parser.add_argument("--folder", type=Path, help="with the data of both")
    args = parser.parse_args()
    if args.job is not None:
        train(args.job, args.epochs, args.folder)
        return 0
    with tempfile.TemporaryDirectory() as folder, larder.Loader([0], batch_size=1, name="look", job="look") as look:
        if prepare is not None:
            prepare(Path(folder))
        before = look.stats().totals
        command = [sys.executable, sys.argv[0], "--folder", folder, "--epochs", str(args.epochs), "--job"]
        jobs = [subprocess.Popen([*command, str(n)]) for n in (0, 1)]
        codes = [job.wait() for job in jobs]
        after = look.stats().totals
    samples = after.samples_delivered - before.samples_delivered
    items = after.decodes - before.decodes
    print(f"both jobs together: {samples} samples from {items} items; {samples - items} were not made again")
    return max(codes)
