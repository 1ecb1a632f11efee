"""What may lie in a dataset, against the real daemon: formats of torchvision's ImageFolder, files that are no samples,
classes without any.
"""

from __future__ import annotations

import gzip
import json
import shutil
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from real import draw

import larder
from larder import _registration, ops

GOLDEN = Path(__file__).resolve().parents[2] / "internal/prep/testdata/golden"


@pytest.fixture
def folder(tmp_path):
    """Classes of TIFF and of netpbm, 51 files of all kinds."""
    root = tmp_path / "set"
    for name, suffixes in (("netpbm", (".ppm", ".pgm")), ("tiff", (".tif", ".tiff"))):
        (root / name).mkdir(parents=True)
        for f in GOLDEN.iterdir():
            if f.suffix in suffixes:
                shutil.copy(f, root / name / f.name)
    return root


def test_tiff_and_netpbm_give_what_pillow_gives(real, folder):
    image = pytest.importorskip("PIL.Image")
    files = sorted(p for p in folder.rglob("*.*"))
    assert len(files) > 50
    loader = real(f"imagefolder:{folder}", batch_size=8, return_index=True)
    seen = 0
    for images, _, index in loader:
        for got, i in zip(images, index.tolist(), strict=False):
            want = image.open(GOLDEN / (files[i].name + ".want.png")).convert("RGB")
            assert np.array_equal(np.asarray(want), got), files[i]
            seen += 1
    assert seen == len(files)
    assert not loader.quarantined


def test_a_tiff_that_is_not_read_says_which_kind_it_is(real, folder):
    bad = folder / "tiff" / "00-cmyk.tif"
    bad.write_bytes(
        (folder / "tiff" / "rgb8-raw.tif")
        .read_bytes()
        .replace(b"\x06\x01\x03\0\x01\0\0\0\x02", b"\x06\x01\x03\0\x01\0\0\0\x05", 1)
    )
    loader = real(f"imagefolder:{folder}", batch_size=100, return_index=True)
    with pytest.raises(larder.SampleError, match="its colours are CMYK, and only grey, palette and RGB are read") as e:
        next(iter(loader))
    assert e.value.file == str(bad)


def heard(**kw):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kw.pop("real")(**kw)
    return [str(w.message) for w in caught if w.category is larder.DatasetWarning]


def test_files_that_are_no_samples_are_reported_once(real, folder, monkeypatch):
    monkeypatch.setattr(_registration, "_warned", set())
    (folder / "tiff" / "photo.HEIC").write_bytes(b"x")
    (folder / "tiff" / "list.txt").write_bytes(b"x")
    (folder / "film.mp4").write_bytes(b"x")
    asked = {"real": real, "uri": f"imagefolder:{folder}", "batch_size": 4}
    warnings_of_first = heard(**asked, job="first")
    assert len(warnings_of_first) == 1
    assert "2 files are no samples: 1 .heic, 1 .mp4" in warnings_of_first[0]
    assert str(folder) in warnings_of_first[0]
    assert heard(**asked, job="second") == [], "this process knows"
    monkeypatch.setattr(_registration, "_warned", set())
    assert heard(**asked, job="third", rank=1, world_size=2) == [], "rank 0 warns"


