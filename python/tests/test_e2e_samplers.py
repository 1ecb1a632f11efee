"""Samplers and batch samplers of the script on the real daemon: torch's batches, what is refused, what survives."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from real import PATIENCE, draw, night, served
from test_e2e_python import Items, item, same

import larder
from larder import _stream

torch = pytest.importorskip("torch")
data = torch.utils.data
sampled = pytest.importorskip("sampled")

OWN_DAEMON = True

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::larder.{w}")
    for w in ("NotSharedWarning", "KeptBatchesWarning", "NativeWarning", "WorkerWarning")
]


@pytest.fixture
def loader_of(server):
    """Makes torch-like loaders on the shared daemon."""
    with contextlib.ExitStack() as stack:

        def make(dataset, **kw):
            kw.setdefault("endpoint", server.socket)
            kw.setdefault("timeout", PATIENCE)
            return stack.enter_context(served(dataset, **kw))

        yield make


def copied(batch):
    """A batch in memory of its own."""
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    if isinstance(batch, dict):
        return {k: copied(v) for k, v in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(copied, batch))
    return type(batch)(map(copied, batch)) if isinstance(batch, (list, tuple)) else batch


def epochs(loader, n):
    return [[copied(b) for b in loader] for _ in range(n)]


# ---- the same batches as torch's


class Picks(data.Sampler):
    """A sampler of a script: any indices, other ones in each epoch, from the global random state."""

    def __init__(self, n, most):
        self.n, self.most = n, most

    def __iter__(self):
        for _ in range(int(torch.randint(self.most, ()))):
            yield int(torch.randint(self.n, ()))

    def __len__(self):
        return self.most


class Sizes:
    """A batch sampler of batches of unlike sizes, the largest first."""

    def __init__(self, n, size):
        self.n, self.size = n, size

    def __iter__(self):
        yield torch.randint(self.n, (self.size,)).tolist()
        for _ in range(int(torch.randint(5, ()))):
            yield torch.randint(self.n, (1 + int(torch.randint(self.size, ())),)).tolist()

    def __len__(self):
        return 5


def how(r, n):
    """Arguments that say which samples come, made anew for each loader."""
    size, drop, kind = r.randint(1, 6), r.random() < 0.3, r.randrange(7)
    weights, seed = [r.random() for _ in range(n)], r.randrange(1000)
    some = [r.randrange(n) for _ in range(r.randrange(1, 30))]
    batches = data.BatchSampler(data.WeightedRandomSampler(weights, 3 * n), size, drop)
    return [
        lambda: {"sampler": data.WeightedRandomSampler(weights, 2 * n), "batch_size": size, "drop_last": drop},
        lambda: {
            "sampler": data.WeightedRandomSampler(weights, n, generator=torch.Generator().manual_seed(seed)),
            "batch_size": size,
        },
        lambda: {"sampler": data.RandomSampler(range(n), replacement=True, num_samples=17), "batch_size": size},
        lambda: {"sampler": data.SubsetRandomSampler([*some, some[0]]), "batch_size": size, "drop_last": drop},
        lambda: {"sampler": Picks(n, 20), "batch_size": size, "generator": torch.Generator().manual_seed(seed)},
        lambda: {"batch_sampler": Sizes(n, size)},
        lambda: {"batch_sampler": batches},
    ][kind]


CASES = int(os.environ.get("LARDER_CASES", "0"))


@pytest.mark.parametrize(
    ("workers", "seeds"),
    [(0, range(7)), (2, range(2)), *night((0, range(7, CASES or 20)), (2, range(2, CASES or 10)))],
)
def test_samplers_give_torchs_batches(loader_of, workers, seeds):
    """Generated datasets under generated samplers, three epochs, from one state of torch's random numbers."""
    for seed in seeds:
        r = random.Random(100 * workers + seed)
        items = Items(r.randint(1, 25), item(r, torch))
        arguments = how(r, len(items))
        torch.manual_seed(seed)
        theirs = data.DataLoader(items, **arguments())
        want, length = epochs(theirs, 3), len(theirs)
        torch.manual_seed(seed)
        ours = loader_of(items, num_workers=workers, **arguments())
        got = epochs(ours, 3)
        assert len(ours) == length and [len(e) for e in got] == [len(e) for e in want], seed
        for a, b in zip(got, want, strict=True):
            for x, y in zip(a, b, strict=True):
                same(torch, x, y)
        ours.close()


