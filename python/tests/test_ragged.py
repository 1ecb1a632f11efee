"""Fields whose samples differ in shape: lists, padded arrays, nested tensors."""

from __future__ import annotations

import random

import numpy as np
import pytest
from larder import _nested, _ragged
from larder._ragged import Pad
from larder.errors import InvalidError


def plain_pad(rows, value, steps):
    """Element by element, with Python lists only."""
    ndim = rows[0].ndim
    sizes = []
    for i in range(ndim):
        n = max(r.shape[i] for r in rows)
        while n % steps[i]:
            n += 1
        sizes.append(n)
    out = np.empty((len(rows), *sizes), rows[0].dtype)
    for at in np.ndindex(*out.shape):
        row, place = rows[at[0]], at[1:]
        out[at] = row[place] if all(p < n for p, n in zip(place, row.shape, strict=True)) else value
    return out


@pytest.mark.parametrize("seed", range(60))
def test_padding_is_that_of_plain_loops(seed):
    r = random.Random(seed)
    ndim = r.randrange(1, 4)
    dtype = r.choice(["uint8", "int64", "float32", "bool", "float16"])
    rows = []
    for _ in range(r.randrange(1, 5)):
        shape = tuple(r.randrange(5) for _ in range(ndim))
        rows.append(np.array([r.randrange(2) for _ in range(int(np.prod(shape)))], dtype).reshape(shape))
    value = r.choice([0, 1]) if dtype in ("bool", "uint8") else r.choice([0, -100, 7])
    steps = tuple(r.randrange(1, 4) for _ in range(ndim)) if seed % 2 else r.randrange(1, 4)
    want = plain_pad(rows, value, steps if isinstance(steps, tuple) else (steps,) + (1,) * (ndim - 1))
    got = _ragged.pad(rows, Pad(value, steps), "x")
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert (got == want).all()
    if len({a.shape for a in rows}) == 1:
        assert (_ragged.pad(np.stack(rows), Pad(value, steps), "x") == want).all()


def test_an_array_that_fits_is_not_copied():
    column = np.zeros((2, 8, 3))
    assert _ragged.join(column, Pad(multiple=4), "x") is column
    assert _ragged.join(column, "list", "x") is column
    assert _ragged.join(column, "nested", "x") is column
    assert _ragged.join([], Pad(), "x").shape == (0,)


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [(-1, "uint8", "pad with 0 to 255"), (0.5, "int64", "0.5 is no value of dtype int64"), (2, "bool", "0 to 1")],
)
def test_a_value_that_the_dtype_has_not_is_refused(value, dtype, words):
    rows = [np.zeros(1, dtype), np.zeros(2, dtype)]
    with pytest.raises(InvalidError) as e:
        _ragged.pad(rows, Pad(value), "ids")
    assert words in str(e.value)
    assert "field ids" in str(e.value)


@pytest.mark.parametrize("multiple", [0, -1, 1.5, True, (2, 0), "8"])
def test_a_multiple_that_cannot_be_is_refused(multiple):
    with pytest.raises(InvalidError, match="multiple"):
        Pad(multiple=multiple)
    with pytest.raises(InvalidError, match="for samples of 1 dimensions"):
        _ragged.pad([np.zeros(1)], Pad(multiple=(1, 2)), "x")


def test_rules():
    fields = ["a", "b.c"]
    assert _ragged.rules(None, fields) == {}
    assert _ragged.rules("pad", fields) == {"a": Pad(), "b.c": Pad()}
    assert _ragged.rules({"b.c": Pad(-1, 8), "a": "list"}, fields) == {"b.c": Pad(-1, 8), "a": "list"}
    with pytest.raises(InvalidError, match=r"'x', which samples do not have \(fields: a, b.c\)"):
        _ragged.rules({"x": "pad"}, fields)
    for bad in ("stack", 3, {"a": None}):
        with pytest.raises(InvalidError, match="larder.Pad"):
            _ragged.rules(bad, fields)


def test_bfloat16_is_padded_as_torch_rounds():
    torch = pytest.importorskip("torch")
    for value in (0, 1, -100.5, 3.14159, 1e38, float("inf"), float("-inf"), 1.00390625, 1.01171875):
        want = torch.tensor(value, dtype=torch.bfloat16).view(torch.int16).item() & 0xFFFF
        assert _ragged.filler(value, np.dtype(np.uint16), "x", True).item() == want
    bits = _ragged.filler(float("nan"), np.dtype(np.uint16), "x", True).item()
    assert np.isnan(np.array([bits << 16], np.uint32).view(np.float32)[0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_batches_with_rules():
    torch = pytest.importorskip("torch")
    items = [
        {"ids": [1, 2, 3], "boxes": torch.ones(2, 4), "half": torch.ones(1, dtype=torch.bfloat16), "t": "a", "n": 1},
        {"ids": [4], "boxes": torch.zeros(0, 4), "half": torch.ones(2, dtype=torch.bfloat16), "t": "b", "n": 2},
    ]
    structure = _nested.flatten(items[0])[1]
    rows = [[x.values for x in _nested.leaves(i, structure)] for i in items]
    columns = [[row[k] for row in rows] for k in range(3)] + [["a", "b"], np.array([1, 2])]
    rules = _ragged.rules({"ids": Pad(-100, 4), "boxes": "list", "half": "pad"}, structure.names)
    got = _nested.batch(columns, structure, ragged=rules)
    assert got["ids"].tolist() == [[1, 2, 3, -100], [4, -100, -100, -100]]
    assert got["ids"].dtype == torch.int64
    assert [b.shape for b in got["boxes"]] == [(2, 4), (0, 4)]
    assert got["half"].tolist() == [[1, 0], [1, 1]]
    assert got["half"].dtype == torch.bfloat16
    assert got["t"] == ["a", "b"]
    assert got["n"].tolist() == [1, 2]
    nested = _nested.batch(columns, structure, ragged=_ragged.rules("nested", structure.names))
    assert nested["boxes"].is_nested
    assert [t.tolist() for t in nested["boxes"].unbind()] == [items[0]["boxes"].tolist(), []]
    assert [t.dtype for t in nested["half"].unbind()] == [torch.bfloat16] * 2
    plain = _nested.batch(columns, structure, torch=False, ragged=rules)
    assert isinstance(plain["ids"], np.ndarray)
    assert all(isinstance(b, np.ndarray) for b in plain["boxes"])
