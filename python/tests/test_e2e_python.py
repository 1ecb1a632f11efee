"""Datasets in Python on the real daemon: torch's batches, sharing, and what goes wrong in workers."""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from function_items import Made
from real import PATIENCE, night, pillow, served

import larder

OWN_DAEMON = True

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::larder.{w}")
    for w in ("NotSharedWarning", "KeptBatchesWarning", "NativeWarning", "WorkerWarning")
]


class Items:
    """A dataset of a function; counts its calls in a file, in whatever process they are made."""

    def __init__(self, n, make, count=None):
        self.n, self.make, self.count = n, make, count

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        if self.count is not None:
            with open(self.count, "ab", buffering=0) as f:
                f.write(b"%d\n" % i)
        return self.make(i)


def calls(path):
    return collections.Counter(map(int, Path(path).read_text().split())) if os.path.exists(path) else {}


@pytest.fixture
def loader_of(server):
    """Makes torch-like loaders on the shared daemon."""
    with contextlib.ExitStack() as stack:

        def make(dataset, **kw):
            kw.setdefault("endpoint", server.socket)
            kw.setdefault("timeout", PATIENCE)
            return stack.enter_context(served(dataset, **kw))

        yield make


# ---- the same batches as torch's


def same(torch, a, b):
    """Equal in types, dtypes, shapes and bits, all the way down."""
    if isinstance(b, torch.Tensor):
        assert isinstance(a, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape, (a, b)
        view = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(b.element_size()) if b.is_floating_point() else None
        assert torch.equal(a.contiguous().view(view), b.contiguous().view(view)) if view else torch.equal(a, b)
    elif isinstance(b, dict):
        assert type(a) is type(b) and list(a) == list(b)
        for k in b:
            same(torch, a[k], b[k])
    elif isinstance(b, (tuple, list)):
        assert type(a) is type(b) and len(a) == len(b), (a, b)
        for x, y in zip(a, b, strict=True):
            same(torch, x, y)
    else:
        assert type(a) is type(b) and a == b, (a, b)


Point = collections.namedtuple("Point", "x y")


def leaf(rng, torch):
    """A maker of leaves, each of one type and shape."""
    kind = rng.choice(["tensor", "array", "numpy", "int", "float", "bool", "str", "bytes", "empty", "zerodim", "ints"])
    shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 3)))
    dtype = rng.choice(["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"])
    if kind == "tensor" and rng.random() < 0.3:
        return lambda i: torch.full(shape, i / 3).to(torch.bfloat16)
    if kind in ("tensor", "array"):
        wrap = torch.from_numpy if kind == "tensor" else (lambda a: a)
        return lambda i: wrap((np.arange(int(np.prod(shape))).reshape(shape) * (i + 1)).astype(dtype))
    return {
        "numpy": lambda i: np.dtype(dtype).type(i % 100),
        "int": lambda i: i * 10**12 - 5,
        "float": lambda i: i / 7,
        "bool": lambda i: i % 3 == 0,
        "str": lambda i: "é" * (i % 4) + str(i),
        "bytes": lambda i: bytes([i % 256]) * (i % 5),
        "empty": lambda i: torch.zeros((0, 3)),
        "zerodim": lambda i: np.array(i, dtype),
        "ints": lambda i: [i, i + 1, i + 2],
    }[kind]


def item(rng, torch, depth=0):
    """A maker of items: leaves in tuples, lists, dicts and named tuples."""
    if depth == 3 or (depth and rng.random() < 0.5):
        return leaf(rng, torch)
    kind = rng.choice(["tuple", "list", "dict", "named", "leaf"])
    parts = [item(rng, torch, depth + 1) for _ in range(rng.randint(1, 3))]
    pair = [item(rng, torch, depth + 1) for _ in range(2)]
    keys = [f"k{n}" for n in range(len(parts))]
    return {
        "tuple": lambda i: tuple(p(i) for p in parts),
        "list": lambda i: [p(i) for p in parts],
        "dict": lambda i: dict(zip(keys, (p(i) for p in parts), strict=True)),
        "named": lambda i: Point(*(p(i) for p in pair)),
        "leaf": leaf(rng, torch),
    }[kind]


