"""Orders of blocks on files that are decoded in pieces, against the real daemon: files of the formats' own writers, two
jobs and more, a state taken in the middle, subsets, files that change.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_files import FORMATS, LONG, row
from real import formats, night, pillow

import larder

OWN_DAEMON = True
HERE = Path(__file__).resolve()
ROWS = 240
# without the images: those are compared once, for each format
NAMES = {"tars": ("cls", "txt", "png")}

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")


def write(out: Path, rows: int, seed: int, *names: str, python: Any = None) -> Path:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(out / "home")}
    script = [python or formats(), "-W", "ignore", HERE.parent / "block_files.py", out, str(rows), str(seed), *names]
    subprocess.run(script, check=True, timeout=600, env=env, stderr=sys.stderr)
    return out


def of_both_lanes(*golden: str) -> list[Any]:
    """Names of formats: those whose files are golden, and in the nightly lane all that block_files.py writes."""
    return [*golden, *(pytest.param(f"written {name}", marks=pytest.mark.nightly) for name in FORMATS)]


@pytest.fixture(scope="module")
def folders(golden, tmp_path_factory):
    """The folder with a format's files of block_files.py, and where they were written: those of the golden set
    "blocks", those that need no package of a format, or those of all formats.
    """
    made = {}

    def folder(written, name):
        if not written and name != "lines":
            return golden / "blocks", ""
        names, python = ([], None) if written else ([name], sys.executable)
        if written not in made:
            made[written] = write(tmp_path_factory.mktemp("blocks"), ROWS, 1, *names, python=python)
        return made[written], f"{made[written]}/"

    return folder


@pytest.fixture
def sets(folders, tmp_path):
    """The name of a format, and the uri of its files, which no other test has read."""

    def uri(name):
        kind, _, of = name.rpartition(" ")
        folder, at = folders(bool(kind), of)
        shutil.copytree(folder, tmp_path / "sets", dirs_exist_ok=True)
        scheme, _, rest = (folder / f"{of}.uri").read_text().partition(":")
        return of, f"{scheme}:{tmp_path}/sets/{rest.removeprefix(at)}"

    return uri


def numbers(name: str, batch: dict[str, Any]) -> list[int]:
    """The numbers of a batch's rows, each of which is what it was written as."""
    number, text, image = NAMES.get(name, ("number", "text", "image"))
    out = []
    for k, i in enumerate(np.asarray(batch[number]).tolist()):
        want = row(i)
        assert batch[text][k] == want["text"] * (LONG if name == "frames" else 1)
        if name not in ("lines", "frames"):
            pixels = batch[image][k]  # columns that are not said to be images are bytes
            pixels = np.asarray(pillow().open(io.BytesIO(pixels)) if isinstance(pixels, bytes) else pixels)
            assert pixels.shape == (3 + i % 5, 4, 3)
            assert (pixels == i % 251).all()
        out.append(i)
    return out


def drained(name: str, loader: Any) -> list[int]:
    return [i for batch in loader for i in numbers(name, batch)]


def counters(loader: Any) -> Any:
    return loader.stats().job.counters


def found(c: Any) -> int:
    """The samples of a job that came from blocks, or from what tiers keep of them."""
    return sum(c.hits[k] for k in ("block", "shared_block", "encoded", "decoded"))


