"""Interrupts (Ctrl-C) while a client reconnects, at the moments that matter, placed by hand."""

from __future__ import annotations

import pytest
from conftest import eventually
from lives import record
from test_e2e_restart import cut, folder  # noqa: F401  (a fixture)


@pytest.mark.parametrize("how", ["cut", "restart"])
def test_an_old_ring_is_not_read_after_the_daemon_was_asked(folder, lives, loads, monkeypatch, how):
    """The daemon was asked to continue at a step, and the answer was interrupted.

    What the old ring still has ready is sent again, so it must not be taken from there as well: the daemon would not
    know of it, and would refuse the step after it.
    """
    # So slow that the daemon has not sent the batches again when its client is interrupted.
    d = lives(more='source: {storage_limit: "200KB/s"}\n')
    loader = loads(d, f"imagefolder:{folder}", job="asked", prefetch=3)
    it = iter(loader)
    got = [record(next(it)) for _ in range(3)]
    board = loader._shared.resources.session.board
    eventually(lambda: board.post() is not None)
    board.stop()  # the next batch is not taken unseen: next() looks at the socket first
    cut(loader) if how == "cut" else d.restart()
    asked = []

    def interrupted(*a):
        asked.append(a)
        if len(asked) == 2:  # first of the job it attached to, then of the epoch
            raise KeyboardInterrupt
        return note(*a)

    note = loader._shared.note_size
    monkeypatch.setattr(loader._shared, "note_size", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(it)
    assert len(asked) == 2
    assert board.post() is not None, "the old ring has nothing ready: this test tests nothing"
    got += [record(b) for b in it]
    assert sorted(i for b in got for i, _, _ in b) == list(range(108))
