"""Datasets in a bucket, served by versitygw: the same batches as from the folder, whatever the network does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pace import eventually
from real import digest, draw
from s3 import SECRET, Proxy, Server, images

import larder

URI = "imagefolder:s3://pictures/sets/train"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Server]:
    pytest.importorskip("PIL.Image", reason="Pillow draws the images")
    draw(tmp_path / "buckets" / "pictures" / "sets" / "train", 5, 12)
    server = Server(tmp_path / "buckets")
    yield server
    server.stop()


def test_a_bucket_gives_what_the_folder_gives(bucket, world, tmp_path):
    d = world.daemon(bucket.url, price_get="0.4", price_list="5", hedge="0")
    folder = bucket.folder / "pictures" / "sets" / "train"
    want = images(f"imagefolder:{folder}")
    assert len(want) == 60 and images(URI) == want
    (cost,) = json.loads(d.cli("stats", "-o", "json").stdout)["stores"]
    assert (cost["name"], cost["reads"], cost["lists"]) == ("s3://pictures", "60", "6")
    assert cost["money"] == pytest.approx(60 * 0.4e-3 + 6 * 5e-3)
    assert int(cost["bytes"]) >= sum(f.stat().st_size for f in folder.rglob("*.*"))
    assert "s3://pictures" in d.cli("stats").stdout
    d.env["LARDER_CONFIG"] = str(tmp_path / "d1" / "larder.yaml")  # verify reads by itself
    assert "60 of 60 samples read and decoded" in d.cli("dataset", "verify", URI).stdout
    assert "41x71" in d.cli("dataset", "inspect", URI).stdout  # the head of an image alone is read
    # What nobody is to see is nowhere: neither in what was written nor in what was said.
    said = "".join(d.cli(*c).stdout for c in (["status"], ["config", "show"], ["jobs", "ls"], ["stats", "-o", "yaml"]))
    assert SECRET not in said
    for path in (p for p in (tmp_path / "d1").rglob("*") if p.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path


def test_jobs_get_everything_once_over_a_bad_network(bucket, world):
    answers: dict[int, Any] = {1: 503, 2: "cut", 3: 500, 4: "stall"}
    proxy = Proxy(bucket, lambda n: answers.get(n % 13))
    try:
        d = world.daemon(proxy.url, timeout="1m")
        want = images(f"imagefolder:{bucket.folder}/pictures/sets/train")
        loaders = [larder.Loader(URI, batch_size=8, job=f"job{i}", seed=i, epochs=1) for i in range(2)]
        for loader in loaders:
            got = [(int(x), digest(i)) for batch, labels in loader for i, x in zip(batch, labels, strict=True)]
            assert sorted(got) == sorted(want)
            loader.close()
        (cost,) = json.loads(d.cli("stats", "-o", "json").stdout)["stores"]
        assert proxy.spoilt > 20 and int(cost["retries"]) > 15 and cost["errors"] == "0"
    finally:
        proxy.close()


def test_jobs_wait_for_a_server_that_is_down(bucket, world):
    d = world.daemon(bucket.url, retry_for="1h")

    def back():
        eventually(lambda: int(json.loads(d.cli("stats", "-o", "json").stdout)["stores"][0]["retries"]) > 2)
        bucket.start()

    starts = Thread(target=back)
    with larder.Loader(URI, batch_size=4, prefetch=1, seed=1, epochs=1) as loader:
        seen = []
        for n, (batch, labels) in enumerate(loader):
            seen += [(int(x), digest(i)) for i, x in zip(batch, labels, strict=True)]
            del batch
            if n == 4:
                bucket.stop()
                starts.start()
    starts.join()
    want = images(f"imagefolder:{bucket.folder}/pictures/sets/train")
    assert sorted(seen) == sorted(want)
    assert json.loads(d.cli("stats", "-o", "json").stdout)["totals"]["quarantined"] == "0"


def test_what_stays_wrong_is_named(bucket, world, monkeypatch):
    world.daemon(bucket.url)
    train = bucket.folder / "pictures" / "sets" / "train"
    loader = larder.Loader(URI, batch_size=60, shuffle=False, on_error="skip")
    one, other = sorted(train.rglob("*.jpg"))[3:5]
    shutil.copyfile(other, one)
    assert sum(len(labels) for _, labels in loader) == 59
    loader.close()
    with larder.Loader(URI, batch_size=60, shuffle=False) as loader:  # it was listed again
        assert sum(len(labels) for _, labels in loader) == 60
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not the one")
    world.daemon(bucket.url)
    with pytest.raises(larder.Error, match=r"signature is wrong") as e:
        larder.Loader(URI, batch_size=4)
    assert "not the one" not in str(e.value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    world.daemon(bucket.url)
    with pytest.raises(larder.Error, match="no credentials found"):
        larder.Loader(URI, batch_size=4)
    with pytest.raises(larder.Error, match=r"no such bucket|no credentials"):
        larder.Loader("imagefolder:s3://nosuch/train", batch_size=4)
    shutil.rmtree(train)
