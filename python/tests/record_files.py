"""Writes datasets of records with their own writers, and reads them with their own readers; run by
test_e2e_records.py in the environment that internal/tools/setup.sh makes of internal/tools/python/formats.txt.

    record_files.py OUT SEED

Writes the datasets below OUT, and OUT/want.json: for each uri (relative to OUT) the samples in order, each a dict of
field to what ``told`` says of its value.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import importlib.util
import io
import json
import os
import random
import struct
import sys
import types
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import soundfile
import webdataset
from PIL import Image
from record_told import sized, told
from streaming import LocalDataset, MDSWriter, StreamingDataset

Rows = list[dict[str, Any]]


def arrays(out: Path, pick: random.Random, want: dict[str, Rows]) -> None:
    """.npy and .npz."""
    rng = np.random.default_rng(pick.randrange(2**32))
    n = sized(8, pick.randint(37, 97))
    a = rng.standard_normal((n, pick.randint(1, 5), 3)).astype(pick.choice(["<f4", "<f8", "<f2", ">f4"]))
    b = rng.integers(0, 200, n).astype("u1")
    c = rng.integers(0, 2, (n, 7)).astype(bool)
    native = a.astype(a.dtype.newbyteorder("="))
    (out / "npy").mkdir()
    cut = pick.randint(1, n - 1)
    np.save(out / "npy" / "a.npy", a[:cut])
    np.save(out / "npy" / "b.npy", a[cut:])
    want["npy:npy"] = [{"value": told(x)} for x in native]
    np.savez(out / "some.npz", a=a, b=b, c=c)
    np.savez_compressed(out / "packed.npz", a=a, b=b, c=c)
    rows = [{"a": told(x), "b": told(y), "c": told(z)} for x, y, z in zip(native, b, c, strict=True)]
    want["npz:some.npz"] = want["npz:packed.npz"] = rows
    want["npz:some.npz?fields=c,b"] = [{"c": r["c"], "b": r["b"]} for r in rows]


def documents(ids: Any, starts: Any, size: int, step: int) -> list[Any]:
    """Windows that stop at documents, which begin at starts; one of a single id has no window."""
    rows = []
    for d in np.split(ids, starts[1:]):
        rows += [d[at : at + size + 1] for at in range(0, len(d) - 1, step) if at == 0 or at - step + size + 1 < len(d)]
    return rows


def together(windows: list[Any], size: int, pad: int) -> Rows:
    """Windows packed by best fit, the longest first: looks at every row for every window."""
    rows: list[tuple[int, int, list[int]]] = []  # ids that fit, when it was filled, windows
    for turn, i in enumerate(sorted(range(len(windows)), key=lambda i: -len(windows[i]))):
        n = len(windows[i])
        fits = [k for k, (left, _, _) in enumerate(rows) if left >= n]
        if fits:
            k = min(fits, key=lambda k: (rows[k][0], -rows[k][1]))
            left, _, some = rows[k]
            rows[k] = left - n, turn, [*some, i]
        else:
            rows.append((size + 1 - n, turn, [i]))
    out = []
    for some in sorted(sorted(r[2]) for r in rows):
        row = np.full(size + 1, pad, windows[0].dtype)
        doc, position = np.full(size + 1, -1, "i4"), np.zeros(size + 1, "i4")
        at = 0
        for k, i in enumerate(some):
            n = len(windows[i])
            row[at : at + n], doc[at : at + n], position[at : at + n] = windows[i], k, np.arange(n)
            at += n
        out.append({"tokens": told(row), "doc": told(doc), "position": told(position)})
    return out


def windows(ids: Any, size: int, step: int, docs: Any = None) -> Rows:
    """Windows that run on over the borders of documents."""
    rows = []
    for at in range(0, len(ids) - size, step):
        row = {"tokens": told(ids[at : at + size + 1])}
        if docs is not None:
            d = docs[at : at + size + 1]
            row["doc"] = told(np.searchsorted(np.unique(d), d).astype("i4"))
        rows.append(row)
    return rows


def tokens(out: Path, pick: random.Random, want: dict[str, Rows]) -> None:
    """Ids as nanoGPT, llm.c and Megatron write them."""
    rng = np.random.default_rng(pick.randrange(2**32))
    n, size, stride = sized(400, pick.randint(3000, 9000)), pick.randint(8, 50), pick.randint(5, 60)
    ids = rng.integers(1, 50_000, n).astype("<u2")
    ends = np.sort(rng.choice(np.arange(1, n), n // 40, replace=False))
    ids[ends - 1] = 0

    docs = np.searchsorted(ends, np.arange(n), "right")
    ids.tofile(out / "nano.bin")
    want[f"tokens:nano.bin?seq_len={size}"] = windows(ids, size, size)
    want[f"tokens:nano.bin?seq_len={size}&stride={stride}&doc=0"] = windows(ids, size, stride, docs)
    wide = ids.astype("<u4") + 70_000
    head = np.zeros(256, "<i4")
    head[:3] = 20240801, 7, n
    (out / "llm.bin").write_bytes(head.tobytes() + wide.tobytes())
    want[f"tokens:llm.bin?seq_len={size}"] = windows(wide, size, size)
    np.save(out / "ids.npy", wide.astype("i8"))
    want[f"tokens:ids.npy?seq_len={size}"] = windows(wide.astype("i8"), size, size)
    lengths = np.diff(np.concatenate([[0], ends, [n]]))
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    (out / "mega.bin").write_bytes(ids.astype("<i4").tobytes())
    (out / "mega.idx").write_bytes(
        b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(lengths), len(lengths) + 1)
        + lengths.astype("<i4").tobytes() + (4 * starts).astype("<i8").tobytes()
        + np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    )  # fmt: skip
    want[f"tokens:mega.bin?seq_len={size}&doc=idx"] = windows(ids.astype("<i4"), size, size, docs)
    borders(out, ids, starts, want, (size, stride))
    megatrons(out, pick, ids, ends, want, (size, stride))
    # A document has some sequences here, and some documents have none.
    some = np.sort(rng.choice(len(starts) + 1, len(starts) // 3))
    index = np.concatenate([[0, 0], some, [len(starts)]])
    (out / "some.bin").write_bytes((out / "mega.bin").read_bytes())
    (out / "some.idx").write_bytes(
        (out / "mega.idx").read_bytes()[: 34 + 12 * len(starts)] + index.astype("<i8").tobytes()
    )
    with open(out / "some.idx", "r+b") as f:
        f.seek(26)
        f.write(struct.pack("<Q", len(index)))
    begin = np.unique(np.concatenate([starts, [n]])[index])
    rows = documents(ids.astype("<i4"), begin[begin < n], size, size)
    want[f"tokens:some.bin?seq_len={size}&doc=idx&borders=stop"] = [{"tokens": told(x)} for x in rows]


def borders(out: Path, ids: Any, starts: Any, want: dict[str, Rows], sizes: tuple[int, int]) -> None:
    """What windows are that stop at documents, of files that tokens wrote."""
    size, stride = sizes
    for file, x, doc in (("nano.bin", ids, "0"), ("mega.bin", ids.astype("<i4"), "idx")):
        uri = f"tokens:{file}?seq_len={size}&doc={doc}&borders="
        for step, word in ((size, ""), (min(stride, size), f"&stride={min(stride, size)}")):
            rows = documents(x, starts, size, step)
            want[f"{uri}stop{word}"] = [{"tokens": told(r)} for r in rows]
            want[f"{uri}drop{word}"] = [{"tokens": told(r)} for r in rows if len(r) > size]
        want[f"{uri}pack&pad=3"] = together(documents(x, starts, size, size), size, 3)


def megatrons(
    out: Path, pick: random.Random, ids: Any, ends: Any, want: dict[str, Rows], sizes: tuple[int, int]
) -> None:
    """Ids as Megatron's own writer writes and its reader reads them; nothing where it is not installed."""
    size, stride = sizes
    megatron = indexed_dataset()
    if megatron is None:
        return
    import torch

    for dtype in (np.uint16, np.int32):
        name = f"indexed-{np.dtype(dtype)}"
        w = megatron.IndexedDatasetBuilder(str(out / f"{name}.bin"), dtype=dtype)
        for document in np.split(ids, ends):
            for sequence in np.array_split(document, pick.randint(1, 3)):  # some have none
                w.add_item(torch.from_numpy(sequence.astype("i8")))
            w.end_document()
        w.finalize(str(out / f"{name}.idx"))
        r = megatron.IndexedDataset(str(out / name))
        sequences = [r[i] for i in range(len(r))]
        number = np.searchsorted(r.document_indices[1:], np.arange(len(r)), "right")  # of each sequence's document
        docs = np.repeat(number, [len(x) for x in sequences])
        rows = windows(np.concatenate(sequences), size, stride, docs)
        want[f"tokens:{name}.bin?seq_len={size}&stride={stride}&doc=idx"] = rows


