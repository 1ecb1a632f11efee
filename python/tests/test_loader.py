"""The Loader against the fake daemon: order, epochs, arguments, errors."""

from __future__ import annotations

import gc
import inspect
import json
import os
import pickle
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import eventually
from fake_daemon import FakeDaemon, expected_fixed, expected_ragged

import larder

CROP = [larder.ops.CenterCrop((8, 10))]


def ids_of(loader):
    return [int(i) for *_, index in loader for i in index]


def test_public_names_are_sorted_and_exist():
    assert larder.__all__ == sorted(larder.__all__)
    assert all(hasattr(larder, n) for n in larder.__all__)
    assert larder.ops.__all__ == sorted(larder.ops.__all__)
    assert all(hasattr(larder.ops, n) for n in larder.ops.__all__)


def test_batches_are_what_the_daemon_wrote(load):
    loader = load(transform=CROP, return_index=True, batch_size=7)
    assert len(loader) == 15 and loader.num_samples == 100 and loader.batch_size == 7 and len(loader.dataset) == 100
    seen = []
    for step, (images, labels, index) in enumerate(loader):
        assert images.shape == (7 if step < 14 else 2, 3, 8, 10) and images.dtype == np.uint8
        assert labels.dtype == np.int64 and index.dtype == np.int64
        for image, label, i in zip(images, labels, index, strict=True):
            assert label == i % 10
            np.testing.assert_array_equal(image, expected_fixed(int(i)))
        seen.extend(index.tolist())
    assert seen == list(range(100))


def test_float_batches(load):
    loader = load(transform=[*CROP, larder.ops.Normalize("imagenet")], return_index=True)
    images, _, index = next(iter(loader))
    assert images.dtype == np.float32
    np.testing.assert_array_equal(images[3], expected_fixed(int(index[3]), normalized=True).astype(np.float32))


def test_ragged_batches_also_in_segments_of_their_own(load):
    # Every tenth sample is large: nearly every slot outgrows the ring, some several times.
    loader = load("fake:200", batch_size=11, shuffle=True, return_index=True)
    for _epoch in range(3):
        count = 0
        for images, _labels, index in loader:
            assert isinstance(images, list) and len(images) == len(index)
            for image, i in zip(images, index, strict=True):
                np.testing.assert_array_equal(image, expected_ragged(int(i)))
            count += len(index)
        assert count == 200


def test_arrays_may_be_changed_in_place(load):
    for images, labels in load(transform=CROP):
        images += 1
        labels[:] = 0
        assert images.flags.writeable


def test_fields_select_and_order(load):
    (images,) = next(iter(load(transform=CROP, fields=("image",))))
    assert images.shape == (8, 3, 8, 10)
    index, labels = next(iter(load(fields=["index", "label"])))
    assert index.tolist() == list(range(8)) and labels.tolist() == list(range(8))
    batch = next(iter(load(fields=("index",), return_index=True)))
    assert len(batch) == 1


def test_epochs_advance_and_are_complete(load, daemon):
    loader = load(shuffle=True, return_index=True, seed=3)
    assert loader.epoch == 0
    orders = []
    for e in range(3):
        it = iter(loader)
        assert loader.epoch == e
        orders.append([int(i) for *_, x in it for i in x])
        assert loader.epoch == e + 1
        with pytest.raises(StopIteration):
            next(it)
    assert all(sorted(o) == list(range(100)) for o in orders)
    assert orders[0] != orders[1] != orders[2]
    assert list(daemon.jobs[loader.job]["orders"]) == [0, 1, 2]


def test_set_epoch_pins_and_repeating_it_is_harmless(load, daemon):
    loader = load(return_index=True)
    loader.set_epoch(4)
    assert loader.epoch == 4
    assert ids_of(loader) == list(range(100))
    loader.sampler.set_epoch(4)  # has run: the next one
    assert loader.epoch == 5
    assert ids_of(loader) == list(range(100))
    loader.set_epoch(np.int64(9))
    assert ids_of(loader) == list(range(100))
    assert list(daemon.jobs[loader.job]["orders"]) == [4, 5, 9]
    with pytest.raises(larder.InvalidError):
        loader.set_epoch(-1)


def test_break_abandons_and_the_next_epoch_is_whole(load, daemon):
    loader = load(return_index=True, shuffle=True)
    for _ in range(4):
        for n, _batch in enumerate(loader):
            if n == 2:
                break
    assert sorted(ids_of(loader)) == list(range(100))
    assert loader.epoch == 5
    del _batch  # the last kept batch
    eventually(lambda: not any(any(p.leased) for p in daemon.attached()))


