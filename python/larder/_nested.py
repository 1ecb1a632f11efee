"""How the values of a sample nest: samples become leaves and back.

``flatten`` takes a sample apart: tuples, lists, mappings, named tuples and dataclasses are structure, everything else
is a leaf (``_record.Leaf``). ``leaves`` does the same for a sample whose structure is known, and says where it
differs. ``unflatten`` builds the sample again.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _exact, _opaque, _record
from ._opaque import Unreadable
from ._record import Leaf
from .errors import InvalidError

_DEPTH = 32  # of containers within each other
NUMBERS = {"ints": int, "floats": float, "bools": bool}  # lists of numbers, which are one leaf
_NUMBER_KINDS: dict[type, str] = {number: kind for kind, number in NUMBERS.items()}
_NUMBER_TYPES: dict[str, tuple[str, Any]] = {
    "ints": ("q", np.int64),
    "floats": ("d", np.float64),
    "bools": ("b", np.bool_),
}


@dataclasses.dataclass(frozen=True)
class Structure:
    """A leaf (``kind`` says what it came from) or a container of structures.

    kinds of leaves: tensor, bfloat16 (a tensor), ndarray, numpy (a scalar), int, float, bool, str, bytes, and lists of
    one type of number: ints, floats, bools. kinds of containers: tuple, list, dict, namedtuple, dataclass.

    A sample of kind ``either`` nests as its part says, or lies pickled in its last leaf, and all others are empty.
    Without a part it is always pickled. Its key is who may unpickle it.
    """

    kind: str
    cls: type | None = None  # of the container; None for a plain tuple, list or dict
    keys: tuple[Any, ...] = ()
    parts: tuple[Structure, ...] = ()
    exact: str = ""  # at the root: what samples must not lose when they are taken apart (see _exact)

    @functools.cached_property
    def text(self) -> str:
        """Canonical JSON. A class is named; to be found again it must have been imported."""
        return json.dumps(self.plain(), separators=(",", ":"), ensure_ascii=False)

    def plain(self) -> Any:
        """What ``text`` is JSON of."""
        if not self.parts and not self.keys and self.kind not in CONTAINERS:
            return self.kind
        if self.kind == EITHER:
            return {"kind": EITHER, "owner": self.keys[0], "parts": [p.plain() for p in self.parts]}
        out: dict[str, Any] = {"kind": self.kind}
        if self.cls is not None:
            out["class"] = f"{self.cls.__module__}:{self.cls.__qualname__}"
        if self.kind not in POSITIONS:
            out["keys"] = list(self.keys)
        out["parts"] = [p.plain() for p in self.parts]
        return out

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The fields' names, one for each leaf, all different: keys and positions, such as ``target.boxes``."""
        found: list[str] = []
        _name(self, "", found)
        return tuple(found)

    @property
    def steps(self) -> Sequence[Any]:
        """The keys or positions of the parts."""
        return range(len(self.parts)) if self.kind in POSITIONS else self.keys

    @property
    def data(self) -> Structure | None:
        """How samples nest that are not pickled; None: all are."""
        if self.kind != EITHER:
            return self
        return self.parts[0] if self.parts else None


EITHER = "either"
PICKLED = "[pickled]"  # the name of its last leaf, unlike that of any other
NOTHING = Leaf(_record.ARRAY, 2, np.empty(0, np.uint8))  # of a sample that is not pickled
POSITIONS = ("tuple", "list")
CONTAINERS = (*POSITIONS, "dict", "namedtuple", "dataclass")


def _name(s: Structure, path: str, found: list[str]) -> None:
    if s.kind == EITHER:
        for p in s.parts:
            _name(p, path, found)
        found.append(PICKLED)
        return
    if s.kind not in CONTAINERS:
        found.append(path or "value")
        return
    for key, part in zip(s.steps, s.parts, strict=True):
        _name(part, _join(path, key, s.kind in POSITIONS), found)


def _join(path: str, key: Any, position: bool) -> str:
    """The name of a part: plain where no other key could be read as the same. A batch has an ``index`` of its own."""
    plain = position or (isinstance(key, str) and key != "" and not set(key) & set(".[]"))
    plain = plain and (path != "" or key != "index")
    step = str(key) if plain else f"[{key!r}]"
    return step if not path else f"{path}.{step}" if plain else path + step


