"""larder pack of records against the formats' own readers: every field of every sample is what the source gives."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from killed import run_killed, work
from real import draw, find_binary, formats, listing
from record_told import told
from test_e2e_pack import tree

HERE = Path(__file__).resolve()

# What has no form in MDS, so that the other fields are packed.
WITHOUT = {
    "npz:some.npz": "b,a", "npz:packed.npz": "b,a", "npz:some.npz?fields=c,b": "b", "jsonl:a.jsonl": "id,x,text,m,chat",
    "jsonl:b.jsonl.gz": "id,x,text,m,chat", "csv:a.csv": "id,x,text", "csv:b.csv.gz": "id,x,text",
}  # fmt: skip
# Columns with names that no member of a tar can have, and samples of other datasets, compressed or coded otherwise.
ELSEWHERE = ("csv:a.tsv", "csv:a.csv.txt", "csv:pipes", "jsonl:c.", "csv:c.", "text:c.", "text:b.txt.gz", "wds:wds-zst",
             "wds:wav", "wds:webp")  # fmt: skip
NO_VALUES = ("npy",)  # a field of the test's tars of which some samples have no values
ENDS = ("npy", "txt", "bin", "jpg", "png", "json", "cls")  # what is put behind the names of fields in tars


def pack(*args, check=0):
    p = subprocess.run([find_binary(), "pack", *map(str, args), "-o", "json"], capture_output=True, text=True,
                       timeout=300)  # fmt: skip
    assert p.returncode == check, p.stderr
    return json.loads(p.stdout) if p.stdout else p.stderr


def named(uri: str, fields: str) -> str:
    return f"{uri.partition('?')[0]}?fields={fields}"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_packs_of_records_are_read_by_the_formats_own_readers(tmp_path, seed):
    out, packs = tmp_path / "out", tmp_path / "packs"
    script = [formats(), "-W", "ignore", HERE.parent / "record_files.py", out, str(seed)]
    subprocess.run(script, check=True, timeout=600)
    every = json.loads((out / "want.json").read_text())
    want = {}
    for n, (uri, samples) in enumerate(every.items()):
        if uri.startswith("mds:mds-") and "zstd" not in uri:
            continue
        if "indexed-" in uri or ("borders=" in uri and "some.bin" not in uri):
            continue  # windows of ids: some of each kind are enough
        if uri.startswith(ELSEWHERE):
            continue
        scheme, _, rest = uri.partition(":")
        for to in ("mds", "wds"):
            source, rows = f"{scheme}:{out}/{rest}", samples
            fields = WITHOUT.get(uri) if to == "mds" else None
            if to == "mds" and scheme == "wds" and "npy" in samples[0]:
                fields = ",".join(k for k in samples[0] if not k.startswith(NO_VALUES))
            if fields:
                if uri in WITHOUT:
                    said = pack(source, "--to", f"mds:{packs}/none", check=1)
                    assert "field" in str(said) and "bool" in str(said) and not (packs / "none").exists()
                asked = ",".join(k for k in fields.split(",") if k != "wav_rate")  # which comes with wav
                source = named(source, asked)
                rows = [{k: s[k] for k in fields.split(",")} for s in samples]
            name = f"{n}.{to}"
            got = pack(source, "--to", f"{to}:{packs / name}", "--shard-size", "20000", "--verify")
            assert got["samples"] == got["verified"] == len(rows), source
            assert not got["bad"] and not got["skipped"]
            want[name] = rows
    subprocess.run([formats(), "-W", "ignore", HERE.parent / "packs_records.py", packs], check=True, timeout=600)
    assert len(want) == 42
    for name, rows in want.items():
        theirs = json.loads((packs / f"{name}.json").read_text())
        assert len(theirs) == len(rows)
        for k, (row, read) in enumerate(zip(rows, theirs, strict=True)):
            assert len(row) == len(read)
            for field, value in row.items():
                found = next(v for key, v in read.items() if key in (field, *(f"{field}.{e}" for e in ENDS)))
                if isinstance(found, dict) and "text" in found:
                    text = found["text"]
                    found = told(text) if isinstance(value, str) else json.loads(text)
                elif isinstance(found, dict):  # a .json member is decoded
                    found = found["json"]
                assert found == value, (name, k, field)


def test_what_is_not_packed_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"a": 1, "A": 2}\n')
    (tmp_path / "in" / "b.jsonl").write_text('{"a/b": 1}\n')
    (tmp_path / "in" / "c.jsonl").write_text('{"ok": true, "x": 1}\n')
    for name, to, words in (("a", "wds", "'A' would be named"), ("b", "wds", "'/'"), ("c", "mds", "bool")):
        said = pack(f"jsonl:{tmp_path}/in/{name}.jsonl", "--to", f"{to}:{tmp_path}/out", check=1)
        assert words.replace("'", '"') in said or words in said, said
        assert "?fields=" in said
        assert not os.path.exists(tmp_path / "out")
    said = pack(f"jsonl:{tmp_path}/in/a.jsonl", "--to", f"mds:{tmp_path}/out", "--quality", 80, check=1)
    assert "--quality" in said and "image files" in said


WRITE = """
import json, sys
import pyarrow as pa, pyarrow.parquet as pq, webdataset
rows = json.load(open(sys.argv[1]))
images = [{"bytes": open(p, "rb").read(), "path": p} for p, _ in rows]
labels = [label for _, label in rows]
pq.write_table(pa.table({"image": images, "label": labels, "text": [f"é {n}" for n in labels]}),
    sys.argv[2] + "/rows.parquet", row_group_size=7)
