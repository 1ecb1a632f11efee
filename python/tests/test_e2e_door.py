"""larder.torch.DataLoader as torch's class: whatever torch's serves it serves, and says who did."""

from __future__ import annotations

import collections
import contextlib
import copy
import datetime
import itertools
import json
import os
import pathlib
import pickle
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
import sampled
from real import PATIENCE, draw, night
from test_e2e_python import Items, same

import larder
from larder import _door

torch = pytest.importorskip("torch")
data = torch.utils.data
OWN_DAEMON = True

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::larder.{w}")
    for w in ("NotSharedWarning", "KeptBatchesWarning", "WorkerWarning")
]


@pytest.fixture
def loader_of(server, monkeypatch):
    """Makes loaders as a script does, on the shared daemon."""
    from larder.torch import DataLoader

    monkeypatch.setenv("LARDER_SOCKET", server.socket)
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kw: stack.enter_context(DataLoader(*args, **kw))


@pytest.fixture
def folder(tmp_path):
    from torchvision import transforms as T
    from torchvision.datasets import ImageFolder

    root = draw(tmp_path / "images", 3, 5)
    return ImageFolder(str(root), T.Compose([T.Resize((8, 8)), T.ToTensor()]))


# ---- whatever torch serves


class Counter(data.IterableDataset):
    def __iter__(self):
        info = data.get_worker_info()
        return iter(range(0, 10) if info is None else range(info.id, 10, info.num_workers))


class Keyed:
    """A dataset of keys, without a length."""

    def __getitem__(self, key):
        return f"item {key}"


class Grouped:
    """A batch sampler of batches of any sizes."""

    def __iter__(self):
        return iter([[0], [1, 2, 3], [4, 5]])


def numbered(worker):
    data.get_worker_info().dataset.offset = 100


class Offset(Items):
    offset = 0

    def __getitem__(self, i):
        return i + self.offset


ten = list(range(10))
SCRIPTS = {
    "iterable": lambda make: make(Counter(), batch_size=4),
    "iterable in workers": lambda make: make(Counter(), batch_size=2, num_workers=2),
    "keys": lambda make: make(Keyed(), sampler=["a", "b"], batch_size=None),
    "keys in batches": lambda make: make(Keyed(), sampler=["a", "b", "c"], batch_size=2),
    "keys in workers": lambda make: make(Keyed(), sampler=["a", "b", "c"], batch_size=2, num_workers=1),
    "no samples": lambda make: make(data.Subset(ten, [])),
    "a batch larger than the dataset": lambda make: make(ten, batch_size=20, drop_last=True),
    "batches of any sizes": lambda make: make(ten, batch_sampler=Grouped()),
    "a list of batches": lambda make: make(ten, batch_sampler=[[0], [1, 2, 3]]),
    "a batch sampler without batches": lambda make: make(
        np.arange(10), batch_size=None, sampler=data.BatchSampler(range(10), 4, False)
    ),
    "negative indices": lambda make: make(ten, sampler=[-1, -10, 3], batch_size=2),
    "tuples as indices": lambda make: make(np.arange(12).reshape(3, 4), sampler=[(0, 1), (2, 3)], batch_size=2),
    "no word on the batch": lambda make: make(ten),
    "two arguments": lambda make: make(ten, 4),
    "an init function": lambda make: make(Offset(6, None), batch_size=3, num_workers=1, worker_init_fn=numbered),
    "workers that stay": lambda make: make(ten, batch_size=3, num_workers=1, persistent_workers=True),
    "unlike items": lambda make: make([[{"bbox": [1.0]}] * (i % 3) for i in range(6)], 2, collate_fn=list),
    "nothing for an item": lambda make: make([(1, i) if i != 3 else None for i in range(6)], 3, collate_fn=list),
    "pinned memory": lambda make: make(ten, 4, pin_memory=True),
    "shuffle=1 of one": lambda make: make(ten[:1], shuffle=1),
    "gradients": lambda make: make([torch.ones(2, requires_grad=True)] * 4, 2),
    "tokens": lambda make: make([{"tokens": ["w"] * (i % 3 + 1), "id": i} for i in range(6)], 3, collate_fn=list),
    "whole numbers among floats": lambda make: make([{"y": 1 if i % 2 else 0.5} for i in range(6)], 3, collate_fn=list),
    "sets, paths and dates": lambda make: make(
        [({i}, pathlib.Path(str(i)), datetime.date(2020, 1, i + 1)) for i in range(6)], 3, None, collate_fn=list
    ),
    "ten milliards of picks": lambda make: Few(
        make(ten, 2, sampler=data.RandomSampler(ten, replacement=True, num_samples=int(1e10), generator=seeded()))
    ),
}