@functools.lru_cache(maxsize=256)
def parse(text: str) -> Structure:
    """The structure of ``Structure.text``.

    Classes are looked up among what is imported, never imported; one that is not there becomes tuple, list or dict.
    """
    try:
        return _parse(json.loads(text), 0)
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise InvalidError(f"the structure {text[:200]!r} cannot be read: {e}") from e


def _parse(plain: Any, depth: int) -> Structure:
    if isinstance(plain, str):
        if plain not in _LEAVES:
            raise ValueError(f"unknown leaf {plain!r}")
        return Structure(plain)
    kind = plain["kind"]
    if kind == EITHER and depth == 0:
        return Structure(EITHER, keys=(str(plain["owner"]),), parts=tuple(_parse(p, 1) for p in plain["parts"][:1]))
    if kind not in CONTAINERS or depth > _DEPTH:
        raise ValueError(f"container {kind!r}")
    cls = _class(plain.get("class", ""), kind)
    if cls is None and kind in ("namedtuple", "dataclass"):
        kind = "tuple" if kind == "namedtuple" else "dict"
    keys = () if kind in POSITIONS else tuple(plain["keys"])
    parts = tuple(_parse(p, depth + 1) for p in plain["parts"])
    if kind not in POSITIONS and len(keys) != len(parts):
        raise ValueError(f"{len(keys)} keys for {len(parts)} parts")
    return Structure(kind, cls, keys, parts)


def _class(name: str, kind: str) -> type | None:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for step in path.split(".") if path else ():
        found = getattr(found, step, None)
    return found if isinstance(found, type) and _container_of(found) == kind else None


def _known(structure: Structure | str) -> Structure:
    return parse(structure) if isinstance(structure, str) else structure


def names(structure: Structure | str) -> tuple[str, ...]:
    """The names of the fields, one for each leaf."""
    return _known(structure).names


def flatten(sample: Any, exact: str = "") -> tuple[list[Leaf], Structure]:
    """The leaves of a sample, and how they nest; ``exact``: what must not be lost by that (see _exact).

    Raises:
        InvalidError: a value that is no data; the message has its place and type, the hint what to return instead.
    """
    found: list[Leaf] = []
    structure = _flatten(sample, "", 0, found, exact)
    if exact:
        structure = dataclasses.replace(structure, exact=exact)
    if len(found) > _record.MAX_FIELDS:
        raise InvalidError(
            f"a sample of {len(found)} values, and {_record.MAX_FIELDS} are the most",
            hint="return numbers that belong together as one array",
        )
    return found, structure


def _flatten(value: Any, path: str, depth: int, found: list[Leaf], exact: str) -> Structure:
    kind = _container(value)
    if not kind:
        kind, leaf = _leaf(value, path)
        _require_exact(value, kind, path, exact)
        found.append(leaf)
        return Structure(kind)
    if kind in NUMBERS:
        found.append(_numbers(value, kind, path))
        return Structure(kind)
    if depth >= _DEPTH:
        raise InvalidError(f"the sample{_at(path)} has more than {_DEPTH} containers within each other", subject=path)
    _require_exact(value, kind, path, exact)
    steps, values = _open(value, kind)
    for key in steps if kind == "dict" else ():
        if not isinstance(key, str | int | float | None):
            raise InvalidError(
                f"the sample{_at(path)} has a key of type {type(key).__name__}: {key!r:.80}",
                subject=path,
                hint="use text or numbers as keys",
            )
    position = kind in POSITIONS
    parts = tuple(
        _flatten(v, _join(path, k, position), depth + 1, found, exact) for k, v in zip(steps, values, strict=True)
    )
    own = type(value) if type(value) not in (tuple, list, dict) else None
    return Structure(kind, own, () if position else tuple(steps), parts)


def leaves(sample: Any, structure: Structure | str) -> list[Leaf]:
    """The leaves of a sample that must nest as ``structure`` says; one alone where it is pickled.

    Raises:
        InvalidError: it does not; the message has the place and both sides.
    """
    found: list[Leaf] = []
    want = _known(structure)
    if want.kind != EITHER:
        _follow(sample, want, "", found, want.exact)
        return found
    if want.parts:
        try:
            _follow(sample, want.parts[0], "", found, want.parts[0].exact)
            return [*found, NOTHING]
        except InvalidError:
            pass
    return [_opaque.leaf(sample, want.keys[0])]


