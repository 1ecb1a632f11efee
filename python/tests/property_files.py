"""Writes the same samples with properties by their formats' own writers; run by test_e2e_properties.py in the
environment that internal/tools/setup.sh makes of internal/tools/python/formats.txt.

    property_files.py OUT SEED

Writes OUT/want.json: the samples in order, each {width, ratio (or null), split, ok}; OUT/uris.json: for each uri the
prefix of its properties, and the names that it has; OUT/own.json: for uris with properties that only their format has,
expressions and the samples that they select.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import webdataset
from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord
from datasets import Dataset
from PIL import Image
from record_told import sized
from streaming import MDSWriter
from tfrecord.writer import TFRecordWriter


def picture(rng: np.random.Generator) -> bytes:
    """A JPEG file."""
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(out, "JPEG")
    return out.getvalue()


def texts(out: Path, rows: list[dict[str, Any]], images: list[bytes]) -> dict[str, Any]:
    """Python's csv, pandas and Python's json: tables, and lists of images."""
    n, names = len(rows), list(rows[0])
    (out / "img").mkdir()
    for i, b in enumerate(images):
        (out / "img" / f"{i}.jpg").write_bytes(b)
    with (out / "a.csv").open("w", newline="") as f, (out / "list.csv").open("w", newline="") as g:
        table, listed = csv.writer(f), csv.writer(g)
        table.writerow([*names, "text"])
        listed.writerow([*names, "path"])
        for i, r in enumerate(rows):
            table.writerow([*r.values(), "x" * i])  # None is an empty cell
            listed.writerow([*r.values(), f"img/{i}.jpg"])
    frame = pd.DataFrame({**{k: [r[k] for r in rows] for k in names}, "text": ["y"] * n})
    frame.to_csv(out / "b.csv.gz", sep=";", index=False)
    full = [k for k in names if k != "ratio"]  # lines of JSON have no null
    lines = [{**{k: r[k] for k in full}, "meta": r, "text": "z"} for r in rows]
    text = "".join(json.dumps(x) + "\n" for x in lines)
    (out / "a.jsonl").write_text(text)
    (out / "b.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (out / "list.jsonl").write_text(
        "".join(json.dumps({"image": f"img/{i}.jpg", **x}) + "\n" for i, x in enumerate(lines))
    )
    return {
        "csv:a.csv": ["", names], "csv:a.csv?fields=text": ["", names], "imagefiles:list.csv": ["", names],
        "csv:b.csv.gz?delimiter=semicolon&fields=text,ok": ["", names],
        "jsonl:a.jsonl": ["", full], "jsonl:a.jsonl?fields=text": ["meta.", names],
        "jsonl:b.jsonl.gz?fields=text": ["", full], "jsonl:b.jsonl.gz": ["meta.", names],
        "imagefiles:list.jsonl": ["", full],
    }  # fmt: skip


def keyed(out: Path, pick: random.Random, rows: list[dict[str, Any]], images: list[bytes]) -> tuple[Any, Any]:
    """NumPy, lmdb and Biopython; of the last two also the properties that only they have."""
    n, uris, own = len(rows), {}, {}
    ratio = np.array([np.nan if r["ratio"] is None else r["ratio"] for r in rows], "f4")
    arrays = {"width": np.array([r["width"] for r in rows], "i2"), "ok": np.array([r["ok"] for r in rows])}
    arrays |= {"ratio": ratio, "pixels": np.zeros((n, 3), "u1")}
    np.savez(out / "a.npz", **arrays)
    np.savez_compressed(out / "b.npz", **arrays)
    uris["npz:a.npz"] = uris["npz:b.npz?fields=pixels"] = ["", ["width", "ratio", "ok"]]

    labels = [pick.randint(0, 4) for _ in rows]
    values = {
        "text": [json.dumps(r).encode() for r in rows], "image": images,
        "msgpack": [msgpack.packb([[b], y]) for b, y in zip(images, labels, strict=True)],
    }  # fmt: skip
    for kind, some in values.items():
        with lmdb.open(str(out / f"lmdb-{kind}"), map_size=1 << 26) as env, env.begin(write=True) as txn:
            for i, b in enumerate(some):
                txn.put(f"{rows[i]['split'][:2]}{i:05}"[::-1].encode() if kind == "image" else f"{i:05}".encode(), b)
    uris["lmdb:lmdb-text?value=text"] = uris["lmdb:lmdb-text?value=text&fields=key"] = ["value.", list(rows[0])]
    keys = sorted(f"{r['split'][:2]}{i:05}"[::-1] for i, r in enumerate(rows))
    own["lmdb:lmdb-image"] = own["lmdb:lmdb-image?fields=image"] = {
        "property('key') ~ '*rt'": [i for i, k in enumerate(keys) if k.endswith("rt")],
        f"property('key') == '{keys[n // 2]}'": [n // 2],
    }
    own["lmdb:lmdb-msgpack?value=msgpack"] = {
        "label == 3": [i for i, y in enumerate(labels) if y == 3],
        "property('key') ~ '*7' or label in (0, 1)": [i for i, y in enumerate(labels) if i % 10 == 7 or y < 2],
    }
    own["lmdb:lmdb-msgpack?value=msgpack&fields=image"] = {
        "property('label') % 2 == 1": [i for i, y in enumerate(labels) if y % 2],
    }

    letters = ["".join(pick.choices("ACGT", k=pick.randint(1, sized(20, 200)))) for _ in rows]
    parts = [
        SeqRecord(Seq(s), id=f"{r['split'][:2]}|{i}", description=f"of {r['width']}")
        for i, (r, s) in enumerate(zip(rows, letters, strict=True))
    ]
    SeqIO.write(parts, str(out / "a.fa"), "fasta")
    own["fasta:a.fa"] = own["fasta:a.fa?fields=sequence"] = {
        "property('id') ~ 'tr|*'": [i for i, r in enumerate(rows) if r["split"] == "train"],
        "sequence ~ 'A*' and not sequence ~ '*[CG]'": [
            i for i, s in enumerate(letters) if s[0] == "A" and s[-1] in "AT"
        ],
    }
    return uris, own


def main(out: Path, seed: int) -> None:
    """Writes all of them."""
    pick, rng = random.Random(seed), np.random.default_rng(seed)
    n = sized(16, pick.randint(37, 97))
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
    with MDSWriter(out=str(out / "mds"), columns=whole, size_limit=sized(4_000, 20_000)) as m:
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
    more, own = keyed(out, pick, rows, images)
    (out / "uris.json").write_text(json.dumps({**uris, **texts(out, rows, images), **more}))
    (out / "own.json").write_text(json.dumps(own))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
