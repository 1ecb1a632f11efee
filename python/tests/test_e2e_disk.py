"""The disk tier before a bucket: each object is fetched once, by all jobs and daemons, also after a crash."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread
from typing import Any

from conftest import eventually
from real import Daemon, digest
from s3 import Proxy
from test_e2e_stores import URI, bucket, images  # noqa: F401  fixtures

import larder


def with_disk(world: Any, endpoint: str, folder: Path, size: str = "64MiB", **tiers: Any) -> Daemon:
    """A daemon of the world with a disk tier, and without tiers in memory."""
    world.daemons += 1
    config = {
        "stores": {"s3": {"endpoint": endpoint, "hedge": "0"}},
        "tiers": {"total": "0", "disk": {"dir": str(folder), "size": size}, **tiers},
    }
    d = Daemon(world.folder / f"d{world.daemons}", config=json.dumps(config))
    world.live.append(d)
    world.monkeypatch.setenv("LARDER_SOCKET", d.socket)
    return d


def disk_of(d: Daemon) -> dict[str, Any]:
    """The disk tier's figures."""
    return json.loads(d.cli("tiers", "ls", "-o", "json").stdout)["disk"]


def wait_for(d: Daemon, entries: int) -> None:
    """Waits until what was offered is written."""
    eventually(lambda: int(disk_of(d).get("entries", 0)) == entries)


def test_each_object_is_fetched_once(bucket, world, tmp_path):
    proxy = Proxy(bucket, lambda _: None)
    try:
        d = with_disk(world, proxy.url, tmp_path / "disk")
        want = sorted(images(f"imagefolder:{bucket.folder}/pictures/sets/train"))
        got: dict[str, list[tuple[int, str]]] = {}

        def train(name: str, epochs: int) -> None:
            with larder.Loader(URI, batch_size=8, job=name, seed=len(name), epochs=epochs) as loader:
                for _ in range(epochs):
                    got[name] = [(int(x), digest(i)) for b, y in loader for i, x in zip(b, y, strict=True)]

        jobs = [Thread(target=train, args=(f"job{i}", 2)) for i in range(4)]
        for j in jobs:
            j.start()
        for j in jobs:
            j.join()
        assert len(got) == 4 and all(sorted(g) == want for g in got.values())
        assert proxy.gets <= 61, "of 60 objects, in two epochs of four jobs"
        wait_for(d, 60)
        d.kill()  # nothing is said to it
        d = with_disk(world, proxy.url, tmp_path / "disk")
        before = proxy.gets
        train("again", 1)
        assert sorted(got["again"]) == want and proxy.gets == before
        tier = disk_of(d)
        assert int(tier["hits"]) == 60 and tier["state"] == ""
        shown = d.cli("tiers", "ls").stdout
        assert "disk tier" in shown and str(tmp_path / "disk") in shown and "60 (" in shown
        # A smaller tier keeps what fits; what it lost is fetched again.
        out = json.loads(d.cli("tiers", "resize", "disk=0", "-o", "json").stdout)
        assert out["disk"]["entries"] == "0" and "disk=0" not in d.cli("config", "show").stdout
        train("once more", 1)
        assert sorted(got["once more"]) == want and proxy.gets == before + 60
    finally:
        proxy.close()


def test_a_changed_object_is_never_mixed(bucket, world, tmp_path):
    d = with_disk(world, bucket.url, tmp_path / "disk")
    folder = bucket.folder / "pictures" / "sets" / "train"
    before = images(URI)
    wait_for(d, 60)
    victims = sorted(folder.rglob("*.*"))[:5]
    other = sorted(folder.rglob("*.*"))[-1].read_bytes()
    for v in victims:
        v.write_bytes(other)
    d.cli("dataset", "refresh", URI)
    after = images(URI)
    assert after == images(f"imagefolder:{folder}") and after != before
    d.stop()


def test_a_directory_that_fails_costs_speed_only(bucket, world, tmp_path):
    (tmp_path / "file").write_text("no directory")
    d = with_disk(world, bucket.url, tmp_path / "file")
    want = images(f"imagefolder:{bucket.folder}/pictures/sets/train")
    assert images(URI) == want
    assert disk_of(d)["state"].startswith("off: ")
    two = [with_disk(world, bucket.url, tmp_path / "disk") for _ in range(2)]
    assert images(URI) == want  # of the second one, which may not write
    assert "another daemon" in disk_of(two[1])["state"] and disk_of(two[0])["state"] == ""
    refused = two[0].cli("tiers", "resize", "disk=10%", check=False)
    assert refused.returncode != 0 and "200GiB" in refused.stderr
    plain = world.daemon(bucket.url)
    refused = plain.cli("tiers", "resize", "disk=1GiB", check=False)
    assert refused.returncode != 0 and "tiers.disk.dir" in refused.stderr