def _require_exact(value: Any, kind: str, path: str, exact: str) -> None:
    lost = _exact.lost(value, kind, exact) if exact else ""
    if lost:
        raise InvalidError(
            f"the sample{_at(path)} is {_full_name(type(value))}, of which larder would lose {lost}", subject=path,
            hint=f"return what is a plain {kind if kind in CONTAINERS else 'tensor, array, number or text'} there",
        )  # fmt: skip


def _follow(value: Any, want: Structure, path: str, found: list[Leaf], exact: str) -> None:
    if want.kind == "tensor" and (leaf := plain_tensor(value)) is not None:
        _require_exact(value, "tensor", path, exact)
        found.append(leaf)
        return
    kind = _container(value)
    if want.kind in NUMBERS and kind == "list" and not value:
        kind = want.kind  # an empty list of numbers
    if not kind:
        kind, leaf = _leaf(value, path)
        if kind != want.kind:
            raise _differs(path, _words(value, kind), want)
        _require_exact(value, kind, path, exact)
        found.append(leaf)
        return
    if kind != want.kind:
        if want.kind == "list" and kind in NUMBERS and want.parts:
            kind = "list"
        else:
            raise _differs(path, _words(value, kind), want)
    if kind in NUMBERS:
        found.append(_numbers(value, kind, path))
        return
    _require_exact(value, kind, path, exact)
    steps, values = _open(value, kind)
    if kind in POSITIONS:
        if len(values) != len(want.parts):
            raise _differs(path, f"{type(value).__name__} of {len(values)} values", want)
        for i, part in enumerate(want.parts):
            _follow(values[i], part, _join(path, i, True), found, exact)
        return
    by_key = dict(zip(steps, values, strict=True))
    if by_key.keys() != set(want.keys) or ("o" in exact and tuple(by_key) != want.keys):
        raise _differs(path, f"{type(value).__name__} with keys {list(by_key)!r:.200}", want)
    for key, part in zip(want.keys, want.parts, strict=True):
        _follow(by_key[key], part, _join(path, key, False), found, exact)


def _words(value: Any, kind: str) -> str:
    return f"a list of {kind}" if kind in NUMBERS else type(value).__name__


def _differs(path: str, got: str, want: Structure) -> InvalidError:
    if want.kind in POSITIONS:
        other = f"a {want.kind} of {len(want.parts)} values"
    elif want.kind in CONTAINERS:
        other = f"a {want.kind} with keys {list(want.keys)!r:.200}"
    else:
        other = f"a list of {want.kind}" if want.kind in NUMBERS else want.kind
    return InvalidError(
        f"the sample{_at(path)} is {got}, and {other} in others",
        subject=path,
        hint="all samples of a dataset have the same fields of the same types",
    )


def merge(a: Structure, b: Structure) -> Structure:
    """The structure of two samples, one of which may have an empty list where the other has numbers.

    Raises:
        InvalidError: they differ otherwise.
    """
    return _merge(a, b, "")


def _merge(a: Structure, b: Structure, path: str) -> Structure:
    if a == b:
        return a
    for x, y in ((a, b), (b, a)):
        if x.kind in NUMBERS and y.kind == "list" and not y.parts and y.cls is None:
            return x
    if a.kind != b.kind or a.cls != b.cls or len(a.parts) != len(b.parts) or set(a.keys) != set(b.keys):
        raise _differs(path, _differs(path, "", b).message.rpartition(", and ")[2].removesuffix(" in others"), a)
    order = [b.keys.index(k) for k in a.keys] if a.keys else range(len(b.parts))
    position = a.kind in POSITIONS
    parts = tuple(
        _merge(p, b.parts[i], _join(path, k, position)) for p, i, k in zip(a.parts, order, a.steps, strict=True)
    )
    return dataclasses.replace(a, parts=parts)


def _at(path: str) -> str:
    return f" at {path}" if path else ""


def _container(value: Any) -> str:
    """What kind of container a value is; empty = it is none."""
    cls: Any = type(value)
    if cls is list and value:
        types = set(map(type, value))
        if len(types) == 1:
            kind = _NUMBER_KINDS.get(types.pop())
            if kind is not None:
                return kind
    return _container_of(cls)


