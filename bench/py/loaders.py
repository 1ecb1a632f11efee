"""Runs of the real daemon and of torch's DataLoader on the same images; bench.py calls them, and reports.

The work is ImageFolder, RandomResizedCrop(224), horizontal flip, ToTensor, Normalize, batches of 64, float32, or, for
tiny images, CenterCrop(28), ToTensor, Normalize in batches of 256; uint8 leaves ToTensor and Normalize to the device,
and is compared with no peer. Rates are in images per second of all jobs together. Processor time counts from the moment
at which all jobs begin, so that importing torch counts for no side, and is that of all processes of a side: daemon and
clients, or jobs and their workers. """

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH, TINY_BATCH = 64, 256
NOTHING = ("tiers.total=64MiB", "tiers.encoded=0", "tiers.decoded=0", "tiers.augmented=0")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def out_dir() -> pathlib.Path:
    path = ROOT / "out/bench"
    path.mkdir(parents=True, exist_ok=True)
    return path


def cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def cpu_of(pid: int) -> float:
    """Seconds of processor time of a process, exactly."""
    return time.clock_gettime((~pid << 3) | 2)


# --- children: one job each -----------------------------------------------------------------------------------------


def gate() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def child_larder(data: str, kind: str, epochs: int, share: str, number: int) -> None:
    import larder

    ops = larder.ops
    crop = [ops.CenterCrop(28)] if kind == "tiny" else [ops.RandomResizedCrop(224), ops.HFlip()]
    last = [ops.ToImage()] if kind == "uint8" else [ops.ToTensor(), ops.Normalize("imagenet")]
    loader = larder.Loader(
        f"imagefolder:{data}", batch_size=TINY_BATCH if kind == "tiny" else BATCH, shuffle=True, seed=number,
        job=f"bench-{number}", share=share,
        transform=[*crop, *last],
    )
    gate()
    marks, cpu = [time.perf_counter()], cpu_seconds()
    for _ in range(epochs):
        n = sum(len(labels) for _, labels in loader)
        assert n == loader.num_samples, n
        marks.append(time.perf_counter())
    loader.close()
    print(json.dumps({"marks": marks, "cpu": cpu_seconds() - cpu, "samples": loader.num_samples}), flush=True)


def child_torch(data: str, kind: str, epochs: int, workers: int) -> None:
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    crop = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()] if kind == "photographs" else [
        transforms.CenterCrop(28)]
    dataset = datasets.ImageFolder(data,
                                   transforms.Compose([*crop, transforms.ToTensor(), transforms.Normalize(*IMAGENET)]))
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH if kind == "photographs" else TINY_BATCH, shuffle=True, num_workers=workers,
        persistent_workers=workers > 0
    )
    gate()
    marks, cpu = [time.perf_counter()], cpu_seconds()
    for _ in range(epochs):
        assert sum(len(labels) for _, labels in loader) == len(dataset)
        marks.append(time.perf_counter())
    del loader  # joins its workers
    print(json.dumps({"marks": marks, "cpu": cpu_seconds() - cpu, "samples": len(dataset)}), flush=True)


# --- runs -----------------------------------------------------------------------------------------------------------


class Build:
    """A larder to measure: its binary, and the Python client of the same tree."""

    def __init__(self, name: str, binary: str, tree: pathlib.Path) -> None:
        self.name, self.binary, self.tree = name, binary, tree
        self.env = dict(os.environ, PYTHONPATH=str(tree / "python"))


