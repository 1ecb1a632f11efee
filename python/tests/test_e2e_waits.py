"""What is waited for is named, wherever a user looks, against the real daemon: storage, cores, the script, an absent
rank, a pause.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import eventually
from real import PATIENCE, draw

import larder
from larder import ops

SMALL = "tiers: {total: 64MiB}\nmemory: {limit: 2GiB}\n"
CROP = [ops.RandomResizedCrop(24)]


def wait_of(daemon, name) -> dict:
    return json.loads(daemon.cli("jobs", "describe", name, "-o", "json").stdout).get("wait") or {}


def row_of(daemon, name) -> dict[str, str]:
    """The job's line of `jobs ls`, by column."""
    head, *lines = daemon.cli("jobs", "ls", "--ended").stdout.splitlines()
    at = [(m.start(), m.group().strip()) for m in re.finditer(r"\S+( \S+)*", head)]
    ends = [start for start, _ in at[1:]] + [None]
    cells = [{word: line[start:end].strip() for (start, word), end in zip(at, ends, strict=True)} for line in lines]
    return next(c for c in cells if c["NAME"] == name)


@contextmanager
def waiting(it) -> Iterator[None]:
    """A training script in a thread that asks for its next batch, and waits."""
    ended = []

    def run():
        try:
            next(it)
        except (larder.Error, StopIteration) as e:
            ended.append(e)

    t = threading.Thread(target=run)
    t.start()
    try:
        yield
    finally:
        t.join(PATIENCE)
        assert not t.is_alive()


def test_storage_that_fails_is_waited_for(real, tmp_path, monkeypatch):
    """A disk that is unmounted in an epoch: next() warns and waits, and the epoch has each sample once, none bad."""
    monkeypatch.setattr("larder._waits._LOOK", 0.2)
    folder = draw(tmp_path / "mounted", 3, 8, size=(24, 40))
    loader = real(f"imagefolder:{folder}", batch_size=4, shuffle=True, return_index=True, transform=CROP, prefetch=1)
    away = folder.rename(tmp_path / "away")
    told = []

    def tell(message, category, *_):
        if category is larder.StorageWarning:
            told.append(str(message))
            away.rename(folder)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", tell)
        got = [i for *_, index in loader for i in index.tolist()]
    assert len(told) == 1 and re.search("storage, which has failed for .* is tried again every", told[0])
    assert sorted(got) == list(range(24)) and not loader.quarantined


def test_storage_is_named_while_it_is_waited_for(private, small, clock):
    daemon = private(SMALL, "--storage-limit", "4kB/s")  # a batch takes a minute
    with larder.Loader(
        f"imagefolder:{small}", batch_size=32, transform=CROP, job="slow", endpoint=daemon.socket, timeout=600.0
    ) as loader:
        it = iter(loader)
        waited = []
        with waiting(it):
            eventually(
                lambda: (
                    wait_of(daemon, "slow").get("cause") == "storage"
                    and wait_of(daemon, "slow").get("seconds", 0) > 0.2
                )
            )
            waited.append(wait_of(daemon, "slow")["seconds"])
            row = row_of(daemon, "slow")
            assert re.fullmatch(r"storage \d+\.\ds", row["WAITS FOR"]) and float(row["WAITED"][:-1]) > 0, row
            said = daemon.cli("jobs", "describe", "slow").stdout
            assert re.search(
                r"waits for +storage: \d+ reads? (is|are) under way.* held to 3\.91KiB/s by source\.storage_limit", said
            ), said
            said = daemon.cli("explain", "slow").stdout
            assert "Now it waits for storage: " in said and "Fewer reads" in said, said
            said = daemon.cli("explain").stdout
            assert "Waiting for storage: slow." in said and "What helps slow: Fewer reads" in said, said
            clock.advance(600)
        with clock.passing(600, longer=1.5), pytest.raises(larder.DeadlineError) as e:
            next(it)
        assert e.value.cause == "storage" and isinstance(e.value, RuntimeError), "as torch's"
        assert "it waits for storage: " in str(e.value) and "raise timeout=" in str(e.value)
        stats = loader.stats()
        assert stats.job.waits_for == "storage" and "under way" in stats.job.waits_text
        (least,) = waited
        assert stats.job.counters.wait_seconds >= least and stats.totals.wait_seconds >= least, "in vain counts, too"
    assert float(row_of(daemon, "slow")["WAITED"][:-1]) >= round(least, 1), "also when its client has given up"


