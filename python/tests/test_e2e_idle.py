"""Clients that are stopped for longer than jobs.idle_timeout, with the real daemon and real processes."""

from __future__ import annotations

import signal

import pytest
from real import PATIENCE

import larder


def test_a_stopped_client_wakes_to_a_stale_error(small, private, clients, clock, monkeypatch):
    monkeypatch.setattr("larder._connection._RANK_HELD_PATIENCE", -1.0)  # it asks for the rank once
    daemon = private("jobs: {idle_timeout: 1h}", "--clock", clock.address)
    kw = {"batch_size": 4, "shuffle": True, "job": "stopped", "timeout": 1e6}
    with pytest.MonkeyPatch.context() as patch:  # a process that is stopped follows no clock
        for name in ("LARDER_CLOCK", "LARDER_CLOCK_MODULE"):
            patch.delenv(name)
        stopped = clients(daemon, f"imagefolder:{small}", epochs=1000, delay=0.02, loader=kw)
    neighbour = larder.Loader(
        f"imagefolder:{small}", batch_size=4, shuffle=True, job="neighbour", return_index=True, endpoint=daemon.socket
    )
    stopped.until("batch")
    stopped.process.send_signal(signal.SIGSTOP)
    successor = larder.Loader(f"imagefolder:{small}", return_index=True, endpoint=daemon.socket, **kw)
    refused, got = 0, None
    while got is None:
        try:
            got = [i for *_, index in successor for i in index.tolist()]
        except larder.Error as e:
            assert e.reason == "RANK_HELD", e
            refused += 1
            clock.advance(1300)
        # The neighbour continues all the while, and is not silent.
        assert sorted(i for *_, index in neighbour for i in index.tolist()) == list(range(72))
    assert refused > 0 and sorted(got) == list(range(72))
    successor.close()
    stopped.process.send_signal(signal.SIGCONT)
    said = stopped.until("error")
    assert (said["type"], said["reason"]) == ("StaleError", "STALE") and "idle_timeout" in said["text"], said
    assert stopped.process.wait(PATIENCE) == 1
    assert sorted(i for *_, index in neighbour for i in index.tolist()) == list(range(72))
    neighbour.close()
