"""MixUp and CutMix: what a recipe may end in, done on a batch when it is handed out.

The Loader mixes, not the daemon: a mixed image has two labels and belongs to one batch of one job, so that nothing of
it can be cached or shared, and the samples behind it stay what every other job shares. What is drawn follows from
(seed, epoch, step, rank) alone. A resumed epoch mixes as the interrupted one would have.

Values are those of torchvision.transforms.v2 for the same draw: float32 products and sums, each rounded on its own.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import random
import struct
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._messages import JobSpec, OpMessage
from .errors import InvalidError

Array = npt.NDArray[Any]


def op_of(transform: Sequence[OpMessage]) -> OpMessage | None:
    """The MixUp or CutMix that a recipe ends in."""
    last = transform[-1] if transform else None
    return last if last is not None and str(last.get("name", "")).lower() in ("mixup", "cutmix") else None


def require_fields(transform: Sequence[OpMessage], fields: Sequence[str]) -> None:
    """Raises InvalidError when a recipe mixes labels that are not asked for."""
    op = op_of(transform)
    if op is not None and not {"image", "label"} <= set(fields):
        raise InvalidError(
            f"{op.get('name')} mixes images and labels, and fields is {tuple(fields)!r}",
            subject="fields",
            hint=f'ask for both, fields=("image", "label"), or leave {op.get("name")} out',
        )


class Draw(NamedTuple):
    """What one batch gets: the share of an image itself, and for CutMix the box that is another's."""

    share: float
    box: tuple[int, int, int, int] | None  # left, top, right, bottom


class Mixer:
    """Mixes the batches of one job and rank."""

    def __init__(self, op: OpMessage, spec: JobSpec, rank: int) -> None:
        args = op.get("args") or {}
        self.name = str(op.get("name", ""))
        self.cut = self.name.lower() == "cutmix"
        self.alpha = float(args.get("alpha") or 1.0)
        self.classes = int(args.get("num_classes") or 0)
        self.seed = int(spec.get("seed") or 0)
        self.rank = rank
        self._memory = _Memory()

    @classmethod
    def of(cls, spec: JobSpec, rank: int) -> Mixer | None:
        """The mixer of a job, None when its recipe mixes nothing."""
        op = op_of(spec.get("transform") or [])
        return None if op is None else cls(op, spec, rank)

    def draw(self, epoch: int, step: int, height: int, width: int) -> Draw:
        """The draw for a batch: the ``step``-th of the whole ``epoch``, counted from 0."""
        key = struct.pack("<QQQQ", self.seed, epoch, step, self.rank)
        rng = random.Random(
            int.from_bytes(hashlib.blake2b(key, digest_size=16, person=b"larder mix").digest(), "little")
        )
        share = float(np.float32(_beta(rng, self.alpha)))
        if not self.cut:
            return Draw(share, None)
        x, y = int(rng.random() * width), int(rng.random() * height)
        half = 0.5 * math.sqrt(1.0 - share)
        w, h = int(half * width), int(half * height)
        left, top, right, bottom = max(x - w, 0), max(y - h, 0), min(x + w, width), min(y + h, height)
        return Draw(1.0 - (right - left) * (bottom - top) / (width * height), (left, top, right, bottom))

    def mix(self, names: Sequence[str], values: list[Any], hwc: bool, epoch: int, step: int) -> list[Any]:
        """The values of a batch, mixed, in memory of their own.

        ``hwc`` says that rows of images are (H, W, C), not (C, H, W).
        """
        images: Array = values[names.index("image")]
        height, width = images.shape[1:3] if hwc else images.shape[2:4]
        draw = self.draw(epoch, step, height, width)
        mixed = {
            "image": self._images(images, draw, hwc),
            "label": self._labels(values[names.index("label")], draw.share),
        }
        return [mixed[n] if n in mixed else v.copy() for n, v in zip(names, values, strict=True)]

    def _images(self, images: Array, draw: Draw, hwc: bool) -> Array:
        out = self._memory.array(images.shape, images.dtype)
        if draw.box is not None:
            left, top, right, bottom = draw.box
            rows, columns = slice(top, bottom), slice(left, right)
            box = (rows, columns) if hwc else (slice(None), rows, columns)
            for i in range(len(images)):
                out[i] = images[i]
                out[i][box] = images[i - 1][box]
            return out
        own, other = np.float32(draw.share), np.float32(1.0 - draw.share)
        part = np.empty(images.shape[1:], images.dtype)
        for i in range(len(images)):
            np.multiply(images[i - 1], other, out=out[i])
            np.multiply(images[i], own, out=part)
            out[i] += part
        return out

    def _labels(self, labels: Array, share: float) -> Array:
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            wrong = int(labels.max() if labels.max() >= self.classes else labels.min())
            raise InvalidError(
                f"{self.name}: a sample has label {wrong}, and num_classes is {self.classes}",
                subject="num_classes",
                hint=f"give {self.name} as many classes as the dataset has",
            )
        rows = np.arange(len(labels))
        out = np.zeros((len(labels), self.classes), np.float32)
        out[rows, np.roll(labels, 1)] = np.float32(1.0 - share)
        out[rows, labels] += np.float32(share)
        return out


def _beta(rng: random.Random, alpha: float) -> float:
    """A draw of Beta(alpha, alpha). It takes nothing of ``rng`` but random(), which gives the same on every version."""
    if alpha == 1.0:
        return rng.random()
    gap = _log_gamma(rng, alpha) - _log_gamma(rng, alpha)
    return 1.0 / (1.0 + math.exp(-gap)) if gap > -700.0 else 0.0


def _log_gamma(rng: random.Random, alpha: float) -> float:
    """The logarithm of a draw of Gamma(alpha), by Marsaglia and Tsang; below 1 by Gamma(alpha + 1)."""
    boost = math.log(1.0 - rng.random()) / alpha if alpha < 1.0 else 0.0
    d = (alpha + 1.0 if alpha < 1.0 else alpha) - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        radius = math.sqrt(-2.0 * math.log(1.0 - rng.random()))
        x = radius * math.cos(2.0 * math.pi * rng.random())
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log(1.0 - rng.random()) < 0.5 * x * x + d - d * v + d * math.log(v):
            return math.log(d * v) + boost


class _Memory:
    """Memory for batches, used again once every array on it is gone: fresh memory costs as much as mixing."""

    def __init__(self) -> None:
        self._used: list[tuple[mmap.mmap, weakref.ref[Array]]] = []

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array of undefined content."""
        size = max(math.prod(shape) * dtype.itemsize, 1)
        free = [m for m, root in self._used if root() is None]
        memory = next((m for m in free if len(m) >= size), None) or mmap.mmap(-1, size)
        # An array over an mmap is the base of all its views, however they were made: see _ring.
        root: Array = np.frombuffer(memory, np.uint8)
        spare = [m for m in free if m is not memory][:1]
        self._used = [
            (memory, weakref.ref(root)),
            *((m, r) for m, r in self._used if r() is not None or m in spare),
        ]
        return np.ndarray(shape, dtype, root)