def test_second_iter_ends_the_first_one(load):
    loader = load(return_index=True)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(larder.StaleError, match="one iterator at a time"):
        next(first)
    assert sum(len(x) for *_, x in second) == 100


def test_final_epoch_ends_the_job(load):
    loader = load(epochs=2)
    assert sum(1 for _ in loader) == 13
    assert sum(1 for _ in loader) == 13
    with pytest.raises(larder.JobEndedError, match="done all its epochs"):
        iter(loader)


def test_drop_last_and_subset(load):
    loader = load(subset="label < 3", drop_last=True, return_index=True)
    assert loader.num_samples == 30 and len(loader) == 3 and loader.drop_last
    assert len(ids_of(loader)) == 24


def test_empty_rounds(load):
    assert ids_of(load("fake:1", return_index=True)) == [0]


def test_keys_and_classes(load):
    loader = load()
    assert loader.key(np.int64(13)) == "class3/13.jpg"
    assert loader.keys(np.array([1, 22])) == ["class1/1.jpg", "class2/22.jpg"]
    assert loader.keys([]) == []
    assert loader.dataset.classes[3] == "class3" and loader.dataset.uri == "fake:100"
    with pytest.raises(larder.InvalidError):
        loader.key("x")


def test_calls_between_batches(load, daemon):
    loader = load(return_index=True)
    seen = []
    for *_, index in loader:
        seen += loader.keys(index)
    assert seen == [f"class{i % 10}/{i}.jpg" for i in range(100)]


def test_stats_are_typed(load):
    loader = load(transform=CROP)
    for _ in loader:
        pass
    s = loader.stats()
    assert s.totals.decodes == 2**64 - 1  # 64-bit integers arrive as strings
    assert s.totals.hits == {"decoded": 12} and s.parity is True and s.decoder == "fake" and s.uptime == 2.5
    assert s.job is not None and s.job.name == loader.job and s.job.counters.samples_delivered == 100 and s.job.state == "live"
    assert s.tiers[0].budget == 1024 and s.client.batches == 13 and s.client.samples == 100 and s.client.copies == 0
    with pytest.raises(AttributeError):
        s.version = "x"


def test_waited_time_is_told(load, daemon):
    daemon.hold = True
    loader = load(transform=CROP)
    it = iter(loader)
    threading.Timer(0.2, daemon.resume).start()
    batch = next(it)
    del batch
    eventually(lambda: len(daemon.releases) == 1)
    assert daemon.releases[0][2] >= 100_000
    assert loader.stats().client.wait_seconds >= 0.1


# ---- arguments


def test_signature_is_the_promised_one():
    names = [p for p in inspect.signature(larder.Loader.__init__).parameters if p not in ("self", "unknown")]
    assert (
        names
        == (
            "uri batch_size shuffle seed subset transform job order drop_last even rank world_size output fields return_index share "
            "on_error prefetch epochs endpoint timeout"
        ).split()
    )


def test_unknown_keyword_names_the_nearest():
    with pytest.raises(TypeError, match="did you mean 'batch_size'"):
        larder.Loader("fake:10", batchsize=3)
    with pytest.raises(TypeError, match="the arguments are batch_size"):
        larder.Loader("fake:10", batch_size=3, zzzzzzz=1)
    with pytest.raises(TypeError, match="batch_size"):
        larder.Loader("fake:10")


