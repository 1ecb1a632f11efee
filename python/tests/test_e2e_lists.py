"""Folders of torchvision as scripts have them: parts, joins, filtered and reordered lists, all by the daemon itself.

Rows L1 to L9 and L14 to L16 of what scripts do: each batch is that of torch's DataLoader over the same dataset.
"""

from __future__ import annotations

import collections
import json
import multiprocessing
import os
import random
import shutil
import sys
import warnings

import numpy as np
import pytest
from real import PATIENCE, draw
from test_e2e_python import loader_of, same

import larder
from larder import _folders

__all__ = ["loader_of"]
OWN_DAEMON = True  # what is read and decoded is counted
pytestmark = [pytest.mark.filterwarnings("error::larder.NativeWarning", "error::larder.NotSharedWarning")]


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("pool"), 3, 5)


@pytest.fixture
def root(tmp_path, pool):
    return shutil.copytree(pool, tmp_path / "images")


def steps(size=8):
    from torchvision import transforms as T

    return T.Compose([T.Resize((size, size)), T.ToTensor()])


def folder(root, kind="ImageFolder", **kw):
    from torchvision import datasets

    kw.setdefault("transform", steps())
    if kind == "DatasetFolder":
        kw |= {"loader": datasets.folder.default_loader, "extensions": datasets.folder.IMG_EXTENSIONS}
    return getattr(datasets, kind)(str(root), **kw)


def native(ours):
    return ours.loader._shared.settings.native is not None


def equal(torch, ours, dataset, **kw):
    """The same batches as torch's, one by one."""
    theirs = torch.utils.data.DataLoader(dataset, batch_size=ours.batch_size, **kw)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        same(torch, a, b)


def bag(batches):
    """The samples of an epoch, whatever their order: bytes and label."""
    return collections.Counter((x.numpy().tobytes(), int(y)) for xs, ys in batches for x, y in zip(xs, ys, strict=True))


def alike(torch, ours, dataset):
    """The same samples as torch's, as often, in any order."""
    assert bag(ours) == bag(torch.utils.data.DataLoader(dataset, batch_size=4))


# ---- every kind


def plain(root, data):
    return folder(root)


def of_files(root, data):
    return folder(root, "DatasetFolder")


def subclass(root, data):
    from torchvision.datasets import ImageFolder

    class Named(ImageFolder):
        def __init__(self, root, transform):
            super().__init__(root, transform)
            self.name = "mine"

        def __repr__(self):
            return self.name

    return Named(str(root), steps())


def some_classes(root, data):
    """A subclass whose classes and files are its own choice: the list says it."""
    from torchvision.datasets import ImageFolder

    class Two(ImageFolder):
        def find_classes(self, directory):
            return ["class002", "class001"], {"class002": 0, "class001": 1}

    return Two(str(root), steps(), is_valid_file=lambda p: p.endswith(".jpg"))


def imagenet(root, data):
    """An ImageNet without its archives: the constructor looks for them, the items are those of the folder below."""
    from torchvision import datasets

    made = datasets.ImageNet.__new__(datasets.ImageNet)
    datasets.ImageFolder.__init__(made, str(root), steps())
    made.root, made.split = str(root.parent), root.name
    return made


def subset(root, data):
    return data.Subset(folder(root), [3, 0, 14, 7])


def subset_of_subset(root, data):
    return data.Subset(data.Subset(folder(root), range(14, 2, -1)), np.array([-1, 0, -12, 5]))


def first_half(root, data):
    return data.random_split(folder(root), [8, 7])[0]


def concat(root, data):
    """Parts of one folder that were looked at twice, in another order, all of one and some of the other."""
    import torch

    return data.ConcatDataset([data.Subset(folder(root), torch.tensor([9, 4])), folder(root)])


def concat_of_parts(root, data):
    a, b, c = data.random_split(folder(root), [5, 5, 5])
    return data.Subset(data.ConcatDataset([data.ConcatDataset([c, a]), b]), [-1, 3, 0, 14])


KINDS = [
    plain, of_files, subclass, some_classes, imagenet, subset, subset_of_subset, first_half, concat, concat_of_parts,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__)
