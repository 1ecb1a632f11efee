"""A worker process: it attaches to the daemon, takes tasks, and writes records into memory of its own.

docs/protocol.md describes the session. A worker trusts the daemon; the daemon trusts nothing that a worker writes. It
ends when its client closes the pipe or dies, and between two tasks it never blocks on anything else.
"""

from __future__ import annotations

import array
import collections
import ctypes
import fcntl
import functools
import importlib
import mmap
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import _items, _record, _stack, _wire
from ._builtin import Step
from ._bulk import Bulk, Key, Run
from ._items import Clock, Layout, Look, Maker, Task
from ._record import Leaf
from ._seeds import Still
from ._version import __version__
from .errors import Error, InvalidError, NotFoundError, UnavailableError

_HEADER = struct.Struct("<HHIQ")
_TASK = struct.Struct("<QQQIIIIQQQ")
_TASKS, _DONES = struct.Struct("<QQIIIIQ"), struct.Struct("<QIIQQ")
_DONE, _U64 = struct.Struct("<QQQ"), struct.Struct("<Q")
_PAGE = mmap.PAGESIZE
_SEALS = 1 | 2 | 4  # no more seals, no shrinking, no growing
_ADD_SEALS = 1033
_WINDOW = 1024  # tasks that the worker takes at once
_MEMORY = 4 << 20  # bytes of its memory, at least
_TOGETHER = 256  # items that are handed over at once, at most
_GATHER = 0.0005  # seconds after an answer in which others are gathered
_FIRST = 64  # of the memory: where records begin
_LOOK = 0.05  # seconds of work after which a worker looks whether its client says something


class Ended(Exception):
    """The daemon ended the connection."""


@dataclass
class Work:
    """What a worker needs to know; it travels to the process as multiprocessing does it."""

    base: Any
    steps: Sequence[Step]
    layouts: Sequence[Layout]  # empty: the worker is asked to find them
    look: Look  # at what to look then
    timeout: float  # seconds that an item may take then
    number: int  # of the worker, from 0
    count: int  # of workers
    seed: int
    init: Callable[[int], Any] | None
    memory: int  # bytes that the worker may grow to; 0 = any
    torch: bool  # whether the script uses torch
    main: bool  # it is started by the main thread of its client


class Orders(NamedTuple):
    """What a worker serves."""

    path: str  # of the daemon's socket
    dataset: str
    recipes: tuple[str, ...]
    client: str
    layouts: Sequence[Layout]
    bytes: int  # of the largest record that was seen
    patience: float  # seconds to look for a daemon that ended
    inline: bool = False


# ---- the connection