@pytest.mark.parametrize(
    ("kw", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2.5}, "must be an integer"),
        ({"batch_size": True}, "must be an integer"),
        ({"batch_size": 70000}, "65536"),
        ({"seed": -1}, "seed is -1"),
        ({"shuffle": "no"}, "shuffle must be True or False"),
        ({"order": "strict"}, "needs shuffle=True"),
        ({"order": "stratifed", "shuffle": True}, "did you mean 'stratified'"),
        ({"share": "augmentd"}, "did you mean 'augmented'"),
        ({"on_error": "ignore"}, "'raise', 'skip', 'substitute'"),
        ({"output": "Torch"}, "did you mean 'torch'"),
        ({"even": "repeat"}, "'drop', 'none'"),
        ({"fields": "image"}, r"write fields=\('image',\)"),
        ({"fields": ("imag",)}, "did you mean 'image'"),
        ({"fields": ()}, "at least one"),
        ({"prefetch": 0}, "prefetch is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": "x"}, "timeout is 'x'"),
        ({"job": ""}, "1 to 256 printable"),
        ({"job": "a\nb"}, "1 to 256 printable"),
        ({"subset": 5}, "must be an expression"),
        ({"transform": [lambda x: x]}, "cannot run in the daemon"),
        ({"transform": larder.ops.HFlip}, r"write RandomHorizontalFlip\(...\)"),
        ({"transform": [larder.ops.Resize(float("nan"))]}, "not a finite number"),
        ({"transform": {"op": "Resize"}}, "is not of the form"),
        ({"rank": 1}, "without world_size="),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"endpoint": "tcp://host:1"}, "not a Unix socket"),
        ({"endpoint": "/" + "x" * 200}, "107 bytes"),
    ],
)
def test_bad_arguments(daemon, kw, words):
    with pytest.raises(larder.InvalidError, match=words) as e:
        larder.Loader("fake:10", **{"batch_size": 4, "endpoint": daemon.path, **kw})
    assert isinstance(e.value, ValueError) and e.value.subject
    assert daemon.jobs == {}


def test_bad_uri(daemon, tmp_path, monkeypatch):
    with pytest.raises(larder.InvalidError, match="uri must be a string"):
        larder.Loader(tmp_path, batch_size=1, endpoint=daemon.path)
    with pytest.raises(larder.InvalidError, match=f'write "imagefolder:{tmp_path}"'):
        larder.Loader(str(tmp_path), batch_size=1, endpoint=daemon.path)
    with pytest.raises(larder.NotFoundError):
        larder.Loader("nothing", batch_size=1, endpoint=daemon.path)
    monkeypatch.chdir(tmp_path)
    from larder._args import absolute

    assert absolute("imagefolder:a/../b") == f"imagefolder:{tmp_path}/b"
    assert absolute("imagefolder:///x/y") == "imagefolder:///x/y"
    assert absolute("name") == "name"


def test_spec_on_the_wire(load, daemon):
    load(
        "fake:100", batch_size=4, shuffle=True, seed=2**64 - 1, subset="label < 5", transform=[larder.ops.Resize(9)], job="a",
        order="fixed", drop_last=True, even="none", rank=1, world_size=2, share="augmented", on_error="skip", prefetch=3, epochs=7,
    )  # fmt: skip
    assert daemon.jobs["a"]["spec"] == {
        "name": "a", "dataset": "fake:100", "subset": "label < 5", "batchSize": 4, "shuffle": True, "order": "fixed",
        "seed": "18446744073709551615", "dropLast": True, "even": "none", "worldSize": 2, "numNodes": 1, "share": "augmented",
        "onError": "skip", "prefetch": 3, "epochs": 7,
        "transform": [{"name": "Resize", "args": {"size": 9, "interpolation": "bilinear", "antialias": True}}],
    }  # fmt: skip
    assert daemon.hellos[0] == {"client": f"python/{larder.__version__}", "abiMin": 1, "abiMax": 1, "pid": os.getpid()}


def test_errors_of_the_daemon_carry_everything(load):
    with pytest.raises(larder.InvalidError) as e:
        load(subset="lable < 5")
    assert e.value.reason == "SUBSET_SYNTAX" and e.value.subject == "subset" and e.value.hint == "did you mean label?"
    lines = str(e.value).splitlines()
    assert lines[1:] == ["  lable < 5", "  ^", "(did you mean label?)"]
    with pytest.raises(larder.InvalidError, match="selects none of 100") as e:
        load(subset="label > 10")
    assert e.value.reason == "SUBSET_EMPTY"
    again = pickle.loads(pickle.dumps(e.value))
    assert type(again) is larder.InvalidError and str(again) == str(e.value) and again.reason == "SUBSET_EMPTY"


def test_one_name_two_specs(load):
    load(job="same", seed=1)
    load(job="same", seed=1)
    with pytest.raises(larder.InvalidError, match="another spec") as e:
        load(job="same", seed=2)
    assert e.value.reason == "ALREADY_EXISTS"


def test_rank_held(load, monkeypatch):
    a, b = load(job="same"), load(job="same")
    iter(a)
    monkeypatch.setattr("larder._loader._RANK_HELD_PATIENCE", 0.1)
    with pytest.raises(larder.RankHeldError, match=f"held by process {os.getpid()}"):
        iter(b)
    a.close()
    assert sum(1 for _ in b) == 13