def test_every_kind_is_prepared_by_the_daemon(kind, loader_of, torch, root):
    dataset = kind(root, torch.utils.data)
    ours = loader_of(dataset, batch_size=4)
    assert native(ours)
    equal(torch, ours, dataset)
    equal(torch, ours, dataset)  # another epoch
    shuffled = loader_of(dataset, batch_size=4, shuffle=True, num_workers=2)
    assert native(shuffled)
    alike(torch, shuffled, dataset)
    n = len(dataset)
    numbered = loader_of(dataset, batch_size=n, shuffle=True, return_index=True)
    ((images, labels, places),) = numbered
    assert sorted(places.tolist()) == list(range(n)) and places.dtype == torch.int64
    for image, label, place in zip(images, labels, places, strict=True):
        same(torch, [image, int(label)], list(dataset[int(place)]))
    assert numbered.loader.keys(places[:3])[0].endswith((".jpg", ".png"))
    assert numbered.loader.num_samples == n
    picked = loader_of(dataset, batch_size=2, sampler=[n - 1, 0, n - 1], return_index=True)
    assert [p for *_, places in picked for p in places.tolist()] == [n - 1, 0, n - 1]
    equal(torch, loader_of(dataset, batch_size=2, sampler=[n - 1, 0, n - 1]), dataset, sampler=[n - 1, 0, n - 1])


# ---- lists that the script changed


def relabelled(f):  # L1
    f.samples[0] = (f.samples[0][0], 1)


def relabelled_by_numpy(f):
    f.samples = [(p, np.int64(y + 7)) for p, y in f.samples]


def exchanged(f):  # L2
    f.samples = f.imgs = [(p, 1 - y) for p, y in f.samples]


def reversed_(f):  # L3
    f.samples.reverse()


def mixed(f):  # L3
    random.Random(3).shuffle(f.samples)


def filtered(f):
    f.samples = [s for s in f.samples if not s[0].endswith("2.jpg")]


def shorter(f):  # L4
    f.samples.pop()


def other_size(f):  # L5
    f.transform = steps(16)


def other_size_within(f):  # L6
    f.transform.transforms[0].size = (24, 24)


def listed_twice(f):
    f.samples += [f.samples[2], (f.samples[3][0], 2), f.samples[2]]


CHANGES = [
    relabelled, relabelled_by_numpy, exchanged, reversed_, mixed, filtered, shorter, other_size, other_size_within,
    listed_twice,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__.strip("_"))
def test_a_changed_list_stays_with_the_daemon(change, loader_of, torch, root):
    data = torch.utils.data
    f, g = folder(root), folder(root)
    change(f)
    for dataset in (f, data.Subset(f, range(len(f) - 1, -1, -2))):
        ours = loader_of(dataset, batch_size=4)
        assert native(ours)
        equal(torch, ours, dataset)
        alike(torch, loader_of(dataset, batch_size=4, shuffle=True), dataset)
    nested = data.Subset(data.Subset(g, range(12)), [3, 1, 11])
    loaders = [(loader_of(d, batch_size=4, shuffle=s), d, s) for d in (g, nested) for s in (False, True)]
    for ours, dataset, shuffle in loaders:
        (alike if shuffle else equal)(torch, ours, dataset)
    change(g)  # counts from the next epoch on
    for ours, dataset, shuffle in loaders:
        (alike if shuffle else equal)(torch, ours, dataset)
        assert native(ours)


def test_changed_indices_count_from_the_next_epoch_on(loader_of, torch, root):
    data = torch.utils.data
    inner = data.Subset(folder(root), list(range(10)))
    outer = data.Subset(inner, np.array([4, 2, 9]))
    joined = data.ConcatDataset([inner, outer])
    loaders = [(loader_of(d, batch_size=4), d) for d in (outer, joined)]
    for change in (
        lambda: inner.indices.__setitem__(2, 14),
        lambda: outer.indices.__setitem__(1, 0),
        lambda: setattr(inner, "indices", torch.arange(14, 4, -1)),
        lambda: inner.indices.__setitem__(4, 1),
    ):
        for ours, dataset in loaders:
            equal(torch, ours, dataset)
        change()
    for ours, dataset in loaders:
        equal(torch, ours, dataset)
        assert native(ours)


