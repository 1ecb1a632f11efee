"""The transforms the daemon runs: names, arguments and semantics of torchvision.transforms.v2.

Ops are descriptions and compute nothing: ``transform=[ops.RandomResizedCrop(224), ops.HFlip()]`` travels to the daemon
as names and arguments, so that jobs with equal recipes (or equal prefixes of them) share the work. The daemon checks
the arguments. Objects of torchvision.transforms and torchvision.transforms.v2 may stand in the list too; they are
translated by class name.

Differences to torchvision: ``Normalize("imagenet")`` fills in the usual numbers and scales uint8 to [0, 1] first;
``ToDtype`` scales by default and takes a ``layout``; ``Grayscale`` gives three channels by default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from . import _foreign
from ._messages import OpMessage
from .errors import InvalidError

__all__ = [
    "AutoAugment",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "Fields",
    "GaussianBlur",
    "Grayscale",
    "HFlip",
    "MixUp",
    "Normalize",
    "Op",
    "PILToTensor",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "ToImage",
    "ToTensor",
    "TrivialAugmentWide",
]

Size = int | Sequence[int]
Range = float | Sequence[float]
Fill = int | Sequence[int] | None


class Op:
    """A step of a recipe; the subclasses are frozen dataclasses whose fields are its arguments."""

    def to_json(self) -> OpMessage:
        """The op as an Op message: name and arguments, those that are None left out."""
        name = type(self).__name__
        args: dict[str, Any] = {}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = _foreign.plain(getattr(self, f.name), f"{name}.{f.name}")
            if value is not None:
                args[f.name] = value
        return {"name": name, "args": args}


@dataclasses.dataclass(frozen=True)
class Fields(Op):
    """Says which fields of a record the ops behind it touch, until a step in Python or the next Fields.

    Ops that move pixels act on the image, its masks, boxes and keypoints together, with one draw; all others on the
    image alone. Fields that are not named pass unchanged. Without it the image is field ``image``, or the only one that
    can be an image, and nothing else moves. The fields of a tuple are named by their place: "0", "1". Records are items
    of datasets in Python, and samples of formats that have fields, such as ``wds:DIR?fields=jpg,cls``.

    Args:
        image: a uint8 array (H, W, 3).
        mask: an array (..., H, W) of any dtype, or several; resized and rotated by the nearest pixel. A PNG file of a
            format becomes (H, W) of uint8: indices of its palette, or grey values.
        boxes: an array (..., 4) of float32, float64, int32 or int64, or several. Crops and rotations clamp them to the
            image; none is left out.
        keypoints: an array (..., 2) of x and y, dtypes as boxes, or several. They are not clamped.
        box_format: "XYXY" (default), "XYWH" or "CXCYWH".

    Example:
        >>> [ops.Fields(mask="mask", boxes="boxes"), ops.RandomResizedCrop(224), ops.HFlip(), ops.Normalize("imagenet")]
    """

    image: str | None = None
    mask: str | Sequence[str] | None = None
    boxes: str | Sequence[str] | None = None
    keypoints: str | Sequence[str] | None = None
    box_format: str = "XYXY"


@dataclasses.dataclass(frozen=True)
class Resize(Op):
    """Resizes an image.

    Args:
        size: (height, width), or one int for the shorter side.
        interpolation: "bilinear" (default), "bicubic" or "nearest", or torchvision's InterpolationMode.
        max_size: bound of the longer side, where ``size`` is an int.
        antialias: True; images are always antialiased, as PIL images are by torchvision.

    Example:
        >>> ops.Resize(256)
    """

    size: Size
    interpolation: Any = "bilinear"
    max_size: int | None = None
    antialias: bool | None = True


@dataclasses.dataclass(frozen=True)
class CenterCrop(Op):
    """Cuts out the centre; smaller images are padded with 0.

    Args:
        size: (height, width), or one int for both.
    """

    size: Size


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(Op):
    """Cuts out a random part and resizes it.

    Args:
        size: (height, width) of the result, or one int for both.
        scale: lower and upper bound of the part's area, as a fraction of the image's.
        ratio: lower and upper bound of the part's width divided by its height.
        interpolation: as in ``Resize``.
        antialias: as in ``Resize``.

    Example:
        >>> ops.RandomResizedCrop(224, scale=(0.25, 1.0))
    """

    size: Size
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Any = "bilinear"
    antialias: bool | None = True


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip(Op):
    """Mirrors left and right.

    Args:
        p: the probability, default 0.5.
    """

    p: float = 0.5


HFlip = RandomHorizontalFlip


@dataclasses.dataclass(frozen=True)
class RandomVerticalFlip(Op):
    """Mirrors top and bottom.

    Args:
        p: the probability, default 0.5.
    """

    p: float = 0.5


@dataclasses.dataclass(frozen=True)
class ColorJitter(Op):
    """Changes brightness, contrast, saturation and hue at random, in random order.

    Args:
        brightness: a factor from [max(0, 1 - x), 1 + x] for a number x, or from the two bounds given; 0 = unchanged.
        contrast: likewise.
        saturation: likewise.
        hue: a shift from [-x, x] for a number x up to 0.5, or from the two bounds given.
    """

    brightness: Range = 0.0
    contrast: Range = 0.0
    saturation: Range = 0.0
    hue: Range = 0.0


@dataclasses.dataclass(frozen=True)
class Grayscale(Op):
    """Converts to grey levels.

    Args:
        num_output_channels: 3 equal ones (default), or 1.
    """

    num_output_channels: int = 3


@dataclasses.dataclass(frozen=True)
class Normalize(Op):
    """Computes (x - mean) / std per channel on float32 in [0, 1]; uint8 is scaled to that first.

    Args:
        mean: one number for each channel, or "imagenet", which brings its own ``std``.
        std: one number for each channel.

    Example:
        >>> ops.Normalize("imagenet")
    """

    mean: str | Sequence[float]
    std: Sequence[float] | None = None


@dataclasses.dataclass(frozen=True)
class ToTensor(Op):
    """Converts to float32 CHW in [0, 1]."""


@dataclasses.dataclass(frozen=True)
class ToDtype(Op):
    """Casts to another type.

    Args:
        dtype: "float32" or "uint8", or the type of NumPy or torch of that name.
        scale: True (default) maps the range of uint8 to [0, 1].
        layout: "CHW" (also None) or "HWC".
        by: how it scales: "div" (also None) divides by 255, as ``ToTensor``; "mul" multiplies by 1/255, as ``ToDtype``
            of torchvision v2, which changes the last bit of 126 of 256 values. v2's own objects become "mul".
    """

    dtype: Any = "float32"
    scale: bool = True
    layout: str | None = None
    by: str | None = None


@dataclasses.dataclass(frozen=True)
class ToImage(Op):
    """Converts to uint8 CHW, values unchanged; :func:`larder.normalize` then normalises on the device."""


@dataclasses.dataclass(frozen=True)
class PILToTensor(Op):
    """Converts to uint8 CHW, values unchanged."""


@dataclasses.dataclass(frozen=True)
class GaussianBlur(Op):
    """Blurs with a Gaussian kernel.

    Args:
        kernel_size: an odd number of pixels from 1 to 255, or (width, height).
        sigma: the standard deviation in pixels, drawn from [low, high], or a number.

    Example:
        >>> ops.GaussianBlur(23, sigma=(0.1, 2.0))
    """

    kernel_size: Size
    sigma: Range = (0.1, 2.0)


@dataclasses.dataclass(frozen=True)
class RandomRotation(Op):
    """Rotates by a random angle, counter-clockwise.

    Args:
        degrees: the angle is drawn from [-x, x] for a number x, or from [low, high].
        interpolation: "nearest" (default), "bilinear" or "bicubic".
        expand: True makes the image as large as the rotated one needs; then its size varies.
        center: (x, y) of the point to rotate about; None is the middle.
        fill: value of the pixels outside, 0 to 255, or one a channel; None is 0.
    """

    degrees: Range
    interpolation: Any = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: Fill = 0


@dataclasses.dataclass(frozen=True)
class RandomAffine(Op):
    """Rotates, shifts, scales and shears at random, keeping the centre.

    Args:
        degrees: as in ``RandomRotation``, but clockwise; 0 does not rotate.
        translate: largest shift as fractions (of the width, of the height); None does not shift.
        scale: (low, high) of the factor, 0.001 to 1000; None keeps the scale.
        shear: degrees below 90: a number x for [-x, x] along x, (low, high), or four bounds for x and y.
        interpolation: as in ``RandomRotation``.
        fill: as in ``RandomRotation``.
        center: as in ``RandomRotation``.
    """

    degrees: Range
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: Range | None = None
    interpolation: Any = "nearest"
    fill: Fill = 0
    center: Sequence[float] | None = None


@dataclasses.dataclass(frozen=True)
class RandomAutocontrast(Op):
    """Stretches every channel to the whole range.

    Args:
        p: the probability, default 0.5.
    """

    p: float = 0.5


@dataclasses.dataclass(frozen=True)
class RandomEqualize(Op):
    """Equalizes the histogram of every channel.

    Args:
        p: the probability, default 0.5.
    """

    p: float = 0.5


@dataclasses.dataclass(frozen=True)
class RandomInvert(Op):
    """Inverts the values.

    Args:
        p: the probability, default 0.5.
    """

    p: float = 0.5


@dataclasses.dataclass(frozen=True)
class RandomSolarize(Op):
    """Inverts the values from a threshold on.

    Args:
        threshold: 0 to 256.
        p: the probability, default 0.5.
    """

    threshold: float
    p: float = 0.5


@dataclasses.dataclass(frozen=True)
class RandomPosterize(Op):
    """Keeps the upper bits of the values.

    Args:
        bits: how many, 0 to 8.
        p: the probability, default 0.5.
    """

    bits: int
    p: float = 0.5


@dataclasses.dataclass(frozen=True)
class RandomAdjustSharpness(Op):
    """Sharpens or smooths.

    Args:
        sharpness_factor: 0 smooths, 1 changes nothing, 2 sharpens.
        p: the probability, default 0.5.
    """

    sharpness_factor: float
    p: float = 0.5


@dataclasses.dataclass(frozen=True)
class RandAugment(Op):
    """Does a few simple ops of one strength (Cubuk et al. 2019).

    Args:
        num_ops: how many, 0 to 16.
        magnitude: their strength, an index below ``num_magnitude_bins``.
        num_magnitude_bins: how many strengths there are, 2 to 1000.
        interpolation: as in ``RandomRotation``.
        fill: as in ``RandomRotation``.

    Example:
        >>> ops.RandAugment(2, magnitude=9)
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: Fill = None


