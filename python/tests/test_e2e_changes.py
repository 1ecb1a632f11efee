"""Objects of a bucket that are written again while jobs read them: an error that names one of them, never a sample of
other bytes than the job's dataset has, and the new samples once the dataset was looked at again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real import PATIENCE, formats
from s3 import Proxy, Server

import larder

HERE = Path(__file__).resolve()
ROWS = 48
URIS = {
    "jsonl": "jsonl:s3://packed/jsonl",
    "mds": "mds:s3://packed/mds?fields=number,text",
    "parquet": "parquet:s3://packed/parquet",
    "tfrecord": "tfrecord:s3://packed/tfrecord?text=text",
}

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what versions_files.py wrote."""
    out = tmp_path_factory.mktemp("versions")
    script = [formats(), "-W", "ignore", HERE.parent / "versions_files.py", out, str(ROWS)]
    subprocess.run(script, check=True, timeout=PATIENCE)
    return out


@pytest.fixture
def bucket(versions: Path, tmp_path: Path) -> Iterator[Proxy]:
    """The bucket "packed" with the old version of all files, behind a proxy."""
    shutil.copytree(versions / "0", tmp_path / "buckets" / "packed")
    server = Server(tmp_path / "buckets")
    proxy = Proxy(server, lambda _: None)
    yield proxy
    proxy.close()
    server.stop()


def write_again(folder: Path, versions: Path, scheme: str) -> None:
    """Puts the new version there. Lengths stay, so that only the time and the bytes tell."""
    for path in sorted((versions / "1" / scheme).iterdir()):
        there = folder / scheme / path.name
        old, body = there.stat(), path.read_bytes()
        assert old.st_size == len(body) and (there.read_bytes() != body or path.suffix == ".json"), path
        there.write_bytes(body)
        os.utime(there, (old.st_atime, old.st_mtime + 5))


def told(batches: Any) -> Iterator[tuple[int, str]]:
    """Number and text of every sample."""
    for batch in batches:
        yield from zip((int(n) for n in batch["number"]), batch["text"], strict=True)


def table(version: int) -> list[tuple[int, str]]:
    """All rows of a version."""
    return [(10_000 + 10 * i + version, f"{str(version) * 8} {i:04}") for i in range(ROWS)]


@pytest.mark.nightly
@pytest.mark.audit("--in-place")
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("scheme", URIS)
def test_objects_that_change_never_give_a_mix(scheme, on_error, bucket, versions, world, tmp_path):
    """Two jobs are under way. Each gives rows of the old objects alone: then an error, or the others are left out and
    named. A job that begins after a refresh has the new rows.
    """
    d = world.daemon(bucket.url, hedge="0")
    arguments: dict[str, Any] = {"batch_size": 2, "shuffle": True, "prefetch": 1, "epochs": 1, "on_error": on_error}
    loaders = [larder.Loader(URIS[scheme], job=f"job{i}", seed=i, timeout=PATIENCE, **arguments) for i in range(2)]
    under_way = [told(loader) for loader in loaders]
    got = [[next(rows)] for rows in under_way]
    with bucket.held():  # no answer has the head of one version and bytes of the other
        write_again(tmp_path / "buckets" / "packed", versions, scheme)
    for loader, rows, mine in zip(loaders, under_way, got, strict=True):
        if on_error == "raise":
            with pytest.raises(larder.SampleError, match=r"was written again|changed since") as e:
                mine += rows
            assert str(e.value.file).startswith(f"s3://packed/{scheme}/")
        else:
            mine += rows
            assert loader.quarantined and len(mine) + len(loader.quarantined) == ROWS
        for bad in loader.quarantined:
            assert bad.path.startswith(f"s3://packed/{scheme}/") and "dataset refresh" in bad.reason
        assert len(set(mine)) == len(mine) < ROWS and set(mine) <= set(table(0))
        loader.close()
    d.cli("dataset", "refresh", URIS[scheme])
    with larder.Loader(URIS[scheme], job="later", seed=3, **arguments) as later:
        assert sorted(told(later)) == table(1)
        assert not later.quarantined
