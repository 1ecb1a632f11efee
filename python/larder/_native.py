"""Transforms of torchvision as ops of the daemon, where both give the same bits.

Every attribute of every transform is looked at. What is not known to give equal bits (docs/parity.md) is not
translated, and the dataset runs in worker processes as any other does.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from . import _foreign, ops
from .errors import InvalidError

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
_TENSORS = {"ToTensor": "float", "PILToTensor": "bytes", "ToImage": "bytes"}  # what an image becomes
_CASTS = ("ConvertImageDtype", "ToDtype")
_LAST = (*_TENSORS, *_CASTS, "Normalize")
_PASSED = {"training", "inplace", "antialias", "policies"}  # change nothing on PIL images, or are looked at elsewhere
_SOLARIZE = "the thresholds of its solarize are not those of torchvision.transforms, which larder has"
_V2_DIFFERS = {  # in last bits, or more
    "GaussianBlur": "its weights are not those of torchvision.transforms, which larder has",
    **dict.fromkeys(("RandAugment", "TrivialAugmentWide", "AutoAugment"), _SOLARIZE),
}


class NotNative(Exception):
    """Why a dataset stays in Python; the message says it in words."""


def recipe(transform: Any) -> list[ops.Op]:
    """The ops of a torchvision transform of PIL images.

    Raises:
        NotNative: a step has no counterpart with equal bits, or the result is no tensor of one size.
    """
    found: list[ops.Op] = []
    phase, sized = "image", False  # "image": PIL; "bytes": a uint8 tensor; "float": in [0, 1]; "normal": normalised
    grey = False  # the image has one channel
    for t, v2 in _flat(transform):
        name = type(t).__name__
        if name == "ToPureTensor" and v2 and phase != "image":
            continue
        op = _op(t, name, v2)
        if phase == "image" and name not in _LAST:
            if grey:
                raise NotNative(f"{name} comes after Grayscale(1)")
            if name == "RandomErasing" and not v2:
                raise NotNative("RandomErasing comes before the image has become a tensor")
            sized = _fixes(op, sized)
            grey = isinstance(op, ops.Grayscale) and op.num_output_channels == 1
        else:
            phase = _finish(name, phase, grey)
        found.append(op)
    if phase == "image":
        raise NotNative("its transform gives PIL images, no tensors")
    if not sized:
        raise NotNative("its images have sizes of their own")
    return found


def _finish(name: str, phase: str, grey: bool) -> str:
    """What the image is behind a step that makes a tensor of it, or works on one."""
    if name in _TENSORS and phase == "image":
        return _TENSORS[name]
    if name in _CASTS and phase == "bytes":
        return "float"
    if name == "Normalize" and phase == "float":
        return "normal"
    if name == "RandomErasing":
        if grey and phase == "bytes":
            raise NotNative("RandomErasing of bytes comes after Grayscale(1)")
        return phase
    if phase == "image":
        raise NotNative(f"{name} comes before the image has become a tensor")
    if name in ("Normalize", *_CASTS):
        raise NotNative(f"{name} comes after {'bytes' if phase == 'bytes' else 'floats'}")
    raise NotNative(f"{name} comes after the image has become a tensor")


def _flat(t: Any) -> Iterator[tuple[Any, bool]]:
    """The steps of a transform, and whether each is one of torchvision.transforms.v2."""
    if t is None:
        return
    inner = _wrapped(t)
    if inner is not None:
        yield from _flat(inner)
        return
    name, v2 = type(t).__name__, _foreign.of_v2(t)
    module = sys.modules.get("torchvision.transforms" + ".v2" * v2)
    if module is None or type(t) is not getattr(module, name, None):
        raise NotNative(f"{type(t).__module__}.{name} is none of torchvision.transforms")
    if getattr(t, "_forward_hooks", None) or getattr(t, "_forward_pre_hooks", None):
        raise NotNative(f"{name} has hooks")
    if name == "Compose":
        for x in t.transforms:
            yield from _flat(x)
    else:
        yield t, v2


def _wrapped(t: Any) -> Any:
    """What an object calls on an image and no more, as presets do that are written around a Compose; None: it does not.

    The code of its ``__call__`` must be that of ``_form`` below, which loads no constant and no global name: it looks
    up one attribute of the object, calls it, and returns what that gives.
    """
    call = getattr(type(t), "__call__", None)  # noqa: B004 - as Python looks it up
    if not isinstance(call, types.FunctionType) or getattr(type(t), _LOOKUP) is not getattr(object, _LOOKUP):
        return None
    code, form = call.__code__, _FORM
    same = all(getattr(code, n, None) == getattr(form, n, None) for n in _CODE)
    if not same or len(code.co_names) != 1 or (code.co_flags ^ form.co_flags) & _KINDS_OF_CODE:
        return None
    held = getattr(t, "__dict__", {}).get(code.co_names[0])
    name = code.co_names[0]
    if held is None or hasattr(type(inspect.getattr_static(type(t), name, None)), "__set__"):
        return None
    return held


def _form(self: Any, image: Any) -> Any:
    return self.transforms(image)


_LOOKUP = "__getattribute__"
_FORM = _form.__code__
_CODE = (
    *("co_code", "co_exceptiontable", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals"),
    *("co_cellvars", "co_freevars"),
)
_KINDS_OF_CODE = 0x04 | 0x08 | 0x20 | 0x80 | 0x200  # *args, **kw, generators, coroutines, both


def _op(t: Any, name: str, v2: bool) -> ops.Op:
    """The op of one transform, whose attributes are all known to mean the same."""
    known = _foreign.attributes(name)
    if known is None or name in ("MixUp", "CutMix"):
        raise NotNative(f"{name} has no counterpart in the daemon")
    if v2 and name in _V2_DIFFERS:
        raise NotNative(f"v2's {name} gives other bits: {_V2_DIFFERS[name]}")
    others = sorted(n for n in vars(t) if not n.startswith("_") and n not in known and n not in _PASSED)
    if others:
        raise NotNative(f"{name} has {others[0]}, which larder does not know")
    for a in known:
        if hasattr(t, a):
            _require(name, a, getattr(t, a))
    if name == "AutoAugment" and t.policies != type(t)(t.policy).policies:
        raise NotNative("AutoAugment has policies of its own")
    try:
        message = _foreign.op(t, ())
        made: ops.Op = getattr(ops, message.get("name", name))(**message.get("args", {}))
    except InvalidError as e:  # a value that torchvision takes, such as a mean of NaN
        raise NotNative(e.message) from None
    return made


def _require(name: str, attribute: str, value: Any) -> None:
    """Raises NotNative for a value of another kind than those that are known to mean the same in the daemon."""
    if hasattr(value, "tolist"):
        raise NotNative(f"{name} has {attribute} as {type(value).__name__}")
    fits = _scale if (name, attribute) == ("ToDtype", "scale") else _KINDS[attribute]
    if not fits(value):
        raise NotNative(f"{name} has {attribute}={value!r:.100}")


def _whole(v: Any) -> bool:
    return type(v) is int


def _number(v: Any) -> bool:
    return isinstance(v, (int, float)) and not isinstance(v, bool)


def _numbers(v: Any) -> bool:
    return isinstance(v, (list, tuple)) and all(map(_number, v))


def _some(v: Any) -> bool:
    return v is None or _numbers(v)


def _scale(v: Any) -> bool:
    return type(v) is bool


def _size(v: Any) -> bool:
    return _whole(v) or (isinstance(v, (list, tuple)) and len(v) in (1, 2) and all(map(_whole, v)))


def _fill(v: Any) -> bool:
    return v is None or _whole(v) or (isinstance(v, (list, tuple)) and len(v) == 3 and all(map(_whole, v)))


# By attribute: whether a value is one of those that mean the same. The daemon checks bounds.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "size": _size,
    "interpolation": lambda v: getattr(v, "value", v) in _INTERPOLATIONS,
    "max_size": lambda v: v is None or _whole(v),
    "num_output_channels": lambda v: v in (1, 3) and _whole(v),
    "dtype": lambda v: str(v) == "torch.float32",
    "fill": _fill,
    "expand": lambda v: type(v) is bool,
    "policy": lambda v: getattr(v, "value", None) in ("imagenet", "cifar10", "svhn"),
    "value": lambda v: v is None or v == "random" or _number(v) or _numbers(v),
    **dict.fromkeys(("p", "threshold", "sharpness_factor"), _number),
    **dict.fromkeys(("bits", "num_ops", "magnitude", "num_magnitude_bins"), _whole),
    **dict.fromkeys(("ratio", "mean", "std", "kernel_size", "sigma", "degrees"), _numbers),
    **dict.fromkeys(("scale", "center", "translate", "shear", "brightness", "contrast", "saturation", "hue"), _some),
}


def _fixes(op: ops.Op, sized: bool) -> bool:
    """Whether all images have one size after the op."""
    if isinstance(op, (ops.CenterCrop, ops.RandomResizedCrop)):
        return True
    if isinstance(op, ops.Resize):
        return not isinstance(op.size, int) and len(op.size) == 2
    return sized and not (isinstance(op, ops.RandomRotation) and op.expand)
