"""ImageFolders of torchvision: prepared by the daemon where it gives the same bits, by workers else."""

from __future__ import annotations

import os
import re
import shutil
import warnings

import pytest
from test_e2e_python import loader_of, same

import larder
from larder import _door

__all__ = ["loader_of"]
pytestmark = [pytest.mark.filterwarnings(f"ignore::larder.{w}") for w in ("NotSharedWarning", "NativeWarning")]


def settled(T):
    """Transforms that draw nothing, or whose draw is fixed."""
    bilinear, bicubic = T.InterpolationMode.BILINEAR, T.InterpolationMode.BICUBIC
    chance = [
        (T.RandomAutocontrast, ()), (T.RandomEqualize, ()), (T.RandomInvert, ()), (T.RandomSolarize, (100,)),
        (T.RandomSolarize, (77.5,)), (T.RandomPosterize, (3,)), (T.RandomAdjustSharpness, (2,)),
        (T.RandomAdjustSharpness, (0.25,)),
    ]  # fmt: skip
    return [
        *(kind(*given, p=p) for kind, given in chance for p in (0, 1)),
        T.GaussianBlur(5, sigma=1.5), T.GaussianBlur((3, 9), sigma=(0.5, 0.5)),
        T.RandomRotation((33, 33), fill=9), T.RandomRotation((-70, -70), bilinear, center=(5, 9), fill=(1, 2, 250)),
        T.RandomAffine((20, 20), scale=(1.25, 1.25), shear=(4, 4, -6, -6), interpolation=bicubic, fill=[8, 7, 6]),
        T.RandomAffine((0, 0), shear=(10, 10), interpolation=bilinear, center=[1, 2]),
        T.ColorJitter(brightness=(0.5, 0.5)), T.RandAugment(num_ops=0), T.Grayscale(3),
    ]  # fmt: skip


@pytest.fixture
def one_thread(torch):
    """Small images take less time without threads, which wait for each other without sleeping."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_an_image_folder_goes_to_the_daemons_own_decoders(loader_of, torch, small, tmp_path):
    from torchvision import datasets
    from torchvision import transforms as T

    recipes = [
        [T.Resize((40, 50)), T.ToTensor()],
        [T.Resize(40), T.CenterCrop(32), T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3)],
        [T.Resize(36, T.InterpolationMode.BICUBIC), T.CenterCrop([30, 20]), T.PILToTensor()],
        [T.Resize([50]), T.CenterCrop(30), T.PILToTensor(), T.ConvertImageDtype(torch.float32)],
        [T.Compose([T.CenterCrop(48), T.Grayscale(1)]), T.ToTensor()],
        [T.CenterCrop(48), T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(p=0), T.ToTensor()],
        [T.CenterCrop(48), T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3), T.RandomErasing(p=0)],
        [T.CenterCrop(48), T.PILToTensor(), T.RandomErasing(p=0), T.ConvertImageDtype(torch.float32)],
        *([T.CenterCrop(48), t, T.PILToTensor()] for t in settled(T)),
        [T.RandomRotation((30, 30), expand=True), T.CenterCrop(60), T.PILToTensor()],
    ]
    few = shutil.copytree(small, tmp_path / "few", ignore=shutil.ignore_patterns("00[!036].*"))  # grey and PNG, too
    for recipe in recipes:
        folder = datasets.ImageFolder(str(few), T.Compose(recipe))
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
    ):
        with pytest.raises(larder._native.NotNative, match=why):
            larder._native.recipe(T.Compose(steps))


def test_random_transforms_go_to_the_daemon_as_they_are(loader_of, torch, small):
    """What is drawn is the daemon's; that each op draws as torchvision does is shown by `larder verify parity`."""
    from torchvision import datasets
    from torchvision import transforms as T

    for t in (T.RandAugment(), T.TrivialAugmentWide(), T.AutoAugment(T.AutoAugmentPolicy.SVHN)):
        folder = datasets.ImageFolder(str(small), T.Compose([T.CenterCrop(32), t, T.PILToTensor()]))
        plain = datasets.ImageFolder(str(small), T.Compose([T.CenterCrop(32), T.PILToTensor()]))
        ours = loader_of(folder, batch_size=72, num_workers=1)
        assert ours.loader._shared.plan is None, t
        images, labels = next(iter(ours))
        assert images.shape == (72, 3, 32, 32) and labels.tolist() == plain.targets
        kept = [bool(torch.equal(a, b)) for a, (b, _) in zip(images, plain, strict=True)]
        assert 0 < sum(not k for k in kept), "something was drawn"
        ours.close()