def indexed_dataset() -> Any:
    """The module of megatron-core that writes and reads Megatron's files, without the rest of the package, which wants
    a newer PyTorch; None where it is not installed, unless LARDER_REQUIRE_FORMATS is set.
    """
    found = importlib.util.find_spec("megatron")
    if found is None or not found.submodule_search_locations:
        if os.environ.get("LARDER_REQUIRE_FORMATS"):
            raise ModuleNotFoundError("megatron-core is missing: make setup-nightly installs it into .venv-formats")
        return None
    site = Path(next(iter(found.submodule_search_locations))).parent
    for name in ("megatron", "megatron.core", "megatron.core.datasets"):
        package = types.ModuleType(name)
        package.__path__ = [str(site.joinpath(*name.split(".")))]
        sys.modules[name] = package
    utils: Any = types.ModuleType("megatron.core.utils")
    utils.log_single_rank = lambda *_, **__: None
    sys.modules[utils.__name__] = utils
    return importlib.import_module("megatron.core.datasets.indexed_dataset")


WORDS = ["", "é", "a,b", 'say "x"', "two\nlines", "tab\t", "日本", "\\", "x" * 300]


def texts(out: Path, pick: random.Random, want: dict[str, Rows]) -> None:
    """JSON lines, CSV and text, compressed or not."""
    n = sized(8, pick.randint(37, 97))
    rows = [
        {
            "id": pick.randrange(-(2**62), 2**62),
            "x": pick.choice([1, 2.5, -1e300, pick.random()]),
            "ok": pick.random() < 0.5,
            "text": pick.choice(WORDS),
            "v": [pick.random() for _ in range(pick.randrange(4))],
            "m": [[pick.randrange(9) for _ in range(3)] for _ in range(2)],
            "chat": [{"role": pick.choice(WORDS)}],
        }
        for _ in range(n)
    ]
    rows[0]["x"], rows[0]["v"] = 0.5, [1.0]
    text = "\n".join(json.dumps(r, ensure_ascii=pick.random() < 0.5) for r in rows)
    (out / "a.jsonl").write_text(text)
    with gzip.open(out / "b.jsonl.gz", "wt") as f:
        f.write(text + "\n")
    read = [json.loads(line) for line in (out / "a.jsonl").read_text().split("\n")]
    want["jsonl:a.jsonl"] = want["jsonl:b.jsonl.gz"] = [
        {
            **{"id": told(np.int64(r["id"])), "x": told(np.float64(r["x"])), "ok": told(np.bool_(r["ok"]))},
            **{"text": told(r["text"]), "v": told(np.asarray(r["v"], "f8")), "m": told(np.asarray(r["m"], "i8"))},
            "chat": json.loads(json.dumps(r["chat"])),
        }
        for r in read
    ]
    names = ["id", "x", "ok", "text"]
    buffer = io.StringIO(newline="")
    w = csv.writer(buffer)
    w.writerow(names)
    for i, r in enumerate(rows):
        w.writerow([r["id"], "" if i == 1 else r["x"], r["ok"], r["text"]])
    (out / "a.csv").write_text(buffer.getvalue(), newline="")
    (out / "b.csv.gz").write_bytes(gzip.compress(buffer.getvalue().encode()))
    table = list(csv.DictReader(io.StringIO(buffer.getvalue(), newline="")))
    want["csv:a.csv"] = want["csv:b.csv.gz"] = [
        {
            "id": told(np.int64(r["id"])),
            "x": told(np.float64(r["x"] or "nan")),
            "ok": told(np.bool_(r["ok"] == "True")),
            "text": told(r["text"]),
        }
        for r in table
    ]
    delimited(out, pick, rows, want)
    lines = [pick.choice(WORDS).replace("\n", " ") for _ in range(n)]
    (out / "a.txt").write_text("\n".join(lines) + "\n")
    want["text:a.txt"] = [{"text": told(x.rstrip("\n"))} for x in (out / "a.txt").open(newline="\n")]
    with gzip.open(out / "b.txt.gz", "wb") as f:
        f.write((out / "a.txt").read_bytes())
    with gzip.open(out / "b.txt.gz", "rt", newline="\n") as f:
        want["text:b.txt.gz"] = [{"text": told(x.rstrip("\n"))} for x in f]
    for name, scheme in (("a.jsonl", "jsonl"), ("a.csv", "csv"), ("a.txt", "text")):  # each in a single frame
        zstd(out / name, out / f"c{name[1:]}.zst")
        want[f"{scheme}:c{name[1:]}.zst"] = want[f"{scheme}:{name}"]


