"""Slots go back in release words: when the arrays of a batch die, without Python code and without a system call; the
daemon is told of several at once, and always before the client sleeps.
"""

import collections
import gc
import os
import random
import signal
import struct
import sys
import threading

import numpy as np
import pytest
from conftest import eventually
from fake_samples import expected_fixed
from real import PATIENCE, night

import larder
from larder import _board
from larder._lease import Lease
from larder._session import Session

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="elsewhere slots go back over the socket")

CROP = [larder.ops.RandomResizedCrop(224)]


def check(batch, epoch=0):
    images, _labels, index = batch
    for image, i in zip(images, index, strict=True):
        np.testing.assert_array_equal(image, expected_fixed(int(i), epoch))
    return [int(i) for i in index]


def words(peer):
    """The generation in the word of each slot."""
    return [struct.unpack_from("<Q", peer.segments[0], peer.words + 32 * i + 16)[0] for i in range(peer.slots)]


def started(load, daemon, batches=400, **kw):
    """A loader whose next batches are posted and were built ahead, its iterator and its peer."""
    loader = load(f"fake:{4 * batches}", batch_size=4, transform=CROP, return_index=True, **kw)
    it = iter(loader)
    for n in range(3):
        assert check(next(it)) == list(range(4 * n, 4 * n + 4))
    [peer] = daemon.attached()
    return loader, it, peer


def test_the_end_of_a_batch_gives_its_slot_back_without_python_code(load, daemon):
    daemon.group = 0  # the client is never asked to tell
    loader, it, peer = started(load, daemon)
    batch = next(it)
    lease = next(x for x in loader._shared.resources.session.held.values() if isinstance(x, Lease))
    assert words(peer)[lease.slot] != lease.generation
    part, seen = batch[0][1:], []
    del batch
    assert words(peer)[lease.slot] != lease.generation  # a view keeps it
    sys.setprofile(lambda frame, event, arg: seen.append(event))
    del part
    sys.setprofile(None)
    assert "call" not in seen
    assert words(peer)[lease.slot] == lease.generation


@pytest.mark.parametrize(
    ("prefetch", "group"),
    [
        *((1, 1), (2, 0), (2, 3), (7, 2)),
        *night((1, 0), (1, 2), (1, 3), (2, 1), (2, 2), (7, 0), (7, 1), (7, 3)),
    ],
)
def test_slots_go_back_in_groups(load, daemon, group, prefetch):
    """Whenever the daemon wants to be told, every batch comes, once."""
    daemon.group = group
    loader = load("fake:803", batch_size=4, transform=CROP, return_index=True, prefetch=prefetch)
    for epoch in range(2):
        assert [i for b in loader for i in check(b, epoch)] == list(range(803))
    eventually(lambda: not any(daemon.attached()[0].leased) or loader.stats())
    assert len(daemon.releases) == 2 * 201 and daemon.repeated == 0


