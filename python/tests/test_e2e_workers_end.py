"""Worker processes of a Loader that is forgotten, without close(), on the real daemon."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading

import pytest
from conftest import eventually
from real import PATIENCE, night

import larder

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::larder.{w}") for w in ("NotSharedWarning", "KeptBatchesWarning")
] + [pytest.mark.filterwarnings("error::ResourceWarning")]


def begun(server, **kw):
    """A Loader whose workers run, and their process ids."""
    loader = larder.Loader(list(range(60)), batch_size=6, num_workers=2, endpoint=server.socket, timeout=PATIENCE, **kw)
    batches = iter(loader)
    next(batches)
    return loader, batches, [m.process.pid for m in loader._shared.makers.crew.members]


def running(pids):
    """Those that have not ended, for multiprocessing, which also reaps them."""
    return {p.pid for p in multiprocessing.active_children()} & set(pids)


@pytest.mark.parametrize(
    ("persistent", "method"),
    [
        *((False, "fork"), (True, "fork")),
        *night((False, "forkserver"), (True, "forkserver"), (False, "spawn"), (True, "spawn")),
    ],
)
def test_workers_end_with_a_forgotten_loader(server, method, persistent):
    loader, batches, pids = begun(server, multiprocessing_context=method, persistent_workers=persistent)
    assert running(pids) == set(pids)
    del loader
    assert len(next(batches)) == 6 and running(pids) == set(pids), "the iterator still uses them"
    del batches
    gc.collect()
    eventually(lambda: not running(pids), PATIENCE)


def test_workers_of_others_stay(server):
    """Also where the workers of one inherited the other's pipes, and where both have the same dataset."""
    first, a, first_pids = begun(server, name="numbers-of-workers", version="1")
    second, b, second_pids = begun(server, name="numbers-of-workers", version="1")
    del second, b
    gc.collect()
    eventually(lambda: not running(second_pids), PATIENCE)
    assert sum(len(x) for x in a) == 54 and running(first_pids) == set(first_pids)
    first.close()
    assert not running(first_pids)


def test_a_loader_that_is_forgotten_in_a_collection(server):
    """In a cycle, collected by a thread that holds the crew's own business up, and by a signal of the machine."""
    loader, batches, pids = begun(server)
    crew = loader._shared.makers.crew
    other, more, _ = begun(server)
    cycle = [loader, batches]
    cycle.append(cycle)
    del loader, batches, cycle

    class Collects:
        def __init__(self):
            self.lock = other._shared.lock

        def __del__(self):
            gc.collect()

    with other._shared.lock:
        thread = threading.Thread(target=lambda: Collects() and None)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    eventually(lambda: not running(pids), PATIENCE)
    assert sum(len(x) for x in more) == 54  # whose next() reaps, and closes the pipes
    other.close()
    assert crew.members == []


def test_a_forked_child_that_forgets_a_loader_ends_nothing(server):
    loader, batches, pids = begun(server)
    child = os.fork()
    if child == 0:
        try:
            del loader, batches
            gc.collect()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sum(len(x) for x in batches) == 54 and running(pids) == set(pids)
    loader.close()


def test_a_closed_loader_shuts_no_others_descriptor(server):
    """The numbers of its pipes belong to other files when it is collected."""
    loader, batches, _ = begun(server)
    del batches
    loader.close()
    pipes = [multiprocessing.Pipe() for _ in range(8)]
    del loader
    gc.collect()
    for a, b in pipes:
        a.send("still open")
        assert b.recv() == "still open"
        a.close()
        b.close()
