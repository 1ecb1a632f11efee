"""Items of every kind that scripts return, and whether two are the same in all that a script can see."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")


class Boxes(torch.Tensor):
    """As those of torchvision: with attributes of its own."""

    format = "XYXY"


class Count(int):
    pass


class Name(str):
    pass


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Target:
    boxes: Any
    when: Any = None


def boxes(i: int) -> Any:
    made = torch.full((2, 4), float(i)).as_subclass(Boxes)
    made.format = f"canvas {i}"
    return made


def picture(i: int) -> Any:
    return Image.fromarray(np.full((20, 30, 3), i, np.uint8))


# What torch's default_collate takes, too.
COLLATED = {
    "grad": lambda i: torch.full((2,), float(i), requires_grad=True),
    "parameter": lambda i: torch.nn.Parameter(torch.full((300,), float(i))),
    "boxes": boxes,
    "count": Count,
    "name": lambda i: Name(i),
    "enum": lambda i: Level.LOW,
    "np.str_": lambda i: np.str_(i),
    "numpy": lambda i: np.float16(i),
    "transposed": lambda i: torch.arange(6).view(2, 3).t() + i,
    "channels last": lambda i: torch.full((1, 3, 4, 4), i).to(memory_format=torch.channels_last),
    "expanded": lambda i: torch.full((1,), i).expand(200),
    "fortran": lambda i: np.asfortranarray(np.arange(6).reshape(2, 3) + i),
    "matrix": lambda i: np.array([[1, i], [2, 3]]).view(np.matrix),
    "int or float": lambda i: {"y": i if i % 2 else i + 0.5},
    "nothing": lambda i: {},
    "empty list": lambda i: [],
    "default dict": lambda i: collections.defaultdict(int, a=i),
    "user dict": lambda i: collections.UserDict(a=i),
    "deque": lambda i: collections.deque([i, 2]),
    "size": lambda i: torch.Size([1, i]),
    "keys": lambda i: {(0, 1): i, 2: i},
    "surrogate": lambda i: "\udc80",
    "plain": lambda i: (torch.full((3,), i), {"n": i, "t": str(i)}),
    "empty": lambda i: torch.empty(3, 0),
    "float8": lambda i: torch.ones(300).to(getattr(torch, "float8_e4m3fn", torch.float16)),
    "quantized": lambda i: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "complex": lambda i: torch.full((200,), 1j) + i,
}
# What default_collate makes no batches of, or none that are equal.
OTHER = {
    "None": lambda i: None,
    "coco": lambda i: (torch.full((3, 16, 16), i), [{"bbox": [1.0, i], "category_id": i}] * (i % 3)),
    "tokens": lambda i: {"tokens": ["w"] * (i % 3 + 1), "id": i},
    "chat": lambda i: [{"role": "user", "content": "é" * i}] * (i % 4 + 1),
    "keys that vary": lambda i: {"a": i} if i % 2 else {"b": i},
    "order of keys": lambda i: {"a": 1, "b": 2} if i % 2 else {"b": 1, "a": 2},
    "picture": picture,
    "mask": lambda i: np.ma.masked_array([1, i], [0, 1]),
    "date": lambda i: datetime.datetime(2020, 1, 1, i % 24),
    "path": lambda i: pathlib.Path(f"/a/{i}"),
    "decimal": decimal.Decimal,
    "sets": lambda i: ({i, "x"}, frozenset([i])),
    "dataclass": lambda i: Target(boxes(i), datetime.date(2020, 1, 1)),
    "named": lambda i: Pair(None, {i}),
    "huge": lambda i: 2**70 + i,
    "structured": lambda i: np.zeros(2, [("a", "i4")]),
    "text array": lambda i: np.array(["a", str(i)]),
    "objects": lambda i: np.array([1, "a", i], dtype=object),
    "big-endian": lambda i: np.full(200, i, ">i4"),
    "backwards": lambda i: (np.arange(600) + i)[::-2],
    "slice": lambda i: np.arange(1200)[::2],
    "buffer": lambda i: bytearray(b"a%d" % i),
    "types": lambda i: (torch.float32, torch.device("cpu"), int, len, ..., slice(i)),
    "ragged": lambda i: torch.ones(i + 1),
}


def alike(a: Any, b: Any) -> bool:
    """The same types, values, dtypes, strides, attributes, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor) and (a.is_quantized or a.is_nested or a.element_size() == 1):
        return a.dtype == b.dtype and a.stride() == b.stride() and repr(a) == repr(b)
    if isinstance(a, torch.Tensor):
        traits = [(x.dtype, x.shape, x.requires_grad, x.stride(), vars(x)) for x in (a, b)]
        return traits[0] == traits[1] and bool(torch.equal(torch.as_tensor(a.detach()), torch.as_tensor(b.detach())))
    if isinstance(a, np.ma.MaskedArray):
        return alike(a.data, b.data) and alike(a.mask, b.mask)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.strides == b.strides and a.tolist() == b.tolist()
    if isinstance(a, collections.abc.Mapping):
        return list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, Image.Image):
        return a.mode == b.mode and a.size == b.size and a.tobytes() == b.tobytes()
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return alike(vars(a), vars(b))
    return bool(a == b)
