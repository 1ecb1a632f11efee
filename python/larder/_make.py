"""Makes what a Loader holds: arguments checked, items looked at, the job registered."""

from __future__ import annotations

import copy
import dataclasses
import os
from typing import Any

from . import _audit, _builtin, _checks, _connection, _epoch, _finalizer, _messages, _native, _registration
from ._arguments import Arguments, Checked
from ._caller import warn
from ._messages import Empty, InspectDatasetRequest
from ._native import Native, NotNative
from ._plan import Plan
from ._shared import Shared
from .errors import Error, InvalidError, NativeWarning

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
            made = _folder(given)
        except NotNative as e:
            _say_why(given.dataset, str(e))
        else:
            _say(given.dataset)
            return made
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
        if new.form is not None:
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


# ---- ImageFolder of torchvision


def _folder(given: Arguments) -> Shared:
    python = [n for n in _ONLY_PYTHON if getattr(given, n) is not None]
    if python or given.transform:
        raise NotNative(f"{(python or ['transform'])[0]}= is given, which has workers run it")
    native = _native.convert(given.dataset)
    try:
        made = _registered(_translated(given, native).checked())
    except InvalidError as e:
        if e.reason != "RECIPE_INVALID":
            raise
        raise NotNative(e.message) from None
    why = _differs(made, native, in_any_order=bool(given.shuffle) and given.sampler is None and not given.return_index)
    if why:
        made.close()
        raise NotNative(why)
    made.settings = dataclasses.replace(made.settings, native=native)
    return made


_ONLY_PYTHON = ("name", "cache", "collate_fn", "ragged", "worker_init_fn", "subset", "fields")


def _translated(given: Arguments, native: Native) -> Arguments:
    """The arguments for the folder; those of workers, which there are none of, are left out."""
    defaults = {f.name: f.default for f in dataclasses.fields(Arguments) if f.name in _OF_WORKERS}
    return dataclasses.replace(given, dataset=native.uri, transform=native.transform, **defaults)


_OF_WORKERS = (
    "num_workers",
    "sample_timeout",
    "worker_memory",
    "multiprocessing_context",
    "persistent_workers",
    "version",
)


def _differs(made: Shared, native: Native, in_any_order: bool) -> str:
    """Why the daemon would not give what the dataset gives; empty when it does.

    ``in_any_order``: the script sees no numbers of samples.
    """
    try:
        stats = _connection.call(made, _messages.GET_STATS, Empty()).get("stats") or {}
        if not stats.get("parity"):
            return "the daemon has the portable decoder"
        body = InspectDatasetRequest(dataset=native.uri, samples=1, listing=True)
        about = _connection.call(made, _messages.INSPECT_DATASET, body)
        listing, there = about.get("listing"), int((about.get("dataset") or {}).get("samples") or 0)
        if listing is None:
            return "the daemon is older than this client"
        if there != len(native.samples):
            return f"its list has {len(native.samples)} samples and the folder {there}"
        if native.lists(listing, in_any_order):
            return ""
    except Error as e:
        return e.message
    except NotNative as e:
        return str(e)
    return "its list has other labels or another order than the daemon, or the folder has changed"


def _say(dataset: Any) -> None:
    uri = _native.convert(dataset).uri
    if uri not in _said:
        _said.add(uri)
        warn(
            f"{uri}: the daemon prepares this ImageFolder itself, with the same bits and without workers; "
            "native=False has workers run it",
            NativeWarning,
        )


def _say_why(dataset: Any, why: str) -> None:
    """Says once why workers run an ImageFolder."""
    folder = _native.folder_of(dataset)
    if folder is None or (key := f"{folder.root}: {why}") in _said:
        return
    _said.add(key)
    warn(
        f"the ImageFolder of {folder.root} runs as any dataset in Python does, not on the daemon's own decoders and "
        f"ops: {why}. native=False says that this is meant",
        NativeWarning,
    )
