"""The life of a batch's memory: a slot is released when its last array or tensor is gone, never before, never
twice.
"""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import os
import pickle
import queue
import random
import signal
import sys
import threading
import types
import warnings
import weakref

import numpy as np
import pytest
from conftest import eventually
from fake_daemon import POISON
from fake_samples import expected_fixed, expected_ragged

import larder

CROP = [larder.ops.CenterCrop((8, 10))]


def leased(daemon):
    return sum(map(sum, (p.leased for p in daemon.attached())))


def given_back(daemon):
    return len(daemon.releases)


def one_batch(load, daemon, **kw):
    """A loader whose job has exactly one batch: a release can only be about it."""
    loader = load("fake:4", batch_size=4, **kw)
    return loader, next(iter(loader))


KEEPERS = {
    "the array": lambda x, y: x,
    "the labels": lambda x, y: y,
    "a row": lambda x, y: x[1],
    "a slice of a slice": lambda x, y: x[1:3][:, 0][::-1],
    "a reshaped view": lambda x, y: x.reshape(4, -1)[2:],
    "a transposed view": lambda x, y: x.transpose(0, 2, 3, 1),
    "another dtype": lambda x, y: y.view(np.uint8),
    "a memoryview": lambda x, y: memoryview(x)[1:],
    "an array of a memoryview": lambda x, y: np.asarray(memoryview(x[1:])),
    "an iterator": lambda x, y: iter(x),
    "a flat iterator": lambda x, y: x.flat,
    "a squeezed broadcast": lambda x, y: np.broadcast_to(x[None], (2, *x.shape))[1],
    "ctypes": lambda x, y: x.ctypes,
    "a structured view": lambda x, y: np.lib.stride_tricks.as_strided(x, (4, 3), (x.strides[0], 1)),
}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_any_view_keeps_the_slot(load, daemon, keeper):
    loader, batch = one_batch(load, daemon, transform=CROP)
    kept = KEEPERS[keeper](*batch)
    del batch
    gc.collect()
    loader.stats()  # a round trip: whatever was sent has arrived
    assert given_back(daemon) == 0 and leased(daemon) == 1
    assert POISON not in (bytes(np.asarray(kept).tobytes()) if isinstance(kept, np.ndarray) else b"")
    del kept
    gc.collect()
    loader.stats()
    assert given_back(daemon) == 1 and leased(daemon) == 0


def test_what_is_dropped_runs_no_python_code(load, daemon):
    """A callback that ran some could run a signal handler, whose exception (Ctrl-C) the interpreter would print and
    forget.
    """
    loader, batch = one_batch(load, daemon, transform=CROP)
    root = batch[0].base
    watched = [
        w
        for x in (root, loader._shared, loader._shared.resources.session)
        for w in weakref.getweakrefs(x)
        if w.__callback__ is not None
    ]
    assert len(watched) == 3  # of the root, and two of the loader
    for w in watched:
        assert type(w.__callback__) in (types.BuiltinFunctionType, functools.partial), w.__callback__
        assert not isinstance(w.__callback__, functools.partial) or w.__callback__.func is next
    seen = []
    sys.setprofile(lambda frame, event, arg: seen.append((event, frame.f_code.co_name)))
    del root, batch
    sys.setprofile(None)
    assert [e for e in seen if e[0] == "call"] == []
    assert given_back(daemon) == 0
    loader.stats()
    assert given_back(daemon) == 1


def test_forgetting_a_loader_runs_no_python_code(load, daemon):
    loader = larder.Loader("fake:8", batch_size=4, endpoint=daemon.path, job="forgotten")
    batch = next(iter(loader))
    seen = []
    sys.setprofile(lambda frame, event, arg: seen.append((event, frame.f_code.co_name)))
    del loader
    sys.setprofile(None)
    assert [e for e in seen if e[0] == "call"] == []
    eventually(lambda: daemon.detached == ["forgotten"])  # it has left in order
    assert len(batch[0]) == 4  # and what it gave stays


@pytest.mark.parametrize("heard", [False, True])
def test_forgetting_a_loader_whose_daemon_has_gone_prints_nothing(heard, load, daemon, monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: printed.append(u.exc_value))
    loader = larder.Loader("fake:80", batch_size=4, endpoint=daemon.path, job="forgotten", on_daemon_loss="raise")
    it = iter(loader)
    next(it)
    session = loader._shared.resources.session
    daemon.kill()
    if heard:
        with pytest.raises(larder.UnavailableError):
            for _ in it:
                pass
    del it, loader
    assert printed == []
    assert not session.owner_detached()  # so it is said over another connection, see test_e2e_goodbye.py


