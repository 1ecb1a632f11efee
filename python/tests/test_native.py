"""What transforms of torchvision are as ops of the daemon, and why those are not that would give other bits."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from real import PATIENCE

import larder
from larder import _native, ops

torch = pytest.importorskip("torch")
T = pytest.importorskip("torchvision.transforms")
HERE = Path(__file__).resolve().parent


def recipe(*steps):
    return _native.recipe(T.Compose([T.CenterCrop(9), *steps]))[1:]


@pytest.mark.parametrize(
    ("step", "op"),
    [
        (lambda: T.GaussianBlur(5, (0.5, 2)), ops.GaussianBlur([5, 5], [0.5, 2])),
        (
            lambda: T.RandomRotation(9, T.InterpolationMode.BICUBIC, center=(1, 2), fill=(3, 4, 5)),
            ops.RandomRotation([-9.0, 9.0], "bicubic", False, [1, 2], [3, 4, 5]),
        ),
        (
            lambda: T.RandomAffine(9, (0.1, 0.2), (0.5, 2), (1, 2, 3, 4), fill=7, center=[0, 0]),
            ops.RandomAffine([-9.0, 9.0], [0.1, 0.2], [0.5, 2], [1.0, 2.0, 3.0, 4.0], "nearest", 7, [0, 0]),
        ),
        (lambda: T.RandomAffine((1, 2)), ops.RandomAffine([1.0, 2.0])),
        (lambda: T.RandomAutocontrast(0.1), ops.RandomAutocontrast(0.1)),
        (lambda: T.RandomEqualize(0.2), ops.RandomEqualize(0.2)),
        (lambda: T.RandomInvert(0.3), ops.RandomInvert(0.3)),
        (lambda: T.RandomSolarize(99.5, 0.4), ops.RandomSolarize(99.5, 0.4)),
        (lambda: T.RandomPosterize(5, 0.6), ops.RandomPosterize(5, 0.6)),
        (lambda: T.RandomAdjustSharpness(0, 0.7), ops.RandomAdjustSharpness(0, 0.7)),
        (lambda: T.RandAugment(3, 4, 9, fill=[1, 2, 3]), ops.RandAugment(3, 4, 9, "nearest", [1, 2, 3])),
        (
            lambda: T.TrivialAugmentWide(11, T.InterpolationMode.BILINEAR),
            ops.TrivialAugmentWide(11, "bilinear"),
        ),
        (lambda: T.AutoAugment(T.AutoAugmentPolicy.CIFAR10), ops.AutoAugment("cifar10")),
    ],
)
def test_steps_on_images(step, op):
    assert recipe(step(), T.ToTensor()) == [op, ops.ToTensor()]


def test_steps_on_tensors():
    erasing = ops.RandomErasing(0.25, [0.1, 0.2], [0.5, 2], "random")
    ours = T.RandomErasing(0.25, (0.1, 0.2), (0.5, 2), "random", inplace=True)
    assert recipe(T.ToTensor(), ours) == [ops.ToTensor(), erasing]
    assert recipe(T.ToTensor(), T.Normalize([0], [1]), ours)[2:] == [erasing]
    assert recipe(T.ToTensor(), ours, T.Normalize([0], [1])) == [ops.ToTensor(), erasing, ops.Normalize([0], [1])]
    blank = T.RandomErasing(value=(1, 2, 3))
    assert recipe(T.PILToTensor(), blank, T.ConvertImageDtype(torch.float32)) == [
        ops.PILToTensor(), ops.RandomErasing(value=[1, 2, 3], scale=[0.02, 0.33], ratio=[0.3, 3.3]), ops.ToDtype(),
    ]  # fmt: skip


def changed(t, **attributes):
    for name, value in attributes.items():
        setattr(t, name, value)
    return t


def hooked():
    flip = T.RandomHorizontalFlip()
    flip.register_forward_hook(lambda *_: None)
    return flip


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (lambda: T.RandomRotation(5, fill=1.5), r"RandomRotation has fill=1\.5"),
        (lambda: T.RandomRotation(5, fill=(1,)), r"RandomRotation has fill=\(1,\)"),
        (lambda: T.RandomRotation(5, T.InterpolationMode.BOX), "RandomRotation has interpolation=.*BOX"),
        (lambda: changed(T.RandomRotation(5), expand=1), "RandomRotation has expand=1"),
        (lambda: T.RandomAffine(5, fill=[0.5] * 3), "RandomAffine has fill="),
        (lambda: changed(T.RandomAffine(5), degrees=torch.tensor([1.0, 2.0])), "RandomAffine has degrees as Tensor"),
        (lambda: changed(T.GaussianBlur(3), sigma="wide"), "GaussianBlur has sigma='wide'"),
        (lambda: changed(T.RandomInvert(), p=True), "RandomInvert has p=True"),
        (lambda: changed(T.RandomPosterize(3), bits=3.0), r"RandomPosterize has bits=3\.0"),
        (lambda: changed(T.RandAugment(), magnitude=3.5), r"RandAugment has magnitude=3\.5"),
        (lambda: changed(T.AutoAugment(), policies=[]), "AutoAugment has policies of its own"),
        (lambda: changed(T.AutoAugment(), policy="imagenet"), "AutoAugment has policy='imagenet'"),
        (lambda: changed(T.ColorJitter(), hue="red"), "ColorJitter has hue='red'"),
        (lambda: changed(T.CenterCrop(3), strength=4), "CenterCrop has strength, which larder does not know"),
        (lambda: changed(T.CenterCrop(3), forward=lambda x: x), "CenterCrop has forward"),
        (hooked, "RandomHorizontalFlip has hooks"),
        (lambda: T.RandomErasing(), "RandomErasing comes before the image"),
        (lambda: T.Normalize([0], [1]), "Normalize comes before the image"),
        (lambda: T.Pad(1), "Pad has no counterpart"),
        (lambda: T.RandomRotation(5, expand=True), "sizes of their own"),
        (lambda: T.Compose([T.Grayscale(1), T.RandomInvert()]), r"RandomInvert comes after Grayscale\(1\)"),
        (lambda: T.Compose([T.ToTensor(), T.GaussianBlur(3)]), "GaussianBlur comes after the image has become"),
        (lambda: T.Compose([T.PILToTensor(), T.Normalize([0], [1])]), "Normalize comes after bytes"),
        (
            lambda: T.Compose([T.Grayscale(1), T.PILToTensor(), T.RandomErasing()]),
            r"RandomErasing of bytes comes after Grayscale\(1\)",
        ),
        (
            lambda: T.Compose([T.PILToTensor(), T.ConvertImageDtype(torch.float16)]),
            r"ConvertImageDtype has dtype=torch\.float16",
        ),
        (lambda: T.Compose([T.ToTensor(), T.Normalize([math.nan], [1])]), "nan is not a finite number"),
    ],
)
def test_what_would_give_other_bits_is_refused_in_words(step, why):
    with pytest.raises(_native.NotNative, match=why):
        recipe(step(), T.ToTensor())


# ---- torchvision.transforms.v2


def stand_in(name, **attributes):
    """An object of a class of v2, with the attributes that one of torchvision 0.29.2 has."""
    module = sys.modules["torchvision.transforms.v2"]
    cls = getattr(module, name, None) or type(name, (), {"__module__": "torchvision.transforms.v2._stand_in"})
    setattr(module, name, cls)
    return changed(cls(), **attributes)


@pytest.fixture
def v2(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", types.ModuleType("torchvision.transforms.v2"))
    return stand_in


def test_objects_of_v2(v2):
    turn = {"degrees": [-5.0, 5.0], "interpolation": "bilinear", "expand": False, "center": None, "fill": 3}
    erasing = {"p": 0.5, "scale": (0.02, 0.33), "ratio": (0.3, 3.3), "inplace": False}
    found = _native.recipe(
        v2("Compose", transforms=[
            v2("RandomResizedCrop", size=(8, 8), scale=(0.1, 1.0), ratio=(0.5, 2.0), interpolation="bicubic",
               antialias=True, _log_ratio=None),
            v2("RandomRotation", **turn, _fill={}),
            v2("RandomErasing", **erasing, value=[1.0, 2.0, 3.0]),
            v2("ToImage"), v2("ToDtype", dtype=torch.float32, scale=False),
            v2("Normalize", mean=[0.5], std=[0.25], inplace=False), v2("RandomErasing", **erasing, value=None),
            v2("ToPureTensor"),
        ])
    )  # fmt: skip
    assert found == [
        ops.RandomResizedCrop([8, 8], [0.1, 1.0], [0.5, 2.0], "bicubic"),
        ops.RandomRotation([-5.0, 5.0], "bilinear", False, None, 3),
        ops.RandomErasing(0.5, [0.02, 0.33], [0.3, 3.3], [1.0, 2.0, 3.0]), ops.ToImage(), ops.ToDtype("float32", False),
        ops.Normalize([0.5], [0.25]), ops.RandomErasing(0.5, [0.02, 0.33], [0.3, 3.3], "random"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "attributes", "why"),
    [
        ("GaussianBlur", {"kernel_size": [3, 3], "sigma": [1.0]}, "v2's GaussianBlur gives other bits: its weights"),
        ("RandAugment", {}, "v2's RandAugment gives other bits: the thresholds"),
        ("TrivialAugmentWide", {}, "v2's TrivialAugmentWide"),
        ("AutoAugment", {}, "v2's AutoAugment"),
        ("RandomRotation", {"degrees": [0, 1], "fill": {"others": 0}}, "RandomRotation has fill={'others': 0}"),
        ("Resize", {"size": None, "max_size": 9}, "Resize has size=None"),
        ("Resize", {"size": [9, 9], "interpolation": "nearest-exact"}, "Resize has interpolation='nearest-exact'"),
        ("ElasticTransform", {}, "ElasticTransform has no counterpart"),
        ("MixUp", {"alpha": 1.0, "num_classes": 3}, "MixUp has no counterpart"),
        ("Compose", {"transforms": [], "_forward_hooks": {0: print}}, "Compose has hooks"),
    ],
)
def test_objects_of_v2_that_would_give_other_bits(v2, name, attributes, why):
    with pytest.raises(_native.NotNative, match=why):
        _native.recipe(v2("Compose", transforms=[v2(name, **attributes), v2("ToImage")]))


def test_casts_of_v2(v2):
    def cast(step):
        return _native.recipe(v2("Compose", transforms=[v2("CenterCrop", size=(4, 4)), v2("ToImage"), step]))

    assert cast(v2("ToDtype", dtype=torch.float32, scale=False))[2] == ops.ToDtype("float32", False)
    assert cast(v2("ToDtype", dtype=torch.float32, scale=True))[2] == ops.ToDtype("float32", True, by="mul")
    assert cast(v2("ConvertImageDtype", dtype=torch.float32))[2] == ops.ToDtype("float32", True, by="mul")
    for step, why in (
        (v2("ToDtype", dtype=torch.float16, scale=False), r"ToDtype has dtype=torch\.float16"),
        (v2("ToDtype", dtype={torch.Tensor: torch.float32}, scale=False), "ToDtype has dtype={"),
    ):
        with pytest.raises(_native.NotNative, match=why):
            cast(step)


def test_casts_of_v2_in_a_recipe(v2):
    """Of the transforms of a URI each cast scales as its own torchvision does."""

    class Image:
        pass

    class Mask:
        pass

    def args(step):
        return ops.recipe([step])[0]["args"]

    scaled = {"dtype": "float32", "scale": True, "by": "mul"}
    assert args(v2("ToDtype", dtype=torch.float32, scale=True)) == scaled
    assert args(v2("ToDtype", dtype=torch.float32, scale=False)) == {"dtype": "float32", "scale": False}
    assert args(v2("ConvertImageDtype", dtype=torch.float32)) == {"dtype": "float32", "by": "mul"}
    assert args(T.ConvertImageDtype(torch.float32)) == {"dtype": "float32"}
    assert args(ops.ToDtype()) == {"dtype": "float32", "scale": True}
    assert args(ops.ToDtype(by="mul")) == scaled
    for dtypes in (
        {Mask: torch.int64, Image: torch.float32, "others": None},
        {Mask: torch.int64, "others": torch.float32},
    ):
        assert args(v2("ToDtype", dtype=dtypes, scale=True)) == scaled
    # An Image has no dtype there, and v2 raises; what PILToTensor and ToTensor make is a plain tensor.
    tensors = v2("ToDtype", dtype={Mask: torch.int64, torch.Tensor: torch.float32}, scale=True)
    for before in ([], [v2("ToImage")], [T.PILToTensor(), v2("ToImage")], [ops.CenterCrop(4)]):
        with pytest.raises(larder.InvalidError, match=r"no dtype for images in .*torchvision raises.*put PILToTensor"):
            ops.recipe([*before, tensors])
    for before in ([T.PILToTensor()], [v2("ToImage"), v2("ToTensor")], [v2("Compose", transforms=[v2("PILToTensor")])]):
        assert ops.recipe([*before, tensors])[-1]["args"] == scaled
    for dtypes in ({Mask: torch.float32}, {Mask: torch.float32, "others": None}):
        with pytest.raises(larder.InvalidError, match="ToDtype has no dtype for images"):
            args(v2("ToDtype", dtype=dtypes, scale=True))
    for dtypes in (  # an Image takes "others", and a tensor its own: which one comes is not known here
        {torch.Tensor: torch.float32, "others": None},
        {torch.Tensor: torch.float32, "others": torch.float64},
        {torch.Tensor: torch.uint8, Image: torch.float32},
    ):
        with pytest.raises(larder.InvalidError, match="other dtypes for images than for plain tensors"):
            args(v2("ToDtype", dtype=dtypes, scale=True))


@pytest.fixture
def every_value(tmp_path):
    """A folder of three images that have all 256 values in each channel."""
    (tmp_path / "class").mkdir()
    for k in range(3):
        values = np.arange(256, dtype=np.uint8)
        rgb = np.stack([np.roll(values, 85 * k), values[::-1], values * 7 + 3], axis=-1)  # 7 is prime to 256
        Image.fromarray(rgb.reshape(16, 16, 3)).save(tmp_path / "class" / f"{k}.png")
    return tmp_path


MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.mark.parametrize("mean", [None, MEAN])
def test_casts_scale_as_those_they_stand_for(v2, real, every_value, mean):
    """All values in every channel: v2 multiplies by 1/255, torchvision.transforms divides, and Normalize follows."""

    def batch(*steps):
        tail = [] if mean is None else [T.Normalize(mean, STD)]
        loader = real(f"imagefolder:{every_value}", batch_size=3, transform=[ops.CenterCrop(16), *steps, *tail])
        return next(iter(loader))[0]

    def normal(floats):
        return floats if mean is None else T.functional.normalize(floats, mean, STD)

    pixels = torch.from_numpy(np.stack([
        np.asarray(Image.open(every_value / "class" / f"{k}.png")).transpose(2, 0, 1) for k in range(3)
    ]))  # fmt: skip
    assert all(len(np.unique(channel)) == 256 for image in pixels.numpy() for channel in image)
    product = normal(torch.from_numpy(pixels.numpy().astype(np.float32) * np.float32(1 / 255)))
    assert torch.equal(product, normal(pixels.to(torch.float32).mul_(1.0 / 255)))  # as v2 has it
    quotient = normal(T.functional.convert_image_dtype(pixels))
    assert int((product != quotient).sum()) >= 9 * 100
    for step in (
        v2("ToDtype", dtype=torch.float32, scale=True), v2("ConvertImageDtype", dtype=torch.float32),
        ops.ToDtype(by="mul"),
    ):  # fmt: skip
        got = batch(step)
        assert got.dtype == np.float32 and int((got != product.numpy()).sum()) == 0, step
    for step in (T.ConvertImageDtype(torch.float32), T.ToTensor(), ops.ToDtype(), ops.ToDtype(by="div")):
        assert int((batch(step) != quotient.numpy()).sum()) == 0, step
    hwc = batch(ops.ToDtype(layout="HWC", by="mul"))
    assert int((hwc.transpose(0, 3, 1, 2) != product.numpy()).sum()) == 0


class Items:
    """A dataset in Python of the images of a folder."""

    def __init__(self, folder):
        self.files = sorted(map(str, folder.rglob("*.png")))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return {"image": np.asarray(Image.open(self.files[index]))}


def test_items_are_cast_as_images_are(real, every_value):
    pixels = np.stack([Items(every_value)[k]["image"].transpose(2, 0, 1) for k in range(3)])
    for by, want in (("mul", pixels * np.float32(1 / 255)), ("div", pixels / np.float32(255))):
        loader = real(Items(every_value), batch_size=3, name="values", num_workers=0, transform=[ops.ToDtype(by=by)])
        got = next(iter(loader))["image"]
        assert got.dtype == np.float32 == want.dtype and int((got != want).sum()) == 0


@pytest.mark.skipif("LARDER_TORCHVISION_V2" not in os.environ, reason="LARDER_TORCHVISION_V2 names no unpacked wheel")
def test_the_bits_are_those_of_v2(server, small, tmp_path):
    """A real torchvision.transforms.v2 out of its wheel beside the daemon; docs/parity.md says how to get one."""
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "LARDER_SOCKET": server.socket}
    out = subprocess.run(
        [sys.executable, str(HERE / "v2_bits.py"), str(small)], env=env, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    assert out.stdout == "30 recipes of v2, 72 images each: 0 values differ\n"
