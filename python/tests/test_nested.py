"""Samples as leaves, records and batches: equal to what the installed torch's default_collate makes of them."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from structures import TENSOR, equal, sample

from larder import _nested, _record
from larder._batches import Batches
from larder.errors import InvalidError

torch = pytest.importorskip("torch")


@dataclasses.dataclass(frozen=True)
class Scan:
    image: Any
    name: str


def through(made: Any, structure: _nested.Structure) -> list[Any]:
    """The values of a sample after its way through a record."""
    found = _nested.leaves(made, structure)
    buffer = bytearray(_record.size(found) + 7)
    assert _record.write(found, buffer) == len(buffer) - 7
    return _record.read(buffer)


def columns(rows: list[list[Any]]) -> list[Any]:
    """What a ring gives: arrays where shapes agree, else lists."""
    out: list[Any] = []
    for column in zip(*rows, strict=True):
        stack = not isinstance(column[0], str | bytes) and len({np.shape(v) for v in column}) == 1
        out.append(np.stack(column) if stack else list(column))
    return out


def batches(structure: _nested.Structure) -> Batches:
    return Batches(structure, {}, torch=True, plain=True, ragged=None, collate=None, index=False)


@pytest.mark.parametrize("seed", range(400))
def test_batches_are_those_of_default_collate(seed):
    r = random.Random(seed)
    make = sample(r)
    items = [make() for _ in range(r.randrange(1, 5))]
    structure = _nested.flatten(items[0])[1]
    assert len(set(structure.names)) == len(structure.names)
    assert _nested.parse(structure.text) == structure
    rows = [through(i, structure) for i in items]
    back = [_nested.unflatten(row, structure) for row in rows]
    for a, b in zip(items, back, strict=True):
        assert equal(a, b), (a, b)
    got = columns(rows)
    want = torch.utils.data.default_collate(items)
    assert equal(batches(structure).make(got, len(items)), want), (structure.text, want)
    for a, b in zip(items, _nested.samples(got, structure.text, len(items)), strict=True):
        assert equal(a, b), (a, b)


def test_generated_samples_cover_every_kind_and_dtype():
    kinds, dtypes, containers = set(), set(), set()

    def walk(s: _nested.Structure) -> None:
        (containers if s.parts else kinds).add(s.kind)
        for p in s.parts:
            walk(p)

    for seed in range(400):
        found, structure = _nested.flatten(sample(random.Random(seed))())
        walk(structure)
        dtypes |= {_record.DTYPES[x.dtype] for x in found if x.kind == _record.ARRAY}
    assert dtypes == set(TENSOR)
    assert kinds >= {"tensor", "bfloat16", "ndarray", "numpy", "int", "float", "bool", "str", "bytes", "ints", "floats"}
    assert containers == {"tuple", "list", "dict", "namedtuple"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": {"b": None}}, "the sample at a.b is NoneType, which is no data"),
        ((1, object()), "the sample at 1 is object, which is no data"),
        (np.zeros(3, complex), "ndarray of dtype complex128"),
        (np.array(["a"]), "ndarray of dtype <U1"),
        (np.array([None]), "ndarray of dtype object"),
        (1j, "complex, which is no data"),
        ([1 << 63], "does not fit into 64 bits"),
        ((1 << 63,), "does not fit into 64 bits"),
        ("\ud800", "text that is not UTF-8"),
        ({(1, 2): 3}, "a key of type tuple"),
        (bytearray(b"x"), "bytearray, which is no data"),
        (tuple(range(300)), "a sample of 300 values, and 256 are the most"),
        (torch.zeros(2, dtype=torch.complex64), "dtype torch.complex64"),
        (torch.zeros(2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "a tensor on meta"),
        (iter([]), "list_iterator, which is no data"),
    ],
)
def test_what_is_no_data_is_refused_with_words(value, words):
    with pytest.raises(InvalidError, match="") as e:
        _nested.flatten(value)
    assert words in e.value.message
    assert e.value.hint


def test_a_hint_names_what_collate_fn_gets():
    with pytest.raises(InvalidError, match="collate_fn gets samples made of these"):
        _nested.flatten((np.zeros(3), None))


def test_field_names():
    item = {"image": 1, "index": 2, "target": {"index": 3, "a.b": 4, 0: (5, {"c": 6}), "0": 7}}
    names = ("image", "['index']", "target.index", "target['a.b']", "target[0].0", "target[0].1.c", "target.0")
    assert _nested.flatten(item)[1].names == names
    assert _nested.flatten(5)[1].names == ("value",)
    assert _nested.names(_nested.flatten((1, "a"))[1].text) == ("0", "1")


def test_a_list_that_holds_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidError, match="more than 32 containers"):
        _nested.flatten(loop)


@pytest.mark.parametrize(
    ("first", "other", "words"),
    [
        ((1, 2.0), (1, 2), "the sample at 1 is int, and float in others"),
        ((1, 2), (1, 2, 3), "the sample is tuple of 3 values, and a tuple of 2 values in others"),
        ({"a": 1}, {"b": 1}, "is dict with keys ['b'], and a dict with keys ['a'] in others"),
        ({"a": [1, 2]}, {"a": ["x"]}, "the sample at a is list, and a list of ints in others"),
        ({"a": np.zeros(2)}, {"a": torch.zeros(2)}, "the sample at a is Tensor, and ndarray in others"),
        ([1, "a"], 5, "the sample is int, and a list of 2 values in others"),
        ("a", b"a", "the sample is bytes, and str in others"),
    ],
)
def test_samples_that_differ_are_named_with_both_sides(first, other, words):
    structure = _nested.flatten(first)[1]
    with pytest.raises(InvalidError) as e:
        _nested.leaves(other, structure)
    assert words in e.value.message
    with pytest.raises(InvalidError):
        _nested.merge(structure, _nested.flatten(other)[1])


def test_keys_in_another_order_and_empty_lists_of_numbers_fit():
    structure = _nested.flatten({"a": 1, "ids": [5, 6]})[1]
    found = _nested.leaves({"ids": [], "a": 2}, structure)
    assert [x.values.tolist() for x in found] == [2, []]
    empty = _nested.flatten({"ids": [], "a": 1})[1]
    assert _nested.merge(empty, structure).text == _nested.flatten({"ids": [5], "a": 1})[1].text
    assert _nested.merge(structure, empty) == structure


def test_a_dataclass_comes_back_and_has_no_default_batch():
    scan = Scan(np.arange(6).reshape(2, 3), "s")
    found, structure = _nested.flatten(scan)
    assert structure.names == ("image", "name")
    again = _nested.unflatten([found[0].values, "s"], structure.text)
    assert type(again) is Scan
    assert again.name == "s"
    assert (again.image == scan.image).all()
    with pytest.raises(InvalidError, match=r"dataclass, which torch.s default_collate refuses"):
        batches(structure).make([np.zeros((1, 2, 3)), ["s"]], 1)


def test_a_class_that_is_not_imported_is_not_imported():
    text = '{"kind":"dict","class":"antigravity:Names","keys":["a"],"parts":["int"]}'
    assert _nested.unflatten([1], text) == {"a": 1}
    other = '{"kind":"dict","class":"subprocess:Popen","keys":["a"],"parts":["int"]}'
    assert _nested.unflatten([1], other) == {"a": 1}
    for bad in ("", "[]", '{"kind":"set","parts":[]}', '"object"', '{"kind":"dict","keys":[],"parts":["int"]}'):
        with pytest.raises(InvalidError):
            _nested.parse(bad)


def test_rows_of_different_shapes_say_what_ragged_does():
    structure = _nested.flatten({"x": np.zeros(3)})[1]
    with pytest.raises(InvalidError, match="field x: the samples of a batch have the shapes"):
        batches(structure).make([[np.zeros(3), np.zeros(4)]], 2)


def test_arrays_that_torch_refuses_are_taken():
    items = [np.arange(6, dtype=">f4")[::-2], np.asfortranarray(np.ones((2, 3))), np.arange(4)[::2]]
    for item in items:
        (value,) = through(item, _nested.flatten(item)[1])
        assert value.tolist() == item.tolist()
        assert value.flags.c_contiguous
    imaginary = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert imaginary.is_neg()
    structure = _nested.flatten(torch.zeros(2))[1]
    assert through(imaginary, structure)[0].tolist() == [-2, 4]
    with pytest.raises(InvalidError, match="sparse, quantized"):
        _nested.leaves(torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.quint8), structure)
    grad = torch.ones(2, requires_grad=True)
    assert through(grad, _nested.flatten(grad)[1])[0].tolist() == [1, 1]