def test_single_samples_and_collate_fn(loader_of):
    sampler = [4, 4, 0, 9]
    assert list(loader_of(list(range(10)), sampler=sampler, batch_size=None)) == sampler
    tensors = loader_of(list(range(10)), sampler=[torch.tensor(3), np.int32(2)], batch_size=2)
    assert [b.tolist() for b in tensors] == [[3, 2]], "the dataset is given ints"
    joined = loader_of([str(i) for i in range(10)], sampler=sampler, batch_size=3, collate_fn="".join)
    assert [list(joined), list(joined), len(joined)] == [["440", "9"], ["440", "9"], 2]


def test_samplers_number_the_samples_of_a_part(loader_of):
    part = data.Subset(list(range(100, 160)), [50, 3, 3, 20])
    other = data.Subset(list(range(100, 160)), [50, 3, 7, 20])
    for dataset in (part, other):
        sampler = [3, 0, 0, 2, 1]
        want = [b.tolist() for b in data.DataLoader(dataset, sampler=sampler, batch_size=2)]
        assert [b.tolist() for b in loader_of(dataset, sampler=sampler, batch_size=2)] == want


def test_folders_take_samplers(real, small):
    ids = [5, 5, 70, 0, 5, 33]
    crop = [larder.ops.RandomResizedCrop(16)]
    one = real(f"imagefolder:{small}", batch_size=4, sampler=ids, return_index=True, transform=crop)
    for _ in range(2):
        images, index = [], []
        for x, _, i in one:
            images += [a.copy() for a in x]
            index += i.tolist()
        assert index == ids and len(one) == 2
        assert not np.array_equal(images[0], images[1]), "each pick has random parameters of its own"
    assert one.promise.startswith("given") and one.num_samples == 72
    resized = [larder.ops.Resize([8, 8])]
    batches = [[1], [2, 2, 2], [3, 4]]
    several = real(f"imagefolder:{small}", batch_sampler=batches, return_index=True, transform=resized)
    assert [i.tolist() for _, _, i in several] == batches


def test_ids_that_are_not_gone_are_taken(real, server, tmp_path):
    """Of a folder that lost files the highest id is above the number of samples: the daemon knows which there are."""
    folder = draw(tmp_path / "shrinks", 3, 8, size=(24, 40))
    uri = f"imagefolder:{folder}"
    first = real(uri, batch_size=4, sampler=[23, 0], return_index=True, job="before")
    assert [i.tolist() for _, _, i in first] == [[23, 0]]
    for n in range(4):
        os.remove(next((folder / "class001").glob(f"{n:03}.*")))
    server.cli("dataset", "refresh", uri)
    loader = real(uri, batch_size=4, sampler=[23, 0, 16, 23], return_index=True, transform=[larder.ops.Resize([8, 8])])
    assert loader.num_samples == 20
    assert [i.tolist() for _, _, i in loader] == [[23, 0, 16, 23]]
    for bad in (24, 2**32 - 1):
        with pytest.raises(larder.InvalidError, match=f"is index {bad}, and dataset"):
            list(real(uri, batch_size=4, sampler=[bad]))
    with pytest.raises(larder.InvalidError, match=f"gave index {2**32} in batch 0"):
        list(real(uri, batch_size=4, sampler=[2**32]))


def test_a_registered_job_of_order_given_is_not_waited_for(real, small):
    with real(f"imagefolder:{small}", batch_size=4, sampler=[1, 2], job="told") as first:
        for _ in first:
            pass
        with pytest.raises(larder.InvalidError, match=r"the client that registers it says which.*sampler=\.\.\."):
            real("job:told")


def test_a_sampler_shares_what_is_cached(loader_of, tmp_path):
    class Counted:
        def __len__(self):
            return 30

        def __getitem__(self, i):
            with open(tmp_path / "calls", "ab", buffering=0) as f:
                f.write(b"x")
            return np.full(20, i)

    whole = loader_of(Counted(), batch_size=5, shuffle=True, name="counted", cache="items", num_workers=1)
    assert sum(len(b) for b in whole) == 30
    made = (tmp_path / "calls").stat().st_size
    picked = loader_of(Counted(), batch_size=4, sampler=[7, 7, 8, 29], name="counted", cache="items", num_workers=1)
    (tmp_path / "calls").unlink()  # with what it looked at
    assert [b[:, 0].tolist() for b in picked] == [[7, 7, 8, 29]]
    looks = (tmp_path / "calls").stat().st_size if (tmp_path / "calls").exists() else 0
    assert looks <= made - 30, "it only looked at some items: those that it got were there"