def zstd(path: Path, to: Path) -> None:
    """Compresses a file into one frame of zstd, which pyarrow's own reader gives back."""
    with pa.CompressedOutputStream(str(to), "zstd") as f:
        f.write(path.read_bytes())
    with pa.CompressedInputStream(str(to), "zstd") as f:
        assert f.read() == path.read_bytes()


def delimited(out: Path, pick: random.Random, rows: list[dict[str, Any]], want: dict[str, Rows]) -> None:
    """Tables of Python's csv with tabs, semicolons and pipes between their cells; cells hold them, too."""
    for file, comma in (("a.tsv", "\t"), ("a.csv.txt?delimiter=semicolon", ";"), ("pipes.csv?delimiter=pipe", "|")):
        path = out / file.partition("?")[0]
        with path.open("w", newline="") as f:
            w = csv.writer(f, delimiter=comma, lineterminator=pick.choice(["\n", "\r\n"]))
            w.writerow(["id", "x", f"a{comma}b", "text"])
            w.writerows([r["id"], r["x"], pick.choice([";", "|", "\t", ","]), r["text"]] for r in rows)
        with path.open(newline="") as f:
            want[f"csv:{file}"] = [
                {
                    **{"id": told(np.int64(r["id"])), "x": told(np.float64(r["x"]))},
                    **{k: told(v) for k, v in list(r.items())[2:]},
                }
                for r in csv.DictReader(f, delimiter=comma)
            ]


