"""The fixture ``clock``: a test in which no time passes unless it says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import stepped_clock
from stepped_clock import SteppedClock

from larder import _clock, _detach

FUNCTIONS = ("monotonic", "sleep", "poll", "alarm", "kernel_timer")


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[SteppedClock]:
    """Deadlines of this process, of its workers and of the processes that it starts are decided by steps of this clock.

    A daemon follows when it gets ``--clock`` and the clock's address. Fixtures named before this one outlive it.
    """
    c = SteppedClock(tmp_path / "clock")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LARDER_CLOCK", c.address)
        patch.setenv("LARDER_CLOCK_MODULE", stepped_clock.__file__)
        for name in FUNCTIONS:
            patch.setattr(_clock, name, getattr(c.local, name))
        patch.setattr(_detach, "_next_look", 0.0)
        yield c
    c.close()
