"""The checked arguments of a Loader: those that it sends to the daemon, and those for its own behaviour."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from . import _checks, _daemon, _mix, _ranks, _torch, ops
from ._messages import JobSpec
from .errors import InvalidError

Output = Literal["numpy", "torch"]
Field = Literal["image", "label", "index"]
Even = Literal["drop", "none"]
Share = Literal["none", "augmented"]
OnError = Literal["raise", "skip", "substitute"]
OnDaemonLoss = Literal["wait", "raise"]
_OUTPUTS: tuple[Output, ...] = ("numpy", "torch")
_U32_MAX = 2**32 - 1


class Keywords(TypedDict, total=False):
    """The keyword arguments of a Loader besides ``output``, for type checkers; see Loader for what they mean."""

    batch_size: int | None
    shuffle: bool
    seed: int
    subset: str | None
    transform: Any
    job: str | None
    order: str | None
    drop_last: bool
    even: Even | None
    rank: int | None
    world_size: int | None
    fields: Iterable[str] | None
    return_index: bool
    share: Share
    on_error: OnError
    prefetch: int
    epochs: int | None
    skip_empty: bool
    endpoint: str | os.PathLike[str] | None
    timeout: float
    on_daemon_loss: OnDaemonLoss
    replace: bool


@dataclass(frozen=True)
class Settings:
    """The checked arguments of one Loader. They never change."""

    name: str  # of the job
    place: _ranks.Place
    output: Output
    fields: tuple[str, ...]
    endpoint: str | None
    known_stop: str  # the `larder stop` that this Loader was made after
    outlives_daemon: bool  # on_daemon_loss="wait"
    replace: bool
    batch_size: int | None  # that a job which is registered already must have


@dataclass(frozen=True)
class Arguments:
    """The arguments as the script gave them, with their defaults."""

    uri: Any
    batch_size: Any = None
    shuffle: Any = False
    seed: Any = 0
    subset: Any = None
    transform: Any = None
    job: Any = None
    order: Any = None
    drop_last: Any = False
    even: Any = None
    rank: Any = None
    world_size: Any = None
    output: Any = "numpy"
    fields: Any = None
    return_index: Any = False
    share: Any = "none"
    on_error: Any = "raise"
    prefetch: Any = 2
    epochs: Any = None
    skip_empty: Any = False
    endpoint: Any = None
    timeout: Any = 60.0
    on_daemon_loss: Any = "wait"
    replace: Any = False

    def checked(self) -> tuple[Settings, JobSpec | None, float]:
        """The settings, the description of the job (None: it is registered already), and the timeout in seconds.

        Raises:
            InvalidError: an argument cannot work.
            TypeError: ``batch_size`` is missing.
        """
        if not isinstance(self.uri, str):
            raise InvalidError(
                f"uri must be a string, not {self.uri!r} ({type(self.uri).__name__})",
                subject="uri",
                hint='write "imagefolder:/path/to/folder"',
            )
        output: Output = _checks.choice("output", self.output, _OUTPUTS)
        fields = _checks.check_fields(self.fields, bool(self.return_index))
        endpoint = None if self.endpoint is None else os.fspath(self.endpoint)
        timeout = _checks.seconds(self.timeout)
        known_stop = _daemon.known_stop(endpoint)
        outlives = _checks.choice("on_daemon_loss", self.on_daemon_loss, ("wait", "raise")) == "wait"
        replace = _checks.flag("replace", self.replace)
        if output == "torch":
            _torch.module()
        place = self._place()
        name, size, spec = self._registered() if self.uri.startswith("job:") else self._described(place)
        if spec is not None:
            _mix.require_fields(spec.get("transform") or [], fields)
        return Settings(name, place, output, fields, endpoint, known_stop, outlives, replace, size), spec, timeout

    def _place(self) -> _ranks.Place:
        rank = None if self.rank is None else _checks.integer("rank", self.rank, 0, _U32_MAX)
        size = None if self.world_size is None else _checks.integer("world_size", self.world_size, 1, _U32_MAX)
        return _ranks.find(rank, size)

    def _registered(self) -> tuple[str, int | None, None]:
        """The name of a job that is registered already, and the batch size it must have."""
        wrong = [n for n in _DESCRIBING if self._given(n)]
        if wrong:
            raise InvalidError(
                f"{self.uri}: the job was registered with all that describes it, "
                f"so {', '.join(wrong)} cannot be given here",
                subject=self.uri,
                hint="leave them out, or change the file given to `larder jobs register`",
            )
        size = None if self.batch_size is None else _checks.integer("batch_size", self.batch_size, 1, 65536)
        return self.uri[4:], size, None

    def _given(self, name: str) -> bool:
        value, default = getattr(self, name), _DEFAULTS[name]
        return value is not default if default is None or isinstance(default, bool) else bool(value != default)

    def _described(self, place: _ranks.Place) -> tuple[str, None, JobSpec]:
        """The name of a job and its description."""
        if self.batch_size is None:
            raise TypeError("Loader() missing 1 required keyword-only argument: 'batch_size'")
        uri = _checks.absolute(self.uri)
        name = self.job if self.job is not None else _ranks.default_name(uri, place.world_size, place.within)
        return name, None, job_spec(_checks.job_name(name), uri, place, self)


_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Arguments)}
NAMES = frozenset(_DEFAULTS)
# The arguments that describe a job, in the order of messages.
_DESCRIBING = (
    *("shuffle", "seed", "subset", "transform", "job", "order", "drop_last", "even"),
    *("share", "on_error", "prefetch", "epochs", "skip_empty"),
)


def job_spec(name: str, dataset: str, place: _ranks.Place, a: Arguments) -> JobSpec:
    """The JobSpec message for registering a job."""
    subset = _checks.subset_text(a.subset)
    shuffle = _checks.flag("shuffle", a.shuffle)
    order = _checks.order_name(a.order, shuffle)
    spec: JobSpec = {
        "name": name,
        "dataset": dataset,
        "subset": subset,
        "batchSize": _checks.integer("batch_size", a.batch_size, 1, 65536),
        "shuffle": shuffle,
        "order": order,
        "seed": str(_checks.integer("seed", a.seed, 0, 2**64 - 1)),
        "transform": ops.recipe(a.transform),
        "dropLast": _checks.flag("drop_last", a.drop_last),
        "even": "" if a.even is None else _checks.choice("even", a.even, ("drop", "none")),
        "worldSize": place.world_size,
        "numNodes": place.num_nodes,
        "share": _checks.choice("share", a.share, ("none", "augmented")),
        "onError": _checks.choice("on_error", a.on_error, ("raise", "skip", "substitute")),
        "prefetch": _checks.integer("prefetch", a.prefetch, 1, 64),
        "epochs": 0 if a.epochs is None else _checks.integer("epochs", a.epochs, 1, _U32_MAX),
    }
    if _checks.flag("skip_empty", a.skip_empty):
        spec["skipEmpty"] = True  # a daemon that does not know the field would refuse it
    size = len(json.dumps(spec))
    if size > 1 << 20:
        raise InvalidError(
            f"the description of the job has {size} bytes, more than 1 MiB",
            subject="subset",
            hint="shorten the subset expression",
        )
    return spec
