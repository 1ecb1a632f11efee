"""Writes datasets of records with their formats' own writers, and reads them with their own readers; run by tests in
the environment that internal/tools/setup.sh makes of internal/tools/python/formats.txt.

    table_files.py OUT SEED[,SEED...] [FORMAT...]

For each seed and format it writes OUT/SEED/FORMAT and OUT/SEED/FORMAT.json: for each sample, in order,
{field: [dtype, dims, sha256]}; the dtype of images and bytes is "bytes", of text "text"; behind an image file come its
pixels, told the same way. OUT/SEED/FORMAT.uri is what larder is to read.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sound_files import sounds, sounds_packed
from table_told import finish, sized


def image(rng: np.random.Generator, kind: str = "PNG") -> bytes:
    """An image file of odd sizes."""
    h, w = rng.integers(1, sized(9, 60), 2)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)).save(out, kind)
    return out.getvalue()


def tfrecord(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """The writer and reader of the package tfrecord."""
    from tfrecord.reader import tfrecord_loader
    from tfrecord.writer import TFRecordWriter

    folder = out / "tfrecord"
    folder.mkdir()
    shards = pick.randint(1, 3)
    for s in range(shards):
        writer = TFRecordWriter(str(folder / f"train.tfrecord-{s:05}-of-{shards:05}"))
        for _ in range(sized(3, pick.randint(5, 20))):
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

    # What TFRecordOptions compresses: TensorFlow is not there, and its files are those bytes in one stream of zlib.
    files = [(path.name, path.read_bytes()) for path in sorted(folder.iterdir())]
    for name in ("gzip", "zlib"):
        packed = out / f"tfrecord_{name}"
        packed.mkdir()
        for file, plain in files:
            if name == "zlib":
                cut = pick.choice([0, len(plain) // 2])  # a second stream, as of a writer that was opened again
                parts = [zlib.compress(plain[:cut], 1), zlib.compress(plain[cut:])] if cut else [zlib.compress(plain)]
                (packed / file).write_bytes(b"".join(parts))
            else:
                path = packed / (file + pick.choice(["", ".gz"]))
                path.write_bytes(gzip.compress(plain[:100]) + gzip.compress(plain[100:]))
                own = list(tfrecord_loader(str(path), None, compression_type="gzip"))
                assert len(own) == len(list(tfrecord_loader(str(folder / file), None)))
        finish(out, f"tfrecord_{name}", rows, f"tfrecord:{packed}?text=name")


def lmdb(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """py-lmdb; values on overflow pages and inside leaves, some deleted and written again."""
    import lmdb as module

    subdir = pick.random() < 0.5
    folder = out / ("lmdb" if subdir else "images.mdb")
    env = module.open(str(folder), map_size=1 << 28, subdir=subdir)
    n = sized(8, pick.randint(30, 400))
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
        for i in range(sized(8, pick.randint(200, 500))):
            txn.put(i.to_bytes(4, "big"), ("wörter " * pick.randint(1, 90)).encode(), db=words)
            txn.put(str(i).encode(), b"x", db=other)
    with env.begin() as txn:
        rows = [{"key": "0x" + k.hex(), "value": v.decode()} for k, v in txn.cursor(db=words)]
    env.close()
    finish(out, "lmdb_text", rows, f"lmdb:{folder}?db=words&value=text")


def lmdb_msgpack(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """An image and its label in msgpack, as Joader's [[IMAGE], LABEL] and as other scripts nest them; some with the
    package's strings of before it knew bytes.
    """
    import lmdb as module
    import msgpack

    folder = out / "lmdb_msgpack"
    env = module.open(str(folder), map_size=1 << 26)
    with env.begin(write=True) as txn:
        for i in range(sized(6, pick.randint(20, 60))):
            data, label = image(rng, pick.choice(["PNG", "JPEG"])), pick.choice([0, 1, -1, 999, 2**31 - 1])
            shape = pick.choice([[[data], label], [label, data], {"image": data, "label": label}])
            txn.put(f"{i * 7:04}".encode(), msgpack.packb(shape, use_bin_type=pick.random() < 0.7))
        txn.put(b"__len__", msgpack.packb(i + 1))
    rows = []
    with env.begin() as txn:
        for key, packed in txn.cursor():
            if key == b"__len__":
                continue
            read = msgpack.unpackb(packed, raw=True)
            flat = list(read.values()) if isinstance(read, dict) else read
            flat = [x[0] if isinstance(x, list) else x for x in flat]
            (file,) = (x for x in flat if isinstance(x, bytes))
            (label,) = (x for x in flat if isinstance(x, int))
            rows.append({"key": key.decode(), "image": file, "label": np.int64(label)})
    env.close()
    finish(out, "lmdb_msgpack", rows, f"lmdb:{folder}?value=msgpack")


def lmdb_bytes(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """Values of any bytes, some of them on overflow pages, under keys of text and of bytes."""
    import lmdb as module

    env = module.open(str(out / "bytes.mdb"), map_size=1 << 26, subdir=False)
    with env.begin(write=True) as txn:
        for i in range(sized(6, pick.randint(30, 90))):
            key = pick.choice([str(i).encode(), i.to_bytes(4, "little"), f"größe{i}".encode()])
            txn.put(key, b"\0" + rng.bytes(pick.choice(sized([0, 1, 40, 2000, 4500], [0, 1, 40, 2000, 9000]))))
    with env.begin() as txn:
        rows = []
        for k, v in txn.cursor():
            named = k.decode() if (k.isascii() and b"\0" not in k) or k.startswith(b"gr") else "0x" + k.hex()
            rows.append({"key": named, "value": bytes(v)})
    env.close()
    finish(out, "lmdb_bytes", rows, f"lmdb:{out}/bytes.mdb?value=bytes")


def hf_dataset(rng: np.random.Generator, pick: random.Random) -> Any:
    """A dataset with every kind of column that larder reads."""
    import datasets

    n = sized(6, pick.randint(20, 90))
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "owl"]),
            "text": datasets.Value("string"),
            "tokens": datasets.Sequence(datasets.Value("int32")),
            "box": datasets.Sequence(datasets.Value("float32"), length=4),
            "grid": datasets.Array2D(shape=(2, 3), dtype="float64"),
            "flag": datasets.Value("bool"),
            "raw": datasets.Value("binary"),
            "small": datasets.Value("uint16"),
            "pair": {"left": datasets.Value("float16"), "right": datasets.Value("int8")},
        }
    )
    rows = {
        "image": [{"bytes": image(rng), "path": None} for _ in range(n)],
        "label": rng.integers(0, 3, n).tolist(),
        "text": ["wörter " * pick.randint(0, 40) for _ in range(n)],
        "tokens": [rng.integers(-9, 9, pick.randint(0, 30)).tolist() for _ in range(n)],
        "box": rng.random((n, 4)).astype(np.float32).tolist(),
        "grid": rng.random((n, 2, 3)).tolist(),
        "flag": [pick.random() < 0.5 for _ in range(n)],
        "raw": [rng.bytes(pick.randint(0, 99)) for _ in range(n)],
        "small": rng.integers(0, 2**16, n).tolist(),
        "pair": [{"left": float(np.float16(rng.random())), "right": int(rng.integers(-128, 128))} for _ in range(n)],
    }
    return datasets.Dataset.from_dict(rows, features=features)


def hf_rows(dataset: Any) -> list[dict[str, Any]]:
    """Its samples, as its own reader gives them."""
    import datasets

    rows = []
    for r in dataset.cast_column("image", datasets.Image(decode=False)):
        row = {"image": r["image"]["bytes"], "text": r["text"], "raw": r["raw"]}
        row |= {"pair.left": np.float16(r["pair"]["left"]), "pair.right": np.int8(r["pair"]["right"])}
        row |= {"label": np.int64(r["label"]), "flag": np.bool_(r["flag"]), "small": np.uint16(r["small"])}
        row |= {"tokens": np.array(r["tokens"], np.int32), "box": np.array(r["box"], np.float32)}
        rows.append(row | {"grid": np.array(r["grid"], np.float64)})
    return rows


def hf(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """save_to_disk of a part of a dict, in several files; then with the indices that older versions wrote."""
    import datasets
    import pyarrow as pa

    data = hf_dataset(rng, pick)
    folder = out / "hf"
    datasets.DatasetDict(train=data, test=data.select(range(3))).save_to_disk(
        str(folder), num_shards={"train": pick.randint(1, 4), "test": 1}
    )
    finish(out, "hf", hf_rows(datasets.load_from_disk(str(folder))["train"]), f"hf:{folder}?split=train")

    folder = out / "hf_indices"
    data.save_to_disk(str(folder), num_shards=3)
    order = rng.permutation(len(data))[: len(data) // 2 + 1]
    indices = pa.table({"indices": pa.array(order, pa.uint64())})
    with pa.OSFile(str(folder / "indices.arrow"), "wb") as f, pa.ipc.new_stream(f, indices.schema) as writer:
        writer.write_table(indices, max_chunksize=7)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "_indices_data_files": [{"filename": "indices.arrow"}]}))
    finish(out, "hf_indices", hf_rows(data.select(order)), f"hf:{folder}")


def in_runs(n: int, pick: random.Random) -> np.ndarray:
    """Booleans of which neighbours are often alike: writers store such runs in another way than those that are not."""
    lengths = [pick.choice([1, 1, 2, 9, 17, 40]) for _ in range(n + 1)]
    return np.repeat(np.arange(n + 1) % 2 == 0, lengths)[:n]


def parquet(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """pyarrow, in several files of several row groups, with the codecs that are read; then to_parquet of datasets."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = out / "parquet"
    folder.mkdir()
    rows = []
    for k in range(pick.randint(1, 3)):
        n = sized(8, pick.randint(20, 120))
        flags = in_runs(n, pick)
        part = [
            {
                "id": np.int64(i),
                "score": np.float32(rng.random()),
                "flag": flags[i],
                "marks": in_runs(pick.randint(0, 30), pick),
                "small": np.int8(rng.integers(-128, 128)),
                "word": "wörter " * pick.randint(0, 9),
                "png": image(rng),
                "tokens": rng.integers(0, 2**16, pick.randint(0, 40)).astype(np.uint16),
                "box": rng.random(4),
                "grid": rng.random((pick.randint(0, 3), 2)).astype(np.float32),
            }
            for i in range(n)
        ]
        for p in part:
            p["grid"] = p["grid"] if len(p["grid"]) else np.zeros((0, 0), np.float32)
        types = {"id": pa.int64(), "score": pa.float32(), "flag": pa.bool_(), "small": pa.int8(), "word": pa.string()}
        types |= {"png": pa.binary(), "tokens": pa.list_(pa.uint16()), "box": pa.list_(pa.float64(), 4)}
        types |= {"marks": pa.list_(pa.bool_()), "grid": pa.list_(pa.list_(pa.float32()))}
        columns = {
            c: pa.array([p[c].tolist() if isinstance(p[c], np.ndarray) else p[c] for p in part], t)
            for c, t in types.items()
        }
        pq.write_table(
            pa.table(columns),
            str(folder / f"part-{k}.parquet"),
            row_group_size=sized(3, pick.randint(3, 50)),
            compression=pick.choice(["snappy", "zstd", "gzip", "brotli", "none"]),
            data_page_version=pick.choice(["1.0", "2.0"]),
            use_dictionary=pick.random() < 0.5,
            data_page_size=pick.choice([300, 1 << 20]),
        )
        rows += part
    read = pq.ParquetDataset(str(folder)).read().to_pylist()
    for r, p in zip(read, rows, strict=True):  # its own reader gives lists of Python numbers
        assert r["tokens"] == p["tokens"].tolist() and r["png"] == p["png"] and r["word"] == p["word"]
    finish(out, "parquet", rows, f"parquet:{folder}")

    data = hf_dataset(rng, pick)
    data.to_parquet(str(out / "hf.parquet"), batch_size=sized(4, pick.randint(5, 40)))
    finish(out, "parquet_hf", hf_rows(data), f"parquet:{out}/hf.parquet")


