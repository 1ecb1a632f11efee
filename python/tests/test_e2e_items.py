"""Items of any kind on the real daemon: as torch gives them, with collate_fn, with its default one, and without."""

from __future__ import annotations

import contextlib
import datetime
import os
import warnings

import numpy as np
import pytest
from function_items import Items
from kinds_of_items import COLLATED, OTHER, alike, boxes, torch
from real import PATIENCE, night, served

import larder
from larder import _opaque
from larder._batches import Batches
from larder._nested import Structure

OWN_DAEMON = True
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::larder.{w}") for w in ("NotSharedWarning", "KeptBatchesWarning")
]
theirs = torch.utils.data.DataLoader


@pytest.fixture(autouse=True)
def keys(tmp_path, monkeypatch):
    """The key of named datasets is made in a folder of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def ours(server):
    with contextlib.ExitStack() as stack:

        def make(dataset, batch_size=1, **kw):
            kw = {"endpoint": server.socket, "timeout": PATIENCE, **kw}
            return stack.enter_context(served(dataset, batch_size=batch_size, **kw))

        yield make


def agree(a, b, names=()):
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        assert alike(x, y), (names[k] if names else k, x, y)


def first(samples):
    return samples


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kw", [{"batch_size": None}, {"batch_size": 3, "collate_fn": first}])
def test_every_kind_of_item_in_one_dataset(ours, workers, kw):
    """None of them says anything about the next."""
    kinds = {**COLLATED, **OTHER}
    if kw["batch_size"] is None:  # of which torch makes tensors, if it can
        kinds = {k: v for k, v in kinds.items() if k not in ("backwards", "big-endian", "structured")}
    makes, names = list(kinds.values()), list(kinds) if kw["batch_size"] is None else ()
    dataset = Items(len(makes), lambda i: makes[i](i))
    agree(ours(dataset, num_workers=workers, **kw), theirs(dataset, **kw), names)


def some(kinds):
    """Each sixth kind by day; test_every_kind_of_item_in_one_dataset has them all."""
    return [*kinds[::6], *night(*(k for n, k in enumerate(kinds) if n % 6))]


@pytest.mark.parametrize("kind", some([*COLLATED, *OTHER]))
def test_a_dataset_of_one_kind_of_item(ours, kind):
    """Whatever larder learns of it, samples are as the dataset gave them."""
    dataset = Items(12, {**COLLATED, **OTHER}[kind])
    agree(ours(dataset, 5, collate_fn=first), theirs(dataset, 5, collate_fn=first))


@pytest.mark.parametrize("kind", some([*COLLATED]))
def test_default_collate_is_torchs(ours, kind):
    dataset = Items(7, COLLATED[kind])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        agree(ours(dataset, 3), theirs(dataset, 3))


def test_what_default_collate_refuses_it_refuses(ours):
    """Its error, its words."""
    for kind in ("None", "date", "backwards"):
        with pytest.raises((TypeError, ValueError)) as want:
            next(iter(theirs(Items(3, OTHER[kind]), 3)))
        with pytest.raises(type(want.value)) as got:
            next(iter(ours(Items(3, OTHER[kind]), 3)))
        assert str(got.value) == str(want.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_item_that_is_unlike_all_that_were_looked_at(ours, workers):
    """L19: not one of the others fails for it, nor does it."""
    odd = {33: None, 34: "text", 35: (torch.ones(3, dtype=torch.float64), 35), 36: (torch.ones(2, 2), 36)}
    dataset = Items(60, lambda i: odd.get(i, (torch.ones(3), i)) if i in odd else (torch.ones(3), i))
    agree(ours(dataset, 8, num_workers=workers, collate_fn=first), theirs(dataset, 8, collate_fn=first))


def test_items_with_text_that_become_unlike_are_collated_by_torch(ours):
    """Of fields that have no one size, a later item may have another type where default_collate takes it."""
    dataset = Items(60, lambda i: {"y": 0.5 if i == 33 else 1, "t": "a" * (i % 3)})
    agree(ours(dataset, 8), theirs(dataset, 8))


def test_an_item_that_would_lose_something_is_never_silently_another(ours):
    """Where all batches have one size there is no room for it: it is a bad sample with words."""
    dataset = Items(60, lambda i: torch.ones(3, requires_grad=i == 33))
    loader = ours(dataset, 4, on_error="skip")
    assert sum(len(b) for b in loader) == 59
    assert "of which larder would lose requires_grad" in loader.loader.quarantined[0].reason


def test_boxes_of_torchvision_keep_what_they_are(ours):
    """L10."""
    dataset = Items(4, lambda i: (torch.ones(3, 8, 8), {"boxes": boxes(i)}))
    for _, targets in ours(dataset, 2, num_workers=1, collate_fn=lambda b: tuple(zip(*b, strict=True))):
        assert [t["boxes"].format for t in targets] in (["canvas 0", "canvas 1"], ["canvas 2", "canvas 3"])


def test_steps_in_python_see_the_items_and_make_any(ours):
    def step(item):
        return (item[0] + datetime.timedelta(days=1), {item[1]})

    dataset = Items(9, lambda i: (datetime.date(2020, 1, 1 + i), i))
    want = [[step(dataset[i]) for i in range(b, b + 3)] for b in (0, 3, 6)]
    for cache in (None, "items"):
        loader = ours(dataset, 3, collate_fn=first, transform=[step], cache=cache, num_workers=1)
        for _ in range(2):
            assert list(loader) == want


def test_built_in_ops_refuse_what_they_would_take_the_type_of(ours):
    dataset = Items(4, lambda i: {"image": np.zeros((8, 8, 3), np.uint8), "boxes": boxes(i)})
    with pytest.raises(larder.InvalidError, match=r"at boxes is .*Boxes, of which larder would lose the type"):
        ours(dataset, 2, transform=[larder.ops.HFlip()], collate_fn=first)
    with pytest.raises(larder.InvalidError, match="NoneType, which is no data"):
        ours(Items(4, lambda i: {"image": np.zeros((8, 8, 3), np.uint8), "x": None}), 2, transform=[larder.ops.HFlip()])


def test_arrays_of_pickled_items_are_not_copied(ours):
    """They lie in the ring, where the worker's record was put."""
    (batch,) = ours(Items(2, lambda i: [None, np.full(1000, i), torch.full((1000,), i)]), 2, collate_fn=first)
    for _, a, t in batch:
        assert not a.flags.owndata and not t.numpy().flags.owndata and (a == t.numpy()).all()