def test_a_list_that_repeats_files_has_another_order_in_each_epoch(loader_of, torch, root):
    f = folder(root)
    f.samples = [*f.samples, *((p, y + 5) for p, y in f.samples)]  # each file twice, with two labels
    ours = loader_of(f, batch_size=7, shuffle=True, return_index=True, drop_last=True)
    assert native(ours) and len(ours) == 4
    orders = []
    for _ in range(3):
        batches = list(ours)
        orders.append([p for *_, places in batches for p in places.tolist()])
        assert len(set(orders[-1])) == 28
        for images, labels, places in batches:
            for image, label, place in zip(images, labels, places, strict=True):
                same(torch, [image, int(label)], list(f[int(place)]))
    assert orders[0] != orders[1] != orders[2]


def test_a_repeated_file_that_cannot_be_read_takes_no_label_with_it(server, torch, root):
    bad = root / "class001" / "002.jpg"
    bad.write_bytes(b"none")
    f = folder(root)
    f.samples = [(p, 10 * n) for n, (p, _) in enumerate([*f.samples[:9], *reversed(f.samples[3:12])])]
    with larder.Loader(f, batch_size=6, on_error="skip", output="torch", endpoint=server.socket) as ours:
        got = [(x.numpy().tobytes(), int(y)) for xs, ys in ours for x, y in zip(xs, ys, strict=True)]
    want = [(f.transform(f.loader(p)).numpy().tobytes(), y) for p, y in f.samples if p != str(bad)]
    assert got == want and len(want) == 16


# ---- files that came and went


def test_positions_are_those_of_the_list_after_files_came_and_went(loader_of, torch, root):
    """L7, L8, L9."""
    equal(torch, loader_of(folder(root), batch_size=4), folder(root))  # the daemon numbers them
    shutil.copy(root / "class001" / "002.jpg", root / "class000" / "0000.jpg")  # before all others
    (root / "class002" / "001.jpg").unlink()
    f = folder(root)
    for dataset in (f, torch.utils.data.Subset(f, [0, 14, 2, 13])):
        ours = loader_of(dataset, batch_size=4)
        assert native(ours)
        equal(torch, ours, dataset)
        alike(torch, loader_of(dataset, batch_size=4, shuffle=True), dataset)
        for i in (0, len(dataset) - 1):
            equal(torch, loader_of(dataset, batch_size=1, sampler=[i]), dataset, sampler=[i])


def test_files_of_the_index_that_the_list_has_not_are_left_out(loader_of, torch, root):
    f = folder(root)
    shutil.copy(root / "class001" / "002.jpg", root / "class000" / "0000.jpg")
    ours, shuffled = loader_of(f, batch_size=4), loader_of(f, batch_size=4, shuffle=True)
    for _ in range(2):
        assert native(ours) and native(shuffled)
        equal(torch, ours, f)
        alike(torch, shuffled, f)
        shutil.copy(root / "class001" / "002.jpg", root / "class001" / "zz.jpg")
        folder(root)
        loader_of(folder(root), batch_size=4)  # another job has the daemon look at the folder


def test_a_file_that_the_index_has_not_is_named(server, torch, root, tmp_path):
    f = folder(root)
    other = shutil.copy(f.samples[1][0], str(tmp_path / "other.jpg"))
    gone = folder(root)
    os.unlink(gone.samples[5][0])
    f.samples[1] = (other, 0)
    joined = torch.utils.data.ConcatDataset([folder(root), folder(root, transform=steps(9))])
    apart = torch.utils.data.ConcatDataset([folder(root), folder(shutil.copytree(root, tmp_path / "second"))])
    moved = torch.utils.data.ConcatDataset([folder(root), g := folder(root)])
    g.samples.pop()
    for dataset, why in (
        (f, "files that are not below its root"), (gone, f"1 of its files are not in the folder.*{gone.samples[5][0]}"),
        (joined, "joins datasets with unlike transforms"), (apart, "joins several folders, and a job reads one"),
        (moved, "was made when its parts had other lengths"),
    ):  # fmt: skip
        with pytest.raises(larder.NativeWarning, match=why):
            larder.Loader(dataset, batch_size=4, endpoint=server.socket)
    rest = torch.utils.data.Subset(gone, [i for i in range(15) if i != 5])  # which it does not need
    with larder.Loader(rest, batch_size=14, output="torch", endpoint=server.socket) as ours:
        assert ours._shared.settings.native is not None
        alike(torch, ours, rest)