def test_erased_boxes_lie_in_images_that_are_else_torchvisions(loader_of, torch, small):
    from torchvision import datasets
    from torchvision import transforms as T

    steps = [T.CenterCrop(32), T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3)]
    plain = datasets.ImageFolder(str(small), T.Compose(steps))
    erasing = T.RandomErasing(1, (0.1, 0.2), (0.5, 2), value=[-7, -8, -9])
    ours = loader_of(datasets.ImageFolder(str(small), T.Compose([*steps, erasing])), batch_size=72)
    assert ours.loader._shared.plan is None
    ((images, _),) = ours
    for image, (whole, _) in zip(images, plain, strict=True):
        box = image[0] == -7
        rows, columns = box.any(1).nonzero()[:, 0], box.any(0).nonzero()[:, 0]
        assert 0.07 < int(box.sum()) / 32**2 < 0.23 and box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert [v.unique().tolist() for v in image[:, box]] == [[-7], [-8], [-9]]
        assert torch.equal(image[:, ~box], whole[:, ~box])


def test_why_workers_run_an_image_folder_is_said_once(loader_of, torch, small, capfd, monkeypatch):
    from torchvision import datasets
    from torchvision import transforms as T

    monkeypatch.setattr(_door, "_said", set())  # other tests have the same folder

    class Own(datasets.ImageFolder):
        def __len__(self):
            return 4

    class Computed(datasets.ImageFolder):
        @property
        def transform(self):
            return self.steps

        @transform.setter
        def transform(self, steps):
            self.steps = steps

    class Drawn:
        """A preset that does more than to call what it holds."""

        def __init__(self):
            self.transforms = T.RandomHorizontalFlip(1.0)

        def __call__(self, image):
            return self.transforms(image).convert("RGB")

    def folder(*steps, kind=datasets.ImageFolder):
        return kind(str(small), T.Compose([T.CenterCrop(8), *steps, T.ToTensor()]))

    counted = datasets.ImageFolder(str(small), folder().transform, target_transform=lambda y: y + 1)
    part = torch.utils.data.Subset(counted, range(5))
    cases = [
        (folder(T.RandomRotation(5, fill=0.5)), {}, "RandomRotation has fill=0.5"),
        (folder(T.RandomPerspective()), {}, "RandomPerspective has no counterpart"),
        (folder(T.RandomRotation(4000)), {}, "degrees is .*, not two numbers from -3600 to 3600"),
        (folder(kind=Own), {}, "Own has a __len__ of its own"),
        (folder(kind=Computed), {}, "Computed has a transform that is computed"),
        (folder(Drawn()), {}, "Drawn is none of torchvision.transforms"),
        (folder(), {"collate_fn": lambda items: torch.utils.data.default_collate(items)}, "collate_fn= is given"),
        (part, {}, "it has a target_transform: give the labels that it makes to dataset.samples"),
    ]
    for dataset, kw, why in cases:
        capfd.readouterr()
        ours = loader_of(dataset, batch_size=4, **kw)
        assert re.search(rf"^larder: DataLoader of .*: workers serve it: .*{why}", capfd.readouterr().err)
        assert ours.loader._shared.plan is not None
        assert next(iter(ours))[0].shape[:2] == (4, 3)
        ours.close()
    loader_of(cases[0][0], batch_size=4)
    loader_of(folder(T.Pad(2)), batch_size=4, native=False)
    assert not capfd.readouterr().err, "it is said once, and not where the script asks for workers"


@pytest.mark.filterwarnings("always::larder.NativeWarning")
def test_a_loader_of_larder_warns_where_workers_run_a_folder(real, small, monkeypatch):
    from torchvision import datasets
    from torchvision import transforms as T

    monkeypatch.setattr(larder._make, "_said", set())
    folder = datasets.ImageFolder(str(small), T.Compose([T.Pad(3), T.Resize((8, 8)), T.ToTensor()]))
    with pytest.warns(larder.NativeWarning, match=rf"the ImageFolder of {small} runs as any dataset in Python does"):
        real(folder, batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", larder.NativeWarning)
        real(folder, batch_size=4)
        real(datasets.ImageFolder(str(small), T.Compose([T.Resize((8, 8)), T.ToTensor()])), batch_size=4)


def test_a_folder_whose_name_is_not_utf8(real, small, tmp_path, torch):
    """It is refused in words; what the words say works, and so does an ImageFolder of it, whose files workers read."""
    latin = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(small, latin)
    with pytest.raises(larder.InvalidError, match=r"caf\\xe9 is not UTF-8") as e:
        real(f"imagefolder:{latin}", batch_size=8)
    assert "ln -s" in e.value.hint
    first = min(p for p in (latin / "class000").iterdir())
    first.rename(first.with_name(os.fsdecode(b"\xe9.jpg")))
    (tmp_path / "link").symlink_to(latin)
    assert sum(len(y) for _, y in real(f"imagefolder:{tmp_path / 'link'}", batch_size=8)) == 72
    folder = pytest.importorskip("torchvision").datasets.ImageFolder(latin, lambda image: image.size[0])
    assert sum(len(y) for _, y in real(folder, batch_size=8, num_workers=1)) == 72