def test_jobs_of_one_user_share_items_that_are_pickled(ours, server):
    """With cache= and a name each is made once; without either, for each job."""
    made = []

    def item(i):
        made.append(i)
        return {"boxes": boxes(i), "when": datetime.date(2020, 1, 1)}

    dataset = Items(16, item)
    kw = {"collate_fn": first, "name": "shared", "cache": "items"}
    agree(ours(dataset, 4, **kw), theirs(dataset, 4, collate_fn=first))
    made.clear()
    list(ours(dataset, 4, **kw))
    assert sorted(set(made)) == [0, 3, 6, 9, 12, 15]  # which were looked at again


def test_without_a_collate_fn_a_loader_makes_no_arrays_of_pickled_items():
    owner = _opaque.owner(shared=False)
    form = Batches(Structure("either", keys=(owner,)), {}, False, False, None, None, False)
    with pytest.raises(larder.InvalidError, match=r"is a pickled object.*\(give a collate_fn"):
        form.make([[_opaque.leaf({1}, owner).values]], 1)


# ---- who may unpickle


def test_pickles_of_another_user_are_never_loaded(ours, monkeypatch, tmp_path):
    """Not by their name, nor by a header that says otherwise: the code of the pickle is made with the user's key."""
    mark = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(mark),)

    mine = _opaque.owner(shared=True)
    with monkeypatch.context() as m:
        m.setattr(os, "getuid", lambda: 4321)
        m.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        m.setattr(_opaque, "_process_key", lambda: b"k" * 32)
        other = _opaque.owner(shared=False)
        blob = _opaque.leaf(Bomb(), other).values
    _opaque._key.cache_clear()  # another process has another one
    assert other.startswith("4321-") and not mine.startswith("4321-")
    with pytest.raises(larder.InvalidError, match=r"pickled objects of user id 4321, and this script of user id \d+"):
        _opaque.load(blob, other)
    with pytest.raises(_opaque.Unreadable, match="damaged, or not of this user's workers"):
        _opaque.load(blob, mine)
    assert not mark.exists()


def test_the_key_of_named_datasets_is_the_users_alone(tmp_path, monkeypatch):
    path = tmp_path / "state" / "larder" / "items.key"
    owner = _opaque.owner(shared=True)
    assert path.stat().st_mode & 0o777 == 0o600 and path.stat().st_size == 32
    assert _opaque.owner(shared=True) == owner != _opaque.owner(shared=False)
    open_to_all = tmp_path / "open" / "larder" / "items.key"
    open_to_all.parent.mkdir(parents=True)
    open_to_all.write_bytes(b"x" * 32)
    open_to_all.chmod(0o644)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "open"))
    assert _opaque.owner(shared=True) == _opaque.owner(shared=False)  # which others may have read is none


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_torn_pickle_is_a_bad_sample_with_words(ours, monkeypatch, on_error):
    leaf = _opaque.leaf
    torn = []

    def tearing(item, owner):
        made = leaf(item, owner)
        if item == {5}:
            torn.append(made.values.tobytes())
            made.values[-1 - made.values[::-1].argmax()] ^= 1  # the last byte of the pickle
        return made

    monkeypatch.setattr(_opaque, "leaf", tearing)
    loader = ours(Items(9, lambda i: {i}), 3, collate_fn=first, on_error=on_error)
    it, got = iter(loader), []
    for _ in range(5):
        try:
            got += [next(it, [])]
        except larder.SampleError as e:
            assert on_error == "raise" and e.id == 5 and "its pickle is damaged" in str(e)
    assert got[:3] == [[{0}, {1}, {2}], [{3}, {4}], [{6}, {7}, {8}]] and torn
    assert [q.id for q in loader.loader.quarantined] == [5]


class Unfair:
    """Can be pickled, and not be made again in the script."""

    script = os.getpid()

    def __init__(self, i):
        self.i = i

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.i in (4, 6, 7, 8) and os.getpid() == self.script:
            raise KeyError(f"never {self.i}")


def test_what_cannot_be_made_again_names_its_sample_and_costs_no_other(ours):
    loader = ours(Items(12, Unfair), 3, collate_fn=lambda b: [x.i for x in b], num_workers=1)
    it, got, bad = iter(loader), [], []
    while True:
        try:
            got.append(next(it))
        except StopIteration:
            break
        except larder.SampleError as e:
            assert "KeyError: 'never" in str(e)
            bad += [s.id for s in e.samples]
    assert got == [[0, 1, 2], [3, 5], [9, 10, 11]] and bad == [4, 6, 7, 8]


def test_what_cannot_be_pickled_is_refused_with_words(ours):
    with pytest.raises(larder.InvalidError, match=r"item 0: .*cannot be pickled: .*lambda"):
        ours(Items(4, lambda i: lambda: i), 2, collate_fn=first)
    graph = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(larder.InvalidError, match="a graph behind it"):
        ours(Items(4, lambda i: graph), 2)
