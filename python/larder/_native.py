"""torchvision's ImageFolder as a dataset of the daemon, where both give the same bits.

Every attribute of every transform is looked at. What is not known to give equal bits (docs/parity.md) is not
translated, and the dataset runs in worker processes as any other does.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _foreign, ops
from ._messages import Listing
from .errors import InvalidError

_FORMATS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
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


@dataclass(frozen=True)
class Native:
    """A folder of images, and the ops that give what its dataset gives."""

    uri: str
    root: str  # as the paths of samples begin
    transform: list[ops.Op]
    samples: list[tuple[str, int]]  # of the dataset when it was looked at

    def still(self, dataset: Any) -> bool:
        """Whether the dataset is what it was; of its samples the objects are compared, 5 ms for a million."""
        try:
            now = _parts(dataset)
        except NotNative:
            return False
        return (now.uri, now.transform) == (self.uri, self.transform) and now.samples == self.samples

    def lists(self, listing: Listing, in_any_order: bool) -> bool:
        """Whether the daemon has the same samples under the same numbers, or, ``in_any_order``, under any.

        Raises:
            NotNative: a sample is no file below the root with a number.
        """
        text, labels = self._listed()
        if hashlib.sha256(text + labels.astype("<i8").tobytes()).hexdigest() == listing.get("byId"):
            return True
        return in_any_order and _sum(text, labels) == int(listing.get("inAnyOrder") or 0)

    def _listed(self) -> tuple[bytes, npt.NDArray[np.int64]]:
        """The keys of the samples, each with a zero byte behind it, and their labels."""
        samples = self.samples
        if set(map(type, samples)) - {tuple} or set(map(len, samples)) - {2}:
            raise NotNative("its list of samples has other entries than (path, label)")
        paths, labels = [p for p, _ in samples], [y for _, y in samples]
        if set(map(type, paths)) - {str} or set(map(type, labels)) - {int}:
            raise NotNative("its list of samples has paths that are no strings, or labels that are no integers")
        try:
            return _keys(paths, self.root), np.fromiter(labels, np.int64, len(labels))
        except (OverflowError, UnicodeEncodeError):
            raise NotNative("its list of samples has labels beyond 64 bits, or paths that no file has") from None


def _sum(text: bytes, labels: npt.NDArray[np.int64]) -> int:
    """``Listing.in_any_order`` of larder.proto."""
    keys = text.split(b"\0")[: len(labels)]
    x = np.fromiter(map(zlib.crc32, keys), np.uint64, len(keys)) << np.uint64(32)
    x = (x | np.fromiter(map(zlib.adler32, keys), np.uint64, len(keys))) + labels.view(np.uint64) * _GAMMA
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return int((x ^ (x >> np.uint64(31))).sum(dtype=np.uint64))


_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _keys(paths: list[str], root: str) -> bytes:
    """The paths below a root, with a zero byte behind each."""
    begin = os.fsencode(os.path.join(root, ""))
    text = b"\0" + os.fsencode("\0".join(paths)) + b"\0"
    if text.count(b"\0") != len(paths) + 1 or text.count(b"\0" + begin) != len(paths):
        raise NotNative("its list of samples has files that are not below its root")
    return text.replace(b"\0" + begin, b"\0")[1:]


class NotNative(Exception):
    """Why a dataset stays in Python; the message says it in words."""


def folder_of(dataset: Any) -> Any:
    """The ImageFolder that a dataset is, or is a Subset of; None where there is none."""
    data, folder = sys.modules.get("torch.utils.data"), sys.modules.get("torchvision.datasets.folder")
    if data is None or folder is None:
        return None
    while isinstance(dataset, data.Subset):
        dataset = dataset.dataset
    return dataset if isinstance(dataset, folder.ImageFolder) else None


def convert(dataset: Any) -> Native:
    """The folder and the ops of an ImageFolder.

    Raises:
        NotNative: it is none, or one of its parameters has no counterpart with equal bits.
    """
    native = _parts(dataset)
    return replace(native, samples=list(native.samples))


def _parts(dataset: Any) -> Native:
    """The same with the dataset's own list of samples."""
    inside = folder_of(dataset)
    if inside is None:
        raise NotNative("it is no torchvision.datasets.ImageFolder")
    if inside is not dataset:
        raise NotNative("it is a Subset, and the daemon takes whole folders, with subset= of larder.Loader")
    vision, folder = sys.modules["torchvision"], sys.modules["torchvision.datasets.folder"]
    if type(dataset) is not folder.ImageFolder:
        raise NotNative(f"{type(dataset).__qualname__} is a class of its own")
    if dataset.loader is not folder.default_loader or vision.get_image_backend() != "PIL":
        raise NotNative("it has a loader of its own")
    if dataset.target_transform is not None:
        raise NotNative("it has a target_transform")
    if tuple(dataset.extensions or ()) != _FORMATS:
        raise NotNative("it has an is_valid_file of its own")
    if type(dataset.samples) is not list:
        raise NotNative("its list of samples is no list")
    root = os.path.expanduser(os.fspath(dataset.root))
    uri = f"imagefolder:{os.path.abspath(root)}"
    return Native(uri, root, recipe(dataset.transform), dataset.samples)


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
