"""Built-in ops on records that the daemon reads itself, through the real daemon: the bytes are those of the same ops on
the same items from a dataset in Python, whatever the format."""

from __future__ import annotations

import json
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
from real import formats, night

import larder
from larder import ops

OWN_DAEMON = True
HERE = Path(__file__).resolve()

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")


class Scenes:
    """What a format's own reader gave, as a dataset in Python."""

    names = ("image", "mask", "boxes", "n")

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            self._arrays = dict(arrays)

    def __len__(self) -> int:
        return len(self._arrays) // 3

    def __getitem__(self, i):
        return {**{k: self._arrays[f"{k}{i}"] for k in self.names[:3]}, "n": i}


@pytest.fixture(scope="module", params=["golden", pytest.param("large", marks=pytest.mark.nightly)])
def written(request, golden, tmp_path_factory):
    """Scenes in three formats: small ones of the set "scenes", or large ones, written once."""
    if request.param == "golden":
        return golden / "scenes"
    out = tmp_path_factory.mktemp("scenes")
    subprocess.run([formats(), "-W", "ignore", HERE.parent / "joint_files.py", out, "1"], check=True, timeout=600)
    return out


def told(out: Path, name: str):
    """The uri of a format, its scenes in Python, and the names of its fields."""
    uri, *names = json.loads((out / f"{name}.json").read_text())
    scheme, _, rest = uri.partition(":")
    return f"{scheme}:{out}/{rest}", Scenes(out / f"{name}.npz"), names


def recipe(names):
    """Every kind of op: before the first random one, random, on colours, casts, and behind the cast."""
    image, mask, boxes, _ = names
    return [
        ops.Fields(image=image, mask=mask, boxes=boxes), ops.Resize(24), ops.RandomResizedCrop((14, 18)), ops.HFlip(),
        ops.RandomRotation(20), ops.ColorJitter(0.4, 0.4, 0.4, 0.1), ops.GaussianBlur(3),
        ops.Normalize("imagenet"), ops.RandomErasing(),
    ]  # fmt: skip


def epochs(loader, names, count):
    """Shape and bytes of the fields by epoch and sample."""
    out = []
    for _ in range(count):
        found = {}
        for batch in loader:
            assert set(batch) == set(names)
            for row, i in enumerate(batch[names[3]].tolist()):
                assert i not in found
                values = [np.asarray(batch[k][row]) for k in names]
                found[i] = [(v.dtype, v.shape, v.tobytes()) for v in values]
        out.append(found)
    return out


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        *(("all", "wds"), ("none random", "parquet"), ("all", "mds")),
        *night(("none random", "wds"), ("all", "parquet"), ("none random", "mds")),
    ],
)
def test_records_of_files_and_items_in_python_give_the_same_bytes(real, written, name, steps):
    uri, scenes, names = told(written, name)
    count = None if steps == "all" else 2
    args = {"batch_size": 4, "shuffle": True, "seed": 5, "ragged": "list"}
    files = epochs(real(uri, transform=recipe(names)[:count], **args), names, 2)
    own = {"num_workers": 1, "name": f"{name}-{len(scenes)}-{count}", "cache": "items"}
    items = epochs(real(scenes, transform=recipe(scenes.names)[:count], **own, **args), scenes.names, 2)
    assert [sorted(found) for found in files] == [list(range(len(scenes)))] * 2
    assert files == items
    assert (files[0] == files[1]) == (steps != "all")
    (_, image, _), (_, mask, _) = files[0][1][:2]
    assert image == ((3, 14, 18) if steps == "all" else (*mask, 3))


@larder.transform(version=1)
def inverted(item, *, key):
    return {**item, key: 255 - item[key]}


def with_step(names):
    """The recipe with a step in Python between its ops."""
    fields, resize, *rest = recipe(names)
    return [fields, resize, inverted.bind(key=names[0]), fields, *rest]


