"""Slots that go back in release words, with the real daemon: clients that never tell, that are killed before they tell,
whose daemon dies before it has read the words, and clients that know of no words.
"""

import json
import os
import signal
import subprocess
import sys

import pytest
from conftest import eventually
from lives import Lives
from real import HERE, PATIENCE, draw, pillow

import larder
from larder import _board

pillow()
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="elsewhere slots go back over the socket")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("release"), 4, 30)


@pytest.fixture
def lives(tmp_path):
    made = Lives(tmp_path / "d", more="jobs: {lease: 1h}\n")
    yield made
    made.daemon.stop()


def load(lives, folder, job="a", **kw):
    kw = {"batch_size": 4, "return_index": True, "transform": [larder.ops.RandomResizedCrop(16)]} | kw
    return larder.Loader(f"imagefolder:{folder}", job=job, endpoint=lives.socket, timeout=PATIENCE, **kw)


def ids(loader):
    return sorted(int(i) for *_, index in loader for i in index)


def waited(lives, job):
    out = json.loads(lives.daemon.cli("jobs", "describe", job, "-o", "json").stdout)
    return float(out["counters"]["wait_seconds"])


@pytest.mark.parametrize("prefetch", [1, 2, 6])
def test_a_client_that_tells_only_before_it_sleeps(lives, folder, prefetch, monkeypatch):
    monkeypatch.setattr(_board.Board, "due", lambda _: False)
    monkeypatch.setattr(_board.Board, "unread", lambda _: False)
    loader = load(lives, folder, prefetch=prefetch, shuffle=True, seed=3)
    for _ in range(4):
        assert ids(loader) == list(range(120))
    loader.close()


@pytest.mark.parametrize("politely", [False, True])
def test_a_daemon_that_ends_before_it_has_read_the_words(lives, folder, politely, monkeypatch):
    monkeypatch.setattr(_board.Board, "due", lambda _: False)
    monkeypatch.setattr(_board.Board, "unread", lambda _: False)
    loader = load(lives, folder, shuffle=True, seed=5, job=f"j{politely}")
    for deaths in range(4):
        got, n = [], 0
        for batch in loader:
            got += batch[2].tolist()
            batch = None  # its end writes the word
            n += 1
            if n == 6 + 6 * deaths:
                session = loader._shared.resources.session
                session.flush()
                assert session.board.untold()
                lives.restart(politely)
        assert sorted(got) == list(range(120))
    loader.close()


def test_clients_without_words(lives, folder, monkeypatch):
    """An older client: it sends RELEASE, with a board or without one."""
    of = _board.of
    monkeypatch.setattr(_board, "of", lambda ring, attach, held: of(ring, {**attach, "releases": 0}, held))
    loader = load(lives, folder, "no-words")
    assert ids(loader) == ids(loader) == list(range(120))
    assert loader._shared.resources.session.board is not None
    loader.close()
    monkeypatch.setattr(_board, "of", lambda *_: None)
    loader = load(lives, folder, "no-board")
    assert ids(loader) == ids(loader) == list(range(120))
    loader.close()


SCRIPT = """
import os, signal, sys, larder
from larder import _board
_board.Board.due = lambda self: False
give = _board.Board.give_back
_board.Board.give_back = lambda self, slot, generation, us: give(self, slot, generation, 3_600_000_000)
loader = larder.Loader("imagefolder:" + sys.argv[1], batch_size=4, job="killed", endpoint=sys.argv[2],
                       transform=[larder.ops.RandomResizedCrop(16)], on_daemon_loss="raise")
it = iter(loader)
batch = next(it)
del batch
loader._shared.resources.session.flush()  # the word is written
board = loader._shared.resources.session.board
assert board.untold()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_client_that_is_killed_between_writing_and_telling(lives, folder):
    """What it gave back counts: its word says that it waited for an hour."""
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    p = subprocess.run([sys.executable, "-c", SCRIPT, str(folder), lives.socket], env=env, check=False)
    assert p.returncode == -signal.SIGKILL
    eventually(lambda: waited(lives, "killed") >= 3600)
    assert waited(lives, "killed") < 7200


def test_a_liar_harms_itself_only(lives, folder):
    """Generations of batches that it holds, that it will hold, and of none, while a neighbour trains."""
    liar, neighbour = load(lives, folder, "liar"), load(lives, folder, "neighbour", shuffle=True, seed=9)
    it = iter(liar)
    next(it)
    board = liar._shared.resources.session.board
    for epoch in range(3):
        got = []
        for n, (*_, index) in enumerate(neighbour):
            got += [int(i) for i in index]
            for slot in range(board.ring.slots):
                board.give_back(slot, (n + epoch) % 7 or (1 << 64) - 1, 0xFFFFFFFF)
            liar._shared.resources.session.tell()
        assert sorted(got) == list(range(120))
    assert lives.daemon.process.poll() is None
    liar.close()
    assert ids(load(lives, folder, "after")) == list(range(120))
