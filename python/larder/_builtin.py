"""Built-in ops among the steps of a dataset in Python: which fields they touch, and what items look like behind them.

The daemon runs the ops. This process needs to know only the shapes and dtypes that they leave, for the schema of the
job and for steps in Python behind them, which are tried on a stand-in of the right shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _nested, _record, _transform, ops
from ._caller import warn
from ._messages import OpMessage
from ._nested import Structure
from ._record import FieldDict, Leaf
from ._transform import Transform
from .errors import FieldsWarning, InvalidError

_GEOMETRIC = (
    *(ops.Resize, ops.CenterCrop, ops.RandomResizedCrop, ops.RandomHorizontalFlip, ops.RandomVerticalFlip),
    *(ops.RandomRotation, ops.RandomAffine),
)


@dataclasses.dataclass(frozen=True)
class Builtin:
    """One op that the daemon runs."""

    op: ops.Op
    added: bool = False  # a Fields op that the script did not write

    random = False

    @property
    def name(self) -> str:
        """The name of the op."""
        return type(self.op).__name__

    def message(self, before: Sequence[FieldDict] | None = None) -> OpMessage:
        """The op as an Op message; ``before``: what records look like there, which a Fields op says."""
        out = (self.op if before is None else called(self.op, before)).to_json()
        if before is not None:
            fields = [{**f, "shape": [str(n) for n in f["shape"]]} for f in _record.relax(before)]
            out["args"] = {**out.get("args", {}), "record": fields}
        return out


Step = Transform | Builtin


def steps(transform: Any) -> list[Step]:
    """The steps of a ``transform`` argument, flattened. Each run of built-in ops begins with a Fields op.

    Raises:
        InvalidError: one of them is no step.
    """
    found: list[Step] = []
    for t in _flat(transform):
        fields = isinstance(t, Builtin) and isinstance(t.op, ops.Fields)
        if isinstance(t, Builtin) and not fields and not (found and isinstance(found[-1], Builtin)):
            found.append(Builtin(ops.Fields(), added=True))
        found.append(t)
    return found


def called(op: ops.Op, fields: Sequence[FieldDict]) -> Any:
    """An op that names fields, by the names that fields of items have: one with a dot in it is ``['seg.png']``."""
    known = {f["name"] for f in fields}

    def name(value: Any) -> Any:
        if isinstance(value, str):
            return value if value in known or f"[{value!r}]" not in known else f"[{value!r}]"
        return value if value is None else [name(v) for v in value]

    roles = [f.name for f in dataclasses.fields(op) if f.name in _ROLES]  # type: ignore[arg-type]
    return dataclasses.replace(op, **{r: name(getattr(op, r)) for r in roles})  # type: ignore[type-var]


_ROLES = ("image", "mask", "boxes", "keypoints", "label")


def in_python(transform: Any) -> bool:
    """Whether a ``transform`` argument, for samples that the daemon reads, has a step in Python."""
    inner = _inner(transform)
    return any(map(in_python, inner)) if inner is not None else isinstance(transform, Transform)


def translated(transform: Any) -> list[Any]:
    """A ``transform`` argument with ops in the place of what stands for them, flattened.

    Raises:
        InvalidError: an object of torchvision has no counterpart, or a function is not marked as a step.
    """
    inner = _inner(transform)
    if inner is not None:
        return [x for t in inner for x in translated(t)]
    if transform is None:
        return []
    if isinstance(transform, (Transform, ops.Op)):
        return [transform]
    message = ops.recipe(transform)[0]  # refuses what is neither
    made: Any = getattr(ops, str(message.get("name")), None)
    if message.get("name") not in ops.__all__ or not dataclasses.is_dataclass(made):
        raise InvalidError(
            f"transform: op {message.get('name')!r} beside steps in Python", reason="RECIPE_INVALID",
            subject="transform", hint="write it as a class of larder.ops",
        )  # fmt: skip
    known = {f.name for f in dataclasses.fields(made)}
    return [made(**{k: v for k, v in (message.get("args") or {}).items() if k in known})]  # type: ignore[operator]


def _inner(t: Any) -> list[Any] | None:
    """What a list of transforms, or a Compose, is made of; None: it is neither."""
    cls = type(t)
    foreign = cls.__module__.startswith("torchvision.transforms") and cls.__name__ == "Compose"
    if isinstance(t, ops.Compose) or foreign:
        return list(t.transforms)
    return list(t) if isinstance(t, (list, tuple)) else None


def shown(found: Sequence[Step]) -> list[ops.Op]:
    """Ops that change nothing, by which stored masks come as the steps are to see them; most recipes need none."""
    out: list[ops.Op] = []
    for step in found:
        if not isinstance(step, Builtin):
            break
        if isinstance(step.op, ops.Fields) and step.op.mask is not None:
            out += [step.op, ops.RandomHorizontalFlip(p=0.0)]
    return out


def mixing(found: Sequence[Step]) -> tuple[list[Step], ops.Op | None]:
    """The steps, and the MixUp or CutMix that they end in, which is done on batches."""
    last = found[-1] if found else None
    if not isinstance(last, Builtin) or not isinstance(last.op, (ops.MixUp, ops.CutMix)):
        return list(found), None
    rest = list(found[:-1])
    if rest and isinstance(rest[-1], Builtin) and rest[-1].added:  # a run that had nothing else
        del rest[-1]
    return rest, last.op


def _flat(transform: Any) -> list[Step]:
    if isinstance(transform, ops.Compose):
        return _flat(transform.transforms)
    if isinstance(transform, (list, tuple)):
        return [s for t in transform for s in _flat(t)]
    if isinstance(transform, ops.Op):
        return [Builtin(transform)]
    return list(_transform.steps(transform))


def run_at(found: Sequence[Step], number: int) -> list[ops.Op]:
    """The ops of the run whose last step is ``number`` (from 1); empty when no run ends there."""
    at = number - 1
    last = found[at]
    if not isinstance(last, Builtin):
        return []
    if at + 1 < len(found):
        behind = found[at + 1]
        if isinstance(behind, Builtin) and not isinstance(behind.op, ops.Fields):
            return []
    run: list[ops.Op] = []
    while at >= 0:
        step = found[at]
        if not isinstance(step, Builtin):
            break
        run.insert(0, step.op)
        if isinstance(step.op, ops.Fields):
            break
        at -= 1
    return run


def warn_of(found: Sequence[Step], layouts: Sequence[Sequence[FieldDict]]) -> None:
    """Warns of fields that were perhaps forgotten; ``layouts`` are the fields of items after each step."""
    for number in range(1, len(found) + 1):
        run = run_at(found, number)
        first = found[number - len(run)] if run else None
        if isinstance(first, Builtin) and first.added:
            words = Shapes(run, layouts[number - len(run)]).overlooked()
            if words:
                warn(words, FieldsWarning)


_MOVING = {"hflip", "vflip", *(op.__name__.lower() for op in _GEOMETRIC)}


def forgotten(transform: Sequence[OpMessage], fields: Sequence[Any]) -> str:
    """What to say of a field of stored records that looks like the mask of an image that moves; empty = nothing.

    ``fields`` are those behind ``transform``, which names none.
    """
    names = [str(op.get("name", "")) for op in transform]
    moved = [n for n in names if n.lower() in _MOVING]
    if not moved or "Fields" in names:
        return ""
    planes: list[str] = []  # of sizes of their own, so no op has touched them
    for f in fields:
        shape = [int(n) for n in f.get("shape") or ()]
        if f.get("dtype") == "uint8" and f.get("kind") == "array" and shape in ([-1, -1], [-1, -1, 3]):
            planes.append(str(f.get("name", "")))
    if not any(f.get("name") == "image" for f in fields):
        images = [n for n in planes for f in fields if f.get("name") == n and len(f["shape"]) == 3]
        planes = [n for n in planes if n not in images]
    like = [n for n in planes if n != "image"]
    if not like:
        return ""
    return (
        f"{moved[0]} moves the pixels of the image, and field {like[0]!r}, which may be its mask, stays as it is; name "
        f"it, ops.Fields(mask={like[0]!r}), or say that it is no mask: ops.Fields()"
    )


class Shapes:
    """What a run of ops makes of items of one structure, in shapes and dtypes."""

    def __init__(self, run: Sequence[ops.Op], fields: Sequence[FieldDict]) -> None:
        named = called(run[0], fields) if isinstance(run[0], ops.Fields) else ops.Fields()
        self._ops = [op for op in run if not isinstance(op, ops.Fields)]
        self._fields = {f["name"]: f for f in fields}
        self.image = self._image(named.image)
        self.masks = _names(named.mask)
        for name in (*self.masks, *_names(named.boxes), *_names(named.keypoints)):
            if name not in self._fields:
                raise self._refused(name, "there is no such field", "the fields are " + ", ".join(self._fields))
        self._named = {self.image, *self.masks, *_names(named.boxes), *_names(named.keypoints)}

    @property
    def varies(self) -> bool:
        """Whether the size behind the ops is drawn anew for each sample."""
        expands = [isinstance(op, ops.RandomRotation) and op.expand for op in self._ops]
        fixes = [_fixed(op) for op in self._ops]
        return any(e and not any(fixes[i:]) for i, e in enumerate(expands))

    def overlooked(self) -> str:
        """What to say of a field that looks like the mask of an image whose pixels move; empty = nothing."""
        moved = [op for op in self._ops if isinstance(op, _GEOMETRIC)]
        size = self._fields[self.image]["shape"][:2]
        others = [(n, f["shape"]) for n, f in self._fields.items() if n not in self._named and f["kind"] == "array"]
        like = [n for n, shape in others if len(shape) > 1 and size in (shape[-2:], shape[:2])]
        if not moved or not like:
            return ""
        return (
            f"{type(moved[0]).__name__} moves the pixels of field {self.image!r}, and field {like[0]!r} of its size "
            f"stays as it is; name it, ops.Fields(mask={like[0]!r}), or say that it is no mask: "
            f"ops.Fields(image={self.image!r})"
        )

    def stand_in(self, item: Any, structure: Structure) -> Any:
        """An item with the shapes and dtypes that the ops leave; its values are those of ``item``, moved about.

        Raises:
            InvalidError: a field does not fit the ops.
        """
        leaves = _nested.leaves(item, structure)
        values = [x.values for x in leaves]
        places = {name: i for i, name in enumerate(structure.names)}
        at = places[self.image]
        height, width = values[at].shape[:2]
        size = self._size(height, width)
        values[at] = self._cast(_resampled(values[at], 0, size))
        for name in self.masks:
            i = places[name]
            shape = values[i].shape
            if len(shape) < 2 or shape[-2:] != (height, width):
                raise self._refused(
                    name, f"it has the shape {list(shape)}, and the image has {height} x {width} pixels",
                    "masks are arrays [..., H, W] of the size of the image",
                )  # fmt: skip
            values[i] = _resampled(values[i], len(shape) - 2, size)
        return _nested.unflatten([_given(x, v) for x, v in zip(leaves, values, strict=True)], structure)

    def _image(self, name: str | None) -> str:
        can = [n for n, f in self._fields.items() if _is_image(f)]
        if name is None:
            name = "image" if "image" in self._fields else can[0] if len(can) == 1 else None
        hint = 'images are uint8 arrays [H, W, 3]; say which field it is: ops.Fields(image="...")'
        if name is None:
            raise InvalidError(
                f"op {type(self._ops[0]).__name__}: {len(can)} fields of the items can be its image"
                + (": " + ", ".join(can)) * bool(can),
                reason="RECIPE_INVALID", subject="transform", hint=hint,
            )  # fmt: skip
        if name not in self._fields:
            raise self._refused(name, "there is no such field", "the fields are " + ", ".join(self._fields))
        if not _is_image(self._fields[name]):
            f = self._fields[name]
            raise self._refused(name, f"it is {f['kind']} {f['dtype']} {f['shape']}, which is no image", hint)
        return name

    def _refused(self, field: str, why: str, hint: str) -> InvalidError:
        op = type(self._ops[0]).__name__ if self._ops else "Fields"
        return InvalidError(f"op {op}, field {field!r}: {why}", reason="RECIPE_INVALID", subject=field, hint=hint)

    def _size(self, h: int, w: int) -> tuple[int, int]:
        for op in self._ops:
            if isinstance(op, (ops.CenterCrop, ops.RandomResizedCrop)):
                h, w = _pair(op.size)
            elif isinstance(op, ops.Resize):
                h, w = _pair(op.size) if _fixed(op) else _shorter(op, h, w)
        return h, w

    def _cast(self, image: Any) -> Any:
        layout, floats, channels = "HWC", False, 3
        for op in self._ops:
            if isinstance(op, ops.Grayscale) and op.num_output_channels == 1:
                channels = 1
            elif isinstance(op, (ops.ToTensor, ops.ToImage, ops.PILToTensor)):
                layout, floats = "CHW", floats or isinstance(op, ops.ToTensor)
            elif isinstance(op, ops.ToDtype):
                args = op.to_json().get("args", {})
                layout = str(args.get("layout", layout if floats else "CHW")).upper()
                floats = "float" in str(args["dtype"])
            elif isinstance(op, ops.Normalize):
                layout, floats = layout if floats else "CHW", True
        image = image[..., :channels]
        image = image if layout == "HWC" else np.moveaxis(image, -1, 0)
        return image.astype(np.float32) / np.float32(255) if floats else np.ascontiguousarray(image)


def _names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def _is_image(f: FieldDict) -> bool:
    return f["kind"] == "array" and f["dtype"] == "uint8" and len(f["shape"]) == 3 and int(f["shape"][2]) in (3, -1)


def _fixed(op: ops.Op) -> bool:
    """Whether all images have one size behind an op."""
    if isinstance(op, (ops.CenterCrop, ops.RandomResizedCrop)):
        return True
    return isinstance(op, ops.Resize) and not isinstance(op.size, int) and len(op.size) == 2


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    return int(size[0]), int(size[-1])


def _shorter(op: ops.Resize, h: int, w: int) -> tuple[int, int]:
    """The size behind a Resize of the shorter side, as torchvision computes it."""
    short = _pair(op.size)[0]
    long = int(short * max(h, w) / min(h, w))
    if op.max_size is not None and long > op.max_size:
        short, long = max(int(op.max_size * short / long), 1), op.max_size
    return (long, short) if w <= h else (short, long)


def _resampled(a: Any, axis: int, size: tuple[int, int]) -> Any:
    """An array with another size along two axes."""
    for k, n in enumerate(size):
        have = a.shape[axis + k]
        a = np.take(a, np.arange(n) * have // n if have else np.zeros(0, np.intp), axis=axis + k)
    return a


def _given(leaf: Leaf, values: Any) -> Any:
    if leaf.kind == _record.TEXT:
        return values.tobytes().decode()
    if leaf.kind == _record.BYTES:
        return values.tobytes()
    return values[()] if leaf.kind == _record.SCALAR else values
