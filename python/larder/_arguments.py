"""The checked arguments of a Loader: those that it sends to the daemon, and those for its own behaviour."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict

from . import _builtin, _checks, _crew, _daemon, _dataset, _mix, _plan, _ragged, _ranks, _stream, _torch, ops
from ._folders import Native
from ._messages import JobSpec
from ._plan import Plan
from ._stream import Sampling
from .errors import InvalidError

Output = Literal["numpy", "torch"]
Field = Literal["image", "label", "index"]
Even = Literal["drop", "none"]
Share = Literal["none", "augmented"]
OnError = Literal["raise", "skip", "substitute"]
OnDaemonLoss = Literal["wait", "raise"]
Cache = Literal["items", "none"]
Ragged = Literal["list", "pad", "nested"]
_OUTPUTS: tuple[Output, ...] = ("numpy", "torch")
_U32_MAX = 2**32 - 1


class Keywords(TypedDict, total=False):
    """The keyword arguments of a Loader besides ``output``, for type checkers; see Loader for what they mean."""

    batch_size: int | None
    shuffle: bool
    sampler: Iterable[int] | None
    batch_sampler: Iterable[list[int]] | None
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
    name: str | None
    version: int | str | None
    cache: Cache | None
    num_workers: int
    collate_fn: Callable[[list[Any]], Any] | None
    ragged: Ragged | None
    pad_value: float
    pad_multiple: int
    sample_timeout: float | None
    worker_memory: int | None
    worker_init_fn: Callable[[int], Any] | None
    multiprocessing_context: Any
    persistent_workers: bool
    native: bool


@dataclass(frozen=True)
class Shaping:
    """How batches of records are made, of a dataset that the daemon reads."""

    ragged: _ragged.Ragged | None
    collate: Callable[[list[Any]], Any] | None
    plain: bool
    index: bool
    given: tuple[str, ...]  # the arguments that only records, or only images, have


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
    sampling: Sampling | None = None  # the script says which samples come
    shaping: Shaping | None = None  # of a dataset that is not in Python
    native: Native | None = None  # the dataset in Python that the daemon prepares
    patient: bool = False  # no timeout= was given: the daemon says how long storage that fails is waited for


class Checked(NamedTuple):
    """What arguments mean."""

    settings: Settings
    spec: JobSpec | None  # of the job; None: it is registered already
    timeout: float  # seconds
    plan: Plan | None = None  # of a dataset in Python


@dataclass(frozen=True)
class Arguments:
    """The arguments as the script gave them, with their defaults."""

    dataset: Any
    batch_size: Any = None
    shuffle: Any = False
    sampler: Any = None
    batch_sampler: Any = None
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
    prefetch: Any = None
    epochs: Any = None
    skip_empty: Any = False
    endpoint: Any = None
    timeout: Any = None
    on_daemon_loss: Any = "wait"
    replace: Any = False
    name: Any = None
    version: Any = None
    cache: Any = None
    num_workers: Any = 0
    collate_fn: Any = None
    ragged: Any = None
    pad_value: Any = 0
    pad_multiple: Any = 1
    sample_timeout: Any = None
    worker_memory: Any = None
    worker_init_fn: Any = None
    multiprocessing_context: Any = None
    persistent_workers: Any = True
    native: Any = True
    plain: Any = False  # batches nest as torch's default_collate nests them

    def checked(self) -> Checked:
        """What the arguments mean.

        Raises:
            InvalidError: an argument cannot work.
            TypeError: ``batch_size`` is missing, or the dataset is no map-style one.
        """
        if isinstance(self.dataset, (os.PathLike, bytes)):
            raise InvalidError(
                f"a uri must be a string, not {self.dataset!r} ({type(self.dataset).__name__})",
                subject="dataset",
                hint='write "imagefolder:/path/to/folder"',
            )
        reads = isinstance(self.dataset, str)  # the daemon does
        python = not reads or (not self.dataset.startswith("job:") and _builtin.in_python(self.transform))
        images = isinstance(self.dataset, str) and self.dataset.partition(":")[0] in _IMAGES
        wrong = [n for n in _PYTHON if self._given(n) and (images or n not in RECORDS)]
        if reads and python:
            wrong = [n for n in ("name", "version", "cache") if self._given(n)]
        if wrong and (reads or not python):
            raise InvalidError(
                f"{', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} for datasets in Python, not for "
                f"{self.dataset!r}",
                subject=wrong[0],
                hint="the daemon prepares such a dataset itself, with the transforms of larder.ops",
            )
        output: Output = _checks.choice("output", self.output, _OUTPUTS)
        if python and self.fields is not None:
            hint = "a dataset in Python gives its own"
            if reads:
                hint = "steps in Python get all fields, and give their own"
            raise InvalidError("fields= is for image folders", subject="fields", hint=hint)
        fields = () if python else _checks.check_fields(self.fields, bool(self.return_index))
        endpoint, timeout, known_stop = self.reach()
        outlives = _checks.choice("on_daemon_loss", self.on_daemon_loss, ("wait", "raise")) == "wait"
        replace = _checks.flag("replace", self.replace)
        if output == "torch":
            _torch.module()
        place = self._place()
        sampling: Sampling | None = self.sampler
        plan: Plan | None = None
        name: str
        size: int | None
        spec: JobSpec | None
        if python:
            plan = self._reading_plan(place, output) if reads else self._plan(place, output)
            name, size, spec = self._described(place, plan)
            if sampling is not None and not reads:
                sampling = dataclasses.replace(sampling, rows=plan.part.indices, samples=plan.part.rows)
        elif self.dataset.startswith("job:"):
            name, size, spec = self._registered()
        else:
            name, size, spec = self._described(place, None)
        if spec is not None and plan is None:
            _mix.require_fields(spec.get("transform") or [], fields)
        shaping = None if python else self._shaping(output)
        settings = Settings(
            *(name, place, output, fields, endpoint, known_stop, outlives, replace, size, sampling, shaping),
            patient=self.timeout is None,
        )
        return Checked(settings, spec, timeout, plan)

    def reach(self) -> tuple[str | None, float, str]:
        """The daemon's socket, how many seconds a wait may take, and the `larder stop` that was before."""
        endpoint = None if self.endpoint is None else os.fspath(self.endpoint)
        timeout = _TIMEOUT if self.timeout is None else _checks.seconds(self.timeout)
        return endpoint, timeout, _daemon.known_stop(endpoint)

    def sampled(self) -> Arguments:
        """The arguments with what ``sampler`` and ``batch_sampler`` mean as a Sampling.

        Raises:
            InvalidError: they exclude another argument.
        """
        which = "sampler" if self.sampler is not None else "batch_sampler"
        if self.sampler is None and self.batch_sampler is None:
            return self
        other = ("shuffle", "order", "subset", "even", "batch_sampler" if which == "sampler" else "batch_size")
        wrong = [n for n in (*other, *(() if which == "sampler" else ("drop_last",))) if self._given(n)]
        if self.share == "augmented":
            wrong.append("share")
        if self.on_error == "substitute":
            wrong.append("on_error")
        if wrong:
            raise InvalidError(
                f"{which}= says which samples come, so {', '.join(f'{n}={getattr(self, n)!r:.80}' for n in wrong)} "
                "cannot be given beside it",
                subject=which, hint="leave it out",
            )  # fmt: skip
        if not isinstance(getattr(self, which), Iterable):
            raise InvalidError(f"{which} must be an iterable, not {getattr(self, which)!r:.200}", subject=which)
        if which == "sampler":
            if self.batch_size is None:
                raise TypeError("Loader() missing 1 required keyword-only argument: 'batch_size'")
            size = _checks.integer("batch_size", self.batch_size, 1, 65536)
            sampling = Sampling(self.sampler, False, size, _checks.flag("drop_last", self.drop_last))
        else:
            size, first = _stream.largest(self.batch_sampler)
            sampling = Sampling(self.batch_sampler, True, size, False, first=first)
        return dataclasses.replace(
            self, sampler=sampling, batch_sampler=None, batch_size=sampling.size, drop_last=False
        )

    def _shaping(self, output: Output) -> Shaping:
        """What is to become of samples, should they be records."""
        self._callable("collate_fn")
        return Shaping(
            ragged=_plan.ragged(self.ragged, self.pad_value, self.pad_multiple, output == "torch"),
            collate=self.collate_fn,
            plain=self.plain,
            index=_checks.flag("return_index", self.return_index),
            given=tuple(n for n in (*RECORDS, "fields") if self._given(n)),
        )

    def _callable(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and not callable(value):
            raise InvalidError(f"{name} must be a function, not {value!r}", subject=name)

    def _plan(self, place: _ranks.Place, output: Output) -> Plan:
        """What a dataset in Python asks for, before any of its items was made."""
        part, mark = _dataset.understand(self.dataset), ""
        if not self.shuffle and self.sampler is None:
            part, mark = _dataset.in_order(part)
        if self.name is None and place.world_size > 1:
            raise InvalidError(
                f"a dataset in Python that {place.world_size} ranks share needs a name", subject="name",
                hint="name='...' is how the daemon knows that they have the same samples",
            )  # fmt: skip
        if self.cache is not None:
            _checks.choice("cache", self.cache, ("items", "none"))
        if self.subset is not None:
            raise InvalidError("subset= is for image folders", subject="subset", hint="torch.utils.data.Subset works")
        alone = self.cache != "items" and self.share != "augmented"  # nothing of it is shared
        identity = _dataset.identity(part.base, self.name, self.version, mark, alone=alone)
        return self._making(place, output, part, identity)

    def _reading_plan(self, place: _ranks.Place, output: Output) -> Plan:
        """What a dataset asks for that the daemon reads, with steps in Python."""
        uri = _checks.absolute(self.dataset)
        looked = _dataset.Looked(uri)
        return self._making(place, output, _dataset.Part(looked, None, 0), _dataset.Identity(uri, "", True))

    def _making(self, place: _ranks.Place, output: Output, part: _dataset.Part, identity: _dataset.Identity) -> Plan:
        """What a recipe with steps in Python asks for."""
        self._callable("collate_fn")
        self._callable("worker_init_fn")
        workers = _checks.integer("num_workers", self.num_workers, 0, 1024)
        if workers == 0 and place.world_size > 1:
            raise InvalidError(
                f"num_workers=0 works for one rank, not for {place.world_size}: a rank would wait for items that "
                "another one makes only while it waits, too",
                subject="num_workers", hint="say num_workers=1",
            )  # fmt: skip
        inline = 86400.0 if workers == 0 else 60.0
        limit = inline if self.sample_timeout is None else _checks.seconds(self.sample_timeout, "sample_timeout")
        memory = 0 if self.worker_memory is None else _checks.integer("worker_memory", self.worker_memory, 1, 2**62)
        if memory and workers == 0:
            raise InvalidError(
                "worker_memory limits worker processes, and num_workers=0 makes the items in the script",
                subject="worker_memory", hint="say num_workers=1 or more, or leave worker_memory out",
            )  # fmt: skip
        looked = isinstance(part.base, _dataset.Looked)
        steps, mixing = _builtin.mixing(
            _builtin.steps(_builtin.translated(self.transform) if looked else self.transform)
        )
        if mixing is not None and self.collate_fn is not None:
            raise _mix.beside_collate(type(mixing).__name__)
        return Plan(
            part=part,
            identity=identity,
            steps=steps,
            cache=self.cache or "",
            workers=workers,
            context=_crew.context(self.multiprocessing_context),
            persistent=_checks.flag("persistent_workers", self.persistent_workers),
            init=self.worker_init_fn,
            timeout=limit,
            memory=memory,
            seed=_checks.integer("seed", self.seed, 0, 2**64 - 1),
            ragged=_plan.ragged(self.ragged, self.pad_value, self.pad_multiple, output == "torch"),
            collate=self.collate_fn,
            torch=output == "torch",
            plain=self.plain,
            index=_checks.flag("return_index", self.return_index),
            mixing=mixing,
            reads=identity.name if looked else "",
        )

    def _place(self) -> _ranks.Place:
        rank = None if self.rank is None else _checks.integer("rank", self.rank, 0, _U32_MAX)
        size = None if self.world_size is None else _checks.integer("world_size", self.world_size, 1, _U32_MAX)
        if self.plain and rank is None and size is None and self.even is None:
            return _ranks.find(None, 1)  # as with torch's DataLoader, each process has every sample
        place = _ranks.find(rank, size)
        if self.sampler is not None and place.world_size > 1:  # each process has a stream, and so a job, of its own
            return _ranks.Place(0, 1, source=place.source, within=place.rank)
        return place

    def _registered(self) -> tuple[str, int | None, None]:
        """The name of a job that is registered already, and the batch size it must have."""
        wrong = [n for n in _DESCRIBING if self._given(n)]
        if wrong:
            raise InvalidError(
                f"{self.dataset}: the job was registered with all that describes it, "
                f"so {', '.join(wrong)} cannot be given here",
                subject=self.dataset,
                hint="leave them out, or change the file given to `larder jobs register`",
            )
        size = None if self.batch_size is None else _checks.integer("batch_size", self.batch_size, 1, 65536)
        return self.dataset[4:], size, None

    def _given(self, name: str) -> bool:
        value, default = getattr(self, name), _DEFAULTS[name]
        return value is not default if default is None or isinstance(default, bool) else bool(value != default)

    def _described(self, place: _ranks.Place, plan: Plan | None) -> tuple[str, None, JobSpec]:
        """The name of a job and its description; of a dataset in Python without what its items will show."""
        if self.batch_size is None:
            raise TypeError("Loader() missing 1 required keyword-only argument: 'batch_size'")
        uri = _checks.absolute(self.dataset) if plan is None else plan.uri
        name = self.job if self.job is not None else _ranks.default_name(uri, place.world_size, place.within)
        alone = self.sampler is not None or (self.plain and self.world_size is None)
        if self.job is not None and alone and place.within is not None:
            name = f"{_checks.job_name(name)}/rank{place.within}"
        return name, None, job_spec(_checks.job_name(name), uri, place, self, plan)


_TIMEOUT = 60.0  # seconds that a wait may take without timeout=
_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Arguments)}
NAMES = frozenset(_DEFAULTS)
# The arguments that describe a job, in the order of messages.
_DESCRIBING = (
    *("shuffle", "sampler", "batch_sampler", "seed", "subset", "transform", "job", "order", "drop_last", "even"),
    *("share", "on_error", "prefetch", "epochs", "skip_empty"),
)
# Datasets whose samples are images, whatever their files hold.
_IMAGES = ("imagefolder", "cifar10", "cifar100", "idx")
# Arguments about records.
RECORDS = ("collate_fn", "ragged", "pad_value", "pad_multiple")
# Those that only a dataset in Python has, but for RECORDS.
_PYTHON = (
    *("name", "version", "cache", "num_workers", "collate_fn", "ragged", "pad_value", "pad_multiple"),
    *("sample_timeout", "worker_memory", "worker_init_fn", "multiprocessing_context", "persistent_workers"),
)