def seeded():
    return torch.Generator().manual_seed(3)


class Few:
    """The first batches of a loader whose epochs are long."""

    def __init__(self, of):
        self.of = of

    def __iter__(self):
        return itertools.islice(iter(self.of), 5)

    def __getattr__(self, name):
        return getattr(self.of, name)


def test_a_dataset_may_be_filled_and_grow(loader_of):
    class Growing(list):
        pass

    for kw in ({}, {"cache": "items"}):
        items = Growing()
        loader = loader_of(items, 4, **kw)
        for n in (0, 5, 9, 3):
            items[:] = range(n)
            assert len(loader) == -(-n // 4) and sorted(flat(loader)) == list(range(n)), (kw, n)


def test_a_state_loads_into_another_loader_of_the_process(loader_of, folder):
    for dataset, kw in ((ten, {}), (ten, {"cache": "items"}), (folder, {})):
        one, other = (loader_of(dataset, 3, shuffle=True, **kw) for _ in range(2))
        it = iter(one)
        head = flat([next(it), next(it)])
        other.load_state_dict(one.state_dict())
        want = ten if dataset is ten else sorted(y for _, y in folder.samples)
        assert sorted(head + flat(other)) == want


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_whatever_torch_serves(loader_of, script):
    theirs, ours = script(data.DataLoader), script(loader_of)
    for _ in range(2):
        same(torch, list(ours), list(theirs))
    assert ours.served_by == "torch"
    with contextlib.suppress(TypeError, AttributeError):
        assert len(theirs) == len(ours)
    for wrong in ("loader", "promise"):
        if wrong == "promise":
            assert ours.promise.startswith("torch: ") and "G1 to G7" in ours.promise
        else:
            with pytest.raises(larder.InvalidError, match="torch serves this DataLoader, so it has no job"):
                ours.loader  # noqa: B018


def test_errors_are_torchs(loader_of):
    class Mapping:
        def __len__(self):
            return 2

        def __getitem__(self, key):
            return {"a": 1, "b": 2}[key]

    scripts = (
        lambda made: list(made(Mapping())),
        lambda made: len(made(Counter())),
        lambda made: made(Counter(), shuffle=True),
    )  # fmt: skip
    for script in scripts:
        with pytest.raises(Exception) as theirs:
            script(data.DataLoader)
        with pytest.raises(type(theirs.value)) as ours:
            script(loader_of)
        assert str(ours.value) == str(theirs.value)


def test_an_iterable_dataset_is_not_asked_for_its_length(loader_of):
    """torch warns of one that gives more than it said, once somebody asked."""

    class Short(Counter):
        def __len__(self):
            return 3

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flat(loader_of(Short(), 2)) == ten


def test_it_is_torchs_class(loader_of):
    ours, theirs = loader_of(ten, 4), data.DataLoader(ten, 4)
    assert isinstance(ours, data.DataLoader)
    for name in ("batch_size", "dataset", "sampler", "batch_sampler", "drop_last", "persistent_workers"):
        with pytest.raises(ValueError, match=f"^{name} attribute should not be set after DataLoader is initialized"):
            setattr(ours, name, getattr(ours, name))
    public = {n for n in vars(theirs) if not n.startswith("_")}
    assert public <= set(vars(ours))
    assert all(type(getattr(ours, n)) is type(getattr(theirs, n)) for n in public)


def test_a_loader_that_is_made_asks_for_nothing(monkeypatch, tmp_path):
    """No daemon, no item, no process: a subclass may be given its dataset's items later."""
    from larder.torch import DataLoader

    monkeypatch.setenv("LARDER_SOCKET", str(tmp_path / "none.sock"))
    items = []
    loader = DataLoader(items, 2, name="later", cache="items", num_workers=2)
    assert len(loader) == 0 and not (tmp_path / "none.sock").exists()
    items += [1, 2, 3]
    assert len(loader) == 2


# ---- what a script assigns, and passes side by side


@pytest.mark.parametrize("kw", [{}, {"cache": "items"}, {"cache": "items", "num_workers": 1}], ids=str)
def test_what_is_assigned_counts_from_the_next_epoch_on(loader_of, kw):
    loader = loader_of(ten, 5, **kw)
    loader.collate_fn = lambda batch: ["mine", *batch]
    assert list(loader) == [["mine", *ten[:5]], ["mine", *ten[5:]]]
    loader.collate_fn = sum
    assert list(loader) == [10, 35]
    assert loader.served_by == ("workers" if kw else "torch")


def flat(batches):
    return [int(x) for b in batches for x in (b if isinstance(b, torch.Tensor) else b[1])]


@pytest.mark.parametrize("kw", [{}, {"cache": "items"}, {"cache": "items", "num_workers": 1}], ids=str)
def test_a_second_iterator_is_a_pass_of_its_own(loader_of, kw):
    loader = loader_of(ten, 2, **kw)
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [([i, i + 1], [i, i + 1]) for i in range(0, 10, 2)]
    got = []
    for batch in loader:
        got += batch.tolist()
        assert next(iter(loader)).tolist() == [0, 1]
    assert got == ten
    kept = iter(loader)
    assert flat(loader) == ten == flat(kept)


def test_passes_of_a_folder_side_by_side(loader_of, folder):
    loader = loader_of(folder, 4, shuffle=True)
    one, other = iter(loader), iter(loader)
    turns = list(zip(one, other, strict=True))
    labels = sorted(y for _, y in folder.samples)
    assert [sorted(flat(x)) for x in zip(*turns, strict=True)] == [labels, labels]
    assert loader.served_by == "native" and sorted(flat(loader)) == labels


def test_a_subclass_that_keeps_one_iterator(server, monkeypatch):
    from larder.torch import DataLoader

    monkeypatch.setenv("LARDER_SOCKET", server.socket)

    class Repeat:
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            while True:
                yield from iter(self.sampler)

    class Infinite(DataLoader):
        def __init__(self, *args, **kw):
            super().__init__(*args, **kw)
            object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self):
            return len(self.batch_sampler.sampler)

        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.iterator)

    for kw in ({}, {"num_workers": 1}, {"cache": "items"}):
        loader = Infinite(ten, 4, **kw)
        for _ in range(3):
            assert flat(loader) == ten
        loader.close()


