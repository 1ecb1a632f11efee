"""The ring of a (job, rank): the mapped memory, and batches as arrays on it.

A lease is the life of one NumPy array: every delivery gets a fresh *root* array over its slot, and all arrays and
tensors handed out are views of it. The weak reference that releases the slot must be one to the root and to nothing
else: NumPy collapses ``.base`` of views to the root, so a reshaped array may die while slices of it live. The mapping
itself lives as long as any root over it, also after close().
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _record
from ._messages import AttachResponse, FieldMessage
from ._wire import BatchHeader, protocol_error

_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 2
_DTYPES = (
    *("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
)
_RAGGED = np.dtype([("offset", "<u8"), ("height", "<u4"), ("width", "<u4"), ("channels", "<u4"), ("zero", "<u4")])

Array = npt.NDArray[Any]
Column = Array | list[Array] | list[bytes] | list[str]  # of one field, all rows of a batch


@dataclass(frozen=True)
class Field:
    """One array of a slot; see the Field message."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    sample_bytes: int
    ragged: bool
    size: int  # bytes of the values of a sample
    strides: tuple[int, ...]  # of a batch
    hwc: bool = False  # rows of images are (H, W, C)
    kind: str = ""  # of a record's field: array, bytes, text, scalar; empty = not of a record
    dims: int = 0  # of one sample, in a ragged field of a record

    @classmethod
    def from_json(cls, d: FieldMessage) -> Field:
        """Reads and checks a Field message."""
        name = str(d.get("name", ""))
        ragged = bool(d.get("ragged", False))
        type_name, kind, dims = str(d.get("dtype")), str(d.get("kind", "")), int(d.get("dims") or 0)
        if type_name not in (_record.DTYPES[1:] if kind else _DTYPES) or (kind and kind not in _record.KINDS):
            raise protocol_error(f"field {name!r} of kind {kind!r}, dtype {type_name!r}")
        dtype = _record.numpy_dtype(type_name)
        shape = tuple(int(x) for x in d.get("shape") or ())
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize if shape else dtype.itemsize
        sample_bytes = int(d.get("sampleBytes") or 0)
        if not ragged and sample_bytes < size:
            raise protocol_error(f"field {name!r}: {sample_bytes} bytes a sample hold no {shape} of {dtype}")
        if ragged and not kind and dtype != np.uint8:
            raise protocol_error(f"ragged field {name!r} of dtype {dtype}")
        if dims > _record.MAX_DIMS or (kind in ("bytes", "text") and (not ragged or dims != 1 or dtype != np.uint8)):
            raise protocol_error(f"field {name!r}, {kind} of dtype {dtype}, has {dims} dimensions")
        strides = [dtype.itemsize]
        for n in reversed(shape[1:]):
            strides.insert(0, n * strides[0])
        offset = int(d.get("offset") or 0)
        all_strides = (sample_bytes, *(strides if shape else ()))
        hwc = d.get("layout") == "HWC"
        return cls(name, dtype, shape, offset, sample_bytes, ragged, size, all_strides, hwc, kind, dims)


def map_segment(fd: int, size: int) -> mmap.mmap:
    """Maps a sealed memfd and closes ``fd``.

    Refuses one that is shorter than announced, or could shrink while it is mapped (SIGBUS).
    """
    try:
        actual = os.fstat(fd).st_size
        if size <= 0 or actual < size:
            raise protocol_error(f"a segment of {actual} bytes that should have {size}")
        if not fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK:
            raise protocol_error("a segment without F_SEAL_SHRINK")
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as e:
        raise protocol_error(f"a segment that cannot be mapped: {e}") from e
    finally:
        os.close(fd)