@pytest.mark.parametrize("name", [*of_both_lanes("parquet", "tars", "lines"), *night("mds")])
def test_two_jobs_read_each_block_once(real, sets, name):
    name, uri = sets(name)
    arguments: dict[str, Any] = {
        "batch_size": 5,
        "shuffle": True,
        "order": "blocks(4, 4KiB)",
        "prefetch": 1,
        "ragged": "list",
    }
    alone = real(uri, seed=1, **arguments)
    assert "blocks(4)" in alone.promise
    first = drained(name, alone)
    assert sorted(first) == list(range(ROWS))
    assert first != sorted(first)
    blocks = counters(alone).source_reads
    assert 2 < blocks < ROWS / 2
    assert sorted(drained(name, alone)) == list(range(ROWS))
    mine = counters(alone)
    assert mine.source_reads == 2 * blocks
    assert found(mine) == 2 * ROWS
    assert mine.hits["block"] >= ROWS
    assert mine.hits["shared_block"] == 0
    alone.close()

    pair = [real(uri, seed=s, **arguments) for s in (2, 3)]
    ids: list[list[int]] = [[], []]
    for batches in zip(*pair, strict=True):  # side by side
        for mine, batch in zip(ids, batches, strict=True):
            mine += numbers(name, batch)
    assert sorted(ids[0]) == sorted(ids[1]) == list(range(ROWS))
    both = [counters(x) for x in pair]
    assert sum(c.source_reads for c in both) <= 1.1 * blocks + 1
    for c in both:
        assert found(c) == ROWS
    for x in pair:
        x.close()


@pytest.mark.parametrize("name", of_both_lanes("parquet", "tars"))
def test_an_epoch_goes_on_in_the_middle(real, sets, name):
    name, uri = sets(name)
    arguments: dict[str, Any] = {
        "batch_size": 5,
        "shuffle": True,
        "order": "blocks(4, 4KiB)",
        "prefetch": 1,
        "ragged": "list",
        "seed": 5,
    }
    loader = real(uri, **arguments)
    it = iter(loader)
    got = [i for _ in range(17) for i in numbers(name, next(it))]
    state = loader.state_dict()
    loader.close()
    again = real(uri, **arguments)
    again.load_state_dict(state)
    got += drained(name, again)
    assert sorted(got) == list(range(ROWS))
    assert sorted(drained(name, again)) == list(range(ROWS))
    again.close()


WIDE = 16 << 10  # numbers of a row of arrays: a block of 1 MiB has some rows


