"""Registers a Loader's job with the daemon, or the remainder of its epoch."""

from __future__ import annotations

import dataclasses
import sys

from . import _builtin, _clock, _daemon, _dataset, _listed, _messages, _mix, _nested, _torch
from ._batches import Batches
from ._caller import warn
from ._messages import Empty, IndexingMessage, JobRequest, RegisterJobRequest, RegisterJobResponse, Resumed
from ._ragged import Ragged
from ._session import Aside, Session
from ._shared import Loaded, Shared
from .errors import (
    DatasetWarning,
    DeadlineError,
    Error,
    FieldsWarning,
    InvalidError,
    NotFoundError,
    RankHeldError,
    StateChangedWarning,
    UnavailableError,
)

_PATIENCE = 1.0  # seconds: the daemon may not have seen the end of a predecessor yet
_LOOK = 5.0  # seconds a registration waits before it says how far the index of its dataset is
SLOW = (
    "a large dataset takes long to index the first time: `larder dataset add URI` does it beforehand, or raise timeout="
)
_STATUS = 1.0  # seconds that it waits for what it says then
_warned: set[tuple[str, str]] = set()  # datasets and notes that this process was warned of


def register(shared: Shared, s: Session, deadline: float) -> None:
    """Registers the job of a Loader, with the state that it has loaded; looks one up that is registered already."""
    spec = shared.spec
    if spec is None:
        _describe(shared, s, deadline)
        _shape(shared)
        spec = shared.described
        if shared.loaded is None:
            return
    if shared.plan is not None and not shared.plan.reads:
        try:
            s.call(_messages.ADD_RECORDS, shared.plan.records(), deadline)
        except InvalidError as e:
            if e.reason == "ALREADY_EXISTS":
                e.hint = _dataset.hint(shared.plan.part, e.message) or e.hint
            raise
    body: RegisterJobRequest = {"spec": spec}
    loaded = shared.loaded
    if loaded is not None:
        body["resume"], body["resumeChanged"] = loaded.text, loaded.changed
    answer = _register(shared, s, body, deadline)
    shared.job = answer.get("job") or {}
    _shape(shared)
    if shared.settings.native is not None:
        _listed.confirm(shared.settings.native, s, str(answer.get("fingerprint", "")), deadline)
    if shared.rank == 0:
        for note in answer.get("datasetNotes") or ():
            _warn_once(str(spec.get("dataset", "")), str(note))
    shared.resources.unused = shared.name if answer.get("created") else ""
    if loaded is not None:
        _resumed(shared, loaded, answer.get("resumed"))


def _register(shared: Shared, s: Session, body: RegisterJobRequest, deadline: float) -> RegisterJobResponse:
    # The ranks of a job leave it one after the other, and the daemon may not have seen the end of a killed client yet.
    several = shared.settings.place.world_size > 1
    patience = _clock.monotonic() + (shared.timeout if several else min(_PATIENCE, shared.timeout))
    while True:
        try:
            return s.call(_messages.REGISTER_JOB, body, deadline, aside(s))
        except DeadlineError as e:
            e.hint = SLOW
            raise
        except RankHeldError:
            if _clock.monotonic() > min(patience, deadline - 0.1):
                raise
            _clock.sleep(0.05)


def aside(s: Session) -> Aside:
    """Says how far the index is that a request waits for."""
    return _LOOK, lambda: _tell_index(s)


def _tell_index(s: Session) -> None:
    """Prints how far the indexes are that the daemon makes, for one of them is what a registration waits for."""
    body: Empty = {}
    try:
        status = s.call(_messages.STATUS, body, _clock.monotonic() + _STATUS)
    except Error:  # an old daemon, or a busy one: the wait goes on, and its own error counts
        return
    for x in status.get("indexing") or ():
        uri = "".join(c if c.isprintable() else "\ufffd" for c in x.get("uri", ""))  # it may be another user's
        print(f"larder: waiting for the index of {uri}: {_how_far(x)}", file=sys.stderr, flush=True)


def _how_far(x: IndexingMessage) -> str:
    files, size = int(x.get("allFiles") or 0), int(x.get("allBytes") or 0)
    looked = int(x.get("looked") or 0)
    text = f"{int(x.get('samples') or 0)} samples"
    if not files and looked:
        text = f"{looked >> 20} MiB read to find the fields of the samples"
    if files:
        share = 100 * int(x.get("bytes") or 0) // max(1, size)
        text += f", {int(x.get('files') or 0)} of {files} files, {share} % of {size >> 20} MiB"
    return text + " (`larder status` shows it)"


