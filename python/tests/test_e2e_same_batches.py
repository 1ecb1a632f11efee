"""Generated datasets through the real daemon and its workers: the batches are those of torch's own DataLoader."""

from __future__ import annotations

import itertools
import os
import random

import numpy as np
import pytest
from real import PATIENCE, night, served

torch = pytest.importorskip("torch")

from kinds_of_items import alike  # noqa: E402
from structures import COMPLEX, WIDE, equal, sample  # noqa: E402

import larder  # noqa: E402
from larder import _nested  # noqa: E402
from larder.errors import InvalidError  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::larder.errors.NotSharedWarning"),
    pytest.mark.filterwarnings("ignore::larder.errors.KeptBatchesWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
CASES = int(os.environ.get("LARDER_CASES", "40"))


class Items:
    """A map-style dataset of items that are there."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def generated(seed):
    """A dataset of one structure, and the arguments of its loader."""
    r = random.Random(10_000 + seed)
    make = sample(r)
    while not _nested.flatten(make())[0]:
        make = sample(r)  # items without a value are refused
    items = [make() for _ in range(r.randrange(1, 12))]
    kw = {"batch_size": r.randrange(1, 6), "drop_last": len(items) > 5 and r.random() < 0.3}
    return Items(items), kw


@pytest.mark.parametrize("seed", [*range(min(6, CASES)), *night(*range(6, CASES))])
def test_batches_are_those_of_torch(server, seed):
    dataset, kw = generated(seed)
    want = list(torch.utils.data.DataLoader(dataset, **kw))
    extra = {"cache": "items"} if seed % 2 else {}
    loader = served(dataset, num_workers=seed % 3, endpoint=server.socket, timeout=PATIENCE, **kw, **extra)
    try:
        assert len(loader) == len(want)
        for _ in range(2):
            got = list(loader)
            assert len(got) == len(want)
            for a, b in zip(got, want, strict=True):
                assert equal(a, b), (a, b)
    finally:
        loader.loader.close()


@pytest.mark.parametrize(
    ("seed", "method"),
    [(2, "forkserver"), *night((0, "forkserver"), (1, "forkserver"), *((s, "spawn") for s in range(3)))],
)
def test_batches_are_those_of_torch_whatever_starts_the_workers(server, method, seed):
    dataset, kw = generated(800 + seed)
    want = list(torch.utils.data.DataLoader(dataset, **kw))
    ours = served(
        dataset, num_workers=1, persistent_workers=True, multiprocessing_context=method, endpoint=server.socket,
        timeout=PATIENCE, **kw,
    )  # fmt: skip
    with ours:
        for _ in range(2):
            got = list(ours)
            assert len(got) == len(want)
            for a, b in zip(got, want, strict=True):
                assert equal(a, b), (a, b)


FEW = [(0, True, WIDE[0]), (1, False, WIDE[1]), (1, True, WIDE[2])]


@pytest.mark.parametrize(
    ("workers", "scalar", "dtype"),
    [*FEW, *night(*(c for c in itertools.product((0, 1), (False, True), WIDE) if c not in FEW))],
)
def test_dtypes_without_tensors_are_named_before_the_first_batch(server, dtype, scalar, workers):
    """Arrays have them all, and so has what a collate_fn gets."""
    if hasattr(torch, dtype):
        pytest.skip("this torch has tensors of them")
    items = [{"a": 1.5, "b": np.dtype(dtype).type(i) if scalar else np.full(2, i, dtype)} for i in range(5)]
    kw = {"batch_size": 5, "num_workers": workers, "endpoint": server.socket, "timeout": PATIENCE}
    with pytest.raises(InvalidError, match=rf"field b has dtype {dtype}, of which torch .*astype") as e:
        served(Items(items), **kw)
    assert e.value.subject == "b"
    with larder.Loader(Items(items), **kw) as arrays:
        (batch,) = arrays
        assert batch["b"].dtype == dtype and batch["b"].tolist() == [x["b"].tolist() for x in items]
    with served(Items(items), collate_fn=list, **kw) as samples:
        ((*rows,),) = samples
        assert all(equal(a["b"], b["b"]) for a, b in zip(rows, items, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_bool_is_data_and_complex_is_not(server, workers):
    kw = {"batch_size": 4, "num_workers": workers, "endpoint": server.socket, "timeout": PATIENCE}
    bools = Items([(np.bool_(i % 2), np.array([True, i > 1]), i > 2) for i in range(4)])
    with served(bools, **kw) as ours:
        (batch,) = ours
        assert equal(batch, next(iter(torch.utils.data.DataLoader(bools, batch_size=4))))
    for dtype in COMPLEX:
        for value, what in (
            (np.zeros(2, dtype), f"ndarray of dtype {dtype}"),
            (np.dtype(dtype).type(0), f"{dtype} of dtype {dtype}"),
            (torch.zeros(2, dtype=getattr(torch, dtype)), f"a tensor of dtype torch.{dtype}"),
            (1j, "complex"),
        ):
            with pytest.raises(InvalidError, match=rf"item 0: the sample at x is {what}, which is no data \(return"):
                larder.Loader(Items([{"x": value}] * 4), **kw)
            if what == "complex":
                continue  # which default_collate refuses
            same = next(iter(torch.utils.data.DataLoader(Items([{"x": value}] * 4), batch_size=4)))
            with served(Items([{"x": value}] * 4), **kw) as ours:
                assert alike(next(iter(ours)), same)


@pytest.mark.parametrize("seed", [*range(3), *night(*range(3, 6))])
def test_samples_of_a_collate_fn_are_those_of_the_dataset(server, seed):
    dataset, kw = generated(500 + seed)
    loader = served(
        dataset, num_workers=1, endpoint=server.socket, timeout=PATIENCE, collate_fn=list, shuffle=True, **kw
    )
    try:
        seen = [s for batch in loader for s in batch]
        left = list(dataset.items)
        for s in seen:
            at = next(i for i, item in enumerate(left) if equal(s, item))
            del left[at]
        assert len(left) < kw["batch_size"] if kw["drop_last"] else not left
    finally:
        loader.loader.close()


def test_items_without_a_value_are_refused(server):
    with pytest.raises(InvalidError, match="its samples have no fields"):
        larder.Loader(Items([{}, {}]), batch_size=1, endpoint=server.socket, timeout=PATIENCE)


def test_a_dataset_without_a_name_is_loaded_again_and_again(server):
    dataset = Items(list(range(20)))
    for _ in range(3):
        loader = served(dataset, batch_size=4, num_workers=1, endpoint=server.socket, timeout=PATIENCE)
        assert [b.tolist() for b in loader] == [list(range(i, i + 4)) for i in range(0, 20, 4)]
        loader.loader.close()
