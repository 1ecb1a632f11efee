"""larder pack into a bucket, served by versitygw: the bytes of a pack in a folder, read by larder and by the formats'
own readers, and a run that is killed at any moment goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killed import run_killed, work
from real import draw, find_binary, formats, night
from s3 import CREDENTIALS, SECRET, Server, images
from test_e2e_pack import tree

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
HERE = Path(__file__).resolve()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Server]:
    pytest.importorskip("PIL.Image", reason="Pillow draws the images")
    (tmp_path / "buckets" / "packs").mkdir(parents=True)
    server = Server(tmp_path / "buckets")
    yield server
    server.stop()


def environment(bucket: Server, folder: Path) -> dict[str, str]:
    """What larder pack needs to reach the bucket without a daemon."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "AWS_"))}
    env |= {**CREDENTIALS, "AWS_ENDPOINT_URL": bucket.url, "HOME": str(folder), "TMPDIR": str(folder)}
    return {**env, "LARDER_SOCKET": str(folder / "none.sock"), "LARDER_STORES__S3__PRICE_LIST": "5"}


def command(uri: Any, to: str, *more: Any) -> list[str]:
    return [find_binary(), "pack", str(uri), "--to", to, *map(str, more), "-o", "json"]


def run(bucket: Server, folder: Path, *args: Any) -> dict[str, Any]:
    p = subprocess.run(command(*args), capture_output=True, text=True, timeout=300, env=environment(bucket, folder))
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["wds", "mds"])
def test_a_pack_in_a_bucket_is_that_in_a_folder(scheme, bucket, world, tmp_path):
    folder = draw(tmp_path / "images", 4, 9, seed=3, size=(1, 90))
    flags = ["--shard-size", 20_000, "--verify"]
    run(bucket, tmp_path, f"imagefolder:{folder}", f"{scheme}:{tmp_path / 'own'}", *flags)
    got = run(bucket, tmp_path, f"imagefolder:{folder}", f"{scheme}:s3://packs/a/{scheme}", *flags)
    assert got["samples"] == got["verified"] == 36 and got["shards"] > 1 and got["bad"] == []
    (cost,) = got["stores"]
    assert cost["name"] == "s3://packs" and cost["sent"] >= got["bytes"] and cost["retries"] == 0
    assert cost["writes"] >= 2 * got["shards"] + 4 and cost["deletes"] >= got["shards"] + 2 and cost["money"] > 0
    there = bucket.folder / "packs" / "a" / scheme
    assert tree(there) == tree(tmp_path / "own")
    again = run(bucket, tmp_path, f"imagefolder:{folder}", f"{scheme}:s3://packs/a/{scheme}", *flags)
    assert again["earlier"] == 36 and again["stores"][0]["writes"] == 0

    world.daemon(bucket.url)
    want = images(f"imagefolder:{folder}")
    assert images(f"{scheme}:s3://packs/a/{scheme}") == images(f"{scheme}:{tmp_path / 'own'}") == want

    other = "mds" if scheme == "wds" else "wds"  # packs_read.py reads a pair
    run(bucket, tmp_path, f"{scheme}:s3://packs/a/{scheme}", f"{other}:s3://packs/a/{other}")
    script = [formats(), "-W", "ignore", HERE.parent / "packs_read.py"]
    at = bucket.folder / "packs" / "a"
    p = subprocess.run([*script, at / "wds", at / "mds", folder, tmp_path / "theirs", "20000"], check=True, timeout=300,
                       capture_output=True, text=True)
    theirs = json.loads(p.stdout.splitlines()[-1])
    assert theirs["wds"] == theirs["mds"] and [r[0] for r in theirs["wds"]] == [label for label, _ in want]


@pytest.mark.parametrize("scheme", ["wds", *night("mds")])
def test_a_pack_into_a_bucket_that_is_killed_goes_on(scheme, bucket, tmp_path):
    folder = draw(tmp_path / "images", 4, 30, seed=5, size=(60, 200))
    flags = ["--shard-size", "64KiB", "--max-size", "150", "--quality", "85", "--shuffle", "3"]
    images = f"imagefolder:{folder}"
    env = environment(bucket, tmp_path)
    whole = work(command(images, f"{scheme}:s3://packs/whole", *flags), env)
    want = tree(bucket.folder / "packs" / "whole")

    def whole_shards():
        there = tree(bucket.folder / "packs" / "out")
        shards = [n for n in there if "/" not in n and n.startswith("shard")]
        assert all(there[n] == want[n] for n in shards), "a shard under its own name is whole"

    run_killed(command(images, f"{scheme}:s3://packs/out", *flags), whole, runs=40, kills=12, env=env,
               killed=whole_shards)
    assert tree(bucket.folder / "packs" / "out") == want
    assert not list(tmp_path.glob("larder-pack*"))  # temporary files have no names


def test_what_a_user_gets_wrong_with_buckets(bucket, tmp_path):
    folder = draw(tmp_path / "images", 2, 4, seed=6)
    (bucket.folder / "packs" / "mine").mkdir()
    (bucket.folder / "packs" / "mine" / "thesis.txt").write_text("x")
    for to, code, words in [
        ("wds:https://host/x", 1, "cannot write to a web server"),
        ("wds:s3://packs", 2, "names no place in the bucket"),
        ("wds:s3://packs/mine", 5, "thesis.txt"),
        ("wds:s3://no-such-bucket/x", 7, "no such bucket"),
        ("wds:s3://tester:geheim@packs/x", 2, "holds a user name"),
    ]:
        p = subprocess.run(command(f"imagefolder:{folder}", to), capture_output=True, text=True, timeout=120,
                           env=environment(bucket, tmp_path))
        assert (p.returncode, words in p.stderr) == (code, True), (to, p.returncode, p.stderr)
        assert "geheim" not in p.stderr and SECRET not in p.stderr
    env = environment(bucket, tmp_path) | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    p = subprocess.run(command(f"imagefolder:{folder}", "wds:s3://packs/x"), capture_output=True, text=True, env=env,
                       timeout=120)
    assert p.returncode == 7 and "the signature is wrong" in p.stderr