class Link:
    """Frames in and out of a blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._data = b""
        self._fds: list[int] = []
        self._later: list[bytes] = []  # frames that were not sent yet
        self._sent = 0.0  # when the last of them left

    def answer(self, type_: int, payload: bytes) -> None:
        """Sends a frame soon: at once, or with others when one was sent a moment ago."""
        self._later += (_HEADER.pack(_wire.ABI, type_, len(payload), 0), payload)
        if time.monotonic() - self._sent > _GATHER:
            self.flush()

    def flush(self) -> None:
        """Sends what waits."""
        if not self._later:
            return
        data = b"".join(self._later)
        self._later.clear()
        self._sent = time.monotonic()
        try:
            self.sock.sendall(data, socket.MSG_NOSIGNAL)
        except OSError as e:
            raise Ended(str(e)) from e

    def send(self, type_: int, payload: bytes, request: int = 0, fd: int = -1) -> None:
        """Sends a frame; a descriptor rides on its first byte."""
        self.flush()
        data = _HEADER.pack(_wire.ABI, type_, len(payload), request) + payload
        try:
            if fd >= 0:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                data = data[self.sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL) :]
            self.sock.sendall(data, socket.MSG_NOSIGNAL)
        except OSError as e:
            raise Ended(str(e)) from e

    def receive(self) -> list[tuple[int, int, bytes]]:
        """The frames that have arrived; blocks when nothing has."""
        self.flush()
        try:
            data, ancillary, _, _ = self.sock.recvmsg(1 << 16, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC)
        except OSError as e:
            raise Ended(str(e)) from e
        if not data:
            raise Ended("the daemon ended the connection")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._fds.extend(np.frombuffer(content[: len(content) // 4 * 4], "<i4").tolist())
        data = self._data + data
        frames, at = [], 0
        while len(data) - at >= _HEADER.size:
            abi, type_, length, request = _HEADER.unpack_from(data, at)
            if abi != _wire.ABI or length > _wire.MAX_PAYLOAD:
                raise Ended("the daemon sent what docs/protocol.md does not allow")
            begin, end = at + _HEADER.size, at + _HEADER.size + length
            if len(data) < end:
                break
            frames.append((type_, request, data[begin:end]))
            at = end
        self._data = data[at:]
        return frames

    def descriptor(self) -> int:
        """The oldest descriptor that came and was not taken; -1 for none."""
        return self._fds.pop(0) if self._fds else -1

    def close(self) -> None:
        """Closes the connection and what came with it."""
        self.sock.close()
        while self._fds:
            os.close(self._fds.pop())


_links: list[Link] = []


def _forked() -> None:
    # A dataset may fork. A socket that the child keeps would hide the worker's end from the daemon.
    for link in _links:
        link.close()


os.register_at_fork(after_in_child=_forked)


_NOTHING = np.zeros(0, np.uint8)


class Memory:
    """The sealed memory that a worker writes its records to: places that are taken until the daemon frees them.

    Its first bytes say which task the worker is at.
    """

    def __init__(self, size: int) -> None:
        self.fd, self.map, self.bytes = -1, mmap.mmap(-1, _PAGE), _NOTHING
        self.taken: dict[int, int] = {}  # bytes of a record by its offset, the oldest one first
        self.size, self._end = 0, _FIRST  # of the memory, and of the youngest record
        self.replace(size)

    def replace(self, size: int) -> None:
        """Takes new memory of at least ``size`` bytes. Nothing may be taken in the old one."""
        size = -(-(size + _FIRST) // _PAGE) * _PAGE
        fd = os.memfd_create("larder-worker", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, _ADD_SEALS, _SEALS)
        self.close()
        self.fd, self.map, self.size, self._end = fd, mmap.mmap(fd, size), size, _FIRST
        self.bytes = np.frombuffer(self.map, np.uint8)

    def place(self, need: int) -> int:
        """The offset of ``need`` free bytes, taken from now on; -1 when there are none."""
        at, oldest = self._end, next(iter(self.taken), -1)
        if oldest < 0 or (oldest < at and at + need > self.size):  # what is free lies behind the youngest, and before
            at = _FIRST
        if at + need > (oldest if oldest >= at else self.size):
            return -1
        self.taken[at] = need
        self._end = -(-(at + need) // 64) * 64
        return at

    def mark(self, task: int) -> None:
        """Says that the worker begins a task: that is the one to blame when it does not come back."""
        _U64.pack_into(self.map, 0, task)

    def free(self, offset: int) -> None:
        """Frees a record."""
        self.taken.pop(offset, None)

    def close(self) -> None:
        """Gives the memory back."""
        self.taken.clear()
        self.bytes = _NOTHING
        try:
            self.map.close()
        except BufferError:  # something still looks at it, and closes it with itself
            pass
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


# ---- tasks


class Service:
    """One attachment of a worker: its tasks, its memory, and what it is at."""

    def __init__(self, link: Link, maker: Maker, orders: Orders, clock: Clock) -> None:
        self.link, self.maker, self.orders, self.clock = link, maker, orders, clock
        self.memory = Memory(max(1 << 20 if orders.inline else _MEMORY, 4 * orders.bytes))
        self.inputs: mmap.mmap | None = None
        self.tasks: collections.deque[Task | Run] = collections.deque()
        self._bulk: Bulk | None = None if orders.inline else Bulk(maker, self._begins)
        self.attached = False
        self.failed: Callable[[_items.Failure, BaseException], None] = lambda f, e: None

    def attach(self) -> None:
        """HELLO and WORK.

        Raises:
            Error: the daemon refuses.
            Ended: it ended the connection.
        """
        body = {"client": f"python/{__version__}", "abiMin": _wire.ABI, "abiMax": _wire.ABI, "pid": os.getpid()}
        self.link.send(_wire.HELLO, _wire.dump(body), 1)
        self._answer(1)
        o = self.orders
        work: dict[str, object] = {
            "dataset": o.dataset, "recipes": list(o.recipes), "pid": os.getpid(), "client": o.client,
            "outBytes": self.memory.size,
        }  # fmt: skip
        work |= {"inline": True, "window": 1} if o.inline else {"window": _WINDOW, "mark": 0, "batch": True}
        self.link.send(_wire.WORK, _wire.dump(work), 2, self.memory.fd)
        answer = _wire.parse_json(self._answer(2))
        fd, size = self.link.descriptor(), int(answer.get("inBytes") or 0)
        if fd >= 0:
            try:
                self.inputs = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) if size else None
            finally:
                os.close(fd)

    def _answer(self, request: int) -> bytes:
        answer: bytes | None = None
        while answer is None:
            for type_, rid, payload in self.link.receive():
                if rid == request and type_ in (_wire.WELCOME, _wire.RESULT):
                    answer = payload
                else:  # tasks may come with the answer
                    self._take(type_, rid, payload)
        return answer

    def react(self) -> None:
        """Reads what has arrived; blocks when nothing has."""
        for type_, rid, payload in self.link.receive():
            self._take(type_, rid, payload)

    def _take(self, type_: int, rid: int, payload: bytes) -> None:
        if type_ == _wire.TASK:
            self.tasks.append(Task(*_TASK.unpack_from(payload)))
        elif type_ == _wire.TASKS:
            self._take_several(payload)
        elif type_ == _wire.FREE:
            self.memory.free(_U64.unpack_from(payload)[0])
        elif type_ == _wire.PING:
            self.link.send(_wire.PONG, b"", rid)
        elif type_ in (_wire.GONE, _wire.ERROR):
            raise _wire.parse_error(payload)

    def arrived(self, seconds: float) -> bool:
        """Waits for something to arrive."""
        return bool(select.select([self.link.sock], [], [], seconds)[0])

    def _take_several(self, payload: bytes) -> None:
        id_, seed, recipe, first, last, n, timeout = _TASKS.unpack_from(payload)
        pairs = np.frombuffer(payload, "<u4", 2 * n, _TASKS.size)
        run = Run(id_, Key(seed, recipe, first, last, timeout), pairs[::2].tolist(), pairs[1::2].tolist())
        before = self.tasks[-1] if self.tasks else None
        if not isinstance(before, Run) or not before.append(run):
            self.tasks.append(run)

    def run(self) -> None:
        """Runs the oldest task, or some of the oldest ones."""
        task = self.tasks[0]
        if isinstance(task, Run):
            self._run_several(task)
        else:
            self._run_one(task)

    def _run_one(self, task: Task) -> None:
        self.memory.mark(task.id)
        self.clock.start(task.timeout_ms / 1000)
        try:
            given = None
            if task.input_bytes and self.inputs is not None:
                given = bytearray(memoryview(self.inputs)[task.input : task.input + task.input_bytes])
            leaves = self.maker.make(task, given)
        except (Exception, SystemExit) as e:
            self.clock.stop()
            self.tasks.popleft()
            self.fail(task.id, task.sample, e)
        else:
            self.clock.stop()
            self.deliver(task.id, leaves)
            self.tasks.popleft()

    def fail(self, task: int, sample: int, e: BaseException) -> None:
        """Reports that a task was not done."""
        f = _items.failure(sample, e)
        self.failed(f, e)
        body: dict[str, object] = {"type": f.type, "message": f.message, "traceback": f.traceback, "retry": False}
        self.link.answer(_wire.FAILED, _U64.pack(task) + _wire.dump(body))

    def deliver(self, task: int, leaves: list[Leaf]) -> None:
        """Writes a record and reports it."""
        need = _record.size(leaves)
        at = self._place(need)
        try:
            _record.put(leaves, self.memory.bytes, at)
            self.link.answer(_wire.DONE, _DONE.pack(task, at, need))
        except BaseException:
            self.memory.free(at)  # nobody was told of it: a debugger, or Ctrl-C with num_workers=0
            raise

    def _place(self, need: int) -> int:
        """The offset of so many free bytes of the memory, which grows if that is too small."""
        if need > self.memory.size - _FIRST:
            while self.memory.taken:
                self.react()
            self.memory.replace(2 * need)
            self.link.send(_wire.GROW, _U64.pack(self.memory.size), 0, self.memory.fd)
        while (at := self.memory.place(need)) < 0:
            self.react()
        return at

    # ---- several tasks at once

    def _begins(self, task: int) -> None:
        self.memory.mark(task)
        self.clock.tick()

    def _run_several(self, run: Run) -> None:
        assert self._bulk is not None
        self.clock.start(run.key.timeout_ms / 1000)
        try:
            made = self._bulk.make(run, _TOGETHER)
        finally:
            self.clock.stop()
        first = run.at
        if len(made.items) < 2 or not self._deliver_stacks(run, made.items):
            for k, item in enumerate(made.items[run.at - first :], run.at):
                try:
                    leaves = self.maker.leaves(item, run.key.last)
                except Exception as e:
                    self.fail(run.id + k, run.samples[k], e)
                else:
                    self.deliver(run.id + k, leaves)
            run.at = first + len(made.items)
        if made.error is not None:
            self.fail(run.id + run.at, run.samples[run.at], made.error)
            run.at += 1
        self.link.flush()
        if not run.left:
            self.tasks.popleft()

    def _deliver_stacks(self, run: Run, items: list[Any]) -> bool:
        """Hands items over as stacks; False = they cannot be stacked from ``run.at`` on."""
        columns = _stack.columns(items, self.maker.layouts[run.key.last - 1].structure)
        if columns is None:
            return False
        form = _stack.form(columns)
        try:
            self.maker.require(form, run.key.last)
        except InvalidError:
            return False  # the messages name the items
        most = max((self.memory.size - _FIRST) // (2 * _record.stack_size(form, 1)), 1)
        for begin in range(0, len(items), most):
            n = min(most, len(items) - begin)
            need = _record.stack_size(form, n)
            at = self._place(need)
            try:
                places = _record.open_stack(form, n, self.memory.bytes, at)
                for column, out in zip(columns, places, strict=True):
                    column.write(column.values[begin : begin + n], out)
            except (RuntimeError, ValueError, TypeError, OverflowError):
                self.memory.free(at)
                return False
            self.link.answer(_wire.DONES, _DONES.pack(run.id + run.at, n, 0, at, need))
            run.at += n
        return True

    def leave(self, seconds: float = 1.0) -> None:
        """Ends the attachment in order: the tasks in hand go to others."""
        end = time.monotonic() + seconds
        try:
            self.link.send(_wire.DETACH, b"", 3)
            while self.arrived(max(0.0, end - time.monotonic())):
                if any(request == 3 for _, request, _ in self.link.receive()):
                    break
        except Ended:
            pass

    def close(self) -> None:
        """Ends the attachment."""
        self.link.close()
        self.memory.close()
        if self.inputs is not None:
            self.inputs.close()


# ---- the process


class Hung(TimeoutError):
    """An item took longer than ``sample_timeout``."""


class Alarm(Clock):
    """Raises Hung in the task; when that does not end it, ends the process. Main thread of a worker only."""

    def __init__(self, memory: int = 0) -> None:
        self.deadline = 0.0  # of the task; 0 = there is none
        self.memory = memory
        self._grace = 0.0  # of the task, beyond which its process ends
        self._seconds = self._began = self._set = 0.0  # set = when the timer was set; 0 = it is not
        signal.signal(signal.SIGALRM, self._ring)
        threading.Thread(target=self._watch, name="larder-watch", daemon=True).start()

    def start(self, seconds: float) -> None:
        """A task begins. The timer is set anew only for the first of many short ones, and it never interrupts those."""
        if seconds <= 0:
            return
        now = self._began = time.monotonic()
        self._grace = 1.5 * seconds + 1
        self.deadline = now + self._grace
        if not self._set or seconds != self._seconds or now - self._set > seconds / 2:
            self._set, self._seconds = now, seconds
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def tick(self) -> None:
        """The next of several tasks begins that follow each other."""
        if self.deadline:
            self._began = time.monotonic()
            self.deadline = self._began + self._grace

    def stop(self) -> None:
        """It is over."""
        self.deadline = 0.0

    def rest(self) -> None:
        """No task follows at once."""
        if self._set:
            self._set = 0.0
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, *_: object) -> None:
        self._set = 0.0
        if not self.deadline:
            return
        left = self._began + self._seconds - time.monotonic()
        if left > 0:  # it was set for an earlier task
            self._set = self._began
            signal.setitimer(signal.ITIMER_REAL, left)
            return
        raise Hung(f"the item took longer than sample_timeout ({self._seconds:g} s)")

    def _watch(self) -> None:
        """Ends the process when its task does not end, when its client died, or when it has grown too large."""
        parent = sys.modules["multiprocessing.process"].parent_process()
        start, above = resident(), os.getppid()
        while True:
            time.sleep(0.25)
            if self.deadline and time.monotonic() > self.deadline:
                os.write(2, b"larder: a worker was ended: its task did not stop after sample_timeout\n")
                os._exit(1)
            if os.getppid() != above or (parent is not None and not parent.is_alive()):
                os._exit(1)
            if self.memory and resident() - start > self.memory:
                os.write(2, b"larder: a worker was ended: it has grown by more than worker_memory\n")
                os._exit(1)


def resident() -> int:
    """Bytes of private memory of this process."""
    with open("/proc/self/statm") as f:
        fields = f.read().split()
    return (int(fields[1]) - int(fields[2])) * _PAGE


def main(pipe: Any, work: Work) -> None:
    """The worker process: prepares itself, looks at items if asked to, and serves until its client ends it."""
    try:
        clock = _prepare(work)
        maker = Maker(work.base, work.steps, work.layouts)
        if not work.layouts:
            begins = functools.partial(_say, pipe, "looks")
            pipe.send(("probe", _items.probe(maker, work.look, clock, work.timeout, begins)))
        _say(pipe, "ready", None)
    except Exception as e:
        _report(pipe, e)
        return
    try:
        orders = pipe.recv()
        while orders is not None:
            maker.layouts = orders.layouts
            orders = _serve(pipe, maker, orders, clock)
    except (EOFError, OSError):
        pass
    except Exception as e:
        _report(pipe, e)


def _say(pipe: Any, kind: str, value: Any) -> None:
    """Tells the client something. One that has closed its end has also said that the worker is to end."""
    try:
        pipe.send((kind, value))
    except OSError:
        pass


def _report(pipe: Any, e: Exception) -> None:
    try:
        if isinstance(e, Error):
            pipe.send(("error", e))
        else:
            pipe.send(("failed", _items.failure(-1, e)))
    except Exception:  # the client is gone, or the error cannot be pickled
        pass


def _prepare(work: Work) -> Clock:
    """Makes this process a worker: signals, threads, random state, get_worker_info()."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if work.main:
        _die_with_parent()
    clock = Alarm(work.memory)
    seed = (work.seed + work.number) % 2**63
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if work.torch or "torch" in sys.modules:
        torch: Any = importlib.import_module("torch")
        of_torch: Any = importlib.import_module("torch.utils.data._utils.worker")
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        Still.watch_torch(torch)
        info = of_torch.WorkerInfo(id=work.number, num_workers=work.count, seed=seed, dataset=work.base)
        setattr(of_torch, "_worker_info", info)  # noqa: B010 - what get_worker_info() returns
    if work.init is not None:
        work.init(work.number)
    return clock


