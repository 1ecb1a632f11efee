"""The list of a script's dataset beside the daemon's index of the folder: which sample id each position has.

Positions and labels are the script's, bytes and ids the index's. A list in the order of the index is recognised by its
digest; of any other the daemon is asked where its files are.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import _messages, _torch
from ._dataset import Indices
from ._folders import Folder, Native
from ._messages import Empty, InspectDatasetRequest, JobSpec, ResolveKeysRequest
from ._native import NotNative
from ._session import Aside, Session
from .errors import StaleError

_CHUNK = 256  # entries that are looked at together, while each is in the processor's cache
_PAGE = 8 << 20  # bytes of keys in a request
_NOWHERE = 2**32 - 1  # the id of a key that no sample has
_RUNS = 64  # of ids, in an expression
_MOST = 1 << 21  # ids that a job may list; the daemon has the same limit
_LABELS = {int, np.int64}


class Located(NamedTuple):
    """A list, by position."""

    ids: Indices  # of samples of the daemon
    labels: Indices | None  # None: those of the index
    seen: str  # fingerprint of the index


def locate(native: Native, s: Session, deadline: float, aside: Aside | None = None) -> Located:
    """Finds the samples of a dataset in the daemon's index of its folder, which is brought up to date.

    Raises:
        NotNative: the daemon's decoder gives other bits, or the list has what the index has not.
        OutOfRangeError: a Subset has an index that its dataset does not have.
        Error: whatever indexing the folder raises.
    """
    if not (s.call(_messages.GET_STATS, Empty(), deadline).get("stats") or {}).get("parity"):
        raise NotNative("the daemon has the portable decoder")
    rows = native.rows()
    if not len(rows):
        raise NotNative("it has no samples")
    body = InspectDatasetRequest(dataset=native.uri, samples=1, listing=True)
    about = s.call(_messages.INSPECT_DATASET, body, deadline, aside)
    listing = about.get("listing") or {}
    ids: list[Indices] = []
    labels: list[Indices] = []
    plain = True
    for folder in native.folders:
        keys, of = _read(folder)
        digest = hashlib.sha256()
        for part in keys:
            digest.update(part)
        if digest.hexdigest() == listing.get("keys"):
            ids.append(np.arange(len(of)))
            digest.update(of.astype("<i8").tobytes())
            plain = plain and digest.hexdigest() == listing.get("byId")
        else:
            ids.append(_find(native.uri, keys, s, deadline))
            plain = False
        labels.append(of)
    found: Indices = np.concatenate(ids)[rows]
    lost = np.flatnonzero(found == _NOWHERE)
    if len(lost):
        name = _path(native.folders, int(rows[lost[0]]))
        raise NotNative(f"{len(lost)} of its files are not in the folder as the daemon indexes it, the first is {name}")
    seen = str((about.get("dataset") or {}).get("fingerprint", ""))
    return Located(found, None if plain else np.concatenate(labels)[rows], seen)


def confirm(native: Native, s: Session, seen: str, deadline: float) -> None:
    """Looks again, should a job be registered on another version of the index than its ids were found in.

    Raises:
        StaleError: files have other ids now.
    """
    if seen == native.seen:
        return
    try:
        now = locate(native, s, deadline)
        if now.seen == seen and np.array_equal(now.ids, native.ids):
            native.seen = seen
            return
        why = "the daemon numbers its files otherwise now"
    except NotNative as e:
        why = str(e)
    raise StaleError(
        f"{native.uri} has changed since this loader looked at it: {why}", subject=native.uri, hint="make a new Loader"
    )


def _read(folder: Folder) -> tuple[list[bytes], Indices]:
    """The keys of a folder's list, some in each piece, with a zero byte behind each; and the labels."""
    begin = os.fsencode(os.path.join(folder.root, ""))
    keys: list[bytes] = []
    labels = np.empty(len(folder.samples), np.int64)
    for at in range(0, len(folder.samples), _CHUNK):
        part = folder.samples[at : at + _CHUNK]
        if set(map(type, part)) != {tuple} or set(map(len, part)) != {2}:
            raise NotNative("its list of samples has other entries than (path, label)")
        paths, of = [p for p, _ in part], [y for _, y in part]
        if set(map(type, paths)) != {str} or not set(map(type, of)) <= _LABELS:
            raise NotNative("its list of samples has paths that are no strings, or labels that are no integers")
        try:
            labels[at : at + len(of)] = np.fromiter(of, np.int64, len(of))
            keys.append(_keys(paths, begin))
        except (OverflowError, UnicodeEncodeError):
            raise NotNative("its list of samples has labels beyond 64 bits, or paths that no file has") from None
    return keys, labels


