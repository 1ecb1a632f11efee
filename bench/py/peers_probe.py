"""Which peers do the same work: what became of drawn images is read from the pixels that each system delivers.

Images of one colour each say which image a row is, and so in which order a job received them. Ramps say which part was
cropped, and whether it was flipped: a channel grows from left to right, another from top to bottom. Noise says whether
the resize filters what it shrinks: with antialiasing noise averages out, without it stays. Each system delivers two
epochs to two jobs.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from peers_figures import ANY, System

CROP, BATCH, EPOCHS, JOBS = 64, 16, 2, 2
IDS, RAMPS, NOISE = 64, 128, 16  # images of each set; multiples of BATCH
RAMP_SIDE, NOISE_SIDE = (360, 480), 640  # a crop of 8 % of the noise is shrunk by 2.8 at least
LEVELS = 8  # of a channel, in the colour that says which image it is
FILTERED = 0.35  # of the noise's contrast; see drawn contrast in test_peers.py

# Delivers an array of (epochs, images, height, width, 3) for each job.
Deliver = Callable[[System, str, int], list[np.ndarray]]


# --- drawing --------------------------------------------------------------------------------------------------------


def save(folder: pathlib.Path, i: int, pixels: np.ndarray) -> None:
    from PIL import Image

    path = folder / f"class{i % 4}" / f"{i:04d}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=95, subsampling=0)


def colour(i: int) -> tuple[int, int, int]:
    """A colour that says which image it is: two digits of base 8 in red and green."""
    return 16 + 32 * (i % LEVELS), 16 + 32 * (i // LEVELS), 128


def draw_ids(folder: pathlib.Path, count: int = IDS) -> None:
    for i in range(count):
        save(folder, i, np.broadcast_to(np.array(colour(i)), (96, 128, 3)))


def draw_ramps(folder: pathlib.Path) -> None:
    height, width = RAMP_SIDE
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([255 * x / (width - 1), 255 * y / (height - 1), np.full(x.shape, 128)], -1)
    for i in range(RAMPS):
        save(folder, i, image.round())


def draw_noise(folder: pathlib.Path) -> None:
    rng = np.random.default_rng(3)
    for i in range(NOISE):
        grey = rng.normal(128, 40, (NOISE_SIDE, NOISE_SIDE, 1)).clip(0, 255)
        save(folder, i, np.broadcast_to(grey, (NOISE_SIDE, NOISE_SIDE, 3)))


# --- reading --------------------------------------------------------------------------------------------------------


def ids(epoch: np.ndarray) -> list[int]:
    """Which image each row of an epoch is."""
    mean = epoch.mean(axis=(1, 2))
    digits = ((mean[:, :2] - 16) / 32).round().astype(int)
    return (digits[:, 0] + LEVELS * digits[:, 1]).tolist()


def said_of_orders(jobs: list[np.ndarray]) -> dict[str, str]:
    orders = [[ids(e) for e in of] for of in jobs]
    whole = all(sorted(o) == list(range(IDS)) for of in orders for o in of)
    fresh = all(of[0] != of[1] for of in orders)
    sorted_ = any(o == sorted(o) for of in orders for o in of)
    own = orders[0][0] != orders[1][0]
    return {"each image once an epoch": "yes" if whole else "no",
            "order": "sorted" if sorted_ else "new each epoch" if fresh else "the same each epoch",
            "order of two jobs": "each its own" if own else "one for both"}


def crops(images: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of crops of the ramps: whether each was flipped, its part of the area, and width over height."""
    height, width = RAMP_SIDE
    a = images.astype(float)
    n = a.shape[1]
    inner = slice(n // 8, n - n // 8)  # edges repeat the last pixel
    across = (a[:, :, inner, 0].mean(axis=1)[:, [0, -1]], a[:, inner, :, 1].mean(axis=2)[:, [0, -1]])
    part = n / (n - 2 * (n // 8) - 1)
    x, y = ((end[:, 1] - end[:, 0]) * part / 255 for end in across)
    return x < 0, abs(x) * abs(y), abs(x) * width / (abs(y) * height)


def said_of_crops(jobs: list[np.ndarray]) -> dict[str, str]:
    images = np.concatenate([e for of in jobs for e in of])
    flipped, area, ratio = crops(images)
    first, second = (crops(e)[1] for e in jobs[0][:2])
    same = np.allclose(np.sort(first), np.sort(second), atol=1e-3)
    return {"flipped": f"{100 * flipped.mean():.0f} %", "mean area": f"{area.mean():.2f}",
            "width ÷ height": f"{np.quantile(ratio, 0.01):.2f}–{np.quantile(ratio, 0.99):.2f}",
            "crops": "the same each epoch" if same else "new each epoch"}


def contrast(images: np.ndarray) -> float:
    """What is left of the noise's standard deviation of 40; the median of all crops."""
    return float(np.median(images[..., 0].astype(float).std(axis=(1, 2)))) / 40


def said_of_noise(jobs: list[np.ndarray]) -> dict[str, str]:
    left = contrast(np.concatenate([e for of in jobs for e in of]))
    return {"noise left": f"{100 * left:.0f} %", "antialiasing": "yes" if left < FILTERED else "no"}


SETS = ((draw_ids, said_of_orders), (draw_ramps, said_of_crops), (draw_noise, said_of_noise))


def measure(systems: list[System], deliver: Deliver) -> dict[str, Any]:
    """A table of what each system did with the drawn images."""
    rows: dict[str, dict[str, str]] = {s.name: {} for s in systems}
    with tempfile.TemporaryDirectory(prefix="larder-probe-") as tmp:
        for draw, said in SETS:
            data = pathlib.Path(tmp, draw.__name__)
            draw(data)
            for s in systems:
                try:
                    rows[s.name] |= said(deliver(s, str(data), JOBS))
                except RuntimeError as e:
                    rows[s.name] |= {"failed": str(e)}
                print(f"  {s.name}: {rows[s.name]}", flush=True)
    head = list(dict.fromkeys(k for r in rows.values() for k in r))
    return {"title": f"What drawn images say of each system ({JOBS} jobs, {EPOCHS} epochs)", "head": ["system", *head],
            "rows": [[name, *(r.get(k, "–") for k in head)] for name, r in rows.items()]}


def case_of(s: System) -> str:
    return ANY if ANY in s.cases else s.cases[0]
