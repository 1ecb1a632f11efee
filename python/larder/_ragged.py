"""What becomes of a field whose samples differ in shape: a list, one padded array, or a nested tensor of torch.

A :class:`Pad` says how rows are made equal. ``rules`` reads what a script gave as ``ragged=``, ``join`` turns one
column of a batch into what the script gets.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .errors import InvalidError

Array = npt.NDArray[Any]
_WAYS = ("list", "pad", "nested")


@dataclass(frozen=True)
class Pad:
    """Rows of a batch are made as large as the largest one, in every dimension.

    Args:
        value: what fills the rest; it must be a value of the field's dtype.
        multiple: sizes are rounded up to multiples of it: of the first dimension of a sample, or, as a tuple, of each.
    """

    value: float = 0
    multiple: int | tuple[int, ...] = 1

    def __post_init__(self) -> None:
        steps = self.multiple if isinstance(self.multiple, tuple) else (self.multiple,)
        if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in steps):
            raise InvalidError(
                f"Pad(multiple={self.multiple!r})", subject="multiple", hint="give a positive int, or a tuple of them"
            )
        if not isinstance(self.value, int | float):
            raise InvalidError(f"Pad(value={self.value!r})", subject="value", hint="give a number")


Rule = Literal["list", "nested"] | Pad
Given = str | Pad | Mapping[str, "str | Pad"]


def rules(given: Given | None, fields: Sequence[str]) -> dict[str, Rule]:
    """The rule of each field that has one. A rule that is no mapping is that of every field.

    Raises:
        InvalidError: a way or a field that does not exist.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        rule = _rule(given)
        return {name: rule for name in fields}
    unknown = [name for name in given if name not in fields]
    if unknown:
        raise InvalidError(
            f"ragged names the field {unknown[0]!r}, which samples do not have",
            subject="ragged",
            hint=f"fields: {', '.join(fields)}",
        )
    return {name: _rule(way) for name, way in given.items()}


def _rule(way: Any) -> Rule:
    if isinstance(way, Pad):
        return way
    if way == "pad":
        return Pad()
    if way == "list":
        return "list"
    if way == "nested":
        return "nested"
    raise InvalidError(
        f"ragged={way!r}", subject="ragged", hint=f"use {', '.join(map(repr, _WAYS))}, larder.Pad(…), or a dict of them"
    )


def join(column: Array | list[Array], rule: Rule, name: str, bfloat16: bool = False) -> Any:
    """One column of a batch by its rule.

    Args:
        column: an array of all rows, or a list of the arrays of each row, of one dtype and number of dimensions.
        rule: "list" leaves a list as it is, and an array an array.
        name: of the field, for messages.
        bfloat16: the values are bfloat16, as uint16.

    Returns:
        A list of arrays, an array with a first dimension of rows, or a nested tensor.
    """
    if isinstance(rule, Pad):
        return pad(column, rule, name, bfloat16)
    if rule == "nested" and isinstance(column, list):
        return nested(column, name, bfloat16)
    return column


def pad(column: Array | list[Array], how: Pad, name: str, bfloat16: bool = False) -> Array:
    """The rows as one array; an array that has the sizes already is returned itself.

    Raises:
        InvalidError: the value is none of the dtype, or ``multiple`` has other dimensions than the field.
    """
    shapes = [a.shape for a in column] if isinstance(column, list) else [column.shape[1:]]
    if not shapes:
        return np.empty((0,))
    ndim = len(shapes[0])
    steps = how.multiple if isinstance(how.multiple, tuple) else (how.multiple,) + (1,) * (ndim - 1)
    if len(steps[:ndim]) != ndim or (isinstance(how.multiple, tuple) and len(steps) != ndim):
        raise InvalidError(
            f"field {name}: Pad(multiple={how.multiple!r}) for samples of {ndim} dimensions",
            subject=name,
            hint="give one number for each dimension",
        )
    sizes = tuple(-(-max(s[i] for s in shapes) // steps[i]) * steps[i] for i in range(ndim))
    rows = len(column)
    if not isinstance(column, list):
        if column.shape[1:] == sizes:
            return column
        dtype = column.dtype
    else:
        dtype = column[0].dtype
        if set(shapes) == {sizes}:
            return np.stack(column)
    out = np.full((rows, *sizes), filler(how.value, dtype, name, bfloat16), dtype)
    for i, row in enumerate(column):
        part = (i, *(slice(n) for n in row.shape))
        out[part] = row
    return out


def filler(value: float, dtype: np.dtype[Any], name: str, bfloat16: bool = False) -> Array:
    """The value as an element of that dtype; bfloat16 as uint16, rounded to the nearest.

    Raises:
        InvalidError: an integer or bool dtype has no such value.
    """
    if bfloat16:
        bits = int(np.float32(value).view(np.uint32))
        if value == value:  # NaN keeps its upper bits
            bits += 0x7FFF + ((bits >> 16) & 1)
        return np.asarray(bits >> 16).astype(np.uint16)
    if dtype.kind == "f":
        return np.asarray(value, dtype)
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if value != value or value in (float("inf"), float("-inf")) or int(value) != value or not low <= value <= high:
        raise InvalidError(
            f"field {name}: {value!r} is no value of dtype {dtype}", subject=name, hint=f"pad with {low} to {high}"
        )
    return np.asarray(int(value)).astype(dtype)


def nested(column: list[Array], name: str, bfloat16: bool = False) -> Any:
    """The rows as a nested tensor, which copies them.

    Raises:
        InvalidError: torch cannot be imported, or has no nested tensors of that kind.
    """
    try:
        torch: Any = importlib.import_module("torch")
        make = torch.nested.nested_tensor
    except (ImportError, AttributeError) as e:
        raise InvalidError(
            f"field {name}: ragged='nested' needs a PyTorch with nested tensors: {e}",
            subject=name,
            hint='use ragged="list" or "pad"',
        ) from e
    words = [a.view(np.int16) if bfloat16 else a for a in column]
    try:
        rows = [torch.from_numpy(a) for a in words]
        return make([t.view(torch.bfloat16) for t in rows] if bfloat16 else rows)
    except (RuntimeError, TypeError) as e:
        raise InvalidError(
            f"field {name}: torch makes no nested tensor of these rows: {str(e).splitlines()[0]}",
            subject=name,
            hint='use ragged="list" or "pad" for this field',
        ) from e
