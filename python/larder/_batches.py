"""Turns the columns of a ring into the batch of a dataset in Python: nested as its items are, collated, padded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _nested, _ragged
from ._nested import CONTAINERS, EITHER, NUMBERS, Structure
from ._ragged import Ragged
from .errors import InvalidError

_TEXTS = ("str", "bytes")


@dataclass(frozen=True)
class Batches:
    """How batches are made."""

    structure: Structure
    varies: Mapping[str, Sequence[int]]  # shapes of the fields in which items that were looked at differ; -1: there
    torch: bool  # tensors, not arrays
    plain: bool  # containers as default_collate makes them: tuples become lists
    ragged: Ragged | None
    collate: Callable[[list[Any]], Any] | None
    index: bool  # the last column has the sample ids

    @property
    def ahead(self) -> bool:
        """Whether a batch can be built before its values are there: it is made of views alone."""
        leaves = list(kinds(self.structure))
        if self.ragged is not None and self.varies:
            return False
        return self.collate is None and not any(k in (*NUMBERS, *_TEXTS, EITHER) for k in leaves)

    def make(self, columns: Sequence[Any], rows: int) -> Any:
        """The batch of some columns, one for each leaf.

        Raises:
            InvalidError: samples differ in size, and nothing says what to do; whatever ``collate_fn`` raises.
        """
        index = columns[-1] if self.index else None
        columns = columns[:-1] if self.index else columns
        data = self._data(columns)
        if self.collate is not None:
            batch = self.collate(_nested.samples(columns, self.structure, rows))
        elif data is None and not self.plain:
            raise InvalidError(
                "a sample of the batch is a pickled object, of which larder makes no arrays", subject="collate_fn",
                hint="give a collate_fn, which gets the samples",
            )  # fmt: skip
        elif data is None:
            batch = _default_collate(_nested.samples(columns, self.structure, rows))
        else:
            batch = self._nest(data, zip(data.names, columns, strict=False), list)
        if index is None:
            return batch
        ids = sys.modules["torch"].from_numpy(index) if self.torch else index
        tupled = data is not None and data.kind == "tuple" and isinstance(batch, (tuple, list))
        return (*batch, ids) if tupled else (batch, ids)

    def _data(self, columns: Sequence[Any]) -> Structure | None:
        """How the samples of a batch nest; None: some are pickled."""
        data = self.structure.data
        pickled = data is not self.structure and any(x.size for x in columns[-1])
        return None if pickled else data

    def _nest(self, s: Structure, columns: Iterator[tuple[str, Any]], texts: Callable[[Any], Any]) -> Any:
        if s.kind not in CONTAINERS:
            name, column = next(columns)
            return texts(column) if s.kind in _TEXTS else self._leaf(s.kind, name, column)
        if s.kind == "dataclass" and self.plain:
            raise InvalidError(
                "an item is a dataclass, which torch's default_collate refuses", subject="collate_fn",
                hint="give a collate_fn, or return a dict or a named tuple",
            )  # fmt: skip
        inner = tuple if self.plain and s.kind != "dict" else list
        values = [self._nest(p, columns, inner) for p in s.parts]
        if s.kind == "dict":
            return _nested.container(s.cls, dict(zip(s.keys, values, strict=True)), dict)
        if s.kind == "dataclass":
            return dict(zip(s.keys, values, strict=True))
        if s.kind == "namedtuple":
            return tuple(values) if s.cls is None else s.cls(*values)
        if s.kind == "tuple":
            return values if self.plain else tuple(values)
        return _nested.container(s.cls, values, list)

    def _leaf(self, kind: str, name: str, column: Any) -> Any:
        ragged = self.ragged
        if ragged is not None and isinstance(column, list):
            return self._uneven(kind, name, column, ragged)
        rows = _stacked(name, column)
        if kind in NUMBERS:
            if ragged is not None:
                return self._array(kind, rows)
            return [self._array(kind, np.ascontiguousarray(rows[:, i])) for i in range(rows.shape[1])]
        return self._array(kind, rows)

    def _uneven(self, kind: str, name: str, column: list[Any], ragged: Ragged) -> Any:
        shape = self.varies.get(name)
        if not column or (shape is None and len({a.shape for a in column}) == 1):
            return self._array(kind, _stacked(name, column))
        if ragged.mode == "list":
            return [self._array(kind, a) for a in column]
        if ragged.mode == "pad":
            sizes = column[0].shape if shape is None else shape
            return self._array(kind, _ragged.pad(column, ragged, sizes, name, kind == "bfloat16"))
        return _ragged.nested(column, name, kind == "bfloat16")

    def _array(self, kind: str, a: Any) -> Any:
        return _nested.as_tensor(a, kind) if self.torch else a


def _default_collate(samples: list[Any]) -> Any:
    of_torch: Any = importlib.import_module("torch.utils.data._utils.collate")
    return of_torch.default_collate(samples)


def kinds(s: Structure) -> Iterator[str]:
    """The kinds of the leaves, in order."""
    if s.kind not in CONTAINERS:
        yield s.kind
    for p in s.parts:
        yield from kinds(p)


def _stacked(name: str, column: Any) -> Any:
    if not isinstance(column, list):
        return column
    shapes = sorted({a.shape for a in column})
    if len(shapes) > 1:
        raise InvalidError(
            f"field {name}: the samples of a batch have the shapes {shapes!r:.200}", subject=name,
            hint='say ragged="list", "pad" or "nested", or give a collate_fn',
        )  # fmt: skip
    return np.stack(column) if column else np.empty((0,))
