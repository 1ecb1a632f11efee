"""Datasets of torchvision's image folders as a script has them: which file, with which label, is at which position.

An ImageFolder, a DatasetFolder, a class of the script that gives the items of one of these, and Subset and
ConcatDataset of them, nested. Nothing is asked of the daemon here, and torch is never imported.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _dataset, _native, ops
from ._dataset import Indices
from ._native import NotNative

_GIVE = ("__getitem__", "__getitems__", "__len__", "__getattribute__", "__getattr__")  # how a class gives its items
_PIXELS = 1 << 26  # Pillow refuses none of so many by default
_HOLD = ("root", "samples", "loader", "transform", "target_transform")  # what they are made of


@dataclass(eq=False)
class Folder:
    """An image folder as it is now, or was when it was looked at."""

    uri: str
    root: str  # as the paths of samples begin
    transform: list[ops.Op]
    samples: list[Any]

    def still(self, now: Folder) -> bool:
        """Whether another look found the same; of the samples the objects are compared, 5 ms for a million."""
        return (now.uri, now.transform) == (self.uri, self.transform) and now.samples == self.samples


@dataclass(eq=False)
class Native:
    """A dataset of the script that the daemon prepares: its parts, each followed by those that it is made of."""

    parts: list[Any]  # folders; of a Subset its indices; of a ConcatDataset the ends of what it joins, as a _Joined
    seen: str = ""  # fingerprint of the daemon's index that ids is of
    ids: Indices = field(default_factory=lambda: np.empty(0, np.int64))  # of the daemon, by position
    dataset: Any = None  # of the script, in its own process

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "dataset": None}

    @property
    def folders(self) -> list[Folder]:
        """The folders among the parts."""
        return [p for p in self.parts if isinstance(p, Folder)]

    @property
    def uri(self) -> str:
        """The folder, for the daemon."""
        return self.folders[0].uri

    def still(self, dataset: Any) -> bool:
        """Whether the dataset is what it was: a few ms for a million samples."""
        try:
            now = list(_parts(dataset))
        except NotNative:
            return False
        return len(now) == len(self.parts) and all(map(_same, self.parts, now))

    def rows(self) -> Indices:
        """Where the samples of the dataset are, by position, among those of all folders in a row.

        Raises:
            NotNative: a ConcatDataset was made when its parts had other lengths.
            OutOfRangeError: a Subset has an index that its dataset does not have.
        """
        starts = itertools.accumulate((len(f.samples) for f in self.folders), initial=0)
        return _rows(iter(self.parts), starts)


@dataclass(frozen=True)
class _Joined:
    ends: tuple[int, ...]  # of the parts, as the ConcatDataset has them


def convert(dataset: Any) -> Native:
    """What the daemon is to prepare for a dataset.

    Raises:
        NotNative: it is none of image folders, or one of its parameters has no counterpart with equal bits.
    """
    native = Native([_kept(p) for p in _parts(dataset)], dataset=dataset)
    first, *others = native.folders
    for f in others:
        if f.uri != first.uri:
            raise NotNative("it joins several folders, and a job reads one: use a loader for each")
        if f.transform != first.transform:
            raise NotNative("it joins datasets with unlike transforms: use a loader for each")
    return native


def folder_of(dataset: Any) -> Any:
    """The first folder of torchvision that a dataset is made of; None where it is made of none."""
    module, kind = sys.modules.get("torchvision.datasets.folder"), _dataset.kind_of(dataset)
    if module is None:
        return None
    if kind == "Subset":
        return folder_of(dataset.dataset)
    if kind == "ConcatDataset":
        return next((f for d in dataset.datasets if (f := folder_of(d)) is not None), None)
    return dataset if isinstance(dataset, module.DatasetFolder) else None


def _parts(dataset: Any) -> Iterator[Any]:
    """The parts of a dataset as Native has them, with the script's own lists."""
    if folder_of(dataset) is None:
        raise NotNative("it is no torchvision.datasets.ImageFolder")
    kind = _dataset.kind_of(dataset)
    if kind and "__getitems__" in vars(dataset):
        raise NotNative(f"a {kind} has a __getitems__ of its own")
    if kind == "Subset":
        indices = dataset.indices
        if not isinstance(indices, (list, tuple, range)):
            indices = np.asarray(indices if hasattr(indices, "__array__") else list(indices))
        yield indices
        yield from _parts(dataset.dataset)
    elif kind == "ConcatDataset":
        yield _Joined(tuple(dataset.cumulative_sizes))
        for d in dataset.datasets:
            yield from _parts(d)
    else:
        yield _folder(dataset)


