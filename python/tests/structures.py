"""Generated samples: nested structures of every kind and dtype, and what equality of batches means."""

from __future__ import annotations

import collections
import random
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")


class Point(NamedTuple):
    x: Any
    y: Any


class Tuple(tuple):
    pass


class Names(collections.UserDict):
    pass


NUMPY = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
TENSOR = (*NUMPY, "bfloat16")
WIDE = ("uint16", "uint32", "uint64")  # of which torch has tensors since 2.3
COMPLEX = ("complex64", "complex128")


def array(r: random.Random, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    words = np.array([r.getrandbits(16) for _ in range(int(np.prod(shape)))], np.uint16).reshape(shape)
    return np.asarray(words % 2 if dtype == "bool" else words % 100).astype(dtype)


def tensor(r: random.Random, dtype: str, shape: tuple[int, ...]) -> Any:
    return torch.from_numpy(array(r, "float32", shape)).to(getattr(torch, dtype))


def leaf(r: random.Random) -> Any:
    """A function that makes values of one type and shape."""
    shape = tuple(r.randrange(4) for _ in range(r.randrange(4)))
    kind = r.choice(["tensor", "ndarray", "numpy", "int", "float", "bool", "str", "bytes", "ints", "floats", "bools"])
    dtype, n = r.choice(TENSOR if kind == "tensor" else NUMPY), r.randrange(1, 4)
    return {
        "tensor": lambda: tensor(r, dtype, shape),
        "ndarray": lambda: array(r, dtype, shape),
        "numpy": lambda: array(r, dtype, (1,))[0],
        "int": lambda: r.randrange(-(1 << 63), 1 << 63),
        "float": r.random,
        "bool": lambda: r.random() < 0.5,
        "str": lambda: r.choice(["", "é", "long " * 30]),
        "bytes": lambda: r.randbytes(r.randrange(200)),
        "ints": lambda: [r.randrange(1000) for _ in range(n)],
        "floats": lambda: [r.random() for _ in range(n)],
        "bools": lambda: [r.random() < 0.5 for _ in range(n)],
    }[kind]


def sample(r: random.Random, depth: int = 0) -> Any:
    """A function that makes samples of one structure."""
    if depth > 2 or (depth and r.random() < 0.5):
        return leaf(r)
    parts = [sample(r, depth + 1) for _ in range(r.randrange(5))]
    keys = r.sample(["a", "b.c", "", 0, 1.5, "[x]", None], k=len(parts))
    made = {
        "tuple": lambda: tuple(p() for p in parts),
        "list": lambda: [p() for p in parts],
        "dict": lambda: {k: p() for k, p in zip(keys, parts, strict=True)},
        "ordered": lambda: collections.OrderedDict((k, p()) for k, p in zip(keys, parts, strict=True)),
        "user": lambda: Names({k: p() for k, p in zip(keys, parts, strict=True)}),
        "deque": lambda: collections.deque(p() for p in parts),
        "tuples": lambda: Tuple(p() for p in parts),
        "point": lambda: Point(parts[0](), parts[1]()),
    }
    if len(parts) < 2:
        made.pop("point")
    return made[r.choice(sorted(made))]


def equal(a: Any, b: Any) -> bool:
    """The same types all the way down, dtypes, and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return bool(torch.equal(a.contiguous().view(-1), b.contiguous().view(-1)))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, collections.abc.Mapping):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple | collections.deque):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b) and (not isinstance(a, np.generic) or a.dtype == b.dtype)