def test_a_slow_script_is_named(real, server, small):
    loader = real(f"imagefolder:{small}", batch_size=8, transform=CROP, job="slow-script")
    it = iter(loader)
    held = next(it)
    eventually(lambda: "batches are ready" in wait_of(server, "slow-script").get("text", ""))
    assert row_of(server, "slow-script")["WAITS FOR"] == "script"
    said = server.cli("explain", "slow-script").stdout
    assert (
        "Now it waits for the training script: 3 batches are ready for it" in said
        and "larder is ahead of the script" in said
    ), said
    assert loader.stats().job.waits_for == "script"
    del held


def test_cores_are_named(private, tmp_path):
    big = draw(tmp_path / "big", 1, 1, size=(1400, 1600))  # to draw a large one takes longer than to decode it
    (image,) = big.rglob("*.jpg")
    for n in range(1, 8):
        shutil.copy(image, image.with_name(f"{n:03}.jpg"))
    daemon = private("prep: {workers: 1}\ntiers: {total: 0}\nmemory: {limit: 2GiB}\n")
    seen: set[str] = set()
    stop = threading.Event()
    with larder.Loader(
        f"imagefolder:{big}",
        batch_size=4,
        transform=[ops.Resize(1200), ops.CenterCrop(1000)],
        job="busy",
        endpoint=daemon.socket,
    ) as loader:

        def look():
            while not stop.is_set() and "cores" not in seen:
                seen.add(wait_of(daemon, "busy").get("cause", ""))

        t = threading.Thread(target=look)
        t.start()
        for _ in range(200):
            if "cores" in seen:
                break
            for batch in loader:
                del batch
        stop.set()
        t.join(PATIENCE)
        assert "cores" in seen, seen


def test_an_absent_rank_is_named(real, server, small, clock):
    kw = {"batch_size": 2, "transform": CROP, "job": "pair", "world_size": 2, "prefetch": 1}
    server.cli("dataset", "add", f"imagefolder:{small}")
    first = real(f"imagefolder:{small}", rank=0, timeout=600.0, **kw)
    it = iter(first)
    with clock.passing(600, longer=1.5), pytest.raises(larder.DeadlineError) as e:
        next(it)
    assert e.value.cause == "rank"
    for words in (
        "it waits for rank 1, which has not come",
        "all 2 ranks",
        "rank=0, world_size=1",
        "larder jobs describe pair",
    ):
        assert words in str(e.value)
    eventually(lambda: wait_of(server, "pair")["seconds"] >= 2)  # it is counted on
    wait = wait_of(server, "pair")
    assert wait["cause"] == "rank" and wait["ranks"] == [1]
    assert re.fullmatch(r"rank 1 \d+\.\ds", row_of(server, "pair")["WAITS FOR"])
    assert "waits for  rank 1, which has not come" in server.cli("jobs", "describe", "pair").stdout
    assert "Now it waits for rank 1" in server.cli("explain", "pair").stdout
    second = real(f"imagefolder:{small}", rank=1, **kw)
    other = iter(second)  # it comes, takes one batch and continues with something else, as in a validation
    next(other)
    eventually(lambda: "cause" in wait_of(server, "pair"))
    for _ in it:
        pass
    it = iter(first)
    still = r"it waits for rank 1, which is still in epoch 0"
    with clock.passing(600, longer=1.5), pytest.raises(larder.DeadlineError, match=still):
        next(it)
    for _ in other:
        pass
    other = iter(second)
    assert len(next(it)[0]) == 2


def test_a_pause_is_named(real, server, small):
    loader = real(f"imagefolder:{small}", batch_size=2, transform=CROP, job="halted")
    it = iter(loader)
    next(it)
    server.cli("jobs", "pause", "halted")
    assert wait_of(server, "halted")["cause"] == "pause" and row_of(server, "halted")["WAITS FOR"].startswith("pause")
    assert "larder jobs unpause halted" in server.cli("explain", "halted").stdout
    server.cli("jobs", "unpause", "halted")
    assert wait_of(server, "halted")["cause"] != "pause"


