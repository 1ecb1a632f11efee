"""What objects of torchvision.transforms are as ops: their class names, and the attributes that count."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

from ._messages import OpMessage
from .errors import InvalidError


def plain(value: Any, where: str) -> Any:
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
        return plain(value.tolist(), where)
    if isinstance(value, (list, tuple)):
        return [plain(v, where) for v in value]
    name = str(value)
    if name.startswith(("torch.", "numpy.")):  # torch.float32
        return name.split(".", 1)[1]
    raise InvalidError(
        f"{where}: {value!r} ({type(value).__name__}) cannot be sent to the daemon",
        reason="RECIPE_INVALID",
        subject=where,
        hint="use numbers, strings and lists of them",
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
    "GaussianBlur": ("GaussianBlur", ("kernel_size", "sigma")),
    "RandomRotation": ("RandomRotation", ("degrees", "interpolation", "expand", "center", "fill")),
    "RandomAffine": (
        "RandomAffine",
        ("degrees", "translate", "scale", "shear", "interpolation", "fill", "center"),
    ),
    "RandomAutocontrast": ("RandomAutocontrast", ("p",)),
    "RandomEqualize": ("RandomEqualize", ("p",)),
    "RandomInvert": ("RandomInvert", ("p",)),
    "RandomSolarize": ("RandomSolarize", ("threshold", "p")),
    "RandomPosterize": ("RandomPosterize", ("bits", "p")),
    "RandomAdjustSharpness": ("RandomAdjustSharpness", ("sharpness_factor", "p")),
    "RandAugment": ("RandAugment", ("num_ops", "magnitude", "num_magnitude_bins", "interpolation", "fill")),
    "TrivialAugmentWide": ("TrivialAugmentWide", ("num_magnitude_bins", "interpolation", "fill")),
    "AutoAugment": ("AutoAugment", ("policy", "interpolation", "fill")),
    "RandomErasing": ("RandomErasing", ("p", "scale", "ratio", "value")),
    "MixUp": ("MixUp", ("alpha", "num_classes")),
    "CutMix": ("CutMix", ("alpha", "num_classes")),
}


def attributes(name: str) -> tuple[str, ...] | None:
    """The attributes of a class of torchvision that its op takes over; None: it has no op."""
    known = _TORCHVISION.get(name)
    return None if known is None else known[1]


# Ops that make a tensor of an image: whether it is a plain one, and no tv_tensors.Image.
_MADE = {"ToTensor": True, "PILToTensor": True, "ToImage": False}


def _of_images(dtypes: dict[Any, Any], plain_tensor: bool) -> Any:
    """The dtype that v2's ToDtype gives images, of its dtypes by type of input.

    v2 looks for the very type, then for "others": an Image never takes the entry of Tensor, nor the other way round.
    ``plain_tensor``: the image is a plain tensor there.
    """
    named = {getattr(kind, "__name__", kind): dtype for kind, dtype in dtypes.items()}
    others = named.get("others")
    if "Tensor" in named and ("Image" in named or "others" in named) and named["Tensor"] != named.get("Image", others):
        raise InvalidError(
            f"transform: ToDtype has other dtypes for images than for plain tensors in {dtypes!r:.200}",
            reason="RECIPE_INVALID",
            subject="ToDtype",
            hint="leave torch.Tensor out, and name one for images, {tv_tensors.Image: torch.float32}",
        )
    if "Tensor" in named and not plain_tensor and not {"Image", "others"} & named.keys():
        raise InvalidError(
            f"transform: ToDtype has no dtype for images in {dtypes!r:.200}, and torchvision raises for them: "
            "torch.Tensor is for plain tensors alone",
            reason="RECIPE_INVALID",
            subject="ToDtype",
            hint="write {tv_tensors.Image: torch.float32}, or put PILToTensor() before it, which makes plain tensors",
        )
    dtype = next((named[kind] for kind in ("Image", "Tensor", "others") if kind in named), None)
    if dtype is None:
        raise InvalidError(
            f"transform: ToDtype has no dtype for images in {dtypes!r:.200}",
            reason="RECIPE_INVALID",
            subject="ToDtype",
            hint="name one, {tv_tensors.Image: torch.float32}, or leave ToDtype out",
        )
    return dtype


def of_v2(t: Any) -> bool:
    """Whether an object is one of torchvision.transforms.v2."""
    return type(t).__module__.startswith("torchvision.transforms.v2.")


def op(t: Any, known_ops: Iterable[str], before: Iterable[OpMessage] = ()) -> OpMessage:
    """The op that one object of torchvision stands for; ``known_ops`` are named in the error of one that has none.

    On PIL images torchvision always antialiases, so nothing is taken from ``antialias``. ``before`` are the ops before
    it: they say what an image is there.
    """
    name = type(t).__name__
    known = _TORCHVISION.get(name)
    if known is None:
        raise InvalidError(
            f"transform: torchvision's {name} has no counterpart in the daemon",
            reason="RECIPE_INVALID",
            subject=name,
            hint="the ops are " + ", ".join(known_ops),
        )
    ours, attributes = known
    args: dict[str, Any] = {}
    for a in attributes:
        if not hasattr(t, a):  # e.g. v2's Grayscale of some versions
            continue
        value = getattr(t, a)
        if isinstance(value, dict):  # v2's ToDtype by type of input
            made = [n for n in (o.get("name", "") for o in before) if n in _MADE]
            value = _of_images(value, bool(made) and _MADE[made[-1]])
        value = plain(value, f"{name}.{a}")
        if value is not None:
            args[a] = value
    if ours == "ToDtype" and args.get("scale", True) and of_v2(t):
        args["by"] = "mul"
    if ours == "RandomErasing":
        args.setdefault("value", "random")  # v2 has None for it
    if ours in ("Resize", "RandomResizedCrop"):
        args["antialias"] = True
    return {"name": ours, "args": args}