def _kept(part: Any) -> Any:
    """The part with lists of its own."""
    if isinstance(part, Folder):
        return Folder(part.uri, part.root, part.transform, list(part.samples))
    return copy.copy(part)


def _same(was: Any, now: Any) -> bool:
    if type(was) is not type(now):
        return False
    if isinstance(was, Folder):
        return was.still(now)
    return np.array_equal(was, now) if isinstance(was, np.ndarray) else bool(was == now)


def _rows(parts: Iterator[Any], starts: Iterator[int]) -> Indices:
    part = next(parts)
    if isinstance(part, Folder):
        start = next(starts)
        return np.arange(start, start + len(part.samples), dtype=np.int64)
    if isinstance(part, _Joined):
        joined = [_rows(parts, starts) for _ in part.ends]
        if tuple(itertools.accumulate(map(len, joined))) != part.ends:
            raise NotNative("a ConcatDataset was made when its parts had other lengths: make it again")
        return np.concatenate(joined)
    inner = _rows(parts, starts)
    return inner[_dataset.chosen("a Subset", part, len(inner))]


def _folder(dataset: Any) -> Folder:
    """A folder of torchvision.

    Raises:
        NotNative: its items are made in another way than an ImageFolder makes them.
    """
    vision, module = sys.modules["torchvision"], sys.modules["torchvision.datasets.folder"]
    kind, base, mine = type(dataset), module.DatasetFolder, vars(dataset)
    for name in _GIVE:
        if getattr(kind, name, None) is not getattr(base, name, None) or name in mine:
            raise NotNative(f"{kind.__qualname__} has a {name} of its own")
    for name in _HOLD:
        if name not in mine or hasattr(type(inspect.getattr_static(kind, name, None)), "__set__"):
            raise NotNative(f"{kind.__qualname__} has a {name} that is computed")
    readers = (module.default_loader, module.pil_loader)
    if mine["loader"] not in readers or vision.get_image_backend() != "PIL":
        raise NotNative("it has a loader of its own")
    if any(f.__module__ != module.__name__ for f in (*readers, base.__getitem__)):
        raise NotNative("something in torchvision.datasets.folder was replaced")
    pillow = sys.modules.get("PIL.Image")
    most = getattr(pillow, "MAX_IMAGE_PIXELS", None)
    if most is not None and most < _PIXELS:
        raise NotNative(f"PIL.Image.MAX_IMAGE_PIXELS is {most}, and the daemon reads larger images")
    if mine["target_transform"] is not None:
        raise NotNative("it has a target_transform: give the labels that it makes to dataset.samples, and leave it out")
    if type(mine["samples"]) is not list:
        raise NotNative("its list of samples is no list")
    root = os.path.expanduser(os.fspath(_root(dataset)))
    return Folder(f"imagefolder:{os.path.abspath(root)}", root, _native.recipe(mine["transform"]), mine["samples"])


def _root(dataset: Any) -> Any:
    """The folder with the class folders; two classes of torchvision say the one above it."""
    datasets = sys.modules.get("torchvision.datasets")
    for name, attribute in (("ImageNet", "split_folder"), ("EuroSAT", "_data_folder")):
        kind = getattr(datasets, name, None)
        if kind is not None and isinstance(dataset, kind):
            return getattr(dataset, attribute)
    return dataset.root