@pytest.mark.parametrize(
    ("workers", "seeds"), [(0, range(8)), (2, range(2)), *night((0, range(8, 20)), (2, range(2, 20)))]
)
def test_generated_datasets_give_torchs_batches(loader_of, torch, workers, seeds):
    """20 structures without workers and 20 with two, in the dataset's order, two epochs."""
    for seed in seeds:
        rng = random.Random(1000 * workers + seed)
        n, size, drop = rng.randint(1, 30), rng.randint(1, 9), rng.random() < 0.3 and seed > 3
        dataset = Items(n, item(rng, torch))
        theirs = list(torch.utils.data.DataLoader(dataset, batch_size=size, drop_last=drop))
        if not theirs:
            continue
        ours = loader_of(dataset, batch_size=size, drop_last=drop, num_workers=workers)
        for _ in range(2):
            got = list(ours)
            assert len(got) == len(theirs) == len(ours), seed
            for a, b in zip(got, theirs, strict=True):
                same(torch, a, b)
        ours.close()


def test_collate_fn_gets_the_samples(loader_of, torch):
    dataset = Items(23, lambda i: {"x": torch.ones(i % 5 + 1) * i, "name": str(i), "n": i, "a": np.arange(i % 3)})

    def collate(samples):
        assert all(type(s["n"]) is int and type(s["name"]) is str and type(s["a"]) is np.ndarray for s in samples)
        return torch.nn.utils.rnn.pad_sequence([s["x"] for s in samples]), [s["name"] for s in samples]

    theirs = list(torch.utils.data.DataLoader(dataset, batch_size=4, collate_fn=collate))
    for workers in (0, 1):
        for a, b in zip(loader_of(dataset, batch_size=4, collate_fn=collate, num_workers=workers), theirs, strict=True):
            same(torch, a, b)


def test_without_batches(loader_of, torch):
    dataset = Items(7, lambda i: (np.full(3, i), i, "a"))
    theirs = list(torch.utils.data.DataLoader(dataset, batch_size=None))
    for a, b in zip(loader_of(dataset, batch_size=None), theirs, strict=True):
        same(torch, a, b)


def test_batches_as_a_dataset_for_torchs_own_loader(real, torch):
    loader = real([(i, str(i)) for i in range(10)], batch_size=4, output="torch")
    theirs = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None)
    assert len(theirs) == 3
    for _ in range(2):
        assert [b[0].tolist() for b in theirs] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with pytest.raises(larder.InvalidError, match="inside a worker of torch's DataLoader"):
        list(torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None, num_workers=1))


def test_a_state_continues_an_epoch(loader_of, torch):
    ours = loader_of(list(range(40)), batch_size=4, shuffle=True, num_workers=1, name="stateful", job="first", seed=1)
    it = iter(ours)
    got = torch.cat([next(it) for _ in range(4)]).tolist()
    state = ours.state_dict()
    ours.close()
    rest = loader_of(list(range(40)), batch_size=4, shuffle=True, num_workers=1, name="stateful", job="second", seed=1)
    rest.load_state_dict(state)
    got += torch.cat(list(rest)).tolist()
    assert sorted(got) == list(range(40))


def test_ragged_fields(real, torch):
    dataset = Items(10, lambda i: (np.full(i % 4 + 1, i, np.float32), [i] * (i % 3), np.zeros(2)))
    lists = list(real(dataset, batch_size=5, ragged="list"))
    assert [len(a) for a in lists[0][0]] == [1, 2, 3, 4, 1] and lists[0][2].shape == (5, 2)
    padded = list(real(dataset, batch_size=5, ragged="pad", pad_value=-1, pad_multiple=8, output="torch"))
    assert padded[1][0].shape == (5, 8) and padded[1][0][0].tolist() == [5.0, 5.0] + [-1.0] * 6
    assert padded[1][1].tolist() == [[5, 5] + [-1] * 6, [-1] * 8, [7] + [-1] * 7, [8, 8] + [-1] * 6, [-1] * 8]
    nested = next(iter(real(dataset, batch_size=5, ragged="nested", output="torch")))[0]
    assert nested.is_nested and nested.unbind()[3].tolist() == [3.0] * 4
    with pytest.raises(larder.InvalidError, match=r'field 0: the samples of a batch have the shapes.*ragged="list"'):
        list(real(dataset, batch_size=5))


