"""End to end: what a Loader gives whose recipe ends in MixUp or CutMix."""

from __future__ import annotations

import numpy as np
import pytest
from real import draw

import larder
from larder import ops
from larder._mix import Mixer

RECIPE = [ops.RandomResizedCrop(24), ops.RandAugment(), ops.Normalize("imagenet"), ops.RandomErasing(p=0.5)]
MIXUP = ops.MixUp(alpha=0.4, num_classes=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("mix"), 5, 8)


def epochs(loader, n):
    return [[tuple(np.array(v) for v in b) for b in loader] for _ in range(n)]


def assert_mixed(mixed, plain, mixer, epoch, first=0):
    assert len(mixed) == len(plain) > 0
    for step, (a, b) in enumerate(zip(mixed, plain, strict=True)):
        images, labels, *rest = mixer.mix(("image", "label", "index"), list(b), False, epoch, first + step)
        assert np.array_equal(a[0], images) and np.array_equal(a[1], labels) and np.array_equal(a[2], rest[0])
        assert a[1].shape == (len(a[0]), 5) and np.allclose(a[1].sum(1), 1)


@pytest.mark.parametrize("op", [MIXUP, ops.CutMix(num_classes=5)])
def test_mixes_the_batches_that_it_would_have_given(folder, real, op):
    kw = {"batch_size": 7, "shuffle": True, "order": "fixed", "seed": 3, "return_index": True}
    plain = epochs(real(f"imagefolder:{folder}", job="plain", transform=RECIPE, **kw), 2)
    mixed = epochs(real(f"imagefolder:{folder}", job="mixed", transform=[*RECIPE, op], **kw), 2)
    again = epochs(real(f"imagefolder:{folder}", job="again", transform=[*RECIPE, op], **kw), 2)
    m = Mixer.of({"transform": ops.recipe(op), "seed": "3"}, 0)
    for epoch in range(2):
        assert_mixed(mixed[epoch], plain[epoch], m, epoch)
        for a, b in zip(mixed[epoch], again[epoch], strict=True):
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not np.array_equal(mixed[0][0][1], mixed[1][0][1])


def test_a_resumed_epoch_mixes_alike(folder, lives, loads):
    kw = {"batch_size": 4, "shuffle": True, "order": "fixed", "seed": 6, "return_index": True}
    kw["transform"] = [*RECIPE, MIXUP]
    x, y = lives("x"), lives("y")
    uri = f"imagefolder:{folder}"
    whole = epochs(loads(x, uri, job="whole", **kw), 1)[0]
    a = loads(x, uri, job="a", **kw)
    it = iter(a)
    for _ in range(3):
        next(it)
    state = a.state_dict(portable=True)
    b = loads(y, uri, job="b", **kw)
    b.load_state_dict(state)
    rest = epochs(b, 1)[0]
    assert len(rest) == len(whole) - 3
    for got, want in zip(rest, whole[3:], strict=True):
        assert all(np.array_equal(p, q) for p, q in zip(got, want, strict=True))
    held = [batch for batch in loads(x, uri, job="held", **{**kw, "prefetch": 1})]  # mixed batches hold no slot
    assert len({batch[0].ctypes.data for batch in held}) == len(held) == 10


def test_tensors_and_jobs_that_others_registered(folder, real, torch):
    kw = {"batch_size": 4, "transform": [*RECIPE, MIXUP]}
    first = real(f"imagefolder:{folder}", job="registered", **kw)
    images, _ = next(iter(first))
    second = real(f"imagefolder:{folder}", job="tensors", output="torch", **kw)
    tensors = next(iter(second))
    assert torch.equal(tensors[0], torch.from_numpy(images)) and tensors[1].dtype == torch.float32
    with pytest.raises(larder.InvalidError, match="mixes images and labels"):
        real(f"imagefolder:{folder}", fields=["image"], **kw)
    first.close()


def test_a_job_of_a_file_mixes_too(folder, server, real, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(f"""
name: filed
dataset: imagefolder:{folder}
batch_size: 8
seed: 5
transform:
  - Resize: {{size: [20, 24]}}
  - TrivialAugmentWide
  - ToTensor
  - CutMix: {{num_classes: 5}}
""")
    server.cli("jobs", "register", "-f", str(job))
    with pytest.raises(larder.InvalidError, match="mixes images and labels"):
        real("job:filed", fields=["image", "index"])
    filed = epochs(real("job:filed", return_index=True), 1)[0]
    recipe = [ops.Resize((20, 24)), ops.TrivialAugmentWide(), ops.ToTensor()]
    kw = {"job": "unmixed", "batch_size": 8, "seed": 5, "return_index": True}
    plain = epochs(real(f"imagefolder:{folder}", transform=recipe, **kw), 1)[0]
    m = Mixer.of({"transform": ops.recipe(ops.CutMix(num_classes=5)), "seed": "5"}, 0)
    assert_mixed(filed, plain, m, 0)


def test_what_cannot_be_mixed_is_refused(folder, real):
    for ops_, words in (
        ([ops.CenterCrop(8), ops.MixUp(num_classes=5)], "mixes float32 values, and the recipe gives uint8"),
        ([ops.CenterCrop(8), ops.ToTensor(), ops.MixUp()], "needs the argument num_classes"),
        ([ops.CutMix(num_classes=5)], "images of one size"),
        ([ops.CenterCrop(8), ops.CutMix(num_classes=5), ops.HFlip()], "mixes whole batches"),
    ):
        with pytest.raises(larder.InvalidError, match=words) as e:
            real(f"imagefolder:{folder}", batch_size=4, transform=ops_)
        assert e.value.reason == "RECIPE_INVALID"
    loader = real(f"imagefolder:{folder}", batch_size=40, transform=[ops.CenterCrop(8), ops.CutMix(num_classes=3)])
    with pytest.raises(larder.InvalidError, match="num_classes is 3"):
        next(iter(loader))
