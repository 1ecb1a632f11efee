"""The board: batches that are ready are handed out without the socket, in one order with what comes over it."""

import os
import socket
import threading

import numpy as np
import pytest
from conftest import eventually
from fake_samples import expected_fixed

import larder

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="elsewhere batches come over the socket")

CROP = [larder.ops.RandomResizedCrop(224)]


def check(batch, epoch=0):
    images, _labels, index = batch
    for image, i in zip(images, index, strict=True):
        np.testing.assert_array_equal(image, expected_fixed(int(i), epoch))
    return [int(i) for i in index]


def test_batches_are_posted_and_go_round_the_board(load, daemon):
    loader = load("fake:403", batch_size=4, transform=CROP, return_index=True)
    for epoch in range(3):
        assert [i for b in loader for i in check(b, epoch)] == list(range(403))
    assert daemon.posts == 3 * 101  # the short last one too


def test_without_a_board_all_comes_as_frames(load, daemon):
    daemon.board = False
    loader = load("fake:43", batch_size=4, transform=CROP, return_index=True)
    assert [i for b in loader for i in check(b)] == list(range(43))
    assert daemon.posts == 0


def test_a_processor_that_reorders_loads_gets_frames(load, daemon, monkeypatch):
    from larder import _board

    monkeypatch.setattr(_board, "_ORDERED", False)
    daemon.words = False  # nor can it use release words
    loader = load("fake:43", batch_size=4, transform=CROP, return_index=True)
    assert [i for b in loader for i in check(b)] == list(range(43))
    assert daemon.posts == 0


def test_a_ragged_ring_has_no_board(load, daemon):
    assert sum(len(labels) for _, labels in load("fake:43", batch_size=4)) == 43
    assert daemon.posts == 0


def test_a_ready_batch_costs_no_system_call(load, daemon, monkeypatch):
    loader = load("fake:400", batch_size=4, transform=CROP, return_index=True)
    it = iter(loader)
    for _ in range(6):  # every slot was released once
        check(next(it))
    s = loader._shared.resources.session
    s.tell()
    eventually(lambda: daemon.posts == 6 + 4)
    taken = s.board.head

    class Deaf:
        def poll(self, *_):
            raise AssertionError("the socket was looked at")

    with monkeypatch.context() as patch:
        patch.setattr(s, "_poller", Deaf())
        patch.setattr(socket.socket, "recvmsg", Deaf.poll)
        for n in range(50):
            batch = next(it)
            assert check(batch) == list(range(24 + 4 * n, 28 + 4 * n))
            del batch
            eventually(lambda n=n: daemon.posts >= 6 + 4 + n)  # the slot of the batch before goes back in next()
    assert s.board.head == taken + 50
    assert loader._shared.batches == 56 and loader._shared.samples == 224


def test_reports_come_between_posts(load, daemon):
    """A batch with a report is a frame, its neighbours are posted: one sequence."""
    daemon.bad = {i for i in range(400) if i % 37 == 5}
    loader = load("fake:400", batch_size=4, transform=CROP, return_index=True, on_error="skip")
    assert [i for b in loader for i in check(b)] == [i for i in range(400) if i not in daemon.bad]
    assert 0 < daemon.posts == 100 - len({i // 4 for i in daemon.bad})
    assert {q.id for q in loader.quarantined} == daemon.bad


def test_next_is_woken_by_a_post(load, daemon):
    loader = load("fake:80", batch_size=4, transform=CROP, return_index=True)
    daemon.hold = True
    it = iter(loader)
    asked = []

    def later():
        peer = daemon.attached()[0]
        eventually(lambda: peer.segments[0][peer.board + 64] == 1)  # it asked to be woken
        asked.append(daemon.wakes)
        daemon.resume()

    t = threading.Thread(target=later)
    t.start()
    check(next(it))
    t.join()
    assert asked == [0] and daemon.wakes == 1


def test_a_rank_that_was_taken_over_uses_nothing_that_is_posted(load, daemon):
    loader = load("fake:400", batch_size=4, transform=CROP, return_index=True)
    it = iter(loader)
    for _ in range(6):
        check(next(it))
    loader._shared.resources.session.tell()
    eventually(lambda: daemon.posts == 10)
    daemon.gone(loader.job, "STALE", "another client has the rank")
    with pytest.raises(larder.StaleError, match="another client"):
        next(it)


def test_what_is_posted_before_an_ordinary_end_is_used(load, daemon):
    loader = load("fake:400", batch_size=4, transform=CROP, return_index=True)
    it = iter(loader)
    for _ in range(6):
        batch = next(it)
    loader._shared.resources.session.tell()
    eventually(lambda: daemon.posts == 9)
    daemon.gone(loader.job, "JOB_ENDED", "killed")
    for n in range(3):
        assert check(next(it)) == list(range(24 + 4 * n, 28 + 4 * n))
    with pytest.raises(larder.JobEndedError, match="killed"):
        next(it)
    check(batch)


def test_abandoned_epochs_leave_nothing_on_the_board(load, daemon):
    loader = load("fake:400", batch_size=4, transform=CROP, return_index=True)
    for epoch in range(12):
        it = iter(loader)
        for n in range(epoch % 7):
            assert check(next(it), epoch) == list(range(4 * n, 4 * n + 4))
        eventually(lambda: all(daemon.attached()[0].leased))
    assert [i for b in loader for i in check(b, 12)] == list(range(400))


@pytest.mark.parametrize("board, posts", [(8, 3), (4, 4), (1 << 40, 4), (0, 0)])
def test_an_impossible_board_is_refused(board, posts):
    from larder import _board

    class Memory:
        memory = bytes(4096)

    attach = {"board": str(board), "posts": posts, "job": {"spec": {"batchSize": 4}}}
    if not board:
        assert _board.of(Memory(), attach, {}) is None
        return
    with pytest.raises(larder.Error, match="board"):
        _board.of(Memory(), attach, {})