def test_what_a_loader_gives_by_itself(real, torch):
    """Tuples stay tuples, text comes in lists, and arrays without torch."""
    dataset = Items(6, lambda i: ({"x": np.arange(2) + i, "s": "t"}, i))
    (batch, ids) = next(iter(real(dataset, batch_size=3, return_index=True)))[:2]
    assert isinstance(batch, dict) and batch["s"] == ["t"] * 3 and batch["x"].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert isinstance(ids, np.ndarray) and ids.tolist() == [0, 1, 2]
    tensors = next(iter(real(dataset, batch_size=3, output="torch")))
    assert type(tensors) is tuple and isinstance(tensors[1], torch.Tensor)
    plain = [1, 2, 3, 4, 5]
    assert [b.tolist() for b in real(plain, batch_size=2)] == [[1, 2], [3, 4], [5]]


def test_a_mapped_file_is_a_dataset(real, tmp_path):
    np.arange(60, dtype=np.float32).reshape(20, 3).tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "x", np.float32, "r", shape=(20, 3))
    got = np.concatenate([b.copy() for b in real(mapped, batch_size=6, num_workers=1)])
    assert got.tolist() == mapped.tolist()


@pytest.mark.parametrize("seed", range(2))
def test_shuffled_epochs_have_every_sample_once(loader_of, torch, seed):
    ours = loader_of(list(range(101)), batch_size=7, shuffle=True, num_workers=seed * 2, seed=seed)
    epochs = [torch.cat(list(ours)).tolist() for _ in range(3)]
    assert all(sorted(e) == list(range(101)) for e in epochs) and epochs[0] != epochs[1] != list(range(101))


def test_random_items_do_not_depend_on_workers(loader_of, torch):
    dataset = Items(24, lambda i: (torch.rand(2), random.random(), np.random.rand(), i))
    runs = []
    for workers in (0, 1, 2):
        ours = loader_of(dataset, batch_size=6, num_workers=workers, seed=11)
        runs.append([[[t.tolist() for t in b] for b in ours] for _ in range(2)])
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][0] != runs[0][1], "each epoch draws anew"
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    before = torch.rand(1), random.random(), np.random.rand()
    ours = loader_of(dataset, batch_size=6, seed=11)
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    next(iter(ours))
    assert before == (torch.rand(1), random.random(), np.random.rand()), "the script's own state is its own"


# ---- parts and samplers


def test_parts_come_in_their_own_order_and_share_their_base(loader_of, torch, tmp_path):
    base = Items(40, lambda i: i, tmp_path / "calls")
    train, val = torch.utils.data.random_split(base, [30, 10], generator=torch.Generator().manual_seed(0))
    theirs = list(torch.utils.data.DataLoader(val, batch_size=4))
    for a, b in zip(loader_of(val, batch_size=4), theirs, strict=True):
        same(torch, a, b)
    (tmp_path / "calls").unlink()
    halves = [torch.utils.data.Subset(base, range(25)), torch.utils.data.Subset(base, range(15, 40))]
    loaders = [loader_of(h, batch_size=5, shuffle=True, cache="items", num_workers=1, epochs=2) for h in halves]
    (tmp_path / "calls").unlink(missing_ok=True)
    got = [sorted(torch.cat(list(x)).tolist()) for x in loaders]
    assert got == [list(range(25)), list(range(15, 40))]
    made = calls(tmp_path / "calls")
    assert set(made) == set(range(40)) and sum(made.values()) <= 55, (
        "the parts have 50 samples, and second epochs begin"
    )
    assert sorted(torch.cat(list(loader_of(train, batch_size=30, shuffle=True))).tolist()) == sorted(train.indices)


def test_samplers(loader_of, torch):
    data = torch.utils.data
    numbers = list(range(20))
    picked = loader_of(numbers, batch_size=4, sampler=data.SubsetRandomSampler([1, 3, 5, 7, 9, 11]))
    assert sorted(torch.cat(list(picked)).tolist()) == [1, 3, 5, 7, 9, 11]
    plain = loader_of(numbers, batch_sampler=data.BatchSampler(data.SequentialSampler(numbers), 6, True))
    assert [b.tolist() for b in plain] == [list(range(6)), list(range(6, 12)), list(range(12, 18))]
    ours = [
        loader_of(numbers, batch_size=3, sampler=data.distributed.DistributedSampler(numbers, 2, r, seed=5), name="two",
                  job="ranks", num_workers=1, even="drop")
        for r in (0, 1)
    ]  # fmt: skip
    its = [iter(x) for x in ours]
    got = [torch.cat(list(it)).tolist() for it in its]
    assert sorted(got[0] + got[1]) == numbers and len(got[0]) == len(got[1]) == 10


