"""The clock of a worker process: it ends a task that takes too long, or the process, and leaves word of why and where.

The words lie in memory that the daemon reads when the process ends (WORDS in docs/protocol.md). An item that hangs in
Python code is interrupted and needs none. One that hangs in C code is seen by another thread; if that cannot run, the
stack is there all the same, because the handler of the timer's signal, which is C code, has written it. The kernel then
ends the process, whose place in its crew would be lost else.
"""

from __future__ import annotations

import faulthandler
import fcntl
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from . import _clock, _units
from ._items import Clock

_PAGE = mmap.PAGESIZE
_LATE = 0.005  # seconds after which what was made no longer waits for the item that is being made
_STACK = 8000  # characters of a stack that are kept: its end
_SEALS, _ADD_SEALS = 1 | 2 | 4, 1033  # no more seals, no shrinking, no growing


class Hung(TimeoutError):
    """An item took longer than ``sample_timeout``."""


class Words:
    """What the daemon reads when this process ends: a line that says why, and then where it was."""

    size = 32 << 10

    def __init__(self) -> None:
        self.fd = os.memfd_create("larder-words", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size)
        fcntl.fcntl(self.fd, _ADD_SEALS, _SEALS)
        self.clear()

    def clear(self) -> None:
        """Says nothing. A stack that C code writes comes behind an empty line."""
        self._put(b"\n")
        os.lseek(self.fd, 1, os.SEEK_SET)

    def say(self, why: str, where: str) -> None:
        """Says why this process ends, in one line, and where it is."""
        line = why.replace("\n", " ")[:1000]
        self._put(f"{line}\n{where}".encode(errors="replace").replace(b"\0", b"")[: self.size])

    def _put(self, data: bytes) -> None:
        os.pwrite(self.fd, data.ljust(self.size, b"\0"), 0)


class Alarm(Clock):
    """Raises Hung in the task; when that does not end it, ends the process. Main thread of a worker only."""

    def __init__(self) -> None:
        self.deadline = 0.0  # of the task; 0 = there is none
        self.words = Words()
        self.late: Callable[[], None] = _nothing  # called from time to time while one task takes long
        self._memory = self._least = 0  # bytes by which the process may grow, and what it began with; 0 = any
        self._grace = 0.0  # of the task, beyond which its process ends
        self._kill_after = _clock.kernel_timer()
        self._armed = False  # a task has set the kernel's timer since this process rested
        self._taken = False  # the other thread has taken it back since a task set it
        self._works = threading.Event()  # it did a moment ago
        self._seconds = self._began = self._set = 0.0  # set = when the timer was set; 0 = it is not
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, self._ring)
        faulthandler.register(signal.SIGALRM, file=self.words.fd, all_threads=False, chain=True)
        threading.Thread(target=self._watch, name="larder-watch", daemon=True).start()

    def limit(self, memory: int) -> None:
        """Ends the process when it has grown by more than so many bytes from now on; 0 = never."""
        self._least, self._memory = resident(), memory

    def start(self, seconds: float) -> None:
        """A task begins. The timer is set anew only for the first of many short ones, and it never interrupts those."""
        now = self._began = _clock.monotonic()
        if not self._works.is_set():
            self._works.set()
        if seconds <= 0:
            self._disarm()
            return
        # Before the deadline, by which the other thread sets the timer too.
        fresh, self._armed, self._taken = not self._armed or self._taken, True, False
        self._grace = 1.25 * seconds + 0.5
        self.deadline = now + self._grace
        if fresh or not self._set or seconds != self._seconds or now - self._set > seconds / 2:
            self._set, self._seconds = now, seconds
            _clock.alarm(seconds)
            self._kill_after(self._mercy())

    def tick(self) -> None:
        """The next of several tasks begins that follow each other."""
        self._began = _clock.monotonic()
        if self.deadline:
            self.deadline = self._began + self._grace
            if not self._set:  # it rang for the task before
                self._set = self._began
                _clock.alarm(self._seconds)

    def stop(self) -> None:
        """It is over."""
        self.deadline = 0.0

    def rest(self) -> None:
        """No task follows at once."""
        if self._set:
            self._set = 0.0
            _clock.alarm(0)
        self._disarm()

    def _disarm(self) -> None:
        """No task has a time limit, so the kernel's timer must not run."""
        if self._armed:
            self._armed = False
            self._kill_after(0)

    def _mercy(self) -> float:
        """Seconds without Python code after which the kernel ends the process; 0 = never."""
        return 1.5 * self._seconds + 5 if self.deadline else 0.0

    def _ring(self, *_: object) -> None:
        self._set = 0.0
        self.words.clear()  # of the stack: Python code runs
        if not self.deadline:
            return
        left = self._began + self._seconds - _clock.monotonic()
        if left > 0:  # it was set for an earlier task
            self._set = self._began
            _clock.alarm(left)
            return
        raise Hung(f"the item took longer than sample_timeout ({self._seconds:g} s)")

    def _watch(self) -> None:
        """Ends the process when its task does not end, when its client died, or when it has grown too large."""
        parent = sys.modules["multiprocessing.process"].parent_process()
        above = os.getppid()
        looked, began, since = 0.0, -1.0, 0.0
        while True:
            if self._works.wait(0.25):
                time.sleep(_LATE)
                now = time.monotonic()  # how often this looks is no matter of the clock that decides
                if began != self._began:
                    began, since = self._began, now
                else:  # one task, since the last look at least
                    self._relieve()
                    if now - since > 1:
                        self._works.clear()
                if now - looked < 0.25:
                    continue
                looked = now
            self._runs()
            if self.deadline and _clock.monotonic() > self.deadline:
                self._end(f"the item did not stop after sample_timeout ({self._seconds:g} s)")
            if os.getppid() != above or (parent is not None and not parent.is_alive()):
                os._exit(1)
            grown = resident() - self._least if self._memory else 0
            if grown > self._memory:
                self._end(
                    f"the process grew by {_units.size(grown)}, and worker_memory is {_units.size(self._memory)}"
                )

    def _runs(self) -> None:
        """Python code runs, so the kernel's timer starts anew: it is for tasks in which none can.

        A task may begin or end meanwhile. What this thread has set, it takes back itself, whatever the other one did.
        """
        was = -1.0 if self._armed else 0.0
        while (after := self._mercy()) != was:
            if not after:
                self._taken = True  # first, so that no task begins without the timer
            self._kill_after(after)
            was = after

    def _end(self, why: str) -> None:
        """Ends the process, and says where its main thread was."""
        faulthandler.unregister(signal.SIGALRM)
        self.words.say(why, _stack())
        os.write(2, f"larder: a worker was ended: {why}\n".encode(errors="replace"))
        os._exit(1)

    def _relieve(self) -> None:
        try:
            self.late()
        except Exception:
            pass


def _stack() -> str:
    """Where the main thread is, from this package on."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = [] if frame is None else list(traceback.extract_stack(frame))
    here = os.path.dirname(__file__)
    begin = next((n for n, f in enumerate(frames) if os.path.dirname(f.filename) == here), 0)
    return "Stack (most recent call last):\n" + "".join(traceback.format_list(frames[begin:]))[-_STACK:]


def resident() -> int:
    """Bytes of private memory of this process."""
    with open("/proc/self/statm") as f:
        fields = f.read().split()
    return (int(fields[1]) - int(fields[2])) * _PAGE


def _nothing() -> None:
    pass
