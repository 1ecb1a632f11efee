"""What a dataset in Python is: its base, the indices of it that are asked for, its name, version and fingerprint.

``Subset``, ``random_split`` and ``ConcatDataset`` of torch are taken apart, so that two loaders on overlapping parts of
one dataset share its samples. torch itself is never imported here.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _digest
from ._caller import warn
from .errors import InvalidError, NotSharedWarning, OutOfRangeError

_MOST = 2**32 - 2  # samples of a dataset
_names = itertools.count()
_private: dict[int, tuple[weakref.ref[Any] | Any, str]] = {}  # by id of a base without a name: what it is called
_said: set[str] = set()

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """A part of a dataset: the samples ``indices`` of ``base``, in that order; None is every one."""

    base: Any
    indices: Indices | None
    length: int  # of base
    repeats: str = ""  # the samples that the base, which is a part with repeats, has more than once, in words

    @property
    def rows(self) -> int:
        """How many samples the part has."""
        return self.length if self.indices is None else len(self.indices)

    @property
    def ordered(self) -> bool:
        """Whether the part has each sample once, in the order of the base."""
        return self.indices is None or bool(np.all(np.diff(self.indices) > 0))


class Listed:
    """The samples of a part in its own order, as a dataset."""

    def __init__(self, part: Part) -> None:
        assert part.indices is not None
        self.base, self.indices = part.base, part.indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return fetch(self.base, int(self.indices[index]))


class Looked:
    """Some samples of a dataset that the daemon reads, for its steps in Python to be tried on. Their numbers here are
    not those in the dataset."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.items: list[Any] = []

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return copy.deepcopy(self.items[index])  # a step may change what it is given


@dataclass(frozen=True)
class Identity:
    """The name under which the daemon knows a dataset."""

    name: str
    version: str
    private: bool


def understand(dataset: Any) -> Part:
    """Takes a map-style dataset apart.

    Raises:
        TypeError: it is an IterableDataset, or has no ``__len__`` or no ``__getitem__``.
        InvalidError: it has no samples, too many, or indices that it does not have.
    """
    require_map_style(dataset)
    part = _unwrap(dataset)
    if part.rows == 0:
        raise InvalidError(
            f"{describe(dataset)} has no samples", reason="DATASET_EMPTY", subject="dataset",
            hint="len(dataset) is 0",
        )  # fmt: skip
    if part.length > _MOST:
        raise InvalidError(f"{describe(dataset)} has {part.length} samples, more than {_MOST}", subject="dataset")
    if part.indices is not None:
        found, counts = np.unique(part.indices, return_counts=True)
        if len(found) != len(part.indices):
            # An epoch gives each sample once: parts that repeat some are datasets of their own.
            return Part(dataset, None, len(dataset), _repeated(found[counts > 1]))
    return part


def _repeated(samples: Indices) -> str:
    """Samples that a part has more than once, in words."""
    more = f" and {len(samples) - 5} more" if len(samples) > 5 else ""
    return f"{'sample' if len(samples) == 1 else 'samples'} {', '.join(str(int(i)) for i in samples[:5])}{more}"


def require_map_style(dataset: Any) -> None:
    """Raises TypeError unless samples can be asked for by number."""
    if isinstance(dataset, str):
        raise TypeError(
            f"{dataset!r} is text, not a map-style dataset; what the daemon reads by a uri is "
            "larder.Loader(uri, batch_size=..., output='torch'), and its as_dataset() for scripts that keep torch's "
            "class"
        )
    what = describe(dataset)
    data = sys.modules.get("torch.utils.data")
    iterable = data is not None and isinstance(dataset, data.IterableDataset)
    if iterable or (hasattr(dataset, "__iter__") and not _indexed(dataset)):
        raise TypeError(
            f"{what} is iterated from its beginning to its end; larder chooses which sample comes next, so it needs a "
            "map-style dataset, with __len__ and __getitem__(index). Write the samples down (a list, np.memmap, a "
            "folder, datasets.Dataset), or keep torch.utils.data.DataLoader for this one"
        )
    if isinstance(dataset, (str, bytes, dict, set, frozenset)) or isinstance(dataset, type) or not _indexed(dataset):
        missing = "" if isinstance(dataset, type) else " and ".join(n for n in _NEEDS if not hasattr(dataset, n))
        why = f"it has no {missing}" if missing else "its samples have no numbers"
        raise TypeError(f"{what} is no map-style dataset: {why}; write a class with __len__ and __getitem__(index)")
    try:
        len(dataset)
    except TypeError as e:
        raise TypeError(f"{what} has no length: {e}; larder must know which samples there are") from None