def _keys(paths: Sequence[str], begin: bytes) -> bytes:
    text = b"\0" + os.fsencode("\0".join(paths)) + b"\0"
    keys = text.replace(b"\0" + begin, b"\0")
    if text.count(b"\0") != len(paths) + 1 or len(text) - len(keys) != len(paths) * len(begin):
        raise NotNative("its list of samples has files that are not below its root")
    return keys[1:]


def _find(uri: str, keys: list[bytes], s: Session, deadline: float) -> Indices:
    """The ids of keys; _NOWHERE where the index has none."""
    pages: list[list[bytes]] = [[]]
    size = 0
    for part in keys:
        if size + len(part) > _PAGE and pages[-1]:
            pages.append([])
            size = 0
        pages[-1].append(part)
        size += len(part)
    found: list[Indices] = []
    for n, page in enumerate(pages):
        text = base64.b64encode(b"".join(page)).decode()
        body = ResolveKeysRequest(dataset=uri, keys=text, more=n < len(pages) - 1)
        answer = s.call(_messages.RESOLVE_KEYS, body, deadline)
        found.append(np.frombuffer(base64.b64decode(answer.get("ids") or ""), "<u4").astype(np.int64))
    ids = np.concatenate(found)
    if len(ids) != sum(part.count(b"\0") for part in keys):
        raise NotNative("the daemon is older than this client")
    return ids


def _path(folders: list[Folder], row: int) -> str:
    for f in folders:
        if row < len(f.samples):
            return str(f.samples[row][0])
        row -= len(f.samples)
    return ""


# ---- the order


def of_the_daemon(ids: Indices, shuffle: bool) -> bool:
    """Whether an order of the daemon gives a list: it has each sample once, without ``shuffle`` in the order of ids."""
    if bool(np.all(np.diff(ids) > 0)):
        return True
    return shuffle and len(np.unique(ids)) == len(ids)


def subset(ids: Indices) -> JobSpec:
    """The part of a job's description that says which samples it has.

    Raises:
        NotNative: they are too many to be listed.
    """
    ids = np.sort(ids)
    ends = np.flatnonzero(np.diff(ids) != 1)
    if len(ends) < _RUNS:
        first, last = [0, *(ends + 1)], [*ends, len(ids) - 1]
        runs = [f"id in [{ids[a]}, {ids[b] + 1})" for a, b in zip(first, last, strict=True)]
        return {"subset": " or ".join(runs)}
    if len(ids) > _MOST:
        raise NotNative(f"it picks {len(ids)} samples of the folder one by one, and {_MOST} are the most")
    return {"subset": "", "indices": base64.b64encode(ids.astype("<u4").tobytes()).decode()}


class Shuffled:
    """Positions in a random order, another one in each pass: for lists that have a sample more than once."""

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed, self.passes = length, seed, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng([self.seed, self.passes]).permutation(self.length)
        self.passes += 1
        return iter(order.tolist())

    def state_dict(self) -> dict[str, int]:
        """What the next pass depends on."""
        return {"seed": self.seed, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues as the one did of which that was the state."""
        self.seed, self.passes = int(state["seed"]), int(state["passes"])


# ---- batches


@dataclass(frozen=True, eq=False)
class Rows:
    """How batches are made whose labels or numbers are the script's."""

    labels: Indices | None  # by the numbers that come; None: they are right as they come
    places: Indices | None  # positions by the numbers that come; None: the numbers are positions
    given: bool  # the numbers that come are positions, of the stream of the epoch
    index: bool  # a batch has positions, too
    torch: bool
    as_list: bool  # as torch's default_collate makes it

    @property
    def numbered(self) -> bool:
        """Whether numbers must come with the images."""
        return self.labels is not None or self.index

    @property
    def ahead(self) -> bool:
        """Whether a batch can be built before its values are there."""
        return self.labels is None and self.places is None and not self.given

    def make(self, columns: Sequence[Any], rows: int) -> Any:
        """The batch of images, labels and, where they are needed, numbers."""
        image, label = columns[:2]
        at = columns[2] if self.numbered else None
        if self.labels is not None:
            label = self.labels[at]
        batch = [image, label]
        if self.index:
            batch.append(at if self.places is None or at is None else self.places[at])
        if self.torch:
            batch = [_torch.tensors(x) for x in batch]
        return batch if self.as_list else tuple(batch)


def table(ids: Indices, values: Indices) -> Indices:
    """Values by id, of samples that are each there once."""
    out = np.zeros(int(ids.max()) + 1, np.int64)
    out[ids] = values
    return out
