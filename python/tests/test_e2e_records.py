"""Records of files against the real daemon: every field of every sample is what the format's own reader gives."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
from golden_files import cut, wanted
from real import formats
from record_told import told

import larder

HERE = Path(__file__).resolve()

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")


def rows(loader, want):
    """What is told of every sample, in the order of the dataset, by id."""
    out = {}
    for batch, index in loader:
        for k, i in enumerate(index.tolist()):
            assert i not in out
            out[i] = {
                name: json.loads(column[k]) if not isinstance(want[name], str) else told(column[k])
                for name, column in batch.items()
            }
    return [out[i] for i in sorted(out)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Of a seed, the folder of what record_files.py wrote and the samples of each uri in it."""
    made = {}

    def make(seed):
        if seed not in made:
            out = tmp_path_factory.mktemp("records") / "out"
            script = HERE.parent / "record_files.py"
            subprocess.run([formats(), "-W", "ignore", script, out, str(seed)], check=True, timeout=600)
            made[seed] = out, json.loads((out / "want.json").read_text())
        return made[seed]

    return make


def test_golden_fields_are_those_of_the_formats_own_readers(real, golden):
    """Of the set "records": small files of all the kinds that record_files.py writes."""
    uris = 0
    for want in wanted(golden / "records"):
        for uri in want["uris"]:
            scheme, _, rest = uri.partition(":")
            loader = real(f"{scheme}:{golden}/records/{rest}", batch_size=3, shuffle=True, seed=1, return_index=True)
            got = rows(loader, want["rows"][0])
            assert [cut(r) for r in got] == want["rows"] and len(got) > 4, uri
            loader.close()
            uris += 1
    assert uris == 47


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fields_are_those_of_the_formats_own_readers(real, written, seed):
    out, want = written(seed)
    assert len(want) == (47 if any("indexed-" in uri for uri in want) else 45)
    for uri, samples in want.items():
        scheme, _, rest = uri.partition(":")
        assert len(samples) > 30, uri
        for shuffle in (False, True):
            loader = real(f"{scheme}:{out}/{rest}", batch_size=7, shuffle=shuffle, seed=seed, return_index=True)
            assert rows(loader, samples[0]) == samples, uri
            loader.close()


@pytest.mark.nightly
def test_fields_over_https_are_those_of_the_formats_own_readers(written, over_https):
    """Each dataset once, from nginx."""
    out, want = written(1)
    load = over_https(out)
    for uri, samples in want.items():
        loader = load(uri, batch_size=32, shuffle=True, seed=1, return_index=True)
        assert rows(loader, samples[0]) == samples, uri
        loader.close()


def lines(path, n):
    path.write_text("".join(json.dumps({"id": i, "v": [i] * (i % 3), "label": i % 4}) + "\n" for i in range(n)))
    return f"jsonl:{path}"


def test_batches_are_what_the_arguments_say(real, tmp_path):
    uri = lines(tmp_path / "a.jsonl", 30)
    torch = pytest.importorskip("torch")
    (batch,) = real(uri, batch_size=30, ragged="pad", pad_value=-1, output="torch")
    assert batch["v"].shape == (30, 2)
    assert batch["v"].dtype == torch.int64
    assert batch["v"][1].tolist() == [1, -1]
    (batch,) = real(uri, batch_size=30)
    assert [v.tolist() for v in batch["v"]] == [[i] * (i % 3) for i in range(30)]
    (found,) = real(uri, batch_size=30, subset="label < 2", collate_fn=lambda items: [x["id"] for x in items])
    assert found == [i for i in range(30) if i % 4 < 2]