@functools.lru_cache(maxsize=512)
def _container_of(cls: Any) -> str:
    if issubclass(cls, (str, bytes, bytearray, memoryview, np.ndarray, np.generic)):
        return ""
    if issubclass(cls, Mapping):
        return "dict"
    if issubclass(cls, tuple):
        return "namedtuple" if hasattr(cls, "_fields") else "tuple"
    if issubclass(cls, Sequence):
        return "list"
    return "dataclass" if dataclasses.is_dataclass(cls) else ""


def _open(value: Any, kind: str) -> tuple[Sequence[Any], Sequence[Any]]:
    """The keys or positions of a container, and its values."""
    if kind == "dict":
        keys = list(value)
        return keys, [value[k] for k in keys]
    if kind == "namedtuple":
        return getattr(value, "_fields"), tuple(value)  # noqa: B009
    if kind == "dataclass":
        keys = [f.name for f in dataclasses.fields(value)]
        return keys, [getattr(value, k) for k in keys]
    return range(len(value)), value


def _numbers(value: list[Any], kind: str, path: str) -> Leaf:
    try:
        words, dtype = _NUMBER_TYPES[kind]
        values = np.frombuffer(array.array(words, value), dtype)
    except OverflowError as e:
        raise InvalidError(
            f"the sample{_at(path)} has a number that does not fit into 64 bits", subject=path, hint="return floats"
        ) from e
    return Leaf(_record.ARRAY, _record.code(values.dtype), values)


_LEAVES = ("tensor", "bfloat16", "ndarray", "numpy", "int", "float", "bool", "str", "bytes", *NUMBERS)


