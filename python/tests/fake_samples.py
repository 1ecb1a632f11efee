"""What the samples of the fake daemon look like to a client."""

from __future__ import annotations

import numpy as np

SHAPE = (3, 8, 10)


def expected_fixed(sample: int, epoch: int = 0, normalized: bool = False) -> np.ndarray:
    c, h, w = SHAPE
    a = (sample * 7 + epoch * 13 + np.arange(c)[:, None, None] * 31 + np.arange(h)[:, None] * 3 + np.arange(w)) % 251
    return (a.astype(np.float32) / 255 - 0.5) / 0.25 if normalized else a.astype(np.uint8)


def expected_ragged(sample: int) -> np.ndarray:
    h, w = (40, 50) if sample % 10 == 9 else (4 + sample % 5, 3 + sample % 7)
    return ((sample * 11 + np.arange(h)[:, None, None] * 5 + np.arange(w)[:, None] * 2 + np.arange(3)) % 251).astype(
        np.uint8
    )
