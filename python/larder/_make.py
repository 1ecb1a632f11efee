"""Makes what a Loader holds: arguments checked, items looked at, the job registered."""

from __future__ import annotations

import copy
import dataclasses
import os
import sys
from typing import Any

import numpy as np

from . import (
    _audit,
    _builtin,
    _checks,
    _clock,
    _connection,
    _daemon,
    _epoch,
    _finalizer,
    _folders,
    _listed,
    _registration,
)
from ._arguments import Arguments, Checked
from ._batches import Batches
from ._caller import warn
from ._dataset import Indices
from ._folders import Native
from ._listed import Located, Rows
from ._messages import JobSpec
from ._native import NotNative
from ._plan import Plan
from ._shared import Shared
from ._stream import Sampling
from .errors import DeadlineError, Error, InvalidError, NativeWarning, StaleError, UnavailableError

_LOOKED = 8  # samples that steps in Python are tried on
_said: set[str] = set()


def shared(given: Arguments) -> Shared:
    """The state of a new Loader, whose job is registered.

    Raises:
        InvalidError: an argument, the dataset or its items cannot work.
        UnavailableError: no daemon answers.
    """
    given = given.sampled()
    if not isinstance(given.dataset, str) and _checks.flag("native", given.native):
        try:
            return _folder(given)
        except NotNative as e:
            _say_why(given.dataset, str(e))
    return _workers(given)


def of_folder(given: Arguments) -> Shared:
    """The same on the folder of images that a dataset of torchvision is of.

    Raises:
        NotNative: it is none, or the daemon would not give what the dataset gives.
        InvalidError, UnavailableError: as ``shared``.
    """
    return _folder(given.sampled())


def of_workers(given: Arguments) -> Shared:
    """The same of a dataset in Python, which worker processes or this one run."""
    return _workers(given.sampled())


def _workers(given: Arguments) -> Shared:
    checked = given.checked()
    if checked.plan is not None and checked.plan.reads:
        checked.plan.show(_read(given, checked.plan))
    return _registered(checked)


# ---- steps in Python on what the daemon reads


def _read(given: Arguments, plan: Plan) -> list[Any]:
    """Some samples as the steps of a plan are to see them, read by the daemon.

    Raises:
        InvalidError: none can be read; whatever registering a job raises.
    """
    kw = {n: getattr(given, n) for n in ("dataset", "subset", "skip_empty", "endpoint", "timeout", "on_daemon_loss")}
    job = f"look/{os.getpid()}/{os.urandom(4).hex()}"
    looking = Arguments(
        **kw, batch_size=_LOOKED, shuffle=True, order="fixed", transform=_builtin.shown(plan.steps) or None, job=job,
        rank=0, world_size=1, on_error="skip", prefetch=1, epochs=1,
    )  # fmt: skip
    new = _registered(looking.checked())
    try:
        if isinstance(new.form, Batches):
            new.form = dataclasses.replace(new.form, collate=list)
        batch = next(_epoch.begin(new), None)
        if batch is None:
            raise InvalidError(
                f"none of the first samples of {plan.reads} can be read", subject="dataset",
                hint="`larder dataset verify` says what is wrong with them",
            )  # fmt: skip
        if new.form is None:
            batch = [{"image": image, "label": int(label)} for image, label in zip(*batch, strict=True)]
        return copy.deepcopy(list(batch))  # it lies in the ring
    finally:
        new.close()


def _registered(checked: Checked) -> Shared:
    settings, spec, timeout, plan = checked
    _finalizer.run_pending()  # a forgotten Loader may have the name of this one
    new = Shared(settings, spec, timeout, _audit.observe, plan)
    try:
        if plan is not None and new.makers is not None and spec is not None:
            new.makers.look(timeout)
            spec["dataset"] = plan.uri
            spec["schema"], spec["transform"] = plan.schema(), plan.transform()
            new.settings = dataclasses.replace(settings, fields=plan.fields)
            new.form = plan.batches()
        try:
            _connection.begin(new)
        except InvalidError as e:
            if not _registration.replaceable(new, e):
                raise
    except BaseException:
        new.close()
        raise
    return new


# ---- folders of images of torchvision


def _folder(given: Arguments) -> Shared:
    python = [n for n in _ONLY_PYTHON if getattr(given, n) is not None]
    if given.collate_fn is not None and not _collates_by_default(given):
        python.append("collate_fn")
    if python or given.transform:
        raise NotNative(f"{(python or ['transform'])[0]}= is given, which has workers run it")
    native = _folders.convert(given.dataset)
    if not _checks.in_utf8(native.uri):
        raise NotNative("its path is not UTF-8, and the daemon names folders in UTF-8 alone")
    try:
        for _ in range(_LOOKS - 1):
            try:
                return _located(given, native)
            except StaleError:  # files came or went meanwhile
                pass
        return _located(given, native)
    except InvalidError as e:
        if e.reason != "RECIPE_INVALID":
            raise
        raise NotNative(e.message) from None


