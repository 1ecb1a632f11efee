"""Packed files in a bucket, served by versitygw: what the files in a folder give, once each, over any network."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from pace import eventually
from real import PATIENCE, digest, draw, formats, night
from s3 import Proxy, Server, World, images, pack

import larder

HEAD = 64 << 10  # bytes of the first file that are read once more, for its fields
TARS = "wds:s3://packed/sets/part-{000..003}.tar"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Server]:
    pytest.importorskip("PIL.Image", reason="Pillow draws the images")
    pack(draw(tmp_path / "images", 5, 24), tmp_path / "buckets" / "packed" / "sets", 4)
    server = Server(tmp_path / "buckets")
    yield server
    server.stop()


def cost(daemon: Any) -> dict[str, Any]:
    """What the bucket has cost."""
    (c,) = json.loads(daemon.cli("stats", "-o", "json").stdout)["stores"]
    return {k: v if k in ("name", "money") else int(v) for k, v in c.items()}


@pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
def test_tars_of_a_bucket_give_what_the_folder_gives(bucket, world):
    d = world.daemon(bucket.url, price_get="0.4", price_list="5", hedge="0")
    sets = bucket.folder / "packed" / "sets"
    want = images(f"wds:{sets}")
    assert len(want) == 120
    d.cli("dataset", "add", TARS)
    index = cost(d)
    assert 8 <= index["reads"] <= 16 and index["lists"] == 0  # four tars: each is asked for, and read in large blocks
    assert index["bytes"] <= sum(f.stat().st_size for f in sets.iterdir()) + HEAD
    assert images(TARS) == want
    epoch = cost(d)
    stored = sum(len(p.read_bytes()) for p in (world.folder / "images").rglob("*.*"))
    assert epoch["reads"] - index["reads"] == 120
    assert stored <= epoch["bytes"] - index["bytes"] <= 1.02 * stored
    assert epoch["money"] == pytest.approx(epoch["reads"] * 0.4e-3)
    for uri in (
        "wds:s3://packed/sets/",
        "wds:s3://packed/sets/part-{000..001}.tar::s3://packed/sets/part-{002..003}.tar",
    ):
        assert images(uri) == want
    assert cost(d)["lists"] == 1
    assert "120" in d.cli("dataset", "inspect", TARS).stdout


def blocks_epoch(loader: Any, want: list[tuple[int, str]]) -> None:
    """One epoch of a loader with return_index: every sample once, as it is."""
    got = {}
    for batch, labels, ids in loader:
        for image, label, i in zip(batch, labels, ids, strict=True):
            assert int(i) not in got
            got[int(i)] = (int(label), digest(image))
    assert [got[i] for i in sorted(got)] == want


@pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
def test_an_order_of_blocks_reads_them_whole(bucket, world):
    d = world.daemon(bucket.url, hedge="0")
    sets = bucket.folder / "packed" / "sets"
    want = images(f"wds:{sets}")
    d.cli("dataset", "add", TARS)
    size = 32 << 10
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "prefetch": 1, "return_index": True}
    arguments["order"] = "blocks(4, 32KiB)"
    before = cost(d)
    with larder.Loader(TARS, job="one", **arguments) as one:
        assert "blocks(4)" in one.promise
        blocks_epoch(one, want)
        first = cost(d)
        blocks_epoch(one, want)
        reads = first["reads"] - before["reads"]
        assert reads == cost(d)["reads"] - first["reads"]  # the same blocks, each once
        whole = sum(f.stat().st_size for f in sets.iterdir())
        assert whole / size / 2 < reads < 2 * whole / size + 4
        assert first["bytes"] - before["bytes"] <= whole
        assert one.stats().dataset.counters.source_reads == 2 * reads

        before = cost(d)
        with larder.Loader(TARS, job="two", **arguments) as two:  # each waits for the other one's batch
            ids: list[list[int]] = [[], []]
            for a, b in zip(one, two, strict=True):
                ids[0] += a[2].tolist()
                ids[1] += b[2].tolist()
            assert sorted(ids[0]) == sorted(ids[1]) == list(range(120))
        assert cost(d)["reads"] - before["reads"] <= 1.1 * reads + 1


ANSWERS = {
    "refused": {1: 503, 2: 500, 3: 429},
    "cut": {1: "cut", 5: "cut", 20: "stall"},
    "wrong lengths": {2: "short"},
    "late": {9: "late"},
    "expired": {4: "expired"},
}


@pytest.mark.parametrize("what", ["cut", *night(*(x for x in ANSWERS if x != "cut"))])
@pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
def test_two_jobs_get_everything_once_over_a_bad_network(what, bucket, world):
    proxy = Proxy(bucket, lambda n: ANSWERS[what].get(n % 29))
    try:
        hedge = "0.05" if what == "late" else "0"  # a second request takes the place of a repeat
        d = world.daemon(proxy.url, timeout="1m", hedge=hedge)
        want = images(f"wds:{bucket.folder}/packed/sets")
        loaders = [larder.Loader(TARS, batch_size=8, job=f"job{i}", seed=i, epochs=1, prefetch=1) for i in range(2)]
        for loader in loaders:
            assert sorted(each(loader)) == sorted(want)
            loader.close()
        spent = cost(d)
        assert proxy.spoilt > 5 and spent["errors"] == 0
        assert what == "late" or spent["retries"] > 5
    finally:
        proxy.close()


def each(loader: Any) -> Iterator[tuple[int, str]]:
    """Label and digest of every sample."""
    for batch, labels in loader:
        yield from ((int(x), digest(i)) for i, x in zip(batch, labels, strict=True))


TABLE = """
import pyarrow as pa, pyarrow.parquet as pq, sys
xs = range(int(sys.argv[2]))
pq.write_table(pa.table({"id": xs, "text": [f"row {x}" for x in xs]}), sys.argv[1], row_group_size=int(sys.argv[3]))
"""


def records(bucket: Server, scheme: str, n: int, group: int) -> str:
    """A dataset of n records {"id": i, "text": "row i"}: JSON lines, or a table with so many rows in a group."""
    path = bucket.folder / "packed" / f"rows.{scheme}"
    if scheme == "jsonl":
        path.write_text("".join(json.dumps({"id": i, "text": f"row {i}"}) + "\n" for i in range(n)))
    else:
        subprocess.run([formats(), "-c", TABLE, path, str(n), str(group)], check=True, timeout=PATIENCE)
    return f"{scheme}:s3://packed/rows.{scheme}"


def rows(uri: str, **arguments: Any) -> list[tuple[int, str]]:
    """The records of an epoch."""
    with larder.Loader(uri, epochs=1, shuffle=True, **arguments) as loader:
        return [(int(i), t) for batch in loader for i, t in zip(batch["id"], batch["text"], strict=True)]


@pytest.mark.parametrize(
    ("what", "scheme"),
    [
        ("refused", "jsonl"),
        *night(*((w, s) for w in ANSWERS for s in ("jsonl", "parquet") if (w, s) != ("refused", "jsonl"))),
    ],
)
def test_two_jobs_get_records_once_over_a_bad_network(what, scheme, bucket, world):
    n = 40
    uri, how = records(bucket, scheme, n, 1), list(ANSWERS[what].values())
    proxy = Proxy(bucket, lambda g: how[g // 4 % len(how)] if g % 4 == 2 else None)
    try:
        hedge = "0.05" if what == "late" else "0"
        d = world.daemon(proxy.url, timeout="1m", hedge=hedge)
        for i in range(2):
            assert sorted(rows(uri, batch_size=8, job=f"job{i}", seed=i, prefetch=1)) == [
                (k, f"row {k}") for k in range(n)
            ]
        spent = cost(d)
        assert proxy.spoilt > 5 and spent["errors"] == 0
        assert what == "late" or spent["retries"] > 5
    finally:
        proxy.close()


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["jsonl", "parquet"])
def test_records_come_once_when_every_request_is_late_by_a_second(scheme, bucket, world):
    """Requests wait beside each other, at most as many as the settings of the store allow."""
    n, parallel = 16, 8
    uri = records(bucket, scheme, n, n // parallel)
    proxy = Proxy(bucket, lambda _: None, delay=1)
    try:
        d = world.daemon(proxy.url, timeout="1m", hedge="0", parallel=parallel)
        loaders = [
            larder.Loader(uri, batch_size=n // 2, job=f"job{i}", seed=i, shuffle=True, epochs=1) for i in range(2)
        ]
        for loader in loaders:  # both have begun
            got = [(int(i), t) for batch in loader for i, t in zip(batch["id"], batch["text"], strict=True)]
            assert sorted(got) == [(k, f"row {k}") for k in range(n)]
            loader.close()
        spent = cost(d)
        assert proxy.gets > parallel and spent["errors"] == spent["retries"] == 0
        assert 1 < proxy.most <= parallel
    finally:
        proxy.close()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
def test_what_stays_wrong_ends_the_job_with_its_cause(bucket, world, monkeypatch, clock):
    state: dict[str, Any] = {"how": None}
    proxy = Proxy(bucket, lambda n: state["how"])
    sets = bucket.folder / "packed" / "sets"
    want = set(images_of_folder(world, bucket, sets))
    try:
        monkeypatch.setattr("larder._waits._LOOK", 100.0)
        d = world.daemon(proxy.url, retry_for="0")
        loader = larder.Loader(TARS, batch_size=4, prefetch=1, seed=1, on_error="raise", timeout=600.0)
        state["how"] = "expired for good"
        late = clock.passing(100.0, longer=60.0, after=lambda: "has failed for" in d.cli("status").stdout)
        with late, pytest.raises(larder.Error, match="credentials have expired"):
            list(each(loader))
        loader.close()
        state["how"] = 500
        with pytest.raises(larder.Error, match=r"answers 500|part-00"):
            larder.Loader("wds:s3://packed/sets", batch_size=4, timeout=PATIENCE)
        state["how"] = None
        world.daemon(proxy.url)
        loader = larder.Loader(TARS, batch_size=4, prefetch=1, seed=2, on_error="raise")
        seen = each(loader)
        got = [next(seen)]
        for part in sets.iterdir():  # the same length, other bytes
            body = bytearray(part.read_bytes())
            body[600:700] = bytes(100)
            part.write_bytes(body)
        with pytest.raises(larder.Error, match=r"written again|changed"):
            got += list(seen)
        assert set(got) <= want
        loader.close()
    finally:
        proxy.close()


def images_of_folder(world: World, bucket: Server, sets: Path) -> list[tuple[int, str]]:
    """What the tars of the folder give."""
    world.daemon(bucket.url)
    return images(f"wds:{sets}")


NOISE = """
import random, sys
from streaming import MDSWriter
pick = random.Random(1)
with MDSWriter(out=sys.argv[1], columns={"number": "int", "noise": "bytes"}, size_limit=64 << 10) as w:
    for i in range(int(sys.argv[2])):
        w.write({"number": i, "noise": pick.randbytes(pick.randint(1000, 3000))})