def job_spec(name: str, dataset: str, place: _ranks.Place, a: Arguments, plan: Plan | None = None) -> JobSpec:
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
        "order": order if a.sampler is None else "given",
        "seed": str(_checks.integer("seed", a.seed, 0, 2**64 - 1)),
        "transform": ops.recipe(a.transform) if plan is None else [],
        "dropLast": _checks.flag("drop_last", a.drop_last),
        "even": "" if a.even is None else _checks.choice("even", a.even, ("drop", "none")),
        "worldSize": place.world_size,
        "numNodes": place.num_nodes,
        "share": _checks.choice("share", a.share, ("none", "augmented")),
        "onError": _checks.choice("on_error", a.on_error, ("raise", "skip", "substitute")),
        "prefetch": 0 if a.prefetch is None else _checks.integer("prefetch", a.prefetch, 1, 64),
        "epochs": 0 if a.epochs is None else _checks.integer("epochs", a.epochs, 1, _U32_MAX),
    }
    if _checks.flag("skip_empty", a.skip_empty):
        spec["skipEmpty"] = True  # a daemon that does not know the field would refuse it
    if plan is not None:
        indices = plan.indices()
        spec["sampleTimeout"] = f"{plan.timeout:g}s"
        if not plan.reads:
            spec["cache"] = plan.cache
        if not plan.persistent:
            spec["advance"] = "on_request"  # the script may change the dataset between two epochs
        if indices and a.sampler is None:
            spec["indices"] = indices
        return spec
    size = len(json.dumps(spec))
    if size > 1 << 20:
        raise InvalidError(
            f"the description of the job has {size} bytes, more than 1 MiB",
            subject="subset",
            hint="shorten the subset expression",
        )
    return spec
