"""Images that torchvision reads and the daemon's decoder does not: the script's process reads them by its dataset.

Kinds that the daemon does not have (CMYK in TIFF, JPEG 2000), images larger than its limits, and files that are cut
where the script lets Pillow read such (``ImageFile.LOAD_TRUNCATED_IMAGES``). The batch is what torch's would be.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from . import _seeds
from ._dataset import Indices
from ._listed import Rows
from ._run import Run
from ._shared import Shared
from ._stats import Quarantined
from ._wire import BatchHeader
from .errors import of_item

_said: set[str] = set()


class Item(NamedTuple):
    """An item that this process made."""

    place: int  # in its batch
    position: int  # in the dataset
    image: Any
    label: int


def made(shared: Shared, run: Run, b: BatchHeader, bad: tuple[Quarantined, ...]) -> list[Item]:
    """The items that a batch lacks, in the order of the batch; empty where it lacks none, or one cannot be made here.

    ``bad``: the samples that the daemon could not prepare.

    Raises:
        SampleError: the dataset cannot make one either, and the script is to be told.
    """
    native = shared.settings.native
    if not bad or native is None or native.dataset is None or shared.on_error == "substitute":
        return []
    if run.raised >= b.step:  # it was tried, and the script was told
        return []
    places = _places(shared, run, b, {q.id for q in bad})
    seed, found = int(shared.described.get("seed") or 0), []
    try:
        for place, position in places:
            with _seeds.Kept():
                _seeds.seed_globals(_seeds.key(seed, run.epoch, int(native.ids[position]), 0))
                image, label = native.dataset[position]
            found.append(Item(place, position, image, int(label)))
    except Exception as e:
        if shared.on_error != "raise":
            return []
        run.raised = b.step
        shared.note_bad(bad)
        raise of_item(bad, type(e)) from e
    if found and bad[0].reason not in _said:
        _said.add(bad[0].reason)
        why = f"{bad[0].path or bad[0].key}, which the daemon cannot: {bad[0].reason}"
        print(f"larder: this process reads {why}", file=sys.stderr, flush=True)
    return found


def _places(shared: Shared, run: Run, b: BatchHeader, ids: set[int]) -> list[tuple[int, int]]:
    """Where in the batch, and where in the dataset, the samples of these ids are; empty where that is not known."""
    native = shared.settings.native
    assert native is not None
    if run.stream is not None:
        positions = run.stream.picked(b.step)
    elif shared.described.get("shuffle"):
        rows = [int(np.flatnonzero(native.ids == i)[0]) for i in sorted(ids)]
        return [(b.rows + n, row) for n, row in enumerate(rows)]
    else:
        size = int(shared.described.get("batchSize") or 0)
        first = (run.before + b.step) * size
        positions = np.arange(first, min(first + size, len(native.ids)))
    found = [(n, int(p)) for n, p in enumerate(positions) if int(native.ids[p]) in ids]
    return found if b.rows + len(found) == len(positions) else []


def joined(batch: Any, items: list[Item]) -> Any:
    """A batch with the items that it lacks."""
    columns: list[Any] = []
    for n, column in enumerate(batch):
        values = [(x.image, x.label, x.position)[n] for x in items]
        columns.append(_insert(column, [x.place for x in items], values))
    return type(batch)(columns)


def alone(shared: Shared, items: list[Item]) -> Any:
    """A batch of such items and no other."""
    torch: Any = sys.modules["torch"]
    columns = [torch.stack([x.image for x in items]), torch.tensor([x.label for x in items])]
    form = shared.form
    if form.index if isinstance(form, Rows) else "index" in shared.settings.fields:
        columns.append(torch.tensor([x.position for x in items]))
    if shared.settings.output == "numpy":
        columns = [x.numpy() for x in columns]
    return columns if isinstance(form, Rows) and form.as_list else tuple(columns)


def _insert(column: Any, places: list[int], values: list[Any]) -> Any:
    torch: Any = sys.modules["torch"]
    old = torch.as_tensor(column)
    new = torch.empty((len(old) + len(places), *old.shape[1:]), dtype=old.dtype)
    kept: Indices = np.setdiff1d(np.arange(len(new)), places)
    new[torch.from_numpy(kept)] = old
    for place, value in zip(places, values, strict=True):
        new[place] = value if isinstance(value, int) else value.to(new.dtype)
    return new if isinstance(column, torch.Tensor) else new.numpy()
