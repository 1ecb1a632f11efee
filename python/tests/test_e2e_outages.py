"""Storage that fails as a whole, against the real daemon: how long next() waits, what is said meanwhile, and a daemon
that is killed while it fails.
"""

from __future__ import annotations

import json
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from conftest import eventually
from real import PATIENCE, Daemon, draw
from s3 import Server, World

import larder
from larder import ops

SMALL: dict[str, Any] = {"tiers": {"total": "0"}, "memory": {"limit": "2GiB"}, "log": {"format": "json"}}
CROP = [ops.RandomResizedCrop(24)]


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", larder.StorageWarning)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw(tmp_path / "mounted", 3, 8, size=(24, 40))


def config(**source: str) -> str:
    return json.dumps({**SMALL, "source": source})


def drain(it: Iterator[Any], seen: list[int]) -> None:
    for batch in it:
        seen += batch[-1].tolist()
        del batch


def logged(daemon: Daemon, message: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in daemon.log.read_text().splitlines() if line.startswith("{")]
    return [x for x in lines if message in x["msg"]]


def metrics(daemon: Daemon) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{daemon.ready['http']}/metrics") as r:
        lines = [x for x in r.read().decode().splitlines() if x.startswith("larder_dataset_")]
    return {x.split("{")[0].removeprefix("larder_dataset_"): float(x.rsplit(" ", 1)[1]) for x in lines}


def test_an_outage_has_an_end(private, folder, tmp_path, monkeypatch, clock):
    """next() raises after source.outage_timeout, says what to do, and goes on when the disk is back. The setting can be
    changed meanwhile.
    """
    monkeypatch.setattr("larder._waits._LOOK", 100.0)
    monkeypatch.setattr("larder._arguments._TIMEOUT", 1e6)
    daemon = private(config(outage_timeout="1m"), "--http", "127.0.0.1:0", "--clock", clock.address)
    uri = f"imagefolder:{folder}"
    seen: list[int] = []
    with larder.Loader(
        uri, batch_size=4, shuffle=True, return_index=True, transform=CROP, job="a", endpoint=daemon.socket, epochs=1
    ) as loader:
        it = iter(loader)
        seen += next(it)[-1].tolist()
        away = folder.rename(folder.with_name("away"))
        with quiet(), clock.passing(100.0, longer=60.0):
            for _ in range(2):  # again and again, and nothing is lost
                with pytest.raises(larder.StorageError, match=r"storage of job 'a' has failed for .* s: ") as e:
                    drain(it, seen)
                assert e.value.cause == "storage" and isinstance(e.value, larder.DeadlineError)
                assert "call next() again" in e.value.hint and "source.outage_timeout" in e.value.hint
        said = daemon.cli("status").stdout
        assert "has failed for" in said and "1 job waits for it" in said and "was removed" in said, said
        got = metrics(daemon)
        assert got["jobs_waiting_for_storage"] == 1 and got["storage_outages_total"] == 1
        assert got["storage_outage_seconds_total"] > 60
        of = loader.stats().dataset
        assert of.outages == 1 and of.outage_seconds > 60 and of.jobs_waiting == 1
        away.rename(folder)
        (tmp_path / "later.yaml").write_text(config(outage_timeout="0s"))
        applied = daemon.cli("config", "apply", str(tmp_path / "later.yaml")).stdout
        assert "source.outage_timeout" in applied, applied
        with quiet(), clock.passing(100.0, longer=60.0):  # until the disk is tried again
            drain(it, seen)
        assert sorted(seen) == list(range(24)) and not loader.quarantined
        stats = json.loads(daemon.cli("stats", "-o", "json").stdout)
        (data,) = stats["datasets"]
        assert data["outages"] == "1" and data["outage_seconds"] > 60 and data.get("outage") is None
        assert stats["totals"]["quarantined"] == "0"
    assert "has failed for" not in daemon.cli("status").stdout
    assert metrics(daemon)["jobs_waiting_for_storage"] == 0
    begun, ended = logged(daemon, "storage fails"), logged(daemon, "storage is not waited for any more")
    assert len(begun) == 1 and len(ended) == 1, (begun, ended)
    assert str(folder) in begun[0]["dataset"] + begun[0]["err"] and ended[0]["dataset"] == begun[0]["dataset"]


