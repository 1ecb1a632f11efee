"""What decoding in processes of their own costs: `prep.isolation` none and process on one folder, in turns.

    PYTHONPATH=python .venv/bin/python bench/py/isolation.py FOLDER [--rounds 6] [--epochs 6] [--workers 2]
        [--larder bin/larder] [--before OLDER_LARDER]

Each run has a daemon of its own without tiers, so that every epoch decodes every image; one epoch goes before the
clock. Images a second are of the wall clock, and mean little on a machine that does other work; processor time is of
the daemon and the processes that it has started. --before adds runs of another build of larder, with isolation none or
without that key. The memory is that of the decoder processes after the last epoch.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import larder
import larder.ops as ops


def family(pid: int) -> list[int]:
    """A process and those that it has started."""
    out = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        out += [int(word) for word in (task / "children").read_text().split()]
    return out


def processor_time(pid: int) -> float:
    """Seconds that a process and those that it has started have used."""
    ticks = 0
    for one in family(pid):
        fields = pathlib.Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> dict[str, int]:
    """Private and shared KiB of the largest process that a daemon has started."""
    out = {"RssAnon": 0, "RssShmem": 0}
    for one in family(pid)[1:]:
        for line in pathlib.Path(f"/proc/{one}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in out:
                out[name] = max(out[name], int(value.split()[0]))
    return out


def run(binary: str, settings: list[str], args: argparse.Namespace) -> tuple[float, float, dict[str, int]]:
    """Images a second, milliseconds of processor time an image, and memory."""
    with tempfile.TemporaryDirectory(prefix="iso") as folder:
        socket = folder + "/s"
        command = [binary, "serve", "--socket", socket]
        fixed = ["state.dir=none", "tiers.encoded=0", "tiers.decoded=0", "tiers.augmented=0"]
        for setting in [*fixed, f"prep.workers={args.workers}", *settings]:
            command += ["--set", setting]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as daemon:
            assert daemon.stdout is not None
            daemon.stdout.readline()
            os.environ["LARDER_SOCKET"] = socket
            loader = larder.Loader(
                f"imagefolder:{args.folder}",
                batch_size=64,
                seed=3,
                shuffle=True,
                transform=[ops.RandomResizedCrop(224), ops.RandomHorizontalFlip()],
                epochs=args.epochs + 1,
            )
            for _ in loader:
                pass
            begun, used, images = time.perf_counter(), processor_time(daemon.pid), 0
            for _ in range(args.epochs):
                for batch in loader:
                    images += len(batch[0])
            wall, used = time.perf_counter() - begun, processor_time(daemon.pid) - used
            has = memory(daemon.pid)
            loader.close()
            daemon.terminate()
        return images / wall, used / images * 1e3, has


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--larder", default="bin/larder")
    parser.add_argument("--before")
    args = parser.parse_args()
    ways = {
        "none": (args.larder, ["prep.isolation=none"]),
        "process": (args.larder, ["prep.isolation=process"]),
    }
    if args.before:
        ways["before"] = (args.before, [])
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(args.rounds):
        names = list(ways)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            speed, cost, has = run(*ways[name], args)
            rows[name].append((speed, cost))
            print(f"{turn} {name:8} {speed:7.0f} images/s {cost:.3f} ms of processor time an image {has}", flush=True)
    for name, row in rows.items():
        speeds, costs = zip(*row, strict=True)
        ratios = statistics.median(a[1] / b[1] for a, b in zip(row, rows["none"], strict=True))
        print(
            f"{name:8} median {statistics.median(speeds):.0f} images/s, {statistics.median(costs):.3f} ms "
            f"({min(costs):.3f} to {max(costs):.3f}) an image, {ratios:.3f} times that of none in its round"
        )


if __name__ == "__main__":
    main()