class Odd(Exception):
    """An exception of the script's whose constructor asks for more than a message."""

    def __init__(self, a, b):
        super().__init__(f"{a}, {b}")


class Own(Exception):
    """One of the script's."""


class Raising(Items):
    """A dataset of this module, where the class of an exception is looked for."""


def raising(i):
    if i in (1, 3, 5, 7):
        raise {1: KeyError("a"), 3: Own("b"), 5: UnicodeDecodeError("ascii", b"x", 0, 1, "c"), 7: Odd(1, 2)}[i]
    return i


@pytest.mark.parametrize("workers", [0, 1])
def test_an_items_own_exception_arrives_as_its_class(loader_of, workers):
    it = iter(loader_of(Raising(30, raising), 1, cache="items", num_workers=workers))
    got, kinds = [], []
    while True:
        try:
            got.append(int(next(it)))
        except StopIteration:
            break
        except larder.SampleError as e:
            kinds.append([k for k in (KeyError, Own, UnicodeDecodeError, Odd) if isinstance(e, k)])
            again = pickle.loads(pickle.dumps(e))
            assert (str(again), again.id, type(again)) == (str(e), e.id, type(e)) and "cannot prepare sample" in str(e)
    assert got == [i for i in range(30) if i not in (1, 3, 5, 7)] and kinds == [[KeyError], [Own], [], []]


