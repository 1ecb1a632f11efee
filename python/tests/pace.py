"""The one place where these tests let real time pass.

It passes in a step of a simulated training, and in an item or an answer that takes long: nothing may be asserted that
depends on how long. And it passes while something that another process does is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def pace(seconds: float) -> None:
    """Works for so long, in a training, a dataset or a store that a test simulates."""
    time.sleep(seconds)


def eventually(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Waits until something that another process or thread does has happened; fails after a generous deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
