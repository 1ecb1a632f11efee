"""What the worker checks of datasets whose items it makes several at once, and its timer and random states then."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from test_bulk import Items, Several, frames_of, made, maker_of, one_by_one, run_of, service_of

from larder import _seeds, _wire, _worker


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
    monkeypatch.setattr(_worker.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(_worker.signal, "setitimer", lambda _which, s: timers.append(s))
    clock = _worker.Alarm.__new__(_worker.Alarm)
    clock.deadline = clock._seconds = clock._began = clock._set = 0.0
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