def arrays(folder: Path, name: str, rows: int) -> tuple[str, Any]:
    """The uri of arrays that NumPy writes, and what each of their rows has: its number in every value."""
    wide = np.repeat(np.arange(rows, dtype=np.int32)[:, None], WIDE, axis=1)
    if name == "npy":
        np.save(folder / "a.npy", wide[: rows // 3])
        np.save(folder / "b.npy", wide[rows // 3 :])
        return f"npy:{folder}", lambda batch: batch["value"]
    if name == "npz":
        np.savez(folder / "a.npz", wide=wide, number=np.arange(rows))
        return f"npz:{folder}/a.npz", lambda batch: batch["wide"] + 0 * batch["number"][:, None]
    # windows overlap by one id, which is the first of the next one
    ids = np.concatenate([wide.reshape(-1), np.full(1, rows, np.int32)])
    ids.tofile(folder / "a.bin")
    return f"tokens:{folder}/a.bin?seq_len={WIDE}&dtype=int32", lambda batch: batch["tokens"][:, :-1]


@pytest.mark.parametrize("name", ["npy", "tokens", *night("npz")])
def test_rows_of_arrays_are_blocks(real, tmp_path, name):
    uri, values = arrays(tmp_path, name, ROWS)
    arguments: dict[str, Any] = {"batch_size": 5, "shuffle": True, "order": "blocks(4, 1MiB)", "prefetch": 1}

    def epoch(batches: Any) -> list[int]:
        out = []
        for batch in batches:
            for v in np.asarray(values(batch)):
                assert v.shape == (WIDE,)
                assert (v == v[0]).all()
                out.append(int(v[0]))
        return out

    alone = real(uri, seed=1, **arguments)
    first = epoch(alone)
    assert sorted(first) == list(range(ROWS))
    assert first != sorted(first)
    blocks = counters(alone).source_reads
    assert 2 < blocks < ROWS / 2
    assert counters(alone).source_bytes <= 1.02 * 4 * WIDE * ROWS + 8 * ROWS
    assert found(counters(alone)) == ROWS
    alone.close()
    pair = [real(uri, seed=s, **arguments) for s in (2, 3)]
    ids: list[list[int]] = [[], []]
    for batches in zip(*pair, strict=True):  # side by side
        for mine, batch in zip(ids, batches, strict=True):
            mine += epoch([batch])
    assert sorted(ids[0]) == sorted(ids[1]) == list(range(ROWS))
    assert sum(counters(x).source_reads for x in pair) <= 1.1 * blocks + 1
    for x in pair:
        x.close()


def test_what_has_no_blocks_says_why(real, tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((9, 3)))
    with pytest.raises(larder.Error, match=r"(?s)members that are compressed.*numpy\.savez"):
        real(f"npz:{tmp_path}/a.npz", batch_size=3, shuffle=True, order="blocks(4)")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lines_of_frames_are_those_of_their_readers(real, tmp_path, seed):
    """Each member of gzip and frame of zstd ends anywhere in a line; a run of them is what is unpacked at once."""
    rows = 101 + 29 * seed
    write(tmp_path, rows, seed, "frames")
    want = [json.loads(x) for x in (tmp_path / "frames.read").read_bytes().splitlines()]
    assert len(want) == rows
    for order in ({"shuffle": False}, {"shuffle": True, "seed": seed}):
        loader = real((tmp_path / "frames.uri").read_text(), batch_size=7, ragged="list", **order)
        got = [
            {"number": int(n), "text": t}
            for batch in loader
            for n, t in zip(batch["number"], batch["text"], strict=True)
        ]
        loader.close()
        assert (got == want) == (not order["shuffle"])
        assert sorted(got, key=lambda r: r["number"]) == want


def test_a_subset_has_blocks_of_its_own_rows(real, sets):
    loader = real(
        sets("parquet")[1], batch_size=5, shuffle=True, order="blocks(3, 4KiB)", prefetch=1, ragged="list",
        subset="number < 50",
    )
    for _ in range(2):
        assert sorted(drained("parquet", loader)) == list(range(50))
    loader.close()


def test_lines_that_are_written_again_are_followed(server, real, sets, tmp_path):
    folder = tmp_path / "lines"
    shutil.copytree(sets("lines")[1].partition(":")[2], folder)
    loader = real(f"jsonl:{folder}", batch_size=5, shuffle=True, order="blocks(3, 4KiB)", prefetch=1, ragged="list")
    assert sorted(drained("lines", loader)) == list(range(ROWS))
    first = sorted(folder.iterdir())[0]
    with gzip.open(first, "rt", encoding="utf-8") as f:
        gone = {json.loads(line)["number"] for line in f}
    new = range(ROWS, ROWS + 40)
    with gzip.open(first, "wt", encoding="utf-8") as f:
        f.writelines(json.dumps({k: row(i)[k] for k in ("number", "text")}) + "\n" for i in new)
    server.cli("dataset", "refresh", f"jsonl:{folder}")
    assert sorted(drained("lines", loader)) == sorted({*range(ROWS), *new} - gone)
    loader.close()


@pytest.mark.nightly
def test_a_changed_file_is_followed(server, real, sets, tmp_path):
    folder = tmp_path / "parquet"
    shutil.copytree(sets("parquet")[1].partition(":")[2], folder)
    loader = real(f"parquet:{folder}", batch_size=5, shuffle=True, order="blocks(3, 4KiB)", prefetch=1, ragged="list")
    assert sorted(drained("parquet", loader)) == list(range(ROWS))
    more = tmp_path / "more"
    more.mkdir()
    write(more, 2 * ROWS, 2)
    (folder / "b.parquet").unlink()
    half = sorted(drained_of(real, f"parquet:{folder}/a.parquet"))
    shutil.copy(more / "parquet" / "b.parquet", folder / "b.parquet")
    others = sorted(drained_of(real, f"parquet:{folder}/b.parquet"))
    server.cli("dataset", "refresh", f"parquet:{folder}")
    assert sorted(drained("parquet", loader)) == sorted(half + others)
    loader.close()


def drained_of(real: Any, uri: str) -> list[int]:
    loader = real(uri, batch_size=5, shuffle=False, ragged="list")
    out = drained("parquet", loader)
    loader.close()
    return out
