"""Records: the values of one sample in one block of bytes (docs/protocol.md, Records).

A :class:`Leaf` is one value of a sample. ``write`` puts leaves into memory that the caller gives, with one copy of
each; ``read`` checks a record and returns views of it. bfloat16, which NumPy lacks, is an array of uint16 here.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import InvalidError

MAX_FIELDS, MAX_DIMS, MAX_NAME = 256, 8, 256
KINDS = ("", "array", "bytes", "text", "scalar")
ARRAY, BYTES, TEXT, SCALAR = 1, 2, 3, 4
DTYPES = (
    *("", "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)
BFLOAT16 = DTYPES.index("bfloat16")
_NUMPY = tuple(np.dtype("uint16" if n == "bfloat16" else n or "uint8").newbyteorder("<") for n in DTYPES)
_CODES = {d: i for i, d in enumerate(_NUMPY) if i not in (0, BFLOAT16)}
_HEAD, _ENTRY = struct.Struct("<IHHQQ"), struct.Struct("<BBBBIQQ")
_MAGIC, _VERSION, _ALIGN = 0x4345524C, 1, 64
_PART = 1 << 20  # bytes that are hashed at once where they have to be copied
_MOST = 1 << 40  # elements of a dimension, bytes of a value

Array = npt.NDArray[Any]


class Leaf(NamedTuple):
    """One value: its kind and dtype by number, and its elements as an array (bytes and text: uint8)."""

    kind: int
    dtype: int
    values: Array


def code(dtype: np.dtype[Any]) -> int:
    """The number of a NumPy dtype; 0 = a record cannot have it."""
    return _CODES.get(dtype) or _CODES.get(dtype.newbyteorder("<"), 0)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype in which a field of that dtype lies in memory; KeyError = there is no such dtype."""
    if name not in DTYPES[1:]:
        raise KeyError(name)
    return _NUMPY[DTYPES.index(name)]


def text(value: str) -> Leaf:
    """A leaf of text; InvalidError where it cannot be UTF-8."""
    try:
        data = value.encode()
    except UnicodeEncodeError as e:
        raise InvalidError(
            f"text that is not UTF-8 at character {e.start}", hint="return bytes, or replace lone surrogates"
        ) from e
    return blob(data, TEXT)


def blob(value: bytes, kind: int = BYTES) -> Leaf:
    """A leaf of bytes."""
    return Leaf(kind, 2, np.frombuffer(value, dtype=np.uint8))


def scalar(value: int | float | np.generic) -> Leaf:
    """A leaf of one number: a Python int is int64, a float is float64."""
    if isinstance(value, np.generic):
        values = np.asarray(value)
    elif isinstance(value, bool):
        values = np.asarray(value, np.bool_)
    elif isinstance(value, float):
        values = np.asarray(value, np.float64)
    else:
        try:
            values = np.asarray(int(value), np.int64)
        except OverflowError as e:
            raise InvalidError(
                f"the number {value} does not fit into 64 bits", hint="return it as text, or as a float"
            ) from e
    return Leaf(SCALAR, code(values.dtype), values)


def _aligned(n: int) -> int:
    return (n + _ALIGN - 1) & -_ALIGN


def _dims(leaf: Leaf) -> tuple[int, ...]:
    return () if leaf.kind == SCALAR else leaf.values.shape


Form = tuple[tuple[int, int, tuple[int, ...]], ...]


def form(leaves: Sequence[Leaf]) -> Form:
    """Kind, dtype and shape of the leaves: records of one form have their values at the same places."""
    return tuple([(x.kind, x.dtype, x.values.shape) for x in leaves])


def size(leaves: Sequence[Leaf]) -> int:
    """The bytes of a record of these leaves."""
    return _plan(form(leaves))[0]


@functools.lru_cache(maxsize=512)
def _plan(fields: Form, samples: int = 0) -> tuple[int, Array, list[int]]:
    """Of a record of fields (kind, dtype, shape): its bytes, its header up to the first value, where values begin.

    With ``samples``, of a stack of so many.
    """
    more = (samples,) if samples else ()
    dims = [more if kind == SCALAR else (*more, *shape) for kind, _, shape in fields]
    at = end = _HEAD.size + sum(_ENTRY.size + 8 * len(d) for d in dims)
    header, places = [], []
    for (kind, dtype, shape), d in zip(fields, dims, strict=True):
        at = _aligned(at)
        nbytes = (samples or 1) * math.prod(shape) * _NUMPY[dtype].itemsize
        header.append(_ENTRY.pack(kind, dtype, len(d), 0, 0, at, nbytes) + struct.pack(f"<{len(d)}Q", *d))
        places.append(at)
        at += nbytes
    total = _aligned(at)
    head = _HEAD.pack(_MAGIC, _VERSION + len(more), len(fields), total, 0) + b"".join(header)
    return total, np.frombuffer(head.ljust(_aligned(end), b"\0"), dtype=np.uint8), places