def sound(pick: random.Random) -> tuple[bytes, Any]:
    """A .wav of 16 bits, and what wave reads of it as float32."""
    channels, frames = pick.randint(1, 2), pick.randint(1, 50)
    samples = np.array([[pick.randrange(-(2**15), 2**15) for _ in range(channels)] for _ in range(frames)], "<i2")
    b = io.BytesIO()
    with wave.open(b, "wb") as f:
        f.setnchannels(channels)
        f.setsampwidth(2)
        f.setframerate(16_000)
        f.writeframes(samples.tobytes())
    with wave.open(io.BytesIO(b.getvalue())) as f:
        back = np.frombuffer(f.readframes(frames), "<i2").reshape(frames, channels)
    return b.getvalue(), np.ascontiguousarray(back.T.astype("f4") / 32768)


def waves(out: Path, pick: random.Random, want: dict[str, Rows]) -> None:
    """Every .wav of whole numbers and floats that libsndfile writes, plain and WAVE_FORMAT_EXTENSIBLE, in tars. Its
    reader divides whole numbers by the largest one plus 1, and rounds doubles to float32.
    """
    rng = np.random.default_rng(pick.randrange(2**32))
    kinds = [
        (form, kind)
        for form in ("WAV", "WAVEX")
        for kind in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")
    ]
    rows = []
    (out / "wav").mkdir()
    with webdataset.TarWriter(str(out / "wav" / "a.tar")) as w:
        for i in range(len(kinds) * sized(1, pick.randint(4, 6))):
            form, kind = kinds[i % len(kinds)]
            frames, channels = pick.choice(sized([1, 2, 15, 40], [1, 2, 15, 999, 4097])), pick.randint(1, 3)
            samples = rng.uniform(-1, 1, (frames, channels)) * pick.choice([0.0, 1e-3, 1.0])
            samples[0] = pick.choice([-1.0, 1.0, 0.0])  # both ends
            if kind in ("FLOAT", "DOUBLE") and pick.random() < 0.5:
                samples *= 3  # floats are not clipped
            b = io.BytesIO()
            soundfile.write(b, samples, pick.choice([8_000, 44_100, 96_000, 12_345]), kind, format=form)
            info = soundfile.info(io.BytesIO(b.getvalue()))
            assert (info.format, info.subtype, info.frames) == (form, kind, frames)
            w.write({"__key__": f"{i:04}", "wav": b.getvalue()})
            back, rate = soundfile.read(io.BytesIO(b.getvalue()), dtype="float32", always_2d=True)
            rows.append({"wav": told(np.ascontiguousarray(back.T)), "wav_rate": told(np.int64(rate))})
    want["wds:wav"] = rows