def pixels(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """Pixels as lists of lists of three, in Parquet and in Arrow: they have the shape of images, and are no files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"id": np.int64(i), "pix": rng.integers(0, 256, (pick.randint(1, 5), pick.randint(1, 6), 3)).astype(np.uint8)}
        for i in range(sized(7, pick.randint(5, 30)))
    ]
    kind = pa.list_(pa.list_(pa.list_(pa.uint8(), 3)))
    columns = {"id": pa.array([r["id"] for r in rows]), "pix": pa.array([r["pix"].tolist() for r in rows], kind)}
    table = pa.table(columns)
    pq.write_table(table, str(out / "pixels.parquet"), row_group_size=sized(3, pick.randint(3, 20)))
    assert pq.read_table(str(out / "pixels.parquet")).to_pylist() == table.to_pylist()
    finish(out, "pixels_parquet", rows, f"parquet:{out}/pixels.parquet")
    with pa.ipc.new_stream(str(out / "pixels.arrow"), table.schema) as w:
        w.write_table(table, max_chunksize=sized(3, pick.randint(3, 20)))
    with pa.ipc.open_stream(str(out / "pixels.arrow")) as r:
        assert r.read_all().to_pylist() == table.to_pylist()
    finish(out, "pixels_arrow", rows, f"hf:{out}/pixels.arrow")


def told_column(x: Any, kind: Any) -> Any:
    """What larder gives for a value of pyarrow: lists of text are JSON, decimals floats or text, times numbers."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return told_column(x, kind.value_type)
    inner = kind
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner = inner.value_type
    if types.is_dictionary(inner):
        inner = inner.value_type
    if inner != kind and (types.is_string(inner) or types.is_large_string(inner)):
        return json.dumps(x, ensure_ascii=False, separators=(",", ":"))
    if inner != kind:
        return np.array(x, inner.to_pandas_dtype())
    if types.is_decimal(kind):
        return np.float64(x) if kind.precision <= 15 else format(x, "f")
    if types.is_temporal(kind):
        wide = types.is_timestamp(kind) or types.is_duration(kind) or kind.bit_width == 64
        return (np.int64 if wide else np.int32)(pa.scalar(x, kind).cast(pa.int64() if wide else pa.int32()).as_py())
    return x if isinstance(x, str | bytes) else kind.to_pandas_dtype()(x)


def told_null(kind: Any) -> Any:
    """What larder gives for a null in a column of a type, with ?nulls=default."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return told_null(kind.value_type)
    if pa.types.is_nested(kind):
        return told_column([], kind)
    if pa.types.is_decimal(kind):
        return np.float64(np.nan) if kind.precision <= 15 else ""
    if pa.types.is_temporal(kind):
        return np.int64(0) if kind.bit_width == 64 else np.int32(0)
    return {"string": "", "large_string": "", "binary": b"", "large_binary": b""}.get(str(kind), np.int64(0))


def columns_table(rng: np.random.Generator, pick: random.Random, n: int) -> Any:
    """A table with the types that are neither numbers, text nor arrays of numbers by themselves."""
    import datetime as dt
    import decimal

    import pyarrow as pa

    words = ["", "wörter", 'a "quote"', "back\\slash", "tab\there", "nl\n\u0001\u007f", "日本"]

    def some(most: int) -> list[str | None]:
        return [pick.choice([*words, None]) for _ in range(pick.randint(0, most))]

    def number(digits: int, scale: int) -> decimal.Decimal:
        return decimal.Decimal(pick.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(-scale, decimal.Context(99))

    def times(low: int, high: int) -> list[int]:
        return [pick.randint(low, high) for _ in range(n)]

    texts = pa.array([some(5) for _ in range(n)], pa.list_(pa.string()))
    colours = [pick.choice(["red", "green", "größe"]) for _ in range(n)]
    return pa.table(
        {
            "texts": texts,
            "large": pa.array([some(4) for _ in range(n)], pa.large_list(pa.large_string())),
            "nested": pa.array(
                [[pick.choice([None, some(3), []]) for _ in range(pick.randint(0, 3))] for _ in range(n)],
                pa.list_(pa.list_(pa.string())),
            ),
            "pair": pa.array([[pick.choice(words), pick.choice(words)] for _ in range(n)], pa.list_(pa.string(), 2)),
            "coded": pa.array([some(4) for _ in range(n)], pa.list_(pa.string())).cast(
                pa.list_(pa.dictionary(pa.int32(), pa.string()))
            ),
            "box": pa.array(rng.random((n, 4)).tolist(), pa.list_(pa.float64(), 4)),
            "numbers": pa.array([rng.integers(0, 9, pick.randint(0, 5)).tolist() for _ in range(n)]).cast(
                pa.large_list(pa.int16())
            ),
            "colour": pa.array(colours).dictionary_encode(),
            "size": pa.DictionaryArray.from_arrays(pa.array(times(0, 3), pa.int8()), pa.array([7, 1 << 40, -3, 0])),
            "code": pa.DictionaryArray.from_arrays(pa.array(times(0, 1), pa.uint16()), pa.array([b"\x00\xff", b""])),
            "long": pa.array([pick.choice(words) for _ in range(n)], pa.large_string()),
            "bytes": pa.array([rng.bytes(pick.randint(0, 9)) for _ in range(n)], pa.large_binary()),
            "price": pa.array([number(9, 2) for _ in range(n)], pa.decimal128(9, 2)),
            "small": pa.array([number(15, 15) for _ in range(n)], pa.decimal128(15, 15)),
            "exact": pa.array([number(38, 18) for _ in range(n)], pa.decimal128(38, 18)),
            "huge": pa.array([number(60, 3) for _ in range(n)], pa.decimal256(60, 3)),
            "date": pa.array(times(-9999, 99999), pa.int32()).cast(pa.date32()),
            "time": pa.array(times(0, 86399999), pa.int32()).cast(pa.time32("ms")),
            "moment": pa.array(times(-(2**40), 2**40), pa.timestamp("us", tz="Europe/Berlin")),
            "exactly": pa.array(times(-(2**60), 2**60), pa.timestamp("ns")).cast(pa.timestamp("ns")),
            "span": pa.array(times(0, 2**50), pa.duration("us")),
            "day": pa.array([dt.date(1970 + pick.randint(0, 99), 1, 2) for _ in range(n)]),
        }
    )


def columns(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """pyarrow's other types in Parquet, with and without the schema of Arrow, with old timestamps, and in Arrow files
    with dictionaries that change and grow; pandas' categories.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    def rows_of(table: Any) -> list[dict[str, Any]]:
        names = dict(zip(table.column_names, table.schema.types, strict=True))
        lists = {k: table[k].to_pylist() for k in names}
        for k, t in names.items():
            if pa.types.is_temporal(t) and k != "day":
                lists[k] = table[k].combine_chunks().view(pa.int64() if t.bit_width == 64 else pa.int32()).to_pylist()
        null = {k: table[k].is_null().to_pylist() for k in names}
        return [
            {k: told_null(t) if null[k][i] else told_column(lists[k][i], t) for k, t in names.items()}
            for i in range(len(table))
        ]

    table = columns_table(rng, pick, sized(9, pick.randint(20, 90)))
    plain = [c for c in table.column_names if c not in ("pair", "box")]  # without Arrow's schema they have any length
    for name, keep in (("columns", True), ("columns_plain", False)):
        path = out / f"{name}.parquet"
        part = table if keep else table.select(plain)
        group, page = sized(5, pick.randint(7, 40)), pick.choice(["1.0", "2.0"])
        pq.write_table(part, path, store_schema=keep, row_group_size=group, data_page_version=page)
        without = [] if keep else ["span"]  # a number then
        assert pq.read_table(path).drop_columns(without).to_pylist() == part.drop_columns(without).to_pylist()
        finish(out, name, rows_of(part), f"parquet:{path}")
    some = [i if pick.random() < 0.6 else None for i in range(len(table))]
    holes = table.drop_columns("box").take(pa.array(some, pa.int64()))  # a list of fixed length has no default
    without = holes.drop_columns("pair")  # pyarrow writes no nulls of fixed length into Parquet
    pq.write_table(without, out / "nulls.parquet", row_group_size=sized(5, pick.randint(7, 40)))
    finish(out, "columns_nulls", rows_of(without), f"parquet:{out}/nulls.parquet?nulls=default")
    with pa.OSFile(str(out / "nulls.arrow"), "wb") as f, pa.ipc.new_file(f, holes.schema) as w:
        w.write_table(holes, max_chunksize=sized(5, pick.randint(7, 40)))
    finish(out, "columns_nulls_arrow", rows_of(holes), f"hf:{out}/nulls.arrow?nulls=default")
    old = table.select(["exactly", "colour"])
    pq.write_table(old, out / "old.parquet", use_deprecated_int96_timestamps=True, store_decimal_as_integer=True)
    assert pq.read_table(out / "old.parquet")["exactly"].to_pylist() == old["exactly"].to_pylist()
    finish(out, "columns_old", rows_of(old), f"parquet:{out}/old.parquet")
    short = table.select(["price", "small", "exact"])
    pq.write_table(short, out / "decimals.parquet", store_decimal_as_integer=True)
    assert pq.read_table(out / "decimals.parquet").to_pylist() == short.to_pylist()
    finish(out, "columns_decimals", rows_of(short), f"parquet:{out}/decimals.parquet")

    kinds = pd.Categorical([pick.choice(["a", "bb", "ü"]) for _ in range(30)])
    frame = pd.DataFrame({"kind": kinds, "n": pd.Categorical(rng.integers(0, 3, 30) * 1000), "x": range(30)})
    frame.to_parquet(out / "pandas.parquet")
    read = pd.read_parquet(out / "pandas.parquet")
    rows = [{"kind": k, "n": np.int64(n), "x": np.int64(x)} for k, n, x in read.itertuples(index=False)]
    finish(out, "columns_pandas", rows, f"parquet:{out}/pandas.parquet")

    with pa.OSFile(str(out / "columns.arrow"), "wb") as f, pa.ipc.new_file(f, table.schema) as w:
        w.write_table(table, max_chunksize=sized(5, pick.randint(7, 40)))
    with pa.OSFile(str(out / "columns.arrow")) as f, pa.ipc.open_file(f) as r:
        assert r.read_all().to_pylist() == table.to_pylist()
    finish(out, "columns_arrow", rows_of(table), f"hf:{out}/columns.arrow")
    for deltas in (False, True):  # each batch has another dictionary, or more of the same
        path, parts, values = out / f"stream{deltas:d}.arrow", [], []
        for k in range(pick.randint(2, 5)):
            values = (values if deltas else []) + [f"{k} {v}" for v in range(pick.randint(1, 4))]
            numbers = [pick.choice([None, *range(len(values))]) for _ in range(9)]
            coded = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int16()), pa.array(values))
            parts.append(pa.record_batch({"word": coded, "n": pa.array(range(9))}))
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
        with pa.OSFile(str(path), "wb") as f, pa.ipc.new_stream(f, parts[0].schema, options=options) as w:
            for part in parts:
                w.write_batch(part)
        with pa.ipc.open_stream(str(path)) as r:
            read = [row for batch in r for row in batch.to_pylist()]
        rows = [{"word": row["word"] or "", "n": np.int64(row["n"])} for row in read]
        finish(out, f"columns_stream{deltas:d}", rows, f"hf:{path}?nulls=default")


