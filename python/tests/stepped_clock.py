"""The clock of a test: it stands still until the test steps it.

A test owns a ``SteppedClock``, which listens on a Unix socket. Whoever follows it connects and reads lines: the client
and the workers of larder (``larder._clock`` loads this file, by LARDER_CLOCK_MODULE), and a daemon that was built with
failpoints (``larder serve --clock=unix:PATH``).

    server -> follower  now NS            nanoseconds of the clock
    follower -> server  ok NS             its clock is there, and every wait that was due then has been woken
    follower -> server  alarm SIGNAL NS   it wants that signal at NS; 0 = no longer
    follower -> server  a byte below 32   it has handled that signal

The signal comes from the test's process, as it would from the kernel, so it also reaches a follower in which no Python
code can run. The byte is written by Python's C code, which needs the interpreter as little.

Only the standard library is imported here: this file runs in the processes of training scripts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

START = 1_000_000_000_000_000_000
BOUND = 300.0  # seconds of real time that a follower may take for a step
_GRACE = 1.0  # seconds of real time after which a follower that does not answer gets its signal even so
_SLICE = 250.0  # milliseconds of real time after which a wait looks again, whatever the clock says
Condition = Callable[[], bool]
Meanwhile = contextlib.AbstractContextManager[None]
_all: weakref.WeakSet[Any] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for x in list(_all):
        x.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Follower:
    """The functions of ``larder._clock`` on the clock of a test, which is of this process if ``server`` is given.

    A pause between two looks (``sleep``, a short ``poll``) ends when either clock has passed: a look at something that
    another process does must not wait for a step. Only deadlines do.

    An alarm counts from the last look of the main thread at the clock. A step may come between that look and the alarm:
    a deadline that was computed from the look would else be over before the alarm rings.
    """

    def __init__(self, address: str, server: SteppedClock | None = None) -> None:
        self._path = address.removeprefix("unix:")
        self._server = server
        self._sock: socket.socket | None = None
        self._ns = START if server is None else server.ns
        self._begin()
        _all.add(self)
        if server is None:
            self._connect()

    def _begin(self) -> None:
        self._moved = time.monotonic()  # in real time: when something happened here
        self._connecting = threading.RLock()  # threads of a child may look at the clock at once
        self._changed = threading.Condition()
        self._waits: dict[int, float] = {}  # seconds that a thread wants to wait, by what wakes it; 0 = it was woken
        self._main, self._seen = threading.get_ident(), self._ns  # what the main thread saw of the clock last

    def forked(self) -> None:
        """A child of the process follows over a connection of its own, from its first look at the clock on."""
        self._begin()
        if self._sock is not None:
            self._sock.close()
        self._sock = self._server = None

    def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self._path)
        except OSError:
            pass  # the test is over: the clock stands where it was
        sock.setblocking(False)  # signal.set_wakeup_fd asks for it
        self._sock = sock
        lines = _Lines(sock)
        while (told := self._take(lines)) == 0:  # its own work begins with the first time
            pass
        if told > 0:
            threading.Thread(target=self._follow, args=(lines,), name="stepped-clock", daemon=True).start()

    def _follow(self, lines: _Lines) -> None:
        while self._take(lines) >= 0:
            pass

    def _take(self, lines: _Lines) -> int:
        """How often the clock was moved; -1 = it stands still from now on."""
        lines.wait()
        said = lines.read()
        for line in said or ():
            self.move(int(line.split()[1]))
            self._say(f"ok {self._ns}")
        return -1 if said is None else len(said)

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            assert self._sock is not None
            self._sock.send(f"{line}\n".encode(), socket.MSG_NOSIGNAL)  # one call: a signal handler may send, too

    def move(self, ns: int) -> None:
        """Moves the clock, and wakes who waits."""
        with self._changed:
            self._ns, self._moved = ns, time.monotonic()
            for wake in self._waits:
                os.eventfd_write(wake, 1)
                self._waits[wake] = 0.0

    def until_waiting(self, longer: float, over: threading.Event | None = None) -> bool:
        """Waits until a thread waits on the clock, for more than so many seconds; or until ``over``, which ``poke``
        tells of.
        """

        def reached() -> bool:
            return any(s > longer for s in self._waits.values()) or (over is not None and over.is_set())

        with self._changed:
            return self._changed.wait_for(reached, BOUND)

    def poke(self) -> None:
        """Has ``until_waiting`` look again."""
        with self._changed:
            self._changed.notify_all()

    # ---- what larder._clock has

    def monotonic(self) -> float:
        """Seconds of the clock."""
        if self._sock is None and self._server is None:
            with self._connecting:
                if self._sock is None:
                    self._connect()
        ns = self._ns
        if threading.get_ident() == self._main:
            self._seen = ns
        return ns / 1e9

    def sleep(self, seconds: float) -> None:
        """Pauses between two looks."""
        self.poll(select.poll(), 1000 * seconds)

    def poll(self, poller: select.poll, ms: float) -> list[tuple[int, int]]:
        """Waits for a descriptor, the clock, or a moment of real time."""
        if ms <= 0:
            return poller.poll(0)
        self.monotonic()  # a child follows from here on
        wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            poller.register(wake, select.POLLIN)
            with self._changed:
                self._waits[wake] = ms / 1000
                self._changed.notify_all()
            ready = poller.poll(min(ms, _SLICE))
        finally:
            with self._changed:
                self._waits.pop(wake, None)
            poller.unregister(wake)
            os.close(wake)
        if ready or self._server is None:
            self._moved = time.monotonic()
        late = time.monotonic() - self._moved > BOUND
        assert not late, f"in {BOUND:g} s of real time nothing ended a wait of {ms / 1000:g} s on the test's clock"
        return [x for x in ready if x[0] != wake]

    def alarm(self, seconds: float) -> None:
        """Has SIGALRM sent after so many seconds; 0 = no longer. Main thread only, as of the kernel's."""
        seen = self._seen
        self.monotonic()
        assert self._sock is not None, "the process of a test has no alarms"
        signal.set_wakeup_fd(self._sock.fileno(), warn_on_full_buffer=False)
        self._alarm(signal.SIGALRM, seen, seconds)

    def kernel_timer(self) -> Callable[[float], None]:
        """A timer that ends this process, whatever it does."""

        def after(seconds: float) -> None:
            self.monotonic()
            self._alarm(signal.SIGVTALRM, self._ns, seconds)

        return after

    def _alarm(self, number: int, since: int, seconds: float) -> None:
        self._say(f"alarm {int(number)} {since + round(seconds * 1e9) if seconds else 0}")