def _die_with_parent() -> None:
    """Has the kernel end this process with the thread that started it, if that was a main thread.

    The thread of ``Alarm`` sees the end of the client in every other case.
    """
    parent = sys.modules["multiprocessing.process"].parent_process()
    if parent is None or os.getppid() != parent.pid:
        return
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # a Python without libffi


def connected(path: str) -> Link:
    """A connection to the daemon; raises UnavailableError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
    except OSError as e:
        sock.close()
        raise UnavailableError(f"no larder daemon answers at {path}: {e}", subject=path) from e
    return Link(sock)


def _serve(pipe: Any, maker: Maker, orders: Orders, clock: Clock) -> Orders | None:
    """Serves one daemon after the other, as long as one comes within ``orders.patience`` seconds.

    Returns what to serve next; None: the client ended its workers.
    """
    end, attached = time.monotonic() + orders.patience, False
    while True:
        service = None
        try:
            service = Service(connected(orders.path), maker, orders, clock)
            _links[:] = [service.link]
            service.attach()
            service.attached = True
            _say(pipe, "serving", None)
            return _loop(pipe, service)
        except (Ended, Error) as e:
            again = isinstance(e, (Ended, UnavailableError)) or (service is not None and service.attached)
            if not again and not (attached and isinstance(e, NotFoundError)):
                raise
            if service is not None and service.attached:
                attached = True  # a daemon that comes back may not know the dataset yet
                end = time.monotonic() + orders.patience
            if time.monotonic() > end:
                raise UnavailableError(f"the larder daemon at {orders.path} did not come back: {e}") from e
        finally:
            if service is not None:
                service.close()
        if pipe.poll(0.05):
            return _told(pipe)


def _loop(pipe: Any, service: Service) -> Orders | None:
    """Runs tasks until the client says something else."""
    told = pipe.fileno()
    poller = select.poll()
    poller.register(service.link.sock, select.POLLIN)
    poller.register(told, select.POLLIN)
    while True:
        end = time.monotonic() + _LOOK
        while service.tasks:
            service.run()
            if time.monotonic() > end:
                break
        service.link.flush()
        service.clock.rest()
        ready = [fd for fd, _ in poller.poll(0 if service.tasks else None)]
        if told in ready:
            service.leave()
            return _told(pipe)
        if ready:
            service.react()


def _told(pipe: Any) -> Orders | None:
    """What the client says; None when it closed the pipe."""
    try:
        orders: Orders | None = pipe.recv()
    except (EOFError, OSError):
        return None
    return orders