def test_each_process_of_a_run_has_a_sampler_of_its_own(loader_of, monkeypatch):
    got, names = [], []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("MASTER_ADDR", "here")
        monkeypatch.setenv("MASTER_PORT", "1")
        loader = loader_of(list(range(10)), sampler=[rank, rank + 5], batch_size=2, job="run")
        got += [b.tolist() for b in loader]
        names.append(loader.loader.job)
    assert got == [[0, 5], [1, 6]] and names == ["run/rank0", "run/rank1"]


# ---- what is refused


def test_what_a_sampler_cannot_say(loader_of, real, small):
    ten = list(range(10))
    cases = (
        ({"sampler": [0, 10]}, "index 10 in batch 1; the dataset has 10 samples"),
        ({"sampler": [0, 1, -1], "batch_size": 2}, "index -1 in batch 1"),
        ({"sampler": ["a"]}, r"gave \['a'\], which are no indices"),
        ({"sampler": [0.5]}, "which are no indices"),
        ({"batch_sampler": [[1], []]}, "batch 1 of the batch_sampler has 0 samples; a batch has 1 to 65536"),
        ({"batch_sampler": ([i] * n for i, n in ((1, 2), (2, 65537)))}, "batch 1 .*has 65537 samples"),
        ({"batch_sampler": [3, 4]}, "batch_sampler gives lists of them"),
    )
    for kw, words in cases:
        with pytest.raises((larder.InvalidError, TypeError), match=f"{words}|has no len|not iterable"):
            list(loader_of(ten, **kw))
    for kw, words in (
        ({"sampler": 5, "batch_size": 2}, "sampler must be an iterable"),
        ({"sampler": ten, "batch_size": 2, "shuffle": True}, "shuffle=True cannot be given beside it"),
        ({"sampler": ten, "batch_size": 2, "subset": "id < 3"}, "subset="),
        ({"sampler": ten, "batch_size": 2, "share": "augmented"}, "share='augmented'"),
        ({"sampler": ten, "batch_size": 2, "on_error": "substitute"}, "on_error='substitute'"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "batch_size=2 cannot"),
        ({"batch_sampler": [[1]], "drop_last": True}, "drop_last=True cannot"),
    ):
        with pytest.raises(larder.InvalidError, match=words):
            real(f"imagefolder:{small}", **kw)
    with pytest.raises(TypeError, match="batch_size"):
        real(f"imagefolder:{small}", sampler=ten)


def test_a_sampler_that_fails_ends_its_epoch_alone(loader_of):
    def broken():
        yield from range(9)
        raise KeyError("the sampler's own")

    class Sampler:
        def __init__(self):
            self.passes = 0

        def __iter__(self):
            self.passes += 1
            return broken() if self.passes == 1 else iter(range(9))

    loader = loader_of(list(range(10)), sampler=Sampler(), batch_size=1)
    with pytest.raises(KeyError, match="own"):
        list(loader)
    assert torch.cat(list(loader)).tolist() == list(range(9))
    with pytest.raises(TypeError):
        len(loader)


def test_a_sampler_is_asked_a_bounded_number_of_batches_ahead(loader_of):
    asked = []

    class Sampler:
        def __iter__(self):
            for i in range(200):
                asked.append(i)
                yield i % 10

    for n, batch in enumerate(loader_of(list(range(10)), sampler=Sampler(), batch_size=2)):
        assert batch.tolist() == [2 * n % 10, (2 * n + 1) % 10]
        assert len(asked) <= 2 * (n + 8), "the ring has four slots"


# ---- what survives


