"""Generated datasets through the real daemon and its workers: the batches are those of torch's own DataLoader."""

from __future__ import annotations

import os
import random

import pytest
from real import PATIENCE

torch = pytest.importorskip("torch")

from structures import equal, sample  # noqa: E402

from larder import _nested  # noqa: E402
from larder.errors import InvalidError  # noqa: E402
from larder.torch import DataLoader  # noqa: E402

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


@pytest.mark.parametrize("seed", range(CASES))
def test_batches_are_those_of_torch(server, seed):
    dataset, kw = generated(seed)
    want = list(torch.utils.data.DataLoader(dataset, **kw))
    extra = {"cache": "items"} if seed % 2 else {}
    loader = DataLoader(dataset, num_workers=seed % 3, endpoint=server.socket, timeout=PATIENCE, **kw, **extra)
    try:
        assert len(loader) == len(want)
        for _ in range(2):
            got = list(loader)
            assert len(got) == len(want)
            for a, b in zip(got, want, strict=True):
                assert equal(a, b), (a, b)
    finally:
        loader.loader.close()


@pytest.mark.parametrize("seed", range(6))
def test_samples_of_a_collate_fn_are_those_of_the_dataset(server, seed):
    dataset, kw = generated(500 + seed)
    loader = DataLoader(
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
        DataLoader(Items([{}, {}]), endpoint=server.socket, timeout=PATIENCE)


def test_a_dataset_without_a_name_is_loaded_again_and_again(server):
    dataset = Items(list(range(20)))
    for _ in range(6):
        loader = DataLoader(dataset, batch_size=4, num_workers=1, endpoint=server.socket, timeout=PATIENCE)
        assert [b.tolist() for b in loader] == [list(range(i, i + 4)) for i in range(0, 20, 4)]
        loader.loader.close()