@pytest.mark.parametrize("keep", [False, True])
def test_an_epoch_of_records_resumes_and_is_exactly_once(real, tmp_path, keep):
    uri = lines(tmp_path / "a.jsonl", 61)
    loader = real(uri, batch_size=4, shuffle=True, seed=3, return_index=True)
    seen = []
    for _, (batch, index) in zip(range(5), loader, strict=False):
        assert batch["id"].tolist() == index.tolist()
        seen += index.tolist()
    state = loader.state_dict()
    if not keep:
        loader.close()
    again = real(uri, batch_size=4, shuffle=True, seed=3, return_index=True)
    again.load_state_dict(state)
    for _, index in again:
        seen += index.tolist()
    assert sorted(seen) == list(range(61))


def test_two_jobs_share_what_was_read(real, tmp_path):
    uri = lines(tmp_path / "a.jsonl", 200)
    loaders = [real(uri, batch_size=8, shuffle=True, seed=s, return_index=True, job=f"j{s}") for s in (1, 2)]
    for a, b in zip(*loaders, strict=True):
        for batch, index in (a, b):
            assert batch["id"].tolist() == index.tolist()


def test_a_damaged_line_costs_its_own_sample(real, tmp_path):
    path = tmp_path / "a.jsonl"
    uri = lines(path, 40)
    loader = real(uri, batch_size=4, on_error="skip", return_index=True)
    text = path.read_bytes()
    stat = path.stat()
    at = text.index(b'{"id": 17')
    path.write_bytes(text[:at] + b"[" + text[at + 1 :])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    got = sorted(i for _, index in loader for i in index.tolist())
    assert got == [i for i in range(40) if i != 17]
    (bad,) = loader.quarantined
    assert bad.id == 17
    assert str(path) in bad.reason
    assert "no JSON" in bad.reason


def test_a_file_that_changes_is_indexed_again(real, tmp_path):
    path = tmp_path / "a.jsonl"
    uri = lines(path, 10)
    assert sum(len(b["id"]) for b in real(uri, batch_size=4)) == 10
    lines(path, 25)
    assert sum(len(b["id"]) for b in real(uri, batch_size=4)) == 25
    path.write_text('{"other": 1.5}\n{"other": 2}\n')
    (batch,) = real(uri, batch_size=4)
    assert batch["other"].tolist() == [1.5, 2.0]


def test_what_does_not_fit_is_refused_with_words(real, tmp_path):
    uri = lines(tmp_path / "a.jsonl", 10)
    with pytest.raises(larder.InvalidError, match="0 fields of the records can be its image"):
        real(uri, batch_size=2, transform=[larder.ops.HFlip()])
    with pytest.raises(larder.InvalidError, match=r"fields= is for images, and the samples of .* are records of id, v"):
        real(uri, batch_size=2, fields=("image",))
    with pytest.raises(larder.Error, match=r"has no field \"x\", only id, v, label"):
        real(uri + "?fields=x", batch_size=2)
    with pytest.raises(larder.Error, match="did you mean jsonl:"):
        real(f"jsonl2:{tmp_path}", batch_size=2)
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object))
    with pytest.raises(larder.Error, match="larder never reads, because they run code"):
        real(f"npy:{tmp_path}/o.npy", batch_size=2)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a": "x"}\n')
    with pytest.raises(larder.Error, match=r"line 3, at byte 18: .* text, and whole numbers in the lines before"):
        real(uri, batch_size=2)


def test_cut_and_flipped_files_cost_no_more_than_themselves(real, tmp_path):
    pick = random.Random(8)
    whole = b"".join(json.dumps({"id": i, "text": "x" * i}).encode() + b"\n" for i in range(60))
    refused = 0
    for case in range(8):
        path = tmp_path / f"{case}.jsonl"
        at = pick.randrange(1, len(whole))
        flipped = whole[:at] + bytes([whole[at] ^ 1 << pick.randrange(8)]) + whole[at + 1 :]
        path.write_bytes(whole[:at] if case % 2 else flipped)
        try:
            loader = real(f"jsonl:{path}", batch_size=4, on_error="skip")
            assert sum(len(b["id"]) for b in loader) <= 61
        except larder.Error as e:
            assert str(path) in str(e)
            refused += 1
    assert refused
