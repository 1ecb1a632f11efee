"""Writes datasets of records with their formats' own writers, and reads them with their own readers; run by tests in the
environment that internal/tools/setup.sh makes of internal/tools/python/formats.txt.

    record_files.py OUT SEED [FORMAT...]

For each format it writes OUT/FORMAT and OUT/FORMAT.json: for each sample, in order, {field: [dtype, dims, sha256]}; the
dtype of images and bytes is "bytes", of text "text". OUT/FORMAT.uri is what larder is to read.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def value(x: Any) -> list[Any]:
    """What is compared of one value."""
    if isinstance(x, str):
        b = x.encode()
        return ["text", [len(b)], hashlib.sha256(b).hexdigest()]
    if isinstance(x, bytes):
        return ["bytes", [len(x)], hashlib.sha256(x).hexdigest()]
    a = np.ascontiguousarray(x)
    return [str(a.dtype), list(np.shape(x)), hashlib.sha256(a.tobytes()).hexdigest()]


def image(rng: np.random.Generator, kind: str = "PNG") -> bytes:
    """An image file of odd sizes."""
    h, w = rng.integers(1, 60, 2)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)).save(out, kind)
    return out.getvalue()


def finish(out: Path, name: str, rows: list[dict[str, Any]], uri: str) -> None:
    """Writes what larder is to read, and what it is to give."""
    (out / f"{name}.json").write_text(json.dumps([{k: value(v) for k, v in r.items()} for r in rows]))
    (out / f"{name}.uri").write_text(uri)


def tfrecord(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """The writer and reader of the package tfrecord."""
    from tfrecord.reader import tfrecord_loader
    from tfrecord.writer import TFRecordWriter

    folder = out / "tfrecord"
    folder.mkdir()
    shards = pick.randint(1, 3)
    for s in range(shards):
        writer = TFRecordWriter(str(folder / f"train.tfrecord-{s:05}-of-{shards:05}"))
        for _ in range(pick.randint(5, 20)):
            row = {
                "image/encoded": (image(rng, pick.choice(["PNG", "JPEG"])), "byte"),
                "image/class/label": (int(rng.integers(0, 7)), "int"),
                "image/object/bbox/xmin": (rng.random(4).astype(np.float32).tolist(), "float"),
                "ragged": (rng.integers(-(2**62), 2**62, pick.randint(1, 9)).tolist(), "int"),
                "name": ("größe".encode() * pick.randint(1, 3), "byte"),
            }
            writer.write(row)
        writer.close()
    rows = []
    for path in sorted(folder.iterdir()):
        for r in tfrecord_loader(str(path), None):
            r = {k: v for k, v in r.items()}
            row = {k: bytes(np.asarray(r[k]).tobytes()) for k in ("image/encoded",)}
            row["name"] = bytes(np.asarray(r["name"]).tobytes()).decode()
            row["image/class/label"] = np.int64(np.asarray(r["image/class/label"]).reshape(-1)[0])
            row["image/object/bbox/xmin"] = np.asarray(r["image/object/bbox/xmin"], np.float32).reshape(-1)
            row["ragged"] = np.asarray(r["ragged"], np.int64).reshape(-1)
            rows.append(row)
    finish(out, "tfrecord", rows, f"tfrecord:{folder}?text=name")


def lmdb(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """py-lmdb; values on overflow pages and inside leaves, some deleted and written again."""
    import lmdb as module

    folder = out / "lmdb"
    env = module.open(str(folder), map_size=1 << 28, subdir=pick.random() < 0.5)
    n = pick.randint(30, 400)
    for _ in range(2):
        with env.begin(write=True) as txn:
            for i in range(n):
                if pick.random() < 0.8:
                    txn.put(f"{pick.randint(0, n)}".encode(), image(rng, pick.choice(["PNG", "JPEG"])))
                elif txn.get(str(i).encode()):
                    txn.delete(str(i).encode())
            txn.put(b"__len__", b"1")
    with env.begin() as txn:
        rows = [{"key": k.decode(), "image": bytes(v)} for k, v in txn.cursor() if k != b"__len__"]
    env.close()
    finish(out, "lmdb", rows, f"lmdb:{folder}")


def lmdb_text(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """A named database of short values in an environment of several."""
    import lmdb as module

    folder = out / "lmdb_text"
    env = module.open(str(folder), map_size=1 << 26, max_dbs=3)
    words, other = env.open_db(b"words"), env.open_db(b"other")
    with env.begin(write=True) as txn:
        for i in range(pick.randint(1000, 3000)):
            txn.put(i.to_bytes(4, "big"), ("wörter " * pick.randint(1, 90)).encode(), db=words)
            txn.put(str(i).encode(), b"x", db=other)
    with env.begin() as txn:
        rows = [{"key": "0x" + k.hex(), "value": v.decode()} for k, v in txn.cursor(db=words)]
    env.close()
    finish(out, "lmdb_text", rows, f"lmdb:{folder}?db=words&value=text")


FORMATS: dict[str, Callable[[Path, np.random.Generator, random.Random], None]] = {
    "tfrecord": tfrecord,
    "lmdb": lmdb,
    "lmdb_text": lmdb_text,
}


if __name__ == "__main__":
    for chosen in sys.argv[3:] or FORMATS:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        FORMATS[chosen](Path(sys.argv[1]), np.random.default_rng(int(sys.argv[2])), random.Random(sys.argv[2]))
