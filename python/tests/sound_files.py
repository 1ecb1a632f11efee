"""Datasets of sound for table_files.py: written by the formats' own writers, and read by soundfile."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
from table_told import finish, sized


def sound_files(rng: np.random.Generator, pick: random.Random, n: int) -> tuple[list[bytes], list[tuple[Any, Any]]]:
    """Files of soundfile, and what it reads of them: samples as [channels, frames], and the rate."""
    import soundfile

    files, read = [], []
    for _ in range(n):
        data = rng.integers(-(2**31), 2**31, (pick.randint(1, sized(50, 400)), pick.randint(1, 2)), dtype=np.int32)
        file, rate, kind = io.BytesIO(), pick.choice([8000, 44100]), pick.choice(["PCM_16", "PCM_24"])
        soundfile.write(file, data, rate, format=pick.choice(["WAV", "FLAC"]), subtype=kind)
        files.append(file.getvalue())
        samples, rate = soundfile.read(io.BytesIO(files[-1]), dtype="float32", always_2d=True)
        read.append((np.ascontiguousarray(samples.T), np.int64(rate)))
    return files, read


def sounds_packed(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """Sound in columns of bytes of MosaicML's writer, in values of py-lmdb and in features of the package tfrecord."""
    import lmdb as module
    import soundfile
    from streaming import LocalDataset, MDSWriter
    from tfrecord.reader import tfrecord_loader
    from tfrecord.writer import TFRecordWriter

    files, read = sound_files(rng, pick, sized(6, pick.randint(37, 60)))
    words = ["wörter " * pick.randint(0, 3) for _ in files]
    columns = {"clip": "bytes", "text": "str", "n": "int"}
    for codec in ("zstd", None):
        folder = out / f"mds_sounds{codec or ''}"
        with MDSWriter(out=str(folder), columns=columns, size_limit=20_000, compression=codec) as w:
            for i, file in enumerate(files):
                w.write({"clip": file, "text": words[i], "n": i})
        want = [{"clip": s, "clip_rate": r, "text": words[i], "n": np.int64(i)} for i, (s, r) in enumerate(read)]
        finish(out, folder.name, want, f"mds:{folder}?audio=clip")
    own = LocalDataset(str(folder))
    assert [own[i]["clip"] for i in range(len(own))] == files
    kept = [{"clip": f, "text": words[i], "n": np.int64(i)} for i, f in enumerate(files)]
    finish(out, "mds_sounds_bytes", kept, f"mds:{folder}")
    want = [{"n": x["n"], "clip": x["clip"], "clip_rate": x["clip_rate"]} for x in want]
    finish(out, "mds_sounds_chosen", want, f"mds:{folder}?audio=clip&fields=n,clip")

    folder = out / "lmdb_sounds"
    env = module.open(str(folder), map_size=1 << 28)
    with env.begin(write=True) as txn:
        for i, file in enumerate(files):
            txn.put(f"{i:04}".encode(), file)
        txn.put(b"__len__", b"%d" % len(files))
    with env.begin() as txn:
        assert [bytes(v) for k, v in txn.cursor() if k != b"__len__"] == files
    env.close()
    want = [{"key": f"{i:04}", "audio": s, "audio_rate": r} for i, (s, r) in enumerate(read)]
    finish(out, "lmdb_sounds", want, f"lmdb:{folder}")
    kept = [{"key": f"{i:04}", "value": f} for i, f in enumerate(files)]
    finish(out, "lmdb_sounds_bytes", kept, f"lmdb:{folder}?value=bytes")
    finish(out, "lmdb_sounds_rate", [{"audio_rate": r} for _, r in read], f"lmdb:{folder}?fields=audio_rate")

    env = module.open(str(out / "lmdb_mixed"), map_size=1 << 20)  # sound, and what is none
    four = io.BytesIO()
    soundfile.write(four, np.zeros(4, np.int16), 8000, format="WAV")
    with env.begin(write=True) as txn:
        for key, value in ((b"a", four.getvalue()), (b"b", four.getvalue()), (b"c", b"text")):
            txn.put(key, value)
    env.close()

    folder = out / "tfrecord_sounds"
    folder.mkdir()
    writer = TFRecordWriter(str(folder / "a.tfrecord"))
    for i, file in enumerate(files):
        writer.write({"clip": (file, "byte"), "other": (file, "byte"), "other_rate": (i, "int"), "n": ([i, i], "int")})
    writer.close()
    assert [bytes(r["clip"]) for r in tfrecord_loader(str(folder / "a.tfrecord"), None)] == files
    one = [{"clip": s, "clip_rate": r} for s, r in read]
    more = [
        {"other": s, "other_rate": np.int64(i), "n": np.array([i, i])}  # a feature of that name stays what it is
        for i, (s, _) in enumerate(read)
    ]
    finish(out, "tfrecord_sounds", [x | y for x, y in zip(one, more, strict=True)], f"tfrecord:{folder}")
    kept = [{**x, "clip": f} for x, f in zip(more, files, strict=True)]
    finish(out, "tfrecord_sounds_raw", kept, f"tfrecord:{folder}?raw=clip")
    finish(out, "tfrecord_sounds_chosen", one, f"tfrecord:{folder}?fields=clip")
    want = [{"clip_rate": r, "other_rate": x["other_rate"]} for (_, r), x in zip(read, more, strict=True)]
    finish(out, "tfrecord_sounds_rates", want, f"tfrecord:{folder}?fields=clip_rate,other_rate")
    packed = out / "tfrecord_sounds_gzip"
    packed.mkdir()
    (packed / "a.tfrecord").write_bytes(gzip.compress((folder / "a.tfrecord").read_bytes()))
    finish(out, "tfrecord_sounds_gzip", one, f"tfrecord:{packed}?audio=clip&fields=clip")


