"""The plainest loop: batches as NumPy arrays, no framework.

    python examples/numpy_loop.py [--data DIR] [--subset 'label < 3']

DIR holds one folder of images per class; without --data a few are drawn. Start it twice, in two terminals and with two
subsets, and the second one finds the images decoded.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import larder
import numpy as np


def run(data: Path, subset: str | None, epochs: int) -> None:
    transform = [larder.ops.RandomResizedCrop(64), larder.ops.HFlip()]
    with larder.Loader(f"imagefolder:{data}", batch_size=32, shuffle=True, seed=7, subset=subset,
                       transform=transform) as loader:
        classes = loader.dataset.classes
        print(f"{loader.num_samples} samples of {len(classes)} classes, {len(loader)} batches an epoch")
        for epoch in range(epochs):
            total = np.zeros(3)
            count = np.zeros(len(classes), dtype=int)
            for images, labels in loader:  # (32, 3, 64, 64) uint8 and (32,) int64, views of shared memory
                total += images.mean(axis=(2, 3)).sum(axis=0)
                count += np.bincount(labels, minlength=len(classes))
            print(f"epoch {epoch}: mean colour {np.round(total / count.sum(), 1)}, samples per class {count.tolist()}")
        stats = loader.stats()
        print(f"the daemon (pid {stats.pid}) has made {stats.totals.decodes} decodes for "
              f"{stats.totals.samples_delivered} samples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="a folder of class folders of images")
    parser.add_argument("--subset", help="e.g. 'label < 3 and id %% 2 == 0'")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    if args.data is not None:
        run(args.data, args.subset, args.epochs)
        return
    import drawn

    with tempfile.TemporaryDirectory() as folder:
        run(drawn.folder(Path(folder)), args.subset, args.epochs)


if __name__ == "__main__":
    main()