def stack_size(fields: Form, samples: int) -> int:
    """The bytes of a stack of so many samples of one form; none of its fields is bytes or text."""
    return _plan(fields, samples)[0]


def open_stack(fields: Form, samples: int, memory: Array, start: int) -> list[Array]:
    """Begins a stack in memory (uint8) with room from ``start`` on: where the values of its fields are to be written.

    Each is an array of ``samples`` times the shape of the field.
    """
    _, header, places = _plan(fields, samples)
    memory[start : start + header.nbytes] = header
    out = []
    for (_, dtype, shape), place in zip(fields, places, strict=True):
        values: Array = np.ndarray((samples, *shape), _NUMPY[dtype], memory, start + place)
        end = start + place + values.nbytes
        if end % _ALIGN:
            memory[end : end + -end % _ALIGN] = 0
        out.append(values)
    return out


def write(leaves: Sequence[Leaf], buffer: Any) -> int:
    """Writes a record to the beginning of writable memory, and returns its bytes.

    Raises:
        InvalidError: the memory is too small, or the leaves are more than a record may have.
    """
    if len(leaves) > MAX_FIELDS:
        raise InvalidError(
            f"a sample of {len(leaves)} values, and {MAX_FIELDS} are the most", hint="put numbers into one array"
        )
    memory = np.frombuffer(buffer, dtype=np.uint8)
    need = size(leaves)
    if need > memory.nbytes:
        raise InvalidError(f"a record of {need} bytes in memory of {memory.nbytes}")
    return put(leaves, memory, 0)


def put(leaves: Sequence[Leaf], memory: Array, start: int) -> int:
    """``write`` to memory (uint8) that is known to have room from ``start`` on."""
    need, header, places = _plan(form(leaves))
    memory[start : start + header.nbytes] = header
    for x, place in zip(leaves, places, strict=True):
        values, at = x.values, start + place
        end = at + values.nbytes
        np.ndarray(values.shape, _NUMPY[x.dtype], memory, at)[...] = values
        if end % _ALIGN:
            memory[end : end + -end % _ALIGN] = 0
    return need


def digest(leaves: Sequence[Leaf]) -> str:
    """A hash of the record of these leaves, without memory for the record."""
    _, header, places = _plan(form(leaves))
    found = hashlib.blake2b(header.data, digest_size=16)
    at = header.nbytes
    for x, place in zip(leaves, places, strict=True):
        found.update(bytes(place - at))
        for part in _parts(x.values):
            found.update(np.ascontiguousarray(part, _NUMPY[x.dtype]).reshape(-1).view(np.uint8).data)
        at = place + x.values.nbytes
    found.update(bytes(-at % _ALIGN))
    return found.hexdigest()


def _parts(values: Array) -> Iterator[Array]:
    """An array in C order, in parts that need little memory."""
    if values.flags.c_contiguous or values.nbytes <= _PART:
        yield values
        return
    each = values.nbytes // len(values)
    if each > _PART:
        for row in values:
            yield from _parts(row)
        return
    n = _PART // max(each, 1)
    for i in range(0, len(values), n):
        yield values[i : i + n]


