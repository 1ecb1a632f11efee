"""Images to try things with: an ImageFolder of drawn shapes, one colour and shape per class. Needs only NumPy."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

COLOURS = [(220, 60, 50), (60, 160, 70), (60, 90, 210), (230, 180, 40), (150, 70, 190), (40, 180, 190)]


def png(image: np.ndarray) -> bytes:
    """An (h, w, 3) uint8 array as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    h, w, _ = image.shape
    rows = np.concatenate([np.zeros((h, 1), np.uint8), image.reshape(h, w * 3)], axis=1)  # filter 0 before every row
    head = struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT",
                                                               zlib.compress(rows.tobytes(), 1)) + chunk(b"IEND", b"")


def folder(path: Path, classes: int = 6, each: int = 40, seed: int = 1) -> Path:
    """Draws ``classes`` folders of ``each`` images of 64 to 96 pixels."""
    rng = np.random.default_rng(seed)
    for c in range(classes):
        where = path / f"class{c}"
        where.mkdir(parents=True)
        for n in range(each):
            h, w = rng.integers(64, 97, 2)
            y, x = np.mgrid[0:h, 0:w]
            image = 128 + np.array([40.0, 20.0, -30.0]) * ((x / w)[..., None] - 0.5) + rng.normal(0, 12, (h, w, 3))
            dy, dx, r = y - h * rng.uniform(0.35, 0.65), x - w * rng.uniform(0.35, 0.65), rng.uniform(14, 26)
            shape = [dx**2 + dy**2 < r**2, np.maximum(abs(dx), abs(dy)) < r, abs(dx) + abs(dy) < r][c % 3]
            image[shape] = np.array(COLOURS[c % len(COLOURS)]) + rng.normal(0, 8, (int(shape.sum()), 3))
            (where / f"{n:03}.png").write_bytes(png(np.clip(image, 0, 255).astype(np.uint8)))
    return path
