"""Built-in ops on datasets in Python, through the real daemon: what jobs get, what is made once, what is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import larder
from larder import ops

N, H, W = 40, 30, 50


OWN_DAEMON = True


class Places:
    """Items that know where each pixel comes from: its place is in the image (red, green), in the mask and in points.

    Keypoint k lies on the pixel whose place it is of.
    """

    def __len__(self) -> int:
        return N

    def __getitem__(self, index):
        rows, columns = np.mgrid[:H, :W]
        image = np.stack([rows, columns, np.full_like(rows, index)], -1).astype(np.uint8)
        points = np.random.default_rng(index).integers(0, (W, H), (6, 2)).astype(np.float32)
        boxes = np.array([[0, 0, W, H], [10, 5, 20, 25]], np.float32)
        mask = (rows * W + columns).astype(np.int32)
        return {"image": image, "mask": mask, "boxes": boxes, "points": points, "id": index, "text": f"item {index}"}


FIELDS = ops.Fields(mask="mask", boxes="boxes", keypoints="points")


@larder.transform(version=1)
def twice(item):
    return {**item, "double": item["mask"] * 2}


@larder.transform(version=1, random=True)
def noise(item, rng):
    return {**item, "noise": rng.random()}


def loader(server, transform, **more):
    args = {"batch_size": 8, "shuffle": True, "num_workers": 1, "name": "places", "cache": "items", "seed": 5, **more}
    return larder.Loader(Places(), transform=transform, endpoint=server.socket, **args)


def epoch(batches):
    """The samples of an epoch by id, as copies."""
    out = {}
    for batch in batches:
        for row, i in enumerate(batch["id"].tolist()):
            assert i not in out
            out[i] = {k: v[row] if isinstance(v, list) else np.array(v[row]) for k, v in batch.items()}
    assert sorted(out) == list(range(N))
    return out


def agrees(sample):
    """Image, mask and points are of one draw of flips and a crop without a resize."""
    image, mask = sample["image"].astype(int), sample["mask"]
    inside = mask > 0
    assert np.array_equal(image[..., 0][inside], (mask // W)[inside])
    assert np.array_equal(image[..., 1][inside], (mask % W)[inside])
    assert np.all(image[..., 2][inside] == sample["id"]) and sample["text"] == f"item {sample['id']}"
    before = Places()[int(sample["id"])]["points"].astype(int)
    height, width = mask.shape
    for (x, y), (x0, y0) in zip(sample["points"].astype(int), before, strict=True):
        if 0 <= x < width and 0 <= y < height:
            assert mask[y, x] == y0 * W + x0
    x0, y0, x1, y1 = sample["boxes"][0]
    assert 0 <= x0 <= x1 <= width and 0 <= y0 <= y1 <= height


def test_fields_move_together_and_two_jobs_share_items(server):
    transform = [FIELDS, ops.HFlip(), ops.RandomVerticalFlip(), ops.CenterCrop((36, 44))]
    with loader(server, transform, job="a") as a, loader(server, transform, job="b", seed=6) as b:
        before = a.stats().totals
        first, other = epoch(a), epoch(b)
        second = epoch(a)
        made = a.stats().totals.decodes - before.decodes
    for samples in (first, other, second):
        for sample in samples.values():
            assert sample["image"].shape == (36, 44, 3) and sample["mask"].shape == (36, 44)
            agrees(sample)
    unlike = [not np.array_equal(first[i]["mask"], x[i]["mask"]) for x in (other, second) for i in range(N)]
    assert 0.5 < np.mean(unlike) < 0.95  # two flips: a quarter of the draws are equal
    assert made <= N  # items of both jobs and all epochs, none made twice


@pytest.mark.parametrize("cache", ["items", "none"])
@pytest.mark.parametrize("share", ["none", "augmented"])
def test_ops_before_between_and_after_steps_in_python(server, cache, share):
    transform = [FIELDS, ops.CenterCrop((28, 40)), twice, FIELDS, ops.HFlip(), noise, ops.Fields(mask="double"),
                 ops.RandomVerticalFlip(), ops.Normalize("imagenet")]  # fmt: skip
    with loader(server, transform, cache=cache, share=share, job="a") as a:
        samples = epoch(a)
    mean, std = (np.float32(x)[:, None, None] for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    turned = 0
    for i, s in samples.items():
        assert s["image"].shape == (3, 28, 40) and s["image"].dtype == np.float32 and 0 <= s["noise"] < 1
        image = np.rint((s["image"] * std + mean) * 255).astype(int)
        double = s["double"]  # of the mask before the first flip, flipped with the image of the second
        turned += not np.array_equal(image[0], (double // 2) // W)
        assert set(np.unique(image[2])) == {i}
        assert np.array_equal(np.unique(double), np.unique(s["mask"]) * 2)
    assert turned == 0  # rows do not change when columns are flipped


def test_the_draw_of_a_sample_does_not_depend_on_workers_or_caches(server):
    transform = [FIELDS, ops.RandomResizedCrop(16), ops.HFlip()]
    found = []
    for name, workers, cache in (("one", 1, "items"), ("two", 2, "items"), ("none", 2, "none")):
        with loader(server, transform, num_workers=workers, name=name, cache=cache, job=name) as a:
            found.append(epoch(a))
    for i in range(N):
        for other in found[1:]:
            for field in ("image", "mask", "boxes", "points"):
                assert np.array_equal(found[0][i][field], other[i][field])


class Pairs:
    """A tuple of an image and a mask."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        image = np.full((20, 24, 3), index, np.uint8)
        return image, image[..., 0]


