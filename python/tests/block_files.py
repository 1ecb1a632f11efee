"""Writes datasets that are read in blocks, with their formats' own writers; run by tests in the environment that
internal/tools/setup.sh makes of internal/tools/python/formats.txt.

    block_files.py OUT ROWS [SEED [FORMAT...]]

Of each format, or of those that are named, it writes OUT/FORMAT and OUT/FORMAT.uri, what larder is to read. Row i has
a number, a text and an image, all of which `row` makes; blocks are very uneven.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def row(i: int) -> dict[str, Any]:
    """What row i has; the image is a PNG, which gives its pixels back."""
    pixels = np.full((3 + i % 5, 4, 3), i % 251, np.uint8)
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    return {"number": i, "text": f"row {i} " * (1 + i % 7), "image": png.getvalue()}


def groups(rows: int, pick: random.Random) -> list[list[dict[str, Any]]]:
    """All rows in pieces of unlike sizes."""
    out, at = [], 0
    while at < rows:
        n = min(rows - at, pick.choice([1, 2, 9, 14, 30]))
        out.append([row(i) for i in range(at, at + n)])
        at += n
    return out


def parquet(out: Path, rows: int, pick: random.Random) -> str:
    """Two files of row groups, by pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.mkdir()
    pieces = groups(rows, pick)
    half = len(pieces) // 2
    for name, some in (("a", pieces[:half]), ("b", pieces[half:])):
        schema = pa.Table.from_pylist(some[0]).schema
        with pq.ParquetWriter(out / f"{name}.parquet", schema, compression="zstd") as w:
            for piece in some:
                w.write_table(pa.Table.from_pylist(piece, schema))
    return f"parquet:{out}"


def hf(out: Path, rows: int, pick: random.Random) -> str:
    """Record batches of an Arrow stream, by pyarrow, as Hugging Face datasets caches them."""
    import pyarrow as pa

    out.mkdir()
    schema = pa.Table.from_pylist([row(0)]).schema
    with pa.ipc.new_stream(out / "rows.arrow", schema) as w:
        for piece in groups(rows, pick):
            w.write_table(pa.Table.from_pylist(piece, schema))
    return f"hf:{out}/rows.arrow"


def shuffled(out: Path, rows: int, pick: random.Random) -> str:
    """Rows that datasets shuffled and saved with the indices of their order."""
    import datasets

    whole = datasets.Dataset.from_list([row(i) for i in range(rows)])
    order = list(range(rows))
    pick.shuffle(order)
    whole.select(order).save_to_disk(out)
    return f"hf:{out}"


def mds(out: Path, rows: int, _pick: random.Random) -> str:
    """Shards of mosaicml-streaming."""
    from streaming import MDSWriter

    columns = {"number": "int", "text": "str", "image": "png"}
    with MDSWriter(out=str(out), columns=columns, size_limit=4 << 10) as w:
        for i in range(rows):
            r = row(i)
            w.write({**r, "image": Image.open(io.BytesIO(r["image"]))})
    return f"mds:{out}?fields=number,text,image"


def shards(out: Path, rows: int, _pick: random.Random) -> str:
    """Compressed shards of mosaicml-streaming."""
    from streaming import MDSWriter

    columns = {"number": "int", "text": "str", "image": "png"}
    with MDSWriter(out=str(out), columns=columns, size_limit=4 << 10, compression="zstd:3") as w:
        for i in range(rows):
            r = row(i)
            w.write({**r, "image": Image.open(io.BytesIO(r["image"]))})
    return f"mds:{out}?fields=number,text,image"


def tars(out: Path, rows: int, pick: random.Random) -> str:
    """Compressed tars, by webdataset."""
    import webdataset as wds

    out.mkdir()
    for n, piece in enumerate(groups(rows, pick)):
        with wds.TarWriter(str(out / f"{n:03}.tar.gz"), compress=True) as w:
            for r in piece:
                w.write({"__key__": f"{r['number']:04}", "cls": r["number"], "txt": r["text"], "png": r["image"]})
    return f"wds:{out}?fields=cls,txt,png"


def lines(out: Path, rows: int, pick: random.Random) -> str:
    """Compressed lines, by Python's json and gzip."""
    out.mkdir()
    for n, piece in enumerate(groups(rows, pick)):
        with gzip.open(out / f"{n:03}.jsonl.gz", "wt", encoding="utf-8") as f:
            f.writelines(json.dumps({k: r[k] for k in ("number", "text")}) + "\n" for r in piece)
    return f"jsonl:{out}"


def tfrecords(out: Path, rows: int, pick: random.Random) -> str:
    """TFRecords of the package tfrecord, compressed as TFRecordOptions does it; the names do not say so."""
    from tfrecord.writer import TFRecordWriter

    out.mkdir()
    for n, piece in enumerate(groups(rows, pick)):
        path = out / f"{n:03}.tfrecord"
        writer = TFRecordWriter(str(path))
        for r in piece:
            text = r["text"].encode()
            writer.write({"number": (r["number"], "int"), "text": (text, "byte"), "image": (r["image"], "byte")})
        writer.close()
        plain = path.read_bytes()
        path.write_bytes(gzip.compress(plain) if n % 2 else zlib.compress(plain))
    return f"tfrecord:{out}?text=text"


LONG = 3000  # what the text of a line of frames is repeated


def frames(out: Path, rows: int, pick: random.Random) -> str:
    """Lines in members of gzip, by Python's gzip, and in frames of zstd, by the library of pyarrow. Frames end anywhere
    in a line. What their own readers say of them is in OUT/../frames.read.
    """
    import pyarrow as pa

    out.mkdir()
    texts = [json.dumps({"number": i, "text": row(i)["text"] * LONG}) + "\n" for i in range(rows)]
    half = pick.randrange(rows // 3, 2 * rows // 3)
    codec = pa.Codec("zstd")
    for name, some in (("a.jsonl.gz", texts[:half]), ("b.jsonl.zst", texts[half:])):
        text = "".join(some).encode()
        with (out / name).open("wb") as f:
            while text:
                n = pick.randrange(1, 1 << 20)
                f.write(gzip.compress(text[:n], 1) if name.endswith("gz") else codec.compress(text[:n], asbytes=True))
                text = text[n:]
    with gzip.open(out / "a.jsonl.gz") as a, pa.CompressedInputStream(str(out / "b.jsonl.zst"), "zstd") as b:
        read = a.read() + b.read()
    (out.parent / "frames.read").write_bytes(read)
    return f"jsonl:{out}"


FORMATS = {
    **{"parquet": parquet, "hf": hf, "shuffled": shuffled, "mds": mds, "shards": shards},
    **{"tars": tars, "lines": lines, "frames": frames, "tfrecords": tfrecords},
}

if __name__ == "__main__":
    target, count = Path(sys.argv[1]), int(sys.argv[2])
    for name in sys.argv[4:] or FORMATS:
        uri = FORMATS[name](target / name, count, random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1))
        (target / f"{name}.uri").write_text(uri)