@pytest.mark.parametrize("group", [1, 2, 3])
def test_a_client_tells_once_for_a_group(load, daemon, group, monkeypatch):
    daemon.group = group
    sent = []
    note = Session._note_told
    monkeypatch.setattr(Session, "_note_told", lambda s, board: (sent.append(1), note(s, board)))
    _, it, peer = started(load, daemon)
    before = len(sent)
    for n in range(60):
        eventually(lambda: daemon.told == len(sent) and all(peer.leased))  # the daemon rests
        assert check(next(it)) == list(range(4 * n + 12, 4 * n + 16))
    # A batch that dies before the daemon looks is one more of its group.
    assert len(sent) - before in range(60 // (group + 1) - 1, 60 // group + 2)


@pytest.mark.parametrize("group", [0, 2, 3])
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_script_that_keeps_batches_waits_for_no_slot_in_vain(load, daemon, group, kept):
    """With slots held back for a group, a script that keeps batches would find none ready, and the daemon none free."""
    daemon.group = group
    loader = load("fake:203", batch_size=4, transform=CROP, return_index=True)
    window, got = [], []
    for batch in loader:
        got += check(batch)
        window = [*window, batch][-kept:]
        del batch
    assert got == list(range(203))
    for batch in window:
        check(batch)


def test_a_client_that_asks_for_anything_is_understood_to_have_told(load, daemon):
    daemon.group = 0
    loader, it, peer = started(load, daemon)
    eventually(lambda: all(peer.leased) or loader.stats())  # the next batch is there: a client that sleeps tells, too
    loader.stats()  # what was told before is read
    told = daemon.told
    check(next(it))
    loader.stats()
    assert len(daemon.releases) == 4 and daemon.told == told  # the question was enough


def test_an_old_daemon_gets_release_frames(load, daemon):
    daemon.words = False
    loader = load("fake:403", batch_size=4, transform=CROP, return_index=True)
    assert [i for b in loader for i in check(b)] == list(range(403))
    assert daemon.posts > 0 and daemon.told == 0


def test_reports_between_posts_count_as_taken(load, daemon):
    daemon.bad = {i for i in range(400) if i % 9 == 5}
    daemon.group = 3
    loader = load("fake:400", batch_size=4, transform=CROP, return_index=True, on_error="skip")
    assert [i for b in loader for i in check(b)] == [i for i in range(400) if i not in daemon.bad]


def test_a_forked_child_gives_nothing_back(load, daemon):
    daemon.group = 0
    _, it, peer = started(load, daemon)
    batch = next(it)
    before = words(peer)
    pid = os.fork()
    if pid == 0:
        del batch, it
        gc.collect()
        os._exit(0 if words(peer) == before else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert words(peer) == before
    check(batch)
    del batch
    assert words(peer) != before


def test_arrays_die_in_any_thread(load, daemon):
    daemon.group = 3
    loader = load("fake:800", batch_size=4, transform=CROP, return_index=True, prefetch=4)
    got, box = [], []
    some = threading.Semaphore(0)

    def drop():
        while some.acquire() and box[0] is not None:
            box.pop(0)

    t = threading.Thread(target=drop)
    t.start()
    for batch in loader:
        got += check(batch)
        box.append(batch)
        del batch
        some.release()
    box.append(None)
    some.release()
    t.join(PATIENCE)
    assert got == list(range(800)) and not t.is_alive()


def test_what_an_interrupt_left_goes_back_before_the_client_sleeps(load, daemon):
    """Between the step in which a batch is taken and the one that arms its lease, an interrupt may come."""
    daemon.group = 0
    loader, it, _ = started(load, daemon, 100)
    session = loader._shared.resources.session
    got = []
    for batch in it:
        got += check(batch)
        for lease in session.held.values():
            if isinstance(lease, Lease):
                lease.armed.clear()  # as if it had come then
        del batch
    assert got == list(range(12, 400))


class Interrupt(BaseException):
    pass


def test_an_interrupt_after_the_daemon_was_told_hides_no_later_telling(load, daemon, monkeypatch):
    """The frame that tells was sent and left the queue; then an interrupt comes."""
    daemon.group = 0  # the daemon looks only when the client tells it
    sent, told = [], daemon.told
    note = Session._note_told
    monkeypatch.setattr(Session, "_note_told", lambda s, board: (sent.append(1), note(s, board)))
    _, it, _ = started(load, daemon, 100)
    session = it.run.session

    class Queue(collections.deque):
        def popleft(self):
            item = super().popleft()
            if isinstance(item, bytes) and not raised:
                raised.append(item)
                raise Interrupt
            return item

    session.queue = session.board.queue = Queue(session.queue)
    raised, got = [], []
    while len(got) < 388:
        try:
            got += check(next(it))
        except Interrupt:
            pass
    assert raised and got == list(range(12, 400))
    eventually(lambda: daemon.told == told + len(sent))


@pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*socket.socket fd=-1:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("group", [0, 3])
def test_interrupts_lose_no_slot_and_double_no_batch(load, daemon, bell, group):
    daemon.interrupted = True
    daemon.group = group
    loader = load("fake:1200", batch_size=4, transform=CROP, return_index=True)
    rng, got, raised = random.Random(group), [], 0

    def handler(*_):
        raise Interrupt

    old = signal.signal(signal.SIGALRM, handler)
    try:
        while not raised:
            it, step = iter(loader), -1
            while True:
                try:
                    bell.ring(rng.randrange(1, 2000))
                    for batch in it:
                        step = int(batch[2][0]) // 4
                        del batch
                    bell.silence()
                    break
                except Interrupt:  # also the last one, which may come when all batches have
                    raised += 1
                    got.append(step)
            assert step == 299
    finally:
        bell.silence()
        signal.signal(signal.SIGALRM, old)
    assert got == sorted(got)
    assert sum(len(check(b, loader.epoch)) for b in loader) == 1200  # every slot is there


@pytest.mark.parametrize("at", [8, 4097, 1 << 40, 8 * 512 - 64])
def test_impossible_words_are_refused(at):
    class Memory:
        memory = bytes(4096)
        slots = 4
        slot_bytes = 512

    attach = {"board": "2048", "posts": 4, "releases": str(at), "job": {"spec": {"batchSize": 4}}}
    with pytest.raises(larder.Error, match="release words"):
        _board.of(Memory(), attach, {})


def test_what_the_daemon_has_read_needs_no_telling(load, daemon, monkeypatch):
    """The daemon reads the words of all clients when one of them tells."""
    _, it, peer = started(load, daemon)
    sent = []
    note = Session._note_told
    monkeypatch.setattr(Session, "_note_told", lambda s, board: (sent.append(1), note(s, board)))
    for n in range(120):
        eventually(lambda: all(peer.leased))
        assert check(next(it)) == list(range(4 * n + 12, 4 * n + 16))
        peer.collect()  # as if another client had told
        peer.feed()
    assert len(sent) <= 4