def test_classes_without_images(real, server, folder):
    (folder / "00-none").mkdir()
    uri = f"imagefolder:{folder}"
    with pytest.raises(larder.InvalidError, match="skip_empty=True"):
        real(uri, batch_size=64)
    loader = real(uri, batch_size=64, skip_empty=True, job="skips", transform=[ops.CenterCrop(8)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", larder.DatasetWarning)
        assert sorted({int(v) for _, labels in loader for v in labels}) == [1, 2], "as with torchvision's allow_empty"
    # The last images of a class go: every refresh works, and the labels of the others stay.
    for f in (folder / "netpbm").iterdir():
        f.unlink()
    for _ in range(2):
        out = server.cli("dataset", "refresh", uri)
        assert out.returncode == 0, out.stderr
    assert {int(v) for _, labels in loader for v in labels} == {2}
    with pytest.raises(larder.InvalidError, match="skip_empty must be True or False"):
        real(uri, batch_size=4, skip_empty="yes")


def test_a_batch_may_be_larger_than_the_dataset(server, real, folder):
    """Rings have room for the samples there are: 60,000 rows of 150,528 bytes in each slot would be refused."""
    loader = real(
        f"imagefolder:{folder}",
        batch_size=60000,
        transform=[ops.RandomResizedCrop(224)],
        shuffle=True,
        return_index=True,
        job="whole",
    )
    for _ in range(3):
        batches = [index.tolist() for *_, index in loader]
        assert [sorted(b) for b in batches] == [list(range(51))]
    ranks = [
        real(
            f"imagefolder:{folder}",
            batch_size=60000,
            transform=[ops.RandomResizedCrop(224)],
            return_index=True,
            job="two",
            rank=r,
            world_size=2,
            even="none",
        )
        for r in range(2)
    ]
    iterators = [iter(r) for r in ranks]
    assert sorted(i for it in iterators for i in next(it)[-1].tolist()) == list(range(51))


def test_verify_and_the_loader_agree(real, server, folder):
    whole = (folder / "netpbm" / "plain.ppm").read_bytes()
    (folder / "netpbm" / "plain.ppm").write_bytes(whole.replace(b"\n255\n", b"\n255\n?", 1))
    cut = folder / "tiff" / "rgb8-raw.tif"
    cut.write_bytes(cut.read_bytes()[:1700])
    (folder / "tiff" / "text.tiff").write_bytes(b"no image")
    uri = f"imagefolder:{folder}"
    loader = real(uri, batch_size=100, on_error="skip", return_index=True)
    assert sum(len(labels) for _, labels, _ in loader) == 49
    out = server.cli("dataset", "verify", uri, "-o", "json", check=False)
    assert out.returncode == 7
    assert "3 of 52 samples cannot be prepared" in out.stderr
    found = json.loads(out.stdout)
    assert found["checked"] == 52
    assert not found["damaged"]
    assert {(b["id"], b["path"], b.get("damaged_at"), b["reason"]) for b in found["bad"]} == {
        (q.id, q.path, q.offset, q.reason) for q in loader.quarantined
    }
    assert {Path(b["key"]).name: b.get("damaged_at") for b in found["bad"]} == {
        "plain.ppm": whole.index(b"\n255\n") + 5, "rgb8-raw.tif": 1700, "text.tiff": 0
    }  # fmt: skip
    assert "byte 1700 of" in server.cli("jobs", "describe", loader.job).stdout


def test_skip_keeps_the_number_of_batches_equal(real, tmp_path):
    """Fewer bad samples than a batch has: every batch of every rank comes. All bad: the epoch ends, without a batch."""
    good = (GOLDEN / "rgb8.ppm").read_bytes()
    for name, bad in (("some", {0, 1, 17}), ("all", set(range(40)))):
        (tmp_path / name / "a").mkdir(parents=True)
        for i in range(40):
            (tmp_path / name / "a" / f"{i:02d}.ppm").write_bytes(b"no image" if i in bad else good)
        for shuffle in (False, True):
            ranks = [
                real(
                    f"imagefolder:{tmp_path / name}",
                    batch_size=4,
                    shuffle=shuffle,
                    on_error="skip",
                    job=f"{name}{shuffle}",
                    rank=r,
                    world_size=2,
                )
                for r in range(2)
            ]
            counts = [[], []]

            def train(r, ranks=ranks, counts=counts):
                for _ in range(3):
                    sizes = [len(labels) for _, labels in ranks[r]]
                    counts[r].append((len(sizes), sum(sizes)))

            threads = [threading.Thread(target=train, args=(r,)) for r in range(2)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            for zero, one in zip(*counts, strict=True):
                assert (zero[0], one[0]) == ((5, 5) if name == "some" else (0, 0))
                assert zero[1] + one[1] == 40 - len(bad)


def test_a_store_that_is_not_built_is_refused_with_what_works(real):
    with pytest.raises(larder.InvalidError, match="the scheme hdfs is not built") as e:
        real("hdfs://host/train", batch_size=4)
    assert "mount it as a folder" in e.value.hint
    assert "did you mean" not in str(e.value)
    with pytest.raises(larder.InvalidError, match="holds a user name or a secret") as e:
        real("imagefolder:s3://AKIA:abc/def@bucket/train", batch_size=4)
    assert "abc/def" not in str(e.value)


def test_a_file_that_changed_says_refresh(real, server, folder):
    loader = real(f"imagefolder:{folder}", batch_size=100, job="changes")
    (folder / "netpbm" / "rgb8.ppm").write_bytes(b"P6 1 1 255 abc")
    with pytest.raises(larder.SampleError, match="changed since it was indexed") as e:
        next(iter(loader))
    assert "larder dataset refresh" in e.value.why or "larder dataset refresh" in str(e.value)
    assert server.cli("dataset", "refresh", f"imagefolder:{folder}").returncode == 0
    assert sum(len(labels) for _, labels in loader) == len(list(folder.rglob("*.*")))


def test_values_are_what_files_say(real, tmp_path, monkeypatch):
    """No label is no number, long ids are exact, and numbers that became text are told with the cell that did it."""
    monkeypatch.setattr(_registration, "_warned", set())
    (tmp_path / "a.csv").write_text("label,id\n1,11898508762506083287\n0,3266119658877827603\n5,7\n,8\n")
    (tmp_path / "b.csv").write_text("label,x\n7,1\n10,2\ncat,3\n")
    (batch,) = real(f"csv:{tmp_path}/a.csv", batch_size=4, job="all")
    assert batch["id"].dtype == np.uint64
    assert batch["id"].tolist() == [11898508762506083287, 3266119658877827603, 7, 8]
    (batch,) = real(f"csv:{tmp_path}/a.csv", batch_size=4, subset="label < 1", job="some")
    assert batch["label"].tolist() == [0]
    (said,) = heard(real=real, uri=f"csv:{tmp_path}/b.csv", batch_size=4, job="told")
    assert 'column "label" of b.csv is text: row 4 has "cat"' in said


ODD = Path(__file__).resolve().parents[2] / "internal/source/packed/testdata/odd"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d" * 32 + "\nsize 12345\n"


def test_properties_of_a_file_are_told_once(real, tmp_path):
    """A codec that is not read was told of each row: on_error="skip" gave an empty epoch."""
    shutil.copy(ODD / "lz4.parquet", tmp_path / "a.parquet")
    with pytest.raises(larder.NotFoundError, match="codec LZ4_RAW") as e:
        real(f"parquet:{tmp_path}", batch_size=2, on_error="skip")
    assert "a.parquet" in str(e.value)


def test_whole_numbers_of_json_are_exact(real, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 18446744073709551615, "t": 9007199254740993}\n')
    (tmp_path / "b.jsonl").write_text('{"n": 9007199254740993, "t": 0.5}\n')
    batch = next(iter(real(f"jsonl:{tmp_path}", batch_size=2)))
    assert batch["n"].dtype == np.uint64
    assert batch["n"].tolist() == [18446744073709551615, 9007199254740993]
    assert list(batch["t"]) == ["9007199254740993", "0.5"]


def test_what_lies_in_the_place_of_a_file_is_refused(real, tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    for name, content, says in (
        ("b.csv.gz", gzip.compress(b"x,y\n3,4\n")[:6], "it is cut"),
        ("b.csv", POINTER.encode(), "git lfs pull"),
        ("b.csv", b"<!DOCTYPE html>\n<html>\n", "web page"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(larder.NotFoundError, match=says) as e:
            real(f"csv:{tmp_path}", batch_size=2)
        assert name in str(e.value)
        (tmp_path / name).unlink()
    (tmp_path / "c.jsonl").write_text('{"x": "a"}\n{"x": "a\\ud83d b"}\n')
    with pytest.raises(larder.NotFoundError, match=r"line 2.*half of a character"):
        real(f"jsonl:{tmp_path}", batch_size=2)


def test_files_of_other_programs_are_left_out_with_a_warning(real, tmp_path, monkeypatch):
    monkeypatch.setattr(_registration, "_warned", set())
    for name in ("a.parquet", "_tmp.parquet", "._a.parquet"):
        shutil.copy(ODD / "groups-two.parquet", tmp_path / name)
    said = heard(real=real, uri=f"parquet:{tmp_path}?fields=x", batch_size=8, job="warned")
    assert len(said) == 1
    assert "2 files of the folder left out by name" in said[0]
    assert "._a.parquet" in said[0]
    batch = next(iter(real(f"parquet:{tmp_path}?fields=x", batch_size=8, job="rows")))
    assert batch["x"].tolist() == [1, 2, 3]
    batch = next(iter(real(f"parquet:{tmp_path}/_tmp.parquet?fields=x", batch_size=8, job="itself")))
    assert batch["x"].tolist() == [1, 2, 3]


def test_an_epoch_of_which_nothing_could_be_prepared_says_so(real, tmp_path):
    (tmp_path / "set" / "class").mkdir(parents=True)
    for n in range(3):
        (tmp_path / "set" / "class" / f"{n}.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    loader = real(f"imagefolder:{tmp_path / 'set'}", batch_size=2, on_error="skip")
    for epoch in range(2):
        with pytest.warns(larder.DatasetWarning, match=f"none of the 3 samples of epoch {epoch} could be prepared"):
            assert list(loader) == []
    draw(tmp_path / "set", 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", larder.DatasetWarning)
        assert len(list(real(f"imagefolder:{tmp_path / 'set'}", batch_size=2, on_error="skip"))) == 1
