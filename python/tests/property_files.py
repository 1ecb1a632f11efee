"""Writes the same samples with properties by their formats' own writers; run by test_e2e_properties.py in the
environment that internal/tools/setup.sh makes of internal/tools/python/formats.txt.

    property_files.py OUT SEED

Writes OUT/want.json: the samples in order, each {width, ratio (or null), split, ok}; OUT/uris.json: for each uri the
prefix of its properties, and the names that it has.
"""

from __future__ import annotations

import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import webdataset
from datasets import Dataset
from PIL import Image
from streaming import MDSWriter
from tfrecord.writer import TFRecordWriter


def picture(rng: np.random.Generator) -> bytes:
    """A JPEG file."""
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(out, "JPEG")
    return out.getvalue()


def main(out: Path, seed: int) -> None:
    """Writes all of them."""
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    n = pick.randint(37, 97)
    rows: list[dict[str, Any]] = [
        {
            "width": pick.randint(-50, 400), "ratio": None if pick.random() < 0.2 else pick.randint(0, 99) / 8,
            "split": pick.choice(["train", "val", "test set"]), "ok": pick.random() < 0.5,
        }
        for _ in range(n)
    ]  # fmt: skip
    images = [picture(rng) for _ in rows]
    out.mkdir(parents=True)
    (out / "want.json").write_text(json.dumps(rows))
    everything = ["width", "ratio", "split", "ok"]

    columns = {name: [r[name] for r in rows] for name in everything}
    types = {"width": pa.int16(), "ratio": pa.float64(), "split": pa.string(), "ok": pa.bool_()}
    table = pa.table({k: pa.array(v, types[k]) for k, v in columns.items()} | {"image": pa.array(images, pa.binary())})
    pq.write_table(table, out / "a.parquet", row_group_size=pick.randint(5, 20))
    Dataset.from_dict({**columns, "text": ["x" * i for i in range(n)]}).save_to_disk(str(out / "hf"))

    with webdataset.TarWriter(str(out / "a.tar")) as w:
        for i, (r, b) in enumerate(zip(rows, images, strict=True)):
            w.write({"__key__": f"{i:05}", "jpg": b, "json": r, "cls": i % 3})

    whole = {"image": "jpeg", "width": "int32", "split": "str", "label": "int"}
    with MDSWriter(out=str(out / "mds"), columns=whole, size_limit=20_000) as m:
        for i, (r, b) in enumerate(zip(rows, images, strict=True)):
            (out / "one.jpg").write_bytes(b)
            image = Image.open(out / "one.jpg")
            m.write({"image": image, "width": np.int32(r["width"]), "split": r["split"], "label": i % 4})

    writer = TFRecordWriter(str(out / "a.tfrecord"))
    for r, b in zip(rows, images, strict=True):
        writer.write({"width": (r["width"], "int"), "split": (r["split"].encode(), "byte"), "image": (b, "byte")})
    writer.close()

    uris = {
        "parquet:a.parquet?nulls=default&fields=image": ["", ["width", "split", "ok"]],
        "parquet:a.parquet?fields=image,ok": ["", everything], "hf:hf?fields=text": ["", everything],
        "wds:a.tar": ["json.", everything], "wds:a.tar?fields=jpg": ["json.", everything],
        "mds:mds": ["", ["width", "split"]], "mds:mds?fields=image,label": ["", ["width", "split"]],
        "tfrecord:a.tfrecord?text=split": ["", ["width", "split"]],
    }  # fmt: skip
    (out / "uris.json").write_text(json.dumps(uris))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
