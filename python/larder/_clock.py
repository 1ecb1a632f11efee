"""The clock that decides deadlines, timeouts, pauses between two looks, and the alarms of ``sample_timeout``.

It is the kernel's monotonic clock, and each function here is the one of Python itself. What only measures (how long a
read or a wait took, when answers are gathered) reads ``time.monotonic`` and never this clock.

The tests of larder, and nothing else, put another clock in its place, which stands still until a test steps it. They
set two variables for the processes that they start: ``LARDER_CLOCK=unix:PATH`` is the socket of a test, and
``LARDER_CLOCK_MODULE`` the file that follows it (python/tests/stepped_clock.py), which no wheel holds.

A wait on this clock may end early. Who waits compares ``monotonic()`` with the deadline and waits again.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

Timer = Callable[[float], object]  # sets a timer to so many seconds; 0 = it does not run


def _none(seconds: float) -> None:
    pass


def _kernel_timer() -> Timer:
    """A timer with which the kernel ends this process, also when no Python code can run."""
    try:
        import ctypes

        libc = ctypes.PyDLL(None)
        if not hasattr(libc, "timer_create"):  # glibc before 2.34
            libc = ctypes.PyDLL("librt.so.1")
        event = (ctypes.c_int * 16)()  # struct sigevent: a value, the signal, and SIGEV_SIGNAL, which is 0
        event[2] = signal.SIGVTALRM  # its default action, which nothing replaces, ends the process
        timer = ctypes.c_void_p()
        if libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)):
            return _none
        spec = ctypes.c_long * 4
    except (ImportError, OSError, AttributeError):
        return _none

    def after(seconds: float) -> None:
        libc.timer_settime(timer, 0, spec(0, 0, int(seconds), int(seconds % 1 * 1e9)), None)

    return after


monotonic: Callable[[], float] = time.monotonic
sleep: Callable[[float], None] = time.sleep
poll: Callable[[Any, float], list[tuple[int, int]]] = type(select.poll()).poll  # a poller, and milliseconds
alarm: Timer = functools.partial(signal.setitimer, signal.ITIMER_REAL)  # SIGALRM
kernel_timer: Callable[[], Timer] = _kernel_timer  # makes a timer that ends the process by SIGVTALRM


def _follow(address: str, file: str) -> None:
    """Puts the clock of a test in place of the kernel's.

    Raises:
        ImportError: no file of the tests says how.
    """
    spec = importlib.util.spec_from_file_location("larder_stepped_clock", file) if file else None
    if spec is None or spec.loader is None:
        raise ImportError(
            f"LARDER_CLOCK={address} is for the tests of larder, and LARDER_CLOCK_MODULE={file} does not name their "
            "stepped_clock.py: unset both variables"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    clock = module.Follower(address)
    for name in ("monotonic", "sleep", "poll", "alarm", "kernel_timer"):
        globals()[name] = getattr(clock, name)


if "LARDER_CLOCK" in os.environ:
    _follow(os.environ["LARDER_CLOCK"], os.environ.get("LARDER_CLOCK_MODULE", ""))