def webps(out: Path, pick: random.Random, want: dict[str, Rows]) -> None:
    """WebP that Pillow writes and reads, lossless and not, grey, with and without alpha, in tars."""
    rows = []
    (out / "webp").mkdir()
    with webdataset.TarWriter(str(out / "webp" / "a.tar")) as w:
        for i in range(sized(6, pick.randint(37, 60))):
            b = io.BytesIO()
            lossless = pick.random() < 0.5
            picture(pick).convert(pick.choice(["RGB", "L"])).save(
                b, "WEBP", lossless=lossless, quality=pick.randint(40, 95), method=pick.randint(0, 6)
            )
            w.write({"__key__": f"{i:04}", "webp": b.getvalue()})
            rows.append({"webp": told(np.asarray(Image.open(b).convert("RGB")))})
    want["wds:webp?fields=webp"] = rows


def flacs(out: Path, pick: random.Random, want: dict[str, Rows]) -> None:
    """FLAC that libsndfile writes and reads, in tars."""
    rng = np.random.default_rng(pick.randrange(2**32))
    rows = []
    (out / "flac").mkdir()
    with webdataset.TarWriter(str(out / "flac" / "a.tar")) as w:
        for i in range(sized(6, pick.randint(37, 60))):
            frames, channels = pick.choice(sized([1, 15, 16, 99], [1, 15, 16, 17, 999, 4097, 9001])), pick.randint(1, 3)
            time = np.arange(frames)[:, None] * rng.random(channels) / 9
            loud = pick.choice([0.0, 0.001, 0.4, 0.9])
            samples = loud * np.sin(time) + rng.standard_normal((frames, channels)) * pick.choice([0.0, 0.001, 0.02])
            b = io.BytesIO()
            rate = pick.choice([8_000, 16_000, 22_050, 44_100, 48_000, 12_345])
            soundfile.write(b, samples.clip(-1, 1), rate, pick.choice(["PCM_S8", "PCM_16", "PCM_24"]), format="FLAC")
            w.write({"__key__": f"{i:04}", "flac": b.getvalue()})
            back, _ = soundfile.read(io.BytesIO(b.getvalue()), dtype="float32", always_2d=True)
            rows.append({"flac": told(np.ascontiguousarray(back.T)), "flac_rate": told(np.int64(rate))})
    want["wds:flac"] = rows


def picture(pick: random.Random) -> Any:
    """An image of an odd size."""
    size = (pick.randint(1, sized(9, 60)), pick.randint(1, sized(9, 60)))
    return Image.frombytes("RGB", size, bytes(pick.randrange(256) for _ in range(3 * size[0] * size[1])))