def test_tuples_name_fields_by_their_place(server):
    with larder.Loader(Pairs(), batch_size=4, num_workers=1, endpoint=server.socket,
                       transform=[ops.Fields(image="0", mask="1"), ops.RandomResizedCrop(9)]) as batches:  # fmt: skip
        for image, mask in batches:
            assert image.shape == (4, 9, 9, 3) and mask.shape == (4, 9, 9)


def test_a_mask_that_is_not_named_is_warned_of(server):
    def make(*transform):
        return larder.Loader(Pairs(), batch_size=4, num_workers=1, endpoint=server.socket, transform=list(transform))

    with pytest.warns(larder.FieldsWarning, match=r"ops.Fields\(mask='1'\)"):
        make(ops.HFlip()).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", larder.FieldsWarning)
        make(ops.Fields(image="0"), ops.HFlip()).close()
        make(ops.ColorJitter(0.5)).close()


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        ([ops.Fields(image="no"), ops.HFlip()], "field 'no': there is no such field"),
        ([ops.Fields(image="mask"), ops.HFlip()], "field 'mask'"),
        ([ops.Fields(boxes="text"), ops.HFlip()], "boxes"),
        ([ops.Fields(mask="mask"), ops.RandAugment()], "moves pixels of the image alone"),
        ([ops.Fields(mask="mask", boxes="mask"), ops.HFlip()], "named as mask and as boxes"),
        ([ops.Fields(box_format="xyz", boxes="boxes"), ops.HFlip()], "box_format"),
        ([ops.Fields(image="image"), ops.HFlip(), ops.MixUp(num_classes=3)], "it mixes floats, and the image is uint8"),
        ([ops.Fields(mask="mask"), ops.HFlip(), ops.CutMix(num_classes=3)], "not masks, boxes or keypoints"),
        ([ops.Fields(mask="mask")], "no op comes behind it"),
        ([ops.ToTensor(), noise, ops.HFlip()], "float32"),
    ],
)
def test_what_cannot_work_is_refused_with_op_and_field(server, transform, says):
    with pytest.raises(larder.InvalidError, match=says):
        loader(server, transform, job="bad")


def test_an_image_folder_has_no_fields(server, tmp_path):
    (tmp_path / "c").mkdir()
    with pytest.raises(larder.InvalidError, match="one image"):
        larder.Loader(f"imagefolder:{tmp_path}", batch_size=1, transform=[ops.Fields(), ops.HFlip()],
                      endpoint=server.socket, skip_empty=True)  # fmt: skip