# ---- sharing


def job(socket, name, path, orders, results, together):
    """A training script in a process of its own."""
    warnings.simplefilter("ignore")
    dataset = Items(60, lambda i: np.full(50, i), path)
    with larder.Loader(
        dataset, endpoint=socket, timeout=PATIENCE, job=name, batch_size=8, shuffle=True, **orders
    ) as it:
        together.wait(PATIENCE)
        epochs = []
        for _ in range(2):
            epochs.append([])
            for b in it:
                epochs[-1] += b[:, 0].tolist()
                together.wait(PATIENCE)  # a training step: none of the two is alone for a moment
        results.put((name, [sorted(e) for e in epochs]))


@pytest.mark.parametrize(
    ("orders", "most"),
    [({"cache": "items"}, 1), ({"share": "augmented"}, 3), ({"cache": "none"}, 4)],
    ids=["items", "augmented", "none"],
)
def test_two_scripts_share_what_they_say(server, tmp_path, orders, most):
    """How often an item is made for two jobs of two epochs: once, once an epoch, once an epoch and job.

    Jobs that share instances must be at work at the same time; one that is alone for a moment makes its own.
    """
    context = multiprocessing.get_context("fork")
    results, together = context.Queue(), context.Barrier(2)
    path = tmp_path / "calls"
    orders = {
        "name": f"shared-{orders}".translate({ord(c): "-" for c in " {}':"}),
        "num_workers": 1,
        "epochs": 2,
        **orders,
    }
    jobs = [
        context.Process(target=job, args=(server.socket, n, path, orders, results, together)) for n in ("one", "two")
    ]
    for j in jobs:
        j.start()
    got = [results.get(timeout=PATIENCE) for _ in jobs]
    for j in jobs:
        j.join()
    assert all(epochs == [list(range(60))] * 2 for _, epochs in got)
    made = calls(path)
    looked = 2 * 10  # items that each script looks at before it begins
    assert set(made) == set(range(60)) and sum(made.values()) <= 60 * most + 2 * looked, made
    if most == 4:
        assert sum(made.values()) >= 60 * most


def test_random_steps_on_a_cached_item(real, tmp_path):
    @larder.transform(version=1)
    def double(x):
        return x * 2

    @larder.transform(random=True)
    def noise(x, rng):
        return x + rng.random()

    dataset = Items(30, lambda i: float(i), tmp_path / "calls")
    loader = real(dataset, batch_size=6, cache="items", transform=[double, noise], num_workers=1, name="steps", seed=3)
    (tmp_path / "calls").unlink()
    epochs = [np.concatenate([b.copy() for b in loader]) for _ in range(3)]
    assert all(np.floor(e).tolist() == [2.0 * i for i in range(30)] for e in epochs)
    assert len({e.tobytes() for e in epochs}) == 3
    assert calls(tmp_path / "calls") == dict.fromkeys(range(30), 1)


def test_one_name_for_two_contents_is_refused(real):
    real(list(range(10)), batch_size=2, name="numbers")
    for other, word in ((list(range(11)), "10 samples there and 11"), ([5] * 10, "items"), (np.arange(10), "type")):
        with pytest.raises(larder.InvalidError, match=word) as e:
            real(other, batch_size=2, name="numbers", job="other")
        assert e.value.reason == "ALREADY_EXISTS"
    assert len(list(real(list(range(11)), batch_size=2, name="numbers", version=2, job="second"))) == 6


def test_a_dataset_declared_constant_that_is_not_is_warned_of(real):
    with pytest.warns(larder.RandomItemWarning, match="another one under another seed"):
        real(Items(5, lambda i: random.random()), batch_size=2, cache="items")


# ---- what goes wrong


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_start_methods(loader_of, torch, method):
    ours = loader_of(list(range(20)), batch_size=6, num_workers=2, multiprocessing_context=method)
    assert torch.cat(list(ours)).tolist() == list(range(20))


def broken(i):
    if i == 7:
        raise ValueError("seven is broken")
    return i


