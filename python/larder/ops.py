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
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

from ._messages import OpMessage
from .errors import InvalidError

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Grayscale",
    "HFlip",
    "Normalize",
    "Op",
    "PILToTensor",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "ToImage",
    "ToTensor",
]

Size = int | Sequence[int]
Range = float | Sequence[float]


def _plain(value: Any, where: str) -> Any:
    """Turns an argument into what JSON can carry; raises InvalidError for the rest."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        if number != number or number in (float("inf"), float("-inf")):
            raise InvalidError(f"{where}: {number} is not a finite number", reason="RECIPE_INVALID", subject=where)
        return number
    if isinstance(value, type) and value.__module__ == "numpy":  # np.float32
        return value.__name__
    enum_value = getattr(value, "value", None)  # torchvision's InterpolationMode
    if isinstance(enum_value, str):
        return enum_value
    if hasattr(value, "tolist") and not isinstance(value, type):  # NumPy arrays, torch tensors
        return _plain(value.tolist(), where)
    if isinstance(value, (list, tuple)):
        return [_plain(v, where) for v in value]
    name = str(value)
    if name.startswith(("torch.", "numpy.")):  # torch.float32
        return name.split(".", 1)[1]
    raise InvalidError(
        f"{where}: {value!r} ({type(value).__name__}) cannot be sent to the daemon",
        reason="RECIPE_INVALID",
        subject=where,
        hint="use numbers, strings and lists of them",
    )


class Op:
    """A step of a recipe; the subclasses are frozen dataclasses whose fields are its arguments."""

    def to_json(self) -> OpMessage:
        """The op as an Op message: name and arguments, those that are None left out."""
        name = type(self).__name__
        args: dict[str, Any] = {}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = _plain(getattr(self, f.name), f"{name}.{f.name}")
            if value is not None:
                args[f.name] = value
        return {"name": name, "args": args}


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
    """

    dtype: Any = "float32"
    scale: bool = True
    layout: str | None = None


@dataclasses.dataclass(frozen=True)
class ToImage(Op):
    """Converts to uint8 CHW, values unchanged; :func:`larder.normalize` then normalises on the device."""


@dataclasses.dataclass(frozen=True)
class PILToTensor(Op):
    """Converts to uint8 CHW, values unchanged."""


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
            "args": {str(k): _plain(v, f"{name}.{k}") for k, v in t.get("args", {}).items()},
        }
        if t.get("kind"):
            op["kind"] = str(t["kind"])
        out.append(op)
    elif isinstance(t, (list, tuple)):
        for x in t:
            _flatten(x, out, depth + 1)
    elif type(t).__module__.startswith("torchvision.transforms"):
        _from_torchvision(t, out, depth)
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
            hint="use larder.ops or torchvision's classes; apply Python functions to the batches in the training loop",
        )


# Class name of torchvision -> (our op, attributes to take over).
_TORCHVISION: dict[str, tuple[str, tuple[str, ...]]] = {
    "Resize": ("Resize", ("size", "interpolation", "max_size")),
    "CenterCrop": ("CenterCrop", ("size",)),
    "RandomResizedCrop": ("RandomResizedCrop", ("size", "scale", "ratio", "interpolation")),
    "RandomHorizontalFlip": ("RandomHorizontalFlip", ("p",)),
    "RandomVerticalFlip": ("RandomVerticalFlip", ("p",)),
    "ColorJitter": ("ColorJitter", ("brightness", "contrast", "saturation", "hue")),
    "Grayscale": ("Grayscale", ("num_output_channels",)),
    "Normalize": ("Normalize", ("mean", "std")),
    "ToTensor": ("ToTensor", ()),
    "PILToTensor": ("PILToTensor", ()),
    "ToImage": ("ToImage", ()),
    "ToDtype": ("ToDtype", ("dtype", "scale")),
    "ConvertImageDtype": ("ToDtype", ("dtype",)),
}


def _from_torchvision(t: Any, out: list[OpMessage], depth: int) -> None:
    """Translates one torchvision object; on PIL images torchvision always antialiases, so nothing is taken from
    ``antialias``.
    """
    name = type(t).__name__
    if name == "Compose":
        for x in t.transforms:
            _flatten(x, out, depth + 1)
        return
    known = _TORCHVISION.get(name)
    if known is None:
        raise InvalidError(
            f"transform: torchvision's {name} has no counterpart in the daemon",
            reason="RECIPE_INVALID",
            subject=name,
            hint="the ops are " + ", ".join(n for n in __all__ if n not in ("Op", "Compose")),
        )
    ours, attributes = known
    args: dict[str, Any] = {}
    for a in attributes:
        if not hasattr(t, a):  # e.g. v2's Grayscale of some versions
            continue
        value = getattr(t, a)
        if isinstance(value, dict):  # v2's ToDtype by type of input
            value = next(iter(value.values()))
        value = _plain(value, f"{name}.{a}")
        if value is not None:
            args[a] = value
    if ours in ("Resize", "RandomResizedCrop"):
        args["antialias"] = True
    out.append({"name": ours, "args": args})