def read(buffer: Any) -> list[Any]:
    """The values of a record: arrays are views of the memory, scalars NumPy scalars, the others bytes and str.

    Raises:
        InvalidError: the memory holds no record, or one whose offsets and sizes cannot be.
    """
    memory = memoryview(buffer).cast("B")
    if len(memory) < _HEAD.size:
        raise InvalidError(f"{len(memory)} bytes are no record")
    magic, version, count, total, _sum = _HEAD.unpack_from(memory)
    if magic != _MAGIC or version != _VERSION or count > MAX_FIELDS or not _HEAD.size <= total <= len(memory):
        raise InvalidError(f"no record: magic {magic:#x}, version {version}, {count} fields, {total} bytes")
    entries, at = [], _HEAD.size
    for i in range(count):
        if at + _ENTRY.size > total:
            raise InvalidError(f"field {i} of a record lies beyond it")
        kind, dtype, ndim, zero, zeros, offset, nbytes = _ENTRY.unpack_from(memory, at)
        at += _ENTRY.size
        if ndim > MAX_DIMS or at + 8 * ndim > total:
            raise InvalidError(f"field {i} of a record has {ndim} dimensions")
        entries.append((kind, dtype, zero or zeros, offset, nbytes, struct.unpack_from(f"<{ndim}Q", memory, at)))
        at += 8 * ndim
    out = []
    for i, (kind, dtype, zeros, offset, nbytes, dims) in enumerate(entries):
        n = 1
        for d in dims:
            n *= d
        flat = kind in (BYTES, TEXT) and (dtype != 2 or len(dims) != 1)
        if not 0 < kind < len(KINDS) or not 0 < dtype < len(DTYPES) or zeros or flat or (kind == SCALAR and dims):
            raise InvalidError(f"field {i} of a record: kind {kind}, dtype {dtype}, {len(dims)} dimensions")
        wrong = n * _NUMPY[dtype].itemsize != nbytes or max(dims, default=0) > _MOST
        if wrong or offset % _ALIGN or offset < at or offset + nbytes > total:
            raise InvalidError(f"field {i} of a record: {nbytes} bytes at {offset} of {total} for dimensions {dims}")
        at = offset + nbytes
        out.append(_value(kind, np.ndarray(dims, _NUMPY[dtype], memory, offset)))
    return out


def _value(kind: int, values: Array) -> Any:
    if kind == TEXT:
        try:
            return values.tobytes().decode()
        except UnicodeDecodeError as e:
            raise InvalidError("text of a record that is not UTF-8") from e
    if kind == BYTES:
        return values.tobytes()
    return values[()] if kind == SCALAR else values


class FieldDict(dict[str, Any]):
    """A SchemaField message as protojson: name, kind, dtype, shape."""


def describe(leaves: Sequence[Leaf], names: Sequence[str]) -> list[FieldDict]:
    """The fields of a schema with exactly the shapes of these leaves."""
    if len(leaves) > MAX_FIELDS:
        raise InvalidError(
            f"a sample of {len(leaves)} values, and {MAX_FIELDS} are the most",
            hint="return numbers that belong together as one array",
        )
    long = [n for n in names if len(n.encode(errors="replace")) > MAX_NAME]
    if long:
        raise InvalidError(f"the field name {long[0]!r:.80} has more than {MAX_NAME} bytes", hint="use shorter keys")
    out = []
    for leaf, name in zip(leaves, names, strict=True):
        shape = [-1] if leaf.kind in (BYTES, TEXT) else [int(n) for n in _dims(leaf)]
        out.append(FieldDict(name=name, kind=KINDS[leaf.kind], dtype=DTYPES[leaf.dtype], shape=shape))
    return out


def empty(fields: Sequence[FieldDict]) -> list[Leaf]:
    """The smallest leaves that the fields allow."""
    out = []
    for f in fields:
        dtype = DTYPES.index(f["dtype"])
        shape = [max(0, int(n)) for n in f["shape"]]
        out.append(Leaf(KINDS.index(f["kind"]), dtype, np.zeros(shape, _NUMPY[dtype])))
    return out


def merge(a: Sequence[FieldDict], b: Sequence[FieldDict]) -> list[FieldDict]:
    """The schema that two samples fit: a dimension in which they differ becomes -1.

    Raises:
        InvalidError: they differ in fields, kinds, dtypes or the number of dimensions; it names the field and both.
    """
    if [f["name"] for f in a] != [f["name"] for f in b]:
        raise InvalidError(f"fields {[f['name'] for f in a]}, and {[f['name'] for f in b]} in another sample")
    out = []
    for x, y in zip(a, b, strict=True):
        for key in ("kind", "dtype"):
            if x[key] != y[key]:
                raise InvalidError(f"field {x['name']}: {x[key]}, and {y[key]} in another sample", subject=x["name"])
        if len(x["shape"]) != len(y["shape"]):
            raise InvalidError(
                f"field {x['name']}: shape {x['shape']}, and {y['shape']} in another sample", subject=x["name"]
            )
        shape = [m if m == n else -1 for m, n in zip(x["shape"], y["shape"], strict=True)]
        out.append(FieldDict(x, shape=shape))
    return out


def relax(fields: Sequence[FieldDict]) -> list[FieldDict]:
    """The same fields with every dimension of an array free."""
    return [FieldDict(f, shape=[-1] * len(f["shape"])) for f in fields]