# ---- parts are shared


FORK = multiprocessing.get_context("fork")


def script(pipe, others, dataset, kw, script_of):
    """A process with a loader of its own, to which a warning is an error; it answers with what its script gives."""
    from larder.torch import DataLoader

    for p in others:
        p.close()  # else a script would not see that the test has ended
    warnings.simplefilter("error", UserWarning)
    try:
        with DataLoader(dataset, batch_size=4, timeout=PATIENCE, **kw) as loader:
            script_of(pipe, loader)
    except BaseException as e:
        pipe.send(repr(e))
        raise


@pytest.fixture
def start():
    """Starts scripts in processes of their own; the end of a pipe is the script's."""
    made = []

    def begin(dataset, script_of, **kw):
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=script, args=(theirs, [ours, *(p for _, p in made)], dataset, kw, script_of))
        process.start()
        theirs.close()
        made.append((process, ours))
        return ours

    yield begin
    for process, ours in made:
        ours.close()
        process.join(PATIENCE)
        assert process.exitcode == 0


def heard(pipe):
    assert pipe.poll(PATIENCE)
    said = pipe.recv()
    assert not isinstance(said, str), said
    return said


def one_epoch(pipe, loader):
    pipe.send((sorted(y for _, ys in loader for y in ys.tolist()), loader.loader._shared.job.get("shareGroup", 0)))
    pipe.recv()  # its job is there until the test has looked