class Daemon:
    def __init__(self, binary: str, *flags: str, env: dict[str, str] | None = None) -> None:
        self.dir = tempfile.mkdtemp(prefix="larder-bench-")
        self.socket = f"{self.dir}/larder.sock"
        self.log = open(f"{self.dir}/log", "w")
        # What must survive it goes to the disk of this tree: a temporary folder may lie in memory, where fdatasync
        # costs nothing.
        self.state = pathlib.Path(tempfile.mkdtemp(prefix="state-", dir=out_dir()))
        command = [binary, "serve", "--socket", self.socket, "--set", f"state.dir={self.state}", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the daemon did not start:\n" + self.logged())
        self.http = json.loads(line).get("http") or ""

    def cpu(self) -> float:
        return cpu_of(self.process.pid)

    def rss(self) -> int:
        return int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak(self) -> int:
        """The most memory that was resident at once."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10) as r:
            return float(re.search(rf"^{name} (\S+)$", r.read().decode(), re.M)[1])

    def logged(self) -> str:
        return pathlib.Path(f"{self.dir}/log").read_text()

    def stats(self, binary: str) -> dict:
        out = subprocess.run([binary, "--socket", self.socket, "stats", "-o", "json"], check=True, capture_output=True,
                             text=True)
        return json.loads(out.stdout)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        self.process.stdout.close()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        shutil.rmtree(self.state, ignore_errors=True)


def spawn(commands: list[list[str]], env: dict[str, str], script: str = __file__,
          begin: Callable[[], None] = lambda: None,
          meanwhile: Callable[[], None] = lambda: None) -> list[dict]:
    """Runs a script once for each command, all from the same moment, at which begin is called, and meanwhile after it;
    returns what they print last."""
    jobs = [subprocess.Popen([sys.executable, script, *c], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env=env) for c in commands]
    try:
        for j in jobs:
            if j.stdout.readline().strip() != "ready":
                raise SystemExit(f"a job did not start: {j.args}")
        begin()
        for j in jobs:
            j.stdin.write("go\n")
            j.stdin.flush()
        meanwhile()
        results = [json.loads(j.communicate()[0].splitlines()[-1]) for j in jobs]
    finally:
        for j in jobs:
            if j.poll() is None:
                j.kill()
    return results


def rate(results: list[dict], first: int, last: int) -> float:
    """Images per second of all jobs between the beginning of epoch first and the end of epoch last."""
    begin, end = min(r["marks"][first] for r in results), max(r["marks"][last + 1] for r in results)
    return sum(r["samples"] for r in results) * (last - first + 1) / (end - begin)


def outcome(results: list[dict], epochs: int, cpu: float) -> dict[str, float]:
    """cold: the first epoch; warm: the last two of the others (or the only one), when larder's tiers are full; wall:
    all of them."""
    delivered = sum(r["samples"] for r in results) * epochs
    return {"cold": rate(results, 0, 0), "warm": rate(results, min(max(1, epochs - 2), epochs - 1), epochs - 1),
            "wall": rate(results, 0, epochs - 1),
            "per_cpu_second": delivered / cpu}


@dataclasses.dataclass(frozen=True)
class Work:
    """What every job of a run does. kept=False: tiers of 0 bytes, so that every sample is read from the page cache,
    decoded and augmented each time."""

    epochs: int
    kind: str = "photographs"
    share: str = "none"
    kept: bool = True


def run_larder(build: Build, data: str, jobs: int, work: Work) -> dict[str, float]:
    epochs = work.epochs
    flags = [] if work.kept else [f for key in NOTHING for f in ("--set", key)]
    daemon = Daemon(build.binary, "--set", "http=127.0.0.1:0", *flags)
    try:
        begin: list[float] = []
        results = spawn(
            [["--child", "larder", data, work.kind, str(epochs), work.share, str(i)] for i in range(jobs)],
            build.env | {"LARDER_SOCKET": daemon.socket}, __file__, lambda: begin.append(daemon.cpu()),
        )
        spent = daemon.cpu() - begin[0]
        totals = daemon.stats(build.binary)["totals"]
        out = outcome(results, epochs, spent + sum(r["cpu"] for r in results))
        delivered = sum(r["samples"] for r in results) * epochs
        if not work.kept:  # what is late in one epoch and early in the next may be decoded once for both
            said = f"{totals['decodes']} decodes of {delivered}: something was in memory"
            assert int(totals["decodes"]) >= 0.9 * delivered, said
        return out | {"daemon_per_cpu_second": delivered / spent, "decodes": float(totals["decodes"]),
                      "rss": float(daemon.rss())}
    finally:
        daemon.close()


def run_torch(data: str, jobs: int, workers: int, epochs: int, *, kind: str = "photographs") -> dict[str, float]:
    results = spawn([["--child", "torch", data, kind, str(epochs), str(workers)] for _ in range(jobs)],
                    dict(os.environ), __file__)
    return outcome(results, epochs, sum(r["cpu"] for r in results))


def run_churn(build: Build, data: str, epochs: int) -> dict[str, float]:
    """Two jobs on five times the images, of which the tiers hold a part: what is resident, collected and allocated
    meanwhile."""
    limit = 1600 << 20
    with tempfile.TemporaryDirectory(prefix="larder-images-", dir=out_dir()) as copies:
        for i in range(5):  # copies, because one file under two names is one object
            shutil.copytree(data, f"{copies}/{i}", symlinks=False)
            for folder in pathlib.Path(copies, str(i)).iterdir():
                target = pathlib.Path(copies, folder.name)
                target.mkdir(exist_ok=True)
                for f in folder.iterdir():
                    f.rename(target / f"{i}-{f.name}")
            shutil.rmtree(f"{copies}/{i}")
        flags = ("memory.limit=1600MiB", "tiers.total=1088MiB", "tiers.decoded=1024MiB", "tiers.encoded=64MiB",
                 "tiers.augmented=0", "http=127.0.0.1:0")
        daemon = Daemon(build.binary, *(f for key in flags for f in ("--set", key)),
                        env=os.environ | {"GODEBUG": "gctrace=1"})
        try:
            begin: list[float] = []
            results = spawn([["--child", "larder", copies, "photographs", str(epochs), "none", str(i)]
                             for i in range(2)],
                            build.env | {"LARDER_SOCKET": daemon.socket}, __file__,
                            lambda: begin.append(time.monotonic()))
            elapsed = time.monotonic() - begin[0]
            decodes = int(daemon.stats(build.binary)["totals"]["decodes"])
            assert decodes > results[0]["samples"], "nothing was evicted"
            return {"rss_of_limit": daemon.peak() / limit,
                    "gc_of_cpu": gc_seconds(daemon.logged()) / (len(os.sched_getaffinity(0)) * elapsed)}
        finally:
            daemon.close()


def gc_seconds(log: str) -> float:
    """Processor seconds of the collector by gctrace, without what it did on processors that were idle. The runtime
    takes them from the clock, so they compare with processors x elapsed time: on a machine that is full of other work
    both hold waiting."""
    total = 0.0
    for m in re.finditer(r"^gc \d+ @.* ms clock, ([\d.]+)\+([\d.]+)/([\d.]+)/[\d.]+\+([\d.]+) ms cpu", log, re.M):
        total += sum(map(float, m.groups()))
    return total / 1e3


def run_allocations(build: Build, data: str, epochs: int) -> dict[str, float]:
    """Allocations of the daemon for each delivered sample, when everything is in the decoded tier: those of a job of
    some epochs more than another."""
    daemon = Daemon(build.binary, "--set", "http=127.0.0.1:0")
    try:
        counts: list[float] = []
        begin: list[float] = []
        for more in (2 * epochs, 0, epochs):  # the first one fills the tier, and the workers' tables of weights
            [r] = spawn([["--child", "larder", data, "photographs", str(2 + more), "none", "0"]],
                        build.env | {"LARDER_SOCKET": daemon.socket}, __file__,
                        lambda: begin.append(daemon.metric("go_memstats_mallocs_total")))
            counts.append(daemon.metric("go_memstats_mallocs_total") - begin[-1])
        return {"a_sample": (counts[2] - counts[1]) / (r["samples"] * epochs)}
    finally:
        daemon.close()


def draw(folder: pathlib.Path, count: int = 600) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(1)
    for i in range(count):
        h, w = rng.integers(350, 500, 2)
        y, x = np.mgrid[0:h, 0:w]
        a = np.stack([(x * rng.uniform(0.2, 1) + y * rng.uniform(0.2, 1)) % 256 for _ in range(3)], -1) + rng.normal(0,
            20, (h, w, 3))
        path = folder / f"class{i % 10:02d}" / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(a.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def draw_tiny(count: int) -> str:
    """A tree of 10 classes of PNG images of 28x28, drawn once and kept."""
    import numpy as np
    from PIL import Image

    folder = out_dir() / f"tiny-{count}"
    if not folder.is_dir():
        rng = np.random.default_rng(2)
        with tempfile.TemporaryDirectory(dir=out_dir()) as half:
            for c in range(10):
                pathlib.Path(half, "tiny", str(c)).mkdir(parents=True)
            y, x = np.mgrid[0:28, 0:28]
            for i in range(count):
                a = 255 * np.exp(-((x - rng.uniform(8, 20)) ** 2 + (y - rng.uniform(8, 20)) ** 2) / rng.uniform(10,
                    60)) + rng.normal(0, 8, (28, 28))
                Image.fromarray(a.clip(0, 255).astype(np.uint8)).save(f"{half}/tiny/{i % 10}/{i:05d}.png")
            pathlib.Path(half, "tiny").rename(folder)
    return str(folder)


def into_page_cache(folder: str) -> int:
    """Reads each file of a folder once, so that the run which happens to be the first does not wait for the disk;
    returns the bytes."""
    return sum(len(path.read_bytes()) for path in sorted(pathlib.Path(folder).rglob("*")) if path.is_file())


@functools.cache
def photographs() -> str:
    """Photographs from $LARDER_TESTDATA/imagenet-700 (default ../shared/data); if there are none, drawn images, made
    once and kept."""
    given = pathlib.Path(os.environ.get("LARDER_TESTDATA", ROOT / "../shared/data")) / "imagenet-700"
    if given.is_dir():
        return str(given.resolve())
    folder = out_dir() / "drawn"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=out_dir()) as half:
            draw(pathlib.Path(half, "drawn"))
            pathlib.Path(half, "drawn").rename(folder)
    return str(folder)


def main() -> None:
    kind, *rest = sys.argv[2:]
    if kind == "larder":
        data, what, epochs, share, number = rest
        child_larder(data, what, int(epochs), share, int(number))
    else:
        data, what, epochs, workers = rest
        child_torch(data, what, int(epochs), int(workers))


if __name__ == "__main__":
    main()
