"""What a Loader of a dataset in Python asks for: of the daemon, of its workers, and of its batches."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import _builtin, _crew, _dataset, _exact, _items, _opaque, _record, _seeds, _torch
from ._batches import Batches
from ._builtin import Builtin, Step
from ._caller import warn
from ._dataset import Identity, Part
from ._items import Clock, Layout, Look, Probe, Rules
from ._messages import AddRecordsRequest, OpMessage, SchemaMessage
from ._nested import EITHER
from ._ragged import MODES, Ragged
from ._worker import Orders, Work
from .errors import InvalidError, RandomItemWarning
from .ops import Op

_KNOWN, _MORE = 2, 6  # items that a fingerprint is of, and that are looked at at most


@dataclass
class Plan:
    """A dataset in Python, and how its items become batches."""

    part: Part
    identity: Identity
    steps: list[Step]
    cache: str  # "items", "none", or "" where the script does not say
    workers: int
    context: Any  # of multiprocessing
    persistent: bool  # workers stay from one epoch to the next
    init: Callable[[int], Any] | None
    timeout: float  # of one sample, in seconds
    memory: int
    seed: int
    ragged: Ragged | None
    collate: Callable[[list[Any]], Any] | None
    torch: bool
    plain: bool  # batches nest as torch's default_collate nests them
    index: bool
    mixing: Op | None = None  # the MixUp or CutMix that ends the recipe
    reads: str = ""  # the uri of the dataset, where the daemon reads it and only steps are in Python
    probe: Probe | None = None

    @property
    def uri(self) -> str:
        """The name by which jobs ask for the dataset."""
        if self.reads:
            return self.reads
        return f"python:{self.identity.name}@{self.identity.version}"

    @property
    def probed(self) -> Probe:
        """What was found by looking at items."""
        assert self.probe is not None
        return self.probe

    @property
    def final(self) -> Layout:
        """Items as the job is handed them."""
        return self.probed.layouts[-1]

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a batch in the ring, in order."""
        return (*self.final.structure.names, *(("index",) if self.index else ()))

    def show(self, items: list[Any]) -> None:
        """Takes samples that the daemon has read, for the steps to be tried on."""
        assert isinstance(self.part.base, _dataset.Looked)
        self.part.base.items = items
        self.part = Part(self.part.base, None, len(items))

    def look(self, crew: _crew.Crew | None, maker: _items.Maker, seconds: float) -> None:
        """Looks at some items: in a worker, or in this process where there are none.

        Raises:
            InvalidError: no item can be made, or they are unlike each other.
        """
        if self.probe is None:
            work = self.work()
            if crew is not None:
                self.probe = crew.probe(seconds)
            else:
                with _seeds.Kept():
                    self.probe = _items.probe(maker, work.look, Clock(), 0.0, lambda index: None)
            _builtin.warn_of(self.steps, [x.fields for x in self.probe.layouts])
            self._mark()
        if self.probe.random and self.cache == "items":
            warn(
                f"cache='items' says that item i is always the same, but {_dataset.describe(self.part.base)} gives "
                "another one under another seed: every epoch would see the same random ones. Move what is random "
                "behind the dataset: transform=[...], or leave cache= out",
                RandomItemWarning,
            )

    def _mark(self) -> None:
        """Gives the dataset a name of its own where its items may be pickled, or all are: its records are others."""
        structure = self.probed.layouts[0].structure
        if structure.kind == EITHER and not self.identity.private:
            mark = "~items" if structure.parts else "~pickled"
            self.identity = dataclasses.replace(self.identity, name=self.identity.name + mark)

    @property
    def rules(self) -> Rules:
        """What may become of items: a script that has them, or torch's default_collate, is to see no difference."""
        samples = self.collate is not None
        if not samples and (self.ragged is not None or not (self.plain and self.torch)):
            return Rules()  # batches are larder's own
        exact = _exact.SAMPLES if samples else _exact.BATCHES if self.workers else _exact.STACKED
        ops = self.mixing is not None or any(isinstance(s, Builtin) for s in self.steps)
        owner = "" if ops else _opaque.owner(shared=bool(self.reads) or not self.identity.private)
        return Rules(exact, owner, samples, 1 if self.reads else 0)

    def work(self) -> Work:
        """What the workers are started with."""
        n = self.part.length
        twice = self.cache == "items" or not self.identity.private
        return Work(
            base=self.part.base,
            steps=self.steps,
            layouts=() if self.probe is None else self.loose,
            look=Look(
                _dataset.pick(n, None, _KNOWN), _dataset.pick(n, self.part.indices, _MORE), twice, rules=self.rules
            ),
            timeout=self.timeout,
            number=0,
            count=max(1, self.workers),
            seed=self.seed,
            init=self.init,
            memory=self.memory,
            torch=self.torch or _crew.uses_torch(),
            main=False,
        )

    @property
    def loose(self) -> tuple[Layout, ...]:
        """The layouts that items are checked against: between steps sizes are free, at the end as the job's schema."""
        layouts = [Layout(_record.relax(x.fields), x.structure) for x in self.probed.layouts]
        return (*layouts[:-1], Layout(self._fields(), self.final.structure))

    def _fields(self) -> list[_record.FieldDict]:
        """The fields of the job's schema: free in size where anything takes items of unlike sizes."""
        free = self.ragged is not None or self.collate is not None
        return _record.relax(self.final.fields) if free else self.final.fields

    def schema(self) -> SchemaMessage:
        """The schema of what the job is handed."""
        return {"fields": [_message(f) for f in self._fields()], "structure": self.final.structure.text}

    def transform(self) -> list[OpMessage]:
        """The steps of the recipe. Of ops behind a step in Python the daemon is told what they are handed."""
        out: list[OpMessage] = []
        for i, step in enumerate(self.steps):
            if isinstance(step, Builtin) and i > 0 and not isinstance(self.steps[i - 1], Builtin):
                out.append(step.message(self.probed.layouts[i].fields))
            else:
                out.append(step.message())
        if self.mixing is not None:
            out.append(_builtin.called(self.mixing, self.final.fields).to_json())
        return out

    def records(self) -> AddRecordsRequest:
        """The dataset, for the daemon."""
        first = self.probed.layouts[0]
        base = self.part.base
        fingerprint = {
            "type": f"{type(base).__module__}.{type(base).__qualname__}",
            "length": str(self.part.length),
            "code": _dataset.code(base),
            "items": self.probed.items,
        }
        if first.structure.data is None:
            fingerprint["pickled"] = first.structure.keys[0]
        return {
            "name": self.identity.name,
            "version": self.identity.version,
            "length": str(self.part.length),
            "fingerprint": fingerprint,
            "schema": {"fields": [_message(f) for f in _record.relax(first.fields)], "structure": first.structure.text},
            "private": self.identity.private,
        }

    def indices(self) -> str:
        """The subset as the daemon reads it, in base64; empty: every sample."""
        if self.part.indices is None or self.part.rows == self.part.length:
            return ""
        return base64.b64encode(_dataset.packed(self.part.indices)).decode()

    def orders(self, path: str, recipe: str, client: str, patience: float) -> Orders:
        """What workers serve."""
        return Orders(path, self.uri, (recipe,), client, self.loose, self.probed.bytes, patience, self.workers == 0)

    def batches(self) -> Batches:
        """How batches are made.

        Raises:
            InvalidError: torch has no tensors of a field's dtype.
        """
        if self.torch and self.collate is None:
            _torch.require_dtypes(self.final.fields)
        varies = {f["name"]: f["shape"] for f in self.final.fields if f["kind"] == "array" and -1 in f["shape"]}
        rules = self.ragged or (Ragged("list") if self.reads else None)
        return Batches(self.final.structure, varies, self.torch, self.plain, rules, self.collate, self.index)

    def require_same_length(self) -> None:
        """Raises InvalidError when the dataset has another length than it had."""
        now = len(self.part.base)
        if now != self.part.length:
            raise InvalidError(
                f"{_dataset.describe(self.part.base)} had {self.part.length} samples, and has {now} now",
                subject="dataset", hint="make a new Loader when a dataset changes, with another version=",
            )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "context": self.context.get_start_method()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "context": _crew.context(state["context"])})


def _message(f: _record.FieldDict) -> Any:
    return {**f, "shape": [str(n) for n in f["shape"]]}


def ragged(mode: Any, value: Any, multiple: Any, torch: bool) -> Ragged | None:
    """The checked arguments ``ragged``, ``pad_value`` and ``pad_multiple``."""
    if mode != "pad" and (value != 0 or multiple != 1):
        raise InvalidError("pad_value and pad_multiple need ragged='pad'", subject="ragged")
    if mode is None:
        return None
    if mode not in MODES:
        raise InvalidError(f"ragged is {mode!r}; it must be one of 'list', 'pad', 'nested'", subject="ragged")
    if mode == "nested" and not torch:
        raise InvalidError("ragged='nested' gives tensors of torch", subject="ragged", hint="add output='torch'")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidError(f"pad_value must be a number, not {value!r}", subject="pad_value")
    if isinstance(multiple, bool) or not isinstance(multiple, int) or multiple < 1:
        raise InvalidError(f"pad_multiple must be a whole number above 0, not {multiple!r}", subject="pad_multiple")
    return Ragged(mode, value, multiple)