@pytest.mark.parametrize("name", ["wds", "parquet", "mds"])
def test_steps_in_python_get_the_items_that_the_formats_own_readers_give(real, written, name):
    uri, scenes, names = told(written, name)
    args = {"batch_size": 4, "shuffle": True, "seed": 5, "ragged": "list", "num_workers": 1}
    files = epochs(real(uri, transform=with_step(names), **args), names, 2)
    own = {"name": f"{name}-{len(scenes)}-step", "cache": "items", "transform": with_step(scenes.names)}
    items = epochs(real(scenes, **own, **args), scenes.names, 2)
    assert [sorted(found) for found in files] == [list(range(len(scenes)))] * 2
    assert files == items


def test_an_image_and_a_class_need_no_fields(real, written):
    uri, scenes, _ = told(written, "wds")
    uri = uri.replace("jpg,seg.png,boxes.npy,cls", "jpg,cls")
    transform = [ops.CenterCrop(16), ops.ToTensor()]
    (batch,) = real(uri, batch_size=len(scenes), transform=transform, output="torch")
    assert tuple(batch["jpg"].shape) == (len(scenes), 3, 16, 16)
    assert batch["cls"].tolist() == list(range(len(scenes)))
    i = next(i for i in range(len(scenes)) if min(scenes[i]["image"].shape[:2]) >= 16)
    h, w = scenes[i]["image"].shape[:2]
    top, left = round((h - 16) / 2), round((w - 16) / 2)
    want = scenes[i]["image"][top : top + 16, left : left + 16].transpose(2, 0, 1)
    assert np.array_equal(np.rint(batch["jpg"][i].numpy() * 255), want)


@pytest.mark.parametrize("share", ["none", "augmented"])
def test_two_jobs_decode_each_record_once(private, written, share):
    uri, scenes, names = told(written, "parquet")
    daemon = private("tiers: {total: 64MiB, encoded: 0, decoded: 32MiB, augmented: 16MiB}\nmemory: {limit: 1GiB}\n")
    args = {"batch_size": 4, "shuffle": True, "transform": recipe(names), "share": share, "endpoint": daemon.socket}
    with larder.Loader(uri, job="a", seed=1, **args) as a, larder.Loader(uri, job="b", seed=1, **args) as b:
        for _ in range(2):
            for _ in zip(a, b, strict=True):
                pass
        assert a.stats().totals.decodes == len(scenes)


def test_an_epoch_goes_on_where_it_was(real, written):
    uri, _, names = told(written, "wds")
    args = {"batch_size": 3, "shuffle": True, "seed": 5, "transform": recipe(names)}
    (want,) = epochs(real(uri, **args, job="whole"), names, 1)
    first = real(uri, **args, job="first")
    found = {}
    for _, batch in zip(range(3), first, strict=False):
        for row, i in enumerate(batch[names[3]].tolist()):
            found[i] = batch[names[0]][row].tobytes()
    state = first.state_dict()
    first.close()
    again = real(uri, **args, job="first")
    again.load_state_dict(state)
    for batch in again:
        for row, i in enumerate(batch[names[3]].tolist()):
            assert i not in found
            found[i] = batch[names[0]][row].tobytes()
    assert found == {i: fields[0][2] for i, fields in want.items()}


def test_a_mask_that_is_not_named_is_warned_of(real, written):
    uri, _, _ = told(written, "parquet")
    with pytest.warns(larder.FieldsWarning, match=r"ops.Fields\(mask='mask'\)"):
        real(uri, batch_size=2, transform=[ops.HFlip()])
    with warnings.catch_warnings():
        warnings.simplefilter("error", larder.FieldsWarning)
        real(uri, batch_size=2, transform=[ops.Fields(), ops.HFlip()])
        real(uri, batch_size=2, transform=[ops.ColorJitter(0.5)])
        uri, _, _ = told(written, "wds")
        real(uri.replace("seg.png,", ""), batch_size=2, transform=[ops.HFlip()])


def test_functions_without_the_mark_are_refused_with_what_to_do(real, written):
    uri, _, _ = told(written, "wds")
    for transform in ([lambda item: item], [inverted, lambda item: item]):
        with pytest.raises(larder.InvalidError, match=r"cannot run in the daemon.*@larder\.transform"):
            real(uri, batch_size=2, transform=transform)
