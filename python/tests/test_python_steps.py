"""Datasets and steps in Python, before any daemon is asked: what they are, and when two of them are the same."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import larder
from larder import _dataset, _digest, _seeds, _transform
from larder.errors import InvalidError, NotSharedWarning


class Squares:
    """A map-style dataset."""

    def __init__(self, n=10):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i * i


# ---- seeds


def test_a_key_is_what_the_documentation_says():
    """The vectors of docs/protocol.md, for authors of workers in other languages."""
    assert _seeds.key(0, 0, 0, 0).hex() == "95bd1713cc11721e1d22795463705bae320a62f93860e0af91f903b9f197b1bf"
    assert _seeds.key(7, 3, 123456789, 2).hex() == "e1244d648d13b881c73f170412bc5930f02284ac4b7259f18737572e5243a06f"
    assert (
        _seeds.key(2**64 - 1, 2**32 - 1, 2**64 - 1, 2**32 - 1).hex()
        == "7df4acc83ceb99c43f8dd0101ebdb192d723197fc9a40af6cd657faf341f1203"
    )


def draws():
    return (
        random.random(),
        float(np.random.rand()),
        sys.modules["torch"].rand(1).item() if "torch" in sys.modules else 0,
    )


def test_seeding_is_that_of_the_modules():
    k = _seeds.key(5, 6, 7, 8)
    random.gauss(0, 1)  # leaves the second one of a pair for later
    _seeds.seed_globals(k)
    ours = random.getstate(), [random.gauss(0, 1) for _ in range(3)], np.random.random_sample(3).tolist()
    random.seed(int.from_bytes(k[:8], "little"))
    np.random.seed(int.from_bytes(k[8:12], "little"))
    assert ours == (random.getstate(), [random.gauss(0, 1) for _ in range(3)], np.random.random_sample(3).tolist())


def test_every_generator_follows_the_key(torch):
    k = _seeds.key(1, 2, 3, 4)
    _seeds.seed_globals(k)
    first = draws()
    draws()
    _seeds.seed_globals(k)
    assert draws() == first
    _seeds.seed_globals(_seeds.key(1, 2, 3, 5))
    assert all(a != b for a, b in zip(draws(), first, strict=True))
    assert _seeds.generator(k).random() == _seeds.generator(k).random()
    _seeds.seed_globals(k)
    assert np.random.rand() == np.random.RandomState(np.frombuffer(k, "<u4")[2]).rand()
    assert random.random() == random.Random(int.from_bytes(k[:8], "little")).random()


def test_the_scripts_own_random_state_is_kept(torch):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with _seeds.Kept():
        _seeds.seed_globals(_seeds.key(1, 2, 3, 4))
        draws()
    assert draws() == before


# ---- digests and transforms


@larder.transform(version=2)
def scale(item, *, factor=2.0):
    return item * factor


@larder.transform(random=True)
def jitter(item, rng):
    return item + rng.random()


@larder.transform
def plain(item):
    return item


def test_a_step_has_the_fingerprint_of_its_parts():
    m = scale.message()
    assert m["kind"] == "python" and m["name"].endswith("test_python_steps.scale")
    assert m["args"]["version"] == "2" and m["args"]["random"] is False
    assert m == scale.message() and m != scale.bind(factor=3.0).message()
    assert scale.bind(factor=3.0).message() == scale.bind(factor=3.0).message()
    assert jitter.message()["args"]["random"] is True and plain.message()["args"]["version"] == "1"
    assert scale(3) == 6 and scale.bind(factor=5)(3) == 15
    assert scale.run(3, None) == 6 and scale.run(3, np.random.default_rng(0)) == 6
    assert jitter.run(1, np.random.default_rng(0)) == 1 + np.random.default_rng(0).random()
    with pytest.raises(InvalidError, match=r"no argument 'facter'.*it has factor"):
        scale.bind(facter=1)


def test_the_fingerprint_is_the_same_in_another_process():
    code = "import test_python_steps as t; print(t.scale.bind(factor=3.0).message(), t._digest.of(t.VALUES))"
    path = ":".join([str(Path(__file__).parent), str(Path(larder.__file__).parents[1])])
    env = {"PYTHONPATH": path, "PYTHONHASHSEED": "2"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert out == f"{scale.bind(factor=3.0).message()} {_digest.of(VALUES)}\n"


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, item):
        return item * self.factor


VALUES = [
    *(
        None,
        True,
        1,
        1.5,
        "a",
        b"a",
        (1, 2),
        [1, 2],
        {"a": 1},
        {"a", "b", "c"},
        Path("/x"),
        np.arange(3),
        np.float32(1),
    ),
    *(
        np.arange(3.0),
        functools.partial(max, 1),
        functools.partial(max, 2),
        Scale(1),
        Scale(2),
        len,
        Squares,
        [Scale(1)],
    ),
    *(random.Random(1), random.Random(2), lambda: 1, lambda: 2),
]


def test_unlike_values_have_unlike_digests():
    digests = [_digest.of(v) for v in VALUES]
    assert len(set(digests)) == len(digests)
    assert [_digest.of(v) for v in VALUES] == digests


def closure(n):
    def step(item):
        return item + n

    return step


def test_what_a_closure_captured_counts():
    assert _digest.of(closure(1)) != _digest.of(closure(2))
    assert _digest.of(closure(1)) == _digest.of(closure(1))


@pytest.mark.parametrize("value", [threading.Lock(), (i for i in range(3)), np.array([object()])])
def test_what_has_no_fingerprint_says_so(value):
    with pytest.raises(_digest.Unhashable):
        _digest.of(value)


def test_a_step_without_fingerprint_is_not_shared_and_said_once():
    a, b = scale.bind(factor=threading.Lock()), scale.bind(factor=threading.Lock())
    with pytest.warns(NotSharedWarning, match="scale runs, and is not shared.*lock"):
        first = a.message()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert first == a.message() != b.message()


def test_what_is_a_step():
    assert [s.random for s in _transform.steps([scale, [Scale(2), (jitter,)], None])] == [False, True, True]
    for wrong, words in (([3], "3 is no step"), (Scale, "the class Scale"), ("x", "'x' is no step")):
        with pytest.raises(InvalidError, match=words):
            _transform.steps(wrong)
    for bad in ({"random": 1}, {"version": True}, {"version": 1.5}):
        with pytest.raises(InvalidError):
            larder.transform(**bad)


# ---- datasets


def test_parts_of_a_dataset_are_taken_apart(torch):
    data = torch.utils.data
    base = Squares(20)
    nested = data.Subset(data.Subset(base, range(5, 15)), [0, 3, -1])
    part = _dataset.understand(nested)
    assert part.base is base and part.indices.tolist() == [5, 8, 14] and part.length == 20 and part.ordered
    assert [nested[i] for i in range(2)] == [base[i] for i in part.indices[:2]]
    halves = data.random_split(base, [12, 8], generator=torch.Generator().manual_seed(1))
    parts = [_dataset.understand(h) for h in halves]
    assert all(p.base is base for p in parts) and not parts[0].ordered
    assert sorted(np.concatenate([p.indices for p in parts])) == list(range(20))
    joined = _dataset.understand(data.ConcatDataset(halves))
    assert joined.base is base and sorted(joined.indices) == list(range(20))
    assert _dataset.packed(joined.indices) == np.arange(20, dtype="<u4").tobytes()


def test_parts_of_several_datasets_share_their_row(torch):
    data = torch.utils.data
    a, b = Squares(6), [7, 8, 9]
    mixed = data.ConcatDataset([data.Subset(b, [2, 0]), data.Subset(a, [1, 4])])
    part = _dataset.understand(mixed)
    assert [part.base[int(i)] for i in part.indices] == [mixed[i] for i in range(len(mixed))]
    whole = _dataset.understand(data.ConcatDataset([a, b]))
    assert whole.indices is None and whole.length == 9


def test_a_subset_that_repeats_or_is_another_class_is_a_dataset_of_its_own(torch):
    data = torch.utils.data

    class Doubled(data.Subset):
        def __getitem__(self, i):
            return 2 * super().__getitem__(i)

        def __getitems__(self, indices):  # newer versions of PyTorch refuse the class without it
            return [self[i] for i in indices]

    for d in (data.Subset(Squares(5), [1, 1, 2]), Doubled(Squares(5), [1, 2])):
        part = _dataset.understand(d)
        assert part.base is d and part.indices is None and part.length == len(d)


@pytest.mark.parametrize("index", [5, -6])
def test_indices_beyond_a_dataset_are_refused(torch, index):
    with pytest.raises(InvalidError, match=f"index {index}; its dataset has 5"):
        _dataset.understand(torch.utils.data.Subset(Squares(5), [0, index]))


def test_indices_of_other_types_are_refused(torch):
    with pytest.raises(InvalidError, match="no numbers of samples"):
        _dataset.understand(torch.utils.data.Subset(Squares(5), ["a"]))


def test_anything_with_numbers_and_a_length_is_a_dataset(tmp_path):
    np.arange(12, dtype=np.float32).reshape(4, 3).tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "x", np.float32, "r", shape=(4, 3))
    for d, n in (([1, 2, 3], 3), ((1, 2), 2), (mapped, 4), (np.arange(5), 5), (range(6), 6), (Squares(), 10)):
        assert _dataset.understand(d) == _dataset.Part(d, None, n)

    class Many:
        def __len__(self):
            return 3

        def __getitems__(self, indices):
            return [i * 10 for i in indices]

    assert _dataset.fetch(_dataset.understand(Many()).base, 2) == 20


def test_what_is_no_dataset_is_told_what_to_do(torch):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    class Half:
        def __getitem__(self, i):
            return i

    class NoLength(torch.utils.data.Dataset):
        def __getitem__(self, i):
            return i

        def __len__(self):
            raise TypeError("unknown")

    cases = (
        (Stream(), "map-style"), ((i for i in range(3)), "map-style"), (Half(), "it has no __len__"), (5, "has no"),
        (NoLength(), "no length: unknown"), ({"a": 1}, "no map-style"), (Squares, "the class"), ({1, 2}, "map-style"),
    )  # fmt: skip
    for d, words in cases:
        with pytest.raises(TypeError, match=words):
            _dataset.understand(d)
    with pytest.raises(InvalidError, match="has no samples"):
        _dataset.understand([])


def test_names(recwarn):
    assert _dataset.identity([], "x", None) == _dataset.Identity("x", "1", False)
    assert _dataset.identity([], "x", 3).version == "3"
    for name, version in (("", 1), ("a@b", 1), ("a:b", 1), ("x" * 129, 1), ("a\n", 1), (5, 1), ("a", ""), ("a", 1.5),
                          ("a", True), (None, 2)):  # fmt: skip
        with pytest.raises(InvalidError):
            _dataset.identity([], name, version)
    assert not recwarn.list


def test_without_a_name_a_dataset_is_the_process_own_and_that_is_said_once():
    class Fresh(Squares):
        pass

    a, b = Fresh(), Fresh()
    with pytest.warns(NotSharedWarning, match="Fresh has no name"):
        one = _dataset.identity(a, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert one.private and _dataset.identity(a, None, None) == one != _dataset.identity(b, None, None)


def test_the_items_that_are_looked_at():
    assert _dataset.pick(1, None, 8) == [0] and _dataset.pick(3, None, 8) == [0, 1, 2]
    assert _dataset.pick(1000, None, 3) == [0, 499, 999]
    assert _dataset.pick(1000, np.array([5, 7]), 8) == [5, 7]


def test_code_of_datasets(torch):
    class Other(Squares):
        def __getitem__(self, i):
            return i + 1

    assert _dataset.code(Squares()) == _dataset.code(Squares(5)) != _dataset.code(Other())
    joined = torch.utils.data.ConcatDataset([Squares(), Other()])
    assert _dataset.code(joined) == f"{_dataset.code(Squares())}+{_dataset.code(Other())}"