def test_ctrl_c_between_batches_is_never_lost(load, bell):
    """Every exception of a signal handler is raised in the loop, whenever it comes: 5 ms steps in C, arrays that die at
    their end.
    """

    class Interrupt(BaseException):
        pass

    ran = raised = asked = 0

    def handler(*_):
        nonlocal ran
        ran += 1
        raise Interrupt

    loader = load("fake:400", batch_size=4, transform=CROP)
    a = np.ones((160, 160))
    rng = random.Random(5)
    old = signal.signal(signal.SIGALRM, handler)
    try:
        while ran < 60:
            try:
                for images, labels in loader:
                    if asked == ran:
                        asked += 1
                        bell.ring(rng.randrange(1, 4000))
                    _ = a @ a @ a  # a signal that comes here is handled at the next moment in which Python code begins
                    del images, labels
            except Interrupt:
                raised += 1
    finally:
        bell.silence()
        signal.signal(signal.SIGALRM, old)
    assert raised == ran


def test_an_os_error_of_a_signal_handler_is_not_taken_for_the_sockets(load, monkeypatch):
    """`raise TimeoutError` in a handler of SIGALRM is common, and TimeoutError is an OSError."""
    loader = load("fake:8", batch_size=4, transform=CROP)
    batch = next(iter(loader))

    class Interrupted:
        def __getattr__(self, name):
            return getattr(s, name)

        def send(self, *_):
            raise TimeoutError("the time is up")

    session = loader._shared.resources.session
    s = session._sock
    with monkeypatch.context() as patch:
        patch.setattr(session, "_sock", Interrupted())
        del batch
        with pytest.raises(TimeoutError, match="the time is up"):
            session.flush()
    assert session.error is None and session.queue


def test_copies_do_not_keep_the_slot(load, daemon):
    loader, (x, y) = one_batch(load, daemon, transform=CROP)
    kept = [x.copy(), copy.deepcopy(x), pickle.loads(pickle.dumps(x)), y + 1, x[[0, 2]]]
    del x, y
    loader.stats()
    assert given_back(daemon) == 1
    np.testing.assert_array_equal(kept[0], kept[1])


def test_ragged_images_keep_the_slot_each(load, daemon):
    loader, (images, _labels) = one_batch(load, daemon)
    last = images[-1][1:]
    del images, _labels
    loader.stats()
    assert given_back(daemon) == 0
    np.testing.assert_array_equal(last, expected_ragged(3)[1:])
    del last
    loader.stats()
    assert given_back(daemon) == 1


def test_dropping_in_another_thread(load, daemon):
    loader, batch = one_batch(load, daemon, transform=CROP)
    box = [batch]
    del batch
    t = threading.Thread(target=box.clear)
    t.start()
    t.join()
    loader.stats()
    assert given_back(daemon) == 1


def test_many_threads_drop_while_batches_flow(load, daemon):
    loader = load("fake:3000", batch_size=2, transform=CROP, return_index=True)
    batches: queue.SimpleQueue = queue.SimpleQueue()

    def consume():
        while (batch := batches.get()) is not None:
            images, _, index = batch
            for image, i in zip(images, index, strict=True):
                if not np.array_equal(image, expected_fixed(int(i))):
                    wrong.append(int(i))
            batch = images = _ = index = image = None

    wrong: list[int] = []
    threads = [threading.Thread(target=consume) for _ in range(3)]
    for t in threads:
        t.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", larder.KeptBatchesWarning)
        n = 0
        for batch in loader:
            batches.put(batch)
            n += 1
    del batch
    for _ in threads:
        batches.put(None)
    for t in threads:
        t.join()
    assert n == 1500 and wrong == []
    loader.stats()
    assert leased(daemon) == 0 and given_back(daemon) == 1500


def test_a_cycle_with_a_batch_is_collected_without_harm(load, daemon):
    """Finalizers may run inside any allocation, also inside next() itself."""
    loader = load("fake:2000", batch_size=2, transform=CROP)
    old = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", larder.KeptBatchesWarning)
            for batch in loader:
                cycle: list = [batch]
                cycle.append(cycle)
            del batch, cycle
    finally:
        gc.set_threshold(*old)
    gc.collect()
    loader.stats()
    assert leased(daemon) == 0 and given_back(daemon) == 1000


def test_kept_batches_become_copies_and_warn_once(load, daemon):
    loader = load("fake:80", batch_size=4, transform=CROP, return_index=True)
    with pytest.warns(larder.KeptBatchesWarning, match="3 batches are kept referenced") as caught:
        kept = list(loader)
    assert len(caught) == 1 and caught[0].filename == __file__
    for images, _labels, index in kept:
        for image, i in zip(images, index, strict=True):
            np.testing.assert_array_equal(image, expected_fixed(int(i)))
    assert loader.stats().client.copies == 18 and leased(daemon) == 2


