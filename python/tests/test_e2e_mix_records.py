"""End to end: MixUp and CutMix on batches of records, of files and of datasets in Python."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from PIL import Image
from real import night

import larder
from larder import ops
from larder._mix import Mixer, Touched

N, CLASSES = 22, 6
UP, CUT = ops.MixUp(0.4, CLASSES), ops.CutMix(0.8, CLASSES)
OWN_DAEMON = True

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")


def picture(i, h=26, w=30):
    return np.random.default_rng(i).integers(0, 256, (h, w, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """Tars of WebDataset: an image, a class and a caption each."""
    out = tmp_path_factory.mktemp("mixed")
    with tarfile.open(out / "a.tar", "w") as tar:
        for i in range(N):
            file = io.BytesIO()
            Image.fromarray(picture(i, 26 + i % 5)).save(file, "PNG")
            for suffix, data in (("png", file.getvalue()), ("cls", str(i % CLASSES).encode()), ("txt", b"n%d" % i)):
                info = tarfile.TarInfo(f"{i:04d}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return f"wds:{out}?fields=png,cls,txt"


class Items:
    """Tuples, dicts, labels as numbers and one number a class."""

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return N

    def __getitem__(self, i):
        image, hot = picture(i), np.eye(CLASSES, dtype=np.float64)[i % CLASSES] * 0.5
        if self.kind == "tuple":
            return image, i % CLASSES
        if self.kind == "hot":
            return {"photo": (image / 255).transpose(2, 0, 1), "weights": hot, "text": f"n{i}", "n": np.uint8(i)}
        return {"image": image, "label": np.int32(i % CLASSES), "id": i, "text": f"n{i}"}


def epochs(loader, n):
    return [[list(b.values()) if isinstance(b, dict) else list(b) for b in loader] for _ in range(n)]


def assert_mixed(torch, mixed, plain, mixer):
    """The batches ``mixed`` are ``plain`` after torchvision's expressions; the places are those of image and label."""
    image, label, hwc = mixer.fields
    steps = 0
    for epoch, (a, b) in enumerate(zip(mixed, plain, strict=True)):
        for step, (got, want) in enumerate(zip(a, b, strict=True)):
            x = torch.from_numpy(np.array(want[image]))
            height, width = x.shape[1:3] if hwc else x.shape[2:4]
            share, box = mixer.draw(epoch, step, height, width)
            if box is None:
                x = x.roll(1, 0).mul_(1.0 - share).add_(x.mul(share))
            else:
                left, top, right, bottom = box
                y = x.roll(1, 0)
                at = (slice(None), slice(top, bottom), slice(left, right)) if hwc else (
                    ..., slice(top, bottom), slice(left, right))  # fmt: skip
                x[at] = y[at]
            y = torch.from_numpy(np.array(want[label]))
            if y.ndim == 1:
                y = torch.nn.functional.one_hot(y.long(), CLASSES)
            y = y if y.is_floating_point() else y.float()
            y = y.roll(1, 0).mul_(1.0 - share).add_(y.mul(share))
            for k, (p, q) in enumerate(zip(got, want, strict=True)):
                q = {image: x.numpy(), label: y.numpy()}.get(k, q)
                assert p == q if isinstance(q, list) else p.dtype == q.dtype and np.array_equal(p, q)
            steps += 1
    assert steps == 2 * 5


@pytest.mark.parametrize("op", [ops.MixUp(0.4, CLASSES), ops.CutMix(0.8, CLASSES)])
def test_records_of_files_are_mixed_as_torchvision_mixes(tars, real, torch, op):
    kw = {"batch_size": 5, "shuffle": True, "order": "fixed", "seed": 4}
    recipe = [ops.RandomResizedCrop((20, 24)), ops.HFlip(), ops.Normalize("imagenet")]
    plain = epochs(real(tars, job="plain", transform=recipe, **kw), 2)
    mixed = epochs(real(tars, job="mixed", transform=[*recipe, op], **kw), 2)
    mixer = Mixer(ops.recipe(op)[0], {"seed": "4"}, 0, Touched(0, 1, False))
    assert_mixed(torch, mixed, plain, mixer)
    assert not np.array_equal(mixed[0][0][0], plain[0][0][0])


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        *((UP, "tuple"), (CUT, "dict"), (UP, "hot")),
        *night((UP, "dict"), (CUT, "tuple"), (CUT, "hot")),
    ],
)
def test_items_in_python_are_mixed_as_torchvision_mixes(real, torch, kind, op):
    kw = {"batch_size": 5, "shuffle": True, "order": "fixed", "seed": 9, "num_workers": 1, "name": f"items-{kind}"}
    recipe = [] if kind == "hot" else [ops.HFlip()]
    if kind == "hot":
        op = type(op)(op.alpha, label="weights")
    if kind != "hot" and isinstance(op, ops.MixUp):
        recipe = [ops.HFlip(), ops.ToTensor()]
    plain = epochs(real(Items(kind), job="plain", transform=recipe, **kw), 2)
    mixed = epochs(real(Items(kind), job="mixed", transform=[*recipe, op], **kw), 2)
    hwc = kind != "hot" and isinstance(op, ops.CutMix)
    mixer = Mixer(ops.recipe(op)[0], {"seed": "9"}, 0, Touched(0, 1, hwc))
    assert_mixed(torch, mixed, plain, mixer)


