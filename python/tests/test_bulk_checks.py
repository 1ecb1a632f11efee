"""What the worker checks of datasets whose items it makes several at once, and its timer and random states then."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from test_bulk import Items, Several, frames_of, made, maker_of, one_by_one, run_of, service_of

from larder import _alarm, _alike, _bulk, _nested, _seeds, _wire, _worker


@pytest.fixture
def watched(monkeypatch):
    """The random states as in a worker process."""
    torch = pytest.importorskip("torch")
    for owner, names in (
        (random, ["getstate"]), (np.random, ["get_state"]), (torch, ["initial_seed", "get_rng_state"]),
        (torch.random, ["initial_seed", "get_rng_state"]),
    ):  # fmt: skip
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(_seeds.Still, "watching", False)
    _seeds.Still.watch()
    return torch


def put_back(i):
    state = random.getstate()
    x = random.random()
    random.setstate(state)
    return x


def forked(i):
    import torch

    with torch.random.fork_rng(devices=[]):
        return float(torch.rand(()))


def read_torch(i):
    import torch

    return float(torch.random.get_rng_state().sum())


READERS = {
    "numpy": lambda i: float(np.random.get_state()[1][0]),
    "python": lambda i: float(random.getstate()[1][0]),
    "put back": put_back,
    "forked": forked,
    "torch": read_torch,
}


@pytest.mark.parametrize("name", list(READERS))
@pytest.mark.parametrize("kind", [Items, Several])
def test_items_that_look_at_a_random_state_have_their_own(watched, name, kind):
    read = READERS[name]
    dataset = kind(lambda i: read(i) if i >= 100 else 0.5)  # long after the first ones were looked at
    dataset.calls = []
    maker = maker_of(dataset)
    assert made(maker, run_of(300)) == one_by_one(maker, run_of(300))


def test_torch_is_watched_when_an_item_imports_it(watched, monkeypatch):
    asked = watched.initial_seed.__wrapped__
    monkeypatch.setattr(watched, "initial_seed", asked)
    _seeds.Still().begin()
    assert watched.initial_seed.__wrapped__ is asked


# ---- the timer


def test_the_timer_is_set_for_the_items_behind_one_that_hung(monkeypatch):
    now, timers = [100.0], []
    monkeypatch.setattr(_alarm._clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(_alarm._clock, "alarm", timers.append)
    clock = _worker.Alarm.__new__(_worker.Alarm)
    clock._kill_after = lambda _s: None
    clock.deadline = clock._seconds = clock._began = clock._set = 0.0
    clock._armed = False
    clock.words = _alarm.Words()
    clock._works = threading.Event()
    clock.start(10.0)
    now[0] += 10
    with pytest.raises(_worker.Hung):
        clock._ring()
    clock.tick()  # made one by one behind it
    assert timers == [10.0, 10.0]
    clock.tick()
    assert timers == [10.0, 10.0]
    now[0] += 10
    with pytest.raises(_worker.Hung):
        clock._ring()


def test_a_timer_that_rings_between_two_items_fails_one(monkeypatch):
    service, there = service_of(Items(int), 0)
    service.tasks.append(run_of(6))
    make, rings = service._bulk.make, [True]

    def ring(*arguments):
        if rings and rings.pop():
            raise _worker.Hung("late")
        return make(*arguments)

    monkeypatch.setattr(service._bulk, "make", ring)
    while service.tasks:
        service.run()
    found = frames_of(there, 6)
    assert found[0] == (_wire.FAILED, 1, 1) and sum(f[2] for f in found) == 6
    service.close()
    there.close()


# ---- proofs


def values(items):
    return [x if isinstance(x, Exception) else np.asarray(x).tolist() for x in items]


class Padded(Several):
    """Pads to the longest of a call."""

    def __init__(self):
        super().__init__(lambda i: np.full(i % 7 + 1, i))
        self.calls = []
        self.several = lambda indices: [
            np.pad(self.make(i), (0, max(k % 7 for k in indices) - i % 7)) for i in indices
        ]  # fmt: skip


class Normed(Several):
    """The mean of a call is taken off."""

    def __init__(self):
        super().__init__(lambda i: np.full(3, 0.0))
        self.calls = []
        self.several = lambda indices: [np.full(3, i - np.mean(indices)) for i in indices]


@pytest.mark.parametrize("kind", [Padded, Normed])
def test_a_getitems_whose_items_depend_on_each_other_is_not_used(kind, steady, capfd):
    dataset = kind()
    maker = maker_of(dataset)
    assert values(made(maker, run_of(300))) == values(one_by_one(maker, run_of(300)))
    assert len(dataset.calls) == 1


def test_a_getitems_that_goes_wrong_later_is_found(monkeypatch, capfd):
    now = [0.0]  # how many items a call has comes from the time that they take
    monkeypatch.setattr(_bulk.time, "monotonic", lambda: now[0])

    def item(i):
        now[0] += 0.0001
        return i

    dataset = Several(item, 20000)
    dataset.calls = []
    dataset.several = lambda indices: [item(i) + (len(dataset.calls) > 20) for i in indices]
    items = made(maker_of(dataset), run_of(20000))
    wrong = [k for k, x in enumerate(items) if x != k]
    assert wrong and wrong[0] == dataset.calls[20][0] > 1000, "not looked at"
    assert len(dataset.calls) == 1 + _bulk._AGAIN, "the call that is looked at is the last one"
    assert wrong[-1] == dataset.calls[-1][0] - 1


def test_datasets_with_a_function_of_batches_are_asked_one_by_one():
    dataset = Several(int)
    dataset.calls, dataset._format_type = [], "custom"
    assert made(maker_of(dataset), run_of(100)) == list(range(100)) and not dataset.calls


def test_a_getitems_of_columns_is_not_used(steady, capfd):
    columns = lambda ids: [np.full((len(ids), 3), ids[0], np.float32), np.array(ids)]  # noqa: E731
    for several in (columns, lambda ids: dict.fromkeys(ids, 0)):
        dataset = Several(lambda i: (np.full(3, i, np.float32), i))
        dataset.calls, dataset.several = [], several
        items = made(maker_of(dataset), run_of(10))  # 8 are proven: two are left
        assert len(dataset.calls) == 1
        assert [x[0].tolist() for x in items] == [[i] * 3 for i in range(10)]


@pytest.mark.parametrize(
    "make", [lambda: random._inst.getstate()[1][0], lambda: np.random.mtrand._rand.get_state()[1][0]]
)
def test_a_state_that_is_read_behind_our_back_is_seen_by_its_values(make):
    dataset = Items(lambda i: float(make()))
    maker = maker_of(dataset)
    assert made(maker, run_of(100)) == one_by_one(maker, run_of(100))


class Reuses(Items):
    """Writes its items into the same buffers, one after the other, from item ``start`` on."""

    def __init__(self, start, buffers, tensors=False, several=False):
        self.buffers = [np.zeros(4) for _ in range(buffers)]
        self.start, self.tensors = start, tensors
        super().__init__(self.fill)
        if several:
            self.__getitems__ = lambda indices: [self[i] for i in indices]

    def fill(self, i):
        out = self.buffers[i % len(self.buffers)] if i >= self.start else np.zeros(4)
        out[:] = i
        if self.tensors:
            import torch

            return {"x": torch.from_numpy(out)}
        return {"x": out}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("start", "buffers", "tensors"), [(0, 1, False), (0, 3, True), (30, 1, False), (30, 20, True)])
def test_a_dataset_that_reuses_memory_is_asked_for_one_at_a_time(
    start, buffers, tensors, several, late, capfd, monkeypatch
):
    if tensors:
        pytest.importorskip("torch")
    if late:  # a machine so busy that the time for each check is over at once
        monkeypatch.setattr(_bulk, "_CHECK", 0.0)
    maker = maker_of(Reuses(start, buffers, tensors, several))
    lock, found, run = threading.Lock(), [], run_of(300)
    bulk = _bulk.Bulk(maker, lambda task: None, lock)
    while run.left:
        assert bulk.make(run, 64) is None
        found += [float(np.asarray(x["x"])[0]) for x in bulk.items]  # as they are when they are written
        run.at += len(bulk.items)
    assert found == [float(i) for i in range(300)]
    assert bulk._overwrites


def test_what_items_share_and_nobody_writes_to_costs_nothing_for_long(steady):
    mask = np.ones(4)
    dataset = Items(lambda i: (np.full(2, i), mask), 5000)
    run, calls = run_of(5000), 0
    bulk = _bulk.Bulk(maker_of(dataset), lambda task: None, threading.Lock())
    while run.left:
        assert bulk.make(run, 64) is None
        run.at += len(bulk.items)
        calls += 1
    assert not bulk._overwrites and not bulk._looks and calls < 2000


def test_items_share_memory_where_a_leaf_begins_at_the_same_place():
    torch = pytest.importorskip("torch")
    a, t = np.arange(6), torch.arange(6)
    for x in (a, t):
        assert _alike.shares([(x[:2], 1), (x[:3], 2)]) and not _alike.shares([(x[:3], 1), (x[3:], 1)])
        assert _alike.shares([{"a": [x]}, {"a": [x]}]) and not _alike.shares([x[:0], x[:0]])
    assert not _alike.shares([1, 1]) and not _alike.shares(["a", "a", None]) and not _alike.shares([(), ()])
    assert _alike.shares([[1, 2]] * 2) and not _alike.shares([[1, 2], [1, 2]])


def test_leaves_are_compared_by_type_shape_and_value():
    same = lambda x, y: _alike.same(y, _alike.copy(x, s := _nested.flatten(x)[1]), s)  # noqa: E731
    assert same((np.array([np.nan, 1]), "a", 1), (np.array([np.nan, 1]), "a", 1))
    assert not same(np.zeros(2), np.zeros(2, "f4")) and not same(np.zeros(2), np.zeros((2, 1)))
    assert not same("a", "b") and not same(1, 1.0) and not same({"a": 1}, {"b": 1})
