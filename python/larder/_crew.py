"""The worker processes of one Loader: started, watched, replaced when they die, ended with it."""

from __future__ import annotations

import functools
import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

from . import _clock, _items, _worker
from ._caller import warn
from ._stats import Quarantined
from ._worker import Orders, Work
from .errors import Error, InvalidError, SampleError, UnavailableError, WorkerWarning

_PATIENCE = 5.0  # seconds in which workers leave in order
_RESTARTS = 8  # workers that may die one after the other before they can work, and for each worker 2 more
_KILLED = {  # what a signal says
    signal.SIGKILL: "; the kernel kills processes when memory is short",
    signal.SIGVTALRM: "; C code in its item let no Python code run for longer than sample_timeout",
}

_shutdown: Callable[..., Any] | None
try:
    import ctypes

    _shutdown = ctypes.PyDLL(None).shutdown  # returns -1 where a method of Python raises; see _session
except (ImportError, OSError, AttributeError):
    _shutdown = None  # then workers of a forgotten Loader end with the next call of another one

_armed: list[weakref.ref[Member]] = []  # not a WeakSet, whose callback is Python code


def _after_fork_in_child() -> None:
    for r in _armed:
        m = r()
        if m is not None:
            m.owner = None  # what the child forgets ends nothing of the parent's


os.register_at_fork(after_in_child=_after_fork_in_child)


class Member:
    """One worker process."""

    def __init__(self, context: Any, work: Work) -> None:
        self.number = work.number
        self.looks = -1  # the item that it looks at
        self.serving = False
        self.error: Error | None = None  # why it cannot work
        self.owner: weakref.ref[object] | None = None
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_worker.main, args=(theirs, work), daemon=True, name=f"larder-worker-{work.number}"
        )
        try:
            self.process.start()
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()

    def take(self) -> _items.Probe | None:
        """Reads what the worker says, without waiting; returns a probe when it has one."""
        probe = None
        try:
            while self.pipe.poll(0):
                kind, value = self.pipe.recv()
                if kind == "probe":
                    probe = value
                elif kind == "looks":
                    self.looks = value
                elif kind == "error":
                    self.error = value
                elif kind == "failed":
                    self.error = UnavailableError(
                        f"worker {self.number} (pid {self.process.pid}) failed: {value.words}\n{value.traceback}",
                        subject="num_workers",
                    )  # fmt: skip
                self.serving = self.serving or kind == "serving"
        except (EOFError, OSError):
            pass
        return probe

    def end_with(self, owner: object) -> None:
        """Has the worker end when ``owner`` is forgotten, after its task.

        The death of the owner ends the pipe in one C call: safe in any thread, under any lock, in a collection.
        The worker sees it, also where other processes hold copies of this end. ``Crew.stop`` reaps the process.
        """
        if _shutdown is not None:
            ends = map(_shutdown, (self.pipe.fileno(),), (socket.SHUT_WR,))
            _armed[:] = [r for r in _armed if r() is not None] + [weakref.ref(self)]
            self.owner = weakref.ref(owner, functools.partial(next, ends))

    def close(self) -> None:
        """Closes the pipe."""
        self.owner = None  # the number of the descriptor is another file's from now on
        self.pipe.close()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return bool(self.process.is_alive())

    def end(self) -> str:
        """How the process ended, in words."""
        code = self.process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
            return f"killed by {name}{_KILLED.get(-code, '')}"
        return f"exit code {code}"