_NEEDS = ("__len__", "__getitem__")


def _indexed(dataset: Any) -> bool:
    return hasattr(dataset, "__len__") and (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__"))


def describe(dataset: Any) -> str:
    """The dataset in words, by its type."""
    if isinstance(dataset, Listed):
        return describe(dataset.base)
    if isinstance(dataset, Looked):
        return f"dataset {dataset.uri}"
    t = dataset if isinstance(dataset, type) else type(dataset)
    prefix = "the class " if isinstance(dataset, type) else "dataset "
    return f"{prefix}{t.__module__}.{t.__qualname__}" if t.__module__ != "builtins" else f"{prefix}{t.__qualname__}"


def _unwrap(dataset: Any) -> Part:
    kind = kind_of(dataset)
    if kind == "Subset":
        part = _unwrap(dataset.dataset)
        picked = chosen(dataset, dataset.indices, part.rows)
        return Part(part.base, picked if part.indices is None else part.indices[picked], part.length)
    if kind == "ConcatDataset":
        return _concat(dataset)
    return Part(dataset, None, len(dataset))


_GIVE = ("__getitem__", "__getitems__", "__len__")  # how a class gives its samples


def kind_of(dataset: Any) -> str:
    """Which dataset of torch this is, if its samples are the plain ones of that class."""
    data = sys.modules.get("torch.utils.data")
    if data is not None:
        for cls in (data.Subset, data.ConcatDataset):
            if isinstance(dataset, cls) and all(getattr(type(dataset), n, 0) is getattr(cls, n, 0) for n in _GIVE):
                return str(cls.__name__)
    return ""


def chosen(dataset: Any, indices: Any, rows: int) -> Indices:
    """The indices of a Subset, of a dataset with so many samples; those below 0 count from its end.

    Raises:
        OutOfRangeError: the dataset does not have one of them.
        InvalidError: they are no numbers.
    """
    try:
        found = np.asarray(indices if hasattr(indices, "__array__") else list(indices))
        if found.size and found.dtype.kind not in "iu":
            raise TypeError(f"they are of type {found.dtype}")
        found = found.astype(np.int64).reshape(-1)
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidError(f"{describe(dataset)}: its indices are no numbers of samples: {e}", subject="dataset") from e
    low = int(found.min()) if len(found) else 0
    high = int(found.max()) if len(found) else -1
    if low < -rows or high >= rows:
        raise OutOfRangeError(
            f"a Subset has index {high if high >= rows else low}; its dataset has {rows} samples", subject="dataset",
            hint="indices go from 0 to len(dataset) - 1",
        )  # fmt: skip
    return np.where(found < 0, found + rows, found) if low < 0 else found


def _concat(dataset: Any) -> Part:
    """Parts of one dataset become one part of it; parts of several become a part of their bases in a row."""
    parts = [_unwrap(d) for d in dataset.datasets]
    first = parts[0]
    if all(p.base is first.base for p in parts):
        return Part(first.base, np.concatenate([_all(p) for p in parts]), first.length)
    if all(p.indices is None for p in parts):
        return Part(dataset, None, len(dataset))
    bases: list[Any] = []
    for p in parts:
        if not any(p.base is b for b in bases):
            bases.append(p.base)
    whole = type(dataset)(bases)
    starts = {id(b): at for b, at in zip(bases, [0, *whole.cumulative_sizes], strict=False)}
    return Part(whole, np.concatenate([_all(p) + starts[id(p.base)] for p in parts]), len(whole))


def _all(part: Part) -> Indices:
    return np.arange(part.length, dtype=np.int64) if part.indices is None else part.indices


def in_order(part: Part) -> tuple[Part, str]:
    """The part as it is given without shuffling, and what its name gets behind it.

    The daemon's order is that of the base. A part in another order, as of ``random_split``, becomes a dataset of its
    own, which is shared with jobs that give the same samples in the same order.
    """
    if part.indices is None or part.ordered:
        return part, ""
    mark = hashlib.blake2b(part.indices.tobytes(), digest_size=4).hexdigest()
    return Part(Listed(part), None, part.rows), f"~{mark}"


def identity(base: Any, name: str | None, version: int | str | None, mark: str = "", alone: bool = False) -> Identity:
    """The name of a dataset, with a mark behind it. Without one it is this process's own, which is said once.

    ``alone``: nothing of it is shared, so without a name each loader has one of its own, and only its own workers, with
    the dataset as it was when they started, make its items.

    Raises:
        InvalidError: a name or version that cannot be one.
    """
    if name is None:
        if version is not None:
            raise InvalidError(f"version={version!r} needs name=", subject="version")
        return Identity(_own(base, alone), "1", True)
    if not isinstance(name, str) or not 0 < len(name) <= 128 or not name.isprintable() or set(name) & set("@/ :"):
        raise InvalidError(
            f"name is {name!r}; it must have 1 to 128 printable characters, none of them a space, '@', ':' or '/'",
            subject="name",
        )
    text = "1" if version is None else str(version)
    bad = isinstance(version, bool) or not isinstance(version, (str, int, type(None)))
    if bad or not 0 < len(text) <= 64 or not text.isprintable() or set(text) & set("@/ :"):
        raise InvalidError(f"version is {version!r}; it must be a number or a word of 1 to 64 letters", subject=name)
    return Identity(name + mark, text, False)


def _own(base: Any, alone: bool) -> str:
    known = None if alone else _private.get(id(base))
    if known is not None and (known[0]() if isinstance(known[0], weakref.ref) else known[0]) is base:
        return known[1]
    name = f"{os.getpid()}-{os.urandom(4).hex()}/{next(_names)}"
    if not alone:
        try:
            _private[id(base)] = (weakref.ref(base), name)
        except TypeError:
            _private[id(base)] = (base, name)  # lists have no weak references: it stays as long as the process
    if type(base).__qualname__ not in _said:
        _said.add(type(base).__qualname__)
        warn(
            f"{describe(base)} has no name, so only loaders of this process share its samples; "
            "name= (and version=) make it known to other processes",
            NotSharedWarning,
        )
    return name


def pick(length: int, rows: Indices | None, count: int) -> list[int]:
    """The items that are looked at before a dataset is used: the first, the last, and some between, always the same."""
    n = length if rows is None else len(rows)
    count = min(count, n)
    at = sorted({k * (n - 1) // max(1, count - 1) for k in range(count)})
    return at if rows is None else [int(rows[k]) for k in at]


def fetch(base: Any, index: int) -> Any:
    """The item of an index."""
    if hasattr(base, "__getitem__"):
        return base[index]
    return base.__getitems__([index])[0]


def code(base: Any) -> str:
    """The digest of a dataset's code: the source of its class; a Hugging Face dataset has a fingerprint of its own."""
    own = _hugging_face(base)
    if own:
        return own
    if kind_of(base) == "ConcatDataset":
        return "+".join(code(d) for d in base.datasets)
    if isinstance(base, Listed):
        return code(base.base)
    return _digest.type_source(type(base))


def _hugging_face(base: Any) -> str:
    """The fingerprint of a Hugging Face dataset; empty for any other."""
    own = getattr(base, "_fingerprint", None)
    return own if isinstance(own, str) and type(base).__module__.partition(".")[0] == "datasets" else ""


def hint(part: Part, message: str) -> str:
    """What to do where a dataset is another one than the daemon knows by its name; empty: what the daemon says."""
    if part.repeats:
        return (
            f"this part has {part.repeats} more than once, so it is a dataset of its own and shares nothing with the "
            "one that it is a part of: give it another name=, or the whole dataset and a sampler= that repeats them"
        )
    base = part.base.base if isinstance(part.base, Listed) else part.base
    bases = base.datasets if kind_of(base) == "ConcatDataset" else [base]
    if "code is" not in message or not any(_hugging_face(b) for b in bases):
        return ""
    return (
        "of a datasets.Dataset the code is its _fingerprint; if both scripts make the same dataset, say "
        "shuffle(seed=...), keep open files and connections out of the functions of map, filter and with_transform "
        "(datasets warns of one that it cannot hash), or give map(new_fingerprint=...); else another version= or name="
    )


def packed(indices: Sequence[int] | Indices) -> bytes:
    """A set of samples as the daemon reads it: ascending numbers of 32 bits, little-endian."""
    return np.sort(np.asarray(indices)).astype("<u4").tobytes()
