"""Records in Python: what is written is read again, whatever else is there is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from larder import _record
from larder.errors import InvalidError


def leaves() -> list[_record.Leaf]:
    return [
        _record.Leaf(_record.ARRAY, 12, np.arange(12, dtype=np.float32).reshape(3, 4)),
        _record.blob(b"raw"),
        _record.text("größe"),
        _record.scalar(-5),
        _record.scalar(0.5),
        _record.scalar(True),
        _record.Leaf(_record.ARRAY, _record.BFLOAT16, np.array([1, 2], np.uint16)),
        _record.Leaf(_record.ARRAY, 2, np.zeros((0, 3), np.uint8)),
    ]


def encoded() -> bytearray:
    buffer = bytearray(b"\xff" * _record.size(leaves()))
    assert _record.write(leaves(), buffer) == len(buffer)
    return buffer


def test_a_record_is_the_documented_bytes():
    one = [_record.scalar(7), _record.text("ab")]
    buffer = bytearray(b"\xff" * _record.size(one))
    _record.write(one, buffer)
    want = bytearray(192 + 64)
    want[0:16] = b"LREC" + bytes([1, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    want[24:48] = bytes([4, 9, 0, 0, 0, 0, 0, 0, 128, *[0] * 7, 8, *[0] * 7])
    want[48:80] = bytes([3, 2, 1, 0, 0, 0, 0, 0, 192, *[0] * 7, 2, *[0] * 7, 2, *[0] * 7])
    want[128] = 7
    want[192:194] = b"ab"
    assert buffer == want


def test_values_come_back():
    got = _record.read(encoded())
    assert got[0].tolist() == np.arange(12).reshape(3, 4).tolist()
    assert got[1:6] == [b"raw", "größe", -5, 0.5, True]
    assert [type(v) for v in got[3:6]] == [np.int64, np.float64, np.bool_]
    assert got[6].dtype == np.uint16
    assert got[7].shape == (0, 3)


def test_damaged_records_are_refused_or_read_inside():
    good, r, refused = bytes(encoded()), random.Random(1), 0
    for _ in range(5000):
        bad = bytearray(good)
        for _ in range(r.randrange(1, 3)):
            at = r.randrange(24 + 8 * 40)
            if r.random() < 0.5:
                bad[at] = r.randrange(256)
            else:
                bad[at // 8 * 8 : at // 8 * 8 + 8] = r.choice(
                    [0, 1, 63, 64, 1 << 40, 1 << 63, (1 << 64) - 64]
                ).to_bytes(8, "little")
        try:
            _record.read(bytes(bad[: r.randrange(len(bad))] if r.random() < 0.1 else bad))
        except InvalidError:
            refused += 1
    assert 2500 < refused < 5000


def test_memory_that_is_too_small_is_refused():
    with pytest.raises(InvalidError, match="a record of 256 bytes in memory of 255"):
        _record.write([_record.scalar(1), _record.scalar(2)], bytearray(255))


def test_schemas_of_two_samples():
    a = _record.describe([_record.Leaf(1, 2, np.zeros((3, 4), np.uint8)), _record.text("")], ["x", "t"])
    b = _record.describe([_record.Leaf(1, 2, np.zeros((5, 4), np.uint8)), _record.text("a")], ["x", "t"])
    assert a == [
        {"name": "x", "kind": "array", "dtype": "uint8", "shape": [3, 4]},
        {"name": "t", "kind": "text", "dtype": "uint8", "shape": [-1]},
    ]
    assert _record.merge(a, b)[0]["shape"] == [-1, 4]
    assert _record.relax(a)[0]["shape"] == [-1, -1]
    other = _record.describe([_record.Leaf(1, 12, np.zeros((3, 4), np.float32)), _record.text("")], ["x", "t"])
    with pytest.raises(InvalidError, match="field x: uint8, and float32 in another sample"):
        _record.merge(a, other)
    with pytest.raises(InvalidError, match="more than 256 bytes"):
        _record.describe([_record.scalar(1)], ["n" * 257])