@dataclasses.dataclass(frozen=True)
class TrivialAugmentWide(Op):
    """Does one simple op of a random strength (Müller, Hutter 2021).

    Args:
        num_magnitude_bins: how many strengths there are, 2 to 1000.
        interpolation: as in ``RandomRotation``.
        fill: as in ``RandomRotation``.
    """

    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: Fill = None


@dataclasses.dataclass(frozen=True)
class AutoAugment(Op):
    """Does one of 25 learned pairs of simple ops (Cubuk et al. 2018).

    Args:
        policy: "imagenet" (default), "cifar10" or "svhn", or torchvision's AutoAugmentPolicy.
        interpolation: as in ``RandomRotation``.
        fill: as in ``RandomRotation``.
    """

    policy: Any = "imagenet"
    interpolation: Any = "nearest"
    fill: Fill = None


@dataclasses.dataclass(frozen=True)
class RandomErasing(Op):
    """Overwrites a random box. Usually the last op, behind ``Normalize``.

    Args:
        p: the probability, default 0.5.
        scale: lower and upper bound of the box's area, as a fraction of the image's.
        ratio: lower and upper bound of the box's height divided by its width.
        value: what is written: a number, one a channel, or "random" for normal noise. Before ``ToTensor`` and
            ``Normalize`` the image is uint8, and the numbers are whole, 0 to 255.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | str = 0.0


@dataclasses.dataclass(frozen=True)
class MixUp(Op):
    """Mixes every image of a batch with the one before it, and their labels alike; the last op of a recipe.

    Labels become float32 of shape (rows, num_classes). The share is drawn anew for every batch, from (seed, epoch,
    step, rank) of the job. The Loader mixes when it hands a batch out: nothing mixed is cached or shared between jobs.

    Args:
        alpha: of the Beta(alpha, alpha) distribution that the share follows.
        num_classes: how many classes there are; of records whose labels are one number a class it is not needed.
        image: of records, the field of the image; default: that of ``Fields``, ``image``, or the only one that can be.
        label: of records, the field of the label, whole numbers or one number a class; default: ``label``, ``labels``,
            ``class``, ``cls``, ``y``, ``target``, ``fine_label``, or the only one that can be.

    Example:
        >>> [ops.RandomResizedCrop(224), ops.Normalize("imagenet"), ops.MixUp(alpha=0.2, num_classes=1000)]
    """

    alpha: float = 1.0
    num_classes: int | None = None
    image: str | None = None
    label: str | None = None


@dataclasses.dataclass(frozen=True)
class CutMix(Op):
    """Puts a box of the image before it into every image of a batch, and mixes their labels by its area.

    All else is as in ``MixUp``; images may also be uint8.

    Args:
        alpha: of the Beta(alpha, alpha) distribution that the share follows.
        num_classes: as in ``MixUp``.
        image: as in ``MixUp``.
        label: as in ``MixUp``.
    """

    alpha: float = 1.0
    num_classes: int | None = None
    image: str | None = None
    label: str | None = None


class Compose:
    """A list of ops; nested ones are flattened.

    Args:
        transforms: ops of this module or torchvision objects.

    Example:
        >>> ops.Compose([ops.Resize(256), ops.CenterCrop(224), ops.ToTensor()])
    """

    def __init__(self, transforms: Iterable[Any]) -> None:
        self.transforms = list(transforms)

    def __repr__(self) -> str:
        return f"Compose({self.transforms!r})"


def recipe(transform: Any) -> list[OpMessage]:
    """Turns the ``transform`` argument into Op messages, flattened; raises InvalidError."""
    out: list[OpMessage] = []
    _flatten(transform, out, 0)
    return out


def _flatten(t: Any, out: list[OpMessage], depth: int) -> None:
    if depth > 32:
        raise InvalidError("transform: nested more than 32 deep", reason="RECIPE_INVALID", subject="transform")
    if t is None:
        return
    if isinstance(t, Op):
        out.append(t.to_json())
    elif isinstance(t, Compose):
        for x in t.transforms:
            _flatten(x, out, depth + 1)
    elif isinstance(t, dict):
        name = t.get("name")
        if not isinstance(name, str) or not isinstance(t.get("args", {}), dict) or set(t) - {"name", "args", "kind"}:
            raise InvalidError(
                f"transform: {t!r} is not of the form {{'name': ..., 'args': {{...}}}}",
                reason="RECIPE_INVALID",
                subject="transform",
            )
        op: OpMessage = {
            "name": name,
            "args": {str(k): _foreign.plain(v, f"{name}.{k}") for k, v in t.get("args", {}).items()},
        }
        if t.get("kind"):
            op["kind"] = str(t["kind"])
        out.append(op)
    elif isinstance(t, (list, tuple)):
        for x in t:
            _flatten(x, out, depth + 1)
    elif type(t).__module__.startswith("torchvision.transforms"):
        if type(t).__name__ == "Compose":
            for x in t.transforms:
                _flatten(x, out, depth + 1)
        else:
            out.append(_foreign.op(t, [n for n in __all__ if n not in ("Op", "Compose")], out))
    elif isinstance(t, type) and issubclass(t, Op):
        raise InvalidError(
            f"transform: {t.__name__} is a class",
            reason="RECIPE_INVALID",
            subject="transform",
            hint=f"write {t.__name__}(...)",
        )
    else:
        what = f"the function {getattr(t, '__name__', t)!r}" if callable(t) else f"{t!r} ({type(t).__name__})"
        raise InvalidError(
            f"transform: {what} cannot run in the daemon",
            reason="RECIPE_INVALID",
            subject="transform",
            hint="use larder.ops or torchvision's classes; workers run a function that @larder.transform marks",
        )
