"""Saved places of loaders whose sampler is the script's: what ``state_dict()`` holds of one, and how it is put back.

A place is a number of batches of an epoch, and what gives that epoch again: what the sampler was before its pass began.
That is its own ``state_dict()`` where it has one, and the states of the random generators that it, and the samplers in
it, hold as attributes. Of a sampler that has neither it is the random state of the process, which decides a pass that
draws all it needs when it begins, as torch's samplers do.

What else a sampler's order comes from (a number that it raises itself, a generator in an object that it holds) is in no
state. So a place has a checksum of the picks that were handed out, which the pass that is begun again must give.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import random
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _seeds
from .errors import InvalidError

_KEY = "larder_stream"  # in a state_dict
_MOST = 1 << 20  # bytes of one random state
_HINT = "pass what state_dict() of such a loader returned"
_PLAIN = (list, tuple, range, np.ndarray)  # what gives the same in every pass


@dataclass(frozen=True, eq=False)
class Before:
    """What a sampler was before a pass began. The values are states as their owners return them."""

    samplers: dict[str, Any]  # what state_dict() returned, by the sampler's depth
    random: dict[str, tuple[str, Any]]  # kind and state of each generator, by the sampler's depth and the attribute

    def saved(self) -> dict[str, Any]:
        """The part of a state_dict; JSON-able where the states of samplers are."""
        found: dict[str, Any] = {}
        if self.samplers:
            found["sampler"] = self.samplers
        if self.random:
            found["random"] = {k: [kind, _packed(_plain(kind, state))] for k, (kind, state) in self.random.items()}
        return found


@dataclass(frozen=True, eq=False)
class Place:
    """A place that was loaded, and whose pass has not begun."""

    epoch: int
    step: int  # batches of the epoch that were handed out before
    before: Before
    state: dict[str, Any]  # that was loaded
    picks: int | None = None  # checksum of the picks of those batches; None: of a state that has none

    def require(self, picks: int) -> None:
        """Raises InvalidError if a pass gave other picks up to the place than were handed out."""
        if self.picks is not None and picks != self.picks:
            raise self.another_pass()

    def another_pass(self) -> InvalidError:
        """What is wrong where the sampler gives other picks than it did."""
        return InvalidError(
            "the sampler gave other samples than before the state was saved: its order comes from something that "
            f"is not in the state (epoch {self.epoch}, {self.step} batches)", subject="state_dict",
            hint="make the sampler what it was when that epoch began (set_epoch, its generator's seed) and iterate "
            "again, or give it state_dict() and load_state_dict()",
        )  # fmt: skip


def state(epoch: int, step: int, size: int, before: Before, picks: int = 0) -> dict[str, Any]:
    """A saved place: so many batches of an epoch were handed out.

    ``size``: samples of a batch; 0 = the sampler's. ``picks``: checksum of what was handed out.
    """
    return {_KEY: 1, "epoch": epoch, "step": step, "size": size, "picks": picks, **before.saved()}


def is_place(saved: Any) -> bool:
    """Whether a state was saved by a loader with a sampler."""
    return isinstance(saved, Mapping) and _KEY in saved


def place(saved: Any, size: int | None = None) -> Place:
    """The place of a state. ``size``: samples of a batch of the loader, 0 = its sampler gives batches.

    Raises:
        InvalidError: it is none, or one of a loader with an order of larder's, or of other batches.
    """
    given = saved if isinstance(saved, Mapping) else {}
    found = [int(x) for k in ("epoch", "step") if type(x := given.get(k)) is int and 0 <= x < 2**32 - 1]
    picks = given.get("picks")
    if given.get(_KEY) != 1 or len(found) != 2 or not (picks is None or type(picks) is int):
        why = "the state is not one of a loader with a sampler of its own"
        raise InvalidError(why, subject="state_dict", hint=_HINT)
    if size is not None and given.get("size") != size:
        raise InvalidError(
            f"the state was saved with batches of {given.get('size') or 'a batch_sampler'}, this loader has those of "
            f"{size or 'a batch_sampler'}: it counts batches", subject="state_dict",
            hint="use the batch size of then",
        )  # fmt: skip
    return Place(found[0], found[1], _read(given), dict(given), picks)


def _read(given: Mapping[str, Any]) -> Before:
    samplers, generators = given.get("sampler", {}), given.get("random", {})
    try:
        unpacked = {str(k): (str(kind), _unpacked(text)) for k, (kind, text) in generators.items()}
        return Before(dict(samplers), {k: (kind, _state_of(kind, x)) for k, (kind, x) in unpacked.items()})
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, zlib.error) as e:
        raise InvalidError(
            f"the state of a sampler cannot be read: {e}", subject="state_dict", hint=_HINT
        ) from e  # fmt: skip


# ---- what a sampler is before a pass


def taken(indices: Any) -> Before:
    """What a sampler is now, between two passes."""
    chain = _chain(indices)
    samplers = {str(n): copy.deepcopy(x.state_dict()) for n, x in enumerate(chain) if _keeps(x)}
    held = {k: (kind, _get(kind, g)) for k, (kind, g) in _generators(chain).items()}
    last = len(chain) - 1
    of_its_own = str(last) in samplers or any(k.startswith(f"{last}.") for k in held)
    if not of_its_own and not isinstance(chain[-1], _PLAIN):
        held |= {k: (kind, _get(kind, g)) for k, (kind, g) in _of_process().items()}
    return Before(samplers, held)


@contextlib.contextmanager
def put_back(indices: Any, before: Before) -> Iterator[None]:
    """Makes a sampler what it was, for a pass that begins inside; the process's own random state is the same after it.

    Raises:
        InvalidError: the sampler has not what the state has of it.
    """
    chain = _chain(indices)
    for k, state in before.samplers.items():
        x: Any = chain[int(k)] if k.isdecimal() and int(k) < len(chain) else None
        if not _keeps(x):
            raise InvalidError(
                "the state has one of a sampler with state_dict() and load_state_dict(), and this loader's sampler has "
                "not both", subject="state_dict", hint="give this loader the sampler that it was saved with",
            )  # fmt: skip
        x.load_state_dict(copy.deepcopy(state))
    generators = {**_generators(chain), **_of_process()}
    with _seeds.Kept():
        for k, (kind, state) in before.random.items():
            has, g = generators.get(k, ("", None))
            try:
                if has != kind:
                    raise ValueError(f"this loader's sampler has {f'one of {has}' if has else 'none'} there")
                _set(kind, g, state)
            except (TypeError, ValueError, KeyError, IndexError, RuntimeError, OverflowError) as e:
                raise InvalidError(
                    f"the state has a random generator of {kind} at {k}, which cannot be put back: {e}",
                    subject="state_dict", hint="give this loader the sampler that it was saved with",
                ) from e  # fmt: skip
        yield


def _chain(indices: Any) -> list[Any]:
    """A sampler and the samplers in it, the outermost first."""
    chain: list[Any] = []
    while indices is not None and len(chain) < 8 and all(x is not indices for x in chain):
        chain.append(indices)
        indices = getattr(indices, "sampler", None)
    return chain


def _keeps(x: Any) -> bool:
    return callable(getattr(x, "state_dict", None)) and callable(getattr(x, "load_state_dict", None))


def _generators(chain: list[Any]) -> dict[str, tuple[str, Any]]:
    """The random generators that samplers hold: kind and generator, by depth and attribute."""
    found: dict[str, tuple[str, Any]] = {}
    for n, x in enumerate(chain):
        for name, value in getattr(x, "__dict__", {}).items():
            kind = _kind(value)
            if kind:
                found[f"{n}.{name}"] = (kind, value)
    return found


def _of_process() -> dict[str, tuple[str, Any]]:
    """The generators that a process has without making them."""
    torch = sys.modules.get("torch")
    of_python: Any = getattr(random.seed, "__self__", None)
    of_numpy: Any = getattr(np.random.get_state, "__self__", None)
    found: dict[str, tuple[str, Any]] = {"random": ("random", of_python), "numpy": ("numpy", of_numpy)}
    return found if torch is None else {**found, "torch": ("torch", torch.default_generator)}


# ---- generators of three kinds


def _kind(g: Any) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(g, torch.Generator):
        return "torch"
    if isinstance(g, (np.random.Generator, np.random.RandomState)):
        return "numpy"
    return "random" if isinstance(g, random.Random) and not isinstance(g, random.SystemRandom) else ""


def _get(kind: str, g: Any) -> Any:
    if kind == "torch":
        return g.get_state()
    if kind == "numpy":
        return g.bit_generator.state if isinstance(g, np.random.Generator) else g.get_state(legacy=False)
    return g.getstate()


def _set(kind: str, g: Any, state: Any) -> None:
    if kind == "torch":
        g.set_state(state)
    elif kind == "random":
        g.setstate(state)
    elif isinstance(g, np.random.Generator):
        g.bit_generator.state = state
    else:
        g.set_state(state)


def _plain(kind: str, state: Any) -> Any:
    """A state as JSON takes it."""
    if kind == "torch":
        return base64.b64encode(state.numpy().tobytes()).decode()
    if isinstance(state, np.ndarray):
        return {"dtype": str(state.dtype), "values": state.tolist()}
    if isinstance(state, Mapping):
        return {k: _plain(kind, x) for k, x in state.items()}
    return state


def _state_of(kind: str, x: Any) -> Any:
    """The state that ``_plain`` was given."""
    if kind == "torch":
        torch: Any = sys.modules.get("torch")
        if torch is None:
            raise ValueError("torch is not imported")
        return torch.frombuffer(bytearray(base64.b64decode(x, validate=True)), dtype=torch.uint8)
    if kind == "numpy":
        if isinstance(x, Mapping) and set(x) == {"dtype", "values"}:
            return np.array(x["values"], dtype=x["dtype"])
        return {k: _state_of(kind, v) for k, v in x.items()} if isinstance(x, Mapping) else x
    if kind != "random":
        raise ValueError(f"generators of {kind} are not known")
    return tuple(tuple(v) if isinstance(v, list) else v for v in x)


def _packed(x: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(x).encode())).decode()


def _unpacked(text: str) -> Any:
    unpack = zlib.decompressobj()
    found = unpack.decompress(base64.b64decode(text, validate=True), _MOST)
    if not unpack.eof:
        raise ValueError("a random state that is cut off, or too large")
    return json.loads(found)
