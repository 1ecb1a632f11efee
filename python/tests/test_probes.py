"""What a look at the first items of a dataset in Python finds."""

from __future__ import annotations

import os

import numpy as np
import pytest
from test_worker import Noise, twice

from larder import _dataset, _items
from larder._transform import Transform
from larder.errors import InvalidError


def look(base, steps=(), known=(0,), more=(1, 2), twice=True):
    maker = _items.Maker(base, list(steps))
    return _items.probe(maker, _items.Look(known, more, twice), _items.Clock(), 0.0, lambda index: None)


def test_a_probe_sees_fields_shapes_and_randomness():
    p = look(Noise())
    assert p.random and p.items and p.layouts[0].structure.names == ("x", "y") and not p.failures
    same = look(list(range(10)))
    assert not same.random and same.items != look([5] * 10).items == look([5] * 10).items
    ragged = look([np.zeros(n) for n in (3, 4, 5)])
    assert ragged.layouts[0].fields[0]["shape"] == [-1]
    assert len(look(Noise(), [Transform(twice, "1", False, {})]).layouts) == 2


def test_items_that_differ_from_call_to_call_are_not_compared():
    class Entropy:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return int.from_bytes(os.urandom(4), "little")

    p = look(Entropy())
    assert p.random and p.items == ""


def test_items_unlike_each_other_are_refused_with_both():
    with pytest.raises(InvalidError, match=r"items 0 and 2 are unlike.*float32.*float64"):
        look([np.zeros(2, np.float32)] * 2 + [np.zeros(2)])
    with pytest.raises(InvalidError, match=r"items 0 and 1 are unlike.*at 1 is str, and float in others"):
        look([(1, 2.0), (1, "a"), (1, 2.0)])


def test_a_dataset_of_which_no_item_can_be_made():
    with pytest.raises(
        InvalidError, match=r"(?s)item 0 of dataset .*Noise cannot be made: ValueError: item 0 is broken"
    ):
        look(Noise(3, dict.fromkeys(range(3), "raise")))
    with pytest.raises(InvalidError, match="item 0: the sample is NoneType, which is no data"):
        look([None] * 3)
    assert [f.sample for f in look(Noise(3, {1: "raise"})).failures] == [1]
    assert _dataset.describe(Noise()) == "dataset test_worker.Noise"
