"""Fields whose samples differ in shape: lists, padded arrays, nested tensors."""

from __future__ import annotations

import random

import numpy as np
import pytest

from larder import _nested, _ragged
from larder._batches import Batches
from larder._ragged import Ragged
from larder.errors import InvalidError


def plain_pad(rows, value, multiple, shape):
    """Element by element, with Python lists only."""
    sizes = []
    for i, known in enumerate(shape):
        n = max(r.shape[i] for r in rows)
        while n % multiple and (known < 0 or len({r.shape[i] for r in rows}) > 1):
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
    ndim = r.randrange(4)
    dtype = r.choice(["uint8", "int64", "float32", "bool", "float16"])
    known = [r.choice([-1, 3]) for _ in range(ndim)]
    rows = []
    for _ in range(r.randrange(1, 5)):
        shape = tuple(r.randrange(5) if n < 0 else n for n in known)
        rows.append(np.array([r.randrange(2) for _ in range(int(np.prod(shape)))], dtype).reshape(shape))
    value = r.choice([0, 1]) if dtype in ("bool", "uint8") else r.choice([0, -100, 7])
    multiple = r.randrange(1, 5)
    want = plain_pad(rows, value, multiple, known)
    got = _ragged.pad(rows, Ragged("pad", value, multiple), known, "x")
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert (got == want).all()


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [(-1, "uint8", "pad with 0 to 255"), (0.5, "int64", "0.5 is no value of dtype int64"), (2, "bool", "0 to 1")],
)
def test_a_value_that_the_dtype_has_not_is_refused(value, dtype, words):
    rows = [np.zeros(1, dtype), np.zeros(2, dtype)]
    with pytest.raises(InvalidError) as e:
        _ragged.pad(rows, Ragged("pad", value), [-1], "ids")
    assert words in str(e.value)
    assert "field ids" in str(e.value)


def test_bfloat16_is_padded_as_torch_rounds():
    torch = pytest.importorskip("torch")
    for value in (0, 1, -100.5, 3.14159, 1e38, float("inf"), float("-inf"), 1.00390625, 1.01171875):
        want = torch.tensor(value, dtype=torch.bfloat16).view(torch.int16).item() & 0xFFFF
        assert _ragged.filler(value, np.dtype(np.uint16), "x", True).item() == want
    bits = _ragged.filler(float("nan"), np.dtype(np.uint16), "x", True).item()
    assert np.isnan(np.array([bits << 16], np.uint32).view(np.float32)[0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_batches_of_uneven_samples():
    torch = pytest.importorskip("torch")
    items = [
        {"ids": [1, 2, 3], "boxes": torch.ones(2, 4), "half": torch.ones(1, dtype=torch.bfloat16), "t": "a", "n": 1},
        {"ids": [4], "boxes": torch.zeros(0, 4), "half": torch.ones(2, dtype=torch.bfloat16), "t": "b", "n": 2},
    ]
    structure = _nested.flatten(items[0])[1]
    rows = [[x.values for x in _nested.leaves(i, structure)] for i in items]
    columns = [[row[k] for row in rows] for k in range(3)] + [["a", "b"], np.array([1, 2])]
    varies = {"ids": [-1], "boxes": [-1, 4], "half": [-1]}

    def batch(mode, value=0.0, multiple=1, tensors=True):
        how = Batches(structure, varies, tensors, False, Ragged(mode, value, multiple), None, False)
        return how.make(columns, 2)

    got = batch("pad", -100, 4)
    assert got["ids"].tolist() == [[1, 2, 3, -100], [4, -100, -100, -100]]
    assert got["ids"].dtype == torch.int64
    assert got["boxes"].shape == (2, 4, 4)
    assert got["half"].tolist() == [[1, -100, -100, -100], [1, 1, -100, -100]]
    assert got["half"].dtype == torch.bfloat16
    assert got["t"] == ["a", "b"]
    assert got["n"].tolist() == [1, 2]
    lists = batch("list")
    assert [b.shape for b in lists["boxes"]] == [(2, 4), (0, 4)]
    assert [t.tolist() for t in lists["ids"]] == [[1, 2, 3], [4]]
    nested = batch("nested")
    assert nested["boxes"].is_nested
    assert [t.tolist() for t in nested["boxes"].unbind()] == [items[0]["boxes"].tolist(), []]
    assert [t.dtype for t in nested["half"].unbind()] == [torch.bfloat16] * 2
    plain = batch("list", tensors=False)
    assert all(isinstance(b, np.ndarray) for b in plain["boxes"])
    with pytest.raises(InvalidError, match=r"field ids: 0\.5 is no value of dtype int64"):
        batch("pad", 0.5)