def test_ragged_copies(load):
    with pytest.warns(larder.KeptBatchesWarning):
        kept = list(load("fake:120", batch_size=10, return_index=True))
    for images, _labels, index in kept:
        for image, i in zip(images, index, strict=True):
            np.testing.assert_array_equal(image, expected_ragged(int(i)))


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_ordinary_loops_copy_nothing(load, prefetch):
    loader = load("fake:200", batch_size=4, transform=CROP, prefetch=prefetch)
    other = load("fake:200", batch_size=4, transform=CROP, prefetch=prefetch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _images, _labels in loader:
            pass
        del _images, _labels
        for _n, _batch in enumerate(loader):
            pass
        del _batch
        for (_a, _b), (_c, _d) in zip(loader, other, strict=True):
            pass
        del _a, _b, _c, _d
        it = iter(loader)
        while next(it, None) is not None:
            pass
    assert loader.stats().client.copies == 0


def test_arrays_outlive_close_and_the_loader(load, daemon):
    loader = load("fake:40", batch_size=4, transform=CROP, return_index=True)
    (a, _, i), (b, _, j) = itertools.islice(loader, 2)
    loader.close()
    del loader, _
    gc.collect()
    for x, ids in ((a, i), (b, j)):
        for image, n in zip(x, ids, strict=True):
            np.testing.assert_array_equal(image, expected_fixed(int(n)))
    a[:] = 7  # still memory of ours
    assert (a == 7).all()


def test_arrays_outlive_a_reconnection(load, daemon):
    loader = load("fake:40", batch_size=4, transform=CROP, return_index=True)
    first = next(iter(loader))
    for p in daemon.attached():
        p.drop()
    eventually(lambda: not daemon.attached())
    assert sum(len(x) for *_, x in loader) == 40  # the lost connection is noticed at iter() and replaced
    np.testing.assert_array_equal(first[0][2], expected_fixed(2))
    del first  # belongs to a session that is gone: nothing to release
    loader.stats()
    assert daemon.violations == []


def test_mappings_go_with_the_last_array(load, daemon):
    def mapped():
        with open("/proc/self/maps") as f:
            return sum(f"memfd:{daemon.name}" in line for line in f)

    daemon_side = 1  # the fake lives in this process and maps each ring too
    loader, batch = one_batch(load, daemon, transform=CROP)
    assert mapped() == 1 + daemon_side
    loader.close()
    eventually(lambda: not any(p.thread.is_alive() for p in daemon.peers))
    daemon.peers.clear()
    gc.collect()
    assert mapped() == 1
    del batch
    gc.collect()
    assert mapped() == 0


# ---- torch


def test_torch_tensors_share_the_memory(load, daemon, torch):
    loader = load("fake:4", batch_size=4, transform=CROP, output="torch", return_index=True)
    images, labels, index = next(iter(loader))
    assert images.dtype == torch.uint8 and labels.dtype == torch.int64 and tuple(images.shape) == (4, 3, 8, 10)
    np.testing.assert_array_equal(images[2].numpy(), expected_fixed(2))
    row = images[1:3][0]
    del images, labels, index
    gc.collect()
    loader.stats()
    assert given_back(daemon) == 0
    np.testing.assert_array_equal(row.numpy(), expected_fixed(1))
    back = row.numpy()
    del row
    loader.stats()
    assert given_back(daemon) == 0
    del back
    loader.stats()
    assert given_back(daemon) == 1


def test_torch_float_ragged_and_copies(load, torch):
    loader = load(transform=[*CROP, larder.ops.Normalize("imagenet")], output="torch")
    images, _ = next(iter(loader))
    assert images.dtype == torch.float32
    images, _ = next(iter(load(transform=CROP, output="torch")))
    assert not images.is_contiguous()  # samples are padded to 64 bytes
    np.testing.assert_array_equal(images.contiguous()[5].numpy(), expected_fixed(5))
    with pytest.warns(larder.KeptBatchesWarning):
        kept = list(load("fake:60", batch_size=4, output="torch", return_index=True))
    for images, _, index in kept:
        for image, i in zip(images, index.tolist(), strict=True):
            assert torch.equal(image, torch.from_numpy(expected_ragged(i)))


def test_torch_autograd_keeps_the_slot(load, daemon, torch):
    loader, (images, labels) = one_batch(
        load, daemon, transform=[*CROP, larder.ops.Normalize("imagenet")], output="torch"
    )
    w = torch.ones(3, 8, 10, requires_grad=True)
    loss = (images * w).sum()  # the graph holds images for the backward pass
    del images, labels
    loader.stats()
    assert given_back(daemon) == 0
    loss.backward()
    expect = sum(expected_fixed(i, normalized=True).astype(np.float32) for i in range(4))
    np.testing.assert_allclose(w.grad.numpy(), expect, rtol=1e-4, atol=1e-4)
    del loss
    gc.collect()
    loader.stats()
    assert given_back(daemon) == 1


def test_torch_is_not_imported_without_being_asked_for():
    import subprocess
    import sys

    code = "import sys, larder; sys.exit('torch' in sys.modules or 'larder' not in sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0
