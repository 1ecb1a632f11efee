"""Items of one form as columns: what lets a worker hand many small items over as one stack (docs/protocol.md).

A column is the values of one leaf in all items. Items that are no plain tuples, lists and dicts of plain tensors,
arrays and numbers of the same types have none: they go one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _exact, _nested, _record
from ._nested import Structure
from ._record import Array, Form

_PLAIN = {"tuple": tuple, "list": list, "dict": dict}
_SCALARS: dict[str, tuple[type, Any]] = {"int": (int, np.int64), "float": (float, np.float64), "bool": (bool, np.bool_)}
_LARGE = 32 << 10  # bytes of a tensor from which on a copy of each is quicker than torch.stack


class Column(NamedTuple):
    """The values of one leaf, its form, and how they are written to an array of that shape times their number."""

    form: tuple[int, int, tuple[int, ...]]  # kind, dtype, shape
    values: Sequence[Any]
    write: Callable[[Sequence[Any], Array], None]


def columns(items: Sequence[Any], structure: Structure) -> list[Column] | None:
    """The columns of at least one item; None = they have none, or one item nests unlike ``structure``."""
    found: list[Column] = []
    data = structure.data
    if data is None or not _open(items, data, found, data.exact):
        return None
    if data is not structure:  # none of them is pickled
        found.append(Column((_record.ARRAY, _nested.NOTHING.dtype, (0,)), items, lambda values, out: None))
    return found


def form(found: Sequence[Column]) -> Form:
    """The form of the items, if writing them succeeds."""
    return tuple([c.form for c in found])


def _open(items: Sequence[Any], s: Structure, found: list[Column], exact: str) -> bool:
    if s.kind not in _nested.CONTAINERS:
        column = _leaf(items, s.kind, exact)
        if column is not None:
            found.append(column)
        return column is not None
    if s.cls is not None or s.kind not in _PLAIN or set(map(type, items)) != {_PLAIN[s.kind]}:
        return False
    if set(map(len, items)) != {len(s.parts)}:
        return False
    try:
        if s.kind == "dict":
            if "o" in exact and any(tuple(x) != s.keys for x in items):
                return False
            parts: Sequence[Sequence[Any]] = [[x[k] for x in items] for k in s.keys]
        else:
            parts = list(zip(*items, strict=True))
    except KeyError:
        return False
    return all(_open(values, part, found, exact) for values, part in zip(parts, s.parts, strict=True))


def _leaf(items: Sequence[Any], kind: str, exact: str) -> Column | None:
    types = set(map(type, items))
    if len(types) != 1:
        return None
    cls, first = types.pop(), items[0]
    if exact and kind not in _SCALARS and any(_exact.lost(x, kind, exact) for x in items):
        return None
    if kind in _SCALARS:
        plain, dtype = _SCALARS[kind]
        if cls is not plain:
            return None
        return Column((_record.SCALAR, _record.code(np.dtype(dtype)), ()), items, _write_numbers)
    if kind == "numpy" and issubclass(cls, np.generic):
        code = _record.code(first.dtype)
        return Column((_record.SCALAR, code, ()), items, _write_numbers) if code else None
    if kind == "ndarray" and cls is np.ndarray:
        dtype, shape = first.dtype, first.shape
        code = _record.code(dtype)
        if not code or any([x.dtype != dtype or x.shape != shape for x in items]):
            return None
        return Column((_record.ARRAY, code, shape), items, _write_arrays)
    torch = sys.modules.get("torch")
    if kind == "tensor" and torch is not None and cls is torch.Tensor:
        leaf, dtype = _nested.plain_tensor(first), first.dtype
        if leaf is None or any([x.dtype is not dtype for x in items]):
            return None
        return Column((_record.ARRAY, leaf.dtype, leaf.values.shape), items, _write_tensors)
    return None


def _write_numbers(values: Sequence[Any], out: Array) -> None:
    out[...] = values  # OverflowError: an int of more than 64 bits


def _write_arrays(values: Sequence[Any], out: Array) -> None:
    np.stack(values, out=out)


def _write_tensors(values: Sequence[Any], out: Array) -> None:
    if out.nbytes >= _LARGE * len(out):
        shape = out.shape[1:]
        for x, place in zip(values, out, strict=True):
            if x.shape != shape:
                raise ValueError("tensors of unlike shapes")
            place[...] = x.numpy()
        return
    torch = sys.modules["torch"]
    torch.stack(values, out=torch.from_numpy(out))  # RuntimeError: unlike shapes, a gradient, another device
