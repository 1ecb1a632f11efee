"""torchvision's ImageFolder as a dataset of the daemon, where both give the same bits.

Every parameter is looked at. What is not known to give equal bits (docs/parity.md) is not translated, and the dataset
runs in worker processes as any other does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import ops

_FORMATS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic")


class Native(NamedTuple):
    """A folder of images, and the ops that give what its dataset gives."""

    uri: str
    transform: list[ops.Op]
    samples: int
    classes: list[str]


class NotNative(Exception):
    """Why a dataset stays in Python; the message says it in words."""


def convert(dataset: Any) -> Native:
    """The folder and the ops of an ImageFolder.

    Raises:
        NotNative: it is none, or one of its parameters has no counterpart with equal bits.
    """
    vision = sys.modules.get("torchvision")
    folder = sys.modules.get("torchvision.datasets.folder")
    if vision is None or folder is None or type(dataset) is not folder.ImageFolder:
        raise NotNative("it is no torchvision.datasets.ImageFolder")
    if dataset.loader is not folder.default_loader or vision.get_image_backend() != "PIL":
        raise NotNative("it has a loader of its own")
    if dataset.target_transform is not None:
        raise NotNative("it has a target_transform")
    if tuple(dataset.extensions or ()) != _FORMATS:
        raise NotNative("it has an is_valid_file of its own")
    transforms = getattr(dataset, "transforms", None)
    if transforms is not None and getattr(transforms, "transform", None) is not dataset.transform:
        raise NotNative("its transforms are not its transform")
    if dataset.imgs is not dataset.samples or len(dataset.targets) != len(dataset.samples):
        raise NotNative("its list of samples was changed")
    root = os.path.abspath(os.path.expanduser(os.fspath(dataset.root)))
    return Native(f"imagefolder:{root}", recipe(dataset.transform), len(dataset.samples), list(dataset.classes))


def recipe(transform: Any) -> list[ops.Op]:
    """The ops of a torchvision transform of PIL images.

    Raises:
        NotNative: a step has no counterpart with equal bits, or the result is no tensor of one size.
    """
    found: list[ops.Op] = []
    phase, sized = "image", False  # "image": PIL; "bytes": a uint8 tensor; "float": a float32 tensor in [0, 1]
    for t in _flat(transform):
        name = type(t).__name__
        if name in ("ToTensor", "PILToTensor") and phase == "image":
            found.append(ops.ToTensor() if name == "ToTensor" else ops.PILToTensor())
            phase = "float" if name == "ToTensor" else "bytes"
        elif name == "ConvertImageDtype" and phase == "bytes" and str(t.dtype) == "torch.float32":
            found[-1] = ops.ToTensor()
            phase = "float"
        elif name == "Normalize" and phase == "float":
            found.append(ops.Normalize(_numbers(t, "mean"), _numbers(t, "std")))
            phase = "normal"
        elif phase == "image":
            if found and isinstance(found[-1], ops.Grayscale) and found[-1].num_output_channels == 1:
                raise NotNative(f"{name} comes after Grayscale(1)")
            op = _image_op(t, name)
            sized = _fixes(op, sized)
            found.append(op)
        else:
            raise NotNative(f"{name} comes after the image has become a tensor")
    if phase == "image":
        raise NotNative("its transform gives PIL images, no tensors")
    if not sized:
        raise NotNative("its images have sizes of their own")
    return found


def _flat(t: Any) -> Iterator[Any]:
    module = sys.modules.get("torchvision.transforms.transforms")
    if t is None:
        return
    if module is None or type(t) is not getattr(module, type(t).__name__, None):
        raise NotNative(f"{type(t).__module__}.{type(t).__name__} is none of torchvision.transforms")
    if isinstance(t, module.Compose):
        for x in t.transforms:
            yield from _flat(x)
    else:
        yield t


def _image_op(t: Any, name: str) -> ops.Op:
    if name == "Resize":
        return ops.Resize(_size(t), _interpolation(t), t.max_size)
    if name == "CenterCrop":
        return ops.CenterCrop(_size(t))
    if name == "RandomResizedCrop":
        return ops.RandomResizedCrop(_size(t), _numbers(t, "scale"), _numbers(t, "ratio"), _interpolation(t))
    if name == "RandomHorizontalFlip":
        return ops.RandomHorizontalFlip(_number(t, "p"))
    if name == "RandomVerticalFlip":
        return ops.RandomVerticalFlip(_number(t, "p"))
    if name == "Grayscale" and t.num_output_channels in (1, 3):
        return ops.Grayscale(t.num_output_channels)
    if name == "ColorJitter":
        ranges = {
            n: _numbers(t, n) for n in ("brightness", "contrast", "saturation", "hue") if getattr(t, n) is not None
        }
        return ops.ColorJitter(**ranges)
    raise NotNative(f"{name} has no counterpart in the daemon")


def _fixes(op: ops.Op, sized: bool) -> bool:
    """Whether all images have one size after the op."""
    if isinstance(op, (ops.CenterCrop, ops.RandomResizedCrop)):
        return True
    return not isinstance(op.size, int) if isinstance(op, ops.Resize) else sized


def _size(t: Any) -> int | list[int]:
    size = t.size
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    if isinstance(size, (list, tuple)) and len(size) in (1, 2) and all(type(x) is int for x in size):
        return int(size[0]) if len(size) == 1 else [int(x) for x in size]
    raise NotNative(f"{type(t).__name__} has the size {size!r}")


def _interpolation(t: Any) -> str:
    value = getattr(t.interpolation, "value", t.interpolation)
    if value not in _INTERPOLATIONS:
        raise NotNative(f"{type(t).__name__} has the interpolation {value!r}")
    return str(value)


def _number(t: Any, name: str) -> float:
    value = getattr(t, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NotNative(f"{type(t).__name__} has {name}={value!r}")
    return float(value)


def _numbers(t: Any, name: str) -> list[float]:
    value = getattr(t, name)
    if hasattr(value, "tolist"):
        raise NotNative(f"{type(t).__name__} has {name} as {type(value).__name__}")
    if not isinstance(value, (list, tuple)) or not all(isinstance(x, (int, float)) for x in value):
        raise NotNative(f"{type(t).__name__} has {name}={value!r}")
    return [float(x) for x in value]