SEVERAL = [(["image", "a"], 0), (["a", None], 1), (["a", "b", "image"], 1)]


@pytest.mark.parametrize(
    ("images", "place", "kind"),
    [
        *((["a", "image"], 1, ops.MixUp), (["b", "a", None], 1, ops.CutMix)),
        *night((["a", "image"], 1, ops.CutMix), (["b", "a", None], 1, ops.MixUp)),
        *night(*((*of, kind) for of in SEVERAL for kind in (ops.MixUp, ops.CutMix))),
    ],
)
def test_the_last_of_several_fields_says_which_image_is_mixed(real, torch, kind, images, place):
    """Two and three Fields ops, the last with a name or without; all other fields stay as they are."""
    kw = {"batch_size": 5, "shuffle": True, "order": "fixed", "seed": 3, "num_workers": 1, "name": "several"}
    recipe = []
    for name in images:
        recipe += [ops.Fields(image=name), ops.HFlip()]
    recipe += [ops.ToTensor()]
    plain = epochs(real(Several(), job="plain", transform=recipe, **kw), 2)
    op = kind(0.4, CLASSES)
    mixed = epochs(real(Several(), job="mixed", transform=[*recipe, op], **kw), 2)
    mixer = Mixer(ops.recipe(op)[0], {"seed": "3"}, 0, Touched(place, 3, False))
    assert_mixed(torch, mixed, plain, mixer)


def test_jobs_with_and_without_mixing_have_one_recipe(tars, real, torch):
    kw = {"batch_size": 11, "shuffle": True, "order": "fixed"}
    recipe = [ops.RandomResizedCrop(16), ops.ToTensor()]
    plain = real(tars, job="one", transform=recipe, **kw)
    mixed = real(tars, job="two", transform=[*recipe, ops.MixUp(num_classes=CLASSES)], output="torch", **kw)
    for a, b in zip(plain, mixed, strict=True):
        assert isinstance(b["png"], torch.Tensor) and b["cls"].dtype == torch.float32 and b["txt"] == a["txt"]
        assert torch.allclose(b["cls"].sum(1), torch.ones(len(b["cls"])))
    one, two = (x._shared.job["recipe"] for x in (plain, mixed))
    assert one and one == two


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        ([ops.MixUp(num_classes=3)], "0 fields of the records can be its image"),
        ([ops.CenterCrop(8), ops.MixUp(num_classes=3)], "field \"png\": it mixes floats, and the image is uint8"),
        ([ops.CenterCrop(8), ops.CutMix()], "it needs the argument num_classes"),
        ([ops.CenterCrop(8), ops.CutMix(num_classes=3), ops.HFlip()], "mixes whole batches"),
        ([ops.CenterCrop(8), ops.CutMix(num_classes=3, label="txt")], "field \"txt\": it is text, which is no label"),
        ([ops.CenterCrop(8), ops.CutMix(num_classes=3, label="no")], "there is no such field"),
        ([ops.CenterCrop(8), ops.CutMix(num_classes=3, image="cls")], "which is no image that it mixes"),
    ],
)
def test_records_that_cannot_be_mixed_are_refused(tars, real, transform, words):
    with pytest.raises(larder.InvalidError, match=words) as e:
        real(tars, batch_size=4, transform=transform)
    assert e.value.reason == "RECIPE_INVALID"


def test_what_is_no_image_and_label_is_refused(tars, real):
    with pytest.raises(larder.InvalidError, match="mixes batches, and collate_fn"):
        real(tars, batch_size=4, collate_fn=list, transform=[ops.CenterCrop(8), ops.CutMix(num_classes=3)])
    with pytest.raises(larder.InvalidError, match="mixes batches, and collate_fn"):
        real(Items("dict"), batch_size=4, num_workers=1, collate_fn=list, transform=[ops.CutMix(num_classes=3)])
    joint = [ops.Fields(mask="mask"), ops.HFlip(), ops.CutMix(num_classes=3)]
    with pytest.raises(larder.InvalidError, match="not masks, boxes or keypoints"):
        real(Masks(), batch_size=4, num_workers=1, transform=joint)
    loader = real(tars, batch_size=N, transform=[ops.CenterCrop(8), ops.CutMix(num_classes=3)])
    with pytest.raises(larder.InvalidError, match="num_classes is 3"):
        next(iter(loader))


class Several:
    """Three images and a label."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"a": picture(i), "image": picture(i + N), "b": picture(i + 2 * N), "label": i % CLASSES}


class Masks:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {"image": picture(i), "mask": picture(i)[..., 0], "label": i}
