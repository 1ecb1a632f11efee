"""larder pack against the formats' own readers and writers, and under SIGKILL: every sample stays what it was, and a
run that was killed at any moment goes on to the very bytes of an undisturbed one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
from golden_files import packs
from killed import run_killed, work
from real import draw, find_binary, formats, listing, night
from test_e2e_packed import rows

HERE = Path(__file__).resolve()

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")


@pytest.fixture
def pack(tmp_path):
    """Runs larder pack without any daemon; its result as JSON, or the process where it failed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LARDER_")}
    env["LARDER_SOCKET"] = str(tmp_path / "none.sock")

    def run(*args, check=True):
        p = subprocess.run([find_binary(), "pack", *map(str, args), "-o", "json"], capture_output=True, text=True,
                           timeout=300, env=env)
        if not check:
            return p
        assert p.returncode == 0, p.stderr
        return json.loads(p.stdout)

    return run


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_packs_have_the_bytes_that_the_formats_own_readers_read(golden, tmp_path):
    """Of the set "larder_packs": images and records. Their readers read these very bytes when the set was made, and
    MosaicML's writer wrote the same shards.
    """
    want = json.loads((golden / "larder_packs" / "digests.json").read_text())
    assert len(want) == 7 and all(len(files) > 1 for files in want.values())
    assert packs(golden, tmp_path) == want


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_packs_are_read_by_the_formats_own_readers(real, pack, tmp_path, seed):
    from PIL import Image

    folder = draw(tmp_path / "images", 4, 9, seed=seed, size=(1, 90))
    limit = random.Random(seed).randint(8_000, 30_000)
    for scheme in ("wds", "mds"):
        got = pack(f"imagefolder:{folder}", "--to", f"{scheme}:{tmp_path / scheme}", "--shard-size", limit, "--verify")
        assert got["samples"] == got["verified"] == 36 and got["shards"] > 1 and not got["skipped"]
    own = tmp_path / "own"
    script = [formats(), "-W", "ignore", HERE.parent / "packs_read.py"]
    p = subprocess.run([*script, tmp_path / "wds", tmp_path / "mds", folder, own, str(limit)], check=True, timeout=300,
                       capture_output=True, text=True)
    want = []
    for path, label in listing(folder):
        pixels = np.asarray(Image.open(path).convert("RGB"))
        want.append([label, hashlib.sha256(pixels.tobytes()).hexdigest(), *pixels.shape[:2]])
    theirs = json.loads(p.stdout.splitlines()[-1])
    for scheme in ("wds", "mds"):
        assert theirs[scheme] == want
        assert rows(real(f"{scheme}:{tmp_path / scheme}", batch_size=7, return_index=True)) == want

    # A dataset of JPEG files becomes what MosaicML's own writer makes of it, byte by byte.
    for png in folder.rglob("*.png"):
        png.unlink()
    pack(f"imagefolder:{folder}", "--to", f"mds:{tmp_path / 'jpeg'}", "--shard-size", limit)
    ours = tree(tmp_path / "jpeg")
    assert ours.pop("larder-pack.json")
    assert ours == tree(own)