_ONLY_PYTHON = ("cache", "ragged", "worker_init_fn", "subset", "fields")


def _collates_by_default(given: Arguments) -> bool:
    """Whether ``collate_fn`` is the one that torch's DataLoader has without it."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and given.collate_fn is data.default_collate and given.output == "torch"


_LOOKS = 3


def _located(given: Arguments, native: Native) -> Shared:
    """The job on the samples of a dataset, wherever the daemon has them.

    Raises:
        NotNative: it does not have them, or nothing there gives them in this order.
        StaleError: the folder was changed meanwhile.
    """
    located = _find(given, native)
    native.ids, native.seen = ids, _ = located.ids, located.seen
    sampling: Sampling | None = given.sampler
    part: JobSpec = {}
    if sampling is not None:
        sampling = dataclasses.replace(sampling, rows=ids, samples=len(ids))
    elif _listed.of_the_daemon(ids, bool(given.shuffle)):
        part = _listed.subset(ids)
    else:
        sampling = _in_its_order(given, ids)
    drop = given.drop_last and sampling is None
    given = dataclasses.replace(given, sampler=sampling, shuffle=given.shuffle and sampling is None, drop_last=drop)
    checked = _translated(given, native).checked()
    if checked.spec is not None:
        checked.spec.update(part)
    form = _form(given, located)
    fields = ("image", "label", "index") if form is not None and form.numbered else checked.settings.fields
    made = _registered(checked._replace(settings=dataclasses.replace(checked.settings, native=native, fields=fields)))
    made.form = form
    return made


def _find(given: Arguments, native: Native) -> Located:
    endpoint, timeout, known_stop = given.reach()
    s = _daemon.open_session(endpoint, timeout, known_stop)
    try:
        return _listed.locate(native, s, _clock.monotonic() + timeout, _registration.aside(s))
    except DeadlineError as e:
        e.hint = _registration.SLOW
        raise
    except UnavailableError:
        raise
    except Error as e:
        if e.reason in _OF_A_FOLDER:
            raise NotNative(e.message) from None
        raise
    finally:
        s.close(False)


_OF_A_FOLDER = ("NOT_FOUND", "DATASET_EMPTY", "DATASET_UNREADABLE", "PERMISSION_DENIED", "UNSUPPORTED")


def _in_its_order(given: Arguments, ids: Indices) -> Sampling:
    """The order of a list that the daemon has none for: the list's own, or one drawn here where samples repeat."""
    why = "its list repeats samples" if given.shuffle else "its list has another order than the daemon's index"
    wrong = [n for n in ("order", "even") if getattr(given, n) is not None]
    wrong += [n for n, v in (("share", "augmented"), ("on_error", "substitute")) if getattr(given, n) == v]
    size = 1 if given.world_size is None else given.world_size
    if wrong or size != 1:
        raise NotNative(f"{why}, which does not go with {wrong[0] if wrong else 'several ranks'}")
    batch = _checks.integer("batch_size", given.batch_size, 1, 65536)
    seed = _checks.integer("seed", given.seed, 0, 2**64 - 1)
    order = _listed.Shuffled(len(ids), seed) if given.shuffle else range(len(ids))
    return Sampling(order, False, batch, _checks.flag("drop_last", given.drop_last), rows=ids, samples=len(ids))


def _form(given: Arguments, located: Located) -> Rows | None:
    """How batches are made, where that is not by taking what comes."""
    ids, labels = located.ids, located.labels
    index, given_order = bool(given.return_index), given.sampler is not None
    as_list = given.collate_fn is not None
    moved = not np.array_equal(ids, np.arange(len(ids)))  # positions are no ids
    if labels is None and not (index and moved) and not as_list:
        return None
    places = None
    if not given_order:
        labels = None if labels is None else _listed.table(ids, labels)
        places = _listed.table(ids, np.arange(len(ids))) if index and moved else None
    positions = given_order and (labels is not None or index)
    return Rows(labels, places, positions, index, given.output == "torch", as_list)


def _translated(given: Arguments, native: Native) -> Arguments:
    """The arguments for the folder; those of workers, which there are none of, are left out."""
    defaults = {f.name: f.default for f in dataclasses.fields(Arguments) if f.name in _OF_WORKERS}
    return dataclasses.replace(given, dataset=native.uri, transform=native.folders[0].transform, **defaults)


_OF_WORKERS = (
    *("num_workers", "sample_timeout", "worker_memory", "multiprocessing_context", "persistent_workers"),
    *("name", "version", "collate_fn"),
)


def _say_why(dataset: Any, why: str) -> None:
    """Says once why workers run an ImageFolder."""
    folder = _folders.folder_of(dataset)
    if folder is None or (key := f"{folder.root}: {why}") in _said:
        return
    _said.add(key)
    warn(
        f"the {type(folder).__name__} of {folder.root} runs as any dataset in Python does, not on the daemon's own "
        f"decoders and ops: {why}. native=False says that this is meant",
        NativeWarning,
    )