def test_two_ranks_are_disjoint_and_complete(load):
    a = load(job="two", rank=0, world_size=2, return_index=True, shuffle=True)
    b = load(job="two", rank=1, world_size=2, return_index=True, shuffle=True)
    assert len(a) == len(b) == 7
    x, y = ids_of(a), ids_of(b)
    assert sorted(x + y) == list(range(100)) and len(x) == len(y)


def test_default_names(load, monkeypatch):
    monkeypatch.setattr("larder._ranks._ordinals", iter(range(10)))
    train, val = load("fake:100"), load("fake:100")
    assert train.job.endswith("/100/0") and val.job.endswith("/100/1")
    assert f":{os.getpid()}/" in train.job
    assert sum(len(y) + len(v) for (_x, y), (_u, v) in zip(train, val, strict=True)) == 200  # both at once


def test_attach_to_a_registered_job(load, daemon):
    spec = load(job="night", subset="label < 5", batch_size=5).job and daemon.jobs["night"]["spec"]
    loader = load("job:night", return_index=True)
    assert loader.job == "night" and loader.batch_size == 5 and loader.num_samples == 50 and len(loader) == 10
    assert len(ids_of(loader)) == 50 and spec["batchSize"] == 5
    with pytest.raises(larder.InvalidError, match="batch_size 5, not 6"):
        load("job:night", batch_size=6)
    with pytest.raises(larder.InvalidError, match="seed, subset cannot"):
        load("job:night", subset="label < 5", seed=1)
    with pytest.raises(larder.InvalidError, match="registered with world_size 1"):
        load("job:night", rank=0, world_size=2)
    with pytest.raises(larder.NotFoundError, match="no job 'day'") as e:
        load("job:day")
    assert "larder jobs register" in e.value.hint


# ---- bad samples


def test_on_error_raise_then_goes_on(load, daemon):
    daemon.bad = {3, 5, 42}
    loader = load(return_index=True)
    it = iter(loader)
    with pytest.raises(larder.SampleError, match=r"/data/3.jpg: cannot prepare sample 3 at byte 17: truncated \(and 1 more") as e:
        next(it)
    assert (e.value.file, e.value.offset, e.value.why, e.value.id, e.value.key) == ("/data/3.jpg", 17, "truncated", 3, "class3/3.jpg")
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
    assert [(q.id, q.path, q.reason) for q in loader.quarantined] == [(3, "/data/3.jpg", "truncated"), (5, "/data/5.jpg", "truncated")]
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


def test_daemon_death_is_told_at_once(load, daemon):
    loader = load(timeout=60, transform=CROP)
    it = iter(loader)
    images, _ = next(it)
    copy = images.copy()
    daemon.hold = True
    daemon.kill()
    start = time.monotonic()
    with pytest.raises(larder.UnavailableError, match="stopped or was killed") as e:
        for _ in range(10):
            next(it)
    assert isinstance(e.value, ConnectionError) and time.monotonic() - start < 50
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


def test_deadline_says_what_was_waited_for(load, daemon):
    daemon.hold = True
    loader = load(timeout=0.2, job="slow", return_index=True)
    it = iter(loader)
    with pytest.raises(larder.DeadlineError, match=r"a batch of epoch 0 of job 'slow', rank 0: the daemon answers, but") as e:
        next(it)
    assert isinstance(e.value, TimeoutError) and "larder jobs describe slow" in str(e.value)
    daemon.resume()
    assert sum(len(x) for *_, x in it) == 100  # the iterator goes on


def test_mute_daemon(tmp_path):
    d = FakeDaemon(str(tmp_path / "m.sock"), mute=True)
    try:
        with pytest.raises(larder.DeadlineError, match="to answer HELLO"):
            larder.Loader("fake:10", batch_size=2, endpoint=d.path, timeout=0.2)
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


def test_registration_that_takes_too_long(daemon, monkeypatch):
    real = daemon.call
    monkeypatch.setattr(daemon, "call", lambda method, body: time.sleep(0.5) or real(method, body))
    with pytest.raises(larder.DeadlineError, match="to answer RegisterJob") as e:
        larder.Loader("fake:10", batch_size=2, endpoint=daemon.path, timeout=0.2)
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
    daemon.attached()[0].send(14, 0, b'{"reason":"UNAVAILABLE","message":"the daemon is stopping"}')
    assert sum(1 for _ in it) == 13  # the running epoch is finished
    with pytest.raises(larder.UnavailableError, match="the daemon is stopping"):
        iter(loader)
    assert daemon.detached == ["d"]
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


# ---- life