class Crew:
    """All workers of one Loader. One thread at a time uses it."""

    def __init__(self, work: Work, context: Any) -> None:
        self.pid = os.getpid()
        self.work = work
        self.context = context
        self.members: list[Member] = []
        self.orders: Orders | None = None
        self.deaths = 0  # since the last batch
        self.batches = 0
        self.warned = False
        self.owner: weakref.ref[object] | None = None  # with whom the workers end

    def probe(self, seconds: float) -> _items.Probe:
        """Has one worker look at items, and another one when an item ended it.

        Raises:
            InvalidError: the dataset cannot be sent to a process, or no item can be made.
            UnavailableError: the worker ended, or took too long.
        """
        end = _clock.monotonic() + seconds
        while True:
            member = self._start(0)
            self.members = [member]
            probe = self._probed(member, end, seconds)
            if probe is not None:
                return probe
            look = self.work.look
            self.work.look = look._replace(skip=look.skip | {member.looks})
            member.close()
            if self.work.look.skip >= {*look.known, *look.more}:
                raise self._nothing_lives(member)

    def _nothing_lives(self, member: Member) -> SampleError:
        """The error that says that each item that was looked at ended its process."""
        items = list(dict.fromkeys((*self.work.look.known, *self.work.look.more)))
        why = f"it ended the worker that looked at it: {member.end()}; so did each of the {len(items)} items looked at"
        hint = "num_workers=0 runs the dataset in this process, where a debugger sees it"
        return SampleError(tuple(Quarantined(i, str(i), "", None, why) for i in items), hint=hint)

    def _probed(self, member: Member, end: float, seconds: float) -> _items.Probe | None:
        """What one worker finds; None when an item ended it."""
        while True:
            ended = not member.alive  # before the last look at what it said
            probe = member.take()
            if probe is not None:
                return probe
            if member.error is not None:
                raise member.error
            if ended:
                skip = self.work.look.skip
                if member.looks >= 0 and member.looks not in skip:
                    return None
                raise UnavailableError(
                    f"worker {member.number} ended before it was ready: {member.end()}", subject="num_workers",
                    hint="what it printed says why; a script that starts processes by spawn needs "
                    "`if __name__ == '__main__':`",
                )  # fmt: skip
            if _clock.monotonic() > end:
                raise UnavailableError(
                    f"the first item was not ready within {seconds:g} s", subject="timeout", hint="raise timeout="
                )
            left = min(1.0, max(0.01, end - _clock.monotonic()))
            _clock.poll(_poller(member.pipe.fileno(), member.process.sentinel), left * 1000)

    def serve(self, orders: Orders) -> None:
        """Has all workers, started where they are not, serve a job."""
        self.work.layouts = orders.layouts
        known, self.orders = self.orders, orders
        while len(self.members) < self.work.count:
            self.members.append(self._start(len(self.members)))
            known = None
        if known != orders:
            for m in self.members:
                self._tell(m)

    def check(self, batches: int) -> None:
        """Replaces workers that died; ``batches`` have come up to now.

        The daemon leaves out an item at which two died, so those that serve may all die: each has cost an item.

        Raises:
            Error: they cannot work, or die again and again before they do.
        """
        if self.pid != os.getpid() or self.orders is None:
            return
        if batches != self.batches:
            self.batches, self.deaths = batches, 0
        for n, m in enumerate(self.members):
            m.take()
            if m.alive:
                continue
            m.take()
            if m.error is not None:
                raise m.error
            self.deaths += not m.serving
            if self.deaths > _RESTARTS + 2 * self.work.count:
                raise UnavailableError(
                    f"worker {m.number} (pid {m.process.pid}) ended: {m.end()}; "
                    f"{self.deaths} of this loader's workers ended before they could work",
                    subject="num_workers",
                    hint="num_workers=0 runs the dataset in this process, where a debugger sees it",
                )  # fmt: skip
            if not self.warned:
                self.warned = True
                warn(
                    f"worker {m.number} (pid {m.process.pid}) ended: {m.end()}; another one takes its place, and its "
                    "samples are tried again",
                    WorkerWarning,
                )
            m.close()
            m.process.join()
            self.members[n] = self._start(m.number, (m.process.pid or 0, m.end()))
            self._tell(self.members[n])

    def stop(self) -> None:
        """Ends all workers; in a forked child forgets them."""
        members, self.members, self.orders = self.members, [], None
        if self.pid != os.getpid():
            return
        for m in members:
            try:
                m.pipe.send(None)  # others may hold copies of this end: closing it would not be seen
            except OSError:
                pass
            m.close()
        end = _clock.monotonic() + _PATIENCE
        for m in members:
            ended = _poller(m.process.sentinel)
            while m.alive and (left := end - _clock.monotonic()) > 0:
                _clock.poll(ended, left * 1000)
            if m.alive:  # its task does not end
                m.process.kill()
                m.process.join()
            m.process.close()

    def _start(self, number: int, ended: tuple[int, str] | None = None) -> Member:
        work = self.work
        main = threading.current_thread() is threading.main_thread()
        part = Work(**{**work.__dict__, "number": number, "main": main, "ended": ended})
        try:
            member = Member(self.context, part)
        except (OSError, BlockingIOError):
            raise
        except Exception as e:
            method = self.context.get_start_method()
            raise InvalidError(
                f"the dataset, a transform or worker_init_fn cannot be sent to a worker started by {method}: {e}",
                subject="num_workers",
                hint="define them at the top of a module and keep open files out of them, or use "
                "multiprocessing_context='fork', or num_workers=0",
            ) from e
        owner = None if self.owner is None else self.owner()
        if owner is not None:
            member.end_with(owner)
        return member

    def _tell(self, m: Member) -> None:
        try:
            m.pipe.send(self.orders)
        except OSError:
            pass  # it died: check() sees it


def _poller(*fds: int) -> select.poll:
    """Waits until one of the descriptors can be read."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return poller


def context(method: Any) -> Any:
    """The context of multiprocessing by name, or one that the script made.

    Raises:
        InvalidError: there is no such start method.
    """
    if method is None or isinstance(method, str):
        try:
            return multiprocessing.get_context(method)
        except ValueError:
            raise InvalidError(
                f"multiprocessing_context is {method!r}; it must be one of "
                f"{', '.join(map(repr, multiprocessing.get_all_start_methods()))}",
                subject="multiprocessing_context",
            ) from None
    if not isinstance(method, BaseContext):
        raise InvalidError(
            f"multiprocessing_context must be a context or the name of a start method, not {method!r}",
            subject="multiprocessing_context",
        )
    return method


def uses_torch() -> bool:
    """Whether the script has imported torch."""
    return "torch" in sys.modules