with webdataset.ShardWriter(sys.argv[2] + "/p-%03d.tar", maxcount=20, verbose=0) as w:
    for i, (image, label) in enumerate(zip(images, labels)):
        w.write({"__key__": f"{i:05}", "jpg": image["bytes"], "cls": label, "txt": f"é {label}"})
"""

READ = """
import glob, hashlib, io, json, sys
import webdataset
from PIL import Image
from streaming import LocalDataset
def row(image, *more):
    return [image.format, *image.size, hashlib.sha256(image.convert("RGB").tobytes()).hexdigest(), *more]
def member(s):
    return s.get("jpg") or s.get("image.jpg") or s.get("png")
def label(s):
    n = s["cls"] if "cls" in s else s["label.npy"]
    return int(n.decode()) if "cls" in s else int.from_bytes(n[-8:], "little")
out = {}
for at in sys.argv[1:]:
    if at.endswith("wds"):
        read = webdataset.WebDataset(sorted(glob.glob(at + "/*.tar")), shardshuffle=False)
        out[at] = [row(Image.open(io.BytesIO(member(s))), label(s),
            (s.get("txt") or s.get("text") or b"").decode()) for s in read]
    else:
        d = LocalDataset(at)
        samples = [d[i] for i in range(len(d))]
        out[at] = [row(s["image"] if "image" in s else s["jpg"], int(s["label"] if "label" in s else s["cls"]),
            s.get("text") or s.get("txt") or "") for s in samples]
print(json.dumps(out))
"""


def written(tmp_path: Path, seed: int, each: int) -> tuple[Path, Path]:
    """A folder of images, and one of a Parquet file and of tars with the same samples and a text."""
    folder, out = draw(tmp_path / "images", 3, each, seed=seed, size=(1, 90)), tmp_path / "records"
    out.mkdir()
    (tmp_path / "rows.json").write_text(json.dumps([[str(p), label] for p, label in listing(folder)]))
    subprocess.run([formats(), "-W", "ignore", "-c", WRITE, tmp_path / "rows.json", out], check=True, timeout=300)
    return folder, out


@pytest.mark.nightly
@pytest.mark.parametrize("flags", [("--max-size", 50), ("--max-size", 50, "--quality", 90)], ids=["size", "quality"])
def test_images_of_records_become_what_plain_images_become(tmp_path, flags):
    folder, records = written(tmp_path, 4, 17)
    sources = {
        "plain": f"imagefolder:{folder}",
        "parquet": f"parquet:{records}/rows.parquet?fields=image,label,text",
        "tars": f"wds:{records}?fields=jpg,cls,txt",
    }
    encoded = set()
    for name, uri in sources.items():
        for to in ("wds", "mds"):
            got = pack(uri, "--to", f"{to}:{tmp_path}/{name}.{to}", "--shard-size", "20000", "--verify", *flags)
            assert got["samples"] == got["verified"] == 51 and got["shards"] > 1 and not got["bad"]
            encoded.add(got["encoded"])
    assert len(encoded) == 1 and encoded.pop() > 0
    packs = [f"{tmp_path}/{name}.{to}" for name in sources for to in ("wds", "mds")]
    p = subprocess.run([formats(), "-W", "ignore", "-c", READ, *packs], check=True, timeout=300, capture_output=True,
                       text=True)  # fmt: skip
    theirs = json.loads(p.stdout.splitlines()[-1])
    want = theirs[packs[0]]
    assert max(max(w, h) for _, w, h, *_ in want) == 50 and {f for f, *_ in want} >= {"JPEG"}
    if "--quality" in flags:
        assert {f for f, *_ in want} == {"JPEG"}
    assert [r[4] for r in want] == [label for _, label in listing(folder)]
    for at in packs[1:]:
        text = [f"é {r[4]}" if "plain" not in at else "" for r in want]
        assert theirs[at] == [[*r[:5], t] for r, t in zip(want, text, strict=True)], at


@pytest.mark.nightly
@pytest.mark.parametrize("to", ["wds", "mds"])
def test_a_pack_of_smaller_records_that_is_killed_goes_on_to_the_same_bytes(tmp_path, to):
    _, records = written(tmp_path, 5, 60)
    uri = f"parquet:{records}/rows.parquet?fields=image,label,text"
    how = ["--shard-size", "32KiB", "--max-size", "70", "--quality", "85", "--shuffle", "3"]
    whole = work([find_binary(), "pack", uri, "--to", f"{to}:{tmp_path / 'whole'}", *how])
    out = tmp_path / "out"
    run_killed([find_binary(), "pack", uri, "--to", f"{to}:{out}", *how], whole, runs=30, kills=12)
    assert tree(out) == tree(tmp_path / "whole")
    got = pack(uri, "--to", f"{to}:{out}", *how, "--verify")
    assert got["verified"] == got["earlier"] == 180 and not got["bad"]
