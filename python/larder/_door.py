"""Who serves a DataLoader: the daemon from its own index ("native"), workers of larder ("workers"), or torch ("torch").

It is decided when the loader is iterated first, and again when the dataset was changed since the epoch before. What the
daemon and the workers cannot serve, and what would gain nothing from them, torch's own machinery serves.
"""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from . import _checks, _dataset, _folders, _make, _passes, _places, _samplers
from ._arguments import Arguments
from ._loader import Loader
from ._native import NotNative
from ._samplers import Order
from ._shared import Shared
from .errors import Error, InvalidError, StaleError

_FOREVER = 1e6  # seconds: torch's timeout=0
_MOST = 64  # batches ahead
# Keyword arguments beside torch's. Those of the first group say how a daemon is spoken to, and ask it for nothing.
_HOW = ("endpoint", "on_daemon_loss", "native", "replace", "skip_empty")
_SHARING = ("name", "version", "cache", "share", "job")  # without a daemon the batches are the same
_MAKING = (
    *("transform", "seed", "order", "epochs", "on_error", "ragged", "pad_value", "pad_multiple", "sample_timeout"),
    *("worker_memory", "even", "return_index", "rank", "world_size"),
)
_MEANT = ("ALREADY_EXISTS", "RANK_HELD", "JOB_ENDED")  # reasons that say that a name of the script is another's
KEYWORDS = (*_HOW, *_SHARING, *_MAKING, "fallback")
_said: set[str] = set()
_served: list[weakref.ref[Served]] = []  # jobs of this process, in the order in which their last epochs began

PROMISE = (
    "torch: torch's own machinery serves this loader, so no other job shares what it reads, and none of the guarantees "
    "G1 to G7 holds"
)


class Made(NamedTuple):
    """What a job was made of."""

    follows: bool  # the sampler itself says which samples come
    order: Order
    rows: int  # of the dataset
    read: list[Any]  # of the samplers whose order larder makes
    calls: tuple[Any, ...]  # what the script may assign between two epochs


