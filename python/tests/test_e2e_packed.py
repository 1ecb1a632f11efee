"""Packed files against the real daemon: every sample is what the format's own reader gives, whatever its order; damaged
files are refused with words, or cost their own samples.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from golden_files import cut, wanted
from PIL import Image
from real import draw, formats

import larder

HERE = Path(__file__).resolve()

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")


def rows(loader):
    """(label, digest, height, width) of every sample in the order of the dataset, by id."""
    out = {}
    for images, labels, index in loader:
        for image, label, i in zip(images, labels.tolist(), index.tolist(), strict=True):
            assert i not in out
            out[i] = [label, hashlib.sha256(np.ascontiguousarray(image)).hexdigest(), *image.shape[:2]]
    return [out[i] for i in sorted(out)]


def test_golden_samples_are_those_of_the_formats_own_readers(real, golden):
    """Of the set "packed": small files of all the kinds that packed_files.py writes."""
    sets = wanted(golden / "packed")
    assert len(sets) == 8
    for told in sets:
        loader = real(
            f"{told['name'][:3]}:{golden}/packed/{told['name']}", batch_size=3, shuffle=True, seed=1, return_index=True
        )
        assert len(told["rows"]) > 5 and cut(rows(loader)) == told["rows"], told["name"]
        loader.close()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_samples_are_those_of_the_formats_own_readers(real, tmp_path, seed):
    folder = draw(tmp_path / "images", 4, 9, seed=seed, size=(1, 90))
    out = tmp_path / "out"
    script = HERE.parent / "packed_files.py"
    subprocess.run([formats(), "-W", "ignore", script, folder, out, str(seed)], check=True, timeout=300)
    codecs = [f"mds-{codec}" for codec in ("zstd", "gz", "bz2", "br", "snappy")]
    assert all(len([*(out / name).glob("*.mds.*")]) > 1 and not [*(out / name).glob("*.mds")] for name in codecs)
    for name in ("wds", "wds-gz", "mds", *codecs):
        want = json.loads((out / f"{name}.json").read_text())
        assert len(want) > 20
        for shuffle in (False, True):
            got = rows(real(f"{name[:3]}:{out / name}", batch_size=7, shuffle=shuffle, seed=seed, return_index=True))
            assert got == want


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lists_of_images_are_what_their_writers_listed(real, tmp_path, seed):
    """Python's csv and json write the list; Pillow reads the images."""
    folder = draw(tmp_path / "images", 4, 9, seed=seed, size=(1, 90))
    files = sorted(p for p in folder.rglob("*.*") if p.is_file())
    random.Random(seed).shuffle(files)
    names = sorted({p.parent.name for p in files})
    want = []
    for p in files:
        pixels = np.asarray(Image.open(p).convert("RGB"))
        digest = hashlib.sha256(np.ascontiguousarray(pixels)).hexdigest()
        want.append([names.index(p.parent.name), digest, *pixels.shape[:2]])
    listed = [(str(p.relative_to(tmp_path)), p.parent.name, names.index(p.parent.name)) for p in files]
    with open(tmp_path / "words.csv", "w", newline="") as f:
        csv.writer(f).writerows([("path", "label", "number"), *listed])
    with open(tmp_path / "numbers.tsv", "w", newline="") as f:
        csv.writer(f, "excel-tab").writerows([("path", "class", "y"), *listed])
    lines = [{"file_name": path, "label": word, "number": n, "tags": ["x", {"y": n}]} for path, word, n in listed]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    lists = "words.csv", "words.csv?label=number", "numbers.tsv?label=y", "lines.jsonl", "lines.jsonl?label=number"
    for rest in lists:
        for shuffle in (False, True):
            loader = real(
                f"imagefiles:{tmp_path}/{rest}", batch_size=7, shuffle=shuffle, seed=seed, return_index=True
            )
            assert rows(loader) == want, rest
            loader.close()


def fashion(raw: Path, n: int, seed: int = 0) -> np.ndarray:
    """Writes what torchvision's FashionMNIST reads; returns the images."""
    rng = np.random.default_rng(seed)
    raw.mkdir(parents=True)
    images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, n, dtype=np.uint8)
    for name, shape, data in (
        ("train-images-idx3-ubyte", images.shape, images),
        ("train-labels-idx1-ubyte", (n,), labels),
    ):
        head = bytes([0, 0, 8, len(shape)]) + b"".join(d.to_bytes(4, "big") for d in shape)
        (raw / name).write_bytes(head + data.tobytes())
    for name in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        shutil.copy(raw / name.replace("t10k", "train"), raw / name)
    return images