@pytest.mark.nightly
def test_properties_and_small_datasets_of_other_formats(real, pack, tmp_path):
    """Grey images of idx files, with --properties: a .json member, and columns that streaming reads."""
    data = tmp_path / "idx"
    data.mkdir()
    pixels = np.random.default_rng(4).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 10
    big = [n.to_bytes(4, "big") for n in (0x803, 30, 28, 28, 0x801)]
    (data / "train-images-idx3-ubyte").write_bytes(b"".join(big[:4]) + pixels.tobytes())
    (data / "train-labels-idx1-ubyte").write_bytes(big[4] + big[1] + labels.tobytes())
    for scheme in ("wds", "mds"):
        pack(f"idx:{data}", "--to", f"{scheme}:{tmp_path / scheme}", "--properties", "--verify")
    script = """
import json, sys, webdataset
from streaming import LocalDataset
read = webdataset.WebDataset(sys.argv[1], shardshuffle=False).decode("l8")
a = [[s["cls"], s["png"].tolist(), s["json"]["width"]] for s in read]
d = LocalDataset(sys.argv[2])
b = [[int(s["label"]), list(s["image"].getdata()), s["image"].mode, s["key"], s["class"]]
     for s in map(d.__getitem__, range(len(d)))]
print(json.dumps([a, b]))
"""
    command = [formats(), "-W", "ignore", "-c", script, tmp_path / "wds" / "shard-000000.tar", tmp_path / "mds"]
    p = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)
    a, b = json.loads(p.stdout.splitlines()[-1])
    want = list(zip(labels.tolist(), pixels, strict=True))
    assert a == [[n, image.tolist(), 28] for n, image in want]
    assert [r[:3] for r in b] == [[n, image.ravel().tolist(), "L"] for n, image in want]
    assert len({r[3] for r in b}) == 30 and [r[4] for r in b] == [str(n) for n in labels]
    for images, got, index in real(f"mds:{tmp_path / 'mds'}", batch_size=30, return_index=True):
        assert got.tolist() == labels[index].tolist()
        assert all((np.asarray(i) == pixels[n][..., None]).all() for i, n in zip(images, index, strict=True))


@pytest.mark.parametrize("scheme", ["wds", *night("mds")])
def test_a_pack_that_is_killed_goes_on_to_the_same_bytes(tmp_path, scheme):
    folder = draw(tmp_path / "images", 4, 40, seed=5, size=(60, 200))
    how = ["--shard-size", "64KiB", "--max-size", "150", "--quality", "85", "--shuffle", "3"]
    images = f"imagefolder:{folder}"
    whole = work([find_binary(), "pack", images, "--to", f"{scheme}:{tmp_path / 'whole'}", *how])
    want, out = tree(tmp_path / "whole"), tmp_path / "out"

    def unfinished():
        assert not list(out.glob("*.json")) or tree(out) == want or (out / ".larder-pack").exists()

    command = [find_binary(), "pack", images, "--to", f"{scheme}:{out}", *how]
    run_killed(command, whole, runs=60, kills=25, killed=unfinished)
    assert tree(out) == want


def test_what_a_user_gets_wrong(pack, tmp_path):
    folder = draw(tmp_path / "images", 2, 4, seed=6)
    (folder / "class001" / "broken.jpg").write_bytes(b"no image at all")
    uri, out = f"imagefolder:{folder}", tmp_path / "out"
    for args, code, words in [
        ([uri], 2, "needs --to"),
        ([uri, "--to", f"tar:{out}"], 2, "WebDataset tars and MDS shards"),
        ([uri, "--to", f"wds:{folder}/class000"], 2, "it lies in the source"),
        ([uri, "--to", f"wds:{out}", "--on-error", "maybe"], 2, "unknown"),
        ([uri, "--to", f"wds:{out}", "--shard-size", "10 bananas"], 2, "is no size"),
        ([uri, "--to", f"wds:{out}", "--quality", "0"], 2, "1 to 100"),
        ([uri, "--to", f"wds:{out}"], 7, "class001/broken.jpg"),
        ([uri, "--to", f"wds:{out}", "--max-size", "9"], 5, "--max-size was 0 and is 9"),
    ]:
        p = pack(*args, check=False)
        assert (p.returncode, words in p.stderr) == (code, True), (args, p.returncode, p.stderr)
    p = pack(uri, "--to", f"wds:{out}", "--on-error", "skip", check=False)
    assert p.returncode == 7 and "1 sample was left out" in p.stderr
    assert [s["key"] for s in json.loads(p.stdout)["skipped"]] == ["class001/broken.jpg"]
    assert json.loads((out / "larder-pack.json").read_text())["samples"] == 8