def test_close_detaches_and_is_final(load, daemon):
    with load(job="a") as loader:
        next(iter(loader))
    assert daemon.detached == ["a"]
    loader.close()
    for use in (lambda: iter(loader), loader.stats, lambda: loader.key(1)):
        with pytest.raises(larder.StaleError, match="closed"):
            use()
    assert "closed" in repr(loader)


def test_a_job_that_was_never_used_leaves_no_trace(load, daemon):
    with load(job="look") as look:
        look.stats()
        again = load(job="look")  # did not make it: does not end it
        again.close()
        assert "look" in daemon.jobs
    assert "look" not in daemon.jobs
    with load(job="used") as used:
        next(iter(used))
    assert "used" in daemon.jobs and daemon.calls.count("KillJob") == 1
    mine, yours = load(job="both"), load(job="both")
    next(iter(yours))
    mine.close()  # made it, but somebody uses it
    assert "both" in daemon.jobs and sum(1 for _ in yours) == 13


def test_forgotten_loader_detaches(load, daemon):
    larder.Loader("fake:10", batch_size=2, endpoint=daemon.path, job="b").__iter__()
    eventually(lambda: daemon.detached == ["b"])


def test_no_descriptor_leaks(load, daemon):
    def count():
        return len(os.listdir("/proc/self/fd"))

    def once():
        d = load("fake:60", batch_size=10, shuffle=True)
        for _ in range(2):
            for _batch in d:
                pass
        del _batch
        d.close()
        eventually(lambda: not any(p.thread.is_alive() for p in daemon.peers))  # the fake's ends of the connections
        daemon.peers.clear()
        gc.collect()

    once()
    before = count()
    for _ in range(5):
        once()
    assert count() <= before


def test_keyboard_interrupt_in_next_leaves_the_loader_usable(load, daemon):
    daemon.hold = True
    loader = load(return_index=True)
    it = iter(loader)
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(it)
    daemon.resume()
    assert sorted(int(i) for *_, x in it for i in x) == list(range(100))


def test_interrupts_at_random_moments_lose_and_double_nothing(load, daemon):
    class Interrupt(Exception):
        pass

    def handler(*_):
        raise Interrupt

    loader = load("fake:400", batch_size=4, transform=CROP, return_index=True)
    interrupts = 0
    daemon.interrupted = True
    old = signal.signal(signal.SIGALRM, handler)
    try:
        for epoch in range(4):
            it = iter(loader)
            got: list[int] = []
            assert loader.epoch == epoch
            delay = 1e-4
            while True:
                box: list = []
                try:
                    delay = delay * 1.07 if delay < 2e-3 else 2e-5
                    signal.setitimer(signal.ITIMER_REAL, delay)
                    box.extend(map(next, (it,)))  # one C call: what next() returned is stored before any handler can run
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    if not box:
                        break
                except Interrupt:
                    interrupts += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
                for images, _labels, index in box:
                    for image, i in zip(images, index, strict=True):
                        np.testing.assert_array_equal(image, expected_fixed(int(i), epoch))
                    got += index.tolist()
                images = _labels = index = None
            # A batch whose next() was interrupted in its very last step is lost to the caller; nothing comes twice or mixed up.
            assert got == sorted(set(got)) and len(got) >= 400 - 4 * interrupts
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    del it, box, image
    assert interrupts > 0
    loader.stats()  # any call sends what an interrupted one left
    eventually(lambda: not any(any(p.leased) for p in daemon.attached()))  # no slot was lost either


def test_job_yaml_and_python_names_agree():
    """Every field of JobSpec that Python sends exists in the proto, in its JSON name."""
    proto = (Path(__file__).resolve().parents[2] / "proto/larder/v1/larder.proto").read_text()
    body = proto.split("message JobSpec {")[1].split("\n}")[0]
    names = {line.split("=")[0].split()[-1] for line in body.splitlines() if "=" in line and not line.strip().startswith("//")}
    camel = {n.split("_")[0] + "".join(p.title() for p in n.split("_")[1:]) for n in names}
    from larder import _args, _ranks

    spec = _args.job_spec(
        name="n", dataset="d", place=_ranks.Place(0, 1), subset=None, batch_size=1, shuffle=False, order=None, seed=0, transform=None,
        drop_last=False, even=None, share="none", on_error="raise", prefetch=2, epochs=None,
    )  # fmt: skip
    assert set(spec) - {"replica"} <= camel and camel - set(spec) == {"replica"}
    json.dumps(spec)
