"""MixUp and CutMix: what a recipe may end in, done on a batch when it is handed out.

The Loader mixes, not the daemon: a mixed image has two labels and belongs to one batch of one job, so that nothing of
it can be cached or shared, and the samples behind it stay what every other job shares. What is drawn follows from
(seed, epoch, step, rank) alone. A resumed epoch mixes as the interrupted one would have.

Values are those of torchvision.transforms.v2 for the same draw: products and sums of the image's own dtype, each
rounded on its own. Of records, one field is the image and one is the label; the others stay as they are.
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

from . import _ring
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


def beside_collate(name: str) -> InvalidError:
    """The error of a MixUp or CutMix beside a ``collate_fn``."""
    return InvalidError(
        f"{name} mixes batches, and collate_fn makes them of samples", subject="collate_fn",
        hint=f"call torchvision's {name} in collate_fn, or leave one of the two out",
    )  # fmt: skip


class Draw(NamedTuple):
    """What one batch gets: the share of an image itself, and for CutMix the box that is another's."""

    share: float
    box: tuple[int, int, int, int] | None  # left, top, right, bottom


class Touched(NamedTuple):
    """The fields that are mixed."""

    image: str = "image"
    label: str = "label"
    hwc: bool | None = None  # whether rows of the image are (H, W, C); None: the ring says


_LABELS = ("label", "labels", "class", "cls", "y", "target", "fine_label")


def touched(op: OpMessage, transform: Sequence[OpMessage], fields: Sequence[Any]) -> Touched:
    """The fields of records that a recipe mixes, by the rule of the daemon, which has checked them.

    Raises:
        InvalidError: they are not found.
    """
    args, shapes = op.get("args") or {}, {str(f["name"]): [int(n) for n in f.get("shape") or ()] for f in fields}
    images = [str(f["name"]) for f in fields if _image(f, shapes[str(f["name"])])]
    labels = [str(f["name"]) for f in fields if _label(f, shapes[str(f["name"])])]
    image = _choose(args.get("image") or _named(transform), ("image",), images)
    label = _choose(args.get("label"), _LABELS, labels)
    if image not in images or label not in labels:
        raise InvalidError(
            f"{op.get('name')} mixes images and labels, and the records are of {', '.join(shapes):.200}",
            reason="RECIPE_INVALID", subject="transform", hint='say which fields they are: image="...", label="..."',
        )  # fmt: skip
    shape = shapes[image]
    ends = shape[0] in (1, 3), shape[2] in (1, 3)
    dtype = next(str(f["dtype"]) for f in fields if f["name"] == image)
    return Touched(image, label, ends[1] if ends[0] != ends[1] else dtype == "uint8")


def _named(transform: Sequence[OpMessage]) -> Any:
    """The image that the last Fields op of a recipe names, as for every op behind it; None: it names none."""
    last = next((o for o in reversed(transform) if o.get("name") == "Fields"), None)
    image = None if last is None else (last.get("args") or {}).get("image")
    return image[0] if isinstance(image, list) and len(image) == 1 else image


def _choose(named: Any, known: Sequence[str], can: Sequence[str]) -> str:
    if named:
        return str(named)
    return next((n for n in known if n in can), can[0] if len(can) == 1 else "")


def _image(f: Any, shape: Sequence[int]) -> bool:
    numbers = f["kind"] == "array" and f["dtype"] in ("uint8", "float32", "float64")
    return numbers and len(shape) == 3 and -1 not in shape and (shape[0] in (1, 3) or shape[2] in (1, 3))


def _label(f: Any, shape: Sequence[int]) -> bool:
    if f["kind"] not in ("array", "scalar") or f["dtype"] in ("float16", "bfloat16"):
        return False
    return "int" in f["dtype"] if not shape else len(shape) == 1 and -1 not in shape


class Mixer:
    """Mixes the batches of one job and rank."""

    def __init__(self, op: OpMessage, spec: JobSpec, rank: int, fields: Touched | None = None) -> None:
        args = op.get("args") or {}
        self.name = str(op.get("name", ""))
        self.cut = self.name.lower() == "cutmix"
        self.alpha = float(args.get("alpha") or 1.0)
        self.classes = int(args.get("num_classes") or 0)
        self.seed = int(spec.get("seed") or 0)
        self.rank = rank
        self.fields = fields or Touched()
        self._memory = _Memory()

    @classmethod
    def of(cls, spec: JobSpec, rank: int, record: Sequence[Any] | None = None) -> Mixer | None:
        """The mixer of a job, None when its recipe mixes nothing; ``record``: the fields of samples that are records.

        Raises:
            InvalidError: no field of the records can be the image, or the label.
        """
        transform = spec.get("transform") or []
        op = op_of(transform)
        if op is None:
            return None
        return cls(op, spec, rank, None if record is None else touched(op, transform, record))

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

        ``hwc`` says that rows of images are (H, W, C), not (C, H, W), where the fields of the job do not say it.
        """
        image, label, of_record = self.fields
        hwc = hwc if of_record is None else of_record
        images: Array = values[names.index(image)]
        height, width = images.shape[1:3] if hwc else images.shape[2:4]
        draw = self.draw(epoch, step, height, width)
        mixed = {
            image: self._images(images, draw, hwc),
            label: self._labels(values[names.index(label)], draw.share),
        }
        return [mixed[n] if n in mixed else _ring.copy(v) for n, v in zip(names, values, strict=True)]

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
        own, other = images.dtype.type(draw.share), images.dtype.type(1.0 - draw.share)
        part = np.empty(images.shape[1:], images.dtype)
        for i in range(len(images)):
            np.multiply(images[i - 1], other, out=out[i])
            np.multiply(images[i], own, out=part)
            out[i] += part
        return out

    def _labels(self, labels: Array, share: float) -> Array:
        if labels.ndim == 2:  # one number a class
            kind = labels.dtype if labels.dtype.kind == "f" else np.dtype(np.float32)
            shares = labels.astype(kind)
            return np.roll(shares, 1, 0) * kind.type(1.0 - share) + shares * kind.type(share)
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