# ---- fallbacks


def test_a_fallback_is_an_error_where_the_script_says_so(loader_of, monkeypatch):
    with pytest.raises(TypeError, match="Write the samples down"):
        list(loader_of(Counter(), fallback="error"))
    monkeypatch.setenv("LARDER_FALLBACK", "error")
    with pytest.raises(TypeError, match="Write the samples down"):
        list(loader_of(Counter()))
    with pytest.raises(larder.InvalidError, match="fallback is 'no'"):
        loader_of(ten, fallback="no")


def test_more_jobs_than_the_daemon_takes(private, monkeypatch, folder, capfd):
    """Beyond jobs.max torch serves, with its line, and gives the same."""
    from larder.torch import DataLoader

    monkeypatch.setenv("LARDER_SOCKET", private("jobs: {max: 3}\n").socket)
    monkeypatch.setattr(_door, "_said", set())
    loaders = [DataLoader(folder, 4) for _ in range(5)]
    its = [iter(x) for x in loaders]
    want = list(data.DataLoader(folder, 4))
    for it in its:
        same(torch, list(it), want)
    assert collections.Counter(x.served_by for x in loaders) == {"native": 3, "torch": 2}
    said = [x for x in capfd.readouterr().err.splitlines() if x.startswith("larder: ")]
    assert len(said) == 2 and "torch serves it" in said[1] and "jobs.max is 3" in said[1], said
    for x in loaders:
        x.close()


def test_many_loaders_take_turns(private, monkeypatch, folder):
    """As federated scripts do: more loaders than jobs, one after another; each continues its own epochs."""
    from larder.torch import DataLoader

    daemon = private("jobs: {max: 3}\n")
    monkeypatch.setenv("LARDER_SOCKET", daemon.socket)
    generator = torch.Generator().manual_seed(1)
    weighted = data.WeightedRandomSampler([1.0] * 15, 6, generator=generator)
    parts = [DataLoader(folder, 4, shuffle=True, share="augmented") for _ in range(4)]
    parts += [DataLoader(folder, 4) for _ in range(2)] + [DataLoader(folder, 3, sampler=weighted)]
    parts += [DataLoader(ten, 4, shuffle=True, cache="items", num_workers=1)]
    labels, seen = sorted(y for _, y in folder.samples), []
    for turn in range(3):
        for x in parts:
            got = sorted(flat(x))
            assert len(got) == 6 if x.sampler is weighted else got == (ten if x.dataset is ten else labels)
            seen.append(x.loader.epoch)
        assert seen[-len(parts) :] == [turn + 1] * len(parts)
    assert {x.served_by for x in parts} == {"native", "workers"}
    assert len(json.loads(daemon.cli("jobs", "ls", "-o", "json").stdout)["jobs"]) >= 3
    first = parts[0].state_dict()
    again = DataLoader(folder, 4, shuffle=True, share="augmented")
    again.load_state_dict(first)
    assert again.loader.epoch == 3 and sorted(flat(again)) == labels
    for x in (*parts, again):
        x.close()