@pytest.mark.parametrize("seed,n", [(1, 37), (2, 50), (3, 61)])
def test_idx_files_are_what_torchvision_reads(real, tmp_path, seed, n):
    datasets = pytest.importorskip("torchvision.datasets")
    fashion(tmp_path / "FashionMNIST" / "raw", n, seed)
    want = datasets.FashionMNIST(str(tmp_path), train=True)
    loader = real(f"idx:{tmp_path / 'FashionMNIST'}", batch_size=8, shuffle=True, seed=seed, return_index=True)
    seen = 0
    for images, labels, index in loader:
        for image, label, i in zip(images, labels, index.tolist(), strict=True):
            grey, y = want[i]
            assert (np.asarray(grey.convert("RGB")) == image).all() and label == y
            seen += 1
    assert seen == len(want) == n


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("seed,n", [(1, 7), (2, 3), (3, 13)])
def test_cifar_rows_are_the_pixels_of_the_binary_version(real, tmp_path, classes, seed, n):
    """Files of n rows as their description says: of 10 classes five with a label, of 100 one with two labels."""
    rng = np.random.default_rng(seed)
    files = [f"data_batch_{b + 1}.bin" for b in range(5)] if classes == 10 else ["train.bin"]
    root = tmp_path / ("cifar-10-batches-bin" if classes == 10 else "cifar-100-binary")
    root.mkdir()
    planes = rng.integers(0, 256, (len(files) * n, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, classes, len(files) * n, dtype=np.uint8)
    coarse = rng.integers(0, 20, len(files) * n, dtype=np.uint8)
    for b, name in enumerate(files):
        at = slice(b * n, (b + 1) * n)
        part = [(*([c] if classes == 100 else []), y, *x.ravel()) for c, y, x in
                zip(coarse[at], labels[at], planes[at], strict=True)]
        (root / name).write_bytes(bytes(np.array(part, np.uint8)))
    names = root / ("batches.meta.txt" if classes == 10 else "fine_label_names.txt")
    names.write_text("\n".join(f"name{i}" for i in range(classes)) + "\n\n")
    left_out = f"name{labels[0]}"
    loader = real(f"cifar{classes}:{tmp_path}", batch_size=6, subset=f'class != "{left_out}"', return_index=True)
    seen = 0
    for images, got, index in loader:
        for image, label, i in zip(images, got.tolist(), index.tolist(), strict=True):
            assert (image == planes[i].transpose(1, 2, 0)).all()
            assert label == labels[i]
            seen += 1
    assert seen == (labels != labels[0]).sum() > 0
    loader.close()
    if classes == 100:
        loader = real(f"cifar100:{tmp_path}", batch_size=6, subset=f"coarse == {coarse[0]}", return_index=True)
        got = [i for _, _, index in loader for i in index.tolist()]
        assert got == np.flatnonzero(coarse == coarse[0]).tolist()


def tar(path: Path, folder: Path) -> int:
    """Packs a folder with the standard library's tarfile; returns the samples."""
    import tarfile

    files = sorted(p for p in folder.rglob("*.*") if p.is_file())
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as t:
        for i, p in enumerate(files):
            t.add(p, f"{i:04}{p.suffix}")
    return len(files)


@pytest.mark.audit("--in-place")
def test_damaged_tars_are_refused_or_cost_their_own_samples(real, tmp_path):
    folder = draw(tmp_path / "images", 2, 5, size=(20, 30))
    n = tar(tmp_path / "good.tar", folder)
    whole = (tmp_path / "good.tar").read_bytes()
    pick = random.Random(5)
    refused = delivered = 0
    for case in range(12):
        path = tmp_path / f"bad-{case}.tar"
        if case % 2:
            path.write_bytes(whole[: pick.randrange(1, len(whole) - 10240)])
        else:
            at = pick.randrange(600, len(whole) - 10240)
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << pick.randrange(8)]) + whole[at + 1 :])
        try:
            loader = real(f"wds:{path}", batch_size=4, on_error="skip")
        except larder.Error as e:
            assert str(path) in str(e)
            refused += 1
            continue
        got = sum(len(labels) for _, labels in loader)
        assert n - 2 <= got + len(loader.quarantined) <= n
        delivered += 1
    assert refused >= 6
    assert delivered


def test_missing_shards_and_unknown_schemes_say_what_to_do(real, tmp_path):
    tar(tmp_path / "p-0.tar", draw(tmp_path / "images", 1, 3, size=(20, 30)))
    with pytest.raises(larder.Error, match=r"p-1\.tar.*no such file") as e:
        real(f"wds:{tmp_path}/p-{{0..1}}.tar", batch_size=2)
    assert "name the files that are there" in str(e.value)
    with pytest.raises(larder.Error, match="did you mean wds:"):
        real(f"wdz:{tmp_path}", batch_size=2)
    with pytest.raises(larder.Error, match="knows no \\?split=, only \\?fields="):
        real(f"wds:{tmp_path}?split=test", batch_size=2)