def test_a_poison_item_is_one_bad_sample(real):
    for workers in (0, 2):
        loader = real(Items(20, broken), batch_size=5, num_workers=workers, return_index=True)
        it, got = iter(loader), []
        with pytest.raises(larder.SampleError, match="ValueError: seven is broken") as e:
            while True:
                got += next(it)[1].tolist()
        assert e.value.id == 7
        if workers == 0:
            assert isinstance(e.value.__cause__, ValueError), "the debugger sees where"
        got += [i for b in it for i in b[1].tolist()]
        assert got == [i for i in range(20) if i != 7]
        assert [q.id for q in loader.quarantined] == [7]


@pytest.mark.filterwarnings("ignore::larder.WorkerWarning")
@pytest.mark.parametrize("fault", ["hang", "die"])
def test_an_item_that_hangs_or_kills_costs_itself(real, tmp_path, clock, fault):
    made = Made(tmp_path)

    def make(i):
        if made.note(i) == 4:
            threading.Event().wait() if fault == "hang" else os.kill(os.getpid(), signal.SIGKILL)
        return i

    # Item 4 is none of those that are looked at first.
    dataset = Items(16, make)
    loader = real(dataset, batch_size=4, num_workers=2, sample_timeout=3600.0, on_error="skip", timeout=1e6)
    with clock.stepping(3600, lambda steps: fault == "hang" and made.hangs(4, steps, clock)):
        assert np.concatenate([b.copy() for b in loader]).tolist() == [i for i in range(16) if i != 4]
    (bad,) = loader.quarantined
    assert bad.id == 4 and bad.reason


def test_workers_start_anew_unless_they_persist(loader_of, torch):
    """Batches that were ready before the epoch began are of the workers before: at most as many as are made ahead."""
    for persistent, seen in ((False, [0, 1]), (True, [0, 0])):
        numbers = [0] * 80
        ours = loader_of(numbers, batch_size=4, num_workers=1, persistent_workers=persistent)
        got = [[int(b[0]) for b in ours][-1]]
        numbers[:] = [1] * 80
        got.append([int(b[0]) for b in ours][-1])
        assert got == seen


def test_the_first_item_that_fails_names_itself(real):
    with pytest.raises(larder.InvalidError, match=r"(?s)item 0 of dataset .*Items cannot be made: KeyError.*Traceback"):
        real(Items(3, lambda i: {}[i]), batch_size=1, num_workers=1)
    with pytest.raises(larder.InvalidError, match=r"Image.*is no data.*PILToTensor"):
        real([pillow().new("RGB", (4, 4))], batch_size=1)


def test_arguments_that_cannot_work(loader_of, real, torch, server):
    data = torch.utils.data
    ten = list(range(10))
    of_torch = (
        {"num_workers": -1},
        {"timeout": -1},
        {"shuffle": True, "sampler": data.SequentialSampler(ten)},
        {"batch_sampler": data.BatchSampler(data.SequentialSampler(ten), 2, False), "batch_size": 2},
        {"prefetch_factor": 3},
        {"persistent_workers": True},
        {"batch_size": None, "drop_last": True},
        {"multiprocessing_context": "thread", "num_workers": 1},
        {"batch_size": 0},
    )
    for kw in of_torch:
        with pytest.raises(ValueError) as theirs:
            torch.utils.data.DataLoader(ten, **kw)
        with pytest.raises(ValueError, match=re.escape(str(theirs.value))):
            loader_of(ten, **{"timeout": 0, **kw})
    ranks = data.distributed.DistributedSampler
    cases = (
        ({"collate_fn": 5}, "must be a function"),
        ({"cache": "item"}, "did you mean 'items'"),
        ({"ragged": "jagged"}, "'list', 'pad', 'nested'"),
        ({"pad_value": 1}, "need ragged='pad'"),
        ({"version": 2}, "needs name="),
        ({"sample_timeout": 0}, "sample_timeout is 0"),
        ({"worker_memory": 0}, "worker_memory is 0"),
        ({"sampler": ranks(range(4), 2, 0), "even": "drop"}, "of 4 samples, the dataset has 10"),
        ({"sampler": ranks(ten, 2, 0), "even": "drop"}, "2 ranks share needs a name"),
        ({"rank": 0, "world_size": 2, "name": "ten"}, "num_workers=0 works for one rank, not for 2"),
        ({"snapshot_every_n_steps": 0}, "snapshot_every_n_steps is 0"),
    )
    for kw, words in cases:
        with pytest.raises(larder.InvalidError, match=words):
            loader_of(ten, **kw)
    with pytest.raises(TypeError, match="did you mean 'shuffle'"):
        loader_of(ten, shufle=True)
    with pytest.raises(TypeError, match="Write the samples down"):
        loader_of(iter(ten))
    for kw, words in (
        ({"subset": "id < 3"}, "Subset works"),
        ({"fields": ("image",)}, "gives its own"),
        ({"ragged": "nested"}, "output='torch'"),
        ({"transform": larder.ops.HFlip()}, "0 fields of the items can be its image"),
    ):
        with pytest.raises(larder.InvalidError, match=words):
            real(ten, batch_size=2, **kw)
    with pytest.raises(larder.InvalidError, match="num_workers is for datasets in Python"):
        real("imagefolder:/tmp", batch_size=1, num_workers=2)


