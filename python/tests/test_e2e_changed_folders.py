"""ImageFolders that the script changes: each epoch has what torch's DataLoader gives at that moment."""

from __future__ import annotations

import os
import shutil

import pytest
from real import draw
from test_e2e_python import loader_of, same

__all__ = ["loader_of"]
pytestmark = [pytest.mark.filterwarnings(f"ignore::larder.{w}") for w in ("NotSharedWarning", "NativeWarning")]


@pytest.fixture
def root(tmp_path):
    return draw(tmp_path / "images", 2, 3)


def steps(size=8):
    from torchvision import transforms as T

    return T.Compose([T.Resize((size, size)), T.ToTensor()])


def folder(root):
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(root), steps())


def relabelled(f):
    f.samples[0] = (f.samples[0][0], 1)


def exchanged(f):
    f.samples = f.imgs = [(path, 1 - label) for path, label in f.samples]


def reversed_(f):
    f.samples.reverse()


def shorter(f):
    f.samples.pop()


def longer(f):
    f.samples.append(f.samples[0])


def larger(f):
    f.transform = steps(16)


def larger_within(f):
    f.transform.transforms[0].size = (24, 24)


def counted_from_five(f):
    f.target_transform = lambda label: label + 5


def drawn_by_the_script(f):
    from PIL import Image

    f.loader = lambda path: Image.new("RGB", (9, 9), (len(path) % 256, 2, 3))


CHANGES = [
    relabelled, exchanged, reversed_, shorter, longer, larger, larger_within, counted_from_five, drawn_by_the_script,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__.strip("_"))
def test_a_change_counts_before_the_loader_is_made_and_from_the_next_epoch_on(change, loader_of, torch, root):
    f = folder(root)
    change(f)
    equal(torch, loader_of(f, batch_size=4), f)
    g = folder(root)
    ours = loader_of(g, batch_size=4)
    equal(torch, ours, g)
    assert ours.loader._shared.plan is None  # the daemon's own decoders
    change(g)
    equal(torch, ours, g)
    equal(torch, ours, g)
    relabelled(g)
    equal(torch, ours, g)


@pytest.mark.parametrize("change", [relabelled, shorter, larger, counted_from_five], ids=lambda f: f.__name__)
def test_a_change_counts_in_a_shuffled_epoch_and_with_workers(change, loader_of, torch, root):
    f = folder(root)
    ours = loader_of(f, batch_size=3, shuffle=True, num_workers=2)
    alike(torch, ours, f)
    change(f)
    alike(torch, ours, f)


def test_places_are_those_of_the_list_after_files_came_and_went(loader_of, torch, root):
    equal(torch, loader_of(folder(root), batch_size=4), folder(root))  # the daemon numbers them
    shutil.copy(root / "class001" / "002.jpg", root / "class000" / "0000.jpg")  # before all others
    more = folder(root)
    equal(torch, loader_of(more, batch_size=4), more)
    shuffled = loader_of(more, batch_size=4, shuffle=True)
    alike(torch, shuffled, more)
    assert shuffled.loader._shared.plan is None  # the script sees no numbers
    for index in range(len(more)):
        assert_item(torch, loader_of(more, batch_size=1, sampler=[index]), more[index])
    (root / "class000" / "001.jpg").unlink()
    less = folder(root)
    equal(torch, loader_of(less, batch_size=4), less)
    assert_item(torch, loader_of(less, batch_size=1, sampler=[len(less) - 1]), less[len(less) - 1])


def listed(path, label):
    return [path, label]


def as_bool(path, label):
    return path, bool(label)


def as_float(path, label):
    return path, float(label)


def elsewhere(path, label):
    other = path.replace("images", "other")
    os.makedirs(os.path.dirname(other), exist_ok=True)
    return shutil.copy(path, other), label


@pytest.mark.parametrize("entry", [listed, as_bool, as_float, elsewhere], ids=lambda f: f.__name__)
def test_entries_that_the_daemon_does_not_have_stay_in_python(entry, loader_of, torch, root):
    f = folder(root)
    f.samples = [entry(path, label) for path, label in f.samples]
    ours = loader_of(f, batch_size=1)
    equal(torch, ours, f)
    assert ours.loader._shared.plan is not None


def equal(torch, ours, dataset):
    """The same batches as torch's, and as many as ``len`` says."""
    theirs = torch.utils.data.DataLoader(dataset, batch_size=ours.batch_size)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        same(torch, a, b)


def alike(torch, ours, dataset):
    """The same samples as the dataset's, in any order."""
    got = [(x.numpy().tobytes(), int(y)) for xs, ys in ours for x, y in zip(xs, ys, strict=True)]
    items = map(dataset.__getitem__, range(len(dataset)))
    assert sorted(got) == sorted((x.numpy().tobytes(), int(y)) for x, y in items)


def assert_item(torch, ours, item):
    ((images, labels),) = ours
    same(torch, images[0], item[0])
    assert int(labels[0]) == item[1]