class Ring:
    """The segments and the field table of one attachment. Not safe for concurrent use."""

    def __init__(self, attach: AttachResponse, fd: int) -> None:
        self.slots = int(attach.get("slots") or 0)
        self.slot_bytes = int(attach.get("slotBytes") or 0)
        size = int(attach.get("segmentBytes") or 0)
        segment0 = map_segment(fd, size)
        if self.slots < 1 or self.slot_bytes < 1 or self.slots * self.slot_bytes > size:
            raise protocol_error(f"a ring of {self.slots} slots of {self.slot_bytes} bytes in {size} bytes")
        self.fields = {f.name: f for f in (Field.from_json(d) for d in attach.get("fields") or ())}
        self.memory = segment0
        self._segments: dict[int, mmap.mmap] = {0: segment0}
        self._own: dict[int, int] = {}  # slot -> its own segment, when it has outgrown segment 0

    def replace(self, segment: int, slot: int, size: int, fd: int) -> None:
        """Takes a SEGMENT frame: the slot has memory of its own from now on.

        Its earlier segment is unmapped with the last array on it.
        """
        if segment == 0 or slot >= self.slots:
            os.close(fd)
            raise protocol_error(f"SEGMENT {segment} for slot {slot} of {self.slots}")
        self._segments[segment] = map_segment(fd, size)
        old = self._own.get(slot)
        self._own[slot] = segment
        if old is not None and old != segment:
            self._segments.pop(old, None)

    def root(self, b: BatchHeader) -> npt.NDArray[np.uint8]:
        """A fresh uint8 array over the slot of a batch; every view keeps exactly this object alive."""
        m = self._segments.get(b.segment)
        if m is None or b.slot >= self.slots:
            raise protocol_error(f"a batch in segment {b.segment}, slot {b.slot}")
        size = self.slot_bytes if b.segment == 0 else len(m) - b.offset
        if size <= 0 or b.offset + size > len(m):
            raise protocol_error(f"a batch at byte {b.offset} of a segment of {len(m)}")
        return np.frombuffer(m, dtype=np.uint8, count=size, offset=b.offset)

    @property
    def records(self) -> list[Field]:
        """The fields of the records, in the order of their schema; empty = the samples are images."""
        return [f for f in self.fields.values() if f.kind]

    def array(self, root: npt.NDArray[np.uint8], field: Field, rows: int) -> Column:
        """The view of one field: an array of ``rows`` samples, or a list when the field is ragged.

        The list has HWC images, or the values of a field of records: arrays on the slot, or bytes and str of their own.
        """
        if field.ragged:
            return self._values(root, field, rows) if field.kind else self._ragged(root, field, rows)
        if rows and field.offset + (rows - 1) * field.sample_bytes + field.size > root.nbytes:
            raise protocol_error(f"{rows} rows of field {field.name!r} in a slot of {root.nbytes} bytes")
        view: Array = np.ndarray((rows, *field.shape), field.dtype, root, field.offset, field.strides)
        return view

    def _values(self, root: npt.NDArray[np.uint8], field: Field, rows: int) -> list[Array] | list[bytes] | list[str]:
        width = 2 + field.dims
        if field.offset + rows * width * 8 > root.nbytes:
            raise protocol_error(f"{rows} rows of field {field.name!r} in a slot of {root.nbytes} bytes")
        table: Array = np.ndarray((rows, width), dtype="<u8", buffer=root, offset=field.offset)
        out: list[Any] = []
        for at, size, *dims in table.tolist():
            want = field.dtype.itemsize
            for n in dims:
                want *= n
            if size != want or at % 64 or at + size > root.nbytes:
                raise protocol_error(
                    f"a value of field {field.name!r} of {size} bytes, {dims}, at byte {at} of a slot of {root.nbytes}"
                )
            if field.kind == "array":
                out.append(np.ndarray(dims, field.dtype, root, at))
            else:
                out.append(root[at : at + size].tobytes())
        if field.kind != "text":
            return out
        try:
            return [b.decode() for b in out]
        except UnicodeDecodeError as e:
            raise protocol_error(f"text of field {field.name!r} that is not UTF-8") from e

    def _ragged(self, root: npt.NDArray[np.uint8], field: Field, rows: int) -> list[Array]:
        if field.offset + rows * _RAGGED.itemsize > root.nbytes:
            raise protocol_error(f"{rows} rows of field {field.name!r} in a slot of {root.nbytes} bytes")
        out: list[Array] = []
        table: Array = np.ndarray((rows,), dtype=_RAGGED, buffer=root, offset=field.offset)
        for at, h, w, c, _zero in table.tolist():
            if at + h * w * c > root.nbytes:
                raise protocol_error(f"an image of {h}x{w}x{c} at byte {at} of a slot of {root.nbytes} bytes")
            out.append(np.ndarray((h, w, c), dtype=np.uint8, buffer=root, offset=at))
        return out


def copy(value: Column) -> Column:
    """A private copy of what Ring.array returned."""
    if isinstance(value, list):
        return [a if isinstance(a, str | bytes) else a.copy() for a in value]  # type: ignore[return-value]
    return value.copy()
