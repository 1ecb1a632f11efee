"""Digests of code and of arguments: equal digests mean that two steps do the same.

What has no stable digest (an open file, a lock, an object of C code without state that Python can read) raises
:class:`Unhashable`; nothing is guessed. Source is hashed as text, so a change in a helper that a function calls does
not show: ``version=`` is for that.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import pathlib
import struct
import textwrap
import types
from typing import Any

import numpy as np

_DEPTH = 24


class Unhashable(Exception):
    """A value without a stable digest; the message names it."""


def of(value: Any) -> str:
    """The digest of a value, 32 hexadecimal digits.

    Raises:
        Unhashable: nothing shows whether another process has the same value.
    """
    h = hashlib.blake2b(digest_size=16)
    _feed(h, value, 0, ())
    return h.hexdigest()


def source(function: Any) -> str:
    """The digest of the source of a function or class: its text, else its bytecode."""
    h = hashlib.blake2b(digest_size=16)
    _code(h, function, 0, ())
    return h.hexdigest()


def type_source(cls: type) -> str:
    """The digest of a class and of the bases that its user may have written."""
    h = hashlib.blake2b(digest_size=16)
    for c in cls.__mro__:
        if c.__module__ not in ("builtins", "typing", "abc", "torch.utils.data.dataset", "collections.abc"):
            h.update(_text(c).encode())
    return h.hexdigest()


def _text(thing: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', thing)}"


def _update(h: Any, tag: str, data: bytes = b"") -> None:
    h.update(struct.pack("<HQ", len(tag), len(data)) + tag.encode() + data)


def _feed(h: Any, v: Any, depth: int, seen: tuple[int, ...]) -> None:
    if depth > _DEPTH or id(v) in seen:
        raise Unhashable(f"{type(v).__name__} is nested too deep or contains itself")
    inside = (*seen, id(v))
    if v is None or isinstance(v, (bool, int, float, complex, str)):
        _update(h, type(v).__name__, repr(v).encode())
    elif isinstance(v, (bytes, bytearray)):
        _update(h, "bytes", bytes(v))
    elif isinstance(v, enum.Enum):
        _update(h, "enum", f"{type(v).__qualname__}.{v.name}".encode())
    elif isinstance(v, pathlib.PurePath):
        _update(h, "path", str(v).encode())
    elif isinstance(v, (np.ndarray, np.generic)):
        _array(h, np.asarray(v))
    elif isinstance(v, (list, tuple)):
        _update(h, type(v).__name__, struct.pack("<Q", len(v)))
        for x in v:
            _feed(h, x, depth + 1, inside)
    elif isinstance(v, (set, frozenset)):
        _update(h, "set", "".join(sorted(of(x) for x in v)).encode())
    elif isinstance(v, dict):
        _update(h, "dict", struct.pack("<Q", len(v)))
        for k, x in v.items():
            _feed(h, k, depth + 1, inside)
            _feed(h, x, depth + 1, inside)
    elif isinstance(v, functools.partial):
        _update(h, "partial")
        _feed(h, [v.func, list(v.args), v.keywords], depth + 1, inside)
    elif isinstance(v, (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType)):
        _code(h, v, depth, inside)
    else:
        _object(h, v, depth, inside)


def _array(h: Any, a: np.ndarray[Any, Any]) -> None:
    if a.dtype.hasobject:
        raise Unhashable("an array of Python objects")
    _update(h, f"array {a.dtype.str} {a.shape}", np.ascontiguousarray(a).tobytes())


def _code(h: Any, f: Any, depth: int, seen: tuple[int, ...]) -> None:
    """Source, defaults, and what a closure captured; of methods also their object."""
    if isinstance(f, types.MethodType):
        _code(h, f.__func__, depth, seen)
        if not isinstance(f.__self__, type):
            _feed(h, f.__self__, depth + 1, seen)
        return
    name = f"{getattr(f, '__module__', '')}.{getattr(f, '__qualname__', f)}"
    _update(h, "code", name.encode())
    if not isinstance(f, types.FunctionType):
        _update(h, "text", _text(f).encode())
        return
    try:
        _update(h, "text", textwrap.dedent(inspect.getsource(f)).encode())
        known = f.__name__ != "<lambda>"  # the text is that of its whole line, where others may be
    except (OSError, TypeError):
        known = False
    if not known:
        _bytecode(h, f.__code__)
    for x in (f.__defaults__, f.__kwdefaults__):
        _feed(h, x, depth + 1, seen)
    for cell in f.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        _feed(h, content, depth + 1, seen)


def _bytecode(h: Any, code: types.CodeType) -> None:
    _update(h, "bytecode", code.co_code)
    _update(h, "names", repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for x in code.co_consts:
        if isinstance(x, types.CodeType):
            _bytecode(h, x)
        else:
            _update(h, "const", repr(sorted(map(repr, x)) if isinstance(x, frozenset) else x).encode())


def _object(h: Any, v: Any, depth: int, seen: tuple[int, ...]) -> None:
    """An object by its class and its attributes."""
    cls = type(v)
    if cls.__module__ == "torch" and hasattr(v, "numpy") and hasattr(v, "detach"):
        _array(h, v.detach().cpu().numpy())
        return
    if cls.__module__ == "torch" and not hasattr(v, "__dict__"):  # torch.float32, torch.device, torch.Size
        _update(h, "torch", repr(v).encode())
        return
    try:  # as pickle sees it: what cannot be pickled has state that Python does not see
        parts = v.__reduce_ex__(2)
    except Exception as e:
        raise Unhashable(f"{cls.__module__}.{cls.__qualname__}") from e
    _update(h, "object", f"{cls.__module__}.{cls.__qualname__} {type_source(cls)}".encode())
    if isinstance(parts, str):
        _update(h, "global", parts.encode())
        return
    made, args, *more = parts
    _feed(h, [made, [x for x in args if x is not cls]], depth + 1, seen)
    state = more[0] if more else None
    _feed(h, sorted(state.items(), key=lambda kv: str(kv[0])) if isinstance(state, dict) else state, depth + 1, seen)
    for items in more[1:3]:
        _feed(h, list(items or ()), depth + 1, seen)