class Served:
    """One job of a DataLoader, and what it was made of."""

    def __init__(self, number: int, given: Mapping[str, Any]) -> None:
        self.number = number  # of the job among those of the loader
        self.given = given  # larder's keyword arguments
        self.changing: bool | None = None  # the job is about to be replaced; True: by one that follows the sampler
        self.loader: Loader[Any] = Loader.__new__(Loader)
        self.made: Made | None = None
        self.parked: Mapping[str, Any] | None = None  # the state of a job that gave way to another one
        self.taken_up: Mapping[str, Any] | None = None  # the same of one that has its place again, until its next epoch

    @property
    def shared(self) -> Shared:
        """The state of the job."""
        return self.loader._shared

    @property
    def busy(self) -> bool:
        """Whether an iterator of an epoch that is not over is still held."""
        run, held = self.shared.running, self.shared.iterator
        if run is None or run.done or held is None or held() is None or self.shared.closed:
            return False
        if self.shared.place is not None:  # its epoch was interrupted when it began
            return False
        return not self.shared.delivered(run)

    def register(self, of: Any, make: Callable[[Arguments], Shared], follow: bool = False) -> None:
        """Registers the job, of the DataLoader as it is now; jobs that wait for their next epoch give way to it."""
        self._register(of, make, None if follow else self._order(of))

    def _register(self, of: Any, make: Callable[[Arguments], Shared], order: Order | None) -> None:
        rows = len(of.dataset)
        made = Made(order is None, order or _samplers.followed(of), rows, _samplers.read(of), _calls(of))
        given = _arguments(of, self.given, self.number)
        arguments = (_following if made.follows else _ordered)(of, made.order, given)
        while True:
            try:
                self.loader._shared = make(arguments)
                break
            except InvalidError as e:
                if e.reason != "JOB_LIMIT" or not _park():
                    raise
        self.made = made

    def park(self) -> bool:
        """Gives the job's place to another one, between two of its epochs; whether it could.

        The state has the number of the next epoch and what the order is to keep, so the job continues as one that is
        resumed does. Of a sampler that is followed the number is enough.
        """
        shared, made, run = self.shared, self.made, self.shared.running
        if made is None or shared.closed:
            return False
        if self.taken_up is not None:
            self.parked, self.taken_up = self.taken_up, None
            shared.close()
            return True
        if self.busy or run is None or not run.done:
            return False
        if shared.settings.place.world_size > 1 or shared.loaded is not None or shared.place is not None:
            return False
        self.parked = {} if made.follows else self.loader.state_dict(portable=True)
        shared.close()
        return True

    def unpark(self, of: Any) -> None:
        """Takes a place among the jobs again."""
        made, parked, epoch = self.made, self.parked, self.shared.coming()
        assert made is not None and parked is not None
        self._register(of, self._maker, None if made.follows else made.order)
        if made.follows:
            self.shared.next_epoch = epoch
        else:
            self.loader.load_state_dict(parked)
        self.parked, self.taken_up = None, parked

    @property
    def _maker(self) -> Callable[[Arguments], Shared]:
        """What made the job, and makes one that replaces it."""
        return _make.of_workers if self.shared.settings.native is None else _make.of_folder

    def _order(self, of: Any) -> Order | None:
        even = any(self.given.get(n) is not None for n in ("even", "rank", "world_size"))
        free = self.given.get("order") is None and self.given.get("share") != "augmented"
        if "accelerate" in sys.modules and _samplers.shuffled(of) and free:
            return None  # it makes loaders of the sampler, which are to continue where this one was
        return _samplers.order(of, even)

    def look(self, of: Any) -> None:
        """Follows what the script changed: the dataset, what it assigned, or a sampler that active learning changes.

        Raises:
            NotNative: the daemon would not give any more what the dataset gives.
            InvalidError: the order belongs to several ranks, or to a state that was loaded.
        """
        made, shared = self.made, self.shared
        assert made is not None
        if shared.closed and self.changing is None and self.parked is None:
            shared.require_open()
        sampler = not made.follows and made.read != _samplers.read(of)
        changed = self._changed(of, made)
        if self.changing is None and not (sampler or changed or made.calls != _calls(of)):
            if self.parked is not None:
                self.unpark(of)
            return
        why = ""
        if sampler or changed:
            if shared.settings.place.world_size > 1:
                why = "its order is that of several ranks"
            elif shared.loaded is not None and shared.loaded.left >= 0:
                why = "a state of the order before was loaded"
        if why:
            what = "sampler" if sampler else "dataset"
            raise InvalidError(
                f"the {what} was changed since this loader was made, and {why}", subject=what,
                hint=f"make a new DataLoader when you change a {what}",
            )  # fmt: skip
        self.remake(of, bool(self.changing) or sampler or made.follows)

    def _changed(self, of: Any, made: Made) -> bool:
        """Whether the dataset is another than the one that the job was made of, as far as that shows at once."""
        native = self.shared.settings.native
        if native is not None:
            return not native.still(of.dataset if made.follows else made.order.dataset)
        alone = self.shared.settings.place.world_size == 1 and self.given.get("name") is None
        return alone and len(of.dataset) != made.rows

    def remake(self, of: Any, follow: bool) -> None:
        """Replaces the job from the next epoch on; ``follow``: the sampler itself says which samples come."""
        before = self.shared
        epoch = before.coming()
        make = self._maker
        self.changing, self.parked = follow, None  # until the new job is there, whatever comes between
        before.close()
        self.register(of, make, follow)
        self.shared.next_epoch = epoch
        self.changing = None

    def begin(self, of: Any) -> Iterator[Any]:
        """The batches of the next epoch."""
        self.taken_up = None
        _served[:] = [r for r in _served if r() not in (None, self)] + [weakref.ref(self)]
        epoch = getattr(of.sampler, "epoch", None)
        if isinstance(of.sampler, DistributedSampler) and isinstance(epoch, int):
            self.loader.set_epoch(epoch)
        batches = iter(self.loader)
        native = self.shared.plan is None
        pin = bool(of.pin_memory) and torch.cuda.is_available()
        return Finished(batches, native, pin, of.pin_memory_device) if native or pin else batches


def _park() -> bool:
    """Whether a job of this process, whose last epoch is the longest ago, has given way."""
    return any(x.park() for r in tuple(_served) if (x := r()) is not None)