def test_a_debugger_works_without_workers(server, tmp_path):
    """pdb in an item: the script's own process, its own terminal."""
    script = tmp_path / "script.py"
    script.write_text(
        "import larder, sys, warnings\nwarnings.simplefilter('ignore')\n"
        "class D:\n    def __len__(self): return 3\n    def __getitem__(self, i):\n"
        "        if i == 2 and started: breakpoint()\n        return i * 10\n"
        "started = False\n"
        "loader = larder.Loader(D(), batch_size=3, timeout=60)\nstarted = True\n"
        "print([b.tolist() for b in loader])\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(larder.__file__).parents[1]), "LARDER_SOCKET": server.socket}
    out = subprocess.run(
        [sys.executable, str(script)],
        input="p i * 100\nc\n",
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "(Pdb) 200" in out.stdout and "[[0, 10, 20]]" in out.stdout, out


def test_a_daemon_killed_and_restarted_under_workers(lives):
    life = lives(more="")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = larder.Loader(
            list(range(200)), batch_size=5, shuffle=True, num_workers=2, return_index=True, endpoint=life.socket,
            timeout=PATIENCE, name="restarted", job="survivor",
        )  # fmt: skip
    with loader:
        it = iter(loader)
        ids = [i for _ in range(9) for i in next(it)[1].tolist()]
        life.daemon.kill()
        life.start()
        ids += [i for b in it for i in b[1].tolist()]
        assert sorted(ids) == list(range(200))


def test_jobs_of_unlike_workers_help_each_other(server, torch):
    """The job with the workers leaves; the other one, which has a share of its own, goes on."""
    from larder.torch import DataLoader

    kw = {"batch_size": 4, "shuffle": True, "name": "helped", "endpoint": server.socket, "timeout": PATIENCE}
    rich = DataLoader(list(range(80)), num_workers=3, job="rich", **kw)
    poor = DataLoader(list(range(80)), num_workers=1, job="poor", **kw)
    its = [iter(rich), iter(poor)]
    for _ in range(5):
        next(its[0])
    got = [next(its[1]) for _ in range(3)]
    rich.close()
    got += list(its[1])
    assert sorted(torch.cat(got).tolist()) == list(range(80))
    poor.close()


def test_nothing_is_left_behind(real):
    before = threading.active_count()
    loader = real(list(range(20)), batch_size=5, num_workers=2)
    list(loader)
    pids = [m.process.pid for m in loader._shared.makers.crew.members]
    loader.close()
    assert not any(os.path.exists(f"/proc/{p}") for p in pids) and threading.active_count() == before


class Modes:
    """Items say in which mode the dataset was when they were made."""

    train = True

    def __len__(self):
        return 100

    def __getitem__(self, i):
        return int(self.train)


@pytest.mark.parametrize("workers", [0, 2])
def test_two_loaders_on_a_dataset_that_changes_its_mode(loader_of, workers):
    """Nothing is shared without being asked for, so no loader has items of the workers that another one started."""
    dataset = Modes()
    train = loader_of(dataset, batch_size=10, shuffle=True, num_workers=workers)
    val = loader_of(dataset, batch_size=10, num_workers=workers)
    assert sum(int(b.sum()) for b in train) == 100
    dataset.train = False
    assert sum(int(b.sum()) for b in val) == 0