def tars(out: Path, pick: random.Random, want: dict[str, Rows]) -> None:
    """WebDataset."""
    n = sized(6, pick.randint(37, 97))
    (out / "wds").mkdir()
    rates: list[Any] = []
    each = sized(2, pick.randint(9, 40))
    with webdataset.ShardWriter(str(out / "wds" / "p-%03d.tar"), maxcount=each, verbose=0) as w:
        for i in range(n):
            audio, samples = sound(pick)
            rates.append(samples)
            long = "long/" + "n" * 120 if i % 7 == 3 else "d"
            w.write(
                {
                    "__key__": f"{long}/{i:05}", "jpg": picture(pick), "txt": pick.choice(WORDS), "cls": i % 5,
                    "json": {"i": i}, "npy": np.full((pick.randint(0, 4), 3), i, "f4"), "wav": audio, "bin": b"\0" * i,
                }
            )  # fmt: skip
    shards = sorted(str(p) for p in (out / "wds").iterdir())
    (out / "wds-gz").mkdir()
    for p in shards:
        (out / "wds-gz" / f"{Path(p).name}.gz").write_bytes(gzip.compress(Path(p).read_bytes()))
    (out / "wds-zst").mkdir()
    for p in shards:
        zstd(Path(p), out / "wds-zst" / f"{Path(p).name}.zst")
    raw = list(webdataset.WebDataset(shards, shardshuffle=False))
    decoded = list(webdataset.WebDataset(shards, shardshuffle=False).decode("rgb8"))
    rows = [
        {
            **{"jpg": told(np.asarray(d["jpg"])), "txt": told(d["txt"]), "cls": told(np.int64(d["cls"]))},
            **{"json": json.loads(r["json"]), "npy": told(d["npy"]), "wav": told(s)},
            **{"wav_rate": told(np.int64(16_000)), "bin": told(r["bin"])},
        }
        for r, d, s in zip(raw, decoded, rates, strict=True)
    ]
    want["wds:wds?fields=jpg,txt,cls,json,npy,wav,bin"] = rows
    want["wds:wds-gz?fields=jpg,txt,cls,json,npy,wav,bin"] = rows
    want["wds:wds-zst?fields=jpg,txt,cls,json,npy,wav,bin"] = rows
    want["wds:wds?fields=txt"] = [{"txt": r["txt"]} for r in rows]


def shards(out: Path, pick: random.Random, want: dict[str, Rows]) -> None:
    """MosaicML's MDS."""
    columns = {
        **{"id": "int", "u": "uint16", "f": "float32", "text": "str", "meta": "json", "raw": "bytes"},
        **{"loose": "ndarray", "typed": "ndarray:int32", "fixed": "ndarray:float64:2,3", "digits": "str_int"},
        **{"png": "png", "jpeg": "jpeg"},
    }
    items = []
    for i in range(sized(7, pick.randint(37, 97))):
        shape = (pick.randint(1, sized(30, 300)), pick.randint(1, 3))
        jpeg = out / f"{i}.jpg"
        picture(pick).save(jpeg)
        items.append(
            {
                "id": -i, "u": np.uint16(i), "f": np.float32(i / 7), "text": pick.choice(WORDS), "meta": {"i": [i]},
                "raw": b"\1" * i, "loose": np.full(shape, i, "f2"), "typed": np.arange(i + 1, dtype="i4"),
                "fixed": np.full((2, 3), i / 3), "digits": i**5, "png": picture(pick),
                "jpeg": Image.open(jpeg),
            }
        )  # fmt: skip
    size = sized(4_000, pick.randint(20_000, 90_000))
    for codec in (None, "zstd:7", "gz:1", "bz2:9", "br:5", "snappy"):
        name = f"mds-{codec.partition(':')[0]}" if codec else "mds"
        with MDSWriter(out=str(out / name), columns=columns, size_limit=size, compression=codec) as m:
            for item in items:
                m.write(item)
        if codec:
            dataset = StreamingDataset(remote=str(out / name), local=str(out / "read" / name), batch_size=1)
        else:
            dataset = LocalDataset(str(out / name))
        samples = [dataset[i] for i in range(len(dataset))]
        want[f"mds:{name}?fields={','.join(columns)}"] = told_of(samples)


def told_of(samples: list[dict[str, Any]]) -> Rows:
    """What is told of samples of MDS."""
    return [
        {
            **{"id": told(np.int64(s["id"])), "u": told(s["u"]), "f": told(s["f"]), "text": told(s["text"])},
            **{"meta": s["meta"], "raw": told(s["raw"]), "loose": told(s["loose"]), "typed": told(s["typed"])},
            **{"fixed": told(s["fixed"]), "digits": told(np.int64(s["digits"]))},
            **{k: told(np.asarray(s[k].convert("RGB"))) for k in ("png", "jpeg")},
        }
        for s in samples
    ]


def main(out: Path, seed: int) -> None:
    """Writes everything."""
    pick = random.Random(seed)
    want: dict[str, Rows] = {}
    out.mkdir(parents=True)
    for part in (arrays, tokens, texts, tars, shards, flacs, waves, webps):
        part(out, pick, want)
    (out / "want.json").write_text(json.dumps(want))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
