"""What the program of every peer does around its loader: it waits for the others, iterates, and reports.

A program calls run() with a function that opens its loader. That function gets the specification of the run and returns
a function that iterates one epoch and yields (images, labels). Imports, compilation and the opening of files are before
the clock; what the loader starts at its first iteration is not. The program reads one line when all jobs are ready, and
prints one line of JSON at its end. It needs no module but those of Python, because each peer has its own environment.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Epoch = Callable[[], Iterator[tuple[Any, Any]]]
Spec = dict[str, Any]


def cpu_of(pid: int) -> float:
    """Seconds of processor time of a process, exactly; 0 when it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def descendants(pid: int) -> list[int]:
    """The processes below one, which are its workers."""
    below: dict[int, list[int]] = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            below.setdefault(int(stat.read_text().rpartition(") ")[2].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue  # it ended meanwhile
    found, ahead = [], [pid]
    while ahead:
        more = below.get(ahead.pop(), [])
        found += more
        ahead += more
    return found


def mark(servers: list[int]) -> dict[str, float]:
    """The time, the processor time of this job with its workers, and that of the servers all jobs share."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)  # of workers that have ended
    own = time.process_time() + usage.ru_utime + usage.ru_stime + sum(map(cpu_of, descendants(os.getpid())))
    return {"at": time.perf_counter(), "cpu": own, "servers": sum(map(cpu_of, servers))}


def crop(width: int, height: int, rng: Any = random) -> tuple[int, int, int, int]:
    """Left, top, width and height of RandomResizedCrop as torchvision draws them, for peers that have no such op."""
    import math

    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    w, h = width, height
    if width / height < 3 / 4:
        h = round(w / (3 / 4))
    elif width / height > 4 / 3:
        w = round(h * 4 / 3)
    return (width - w) // 2, (height - h) // 2, w, h


def cropped(dataset: type, crop: int) -> type:
    """A streaming dataset of the files' bytes whose samples are decoded by Pillow, cropped, flipped, and labelled."""
    from PIL import Image
    from torchvision import transforms

    change = transforms.Compose([transforms.RandomResizedCrop(crop), transforms.RandomHorizontalFlip(),
                                 transforms.PILToTensor()])

    class Images(dataset):
        def __getitem__(self, i: Any) -> tuple:
            sample = super().__getitem__(i)
            return change(Image.open(io.BytesIO(sample["image"])).convert("RGB")), sample["label"]

    return Images


def files(data: str) -> tuple[list[str], list[int]]:
    """Paths and labels of a folder of classes, in order."""
    paths, labels = [], []
    for label, folder in enumerate(sorted(f for f in pathlib.Path(data).iterdir() if f.is_dir())):
        for path in sorted(folder.iterdir()):
            paths.append(str(path))
            labels.append(label)
    return paths, labels


def timed(epoch: Epoch, spec: Spec) -> dict[str, Any]:
    """Marks at the beginning and after each epoch, and the images of each."""
    marks, counts = [mark(spec["servers"])], []
    for _ in range(spec["epochs"]):
        counts.append(sum(len(labels) for _, labels in epoch()))
        marks.append(mark(spec["servers"]))
    return {"marks": marks, "samples": counts}


def probed(epoch: Epoch, spec: Spec) -> dict[str, Any]:
    """Keeps all pixels as arrays of (epochs, images, height, width, channels), for peers_probe.py."""
    import numpy as np

    epochs = []
    for _ in range(spec["epochs"]):
        batches = []
        for images, _labels in epoch():
            a = np.array(images)
            batches.append(a.transpose(0, 2, 3, 1) if a.shape[1] == 3 else a)
        epochs.append(np.concatenate(batches))
    fewest = min(map(len, epochs))
    np.save(spec["probe"], np.stack([e[:fewest] for e in epochs]))
    return {"samples": [len(e) for e in epochs], "dtype": str(epochs[0].dtype)}


def run(open_loader: Callable[[Spec], Epoch]) -> None:
    spec = json.loads(sys.argv[1])
    epoch = open_loader(spec)
    print("ready", flush=True)
    sys.stdin.readline()
    result = probed(epoch, spec) if spec["probe"] else timed(epoch, spec)
    print(json.dumps(result), flush=True)