class Drawn:
    """A batch_sampler without a batch_size that draws from torch's random numbers, and knows its epoch."""

    def __init__(self, n):
        self.n, self.epoch, self.passes = n, 0, 0

    def __len__(self):
        return -(-self.n // 4)

    def __iter__(self):
        self.passes += 1
        generator = torch.Generator().manual_seed(int(torch.randint(1 << 30, ())) + self.epoch)
        order = torch.randperm(self.n, generator=generator).tolist()
        return iter([order[i : i + 4] for i in range(0, self.n, 4)])


def test_the_size_of_batches_is_looked_at_without_a_trace(loader_of):
    """What is set, or drawn, between the constructor and the first epoch counts, as with torch."""
    numbers = [torch.tensor(i) for i in range(22)]
    seen = []
    for make in (data.DataLoader, loader_of):
        torch.manual_seed(3)
        sampler = Drawn(22)
        loader = make(numbers, batch_sampler=sampler)
        sampler.epoch = 5
        seen.append([[b.tolist() for b in loader] for _ in range(2)] + [torch.randint(1 << 30, ()).item()])
    assert seen[0] == seen[1]
    got = loader_of(numbers, batch_sampler=[[0], [1, 2, 3], [4]])  # of a list, the largest batch is known
    assert [b.tolist() for b in got] == [[0], [1, 2, 3], [4]]


class Listed:
    """Batches of any sizes in any order, of which nothing is known before they come: as of a number of tokens."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


GROWING = [[0], [1, 2, 3], [4], [5, 6], [7] * 9, [8, 9], list(range(10)) * 4, [1], [2] * 90]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_grow(loader_of, workers):
    """The largest comes last, and each again in the next epoch."""
    loader = loader_of(list(range(10)), batch_sampler=Listed(GROWING), num_workers=workers)
    for epoch in range(2):
        assert loader.loader.epoch == epoch
        assert [b.tolist() for b in loader] == GROWING and len(loader) == len(GROWING)


class Draws:
    """Every item is a draw."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return torch.randint(1 << 40, ())


def test_no_draw_comes_twice_when_batches_grow(loader_of):
    loader = loader_of(Draws(), batch_sampler=Listed([[0], [0], [0, 0, 0], [0], [0] * 20, [0]]))
    drawn = [x for _ in range(2) for batch in loader for x in batch.tolist()]
    assert len(drawn) == len(set(drawn)) == 54


def test_a_state_between_batches_that_grow(loader_of):
    """Also at those where the job was just replaced, or is about to be."""
    for stop in (0, 1, 2, 6, 8):
        with loader_of(list(range(10)), batch_sampler=Listed(GROWING)) as loader:
            it = iter(loader)
            got = [next(it).tolist() for _ in range(stop)]
            assert loader.loader.step == stop
            state = loader.state_dict()
        with loader_of(list(range(10)), batch_sampler=Listed(GROWING)) as loader:
            loader.load_state_dict(state)
            assert got + [b.tolist() for b in loader] == GROWING


def test_a_larger_batch_behind_one_whose_samples_are_all_bad(loader_of):
    """Nothing is delivered of that, and so nothing else says that it is the turn of the larger one."""

    class Bad(list):
        def __getitem__(self, i):
            if i == 3 and self.begun:
                raise ValueError("bad")
            return i

    numbers = Bad(range(10))
    numbers.begun = True
    loader = loader_of(numbers, batch_sampler=Listed([[1], [3], [3], [4, 5]]), on_error="skip")
    assert [b.tolist() for b in loader] == [[1], [4, 5]]


class Grouped(sampled.Own):
    """A batch_sampler without a batch_size, whose generator has another name than torch's."""

    def __iter__(self):
        order = list(super().__iter__())
        yield from (order[i : i + 5] for i in range(0, len(order), 5))


def test_looking_at_a_batch_draws_from_no_generator_for_good(loader_of):
    numbers = [torch.tensor(i) for i in range(sampled.N)]
    for rng in (lambda: random.Random(2), lambda: np.random.default_rng(2)):
        want, got = (
            sampled.passes(make(numbers, batch_sampler=Grouped(rng())), 2) for make in (data.DataLoader, loader_of)
        )
        assert got == want
    draws = []

    def once():
        for _ in range(6):
            draws.append(int(torch.randint(1 << 60, ())))
            yield [draws[-1] % 20]

    assert len(sampled.passes(loader_of(numbers, batch_sampler=once()), 1)[0]) == 6
    assert len(set(draws)) == 6, "what is drawn from a pass that cannot begin again is not drawn twice"


def test_random_samplers_of_other_data_are_taken_at_their_word(loader_of):
    numbers = [torch.tensor(i) for i in range(20)]
    sampler = data.RandomSampler(range(10), num_samples=20)
    got = [i for b in loader_of(numbers, batch_size=4, sampler=sampler) for i in b.tolist()]
    assert sorted(got) == sorted([*range(10), *range(10)])


def test_states_of_samplers(loader_of):
    def sampler():
        return data.WeightedRandomSampler([1.0] * 20, 35, generator=torch.Generator().manual_seed(4))

    def make(**kw):
        return loader_of(list(range(20)), batch_size=4, sampler=sampler(), **kw)

    want = epochs(make(), 2)
    first = make()
    it = iter(first)
    head = [next(it).tolist() for _ in range(3)]
    state = first.state_dict()
    first.close()
    second = make()
    second.load_state_dict(state)
    assert second.state_dict() == state and second.loader.step == 3
    tail = [b.tolist() for b in second]
    assert head + tail == [b.tolist() for b in want[0]] and len(second) == 9
    after = second.state_dict()
    assert [after[k] for k in ("larder_stream", "epoch", "step", "size")] == [1, 1, 0, 4]
    assert [b.tolist() for b in second] == [b.tolist() for b in want[1]], "its generator went on"
    plain = loader_of(list(range(20)), batch_size=4)
    token = plain.state_dict()
    plain.load_state_dict(state)
    with pytest.raises(larder.InvalidError, match=r"generator of torch at 1.generator.*has none there"):
        iter(plain)
    for bad in (token, {}, {"larder_stream": 1, "epoch": -1, "step": 0}, {**state, "step": "3"}):
        with pytest.raises(larder.InvalidError, match="not one of a loader with a sampler"):
            second.load_state_dict(bad)
    with pytest.raises(larder.InvalidError, match="batches of 4, this loader has those of 5"):
        loader_of(list(range(20)), batch_size=5, sampler=sampler()).load_state_dict(state)


def test_a_new_process_gives_the_rest_of_a_pass(server):
    """States of the third epoch, of all of torch's samplers and of a script's: the rest of it, and the next one."""
    want, states = {}, {}
    for name in sampled.SAMPLERS:
        torch.manual_seed(7)
        with sampled.made(name, server.socket) as loader:
            sampled.passes(loader, 2)
            it = iter(loader)
            for _ in range(3):
                next(it)
            states[name] = json.loads(json.dumps(loader.state_dict()))
            want[name] = [[b.tolist() for b in it], *([] if name in sampled.GLOBAL else sampled.passes(loader, 1))]
            assert len(want[name][0]) > 2
    assert max(len(json.dumps(s)) for s in states.values()) < 20_000
    code = "import sampled; sampled.main()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], input=json.dumps({"socket": server.socket, "states": states}),
        text=True, capture_output=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name, (rest, untouched, *after) in json.loads(done.stdout).items():
        assert [rest, *after] == want[name], name
        assert untouched or name not in sampled.GLOBAL, "the script's random state is its own"


def test_a_sampler_that_is_changed_is_followed(loader_of):
    """Active learning sets the indices between epochs: torch reads them in each epoch, so larder asks from then on."""

    def make(**kw):
        chosen = data.SubsetRandomSampler([1, 2, 3])
        kw = kw or {"sampler": chosen, "batch_size": 2}
        return chosen, loader_of([torch.tensor(i) for i in range(20)], job="active", **kw)

    def one(loader):
        return sorted(i for b in sampled.passes(loader, 1)[0] for i in b)

    chosen, loader = make()
    assert [one(loader), one(loader)] == [[1, 2, 3]] * 2
    assert loader.loader.promise.startswith("strat")
    for indices in ([4, 5, 6, 7], [1, 2, 3], [9]):
        chosen.indices = indices
        assert one(loader) == indices
        assert loader.loader.promise.startswith("given")
    assert loader.loader.epoch == 5, "epochs are counted on, so no instance comes again"
    chosen.indices = list(range(9))
    it = iter(loader)
    head = [next(it).tolist() for _ in range(2)]
    state = loader.state_dict()
    loader.close()
    with pytest.raises(larder.StaleError):
        iter(loader)
    chosen, second = make()
    chosen.indices = list(range(9))
    second.load_state_dict(state)
    assert sorted([i for b in head for i in b] + one(second)) == list(range(9))
    second.close()
    batches = data.BatchSampler(data.SequentialSampler(range(20)), 4, False)
    _, third = make(batch_sampler=batches)
    assert len(sampled.passes(third, 1)[0]) == 5
    batches.batch_size = 7
    assert sampled.passes(third, 1)[0] == [list(range(7)), list(range(7, 14)), list(range(14, 20))]
    third.close()
    chosen, fourth = make()
    chosen.indices = ["a"]
    with pytest.raises(larder.InvalidError, match="which are no indices"):
        one(fourth)


def test_a_changed_sampler_that_cannot_be_followed(loader_of):
    chosen = data.SubsetRandomSampler(range(6))
    numbers = [torch.tensor(i) for i in range(20)]
    ranks = loader_of(numbers, sampler=chosen, name="numbers-of-ranks", num_workers=1, rank=0, world_size=2, job="both")
    chosen.indices = [1]
    with pytest.raises(larder.InvalidError, match=r"order is that of several ranks.*make a new DataLoader"):
        iter(ranks)
    chosen.indices = range(6)
    loader = loader_of(numbers, sampler=chosen)
    it = iter(loader)
    next(it)
    state = loader.state_dict()
    loader.load_state_dict(state)
    chosen.indices = [1]
    with pytest.raises(larder.InvalidError, match="a state of the order before was loaded"):
        iter(loader)


def test_what_states_of_samplers_cannot_hold(loader_of):
    """A state of another sampler, or one that was edited, is refused and changes nothing."""

    def make(sampler):
        return loader_of(list(range(20)), batch_size=4, sampler=sampler)

    weighted = data.WeightedRandomSampler([1.0] * 20, 8, generator=torch.Generator().manual_seed(1))
    loader = make(weighted)
    state = loader.state_dict()
    assert set(state["random"]) == {"1.generator"}
    for bad in ([1], {"1.generator": 5}, {"1.generator": ["torch", "!"]}, {"1.generator": ["torch", "eJwDAA=="]}):
        with pytest.raises(larder.InvalidError, match="cannot be read"):
            loader.load_state_dict({**state, "random": bad})
    other = make(data.WeightedRandomSampler([1.0] * 20, 8))
    other.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(larder.InvalidError, match=r"generator of torch at 1.generator.* has none there"):
            iter(other)
    with_state = make(sampled.Counting())
    with_state.load_state_dict({**state, "random": {}, "sampler": {"5": {}}})
    with pytest.raises(larder.InvalidError, match="not both"):
        iter(with_state)
    old = make(data.WeightedRandomSampler([1.0] * 20, 8, generator=torch.Generator().manual_seed(1)))
    want = sampled.passes(loader, 1)[0]
    old.load_state_dict({k: state[k] for k in ("larder_stream", "epoch", "size")} | {"step": 1})
    assert sampled.passes(old, 1)[0] == want[1:], "states of before have no random state"


def test_an_interrupt_keeps_a_loaded_place(loader_of):
    """Ctrl-C while the sampler gives again what was handed out: the next iter() is still at the saved place."""
    interrupts = [2, 7, None]

    class Sampler:
        def __iter__(self):
            at = interrupts.pop(0) if len(interrupts) > 1 else None
            for i in range(20):
                if i == at:
                    raise KeyboardInterrupt
                yield i

    loader = loader_of(list(range(20)), batch_size=1, sampler=Sampler())
    loader.load_state_dict({"larder_stream": 1, "epoch": 3, "step": 6, "size": 1})
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (3, 6)
        assert (loader.loader.epoch, loader.loader.step) == (3, 6), "of the Loader"
    assert [b.item() for b in loader] == list(range(6, 20))
    assert loader.loader.epoch == 4 and [b.item() for b in loader] == list(range(20))


class Interrupted(collections.deque):
    """Where an interrupt comes once, before or after a batch is put in or taken out."""

    def __init__(self, what, late):
        super().__init__()
        self.what, self.late = what, late

    def _do(self, what, act):
        hit = what == self.what and (what == "popleft" or len(self) == 3)
        if hit:
            self.what = ""
        if hit and not self.late:
            raise KeyboardInterrupt
        done = act()
        if hit:
            raise KeyboardInterrupt
        return done

    def append(self, x):
        return self._do("append", lambda: collections.deque.append(self, x))

    def popleft(self):
        return self._do("popleft", lambda: collections.deque.popleft(self))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("what", ["append", "popleft"])
def test_an_interrupt_between_two_steps_loses_no_batch_silently(what, late):
    """Every batch is sent under its step, or the epoch ends with words."""
    sent = {}

    class Session:
        def send(self, _type, payload, *_):
            _, step, _, batches = struct.unpack_from("<IIII", payload)
            for i in range(batches):
                (n,) = struct.unpack_from("<I", payload, 16 + 12 * i)
                sent[step + i] = list(struct.unpack_from(f"<{n}I", payload, 20 + 12 * i))

    session = Session()
    epoch = _stream.Epoch(_stream.Sampling(range(40), False, 2, False, samples=40), 0, 4)
    epoch.known = Interrupted(what, late)
    step = 0
    try:
        while step < 20:
            try:
                epoch.tell(session, step, 0.0)
            except KeyboardInterrupt:
                continue
            assert sent[step] == [2 * step, 2 * step + 1]
            step += 3
    except larder.InvalidError as e:
        assert what == "append" and "ended by KeyboardInterrupt" in str(e)
    else:
        assert what == "popleft"


@pytest.mark.parametrize("politely", [False, True])
def test_daemons_die_and_streams_go_on(lives, politely):
    """A daemon is killed, or stopped, in the midst of each of three epochs: the batches are those of the sampler."""
    daemon = lives()
    rng = random.Random(5)
    passes = [[rng.randrange(40) for _ in range(90)] for _ in range(3)]
    coming = iter(passes)

    class Sampler:
        def __iter__(self):
            return iter(next(coming))

        def __len__(self):
            return 90

    with larder.Loader(
        [np.full(9, i) for i in range(40)], sampler=Sampler(), batch_size=4, endpoint=daemon.socket, timeout=PATIENCE,
        num_workers=1, name="numbers", return_index=True,
    ) as loader:  # fmt: skip
        for epoch in range(3):
            got, at = [], rng.randrange(1, 23)
            for n, (values, index) in enumerate(loader):
                assert values[:, 3].tolist() == index.tolist()
                got += index.tolist()
                del values, index
                if n == at:
                    daemon.restart(politely)
            assert got == passes[epoch]


def test_two_streams_and_an_order_side_by_side(real, small):
    """Two samplers and a shuffled job at once: each gets exactly its own."""
    failed, rng = [], random.Random(3)
    passes = [[rng.randrange(72) for _ in range(100)] for _ in range(2)]

    def train(**kw):
        try:
            loader = real(
                f"imagefolder:{small}", batch_size=5, return_index=True, transform=[larder.ops.Resize([16, 16])], **kw
            )
            want = list(kw.get("sampler") or range(72))
            for _ in range(3):
                got = [i for _, _, index in loader for i in index.tolist()]
                assert (got if "sampler" in kw else sorted(got)) == want
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=train, kwargs=kw) for kw in (
        {"sampler": passes[0]}, {"sampler": passes[1]}, {"shuffle": True})]  # fmt: skip
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


