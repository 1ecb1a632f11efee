"""The random state of one step of one sample: a pure function of seed, instance, sample and step.

A worker sets it before every step, so what a step draws depends neither on the worker that runs it nor on what that
worker did before. The key is SHA-256 of ``b"larder.seed.1"`` and of seed (u64), sample (u64), instance (u32) and step
(u32), little-endian. Step 0 makes the item, step i is the i-th transform. Of the 32 bytes of a key, ``random`` takes
bytes 0 to 8 as an integer, NumPy's global state takes 8 to 12 as one, torch takes 24 to 32 without the highest bit, and
``rng`` takes all eight words as the entropy of ``numpy.random.default_rng``.
"""

from __future__ import annotations

import functools
import hashlib
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

# random.seed(n) without its look at what n is: one call of C
_inst: Any = getattr(random.seed, "__self__", None)
_seed: Any = super(random.Random, _inst).seed if type(_inst) is random.Random else None

_PREFIX = b"larder.seed.1"
_PACK = struct.Struct("<QQII")
_WORDS = struct.Struct("<8I")


def key(seed: int, instance: int, sample: int, step: int) -> bytes:
    """The 32 bytes from which every generator of one step is seeded."""
    return hashlib.sha256(_PREFIX + _PACK.pack(seed, sample, instance, step)).digest()


def generator(k: bytes) -> np.random.Generator:
    """The ``rng`` of a random transform."""
    return np.random.default_rng(_WORDS.unpack(k))


def seed_globals(k: bytes) -> None:
    """Seeds ``random``, NumPy's global generator and, where it is imported, torch's generator of the CPU."""
    n = int.from_bytes(k[:8], "little")
    if _seed is None:
        random.seed(n)
    else:
        _seed(n)
        _inst.gauss_next = None
    np.random.seed(int.from_bytes(k[8:12], "little"))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(int.from_bytes(k[24:], "little") & (2**63 - 1))


class Kept:
    """The global random state of the script, kept while steps run in its own process."""

    def __enter__(self) -> None:
        torch = sys.modules.get("torch")
        self._state: Any = (random.getstate(), np.random.get_state(), torch and torch.get_rng_state())

    def __exit__(self, *_exc: object) -> None:
        python, numpy, tensor = self._state
        random.setstate(python)
        np.random.set_state(numpy)
        if tensor is not None:
            sys.modules["torch"].set_rng_state(tensor)


# ---- steps that draw nothing: they need no state of their own, which costs more than a small item


class Still:
    """Sees whether steps drew from the global generators, or looked at their states.

    ``begin`` gives the generators one fixed state; ``moved`` compares. ``watch`` has the functions that read a state
    tell of their calls: what is drawn and put back, and what is seeded from a state, shows in no other way.
    """

    asked = False  # of this process, since begin
    watching = False  # this is a worker process

    def __init__(self) -> None:
        self._key = key(0, 0, 0, 0)
        self._state: Any = None
        self._first: Any = None  # what is drawn first in that state
        self._torch = False

    def begin(self) -> None:
        """Sets the fixed state."""
        if Still.watching:
            torch = sys.modules.get("torch")
            if torch is not None and not hasattr(getattr(torch, "initial_seed", None), "__wrapped__"):
                Still.watch_torch(torch)  # an item has imported it
        seed_globals(self._key)
        if self._state is None or self._torch != ("torch" in sys.modules):
            self._torch = "torch" in sys.modules
            self._state, self._first = _states(), _draw()
            seed_globals(self._key)
        Still.asked = False

    def moved(self) -> bool:
        """Whether something was drawn since then."""
        return Still.asked or self._torch != ("torch" in sys.modules) or _states() != self._state

    def drew(self) -> bool:
        """``moved`` by one draw from each generator, which is quicker, and moves them: ``begin`` comes next."""
        return Still.asked or self._torch != ("torch" in sys.modules) or _draw() != self._first

    @staticmethod
    def watch() -> None:
        """Has what reads the state of a global generator tell of its calls, in a worker process."""
        Still.watching = True
        if not hasattr(random.getstate, "__wrapped__"):
            setattr(random, "getstate", _telling(random.getstate))  # noqa: B010
            setattr(np.random, "get_state", _telling(np.random.get_state))  # noqa: B010
        if "torch" in sys.modules:
            Still.watch_torch(sys.modules["torch"])

    @staticmethod
    def watch_torch(torch: Any) -> None:
        """The same for torch; ``fork_rng`` reads the state too."""
        for name in ("initial_seed", "get_rng_state"):
            call = getattr(torch, name, None)
            if call is not None and not hasattr(call, "__wrapped__"):
                told = _telling(call)
                setattr(torch, name, told)
                setattr(torch.random, name, told)


def _telling(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; it tells of its calls."""

    @functools.wraps(call)
    def telling(*args: Any, **kwargs: Any) -> Any:
        Still.asked = True
        return call(*args, **kwargs)

    return telling


_numpy_state, _python_state = np.random.get_state, random.getstate  # those that do not tell
_numpy_uniform, _python_bits = np.random.random_sample, random.getrandbits
_number: Any = None  # a tensor of one: making one takes longer than the draw


def _draw() -> tuple[Any, ...]:
    """64 bits of each global generator, of NumPy's 53, of torch's 63; by what is quick when no cache holds it."""
    torch = sys.modules.get("torch")
    return _python_bits(64), _numpy_uniform(), None if torch is None else _torch_bits(torch)


def _torch_bits(torch: Any) -> int:
    global _number
    if _number is None:
        with torch.inference_mode(False):  # what is made in that mode cannot be written to outside
            _number = torch.empty((), dtype=torch.int64, device="cpu")
    return int(_number.random_())


def _states() -> tuple[Any, ...]:
    name, words, *rest = _numpy_state()
    torch = sys.modules.get("torch")
    tensor = None if torch is None else torch.default_generator.get_state().numpy().tobytes()
    return _python_state(), name, np.asarray(words).tobytes(), rest, tensor
