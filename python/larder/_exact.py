"""What a sample loses when it is taken apart into leaves and put together again.

Scripts that hand samples to code of their own (``collate_fn``, torch's default_collate) are to see no difference. What
counts is said by letters: "t" the types, "s" the strides and what else lies behind a tensor, "o" the order of keys.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
from typing import Any

import numpy as np

BATCHES = "t"  # torch's default_collate of a worker, which copies
STACKED = "ts"  # torch's default_collate of the script, which keeps some strides
SAMPLES = "tso"  # the samples themselves

_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (float,), "bool": (bool,), "str": (str,), "bytes": (bytes,), "tuple": (tuple,),
    "list": (list,), "dict": (dict, collections.OrderedDict), "ndarray": (np.ndarray,),
}  # fmt: skip


def lost(value: Any, kind: str, exact: str) -> str:
    """What a value would lose, in words; empty: nothing. ``kind`` is what ``_nested`` takes it for."""
    cls = type(value)
    known = _TYPES.get(kind)
    if known is not None:
        if cls not in known and (cls is not np.memmap or "o" in exact):  # default_collate makes tensors of both
            return "the type"
        return _of_array(value, exact) if kind == "ndarray" else ""
    if kind in ("tensor", "bfloat16"):
        return _of_tensor(value, cls, exact)
    if kind == "numpy":
        return "" if cls.__module__ == "numpy" else "the type"
    if kind == "namedtuple":
        return "" if cls.__bases__ == (tuple,) else "the type"
    if kind == "dataclass":
        names, own = _fields(value.__class__), getattr(value, "__dict__", None)
        return "attributes that are no fields" if names is None or (own is not None and own.keys() - names) else ""
    return ""  # a list of numbers, which is looked at there


def _of_array(a: np.ndarray[Any, Any], exact: str) -> str:
    if not a.dtype.isnative:
        return "the order of bytes"
    if "s" in exact:
        return "" if a.flags.c_contiguous else "the strides"
    return "the strides" if any(n < 0 for n in a.strides) else ""


def _of_tensor(t: Any, cls: type, exact: str) -> str:
    if cls is not sys.modules["torch"].Tensor:
        return "the type"
    if t.requires_grad:
        return "requires_grad"
    if "s" in exact and (not t.is_contiguous() or t.__dict__):
        return "the strides, or attributes"
    return ""


@functools.lru_cache(maxsize=256)
def _fields(cls: Any) -> frozenset[str] | None:
    """The names of the fields of a dataclass that is made again by setting them; None: it is made otherwise."""
    slots = [s for c in cls.__mro__ for s in _slots(c)]
    names = frozenset(f.name for f in dataclasses.fields(cls))
    return names if names.issuperset(slots) and cls.__bases__ == (object,) else None


def _slots(cls: Any) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