# ---- epochs that begin on request


class Changing:
    """A dataset whose items the script changes between epochs."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return 23

    def __getitem__(self, i):
        return 1000 * self.epoch + i


@pytest.mark.parametrize(("given", "workers"), [(False, 0), (True, 2), *night((False, 2), (True, 0))])
def test_what_a_script_changes_between_epochs_is_in_the_first_batch(loader_of, workers, given):
    """With persistent_workers=False, as in torch, an epoch has the dataset as it is when the epoch begins."""
    found = []
    for make in (data.DataLoader, loader_of):
        dataset = Changing()
        kw = {"sampler": [3, 3, 22, 1, 0, 5, 9]} if given else {}
        loader = make(dataset, batch_size=2, num_workers=workers, **kw)
        seen = []
        for epoch in range(4):
            dataset.epoch = epoch
            seen.append([b.tolist() for b in loader])
        found.append(seen)
    assert found[0] == found[1]


def test_an_epoch_left_early_does_not_give_the_next_one_old_items(loader_of):
    dataset = Changing()
    loader = loader_of(dataset, batch_size=2, num_workers=1, shuffle=True)
    for epoch in range(4):
        dataset.epoch = epoch
        for n, batch in enumerate(loader):
            assert all(x // 1000 == epoch for x in batch.tolist())
            if n == 3:
                break
