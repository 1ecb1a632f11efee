"""ImageFolders of torchvision: prepared by the daemon where it gives the same bits, by workers else."""

from __future__ import annotations

import pytest
from test_e2e_python import loader_of, same

import larder

__all__ = ["loader_of"]
pytestmark = [pytest.mark.filterwarnings(f"ignore::larder.{w}") for w in ("NotSharedWarning", "NativeWarning")]


def test_an_image_folder_goes_to_the_daemons_own_decoders(loader_of, torch, small):
    from torchvision import datasets
    from torchvision import transforms as T

    recipes = [
        [T.Resize((40, 50)), T.ToTensor()],
        [T.Resize(40), T.CenterCrop(32), T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3)],
        [T.Resize(36, T.InterpolationMode.BICUBIC), T.CenterCrop([30, 20]), T.PILToTensor()],
        [T.Resize([50]), T.CenterCrop(30), T.PILToTensor(), T.ConvertImageDtype(torch.float32)],
        [T.Compose([T.CenterCrop(48), T.Grayscale(1)]), T.ToTensor()],
        [T.CenterCrop(48), T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(p=0), T.ToTensor()],
    ]
    for recipe in recipes:
        folder = datasets.ImageFolder(str(small), T.Compose(recipe))
        theirs = list(torch.utils.data.DataLoader(folder, batch_size=16))
        ours = loader_of(folder, batch_size=16, num_workers=2)
        assert ours.loader._shared.plan is None, recipe
        for a, b in zip(ours, theirs, strict=True):
            same(torch, a, b)
        ours.close()


def test_an_image_folder_that_has_no_counterpart_runs_in_workers(loader_of, torch, small):
    from torchvision import datasets
    from torchvision import transforms as T

    plain = [T.Resize((20, 20)), T.ToTensor()]
    folder = datasets.ImageFolder(str(small), T.Compose(plain))
    cases = [
        (folder, {"native": False}),
        (datasets.ImageFolder(str(small), T.Compose([T.Pad(2), *plain])), {}),
        (datasets.ImageFolder(str(small), T.Compose(plain), target_transform=lambda t: t + 1), {}),
    ]
    for dataset, kw in cases:
        theirs = next(iter(torch.utils.data.DataLoader(dataset, batch_size=8)))
        ours = loader_of(dataset, batch_size=8, **kw)
        assert ours.loader._shared.plan is not None
        same(torch, next(iter(ours)), theirs)
        ours.close()
    for steps, why in (
        ([T.ToTensor(), T.Resize((9, 9))], "after the image has become"),
        ([T.Resize(40), T.ToTensor()], "sizes of their own"),
        ([T.Resize((9, 9))], "no tensors"),
        ([T.Resize((9, 9), T.InterpolationMode.LANCZOS), T.ToTensor()], "interpolation"),
        ([lambda x: x, T.ToTensor()], "none of torchvision.transforms"),
        ([T.Grayscale(1), T.CenterCrop(9), T.ToTensor()], "after Grayscale"),
        ([T.CenterCrop(9), T.ToTensor(), T.Normalize(torch.zeros(3), [1.0])], "mean as Tensor"),
        ([T.CenterCrop(9), T.ToTensor(), T.RandomErasing()], "RandomErasing comes after"),
    ):
        with pytest.raises(larder._native.NotNative, match=why):
            larder._native.recipe(T.Compose(steps))