class Door:
    """Who serves one DataLoader. It does not reference it, so that a forgotten one dies at once."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = dict(given)
        self.phase = "new"  # then native, workers or torch; native may become one of the others; closed is the last
        self.why = ""  # torch serves
        self.jobs: list[Served] = []
        self.last: Served | None = None  # began the last epoch
        self.passage = _passes.Passage()
        fallback = self.given.pop("fallback", None) or os.environ.get("LARDER_FALLBACK") or "torch"
        self.strict = _checks.choice("fallback", fallback, ("torch", "error")) == "error"

    # ---- epochs

    def begin(self, of: Any, torchs: Callable[[], Any]) -> Iterator[Any]:
        """The batches of the next epoch. ``torchs`` makes torch's own iterator."""
        self._require_open()
        served = None if self.phase == "torch" or self._empty(of) else self._free(of)
        if served is None:
            it: Iterator[Any] = self.passage.begin(of, torchs)
            return it
        self.last = served
        return served.begin(of)

    def _empty(self, of: Any) -> bool:
        """Whether the epoch has no batch, of which torch knows how to give none."""
        if self.strict or self.phase != "new" or isinstance(of.dataset, data.IterableDataset):
            return False  # torch notes that the length of an IterableDataset was asked for
        try:
            return len(of) == 0
        except (TypeError, NotImplementedError):
            return False

    def _free(self, of: Any) -> Served | None:
        """A job for an epoch of its own; None: torch serves."""
        served = next((x for x in self.jobs if not x.busy), None)
        if served is None:
            return self.decide(of)
        try:
            served.look(of)
        except NotNative as e:
            self.jobs.remove(served)
            return self._without_folder(of, str(e))
        return served

    def decide(self, of: Any) -> Served | None:
        """A new job of the loader, if it is to have one; what serves is decided with the first."""
        if self.phase == "workers":
            return self._job(of, _make.of_workers)
        if self.phase == "torch":
            return None
        try:
            if _folders.folder_of(of.dataset) is None or not _checks.flag("native", self.given.get("native", True)):
                return self._without_folder(of, "")
            return self._job(of, _make.of_folder)
        except NotNative as e:
            return self._without_folder(of, str(e))

    def _without_folder(self, of: Any, why: str) -> Served | None:
        """Workers, or None for torch, serve what the daemon does not read itself."""
        asked = [n for n, x in self.given.items() if n not in _HOW and x is not None and (n, x) != ("cache", "none")]
        if not asked and not self.strict:
            self.phase, self.why = "torch", why or "it asks for nothing that jobs share"
            _say(of, f"torch serves it: {self.why}; name= with cache= or share= has jobs share its items")
            return None
        if why and self.strict:
            _say(of, f"workers serve it: {why}")
        return self._job(of, _make.of_workers)

    def _job(self, of: Any, make: Callable[[Arguments], Shared]) -> Served | None:
        served = Served(len(self.jobs), self.given)
        try:
            if not self.strict or make is _make.of_workers:
                _dataset.require_map_style(of.dataset)
            served.register(of, make)
        except (Error, TypeError) as e:
            if self.strict or not self._droppable(e):
                raise
            self.phase, self.why = "torch", e.message if isinstance(e, Error) else str(e)
            _say(of, f"torch serves it: {self.why}", e.reason if isinstance(e, Error) else "")
            return None
        self.phase = "workers" if make is _make.of_workers else "native"
        _say(of, "the daemon reads and prepares it" if self.phase == "native" else "workers of larder make its items")
        self.jobs.append(served)
        return served

    def _droppable(self, e: Exception) -> bool:
        """Whether torch gives the same batches, and the script did not ask in vain for what it says."""
        if isinstance(e, Error) and (e.subject in KEYWORDS or e.reason in _MEANT):
            return False
        return not any(self.given.get(n) is not None for n in _MAKING)

    # ---- what the script asks

    def serving(self, of: Any) -> Served | None:
        """The job that began the last epoch, or is to begin the first; None: torch serves."""
        self._require_open()
        if self.last is None and not self.jobs and self.phase != "torch":
            self.decide(of)
        return self.last or (self.jobs[0] if self.jobs else None)

    def active(self, of: Any) -> Served | None:
        """The same, with a place among the jobs of the daemon."""
        served = self.serving(of)
        if served is not None and served.parked is not None:
            served.unpark(of)
        return served

    def state(self, of: Any) -> dict[str, Any]:
        """The position of the loader."""
        served = self.active(of)
        return self.passage.state(of) if served is None else served.loader.state_dict()

    def load(self, of: Any, saved: Mapping[str, Any]) -> None:
        """Continues from a position."""
        served = self.active(of)
        if served is None:
            self.passage.load(of, saved, self.why)
            return
        made = served.made
        assert made is not None
        chosen = served.shared.settings.sampling is None and made.order.ranks is None  # the daemon chooses the order
        if chosen and _places.is_place(saved):
            served.remake(of, True)  # the state was saved when the sampler itself said which samples come
        served.loader.load_state_dict(saved)

    def close(self) -> None:
        """Leaves the jobs."""
        self.phase = "closed"
        for served in self.jobs:
            served.loader.close()

    def _require_open(self) -> None:
        if self.phase == "closed":
            raise StaleError("this DataLoader is closed", hint="make a new one")


