"""Makes items: a dataset's ``__getitem__`` and the steps behind it, each under its own random state, as records.

Runs in worker processes, and in the training process where there are none.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import _builtin, _clock, _dataset, _nested, _opaque, _record, _seeds
from ._builtin import Builtin, Step
from ._nested import EITHER, Structure
from ._record import FieldDict, Leaf
from .errors import InvalidError

_KNOWN = 256  # forms of items that are remembered
_TRACEBACK = 8000  # characters


class Layout(NamedTuple):
    """What an item looks like at one place of a recipe: its fields, with -1 where sizes differ, and its structure."""

    fields: list[FieldDict]
    structure: Structure


class Failure(NamedTuple):
    """An item that could not be made."""

    sample: int
    type: str
    message: str
    traceback: str

    @property
    def words(self) -> str:
        """Type and message in one line."""
        return f"{self.type}: {self.message}" if self.message else self.type


class Probe(NamedTuple):
    """What some items of a dataset look like."""

    layouts: tuple[Layout, ...]  # of the item, and of what each step makes of it
    items: str  # digest of the items that tell contents apart; empty: they differ from call to call
    random: bool  # an item is another one under another seed
    bytes: int  # of the largest record
    failures: tuple[Failure, ...]


class Rules(NamedTuple):
    """What may become of items."""

    exact: str = ""  # what must not be lost when they are taken apart (see _exact)
    owner: str = ""  # who may unpickle those that cannot be taken apart; empty: they are refused
    always: bool = False  # room for pickled ones is there also where all that was looked at have one form
    first: int = 0  # of the steps (0: the item), whose results the rules are for


class Look(NamedTuple):
    """What to look at before a dataset is used."""

    known: Sequence[int]  # the items that tell one content from another; all are made
    more: Sequence[int]  # items that show in what others differ; made for a second at most
    twice: bool  # make the first one again, to see whether items differ from call to call
    skip: frozenset[int] = frozenset()  # items that ended the process that made them
    rules: Rules = Rules()


class Clock:
    """Interrupts a task that takes too long; this one does not."""

    def start(self, seconds: float) -> None:
        """A task begins."""

    def tick(self) -> None:
        """The next of several tasks begins that follow each other."""

    def stop(self) -> None:
        """It is over."""

    def rest(self) -> None:
        """No task follows at once."""


class Maker:
    """A dataset and its steps, in the process that runs them."""

    def __init__(self, base: Any, steps: Sequence[Step], layouts: Sequence[Layout] = ()) -> None:
        self.base = base
        self.steps = steps
        self.layouts = layouts
        self._known: tuple[Sequence[Layout], set[tuple[int, _record.Form]]] = (layouts, set())  # forms that fit

    def step(self, item: Any, seed: int, instance: int, sample: int, number: int) -> Any:
        """Step ``number`` of a recipe: 0 makes the item, ``item`` is ignored then."""
        k = _seeds.key(seed, instance, sample, number)
        _seeds.seed_globals(k)
        if number == 0:
            return _dataset.fetch(self.base, sample)
        step = self.steps[number - 1]
        if isinstance(step, Builtin):
            return item  # the daemon runs it
        return step.run(item, _seeds.generator(k) if step.random else None)

    def make(self, task: Task, given: Any) -> list[Leaf]:
        """Runs the steps of a task; ``given`` is the record that it starts from, in memory that may be changed.

        Raises:
            Exception: whatever the dataset raises; InvalidError for an item unlike the others.
        """
        item = None
        if task.first > 0:
            item = _nested.unflatten(_record.read(given), self.layouts[task.first - 1].structure)
        for number in range(task.first, task.last):
            item = self.step(item, task.seed, task.instance, task.sample, number)
        return self.leaves(item, task.last)

    def leaves(self, item: Any, last: int) -> list[Leaf]:
        """The leaves of what the steps up to ``last`` (excluded) made.

        Raises:
            InvalidError: it is unlike others.
        """
        layout = self.layouts[last - 1]
        leaves = _nested.leaves(item, layout.structure)
        if layout.structure.kind == EITHER:
            leaves = self._either(item, leaves, layout, last)
        self.require(_record.form(leaves), last)
        return leaves

    def _either(self, item: Any, leaves: list[Leaf], layout: Layout, last: int) -> list[Leaf]:
        """The leaves of an item that is pickled where its values do not fit, and all leaves but the last are empty."""
        if len(leaves) == len(layout.fields):
            try:
                self.require(_record.form(leaves), last)
                return leaves
            except InvalidError:
                leaves = [_opaque.leaf(item, layout.structure.keys[0])]
        return [*_record.empty(layout.fields[:-1]), *leaves]

    def require(self, form: _record.Form, last: int) -> None:
        """Raises InvalidError unless what the steps up to ``last`` (excluded) made has the form of others."""
        if self._known[0] is not self.layouts:
            self._known = (self.layouts, set())
        known = self._known[1]
        if (last, form) not in known:
            require_fields(form, self.layouts[last - 1])
            if len(known) < _KNOWN:
                known.add((last, form))


class Task(NamedTuple):
    """One task of a worker: the steps from ``first`` up to ``last`` (excluded) of one sample."""

    id: int
    sample: int
    seed: int
    instance: int
    recipe: int
    first: int
    last: int
    input: int
    input_bytes: int
    timeout_ms: int


def require_fields(form: _record.Form, layout: Layout) -> None:
    """Raises InvalidError unless an item has the dtypes and sizes of the others; the message has both."""
    for (_, code, sizes), field in zip(form, layout.fields, strict=True):
        dtype, shape = _record.DTYPES[code], list(sizes)
        if dtype != field["dtype"]:
            raise InvalidError(
                f"field {field['name']} has dtype {dtype}, and {field['dtype']} in other items", subject=field["name"],
                hint="give all items the same fields and dtypes",
            )  # fmt: skip
        if field["kind"] != "array":
            continue
        fits = len(shape) == len(field["shape"])
        if not fits or any(int(m) not in (-1, n) for n, m in zip(shape, field["shape"], strict=True)):
            raise InvalidError(
                f"field {field['name']} has shape {shape}, and {[int(n) for n in field['shape']]} in other items",
                subject=field["name"],
                hint='ragged="list", "pad" or "nested", or a collate_fn, takes items of unlike shapes',
            )  # fmt: skip


def probe(maker: Maker, look: Look, clock: Clock, seconds: float, begins: Callable[[int], None]) -> Probe:
    """Looks at some items, each for so many seconds at most; ``begins`` is told the number of each.

    Raises:
        InvalidError: no item can be made, or they are unlike each other in more than sizes.
    """
    found: list[Layout] = []
    failures: list[Failure] = []
    digests: list[str] = []
    largest, end, first = 0, _clock.monotonic() + 1.0, -1
    wrong: BaseException | None = None
    for index in [*look.known, *(i for i in look.more if i not in look.known)]:
        if index not in look.known and _clock.monotonic() > end:
            break
        if index in look.skip:
            failures.append(Failure(index, "Died", "it ended the process that made it", ""))
            continue
        begins(index)
        clock.start(seconds)
        try:
            layouts, digest, size = _look(maker, index, 0, look.rules)
        except Exception as e:
            wrong = wrong or e
            failures.append(failure(index, e))
            continue
        finally:
            clock.stop()
        largest = max(largest, size)
        digests += [digest] * (index in look.known)
        first = index if first < 0 else first
        found = _merged(found, layouts, first, index, look.rules) if found else layouts
    if not found:
        raise _nothing(maker, failures, wrong)
    same, other = True, False
    if look.twice:
        again, elsewhere = _look(maker, first, 0, look.rules)[1], _look(maker, first, 1, look.rules)[1]
        same = again == _look(maker, first, 0, look.rules)[1]
        other = elsewhere != again or not same
    lost = [f"{f.sample}" for f in failures if f.sample in look.known]
    items = hashlib.blake2b("/".join([*digests, *lost]).encode(), digest_size=16).hexdigest() if same else ""
    if found[0].structure == Structure(EITHER, keys=(look.rules.owner,)):
        items = ""  # two processes may pickle equal items unlike
    layouts = [x if k < look.rules.first else _opened(x, look.rules) for k, x in enumerate(found)]
    return Probe(tuple(layouts), items, other, largest, tuple(failures))


_PICKLED = FieldDict(name=_nested.PICKLED, kind="array", dtype="uint8", shape=[-1])


def _opened(layout: Layout, rules: Rules) -> Layout:
    """The layout with room for items that are pickled.

    Where batches have one size, and are made of views, it would take that away: there is none then, unless the script
    has the items themselves.
    """
    fields, structure = layout
    dense = bool(fields) and all(-1 not in f["shape"] for f in fields)
    if not rules.owner or structure.kind == EITHER or (dense and not rules.always):
        return layout
    return Layout([*fields, _PICKLED], Structure(EITHER, keys=(rules.owner,), parts=(structure,)))


def _nothing(maker: Maker, failures: list[Failure], wrong: BaseException | None) -> InvalidError:
    if isinstance(wrong, InvalidError):
        return wrong
    error = InvalidError(
        f"item {failures[0].sample} of {_dataset.describe(maker.base)} cannot be made: {failures[0].words}\n"
        f"{failures[0].traceback}",
        subject="dataset",
        hint="the dataset raised it",
    )
    error.__cause__ = wrong
    return error


def failure(index: int, e: BaseException) -> Failure:
    """An exception of a dataset in words, with its traceback."""
    lines = "".join(traceback.format_exception(type(e), e, e.__traceback__))
    message = str(e).strip().partition("\n")[0]
    return Failure(index, type(e).__name__, message[:2000], lines[-_TRACEBACK:])


def _look(maker: Maker, index: int, seed: int, rules: Rules) -> tuple[list[Layout], str, int]:
    """The layouts of one item after each step, the digest of the item itself, and the largest record of it."""
    item, layouts, largest, digest, free = None, list[Layout](), 0, "", False
    for number in range(len(maker.steps) + 1):
        item = maker.step(item, seed, 0, index, number)
        run = _builtin.run_at(maker.steps, number) if number else []
        if run:
            before = layouts[-1]
            shapes = _builtin.Shapes(run, before.fields)
            item, free = shapes.stand_in(item, before.structure), free or shapes.varies
        try:
            leaves, structure, fields = _open(item, rules if number >= rules.first else Rules())
        except InvalidError as e:
            what = f"item {index}" if number == 0 else f"what {maker.steps[number - 1].name} makes of item {index}"
            raise InvalidError(f"{what}: {e.message}", subject=e.subject, hint=e.hint) from e
        size = _record.size(leaves)
        if number == 0:
            digest = _record.digest(leaves)
        largest = max(largest, size)
        layouts.append(Layout(_record.relax(fields) if free else fields, structure))
    return layouts, digest, largest


def _open(item: Any, rules: Rules) -> tuple[list[Leaf], Structure, list[FieldDict]]:
    """The leaves of an item, or the one that has it pickled; with their structure and fields."""
    try:
        leaves, structure = _nested.flatten(item, rules.exact)
        return leaves, structure, _record.describe(leaves, structure.names)
    except InvalidError:
        if not rules.owner:
            raise
    leaf = _opaque.leaf(item, rules.owner)
    _opaque.load(leaf.values, rules.owner)  # what cannot be made again is said before an epoch begins
    return [leaf], Structure(EITHER, keys=(rules.owner,)), [_PICKLED]


def _merge(a: Layout, b: Layout) -> Layout:
    for x, y in ((a, b), (b, a)):
        if x.structure.kind == EITHER and not x.structure.parts and y.structure.kind != EITHER:
            return x
    structure = _nested.merge(a.structure, b.structure)
    left, right = ({f["name"]: f for f in x.fields} for x in (a, b))
    fields = []
    for name in structure.names:
        if name in left and name in right:
            fields += _record.merge([left[name]], [right[name]])
        else:  # an empty list is no field, until another item shows what it is a list of
            fields.append(_record.FieldDict(left.get(name) or right[name], shape=[-1]))
    return Layout(fields, structure)


def _merged(a: list[Layout], b: list[Layout], first: int, index: int, rules: Rules) -> list[Layout]:
    """Layouts that both items have; raises InvalidError that names both where they must not be pickled."""
    out: list[Layout] = []
    try:
        for x, y in zip(a, b, strict=True):
            try:
                out.append(_merge(x, y))
            except InvalidError:
                if not rules.owner or len(out) < rules.first:
                    raise
                out.append(Layout([_PICKLED], Structure(EITHER, keys=(rules.owner,))))
        return out
    except InvalidError as e:
        raise InvalidError(
            f"items {first} and {index} are unlike: {e.message}", subject=e.subject,
            hint="give all items the same fields and types",
        ) from e  # fmt: skip