def fasta(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """Biopython's writer, plain and with its bgzip, with the index that pyfaidx makes and without; pyfaidx's reader."""
    from Bio import SeqIO, bgzf
    from Bio.Seq import Seq
    from Bio.SeqRecord import SeqRecord
    from pyfaidx import Fasta

    letters, longest = pick.choice(["ACDEFGHIKLMNPQRSTVWY", "ACGTN", "acgtn"]), sized(200, 4000)
    for name, packed, index in (("fasta", False, False), ("fasta_fai", False, True), ("fasta_bgzip", True, False)):
        folder = out / name
        folder.mkdir()
        path = folder / ("all.fa.gz" if packed else "all.fa")
        parts = [
            SeqRecord(
                Seq("".join(pick.choices(letters, k=pick.randint(1, longest)))), id=f"s{i}|x", description="a word"
            )
            for i in range(sized(5, pick.randint(20, 60)))
        ]
        with bgzf.open(str(path), "w") if packed else path.open("w") as f:
            SeqIO.write(parts, f, "fasta")
        with Fasta(str(path)) as own:
            rows = [{"id": r.name, "sequence": str(r)} for r in own]
        if not index:
            for made in folder.glob("*.fai"):
                made.unlink()
        if packed:
            codes = [np.frombuffer(r["sequence"].encode(), np.uint8) for r in rows]
            rows = [{"id": r["id"], "sequence": c} for r, c in zip(rows, codes, strict=True)]
        finish(out, name, rows, f"fasta:{folder}" + ("?sequence=uint8" if packed else ""))


FORMATS: dict[str, Callable[[Path, np.random.Generator, random.Random], None]] = {
    "tfrecord": tfrecord,
    "lmdb": lmdb,
    "lmdb_text": lmdb_text,
    "lmdb_msgpack": lmdb_msgpack,
    "lmdb_bytes": lmdb_bytes,
    "hf": hf,
    "parquet": parquet,
    "fasta": fasta,
    "pixels": pixels,
    "columns": columns,
    "sounds": sounds,
    "sounds_packed": sounds_packed,
}


if __name__ == "__main__":
    for seed in sys.argv[2].split(","):
        for chosen in sys.argv[3:] or FORMATS:
            folder = Path(sys.argv[1]) / seed
            folder.mkdir(parents=True, exist_ok=True)
            FORMATS[chosen](folder, np.random.default_rng(int(seed)), random.Random(seed))
