"""Checks of single arguments of the Loader. Pure but for the working directory."""

from __future__ import annotations

import difflib
import operator
import os
import re
from collections.abc import Iterable
from typing import Any, TypeVar

from .errors import InvalidError

FIELDS = ("image", "label", "index")
Word = TypeVar("Word", bound=str)


def unknown_keyword(name: str, known: list[str], of: str = "Loader") -> TypeError:
    """The TypeError for a keyword that does not exist, with the nearest one."""
    near = difflib.get_close_matches(name, known, 1, 0.6)
    hint = f"; did you mean {near[0]!r}?" if near else f"; the arguments are {', '.join(known)}"
    return TypeError(f"{of}() got an unexpected keyword argument {name!r}{hint}")


def integer(name: str, value: Any, low: int, high: int) -> int:
    """``value`` as an int within bounds; NumPy integers are accepted, bool is not."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidError(f"{name} must be an integer, not {value!r} ({type(value).__name__})", subject=name) from None
    if not low <= number <= high:
        raise InvalidError(f"{name} is {number}; it must be from {low} to {high}", subject=name)
    return number


def flag(name: str, value: Any) -> bool:
    """``value`` as a bool; strings and numbers are refused."""
    if value is True or value is False or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise InvalidError(f"{name} must be True or False, not {value!r} ({type(value).__name__})", subject=name)


def choice(name: str, value: Any, choices: tuple[Word, ...]) -> Word:
    """``value``, when it is one of the words."""
    if isinstance(value, str):
        for word in choices:
            if word == value:
                return word
    near = difflib.get_close_matches(value, choices, 1, 0.5) if isinstance(value, str) else []
    words = ", ".join(repr(c) for c in choices)
    hint = f"did you mean {near[0]!r}?" if near else ""
    raise InvalidError(f"{name} is {value!r}; it must be one of {words}", subject=name, hint=hint)


def seconds(value: Any, name: str = "timeout") -> float:
    """A timeout above 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not number > 0:
        raise InvalidError(f"{name} is {value!r}; it must be a number of seconds above 0", subject=name)
    return min(number, 1e8)  # poll() takes no infinity


def job_name(value: Any) -> str:
    """A name the daemon accepts."""
    if not isinstance(value, str) or not value or len(value) > 256 or not value.isprintable():
        raise InvalidError(f"job is {value!r}; it must be a name of 1 to 256 printable characters", subject="job")
    return value


def check_fields(fields: Iterable[str] | None, return_index: bool) -> tuple[str, ...]:
    """The fields of a batch, in order."""
    if fields is None:
        names: tuple[str, ...] = ("image", "label")
    elif isinstance(fields, str):
        raise InvalidError(f"fields is the string {fields!r}", subject="fields", hint=f"write fields=({fields!r},)")
    else:
        names = tuple(choice("fields", f, FIELDS) for f in fields)
        if not names or len(set(names)) != len(names):
            raise InvalidError(f"fields is {names!r}; it must name at least one field, each once", subject="fields")
    return (*names, "index") if return_index and "index" not in names else names


_PACKED = (
    *("wds", "mds", "cifar10", "cifar100", "idx", "npy", "npz", "tokens", "jsonl", "csv", "text"),
    *("parquet", "hf", "lmdb", "tfrecord", "fasta", "imagefiles", "beton"),
)


def in_utf8(path: str) -> bool:
    """Whether a path is UTF-8, and not other bytes in the disguise that Python has for them."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def absolute(uri: str) -> str:
    """Makes the paths of a uri absolute: the daemon has another working directory."""
    made = _absolute(uri)
    if not in_utf8(made):
        shown = made.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise InvalidError(
            f"the path of dataset {shown} is not UTF-8, and the daemon names datasets in UTF-8 alone",
            subject="dataset",
            hint="make a link to it whose name is, with `ln -s`, and give that; the names of files in it may be any",
        )
    return made


def _absolute(uri: str) -> str:
    scheme, colon, rest = uri.partition(":")
    if scheme in _PACKED:
        path, mark, arguments = rest.partition("?")
        parts = [p if not p or "://" in p else os.path.abspath(os.path.expanduser(p)) for p in path.split("::")]
        return f"{scheme}:{'::'.join(parts)}{mark}{arguments}"
    if not colon and (uri.startswith(("/", "./", "../", "~")) or os.path.isdir(uri)):
        raise InvalidError(
            f"{uri!r} does not say what kind of dataset it is", subject=uri, hint=f'write "imagefolder:{uri}"'
        )
    inner, url, _ = rest.partition("://")
    if url and "/" not in inner:  # a scheme, as in imagefolder:s3://bucket, which the daemon refuses with a hint
        return uri
    if scheme == "imagefolder" and rest and not rest.startswith("//"):
        return f"{scheme}:{os.path.abspath(os.path.expanduser(rest))}"
    return uri


_ORDERS = ("fixed", "stratified", "strict", "epoch")
# the daemon has the limits of tiles and blocks
_COUNTED = re.compile(r"stratified\([0-9]{1,9}\)|blocks\(.{0,80}\)")


def order_name(value: Any, shuffle: bool) -> str:
    """The name of an order; None is the default one, and the file of a replay becomes absolute."""
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith("replay:") and len(value) > 7:
        value = "replay:" + os.path.abspath(os.path.expanduser(value[7:]))
    elif value in ("blocks", "blocks()"):
        raise InvalidError(
            f"order={value!r} does not say how many blocks are mixed",
            subject="order",
            hint='write "blocks(16)" to mix 16 of them',
        )
    elif not (isinstance(value, str) and _COUNTED.fullmatch(value)):
        choice("order", value, (*_ORDERS, "blocks(W)"))
    if not shuffle:
        raise InvalidError(
            f"order={value!r} needs shuffle=True",
            subject="order",
            hint="without shuffle samples come in the dataset's order",
        )
    return str(value)


def subset_text(value: Any) -> str:
    """A subset expression; None is every sample."""
    if value is None or isinstance(value, str):
        return value or ""
    raise InvalidError(
        f"subset must be an expression such as 'label < 600', not {value!r} ({type(value).__name__})", subject="subset"
    )