"""
EACH, EPOCHS, JOBS = 72, 2, 4


def large(bucket: Server, scheme: str, images: Path) -> tuple[str, int, int]:
    """Images in tars, or numbers and bytes in MDS: the dataset in the bucket, how many samples and how many bytes."""
    whole = bucket.folder / "packed" / "large-0"
    if scheme == "wds":
        pack(draw(images, 5, EACH, seed=2), whole, 4)
        stored = sum(p.stat().st_size for p in images.rglob("*.*"))
    else:
        script = [formats(), "-W", "ignore", "-c", NOISE, whole, str(5 * EACH)]
        subprocess.run(script, check=True, timeout=PATIENCE)
        stored = sum(p.stat().st_size for p in whole.glob("*.mds"))
    return f"{scheme}:s3://packed/large-0" + ("?fields=number,noise" if scheme == "mds" else ""), 5 * EACH, stored


@pytest.mark.audit("--whole")
@pytest.mark.parametrize(("scheme", "shared"), [("wds", True), *night(("mds", True), ("wds", False))])
@pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
def test_four_jobs_on_more_than_memory_holds(scheme, shared, bucket, world, tmp_path):
    """Four jobs in step, and a tier of an eighth of the dataset: every job has every sample of every epoch, for less
    than half of what four jobs fetch that share nothing. Jobs on a copy each are those, and they fetch all of that.
    """
    uri, n, stored = large(bucket, scheme, tmp_path / "more")
    uris = [uri] * JOBS
    if not shared:
        uris = [uri.replace("large-0", f"large-{i}") for i in range(JOBS)]
        for i in range(1, JOBS):
            shutil.copytree(bucket.folder / "packed" / "large-0", bucket.folder / "packed" / f"large-{i}")
    tier = stored // 8
    d = world.daemon(bucket.url, hedge="0", config={"tiers": {"encoded": str(tier), "decoded": "0", "augmented": "0"}})
    for u in set(uris):
        d.cli("dataset", "add", u)
    before = cost(d)
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "epochs": EPOCHS, "prefetch": 2}
    loaders = [larder.Loader(u, job=f"job{i}", seed=i, return_index=True, **arguments) for i, u in enumerate(uris)]
    for _ in range(EPOCHS):
        seen: list[list[int]] = [[] for _ in loaders]
        for batches in zip(*loaders, strict=True):
            for ids, batch in zip(seen, batches, strict=True):
                ids += batch[-1].tolist()
        assert [sorted(ids) for ids in seen] == [list(range(n))] * JOBS
    for loader in loaders:
        loader.close()
    spent = cost(d)
    reads, fetched = spent["reads"] - before["reads"], spent["bytes"] - before["bytes"]
    # A job alone reads each sample once an epoch. Only what the tier held at the end of the one before is not fetched.
    apart = JOBS * EPOCHS * stored - (EPOCHS - 1) * tier
    assert spent["errors"] == spent["retries"] == 0
    if shared:
        assert EPOCHS * stored - (EPOCHS - 1) * tier <= fetched <= apart / 2 and reads <= JOBS * EPOCHS * n / 2
    else:
        assert fetched >= 0.97 * apart


@pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
def test_a_disk_tier_that_holds_all_reads_each_byte_once(bucket, world, tmp_path):
    tiers = {"total": "64MiB", "encoded": "0", "decoded": "0", "augmented": "0"}
    disk = {"dir": str(tmp_path / "disk"), "size": "64MiB"}
    d = world.daemon(bucket.url, hedge="0", config={"tiers": {**tiers, "disk": disk}})
    loader = larder.Loader(TARS, batch_size=8, seed=1, epochs=3)
    first = sorted(each(loader))
    spent = cost(d)
    assert sorted(each(loader)) == first and sorted(each(loader)) == first
    loader.close()
    stored = sum(len(p.read_bytes()) for p in (tmp_path / "images").rglob("*.*"))
    packed = sum(p.stat().st_size for p in (bucket.folder / "packed" / "sets").iterdir())
    assert len(first) == 120 and spent["bytes"] <= 1.02 * stored + packed + HEAD
    assert cost(d)["bytes"] == spent["bytes"]


def test_what_waits_for_a_store_ends_with_its_job_and_its_daemon(bucket, world):
    """A store that is down for an hour holds up neither the end of a job nor that of the daemon."""
    lines = bucket.folder / "packed" / "lines.jsonl"
    lines.write_text("".join(json.dumps({"id": i}) + "\n" for i in range(200)))
    down = Event()
    proxy = Proxy(bucket, lambda _: 503 if down.is_set() else None)
    d = world.daemon(proxy.url, retry_for="1h", timeout="1h")
    uri, ended = "jsonl:s3://packed/lines.jsonl", Event()
    d.cli("dataset", "add", uri)
    down.set()

    def read() -> None:
        with pytest.raises(larder.Error), larder.Loader(uri, batch_size=4, job="waits") as loader:
            for _ in loader:
                pass
        ended.set()

    reader = Thread(target=read)
    reader.start()
    eventually(lambda: proxy.spoilt > 0)
    assert not ended.is_set()
    d.cli("jobs", "kill", "waits")
    assert ended.wait(PATIENCE)
    reader.join()
    d.stop()
    proxy.close()