def test_the_rate_of_a_job_is_reported(real, server, small):
    loader = real(f"imagefolder:{small}", batch_size=8, transform=CROP, job="rated")
    n = sum(len(images) for images, _ in loader)
    per_second = loader.stats().job.samples_per_second
    assert n == 72 and 72 / 31 <= per_second <= 3 * 72, (
        "of one epoch, or what is delivered of the next one, in up to 30 s"
    )
    assert float(row_of(server, "rated")["SAMPLES/S"].replace(",", "")) > 0


def test_a_client_that_left_before_its_first_epoch_is_done(real, server, small):
    look = real(f"imagefolder:{small}", batch_size=8, job="looked")
    assert look.stats().job.state == "joining" and look.stats().job.waits_for == "client"
    look.close()
    assert row_of(server, "looked")["STATE"] == "done"
    assert "done: its client left before its first epoch" in server.cli("jobs", "describe", "looked").stdout


def test_stats_has_the_counters_of_the_dataset(private, tmp_path):
    folder = draw(tmp_path / "set", 3, 6)
    bad = folder / "class001" / "003.jpg"
    bad.write_bytes(bad.read_bytes()[:60])
    daemon = private(SMALL)
    daemon.cli("dataset", "add", f"imagefolder:{folder}", "--name", "mine")
    kw = {"batch_size": 4, "transform": CROP, "on_error": "skip", "endpoint": daemon.socket}
    with larder.Loader("mine", job="one", epochs=2, **kw) as one:
        assert sum(len(i) for i, _ in one) == 17
    with larder.Loader(f"imagefolder:{folder}", job="two", epochs=2, **kw) as two:
        for _ in range(2):
            assert sum(len(i) for i, _ in two) == 17
        stats = two.stats()
    d = stats.dataset
    assert isinstance(d, larder.DatasetStats) and stats.datasets == (d,)
    assert (d.name, d.uri, d.samples, d.jobs, d.bad_samples) == ("mine", f"imagefolder:{folder}", 18, 1, 1)
    assert d.bytes == sum(f.stat().st_size for f in folder.rglob("*.*"))
    c = d.counters
    assert c.samples_delivered == 51 and c.batches_delivered == 15 and c.quarantined == 3
    assert c.decodes == 17 and c.hits["decoded"] + c.hits["encoded"] >= 34, (
        "the second job, and the second epoch, found what was there"
    )
    assert c.source_reads >= 18 and c.source_bytes >= d.bytes - bad.stat().st_size and c.augments >= 51
    totals = stats.totals
    assert (c.decodes, c.samples_delivered, c.hits, c.source_reads) == (
        totals.decodes,
        totals.samples_delivered,
        totals.hits,
        totals.source_reads,
    )
    # The keys are documented, and stay.
    names = {"name", "uri", "samples", "bytes", "jobs", "bad_samples", "counters"}
    assert set(vars(d)) == names | {"outages", "outage_seconds", "jobs_waiting"}
    assert d.outages == d.outage_seconds == d.jobs_waiting == 0
    assert np.isfinite(c.wait_seconds)


def test_a_resize_after_the_jobs_knows_what_was_measured(private, small):
    daemon = private(SMALL)
    said = daemon.cli("tiers", "resize", "encoded=1MiB").stdout
    assert "no job draws, and none was measured since the start" in said, said
    daemon.cli("tiers", "resize", "encoded=auto")
    with larder.Loader(
        f"imagefolder:{small}", batch_size=8, transform=CROP, job="measured", endpoint=daemon.socket
    ) as loader:

        def measured() -> bool:
            for batch in loader:
                del batch
            return "predicted" in daemon.cli("tiers", "ls").stdout

        eventually(measured, PATIENCE)
    assert row_of(daemon, "measured")["STATE"] == "done"

    def solved() -> str:
        said = daemon.cli("tiers", "ls").stdout
        return said if "for the jobs that ran last, " in said else ""

    daemon.cli("tiers", "resize", "encoded=1MiB")
    eventually(lambda: bool(solved()))  # the model is solved beside the answer
    assert "not measured" not in solved() and "predicted" in solved()
