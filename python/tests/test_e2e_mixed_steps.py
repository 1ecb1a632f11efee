"""End to end: steps in Python on samples that the daemon reads. The batches are those of the same items and steps as a
dataset in Python; workers may die, hang and raise; jobs share."""

from __future__ import annotations

import os
import signal
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from function_items import Made
from pace import pace
from PIL import Image
from real import draw, night

import larder
from larder import ops

OWN_DAEMON = True
N = 40
pytestmark = pytest.mark.filterwarnings(
    "ignore::larder.DatasetWarning", "ignore::larder.KeptBatchesWarning", "ignore::larder.NotSharedWarning"
)


def picture(i):
    return np.random.default_rng(i).integers(0, 256, (26 + i % 5, 30, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    out = tmp_path_factory.mktemp("mixed-steps")
    with tarfile.open(out / "a.tar", "w") as tar:
        for i in range(N):
            file = out / "file.png"
            Image.fromarray(picture(i)).save(file)
            for suffix, data in (("png", file.read_bytes()), ("cls", b"%d" % (i % 6)), ("txt", b"n%d" % i)):
                part = out / f"{i:04d}.{suffix}"
                part.write_bytes(data)
                tar.add(part, part.name)
                part.unlink()
    return f"wds:{out}?fields=png,cls,txt"


class Twin:
    """What the tars hold, as a dataset in Python."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"png": picture(i), "cls": i % 6, "txt": f"n{i}"}


@larder.transform(version=2)
def halved(item, *, by=2):
    return {**item, "png": item["png"] // by, "length": len(item["txt"])}


@larder.transform(random=True)
def noise(item, rng):
    return {**item, "noise": rng.random(3)}


CROP = [ops.Fields(image="png"), ops.RandomResizedCrop(16), ops.HFlip()]
RECIPES = {
    "before": [halved, *CROP],
    "between": [ops.Fields(image="png"), ops.CenterCrop(24), halved, *CROP, noise],
    "after": [*CROP, halved],
    "alone": [halved],
    "random-first": [noise, halved, ops.Fields(image="png"), ops.CenterCrop(8), ops.ToTensor()],
    "cast": [ops.Fields(image="png"), ops.CenterCrop(8), halved, ops.Fields(image="png"), ops.Normalize("imagenet")],
}


def epochs(loader, count=2):
    """Values by sample, epoch by epoch; each sample comes once."""
    out = []
    for _ in range(count):
        found = {}
        for batch, ids in loader:
            for row, i in enumerate(ids.tolist()):
                assert i not in found
                found[i] = {k: v[row] if isinstance(v[row], str) else np.array(v[row]) for k, v in batch.items()}
        assert sorted(found) == list(range(N))
        out.append(found)
    return out


def assert_equal(got, want):
    compared = 0
    for a, b in zip(got, want, strict=True):
        for i in range(N):
            assert a[i].keys() == b[i].keys()
            for k, v in a[i].items():
                w = b[i][k]
                assert v == w if isinstance(v, str) else v.dtype == w.dtype and np.array_equal(v, w), (i, k)
                compared += 1
    assert compared >= 2 * N * 3


ARGS = {"batch_size": 7, "shuffle": True, "seed": 5, "return_index": True}


@pytest.mark.parametrize(
    ("name", "workers"),
    [*((n, 2) for n in RECIPES if n != "alone"), ("before", 0), *night(("alone", 2), ("between", 0))],
)
def test_the_batches_are_those_of_a_dataset_in_python(tars, real, name, workers):
    kw = {**ARGS, "transform": RECIPES[name], "ragged": "list"}
    files = epochs(real(tars, num_workers=workers, **kw))
    twin = epochs(real(Twin(), num_workers=1, name=f"twin-{name}", cache="items", **kw))
    assert_equal(files, twin)


@pytest.mark.nightly
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_workers_may_be_started_otherwise(tars, real, start):
    kw = {**ARGS, "transform": [*CROP, halved.bind(by=3)]}
    files = epochs(real(tars, num_workers=1, multiprocessing_context=start, **kw), 1)
    twin = epochs(real(Twin(), num_workers=1, name=f"twin-{start}", cache="items", **kw), 1)
    assert_equal(files + files, twin + twin)


def test_images_of_folders_are_items_of_image_and_label(real, tmp_path):
    folder = draw(tmp_path, 3, 5)
    files = sorted(p for p in Path(folder).rglob("*.*") if p.is_file())
    classes = sorted({p.parent.name for p in files})

    @larder.transform(version=1)
    def mean(item):
        assert set(item) == {"image", "label"}
        return {**item, "mean": item["image"].astype(np.float64).mean((0, 1)), "pixels": item["image"].size}

    seen = 0
    loader = real(f"imagefolder:{folder}", batch_size=4, num_workers=1, return_index=True, transform=[mean])
    plain = real(f"imagefolder:{folder}", batch_size=4)
    for (batch, ids), (images, labels) in zip(loader, plain, strict=True):
        for row in range(len(ids)):
            assert np.array_equal(batch["image"][row], images[row])
            assert batch["label"][row] == labels[row] < len(classes)
            assert np.array_equal(batch["mean"][row], images[row].astype(np.float64).mean((0, 1)))
            assert batch["pixels"][row] == images[row].size
            seen += 1
    assert seen == len(files)


def test_deterministic_steps_run_once_for_jobs_that_share(tars, real, tmp_path):
    """Two jobs, two epochs each: each sample is read, and what precedes the random step is made, once."""
    log = tmp_path / "calls"

    @larder.transform(version=7)
    def counted(item):
        with log.open("a") as f:
            f.write(item["txt"] + "\n")
        return {**item, "seen": 1}

    kw = {**ARGS, "transform": [counted, *CROP]}
    a, b = (real(tars, num_workers=1, job=f"share-{n}", **{**kw, "seed": n}) for n in range(2))
    first = epochs(a)
    second = epochs(b)
    assert not all(np.array_equal(first[0][i]["png"], first[1][i]["png"]) for i in range(N))
    assert not all(np.array_equal(first[0][i]["png"], second[0][i]["png"]) for i in range(N))
    calls = log.read_text().split()
    assert len(set(calls)) == N
    assert len(calls) <= N + 8 * 2 + 4  # each loader tries the steps on eight samples first; a worker may repeat one
    counters = a.stats().job.counters
    assert counters.source_reads <= N


def test_an_item_that_kills_or_raises_is_left_out_with_its_traceback(tars, real, server):
    @larder.transform(version=1)
    def picky(item):
        if item["txt"] == "n3":
            os.kill(os.getpid(), signal.SIGKILL)
        if item["txt"] == "n5":
            raise ValueError("n5 is not liked")
        return {**item, "ok": True}

    with pytest.warns(larder.WorkerWarning):
        loader = real(tars, num_workers=2, transform=[picky, *CROP], on_error="skip", job="picky", **ARGS)
        ids = [i for _, ids in loader for i in ids.tolist()]
    assert sorted(ids) == [i for i in range(N) if i not in (3, 5)]
    bad = {q.id: q for q in loader.quarantined}
    assert set(bad) == {3, 5}
    assert bad[5].reason.startswith("ValueError: n5 is not liked") and bad[3].reason
    assert "in picky" in str(server.cli("jobs", "describe", "picky", "-o", "yaml"))


def test_workers_killed_at_random_lose_nothing(tars, real):
    @larder.transform(version=3)
    def slow(item):
        pace(0.005)
        return item

    kw = {**ARGS, "batch_size": 3, "transform": [slow, *CROP, noise]}
    twin = epochs(real(Twin(), num_workers=1, name="twin-killed", cache="items", **kw))
    loader = real(tars, num_workers=2, **kw)
    rng, got = np.random.default_rng(1), []
    with pytest.warns(larder.WorkerWarning):
        for _ in range(2):
            found = {}
            for step, (batch, ids) in enumerate(loader):
                if step % 5 == 1:
                    crew = loader._shared.makers.crew
                    os.kill(crew.members[rng.integers(2)].process.pid, signal.SIGKILL)
                for row, i in enumerate(ids.tolist()):
                    assert i not in found
                    found[i] = {k: v[row] if isinstance(v[row], str) else np.array(v[row]) for k, v in batch.items()}
            got.append(found)
    assert_equal(got, twin)


def test_a_step_that_hangs_is_left_out(tars, real, tmp_path, clock):
    made = Made(tmp_path)

    @larder.transform(version=1)
    def hanging(item):
        if made.note(int(item["txt"][1:])) == 7:
            threading.Event().wait()
        return {**item, "done": 1}

    kw = {"sample_timeout": 3600.0, "on_error": "skip", "ragged": "list", "timeout": 1e6}
    loader = real(tars, num_workers=2, transform=[hanging], **kw, **ARGS)
    with clock.stepping(3600, lambda steps: made.hangs(7, steps, clock)):
        ids = [i for _, ids in loader for i in ids.tolist()]
    assert sorted(ids) == [i for i in range(N) if i != 7]


def test_a_damaged_file_is_a_bad_sample(real, tmp_path):
    folder = draw(tmp_path, 2, 4)
    victim = sorted(p for p in Path(folder).rglob("*.*") if p.is_file())[5]
    victim.write_bytes(b"\xff\xd8 no image")

    @larder.transform(version=1)
    def same(item):
        return item

    kw = {"batch_size": 3, "return_index": True, "transform": [same, ops.CenterCrop(8)], "num_workers": 1}
    loader = real(f"imagefolder:{folder}", on_error="skip", **kw)
    assert sum(len(ids) for _, ids in loader) == 7
    (bad,) = loader.quarantined
    assert bad.key.endswith(victim.name)


def test_mixing_subsets_and_masks_work_with_steps(tars, real):
    loader = real(tars, num_workers=1, subset="label < 3", transform=[halved, *CROP, ops.CutMix(num_classes=6)], **ARGS)
    seen = [(batch["cls"], ids) for batch, ids in loader]
    assert sum(len(ids) for _, ids in seen) == sum(i % 6 < 3 for i in range(N))
    assert all(labels.shape == (len(ids), 6) and np.allclose(labels.sum(1), 1) for labels, ids in seen)


@pytest.mark.parametrize(
    ("kw", "words"),
    [
        ({"name": "x"}, "name is for datasets in Python"),
        ({"cache": "items"}, "cache is for datasets in Python"),
        ({"fields": ["image"]}, "fields= is for image folders"),
        ({"order": "blocks(4)"}, "order blocks with steps in Python does not work yet"),
        ({"num_workers": 0, "world_size": 2, "rank": 0}, "num_workers=0 works for one rank"),
    ],
)
def test_what_does_not_go_with_steps_is_refused(tars, real, kw, words):
    args = {"num_workers": 1, "batch_size": 4, "shuffle": True, **kw}
    with pytest.raises(larder.Error, match=words):
        real(tars, transform=[halved, ops.Fields(image="png"), ops.CenterCrop(8)], **args)