class _Subscriber:
    """A process that follows, as the clock sees it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock, self.lines = sock, _Lines(sock)
        self.pid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        self.at = 0
        self.alarms: dict[int, int] = {}  # when, by signal
        self.handling = 0  # the signal that was sent and not handled yet
        self.overdue = False  # it does not say that it has moved its clock
        self.mute = False  # it has handled one and set none since: perhaps no Python code can run there

    def tell(self, ns: int) -> None:
        with contextlib.suppress(OSError):
            self.sock.send(f"now {ns}\n".encode(), socket.MSG_NOSIGNAL)

    def heard(self, line: str) -> None:
        kind, *numbers = line.split()
        if kind == "handled":
            if self.handling == int(numbers[0]):
                self.handling, self.mute = 0, True
        elif kind == "alarm":
            self.alarms[int(numbers[0])] = int(numbers[1])
            self.mute = self.mute and int(numbers[0]) != signal.SIGALRM
        else:
            self.at, self.overdue = int(numbers[0]), False

    def ring(self, ns: int) -> None:
        """Sends the signals that are due, each once the one before was handled, when all that it said is heard."""
        if self.lines.more or (self.at < ns and not self.overdue):
            return  # a signal that is handled by the time before would be taken for an early one
        for number, due in sorted(self.alarms.items(), key=lambda x: x[1]):
            if 0 < due <= ns and not self.handling:
                self.alarms[number], self.handling = 0, number
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)

    def due(self, ns: int) -> bool:
        """Whether an alarm rings at that time."""
        return any(0 < due <= ns for due in self.alarms.values())

    @property
    def works(self) -> bool:
        """Whether it is at an item that has a time limit, and was not told that the time is over."""
        return bool(self.alarms.get(signal.SIGALRM))

    @property
    def rests(self) -> bool:
        """Whether no alarm is set."""
        return not any(self.alarms.values())


class SteppedClock:
    """A clock that moves when the test says so. ``local`` is what the test's own process follows it with."""

    def __init__(self, path: object) -> None:
        self.path, self.address = str(path), f"unix:{path}"
        self.ns = START
        self._changed = threading.Condition()
        self._subscribers: list[_Subscriber] = []
        self._pid = os.getpid()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self.local = Follower(self.address, self)
        _all.add(self)
        threading.Thread(target=self._accept, name="stepped-clock", daemon=True).start()

    def forked(self) -> None:
        """A child does not hold the clock."""
        self._listener.close()
        for s in self._subscribers:
            s.sock.close()
        self._subscribers = []

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            s = _Subscriber(sock)
            with self._changed:
                self._subscribers.append(s)
                s.tell(self.ns)
                self._changed.notify_all()
            threading.Thread(target=self._hear, args=(s,), name="stepped-clock", daemon=True).start()

    def _hear(self, s: _Subscriber) -> None:
        said: list[str] | None = []
        while said is not None:
            s.lines.wait()
            with self._changed:
                said = s.lines.read()
                for line in said or ():
                    s.heard(line)
                s.ring(self.ns)
                self._changed.notify_all()
        with self._changed:
            if s in self._subscribers:
                self._subscribers.remove(s)
            s.sock.close()
            self._changed.notify_all()

    @property
    def now(self) -> float:
        """Seconds of the clock."""
        return self.ns / 1e9

    def advance(self, seconds: float) -> None:
        """Moves the clock. All who follow it are there when this returns, but for those that are mute."""
        with self._changed:
            self.ns += round(seconds * 1e9)
            told = list(self._subscribers)
        # What a worker says of itself is there when the daemon gives it up, and the daemon gives its work to one whose
        # clock has moved: the daemon, which has no alarms and came first, is last.
        self._move([s for s in told if s.due(self.ns)])
        self._move([s for s in told if s.alarms])
        self._move(told[::-1])
        self.local.move(self.ns)

    def _move(self, whom: list[_Subscriber]) -> None:
        late = lambda: [s.pid for s in whom if s.at < self.ns and not s.mute and s in self._subscribers]  # noqa: E731
        with self._changed:
            for s in whom:
                if s.at < self.ns and (s.due(self.ns) or not s.mute) and s in self._subscribers:
                    s.tell(self.ns)
            self._changed.wait_for(lambda: not late(), _GRACE)
            for s in whom:
                s.overdue = s.at < self.ns
                if s in self._subscribers:
                    s.ring(self.ns)
            assert self._changed.wait_for(lambda: not late(), BOUND), f"processes {late()} do not follow the clock"

    def followed(self, *pids: int) -> None:
        """Waits until these processes follow the clock."""
        with self._changed:
            came = self._changed.wait_for(lambda: {*pids} <= {s.pid for s in self._subscribers}, BOUND)
            assert came, f"of processes {pids}, {[s.pid for s in self._subscribers]} follow the clock"

    def armed(self, pid: int) -> None:
        """Waits until a process has an alarm: a worker makes an item that has a ``sample_timeout``."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._alarms(pid), BOUND), f"process {pid} has no alarm"

    def _alarms(self, pid: int) -> bool:
        return any(s.pid == pid and not s.rests for s in self._subscribers)

    def stuck(self) -> bool:
        """Whether exactly one process is at an item that has a time limit, but for those that it has passed for."""
        with self._changed:
            return sum(s.works for s in self._subscribers) == 1

    def waiting(self, longer: float = 0.0) -> None:
        """Waits until a thread of this process waits on the clock, for more than so many seconds."""
        assert self.local.until_waiting(longer), "no thread waits on the clock"

    def passing(self, step: float, longer: float = 0.0, after: Condition | None = None) -> Meanwhile:
        """Meanwhile, once ``after`` is true, the clock moves by ``step`` at each wait of a thread of this process that
        is for more than ``longer`` seconds: what ends a shorter one, as an answer of a daemon that lives, comes by
        itself.
        """
        from pace import eventually

        def run(over: threading.Event) -> None:
            eventually(lambda: over.is_set() or after is None or after())
            while not over.is_set():
                if self.local.until_waiting(longer, over) and not over.is_set():
                    self.advance(step)

        return self._meanwhile(run)

    def stepping(self, step: float | Sequence[float], when: Callable[[int], bool]) -> Meanwhile:
        """Meanwhile the clock moves by ``step`` each time ``when`` is true, which is given the number of steps made; or
        by one step of several after the other.
        """
        from pace import eventually

        def run(over: threading.Event) -> None:
            for n, seconds in enumerate(itertools.repeat(step) if isinstance(step, float | int) else step):
                eventually(lambda n=n: over.is_set() or when(n))
                if over.is_set():
                    return
                self.advance(seconds)

        return self._meanwhile(run)

    @contextlib.contextmanager
    def _meanwhile(self, act: Callable[[threading.Event], None]) -> Iterator[None]:
        over = threading.Event()
        wrong: list[BaseException] = []

        def run() -> None:
            try:
                act(over)
            except BaseException as e:
                wrong.append(e)

        thread = threading.Thread(target=run, name="time-passes", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            self.local.poke()
            thread.join()
        if wrong:
            raise wrong[0]

    def close(self) -> None:
        """The clock stands still from now on."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            for s in self._subscribers:
                with contextlib.suppress(OSError):
                    s.sock.shutdown(socket.SHUT_RDWR)
        if os.path.exists(self.path):
            os.unlink(self.path)


class _Lines:
    """What the other side says, line by line; the byte of a signal is a line, too."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.data = sock, b""

    def wait(self) -> None:
        """Waits until there is something to read."""
        select.select([self.sock], [], [])

    def read(self) -> list[str] | None:
        """What has come; None at the end."""
        try:
            part = self.sock.recv(4096)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not part:
            return None
        for number in {b for b in part if b < 32 and b != 10}:  # between two lines, each of which is sent at once
            part = part.replace(bytes([number]), b"handled %d\n" % number)
        *lines, self.data = (self.data + part).split(b"\n")
        return [line.decode() for line in lines]

    @property
    def more(self) -> bool:
        """Whether there is something to read."""
        return bool(select.select([self.sock], [], [], 0)[0])
