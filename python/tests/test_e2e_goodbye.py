"""Loaders whose connection had ended are closed or forgotten, and their process lives on: the real daemon learns that
the client will not come back.
"""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import weakref

import pytest
from conftest import eventually
from lives import Lives
from real import PATIENCE, draw, night, pillow

import larder
from larder import _detach

pillow()

CONFIG = "jobs: {lease: 1h, max: 3}\n"  # no job ends by its lease


@pytest.fixture
def lives(tmp_path):
    _detach._waiting.clear()  # of other tests, whose daemons are gone
    made = Lives(tmp_path / "d", more=CONFIG)
    yield made
    gc.collect()
    made.daemon.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("goodbye"), 2, 12)


def load(lives, folder, job, **kw):
    kw = {"batch_size": 4, "transform": [larder.ops.CenterCrop(16)], "endpoint": lives.socket, "timeout": PATIENCE} | kw
    return larder.Loader(f"imagefolder:{folder}", job=job, **kw)


def states(lives):
    """Of every job that the daemon knows."""
    answer = json.loads(lives.daemon.cli("jobs", "ls", "--ended", "-o", "json").stdout)
    rows = answer if isinstance(answer, list) else answer.get("jobs", [])
    return {j["spec"]["name"]: j["state"].removeprefix("JOB_STATE_").lower() for j in rows}


def cut(loader):
    loader._shared.resources.session._sock.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        *(("close", "restart"), ("forget", "cut")),
        *night(
            *(("close", "cut"), ("forget", "restart")),
            *((end, how) for end in ("close of one that looked", "exception") for how in ("restart", "cut")),
        ),
    ],
)
def test_loaders_that_lost_their_connection_leave_no_job(how, end, lives, folder):
    for n in range(5):  # jobs.max is 3
        loader = load(lives, folder, f"job-{n}")
        count = sum(1 for _ in loader)  # an assertion would keep the loader alive
        assert count == 6
        if how == "restart":
            lives.restart()
        else:
            cut(loader)
        if end == "close of one that looked":
            loader.stats()  # it has a connection again, and no rank
        if end == "exception":
            with contextlib.suppress(ZeroDivisionError), loader:
                raise ZeroDivisionError
        elif end != "forget":
            loader.close()
        known = weakref.ref(loader)
        del loader
        gc.collect()
        assert known() is None
    last = load(lives, folder, "last")  # what was forgotten last is buried here
    assert sum(1 for _ in last) == 6
    assert {s for name, s in states(lives).items() if name != "last"} <= {"done"}
    last.close()
    assert _detach._waiting == []


def test_in_the_midst_of_an_epoch(lives, folder):
    loader = load(lives, folder, "cut")
    next(iter(loader))
    cut(loader)
    loader.close()
    assert states(lives).get("cut", "done") == "done"


def test_a_goodbye_that_no_daemon_received_goes_to_the_next_daemon(lives, folder):
    other, loader = load(lives, folder, "other"), load(lives, folder, "left")
    for x in (other, loader):
        next(iter(x))
    lives.kill()
    loader.close()
    assert [s.job for s in _detach._waiting] == ["left"]
    lives.start()
    assert states(lives)["left"] == "suspect"

    def heard():
        other.stats()
        return not _detach._waiting

    eventually(heard, PATIENCE)
    assert states(lives).get("left", "done") == "done" and states(lives)["other"] != "done"
    other.close()


def test_a_rank_that_was_taken_by_another_client_stays_with_it(lives, folder):
    old = load(lives, folder, "shared")
    next(iter(old))
    cut(old)
    eventually(lambda: states(lives)["shared"] == "suspect", PATIENCE)
    new = load(lives, folder, "shared")
    it = iter(new)
    next(it)
    old.close()
    assert sum(1 for _ in it) == 5 and states(lives)["shared"] == "live"
    new.close()
