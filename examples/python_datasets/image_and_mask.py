"""Images with masks and boxes: a dataset of one's own, cached, with random steps in Python behind it.

    python examples/python_datasets/image_and_mask.py

`Shapes` stands for a dataset that opens large files: item i is always the same, so `cache="items"` keeps it for both
jobs. `flip` and `crop` are random: every sample of every epoch gets its own, the same for image, mask and box. """

from __future__ import annotations

import sys
from pathlib import Path

import larder
import numpy as np
import two_jobs

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
        box = np.array([x - radius, y - radius, x + radius + 1, y + radius + 1], np.float32)
        return {"image": image, "mask": mask, "box": box, "id": index}


@larder.transform(version=1, random=True)
def flip(item, rng):
    if rng.random() < 0.5:
        return item
    x0, y0, x1, y1 = item["box"]
    box = np.array([SIDE - x1, y0, SIDE - x0, y1], np.float32)
    return {**item, "image": item["image"][:, ::-1], "mask": item["mask"][:, ::-1], "box": box}


@larder.transform(version=1, random=True)
def crop(item, rng):
    y, x = (int(v) for v in rng.integers(0, SIDE - CROP + 1, 2))
    part = (slice(y, y + CROP), slice(x, x + CROP))
    box = np.clip(item["box"] - np.array([x, y, x, y], np.float32), 0, CROP)
    return {**item, "image": item["image"][part], "mask": item["mask"][part], "box": box}


def train(job: int, epochs: int, _folder: Path) -> None:
    loader = larder.Loader(
        Shapes(), name="shapes", cache="items", transform=[flip, crop], batch_size=16, shuffle=True, num_workers=1,
        seed=job, job=f"masks-{job}",
    )
    with loader:
        for epoch in range(epochs):
            ids, bright, dark = [], 0.0, 0.0
            for batch in loader:
                ids += batch["id"].tolist()
                bright += float(batch["image"][batch["mask"]].sum())
                dark += float(batch["image"][~batch["mask"]].sum())
            assert sorted(ids) == list(range(COUNT))
            print(f"job {job}, epoch {epoch}: {len(ids)} samples, {bright / (bright + dark):.0%} of the light in masks",
                  flush=True)


if __name__ == "__main__":
    sys.exit(two_jobs.main(train))