@pytest.mark.parametrize("share", ["none", "augmented"])
def test_two_scripts_on_overlapping_parts_share_without_a_name(share, private, start, torch, root):
    """L14: neither has a name, neither warns, and each file is read once for both."""
    from torchvision import transforms as T

    server = private("tiers: {total: 64MiB}\nmemory: {limit: 2GiB}\n")
    flip = T.Compose([T.Resize((8, 8)), T.RandomHorizontalFlip(), T.ToTensor()])
    parts = [torch.utils.data.Subset(folder(root, transform=flip), range(*x)) for x in ((0, 10), (5, 15))]
    kw = {"shuffle": True, "share": share, "endpoint": server.socket}
    one = start(parts[0], one_epoch, **kw)
    seen, group = heard(one)
    two = start(parts[1], one_epoch, **kw)
    assert heard(two) == ([n // 5 for n in range(5, 15)], group) and (group > 0) == (share == "augmented")
    assert seen == [n // 5 for n in range(10)]
    with larder.Loader(f"imagefolder:{root}", batch_size=1, endpoint=server.socket) as asks:
        totals = asks.stats().totals
    assert totals.source_reads == 15 and totals.decodes < totals.augments
    one.send(None)
    two.send(None)


def saves(pipe, loader):
    batches = iter(loader)
    seen = [y for _ in range(2) for y in next(batches)[1].tolist()]
    pipe.send((seen, loader.state_dict()))


def loads(pipe, loader):
    loader.load_state_dict(pipe.recv())
    pipe.send([y for _, ys in loader for y in ys.tolist()])
    pipe.send([y for _, ys in loader for y in ys.tolist()])


@pytest.mark.parametrize("kind", ["shuffled", "reversed", "repeats"])
def test_a_checkpoint_is_loaded_in_another_process_without_a_name(kind, server, start, torch, root):
    """L16."""
    f = folder(root)
    f.samples = [(p, n) for n, (p, _) in enumerate(f.samples * (1 + (kind == "repeats")))]
    if kind == "reversed":
        f.samples.reverse()
    part = torch.utils.data.Subset(f, range(1, len(f)))
    kw = {"shuffle": kind != "reversed", "endpoint": server.socket}
    seen, state = heard(start(part, saves, **kw))
    other = start(part, loads, **kw)
    other.send(json.loads(json.dumps(state)))
    rest, more = heard(other), heard(other)
    whole = [y for _, y in f.samples[1:]]
    if kind == "reversed":
        assert seen + rest == more == whole
    else:
        assert sorted(seen + rest) == sorted(more) == whole and seen + rest != whole


# ---- what does not switch it off


class Preset:
    """As torchvision's references/classification has it."""

    def __init__(self, size):
        self.transforms = steps(size)

    def __call__(self, img):
        return self.transforms(img)


class Renamed:
    def __init__(self, inner):
        self.inner = inner

    def __call__(self, picture: object) -> object:
        """A docstring, and other names."""
        return self.inner(picture)


def test_what_changes_no_item_changes_nothing_else(loader_of, torch, root):
    """L44, collate_fn=default_collate, and name=."""
    collate = torch.utils.data.default_collate
    for dataset, kw in (
        (folder(root, transform=Preset(8)), {}), (folder(root, transform=Renamed(Preset(9))), {}),
        (folder(root), {"collate_fn": collate}), (folder(root), {"name": "mine", "version": 3}),
        (torch.utils.data.Subset(folder(root, transform=Preset(8)), [4, 2]), {"collate_fn": collate, "name": "mine"}),
        (folder(root, loader=sys.modules["torchvision.datasets.folder"].pil_loader), {"collate_fn": collate}),
    ):  # fmt: skip
        ours = loader_of(dataset, batch_size=4, **kw)
        assert native(ours)
        equal(torch, ours, dataset)
    preset = folder(root, transform=Preset(8))
    ours = loader_of(preset, batch_size=4)
    equal(torch, ours, preset)
    preset.transform.transforms.transforms[0].size = (11, 7)
    equal(torch, ours, preset)
    assert native(ours)


def test_a_loader_of_larder_has_them_too(server, torch, root):
    f = folder(root)
    f.samples = [(p, 3 * y) for p, y in reversed(f.samples)]
    collate = torch.utils.data.default_collate
    with larder.Loader(f, batch_size=15, output="torch", collate_fn=collate, endpoint=server.socket) as a:
        (batch,) = a
        same(torch, batch, next(iter(torch.utils.data.DataLoader(f, batch_size=15))))
        with pytest.raises(larder.InvalidError, match="the dataset says which samples there are"):
            a.set_subset("label < 2")
    with larder.Loader(f, batch_size=15, return_index=True, shuffle=True, endpoint=server.socket) as b:
        ((images, labels, places),) = b
        assert images.shape == (15, 3, 8, 8) and labels.tolist() == [3 * (2 - p // 5) for p in places]
        assert b.keys(places) == [os.path.relpath(f.samples[p][0], root) for p in places]
    ranks = {"rank": 1, "world_size": 2, "job": "ranks", "endpoint": server.socket}
    with larder.Loader(f, batch_size=3, shuffle=True, **ranks) as c:
        assert c._shared.settings.native is not None and len(c) == 3
    with pytest.raises(larder.NativeWarning, match="another order than the daemon's index, which does not go with sev"):
        larder.Loader(f, batch_size=3, **ranks)


def test_indices_beyond_the_dataset_are_torchs_error(loader_of, torch, root):
    f = folder(root)
    for indices in ([0, 15], [-16]):
        with pytest.raises(IndexError):
            torch.utils.data.Subset(f, indices)[len(indices) - 1]
        with pytest.raises(larder.InvalidError, match="its dataset has 15 samples") as caught:
            loader_of(torch.utils.data.Subset(f, indices), batch_size=1)
        assert isinstance(caught.value, IndexError)
    part = torch.utils.data.Subset(f, [0, 14])
    ours = loader_of(part, batch_size=1)
    equal(torch, ours, part)
    f.samples.pop()
    with pytest.raises(IndexError):
        iter(ours)
    with pytest.raises(IndexError, match="the sampler gave index 14"):
        list(loader_of(f, batch_size=1, sampler=[14]))


# ---- what it costs


def test_a_look_at_an_unchanged_list_compares_objects(torch, root):
    f = folder(root)
    dataset = torch.utils.data.Subset(f, list(range(14)))
    known = _folders.convert(dataset)
    assert known.still(dataset)
    f.samples[3] = tuple(f.samples[3])  # equal
    assert known.still(dataset)
    for change, back in (
        (lambda: f.samples.reverse(), lambda: f.samples.reverse()),
        (lambda: dataset.indices.append(3), lambda: dataset.indices.pop()),
        (lambda: setattr(dataset, "indices", range(14)), lambda: setattr(dataset, "indices", list(range(14)))),
        (lambda: setattr(f, "root", "/nowhere"), lambda: setattr(f, "root", str(root))),
    ):
        change()
        assert not known.still(dataset)
        back()
        assert known.still(dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not known.still(f)
