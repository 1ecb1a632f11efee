"""A ring of records: what docs/protocol.md says of its fields is what the client reads, and lies are refused."""

from __future__ import annotations

import fcntl
import os
from typing import Any

import numpy as np
import pytest

from larder import _record, _ring
from larder._wire import BatchHeader
from larder.errors import Error

SLOT, ROWS = 8192, 3
F_ADD_SEALS, SHRINK = 1033, 2
FIELDS: list[Any] = [
    {"name": "image", "kind": "array", "dtype": "uint8", "shape": [2, 3], "sampleBytes": 6},
    {"name": "ok", "kind": "scalar", "dtype": "bool", "sampleBytes": 1, "offset": 64},
    {"name": "half", "kind": "array", "dtype": "bfloat16", "shape": [2], "sampleBytes": 4, "offset": 128},
    {"name": "empty", "kind": "array", "dtype": "float32", "shape": [0, 4], "offset": 192},
    {"name": "boxes", "kind": "array", "dtype": "float32", "ragged": True, "dims": 2, "offset": 256},
    {"name": "raw", "kind": "bytes", "dtype": "uint8", "ragged": True, "dims": 1, "offset": 512},
    {"name": "text", "kind": "text", "dtype": "uint8", "ragged": True, "dims": 1, "offset": 768},
    {"name": "index", "dtype": "int64", "sampleBytes": 8, "offset": 1024},
]


def ring(fields: list[Any] = FIELDS) -> _ring.Ring:
    fd = os.memfd_create("ring", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SLOT)
    fcntl.fcntl(fd, F_ADD_SEALS, SHRINK)
    return _ring.Ring({"slots": 1, "slotBytes": SLOT, "segmentBytes": SLOT, "fields": fields}, fd)


def filled() -> tuple[_ring.Ring, Any]:
    r = ring()
    root = r.root(BatchHeader(0, 0, 1, 0, 0, 0, 0, ROWS, None))
    root[:18] = np.arange(18)
    root[64:67] = [1, 0, 1]
    root[128:140].view("<u2")[:] = [1, 2, 3, 4, 5, 6]
    boxes = root[256 : 256 + ROWS * 32].view("<u8").reshape(ROWS, 4)
    boxes[:] = [[2048, 32, 2, 4], [2112, 0, 0, 4], [2112, 16, 1, 4]]
    root[2048:2080].view("<f4")[:] = np.arange(8)
    root[2112:2128].view("<f4")[:] = 7
    root[512 : 512 + ROWS * 24].view("<u8")[:] = [2176, 2, 2, 2176, 0, 0, 2240, 1, 1]
    root[768 : 768 + ROWS * 24].view("<u8")[:] = [2304, 2, 2, 2304, 0, 0, 2368, 1, 1]
    root[2176:2178], root[2240] = [255, 0], 9
    root[2304:2306], root[2368] = list("é".encode()), ord("x")
    root[1024:1048].view("<i8")[:] = [5, 6, 7]
    return r, root


def test_fields_are_read_as_documented():
    r, root = filled()
    got = {f.name: r.array(root, f, ROWS) for f in r.fields.values()}
    assert got["image"].tolist() == np.arange(18).reshape(3, 2, 3).tolist()
    assert got["ok"].dtype == np.bool_
    assert got["ok"].tolist() == [True, False, True]
    assert got["half"].dtype == np.uint16
    assert got["half"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert got["empty"].shape == (3, 0, 4)
    assert [b.tolist() for b in got["boxes"]] == [[[0, 1, 2, 3], [4, 5, 6, 7]], [], [[7, 7, 7, 7]]]
    assert got["boxes"][1].shape == (0, 4)
    assert got["raw"] == [b"\xff\0", b"", b"\x09"]
    assert got["text"] == ["é", "", "x"]
    assert got["index"].tolist() == [5, 6, 7]
    assert [f.name for f in r.records] == [f["name"] for f in FIELDS[:-1]]
    assert all(v.base is root for v in got["boxes"])


def test_a_copy_is_private():
    r, root = filled()
    kept = {f.name: _ring.copy(r.array(root, f, ROWS)) for f in r.records}
    root[:] = 0
    assert kept["boxes"][0].sum() == 28
    assert kept["image"].sum() == 153
    assert kept["text"] == ["é", "", "x"]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (256, SLOT),
        (256, 2049),
        (256, (1 << 64) - 64),
        (264, 36),
        (272, 3),
        (272, 1 << 61),
        (512 + 8, SLOT),
        (512 + 16, 3),
        (768, SLOT + 64),
    ],
)
def test_entries_that_lie_are_refused(at, value):
    r, root = filled()
    root[at : at + 8].view("<u8")[0] = value
    with pytest.raises(Error, match=r"boxes|raw|text") as e:
        for f in r.records:
            r.array(root, f, ROWS)
    assert e.value.reason == "PROTOCOL"


def test_text_that_is_not_utf8_is_refused():
    r, root = filled()
    root[2304] = 255
    with pytest.raises(Error, match="not UTF-8"):
        r.array(root, r.fields["text"], ROWS)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "complex64"},
        {"dtype": ""},
        {"kind": "image"},
        {"dims": 9},
        {"kind": "text"},
        {"ragged": False, "shape": [3], "sampleBytes": 4},
    ],
)
def test_fields_that_cannot_be_are_refused(change):
    with pytest.raises(Error) as e:
        ring([{**FIELDS[4], **change}])
    assert e.value.reason == "PROTOCOL"


def test_every_dtype_of_a_schema_is_known():
    for name in _record.DTYPES[1:]:
        (f,) = ring([{"name": "x", "kind": "array", "dtype": name, "ragged": True, "dims": 1}]).records
        assert f.dtype.itemsize == _record.numpy_dtype(name).itemsize