class Finished:
    """Batches after what torch does to them last: lists, pinned memory."""

    def __init__(self, batches: Iterator[Any], native: bool, pin: bool, device: str) -> None:
        self.batches, self.native, self.pin, self.device = batches, native, pin, device

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self.batches)
        if self.native:
            batch = list(batch)
        if self.pin:
            of_torch: Any = importlib.import_module("torch.utils.data._utils.pin_memory")
            batch = of_torch.pin_memory(batch, *([self.device] if self.device else []))
        return batch


class Single:
    """What batch_size=None makes of the one sample of a batch."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self.convert = convert

    def __call__(self, samples: list[Any]) -> Any:
        return self.convert(samples[0])


# ---- arguments of a job


def _arguments(of: Any, given: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The arguments of a Loader that do not depend on its order."""
    kw: dict[str, Any] = {
        "prefetch": min(_MOST, max(2, (of.prefetch_factor or 2) * of.num_workers)),
        "timeout": of.timeout or _FOREVER,
        "persistent_workers": bool(of.persistent_workers),
        **given,
        "num_workers": of.num_workers,
        "collate_fn": _collate(of),
        "worker_init_fn": of.worker_init_fn,
        "multiprocessing_context": of.multiprocessing_context,
        "output": "torch",
        "plain": True,
    }
    if number:
        if kw.get("job") is not None:
            kw["job"] = f"{kw['job']}/pass{number}"
        if kw.get("seed") is not None:
            kw["seed"] = (int(kw["seed"]) + number) % 2**64
    return kw


def _ordered(of: Any, order: Order, kw: dict[str, Any]) -> Arguments:
    """The arguments of a job whose order is larder's."""
    kw = {"seed": order.seed, **kw}
    if order.ranks is not None:
        kw = {"rank": order.rank, "world_size": order.ranks, **kw}
    return Arguments(dataset=order.dataset, shuffle=order.shuffle, **_batches(of), **kw)


def _following(of: Any, order: Order, kw: dict[str, Any]) -> Arguments:
    """The arguments of a job whose samples the script's sampler says."""
    kw = {"seed": order.seed, **kw}
    passes = _samplers.passes(of)
    if _samplers.own_batches(of):
        return Arguments(dataset=order.dataset, batch_sampler=passes.of_batches(), **kw)
    return Arguments(dataset=order.dataset, sampler=passes, **_batches(of), **kw)


def _batches(of: Any) -> dict[str, Any]:
    """The arguments that cut samples into plain batches."""
    drop = of.batch_sampler is not None and bool(of.batch_sampler.drop_last)
    return {"batch_size": _samplers.size(of), "drop_last": drop}


def _collate(of: Any) -> Any:
    """What is to make a batch of samples; None: what larder makes as torch's default does."""
    default: Any = importlib.import_module("torch.utils.data._utils.collate")
    if of.batch_sampler is None:
        return Single(of.collate_fn)
    return None if of.collate_fn is default.default_collate else of.collate_fn


def _calls(of: Any) -> tuple[Any, ...]:
    return (of.collate_fn, of.worker_init_fn, of.timeout)


def _say(of: Any, what: str, reason: str = "") -> None:
    """Says once in a process, in a line that is no warning, who serves loaders, and why."""
    if (reason or what) not in _said:
        _said.add(reason or what)
        print(f"larder: DataLoader of {_dataset.describe(of.dataset)}: {what}", file=sys.stderr, flush=True)
