"""Images with masks and boxes: a dataset of one's own, cached, with larder's random ops behind it.

    python examples/python_datasets/image_and_mask.py

`Shapes` stands for a dataset that opens large files: item i is always the same, so `cache="items"` keeps it for both
jobs. The daemon crops, flips and changes colours itself: every sample of every epoch gets its own draw, which is the
same for image, mask and boxes. """

from __future__ import annotations

import sys
from pathlib import Path

import larder
import numpy as np
import two_jobs
from larder import ops

SIDE, CROP, COUNT = 96, 64, 240


class Shapes:
    """Discs on a noisy ground, their masks, and a box around each."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, object]:
        r = np.random.default_rng(index)
        image = r.integers(0, 60, (SIDE, SIDE, 3), dtype=np.uint8)
        radius = int(r.integers(8, 20))
        y, x = (int(v) for v in r.integers(radius, SIDE - radius, 2))
        rows, columns = np.ogrid[:SIDE, :SIDE]
        mask = (rows - y) ** 2 + (columns - x) ** 2 <= radius**2
        image[mask] += np.uint8(150)
        boxes = np.array([[x - radius, y - radius, x + radius + 1, y + radius + 1]], np.float32)
        return {"image": image, "mask": mask, "boxes": boxes, "id": index}


TRANSFORM = [
    ops.Fields(mask="mask", boxes="boxes"),
    ops.RandomResizedCrop(CROP, scale=(0.3, 1.0)),
    ops.HFlip(),
    ops.ColorJitter(brightness=0.2),
]


def train(job: int, epochs: int, _folder: Path) -> None:
    loader = larder.Loader(
        Shapes(), name="shapes", cache="items", transform=TRANSFORM, batch_size=16, shuffle=True, num_workers=1,
        seed=job, job=f"masks-{job}",
    )
    with loader:
        for epoch in range(epochs):
            ids, bright, dark = [], 0.0, 0.0
            for batch in loader:
                ids += batch["id"].tolist()
                for image, mask, (box,) in zip(batch["image"], batch["mask"], batch["boxes"], strict=True):
                    bright += float(image[mask].sum())
                    dark += float(image[~mask].sum())
                    rows, columns = mask.nonzero()
                    if len(rows):  # the disc lies in its box, which moved with it
                        x0, y0, x1, y1 = box
                        assert x0 - 1 <= columns.min() and columns.max() <= x1 + 1
                        assert y0 - 1 <= rows.min() and rows.max() <= y1 + 1
            assert sorted(ids) == list(range(COUNT))
            print(f"job {job}, epoch {epoch}: {len(ids)} samples, {bright / (bright + dark):.0%} of the light in masks",
                  flush=True)


if __name__ == "__main__":
    sys.exit(two_jobs.main(train))
