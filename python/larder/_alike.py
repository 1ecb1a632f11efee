"""Compares items by their leaves, and sees whether items share memory: what ``_bulk`` checks a dataset by."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _nested
from ._nested import Structure
from ._record import Array, Leaf
from .errors import InvalidError

_FIXED = (int, float, bool, str, bytes, type(None))  # immutable

# Kind, dtype, shape and values of each leaf; no values where those are more than a record may have.
Copy = list[tuple[int, int, tuple[int, ...], Array | None]]


def leaves(item: Any, structure: Structure) -> list[Leaf] | None:
    """The leaves of an item; None: it does not nest like that, or has something that is no data."""
    try:
        return _nested.leaves(item, structure)
    except (InvalidError, ValueError, TypeError, RuntimeError):
        return None


def copy(item: Any, structure: Structure, largest: int = 1 << 62) -> Copy | None:
    """The leaves of an item in memory of their own. Of more than ``largest`` bytes it keeps the form alone."""
    found = leaves(item, structure)
    if found is None:
        return None
    few = sum(x.values.nbytes for x in found) <= largest
    return [(x.kind, x.dtype, x.values.shape, np.array(x.values) if few else None) for x in found]


def same(item: Any, other: Copy | None, structure: Structure) -> bool:
    """Whether an item still has, or has too, the leaves that were copied; two that are no data are alike."""
    found = leaves(item, structure)
    if found is None or other is None:
        return found is None and other is None
    return len(found) == len(other) and all(
        x.kind == kind and x.dtype == dtype and x.values.shape == shape
        and (values is None or _equal(np.asarray(x.values), values))
        for x, (kind, dtype, shape, values) in zip(found, other, strict=True)
    )


def _equal(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype:
        return False
    return np.array_equal(a, b) or (a.dtype.kind == "f" and np.array_equal(a, b, equal_nan=True))


def shares(items: Sequence[Any]) -> bool:
    """Whether a leaf of an item begins where the same leaf of another one does, or a container is the same object.

    A look at addresses alone, some tenths of a microsecond an item: the memory may well never be written to again.
    """
    types = set(map(type, items))
    if all(issubclass(t, _FIXED) or issubclass(t, np.generic) for t in types):
        return False
    if len(types) == 1:
        return _shares(items, types.pop())
    rest = [x for x in items if not isinstance(x, (*_FIXED, np.generic))]
    return any(_shares([x for x in rest if type(x) is t], t) for t in types if not issubclass(t, _FIXED))


def _shares(items: Sequence[Any], cls: type) -> bool:
    if issubclass(cls, tuple):
        return _any(itertools.zip_longest(*items))
    if cls is not np.ndarray:
        torch = sys.modules.get("torch")
        if torch is not None and issubclass(cls, torch.Tensor):
            try:
                if cls is torch.Tensor:
                    return _twice([p for p in map(cls.data_ptr, items) if p])
                return _twice([p for p in [x.data_ptr() for x in items] if p])
            except RuntimeError:  # a tensor that has no such memory
                return _twice(list(map(id, items)))
    if _twice(list(map(id, items))):
        return True
    if issubclass(cls, np.ndarray):
        views = [x for x in items if x.base is not None and x.size]
        return _twice([x.__array_interface__["data"][0] for x in views])
    if issubclass(cls, Mapping):
        return _any(itertools.zip_longest(*[[x[k] for k in x] for x in items]))
    if issubclass(cls, list) and not all(isinstance(x, _FIXED) for x in items[0]):
        return _any(itertools.zip_longest(*items))
    if dataclasses.is_dataclass(cls):
        return _any(itertools.zip_longest(*[[getattr(x, f.name) for f in dataclasses.fields(cls)] for x in items]))
    return False


def _any(columns: Iterable[Sequence[Any]]) -> bool:
    return any(map(shares, columns))


def _twice(values: Sequence[int]) -> bool:
    return len(set(values)) < len(values)