def _leaf(value: Any, path: str) -> tuple[str, Leaf]:
    try:
        if isinstance(value, str):
            return "str", _record.text(value)
        if isinstance(value, bytes):
            return "bytes", _record.blob(value)
        if isinstance(value, np.ndarray | np.generic):
            if not _record.code(value.dtype):
                raise _refused(value, path, f"{type(value).__name__} of dtype {value.dtype}", _dtype_hint(value.dtype))
            if isinstance(value, np.generic):
                return "numpy", _record.scalar(value)
            return "ndarray", Leaf(_record.ARRAY, _record.code(value.dtype), np.asarray(value))
        for kind, number in (("bool", bool), ("int", int), ("float", float)):
            if isinstance(value, number):
                return kind, _record.scalar(value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return _tensor(value, torch, path)
    except InvalidError as e:
        if not e.subject and path:
            raise InvalidError(f"the sample{_at(path)}: {e.message}", subject=path, hint=e.hint) from e
        raise
    raise _refused(value, path, _full_name(type(value)), _hint(value))


def plain_tensor(value: Any) -> Leaf | None:
    """The leaf of a tensor that NumPy can look at as it is; None = it needs a closer look."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    try:
        plain = value.numpy()
    except (RuntimeError, TypeError):
        return None
    code = _record.code(plain.dtype)
    return Leaf(_record.ARRAY, code, plain) if code else None


def _tensor(value: Any, torch: Any, path: str) -> tuple[str, Leaf]:
    if value.device.type != "cpu":
        raise _refused(value, path, f"a tensor on {value.device}", "return .cpu(): larder hands batches over in memory")
    if value.layout != torch.strided or value.is_quantized or getattr(value, "is_nested", False):
        hint = "return .to_dense(), .dequantize(), or its parts"
        raise _refused(value, path, "a sparse, quantized or nested tensor", hint)
    plain = value.detach()
    if plain.dtype == torch.bfloat16:
        words = plain.contiguous().view(torch.int16).numpy().view(np.uint16)
        return "bfloat16", Leaf(_record.ARRAY, _record.BFLOAT16, words)
    if plain.is_complex():
        raise _refused(value, path, f"a tensor of dtype {value.dtype}", "return torch.view_as_real(it)")
    if plain.is_neg():
        plain = plain.resolve_neg()
    try:
        values = plain.numpy()
    except (TypeError, RuntimeError) as e:  # float8
        raise _refused(value, path, f"a tensor of dtype {value.dtype}", "return .float()") from e
    return "tensor", Leaf(_record.ARRAY, _record.code(values.dtype), values)


def _full_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _refused(value: Any, path: str, what: str, hint: str) -> InvalidError:
    return InvalidError(f"the sample{_at(path)} is {what}, which is no data", subject=path, hint=hint)


_DATA = (
    "a sample is made of arrays, tensors, numbers, text and bytes; collate_fn gets samples made of these, so convert "
    "in the dataset or in a transform"
)


def _dtype_hint(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "c":
        return "return the real and imaginary parts, e.g. it.view(np.float32)"
    if dtype.kind in "SU":
        return "return text (str), bytes, or a list of them"
    if dtype.kind in "Mm":
        return "return it.astype(np.int64)"
    return "dtypes: " + ", ".join(d for d in _record.DTYPES[1:] if d != "bfloat16")


def _hint(value: Any) -> str:
    module = type(value).__module__.partition(".")[0]
    if value is None:
        return f"leave the field out, or return a value of its type, e.g. -1 or an empty array; {_DATA}"
    if module == "PIL":
        return f"return np.asarray(image), or end the transforms with PILToTensor(); {_DATA}"
    if isinstance(value, complex):
        return f"return its real and imaginary parts; {_DATA}"
    if isinstance(value, bytearray | memoryview):
        return "return bytes(it)"
    return _DATA


def unflatten(values: Sequence[Any], structure: Structure | str) -> Any:
    """The sample again: values as ``_record.read`` or a row of a batch gives them, in types that the sample had."""
    want = _known(structure)
    if want.kind == EITHER:
        if not want.parts or values[-1].size:
            return _opaque.load(values[-1], want.keys[0])
        want = want.parts[0]
    rest = iter(values)
    return _build(want, lambda kind: _original(kind, next(rest)))


def _original(kind: str, value: Any) -> Any:
    if kind in ("str", "bytes", "ndarray"):
        return value
    if kind in ("int", "float", "bool"):
        return value.item() if hasattr(value, "item") else value
    if kind == "numpy":
        return np.asarray(value)[()]
    if kind in NUMBERS:
        return value.tolist()
    return as_tensor(value, kind)


def _build(s: Structure, leaf: Callable[[str], Any]) -> Any:
    if s.kind not in CONTAINERS:
        return leaf(s.kind)
    values = [_build(p, leaf) for p in s.parts]
    if s.kind == "dict":
        return container(s.cls, dict(zip(s.keys, values, strict=True)), dict)
    if s.kind == "namedtuple" and s.cls is not None:
        return s.cls(*values)
    if s.kind == "dataclass" and s.cls is not None:
        made: Any = object.__new__(s.cls)
        for key, value in zip(s.keys, values, strict=True):
            object.__setattr__(made, key, value)
        return made
    return container(s.cls, values, tuple if s.kind == "tuple" else list)


def container(cls: type | None, plain: Any, fallback: type) -> Any:
    """``plain`` as a container of its own class, where that can be made of one, as default_collate does."""
    if cls is None:
        return fallback(plain)
    try:
        return cls(plain)
    except TypeError:
        return fallback(plain)


def as_tensor(value: Any, kind: str) -> Any:
    """The same memory as a tensor; ``kind`` is that of the leaf."""
    torch: Any = sys.modules.get("torch") or importlib.import_module("torch")
    if not isinstance(value, np.ndarray):
        return value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    if kind == "bfloat16":
        made = torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    else:
        made = torch.from_numpy(value)
    return made if value.size else torch.empty(value.shape, dtype=made.dtype)  # with the strides that torch gives it


def samples(columns: Sequence[Any], structure: Structure | str, rows: int) -> list[Any]:
    """The samples of a batch one by one, as the dataset gave them: what a ``collate_fn`` gets.

    Raises:
        Unreadable: some were pickled and cannot be made again; it has those of all rows.
    """
    s, out = _known(structure), list[Any]()
    bad: dict[int, Unreadable] = {}
    for i in range(rows):
        try:
            out.append(unflatten([c[i, ...] if isinstance(c, np.ndarray) else c[i] for c in columns], s))
        except Unreadable as e:
            bad[i] = e
    if bad:
        first = next(iter(bad.values()))
        first.rows = bad
        raise first
    return out