def test_without_a_daemon_torch_serves(monkeypatch, tmp_path, folder, capfd):
    from larder.torch import DataLoader

    monkeypatch.setattr(_door, "_said", set())
    kw = {"endpoint": str(tmp_path / "none.sock")}
    same(torch, list(DataLoader(folder, 4, **kw)), list(data.DataLoader(folder, 4)))
    same(torch, list(DataLoader(ten, 4, name="ten", cache="items", **kw)), list(data.DataLoader(ten, 4)))
    said = [x for x in capfd.readouterr().err.splitlines() if x.startswith("larder: ")]
    assert said and all("torch serves it: " in x for x in said)
    with pytest.raises(larder.UnavailableError):
        list(DataLoader(ten, 4, on_error="skip", **kw))  # torch would not do what it asks for
    with pytest.raises(larder.UnavailableError):
        list(DataLoader(folder, 4, fallback="error", **kw))


def test_what_is_asked_for_is_not_left_out_silently(loader_of):
    for kw in ({"on_error": "skip"}, {"epochs": 1}, {"seed": 3}, {"transform": [larder.ops.HFlip()]}):
        with pytest.raises((TypeError, larder.InvalidError)):
            list(loader_of(Counter(), **kw))
    with pytest.raises(larder.InvalidError, match="name is"):
        list(loader_of(ten, name="a b"))
    assert flat(loader_of(ten, name="numbers", cache="items")) == ten
    with pytest.raises(larder.InvalidError, match="9 here"):
        list(loader_of(ten[:9], name="numbers", cache="items"))
    assert flat(loader_of(Counter(), batch_size=5, name="shared", cache="items")) == ten


def test_one_line_says_who_serves(server, tmp_path):
    root = draw(tmp_path / "images", 2, 3)
    script = (
        "import sys\nfrom larder.torch import DataLoader\nfrom torchvision import transforms as T\n"
        "from torchvision.datasets import ImageFolder\n"
        "f = ImageFolder(sys.argv[1], T.Compose([T.Resize((8, 8)), T.ToTensor()]))\n"
        "for n in range(2):\n    for d in (f, [1, 2], [3, 4]):\n        for b in DataLoader(d):\n            pass\n"
    )
    env = {**os.environ, "LARDER_SOCKET": server.socket, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(root)]
    p = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=True)
    native, of_torch = p.stderr.splitlines()
    assert native.endswith("ImageFolder: the daemon reads and prepares it")
    assert "torch serves it: it asks for nothing that jobs share; name= with cache=" in of_torch


# ---- ranks


def test_each_rank_has_what_its_script_says(loader_of, folder, monkeypatch):
    """Without a DistributedSampler every sample, with one torch's own padded indices; no name is needed."""
    labels = sorted(y for _, y in folder.samples)
    for rank in range(2):
        for name, value in {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "here", "MASTER_PORT": 1}.items():
            monkeypatch.setenv(name, str(value))
        for dataset, kw in ((folder, {}), (ten, {}), (ten, {"cache": "items", "num_workers": 1})):
            whole = loader_of(dataset, 4, shuffle=True, **kw)
            assert sorted(flat(whole)) == (labels if dataset is folder else ten)
            part = loader_of(dataset, 4, sampler=data.DistributedSampler(dataset, 2, rank, seed=3), **kw)
            theirs = data.DataLoader(dataset, 4, sampler=data.DistributedSampler(dataset, 2, rank, seed=3))
            for epoch in range(2):
                part.sampler.set_epoch(epoch)
                theirs.sampler.set_epoch(epoch)
                same(torch, list(part), list(theirs))


def test_orders_that_accelerate_makes_loaders_of(loader_of, folder, monkeypatch):
    """What it makes of the sampler continues where a shuffled loader was, also in a new process."""
    monkeypatch.setitem(sys.modules, "accelerate", types.ModuleType("accelerate"))
    torch.manual_seed(5)
    first = list(itertools.islice(loader_of(folder, 4, shuffle=True), 2))
    torch.manual_seed(5)
    again = loader_of(folder, 4, shuffle=True)
    rest = list(itertools.islice(data.DataLoader(folder, batch_sampler=again.batch_sampler), 2, None))
    torch.manual_seed(5)
    same(torch, first + rest, list(data.DataLoader(folder, 4, shuffle=True)))


# ---- states


