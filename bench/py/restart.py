"""Measures how long a restart takes, from the start of the daemon to the first batch, on a dataset of many samples.

    LARDER_BIN=bin/larder .venv/bin/python bench/py/restart.py [--samples 1280000] [--taken 1000000] [--restarts 7]

It writes that many small images into 1,000 class folders of --folder, where they stay for the next run, indexes them
and has one job take the samples. Then it kills the daemon by SIGKILL and starts it again on the same state. A restart
lasts from the start of the process until larder.Loader, which was never closed, returns its first batch.
"""

from __future__ import annotations

import argparse
import io
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import loaders
from PIL import Image

sys.path.insert(0, str(loaders.ROOT / "python"))
import larder

CLASSES = 1000


def draw(folder: pathlib.Path, samples: int) -> None:
    """As many images as asked for, rounded down to whole classes. A folder that is there is taken as it is."""
    if folder.exists():
        return
    for c in range(CLASSES):
        image = io.BytesIO()
        Image.new("RGB", (16, 16), (c % 256, 0, 0)).save(image, "JPEG")
        (folder / f"c{c:04}").mkdir(parents=True)
        for i in range(samples // CLASSES):
            (folder / f"c{c:04}" / f"{i:07}.jpg").write_bytes(image.getvalue())


class Daemon:
    """A daemon whose state, saved indexes and socket outlive it."""

    def __init__(self, binary: str) -> None:
        self.dir = tempfile.mkdtemp(prefix="larder-restart-")
        self.socket = f"{self.dir}/s"
        self.env = os.environ | {"XDG_CACHE_HOME": f"{self.dir}/cache"}
        self.command = [binary, "serve", "--socket", self.socket, "--set", "tiers.total=512MiB", "--set",
                        f"state.dir={self.dir}/state"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, env=self.env, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()

    def wait(self) -> None:
        until = time.monotonic() + 60
        while not os.path.exists(self.socket):
            if time.monotonic() > until:
                raise SystemExit("the daemon did not start within a minute")
            time.sleep(0.01)


def restart(daemon: Daemon, batches) -> float:
    """Kills the daemon and starts it a second later; returns the seconds from then until the next new batch."""
    daemon.kill()
    begun: list[float] = []

    def again() -> None:
        time.sleep(1)  # batches that were ready are taken meanwhile
        begun.append(time.perf_counter())
        daemon.start()

    thread = threading.Thread(target=again)
    thread.start()
    got = 0.0
    while not begun or got < begun[0]:
        next(batches)
        got = time.perf_counter()
    thread.join()
    return got - begun[0]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(loaders.ROOT / "bin/larder")))
    p.add_argument("--samples", type=int, default=1_280_000)
    p.add_argument("--taken", type=int, default=1_000_000, help="samples that the job takes before the first restart")
    p.add_argument("--restarts", type=int, default=7)
    p.add_argument("--folder", type=pathlib.Path, default=loaders.out_dir() / "restart")
    args = p.parse_args()
    draw(args.folder, args.samples)
    daemon = Daemon(args.bin)
    try:
        daemon.start()
        daemon.wait()
        uri = f"imagefolder:{args.folder.resolve()}"
        subprocess.run([args.bin, "--socket", daemon.socket, "dataset", "add", uri], check=True, capture_output=True)
        loader = larder.Loader(uri, job="restart", batch_size=1024, epochs=1, endpoint=daemon.socket,
                               transform=[larder.ops.CenterCrop(8), larder.ops.ToImage()])
        batches, taken = iter(loader), 0
        while taken < args.taken:
            taken += len(next(batches)[1])
        times = []
        for _ in range(args.restarts):
            times.append(restart(daemon, batches))
            for _ in range(3):
                next(batches)
    finally:
        daemon.kill()
        shutil.rmtree(daemon.dir, ignore_errors=True)
    print(f"{args.samples:,} samples, {taken:,} of them taken; {args.restarts} restarts, seconds until the first "
          f"batch: median {statistics.median(times):.2f}, {min(times):.2f} to {max(times):.2f}")


if __name__ == "__main__":
    main()
