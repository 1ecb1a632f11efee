"""How fast larder and torch's DataLoader feed a GPU, on a machine with many cores.

    .venv/bin/python bench/py/gpu.py [--minutes 4] [--images 6000] [--device cuda]

Every repetition runs everything once, in turn: one job and four, larder and torch with as many workers as there are
processors, or half as many. A job takes RandomResizedCrop(224) and a flip as uint8 batches of 128, copies each batch to
the device, scales it and adds its mean: the copies are made, and nothing but loading takes time. Images are drawn and
lie in the page cache. It prints medians with the lowest and the highest, images a second of all jobs together.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

import loaders
from loaders import ROOT

BATCH = 128
COPIES = 5  # of each drawn image: one file each, so that all are read and decoded


def draw(folder: str, number: int) -> None:
    """Draws one image of 350 to 500 pixels a side, and writes it COPIES times."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(number)
    h, w = rng.integers(350, 500, 2)
    y, x = np.mgrid[0:h, 0:w]
    planes = [(x * rng.uniform(0.2, 1) + y * rng.uniform(0.2, 1)) % 256 for _ in range(3)]
    image = Image.fromarray((np.stack(planes, -1) + rng.normal(0, 20, (h, w, 3))).clip(0, 255).astype(np.uint8))
    for k in range(COPIES):
        path = pathlib.Path(folder, f"class{number % 10:02d}", f"{k}-{number:05d}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=90)


def child_loader(kind: str, data: str, workers: int, share: str, pin: bool):
    if kind == "larder":
        import larder
        from larder import ops

        return larder.Loader(f"imagefolder:{data}", batch_size=BATCH, shuffle=True, drop_last=True, output="torch",
                             share=share, transform=[ops.RandomResizedCrop(224), ops.HFlip(), ops.ToImage()])
    import torch
    import torchvision.transforms as T
    from torchvision.datasets import ImageFolder

    steps = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.PILToTensor()])
    return torch.utils.data.DataLoader(ImageFolder(data, steps), BATCH, shuffle=True, drop_last=True,
                                       num_workers=workers, pin_memory=pin, persistent_workers=workers > 0)


def child(kind: str, data: str, epochs: int, workers: int, share: str, device: str) -> None:
    """One job: says ready, waits for a line, then runs its epochs."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    total = torch.zeros((), device=device)
    loader = child_loader(kind, data, workers, share, device == "cuda")
    print("ready", flush=True)
    sys.stdin.readline()
    marks, samples = [time.monotonic()], 0
    for _ in range(epochs):
        for images, _labels in loader:
            total += images.to(device, non_blocking=True).float().div_(255).mean()
            samples += len(images)
        total.item()  # waits for the device
        marks.append(time.monotonic())
    print(json.dumps({"marks": marks, "samples": samples // epochs}), flush=True)


def run(data: str, device: str, kind: str, jobs: int, *, workers: int = 0, share: str = "none",
        kept: bool = True) -> tuple[float, float]:
    """Images a second of all jobs in the first epoch, and in the last one."""
    epochs = 5 if kind == "larder" and kept else 2
    env = dict(os.environ)
    with contextlib.ExitStack() as stack:
        if kind == "larder":
            flags = [] if kept else [f for key in loaders.NOTHING for f in ("--set", key)]
            binary = os.environ.get("LARDER_BIN", str(ROOT / "bin/larder"))
            daemon = loaders.Daemon(binary, "--set", "http=127.0.0.1:0", *flags)
            stack.callback(daemon.close)
            env |= {"LARDER_SOCKET": daemon.socket, "PYTHONPATH": str(ROOT / "python")}
        results = loaders.spawn([["--child", kind, data, str(epochs), str(workers), share, device]] * jobs, env,
                                __file__)
    return loaders.rate(results, 0, 0), loaders.rate(results, epochs - 1, epochs - 1)


def steps(data: str, device: str) -> dict[str, Callable[[], tuple[float, float]]]:
    cores = len(os.sched_getaffinity(0))
    out = {
        "1 job, larder": lambda: run(data, device, "larder", 1),
        "1 job, larder, nothing kept": lambda: run(data, device, "larder", 1, kept=False),
        "4 jobs, larder": lambda: run(data, device, "larder", 4),
        '4 jobs, larder, share="augmented"': lambda: run(data, device, "larder", 4, share="augmented"),
    }
    for workers in sorted({max(1, cores // 2), cores}):
        out[f"1 job, torch, {workers} workers"] = lambda w=workers: run(data, device, "torch", 1, workers=w)
    each = max(1, cores // 4)
    out[f"4 jobs, torch, {each} workers each"] = lambda: run(data, device, "torch", 4, workers=each)
    return out


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        kind, data, epochs, workers, share, device = sys.argv[2:]
        child(kind, data, int(epochs), int(workers), share, device)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script")
    args = parser.parse_args()
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here; --device cpu tries the script without one")
    folder = tempfile.mkdtemp(prefix="larder-gpu-", dir=loaders.out_dir())
    try:
        with concurrent.futures.ProcessPoolExecutor() as pool:
            list(pool.map(draw, [folder] * (args.images // COPIES), range(args.images // COPIES), chunksize=10))
        seen: dict[str, list[tuple[float, float]]] = {}
        end = time.monotonic() + 60 * args.minutes
        while not seen or time.monotonic() < end:
            for name, step in steps(folder, args.device).items():
                first, last = step()
                seen.setdefault(name, []).append((first, last))
                print(f"  {name}: first epoch {first:,.0f}, last {last:,.0f}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("| run | n | first epoch, images/s | last epoch, images/s |\n|---|---|---|---|")
    for name, pairs in seen.items():
        cells = [f"{statistics.median(v):,.0f} ({min(v):,.0f}–{max(v):,.0f})" for v in zip(*pairs, strict=True)]
        print(f"| {name} | {len(pairs)} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