def sounds(out: Path, rng: np.random.Generator, pick: random.Random) -> None:
    """Hugging Face's Audio, saved by datasets as Arrow and as Parquet; and a column of bytes that ?audio= names. The
    files are soundfile's, which reads them, too.
    """
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    files, read = sound_files(rng, pick, sized(4, pick.randint(5, 20)))
    features = datasets.Features({"audio": datasets.Audio(decode=False), "n": datasets.Value("int64")})
    rows = {"audio": [{"bytes": f, "path": None} for f in files], "n": list(range(len(files)))}
    data = datasets.Dataset.from_dict(rows, features=features)
    want = [{"audio": s, "audio_rate": r, "n": np.int64(i)} for i, (s, r) in enumerate(read)]
    data.save_to_disk(str(out / "sounds"), num_shards=2)
    finish(out, "sounds_hf", want, f"hf:{out}/sounds")
    data.to_parquet(str(out / "sounds.parquet"), batch_size=pick.randint(2, 9))
    finish(out, "sounds_parquet", want, f"parquet:{out}/sounds.parquet")
    kept = [{"audio": f, "n": np.int64(i)} for i, f in enumerate(files)]
    finish(out, "sounds_raw", kept, f"parquet:{out}/sounds.parquet?raw=audio")
    pq.write_table(pa.table({"clip": files}), out / "clips.parquet")
    finish(out, "sounds_bytes", [{"clip": f} for f in files], f"parquet:{out}/clips.parquet")
    want = [{"clip": s, "clip_rate": r} for s, r in read]
    finish(out, "sounds_named", want, f"parquet:{out}/clips.parquet?audio=clip")
    finish(out, "sounds_chosen", want, f"parquet:{out}/clips.parquet?audio=clip&fields=clip")
    own = [i % 3 for i in range(len(files))]
    pq.write_table(pa.table({"clip_rate": own, "clip": files}), out / "rated.parquet")
    want = [{"clip": s, "clip_rate": np.int64(i)} for (s, _), i in zip(read, own, strict=True)]
    finish(out, "sounds_rated", want, f"parquet:{out}/rated.parquet?audio=clip&fields=clip")
