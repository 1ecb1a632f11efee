"""What becomes of a field whose samples differ in shape: a list, one padded array, or a nested tensor of torch."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidError

Array = npt.NDArray[Any]
MODES = ("list", "pad", "nested")


@dataclass(frozen=True)
class Ragged:
    """What becomes of a field whose samples differ in size."""

    mode: str  # list, pad, nested
    value: float = 0  # that fills the rest of smaller samples, with "pad"
    multiple: int = 1  # to which sizes are rounded up, with "pad"


def pad(column: list[Array], how: Ragged, shape: Sequence[int], name: str, bfloat16: bool = False) -> Array:
    """The rows as one array, as large as the largest one in every dimension.

    Args:
        column: at least one row; all have one dtype and number of dimensions.
        how: sizes that differ between samples are rounded up to its multiple.
        shape: of one sample; -1 where samples are known to differ.
        name: of the field, for messages.
        bfloat16: the values are bfloat16, as uint16.

    Raises:
        InvalidError: the dtype has no such value.
    """
    sizes = []
    for i, known in enumerate(shape):
        found = {a.shape[i] for a in column}
        m = how.multiple if known < 0 or len(found) > 1 else 1
        sizes.append(-(-max(found) // m) * m)
    dtype = column[0].dtype
    out = np.full((len(column), *sizes), filler(how.value, dtype, name, bfloat16), dtype)
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
