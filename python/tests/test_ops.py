"""Ops as they travel: names, arguments, and the translation of torchvision objects."""

from __future__ import annotations

import dataclasses
import importlib
import os

import numpy as np
import pytest

import larder
from larder import ops
from larder.ops import recipe


def test_every_op_serialises():
    assert recipe(ops.Resize(256)) == [
        {"name": "Resize", "args": {"size": 256, "interpolation": "bilinear", "antialias": True}}
    ]
    assert recipe([ops.HFlip()]) == [{"name": "RandomHorizontalFlip", "args": {"p": 0.5}}]
    assert recipe(ops.RandomResizedCrop(224, scale=(0.2, 1)))[0]["args"] == {
        "size": 224, "scale": [0.2, 1], "ratio": [0.75, 4 / 3], "interpolation": "bilinear", "antialias": True,
    }  # fmt: skip
    assert recipe(ops.Normalize("imagenet")) == [{"name": "Normalize", "args": {"mean": "imagenet"}}]
    assert recipe(ops.Normalize(np.array([0.5, 0.5, 0.5]), (np.float32(0.25),) * 3))[0]["args"] == {
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
    }
    assert recipe(ops.ColorJitter(0.4, hue=(-0.1, 0.1)))[0]["args"] == {
        "brightness": 0.4,
        "contrast": 0.0,
        "saturation": 0.0,
        "hue": [-0.1, 0.1],
    }
    assert recipe(ops.ToDtype(np.float32, layout="HWC"))[0]["args"] == {
        "dtype": "float32",
        "scale": True,
        "layout": "HWC",
    }
    rest = (ops.ToTensor(), ops.ToImage(), ops.PILToTensor(), ops.Grayscale(), ops.RandomVerticalFlip(0.1))
    names = [o["name"] for o in recipe(rest)]
    assert names == ["ToTensor", "ToImage", "PILToTensor", "Grayscale", "RandomVerticalFlip"]
    assert recipe(None) == recipe([]) == recipe(ops.Compose([])) == []


def test_nesting_is_flattened():
    nested = ops.Compose(
        [ops.CenterCrop(4), [ops.HFlip(), ops.Compose((ops.ToTensor(),))], {"name": "X", "args": {"a": np.int64(1)}}]
    )
    assert [o["name"] for o in recipe(nested)] == ["CenterCrop", "RandomHorizontalFlip", "ToTensor", "X"]
    endless: list = []
    endless.append(endless)
    with pytest.raises(larder.InvalidError, match="more than 32 deep"):
        recipe(endless)


def test_ops_are_frozen_and_comparable():
    op = ops.Resize(3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        op.size = 4
    assert op == ops.Resize(3) != ops.Resize(4)
    assert repr(ops.HFlip(0.3)) == "RandomHorizontalFlip(p=0.3)"


@pytest.mark.parametrize("bad", [float("inf"), object(), {1, 2}, b"x", lambda: 0])
def test_arguments_that_cannot_travel(bad):
    with pytest.raises(larder.InvalidError) as e:
        recipe(ops.Resize(bad))
    assert e.value.reason == "RECIPE_INVALID" and e.value.subject == "Resize.size"


@pytest.fixture
def transforms(torch):
    if os.environ.get("LARDER_REQUIRE_TORCH") == "1":
        return importlib.import_module("torchvision.transforms")
    return pytest.importorskip("torchvision.transforms", reason="torchvision is not installed")


def test_torchvision_objects(transforms, torch):
    t = transforms
    given = t.Compose(
        [
            t.Resize(256, interpolation=t.InterpolationMode.BICUBIC),
            t.RandomResizedCrop((224, 200), scale=(0.1, 1)),
            t.CenterCrop(100),
            t.RandomHorizontalFlip(0.3),
            t.RandomVerticalFlip(),
            t.ColorJitter(brightness=0.4, hue=0.1),
            t.Grayscale(3),
            t.PILToTensor(),
            t.ConvertImageDtype(torch.float32),
            t.ToTensor(),
            t.Normalize((0.1, 0.2, 0.3), (1, 1, 1)),
        ]
    )
    out = {o["name"]: o["args"] for o in recipe(given)}
    assert out["Resize"] == {"size": 256, "interpolation": "bicubic", "antialias": True}
    assert out["RandomResizedCrop"]["size"] == [224, 200] and out["RandomResizedCrop"]["scale"] == [0.1, 1]
    assert out["CenterCrop"] == {"size": [100, 100]}
    assert out["RandomHorizontalFlip"] == {"p": 0.3} and out["RandomVerticalFlip"] == {"p": 0.5}
    assert out["ColorJitter"] == {"brightness": [0.6, 1.4], "hue": [-0.1, 0.1]}
    assert out["Grayscale"] == {"num_output_channels": 3} and out["PILToTensor"] == {} == out["ToTensor"]
    assert out["ToDtype"] == {"dtype": "float32"}
    assert out["Normalize"] == {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}
    with pytest.raises(larder.InvalidError, match="torchvision's RandomPerspective has no counterpart"):
        recipe([t.RandomPerspective()])
    with pytest.raises(larder.InvalidError, match="cannot run in the daemon"):
        recipe([torch.nn.Identity()])
    assert recipe(ops.Resize(9, interpolation=t.InterpolationMode.NEAREST))[0]["args"]["interpolation"] == "nearest"


def test_torchvision_objects_of_training_scripts(transforms):
    """Every argument comes over, and what torchvision draws from is what larder's op of the same arguments has."""
    t, bicubic = transforms, transforms.InterpolationMode.BICUBIC
    for theirs, ours in (
        (t.GaussianBlur(5, 0.7), ops.GaussianBlur((5, 5), (0.7, 0.7))),
        (t.GaussianBlur((3, 9)), ops.GaussianBlur((3, 9))),
        (t.RandomRotation(30, bicubic, True, (1, 2), 7), ops.RandomRotation((-30.0, 30.0), "bicubic", True, (1, 2), 7)),
        (
            t.RandomAffine(9, (0.1, 0.2), (0.5, 2), (1, 2, 3, 4), fill=(1, 2, 3), center=(4, 5)),
            ops.RandomAffine((-9.0, 9.0), (0.1, 0.2), (0.5, 2), (1.0, 2.0, 3.0, 4.0), "nearest", (1, 2, 3), (4, 5)),
        ),
        (t.RandomAutocontrast(0.1), ops.RandomAutocontrast(0.1)),
        (t.RandomEqualize(0.2), ops.RandomEqualize(0.2)),
        (t.RandomInvert(0.3), ops.RandomInvert(0.3)),
        (t.RandomSolarize(128, 0.4), ops.RandomSolarize(128, 0.4)),
        (t.RandomPosterize(3, 0.6), ops.RandomPosterize(3, 0.6)),
        (t.RandomAdjustSharpness(2, 0.7), ops.RandomAdjustSharpness(2, 0.7)),
        (t.RandAugment(3, 7, 11, bicubic, [1, 2, 3]), ops.RandAugment(3, 7, 11, "bicubic", (1, 2, 3))),
        (t.TrivialAugmentWide(9), ops.TrivialAugmentWide(9)),
        (t.AutoAugment(t.AutoAugmentPolicy.SVHN), ops.AutoAugment("svhn")),
        (t.RandomErasing(0.3, (0.1, 0.2), (0.5, 2), "random"), ops.RandomErasing(0.3, (0.1, 0.2), (0.5, 2), "random")),
    ):
        assert recipe(theirs) == recipe(ours)
    noise = t.RandomErasing()
    noise.value = None  # as v2 keeps "random"
    assert recipe(noise)[0]["args"]["value"] == "random"
