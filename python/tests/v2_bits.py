"""Compares transforms of a real torchvision.transforms.v2, on PIL images, with the ops that they are translated to.

    LARDER_TORCHVISION_V2=an-unpacked-wheel python v2_bits.py FOLDER

The wheel is of another torchvision than the one that is installed; its Python code runs under the torch that is here.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import larder
from larder import _native


def load(root):
    """The modules torchvision.transforms and torchvision.transforms.v2 of a wheel."""

    def package(name, **names):
        m = types.ModuleType(name)
        m.__path__ = [os.path.join(root, *name.split("."))]
        m.__dict__.update(names)
        sys.modules[name] = m

    package("torchvision")
    package("torchvision.ops")
    package("torchvision.io", decode_jpeg=None, encode_jpeg=None)
    package("torchvision.utils", _log_api_usage_once=lambda *a: None,
            _Image_fromarray=lambda a, mode=None: Image.fromarray(a))  # fmt: skip
    if not hasattr(torch, "compiler"):
        torch.compiler = types.SimpleNamespace(is_compiling=lambda: False, disable=lambda f: f)
    if not hasattr(torch._C, "DisableTorchFunctionSubclass"):
        torch._C.DisableTorchFunctionSubclass = torch._C.DisableTorchFunction
    return importlib.import_module("torchvision.transforms"), importlib.import_module("torchvision.transforms.v2")


def recipes(T1, T):
    """Transforms that draw nothing, or whose draw is fixed."""
    mode = T1.InterpolationMode
    chance = [
        (T.RandomAutocontrast, ()), (T.RandomEqualize, ()), (T.RandomInvert, ()), (T.RandomSolarize, (100,)),
        (T.RandomPosterize, (3,)), (T.RandomAdjustSharpness, (2,)), (T.RandomHorizontalFlip, ()),
        (T.RandomVerticalFlip, ()),
    ]  # fmt: skip
    steps = [
        *(kind(*given, p=p) for kind, given in chance for p in (0, 1)),
        T.Resize((40, 50)), T.Resize([30, 70], mode.BICUBIC), T.Grayscale(3), T.ColorJitter(brightness=(0.5, 0.5)),
        T.RandomRotation((33, 33), fill=9), T.RandomRotation((-70, -70), "bilinear", center=[5, 9], fill=[1, 2, 250]),
        T.RandomAffine((20, 20), scale=(1.25, 1.25), shear=(4, 4, -6, -6), interpolation=mode.BICUBIC, fill=[8, 7, 6]),
    ]  # fmt: skip
    for step in steps:
        yield T.Compose([T.CenterCrop(48), step, T.ToImage()])
    erasing = T.RandomErasing(0)
    yield T.Compose([T.CenterCrop([30, 60]), T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3), erasing])
    unscaled = [T.ToDtype(torch.float32, scale=False), T.Normalize([120.0, 110, 100], [60.0, 55, 50]), T.ToPureTensor()]
    yield T.Compose([T.CenterCrop(30), T.ToImage(), erasing, *unscaled])
    normal = T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    for cast in (T.ToDtype(torch.float32, scale=True), T.ConvertImageDtype(torch.float32)):
        yield T.Compose([T.CenterCrop(33), T.ToImage(), cast])
        yield T.Compose([T.Resize((35, 48)), T.ToImage(), cast, normal])
    yield T.Compose([T.CenterCrop(20), T.Grayscale(1), T.ToImage(), T.ToDtype(torch.float32, scale=True)])


def main(folder):
    files = sorted(p for p in Path(folder).rglob("*") if p.is_file())
    count = differing = 0
    for transform in recipes(*load(os.environ["LARDER_TORCHVISION_V2"])):
        count += 1
        with larder.Loader(f"imagefolder:{folder}", batch_size=len(files), transform=_native.recipe(transform)) as ours:
            ((images, _),) = ours
        for image, file in zip(images, files, strict=True):
            with Image.open(file) as im:
                want = np.asarray(transform(im.convert("RGB")))
            assert image.dtype == want.dtype and image.shape == want.shape, transform
            wrong = int((image != want).sum())
            differing += wrong
            if wrong:
                print(f"{transform}: {file}: {wrong} values differ", file=sys.stderr)
    print(f"{count} recipes of v2, {len(files)} images each: {differing} values differ")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1])
