"""The Loader against the fake daemon: batches, epochs, life, interrupts."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import struct
import threading
import time
import warnings

import numpy as np
import pytest
from conftest import eventually
from fake_samples import expected_fixed, expected_ragged

import larder
from larder import _waits

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
    loader.stats()
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


def test_a_drained_job_says_so(load, daemon):
    loader = load(epochs=9)
    assert sum(1 for _ in loader) == 13
    daemon.drained = True
    assert sum(1 for _ in loader) == 13
    with pytest.raises(larder.JobEndedError, match=r"was drained and ended with epoch 1 .make a new Loader"):
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
    assert (
        s.job is not None
        and s.job.name == loader.job
        and s.job.counters.samples_delivered == 100
        and s.job.state == "live"
    )
    assert s.tiers[0].budget == 1024 and s.client.batches == 13 and s.client.samples == 100 and s.client.copies == 0
    with pytest.raises(AttributeError):
        s.version = "x"


def since(loader):
    """Since when the client waits, as the daemon sees it; 0 = it does not."""
    board = loader._shared.resources.session.board
    return struct.unpack_from("<Q", board.page, board.at + 72)[0]


def test_waited_time_is_reported(load, daemon):
    daemon.hold = True
    loader = load(transform=CROP)
    it = iter(loader)

    def later():
        eventually(lambda: since(loader) > 0)
        begun = since(loader)
        eventually(lambda: time.monotonic_ns() - begun > 200_000_000)
        daemon.resume()

    threading.Thread(target=later).start()
    batch = next(it)
    del batch
    loader.stats()
    eventually(lambda: len(daemon.releases) == 1)
    assert daemon.releases[0][2] >= 200_000
    assert loader.stats().client.wait_seconds >= 0.2


def test_a_full_disk_is_reported_once(load, daemon, monkeypatch, clock):
    monkeypatch.setattr(_waits, "_LOOK", 100.0)
    daemon.hold = True
    daemon.wait = {"cause": "disk", "text": "room on a disk: /state is full"}
    loader = load()
    it = iter(loader)
    loader._shared.timeout = 600.0
    with (
        clock.passing(100.0, longer=60.0),
        pytest.warns(larder.StateFullWarning, match="room on a disk: /state is full") as warned,
        pytest.raises(larder.DeadlineError) as e,
    ):
        next(it)
    assert len(warned) == 1 and e.value.cause == "disk"
    assert "it waits for room on a disk: /state is full" in str(e.value)
    assert "larder continues by itself" in str(e.value)
    resumed = []

    def later():
        clock.waiting(60.0)
        resumed.append(time.monotonic())
        daemon.resume()

    threading.Thread(target=later).start()
    since = loader._shared.running.since
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = next(it)
    assert len(batch[0]) == 8
    assert loader.stats().client.wait_seconds >= resumed[0] - since, "what it waited in vain counts"


def test_a_wait_that_was_given_up_ends_with_the_next_batch(load, daemon, clock):
    loader = load(transform=CROP)
    it = iter(loader)
    next(it)
    daemon.hold = True
    loader._shared.timeout = 600.0
    with clock.passing(600.0, longer=1.5), pytest.raises(larder.DeadlineError):
        while True:
            next(it)
    assert since(loader) > 0, "the daemon continues to count it"
    daemon.resume()
    eventually(lambda: loader._shared.resources.session.board.post() is not None)
    next(it)
    assert since(loader) == 0


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
    mine.close()  # made it, but another loader uses it
    assert "both" in daemon.jobs and sum(1 for _ in yours) == 13


def test_an_older_daemon_ends_an_unused_job_too(load, daemon):
    daemon.knows_unused = False
    load(job="look").close()
    assert "look" not in daemon.jobs and daemon.calls.count("KillJob") == 2


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


def test_keyboard_interrupt_in_next_leaves_the_loader_usable(load, daemon, clock):
    daemon.hold = True
    loader = load(return_index=True)
    it = iter(loader)

    def press():
        clock.waiting(1.5)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=press).start()
        next(it)
    daemon.resume()
    assert sorted(int(i) for *_, x in it for i in x) == list(range(100))


# interrupted as it was made: its end closes it
@pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*socket.socket fd=-1:pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_random_moments_lose_and_double_nothing(load, daemon, bell):
    class Interrupt(Exception):
        pass

    def handler(*_):
        raise Interrupt

    loader = load("fake:400", batch_size=4, transform=CROP, return_index=True)
    interrupts = 0
    daemon.interrupted = True
    old = signal.signal(signal.SIGALRM, handler)
    try:
        for epoch in itertools.count():
            if epoch >= 4 and interrupts:
                break
            it = iter(loader)
            got: list[int] = []
            assert loader.epoch == epoch
            counts = 100
            while True:
                box: list = []
                try:
                    counts = counts * 107 // 100 if counts < 2000 else 20
                    bell.ring(counts)
                    # one C call: what next() returned is stored before any handler can run
                    box.extend(map(next, (it,)))
                    bell.silence()
                    if not box:
                        break
                except Interrupt:
                    interrupts += 1
                bell.silence()
                for images, _labels, index in box:
                    for image, i in zip(images, index, strict=True):
                        np.testing.assert_array_equal(image, expected_fixed(int(i), epoch))
                    got += index.tolist()
                images = _labels = index = None
            # A batch whose next() was interrupted in its very last step is lost to the caller; nothing comes twice or
            # mixed up.
            assert got == sorted(set(got)) and len(got) >= 400 - 4 * interrupts
    finally:
        bell.silence()
        signal.signal(signal.SIGALRM, old)
    del it, box, image
    loader.stats()  # any call sends what an interrupted one left
    eventually(lambda: not any(any(p.leased) for p in daemon.attached()))  # no slot was lost either