WORKERS = ({"num_workers": 2}, {"num_workers": 1, "persistent_workers": True})
BY_DAY = ("weighted", "state of its own", "global subset")  # with workers


@pytest.mark.parametrize(
    ("name", "kw"),
    [
        *((name, {}) for name in sampled.SAMPLERS),
        *itertools.product(BY_DAY, WORKERS),
        *night(*itertools.product([n for n in sampled.SAMPLERS if n not in BY_DAY], WORKERS)),
    ],
    ids=str,
)
def test_states_of_torchs_own_machinery(name, kw):
    """The rest of a pass, and the next ones, as they would have been; under every sampler of test_e2e_samplers."""
    from larder.torch import DataLoader

    numbers = [torch.tensor(i) for i in range(sampled.N)]

    def make():
        return DataLoader(numbers, **sampled.SAMPLERS[name](), **kw)

    torch.manual_seed(7)
    loader = make()
    sampled.passes(loader, 2)
    it = iter(loader)
    for _ in range(3):
        next(it)
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["epoch"], state["step"]) == (2, 3)
    after = torch.get_rng_state()
    want = [[b.tolist() for b in it]]
    torch.set_rng_state(after)
    second = make()
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert torch.equal(torch.get_rng_state(), after), "the script's random state is its own"
    it = iter(second)
    assert next(it).tolist() == want[0][0]
    once_more = json.loads(json.dumps(second.state_dict()))
    del it
    third = make()
    third.load_state_dict(once_more)
    assert sampled.passes(third, 1)[0] == want[0][1:]
    if name not in sampled.GLOBAL:
        second = make()
        second.load_state_dict(state)
        assert sampled.passes(second, 1) == want
        assert sampled.passes(second, 1) == sampled.passes(loader, 1), "its generator went on"
    assert loader.state_dict()["step"] == 0 and loader.state_dict()["epoch"] >= 3


def test_states_move_between_torch_and_workers(loader_of):
    kw = {"cache": "items", "num_workers": 1}

    def make(**more):
        generator = torch.Generator().manual_seed(4)
        sampler = data.WeightedRandomSampler([1.0] * 10, 30, generator=generator)
        return loader_of(ten, 4, sampler=sampler, **more)

    whole = flat(make())
    for saves, loads in (({}, kw), (kw, {})):
        first = make(**saves)
        it = iter(first)
        head = flat(itertools.islice(it, 3))
        second = make(**loads)
        second.load_state_dict(first.state_dict())
        assert head + flat(second) == whole


def test_states_that_torch_cannot_take_up(loader_of, folder):
    native = loader_of(folder, 4, shuffle=True)
    next(iter(native))
    plain = loader_of(ten, 4)
    with pytest.raises(larder.StateError, match="whose order the daemon chose, and torch serves this one: it asks"):
        plain.load_state_dict(native.state_dict())
    for wrong in ({}, {"larder_stream": 1, "epoch": -1, "step": 0}, 5):
        with pytest.raises(larder.InvalidError, match="not one of a loader with a sampler"):
            plain.load_state_dict(wrong)
    with pytest.raises(larder.StateError, match="an IterableDataset has no place"):
        loader_of(Counter()).state_dict()
    state = loader_of(ten, 2).state_dict()
    with pytest.raises(larder.InvalidError, match="batches of 2, this loader has those of 4"):
        plain.load_state_dict(state)
    order = list(range(10))
    moved = loader_of(ten, 2, sampler=order)
    it = iter(moved)
    next(it), next(it)
    state = moved.state_dict()
    other = loader_of(ten, 2, sampler=order[::-1])
    other.load_state_dict(state)
    with pytest.raises(larder.InvalidError, match="gave other samples than before the state was saved"):
        list(other)


def test_a_loader_may_be_copied(loader_of):
    loader = loader_of(ten, 4)
    assert flat(pickle.loads(pickle.dumps(loader))) == ten
    list(loader)
    assert flat(pickle.loads(pickle.dumps(loader))) == ten == flat(copy.copy(loader))
