"""Steps in Python: what ``@larder.transform`` makes, and how a step is told from others."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, overload

import numpy as np

from . import _digest
from ._caller import warn
from ._messages import OpMessage
from .errors import InvalidError, NotSharedWarning

_warned: set[str] = set()


class Transform:
    """A step in Python: a function of one item, which gives another item. Made by :func:`larder.transform`.

    ``version``, ``random`` and ``arguments`` are those of the step. A Transform is called like its function.
    """

    def __init__(self, function: Callable[..., Any], version: str, random: bool, arguments: dict[str, Any]) -> None:
        self.function = function
        self.version = version
        self.random = random
        self.arguments = arguments
        self.nonce = ""  # tells a step without a fingerprint from every other
        functools.update_wrapper(self, function, updated=())

    def bind(self, **arguments: Any) -> Transform:
        """The step with keyword arguments; they are part of its fingerprint.

        Raises:
            InvalidError: the function has no such argument.
        """
        parameters = inspect.signature(self.function).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            for name in arguments:
                if name not in parameters:
                    raise InvalidError(
                        f"transform {self.name}: no argument {name!r}", reason="RECIPE_INVALID", subject=self.name,
                        hint="it has " + (", ".join(list(parameters)[1:]) or "none"),
                    )  # fmt: skip
        return Transform(self.function, self.version, self.random, {**self.arguments, **arguments})

    def __call__(self, item: Any, *args: Any, **kw: Any) -> Any:
        return self.function(item, *args, **{**self.arguments, **kw})

    def __repr__(self) -> str:
        more = "".join(f", {k}={v!r}" for k, v in self.arguments.items())
        return f"<larder.transform {self.name} version={self.version!r}{', random=True' * self.random}{more}>"

    @property
    def name(self) -> str:
        """Module and qualified name of the function."""
        f = self.function
        return f"{getattr(f, '__module__', '')}.{getattr(f, '__qualname__', type(f).__qualname__)}"

    def run(self, item: Any, rng: np.random.Generator | None) -> Any:
        """The step on one item; a random one gets ``rng`` where it takes one."""
        if rng is not None and self._takes_rng:
            return self.function(item, **{"rng": rng, **self.arguments})
        return self.function(item, **self.arguments)

    @functools.cached_property
    def _takes_rng(self) -> bool:
        try:
            return "rng" in inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            return False

    def message(self) -> OpMessage:
        """The step as an Op message. One that has no stable fingerprint is told from every other."""
        try:
            source, arguments = _digest.source(self.function), _digest.of(self._state())
        except _digest.Unhashable as e:
            self.nonce = self.nonce or os.urandom(16).hex()
            source, arguments = "", self.nonce
            if self.name not in _warned:
                _warned.add(self.name)
                warn(
                    f"transform {self.name} runs, and is not shared with other jobs: it has no fingerprint, because of "
                    f"{e}; give such values with bind() as numbers, strings or arrays",
                    NotSharedWarning,
                )
        args = {"version": self.version, "random": self.random, "source": source, "args": arguments}
        return {"kind": "python", "name": self.name, "args": args}

    def __reduce__(self) -> Any:
        """A worker that is started by spawn finds the function by its name, which a decorated one gave away."""
        f = self.function
        module, name = str(getattr(f, "__module__", "")), str(getattr(f, "__qualname__", ""))
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, Transform) and found.function is f:
            return _named, (module, name, self.version, self.random, self.arguments, self.nonce)
        return _rebuilt, (f, self.version, self.random, self.arguments, self.nonce)

    def _state(self) -> Any:
        """What the step does besides its source: arguments, and the attributes of an object that is called."""
        f = self.function
        return [self.arguments, None if inspect.isfunction(f) else f]


def _named(module: str, name: str, version: str, random: bool, arguments: dict[str, Any], nonce: str) -> Transform:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return _rebuilt(found.function, version, random, arguments, nonce)


def _rebuilt(f: Callable[..., Any], version: str, random: bool, arguments: dict[str, Any], nonce: str) -> Transform:
    made = Transform(f, version, random, arguments)
    made.nonce = nonce
    return made


@overload
def transform(function: Callable[..., Any], /) -> Transform: ...


@overload
def transform(*, version: int | str = 1, random: bool = False) -> Callable[[Callable[..., Any]], Transform]: ...


def transform(
    function: Callable[..., Any] | None = None, /, *, version: int | str = 1, random: bool = False
) -> Transform | Callable[[Callable[..., Any]], Transform]:
    """Marks a function as a step for ``Loader(dataset, transform=[...])``.

    The function takes an item and returns one. Deterministic steps may be cached behind the item. A random step draws
    from ``rng`` (a ``numpy.random.Generator``, if it has an argument of that name), or from ``random``, NumPy's and
    torch's global generators: all are seeded for (seed, instance, sample, step). Jobs share a step when its qualified
    name, version, arguments and source are equal.

    Args:
        function: the function, when the decorator is used without arguments.
        version: raise it when the step changes in a way that its own source does not show.
        random: True for augmentation: the result is never cached as the item's only form.

    Example:
        >>> @larder.transform(version=2)
        ... def crop(sample, *, length=16000):
        ...     return sample[:length]
        >>> @larder.transform(random=True)
        ... def gain(sample, rng):
        ...     return sample * rng.uniform(0.5, 2.0)
        >>> loader = larder.Loader(dataset, batch_size=32, transform=[crop.bind(length=8000), gain])
    """
    if not isinstance(random, bool):
        raise InvalidError(f"random must be True or False, not {random!r}", subject="random")
    if isinstance(version, bool) or not isinstance(version, (int, str)):
        raise InvalidError(f"version must be a number or a word, not {version!r}", subject="version")

    def make(f: Callable[..., Any]) -> Transform:
        if not callable(f):
            raise InvalidError(f"larder.transform marks functions, not {f!r}", subject="transform")
        return Transform(f, str(version), random, {})

    return make if function is None else make(function)


def steps(transform: Any) -> list[Transform]:
    """The steps of a ``transform`` argument, flattened; a callable without the mark is a random step.

    Raises:
        InvalidError: one of them is no function of an item.
    """
    if transform is None:
        return []
    if isinstance(transform, (list, tuple)):
        return [s for t in transform for s in steps(t)]
    if isinstance(transform, Transform):
        return [transform]
    if isinstance(transform, type) or not callable(transform):
        kind = f"the class {transform.__name__}" if isinstance(transform, type) else f"{transform!r}"
        raise InvalidError(
            f"transform: {kind} is no step of a dataset in Python", reason="RECIPE_INVALID", subject="transform",
            hint="a step is a function of an item, best marked with @larder.transform, or an op of larder.ops",
        )  # fmt: skip
    return [Transform(transform, "1", True, {})]
