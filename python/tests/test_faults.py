"""Bad samples, and a daemon that misbehaves, stops or dies."""

from __future__ import annotations

import os
import pickle
import threading

import numpy as np
import pytest
from conftest import eventually
from fake_daemon import FakeDaemon
from real import PATIENCE
from stepped_clock import START

import larder

CROP = [larder.ops.CenterCrop((8, 10))]


def ids_of(loader):
    return [int(i) for *_, index in loader for i in index]


def test_on_error_raise_then_continues(load, daemon):
    daemon.bad = {3, 5, 42}
    loader = load(return_index=True)
    it = iter(loader)
    with pytest.raises(
        larder.SampleError, match=r"/data/3.jpg: cannot prepare sample 3 at byte 17: truncated \(and 1 more"
    ) as e:
        next(it)
    assert (e.value.file, e.value.offset, e.value.why, e.value.id, e.value.key) == (
        "/data/3.jpg",
        17,
        "truncated",
        3,
        "class3/3.jpg",
    )
    assert e.value.reason == "SAMPLE_BAD" and [q.id for q in e.value.samples] == [3, 5]
    assert pickle.loads(pickle.dumps(e.value)).samples == e.value.samples
    got, errors = [], 0
    while True:
        try:
            *_, index = next(it)
            got += index.tolist()
        except larder.SampleError:
            errors += 1
        except StopIteration:
            break
    assert errors == 1 and got == [i for i in range(100) if i not in daemon.bad]
    assert [q.id for q in loader.quarantined] == [3, 5, 42]


def test_on_error_skip_and_substitute(load, daemon):
    daemon.bad = {3, 5}
    loader = load(on_error="skip", return_index=True)
    assert ids_of(loader) == [i for i in range(100) if i not in daemon.bad]
    assert ids_of(loader) == [i for i in range(100) if i not in daemon.bad]
    assert [(q.id, q.path, q.reason) for q in loader.quarantined] == [
        (3, "/data/3.jpg", "truncated"),
        (5, "/data/5.jpg", "truncated"),
    ]
    loader = load(on_error="substitute", return_index=True)
    assert sorted(ids_of(loader)) == sorted([i for i in range(100) if i not in daemon.bad] + [1003, 1005])


def test_a_batch_without_rows_is_not_yielded(load, daemon):
    daemon.bad = set(range(8))
    sizes = [len(x) for *_, x in load(on_error="skip", return_index=True)]
    assert sizes == [8] * 11 + [4]
    it = iter(load(return_index=True))
    with pytest.raises(larder.SampleError):
        next(it)
    *_, index = next(it)
    assert index[0] == 8


# ---- the daemon misbehaves or dies


def test_daemon_death_is_reported_at_once(load, daemon, clock):
    loader = load(timeout=600, transform=CROP, on_daemon_loss="raise")
    it = iter(loader)
    images, _ = next(it)
    copy = images.copy()
    daemon.hold = True
    daemon.kill()
    with pytest.raises(larder.UnavailableError, match="stopped or was killed") as e:
        for _ in range(10):
            next(it)
    assert isinstance(e.value, ConnectionError) and clock.ns == START, "without a step of the clock"
    np.testing.assert_array_equal(images, copy)  # the current batch survives
    with pytest.raises(larder.UnavailableError, match=r"no larder daemon answers .*named by endpoint="):
        iter(loader)


def test_daemon_restart_between_epochs(load, daemon):
    loader = load(return_index=True)
    assert ids_of(loader) == list(range(100))
    daemon.kill()
    os.unlink(daemon.path)
    second = FakeDaemon(daemon.path)
    try:
        assert ids_of(loader) == list(range(100))
        assert list(second.jobs[loader.job]["orders"]) == [1]
        assert second.violations == []
    finally:
        loader.close()
        second.kill()


def test_deadline_says_what_was_waited_for(load, daemon, clock, monkeypatch):
    daemon.hold = True
    loader = load(job="slow", return_index=True)
    it = iter(loader)
    monkeypatch.setattr("larder._waits._LOOK", 100.0)
    loader._shared.timeout = 600.0
    words = r"waited 600.0 s for a batch of epoch 0 of job 'slow', rank 0: the daemon answers, but"
    with clock.passing(100.0, longer=60.0), pytest.raises(larder.DeadlineError, match=words) as e:
        next(it)
    assert clock.now == START / 1e9 + 600
    assert isinstance(e.value, TimeoutError) and "larder jobs describe slow" in str(e.value)
    daemon.resume()
    loader._shared.timeout = PATIENCE
    assert sum(len(x) for *_, x in it) == 100  # the iterator continues


def test_mute_daemon(tmp_path, clock):
    d = FakeDaemon(str(tmp_path / "m.sock"), mute=True)
    try:
        with clock.passing(60.0), pytest.raises(larder.DeadlineError, match="to answer HELLO"):
            larder.Loader("fake:10", batch_size=2, endpoint=d.path, timeout=600.0)
    finally:
        d.kill()