def test_the_timeout_of_a_script_ends_an_outage_only_if_it_was_given(private, folder, monkeypatch, clock):
    monkeypatch.setattr("larder._waits._LOOK", 100.0)
    monkeypatch.setattr("larder._arguments._TIMEOUT", 600.0)
    daemon = private(config())
    uri = f"imagefolder:{folder}"
    kw: dict[str, Any] = {"batch_size": 4, "return_index": True, "transform": CROP, "endpoint": daemon.socket}
    with larder.Loader(uri, job="given", timeout=600.0, **kw) as given, larder.Loader(uri, job="not", **kw) as patient:
        its = iter(given), iter(patient)
        seen: list[list[int]] = [[], []]
        for it, mine in zip(its, seen, strict=True):
            mine += next(it)[-1].tolist()
        away = folder.rename(folder.with_name("away"))
        failing = clock.passing(100.0, longer=60.0, after=lambda: waits_for_storage(daemon, "given"))
        with quiet(), failing, pytest.raises(larder.DeadlineError, match="storage, which has failed for") as e:
            drain(its[0], seen[0])
        assert not isinstance(e.value, larder.StorageError) and e.value.cause == "storage"
        looks = 0
        ask = larder._waits._ask

        def asked(*a: Any) -> Any:
            nonlocal looks
            if (looks := looks + 1) == 10:  # longer than the timeout
                away.rename(folder)
            return ask(*a)

        monkeypatch.setattr("larder._waits._ask", asked)
        words = r"next\(\) waits 30m0s for it \(source\.outage_timeout\)"
        with clock.passing(100.0, longer=60.0), pytest.warns(larder.StorageWarning, match=words):
            drain(its[1], seen[1])
        drain(its[0], seen[0])
    assert looks >= 10
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(24))


class Epochs(Thread):
    """Trains all epochs of a loader; `seen` has their samples."""

    def __init__(self, loader: larder.Loader) -> None:
        super().__init__()
        self.loader = loader
        self.failed: list[BaseException] = []
        self.seen: list[list[int]] = [[], []]
        self.begun, self.go_on = Event(), Event()
        self.start()

    def end(self) -> list[list[int]]:
        self.join(PATIENCE)
        assert not self.is_alive() and not self.failed, self.failed
        return self.seen

    def run(self) -> None:
        warnings.simplefilter("ignore", larder.StorageWarning)
        try:
            for seen in self.seen:
                for n, batch in enumerate(self.loader):
                    seen += batch[-1].tolist()
                    del batch
                    if n == 2:
                        self.begun.set()
                        self.go_on.wait(PATIENCE)
        except BaseException as e:
            self.failed.append(e)
            raise


def waits_for_storage(daemon: Daemon, *jobs: str) -> bool:
    described = [json.loads(daemon.cli("jobs", "describe", j, "-o", "json").stdout) for j in jobs]
    return all("outage" in (j.get("wait") or {}) for j in described)


def test_a_daemon_that_is_killed_while_its_store_is_down(tmp_path, monkeypatch):
    """Its successor waits too, and then each sample comes once; a job of worker processes goes on meanwhile."""
    draw(tmp_path / "buckets" / "pictures" / "sets" / "train", 5, 12)
    server = Server(tmp_path / "buckets")
    world = World(tmp_path, monkeypatch)
    settings = {**SMALL, "stores": {"s3": {"endpoint": server.url, "retry_for": "0"}}}
    folder = tmp_path / "d"
    world.live.append(Daemon(folder, config=json.dumps(settings)))
    uri = "imagefolder:s3://pictures/sets/train"
    try:
        kw: dict[str, Any] = {"batch_size": 4, "shuffle": True, "return_index": True, "prefetch": 1, "epochs": 2}
        kw |= {"transform": CROP, "endpoint": world.live[0].socket}
        with (
            larder.Loader(uri, job="a", seed=1, **kw) as a,
            larder.Loader(uri, job="b", seed=2, **kw) as b,
            larder.Loader(list(range(120)), job="c", name="made", num_workers=2, **(kw | {"transform": None})) as c,
        ):
            threads, made = [Epochs(a), Epochs(b)], Epochs(c)
            for t in (*threads, made):
                assert t.begun.wait(PATIENCE)
            server.stop()
            for t in threads:
                t.go_on.set()
            eventually(lambda: waits_for_storage(world.live[0], "a", "b"), PATIENCE)
            world.live[0].kill()
            world.live.append(Daemon(folder, config=json.dumps(settings)))
            made.go_on.set()
            assert [sorted(e) for e in made.end()] == [list(range(120))] * 2
            eventually(lambda: waits_for_storage(world.live[1], "a", "b"), PATIENCE)
            server.start()
            for t in threads:
                assert [sorted(e) for e in t.end()] == [list(range(60))] * 2
            assert not a.quarantined and not b.quarantined
        totals = json.loads(world.live[1].cli("stats", "-o", "json").stdout)["totals"]
        assert totals.get("quarantined", "0") == "0"
    finally:
        for d in world.live:
            d.stop()
        server.stop()
