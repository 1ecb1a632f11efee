"""larder pack of records against the formats' own readers: every field of every sample is what the source gives."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from real import find_binary, formats
from record_told import told

HERE = Path(__file__).resolve()

# What has no form in MDS, so that the other fields are packed.
WITHOUT = {
    "npz:some.npz": "b,a", "npz:packed.npz": "b,a", "npz:some.npz?fields=c,b": "b", "jsonl:a.jsonl": "id,x,text,m,chat",
    "jsonl:b.jsonl.gz": "id,x,text,m,chat", "csv:a.csv": "id,x,text", "csv:b.csv.gz": "id,x,text",
}  # fmt: skip
NO_VALUES = ("npy",)  # a field of the test's tars of which some samples have no values
ENDS = ("npy", "txt", "bin", "jpg", "png", "json", "cls")  # what is put behind the names of fields in tars


def pack(*args, check=0):
    p = subprocess.run([find_binary(), "pack", *map(str, args), "-o", "json"], capture_output=True, text=True,
                       timeout=300)  # fmt: skip
    assert p.returncode == check, p.stderr
    return json.loads(p.stdout) if p.stdout else p.stderr


def named(uri: str, fields: str) -> str:
    return f"{uri.partition('?')[0]}?fields={fields}"


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
    assert "--quality" in said and "records" in said