def test_job_killed_from_outside(load, daemon):
    loader = load(job="victim")
    it = iter(loader)
    next(it)
    daemon.gone("victim", "JOB_ENDED", "job 'victim' was killed by an administrator")
    with pytest.raises(larder.JobEndedError, match="administrator"):
        for _ in range(10):
            next(it)
    with pytest.raises(larder.JobEndedError, match="administrator"):
        iter(loader)


def test_a_job_that_ended_before_it_was_attached_is_registered_again(load, daemon):
    loader = load(job="used by a child", return_index=True)
    del daemon.jobs["used by a child"]
    assert ids_of(loader) == list(range(100))
    assert daemon.calls.count("RegisterJob") == 2
    load(job="by hand")
    attached = load("job:by hand")
    del daemon.jobs["by hand"]
    with pytest.raises(larder.NotFoundError):
        iter(attached)


def test_rank_taken_over(load, daemon):
    loader = load(job="old")
    it = iter(loader)
    eventually(lambda: sum(daemon.attached()[0].leased) == 4)  # batches lie in the socket
    daemon.gone("old", "STALE", "rank 0 of 'old' was given to process 1")
    with pytest.raises(larder.StaleError, match="given to process 1"):
        next(it)  # what was sent before must not be used
    with pytest.raises(larder.StaleError, match="given to process 1"):
        iter(loader)


def test_registration_that_takes_too_long(daemon, monkeypatch, clock):
    real, came, late = daemon.call, threading.Event(), threading.Event()
    monkeypatch.setattr(daemon, "call", lambda method, body: came.set() or (late.wait(PATIENCE) and real(method, body)))
    after = clock.passing(60.0, after=came.is_set)
    with after, pytest.raises(larder.DeadlineError, match="to answer RegisterJob") as e:
        larder.Loader("fake:10", batch_size=2, endpoint=daemon.path, timeout=600.0)
    late.set()
    assert "larder dataset add" in e.value.hint


def test_ping_is_answered(load, daemon):
    loader = load()
    it = iter(loader)
    daemon.attached()[0].send(15, 7, b"")
    assert sum(1 for _ in it) == 13
    eventually(lambda: "PONG" in daemon.calls)


def test_a_draining_daemon_gets_no_further_epoch(load, daemon):
    loader = load(job="d")
    it = iter(loader)
    daemon.drained = True
    daemon.attached()[0].send(14, 0, b'{"reason":"UNAVAILABLE","message":"the daemon is stopping"}')
    assert sum(1 for _ in it) == 13  # the running epoch is finished
    with pytest.raises(larder.UnavailableError, match="the daemon is stopping"):
        iter(loader)
    assert daemon.detached == ["d"]
    daemon.drained = False
    assert sum(1 for _ in loader) == 13  # its successor (here: itself)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x02\x00" + b"\x00" * 14,  # another abi
        b"\x01\x00\x63\x00" + b"\x00" * 12,  # unknown type
        b"\x01\x00\x0a\x00\xff\xff\xff\xff" + b"\x00" * 8,  # 4 GiB of payload
        b"\x01\x00\x0a\x00\x03\x00\x00\x00" + b"\x00" * 8 + b"abc",  # a short BATCH
        b"\x01\x00\x07\x00\x02\x00\x00\x00" + b"\x00" * 8 + b"{}",  # RING without a descriptor
        b"\x01\x00\x0a\x00\x30\x00\x00\x00"
        + b"\x00" * 8
        + b"\xff" * 4
        + b"\x00" * 32
        + b"\x01"
        + b"\x00" * 11,  # BATCH in an unknown segment
        b"\x01\x00\x0c\x00\x04\x00\x00\x00" + b"\x00" * 8 + b"nope",  # EPOCH_END that is not JSON
        b"\x01\x00\x05\x00\x02\x00\x00\x00" + b"\x00" * 8 + b"[]",  # ERROR that is not an object
    ],
)
def test_garbage_from_the_daemon(load, daemon, garbage):
    daemon.hold = True
    loader = load(transform=CROP)
    it = iter(loader)
    daemon.attached()[0].conn.sendall(garbage)
    with pytest.raises(larder.Error) as e:
        next(it)
    assert e.value.reason == "PROTOCOL" and "docs/protocol.md" in str(e.value)
    daemon.hold = False
    assert sum(1 for _ in loader) == 13  # a new connection


def test_batches_that_point_outside_the_ring_are_refused(load, daemon):
    from fake_daemon import BATCH, HEADER

    daemon.hold = True
    for segment, slot, offset, rows in [(0, 99, 0, 1), (0, 0, 1 << 40, 1), (0, 0, 0, 10**6), (5, 0, 0, 1)]:
        loader = load(transform=CROP)
        it = iter(loader)
        payload = BATCH.pack(segment, slot, 1, offset, 0, 0, 0, rows, 0, 0)
        daemon.attached()[-1].conn.sendall(HEADER.pack(1, 10, len(payload), 0) + payload)
        with pytest.raises(larder.Error, match=r"protocol.md"):
            next(it)
        loader.close()
