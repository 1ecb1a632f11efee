"""Saved places of samplers whose order comes from what no state has: the pass that begins again is checked."""

from __future__ import annotations

import contextlib
import random

import pytest
from real import PATIENCE, night, served

import larder

torch = pytest.importorskip("torch")
data = torch.utils.data
sampled = pytest.importorskip("sampled")

pytestmark = [pytest.mark.filterwarnings(f"ignore::larder.{w}") for w in ("NotSharedWarning", "KeptBatchesWarning")]

N = 60


@pytest.fixture
def loader_of(server):
    """Makes torch-like loaders on the shared daemon."""
    with contextlib.ExitStack() as stack:

        def make(dataset=tuple(range(N)), **kw):
            kw = {"batch_size": 7, "endpoint": server.socket, "timeout": PATIENCE, **kw}
            return stack.enter_context(served(dataset, **kw))

        yield make


class Raises(data.Sampler):
    """A sampler that raises its epoch itself."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return N

    def __iter__(self):
        order = torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.epoch += 1
        yield from order


class Seedable(data.RandomSampler):
    """As accelerate's SeedableRandomSampler: its generator is seeded from its epoch when a pass begins."""

    def __init__(self):
        super().__init__(range(N), generator=torch.Generator())
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.generator.manual_seed(self.epoch + 1)
        yield from super().__iter__()
        self.epoch += 1


class Wraps(data.Sampler):
    """A sampler around one that holds a generator, under a name of its own."""

    def __init__(self):
        self.inner = data.RandomSampler(range(N), generator=torch.Generator().manual_seed(3))

    def set_epoch(self, epoch):
        self.inner.generator.manual_seed(3)
        for _ in range(epoch):
            list(self.inner)

    def __len__(self):
        return N

    def __iter__(self):
        return iter(self.inner)


def flat(batches):
    return [i for b in batches for i in b.tolist()]


def saved(loader, epochs=1, batches=3):
    """A state of an epoch, and what that epoch has beyond it."""
    sampled.passes(loader, epochs)
    it = iter(loader)
    head = flat(next(it) for _ in range(batches))
    state = loader.state_dict()
    rest = flat(it)
    loader.close()
    assert sorted(head + rest) == list(range(N))
    return state, rest


@pytest.mark.parametrize("kind", [Raises, Seedable, Wraps])
def test_a_pass_that_is_another_one_is_refused(loader_of, kind):
    """No sample comes twice or never without a word; the script may set the sampler right, and go on."""
    state, rest = saved(loader_of(sampler=kind()))
    sampler = kind()
    loader = loader_of(sampler=sampler)
    loader.load_state_dict(state)
    with pytest.raises(larder.InvalidError, match=r"gave other samples than before .*epoch 1, 3 batches.*set_epoch"):
        iter(loader)
    assert (loader.loader.epoch, loader.loader.step) == (1, 3) and loader.state_dict() == state
    sampler.set_epoch(1)
    assert flat(loader) == rest


def test_the_first_epoch_needs_nothing(loader_of):
    for kind in (Raises, Seedable, Wraps):
        state, rest = saved(loader_of(sampler=kind()), epochs=0)
        loader = loader_of(sampler=kind())
        loader.load_state_dict(state)
        assert flat(loader) == rest


def test_states_of_states(loader_of):
    """The checksum goes on behind a state that was loaded, one of before the checksums too."""
    rng = random.Random(1)
    order = rng.sample(range(N), N)
    for old in (False, True):
        loader, at, got = loader_of(sampler=order), 0, []
        for _ in range(4):
            it = iter(loader)
            for _ in range(n := rng.randrange(1, 3)):
                got += next(it).tolist()
            at += n
            state = loader.state_dict()
            assert state["step"] == at
            loader.close()
            loader = loader_of(sampler=order)
            loader.load_state_dict({k: x for k, x in state.items() if k != "picks"} if old else state)
        assert got + flat(loader) == order
        other = loader_of(sampler=[*order[1:], order[0]])
        other.load_state_dict(state)
        with pytest.raises(larder.InvalidError, match="gave other samples"):
            iter(other)
        short = loader_of(sampler=order[:3])
        short.load_state_dict(state)
        with pytest.raises(larder.InvalidError, match="gave other samples"):
            iter(short)
    without = {k: x for k, x in state.items() if k != "picks"}
    other.load_state_dict(without)
    assert flat(other) == [*order[1:], order[0]][7 * at :], "a state of before has nothing to compare"
    with pytest.raises(larder.InvalidError, match="not one of a loader with a sampler"):
        other.load_state_dict({**state, "picks": "1"})


@pytest.mark.parametrize("workers", [0, *night(2)])
def test_batch_samplers_far_into_an_epoch(loader_of, workers):
    """What was drawn ahead is not counted; what was forgotten long ago is."""

    def make():
        batches = data.BatchSampler(Raises(), 2, False)
        return loader_of(batch_size=1, batch_sampler=batches, num_workers=workers)

    for step in (1, 9, 28, 30):
        state, rest = saved(make(), epochs=0, batches=step)
        loader = make()
        loader.load_state_dict(state)
        assert flat(loader) == rest
        loader.close()


# ---- lengths


def test_the_length_is_that_of_a_changed_sampler(loader_of):
    """len() says at once what the next epoch has, as torch's."""
    for kw in ({}, {"drop_last": True}, {"batch_size": None}):
        chosen, same = (data.SubsetRandomSampler(list(range(30))) for _ in range(2))
        ours = loader_of(sampler=chosen, **kw)
        torchs = data.DataLoader(range(N), sampler=same, **{"batch_size": 7, **kw})
        for n in (30, 41, 41, 3, 30):
            chosen.indices = same.indices = list(range(n))
            assert len(ours) == len(torchs)
            assert len(list(ours)) == len(torchs) == len(ours)
    batches, same = (data.BatchSampler(data.SequentialSampler(range(N)), 4, False) for _ in range(2))
    ours, torchs = loader_of(batch_size=1, batch_sampler=batches), data.DataLoader(range(N), batch_sampler=same)
    assert len(ours) == len(torchs) == 15
    batches.batch_size = same.batch_size = 7
    assert len(ours) == len(torchs) == 9 == len(list(ours))