def _shape(shared: Shared) -> None:
    """Has batches made of records, where the samples of a dataset that the daemon reads are such.

    Raises:
        InvalidError: an argument is for records and the samples are images, or the other way round.
    """
    shaping, schema = shared.settings.shaping, shared.job.get("schema")
    if shaping is None:
        return
    wrong = [n for n in shaping.given if (n == "fields") == (schema is not None)]
    if wrong and schema is None:
        raise InvalidError(
            f"{', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} for datasets in Python and for records, and the "
            f"samples of {shared.uri!r} are images",
            subject=wrong[0], hint="the daemon prepares such a dataset itself, with the transforms of larder.ops",
        )  # fmt: skip
    if schema is None:
        return
    fields = schema.get("fields") or []
    if wrong:
        known = ", ".join(str(f.get("name", "")) for f in fields)
        raise InvalidError(
            f"fields= is for images, and the samples of {shared.uri!r} are records of {known:.200}", subject="fields",
            hint="name them in the uri, as in wds:DIR?fields=jpg,txt, where the format has that, or leave fields= out",
        )  # fmt: skip
    mixing = _mix.op_of(shared.described.get("transform") or [])
    if mixing is not None and shaping.collate is not None:
        raise _mix.beside_collate(str(mixing.get("name")))
    words = _builtin.forgotten(shared.described.get("transform") or [], fields)
    if words and shared.rank == 0 and (shared.uri, words) not in _warned:
        _warned.add((shared.uri, words))
        warn(words, FieldsWarning)
    structure = _nested.parse(str(schema.get("structure", "")))
    varies: dict[str, list[int]] = {}
    for name, f in zip(structure.names, fields, strict=True):
        shape = [int(n) for n in f.get("shape") or ()]
        if f.get("kind") == "array" and -1 in shape:
            varies[name] = shape
    if shared.settings.output == "torch" and shaping.collate is None:
        _torch.require_dtypes(fields)
    names = [str(f.get("name", "")) for f in fields]
    settings = shared.settings
    shared.settings = dataclasses.replace(settings, fields=(*names, *(("index",) if shaping.index else ())))
    ragged = shaping.ragged or Ragged("list")
    torch = settings.output == "torch"
    shared.form = Batches(structure, varies, torch, shaping.plain, ragged, shaping.collate, shaping.index)


def _warn_once(dataset: str, note: str) -> None:
    if (dataset, note) not in _warned:
        _warned.add((dataset, note))
        warn(f"dataset {dataset}: {note}", DatasetWarning)


def _resumed(shared: Shared, loaded: Loaded, resumed: Resumed | None) -> None:
    """Takes over the remainder of a state's epoch from the daemon's answer."""
    if resumed is None:
        raise UnavailableError(
            "the daemon is older than this client and cannot resume", hint="restart it: larder serve"
        )
    if loaded.epoch < 0:
        token = loaded.token
        shared.loaded = loaded._replace(
            epoch=int(resumed.get("epoch") or 0),
            left=int(resumed.get("left") or 0),
            before=int(token.get("before") or 0) + int(token.get("step") or 0),
            all=int(resumed.get("whole") or 0),
            whole=int(resumed.get("wholeBatches") or 0),
        )
        for note in resumed.get("notes") or ():
            warn(f"job {shared.name!r}: {note}", StateChangedWarning)
    shared.note_remainder()


def _describe(shared: Shared, s: Session, deadline: float) -> None:
    """Looks up a job that was registered elsewhere, and checks that it fits."""
    try:
        shared.job = s.call(_messages.DESCRIBE_JOB, JobRequest(name=shared.name), deadline).get("job") or {}
    except NotFoundError as e:
        e.hint = e.hint or "register it first: larder jobs register -f job.yaml"
        raise
    spec, wanted = shared.described, shared.settings.batch_size
    if spec.get("order") == "given":
        raise InvalidError(
            f"job {shared.name!r} has order given: the client that registers it says which samples come",
            subject=shared.name,
            hint=f"larder.Loader({str(spec.get('dataset'))!r}, sampler=...) registers a job and iterates it",
        )
    size = int(spec.get("batchSize") or 0)
    if wanted not in (None, size):
        raise InvalidError(
            f"job {shared.name!r} was registered with batch_size {size}, not {wanted}",
            subject=shared.name,
            hint="leave batch_size out",
        )
    _mix.require_fields(spec.get("transform") or [], shared.settings.fields)
    world, place = int(spec.get("worldSize") or 1), shared.settings.place
    if world != place.world_size:
        raise InvalidError(
            f"job {shared.name!r} was registered with world_size {world}; this process is rank {place.rank} of "
            f"{place.world_size} ({place.source})",
            subject=shared.name,
            hint="register it with the world_size it runs with, or pass rank= and world_size=",
        )


def replaceable(shared: Shared, error: InvalidError) -> bool:
    """Reports whether loading a state may replace a job of this name: it has another description and no client.

    Any other use of the Loader raises the same error as its constructor would have.
    """
    if error.reason != "ALREADY_EXISTS":
        return False
    s = _daemon.open_session(shared.settings.endpoint, shared.timeout, shared.settings.known_stop)
    try:
        patience = _clock.monotonic() + _PATIENCE
        while True:
            deadline = _clock.monotonic() + shared.timeout
            job = s.call(_messages.DESCRIBE_JOB, JobRequest(name=shared.name), deadline).get("job") or {}
            if not any(r.get("attached") for r in job.get("ranks") or ()):
                return True
            if _clock.monotonic() > patience:
                return False
            _clock.sleep(0.05)
    except Error:
        return False
    finally:
        s.close(False)
