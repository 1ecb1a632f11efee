"""A worker process: it attaches to the daemon, takes tasks, and writes records into memory of its own.

docs/protocol.md describes the session. A worker trusts the daemon; the daemon trusts nothing that a worker writes. It
ends when its client closes the pipe or dies, and between two tasks it never blocks on anything else.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import importlib
import mmap
import os
import random
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import _clock, _items, _record, _stack, _units, _wire
from ._alarm import Alarm, Hung
from ._builtin import Step
from ._bulk import Bulk, Key, Run
from ._items import Clock, Layout, Look, Maker, Task
from ._link import FIRST, Ended, Link, Memory, connected, linked
from ._record import Leaf
from ._seeds import Still
from ._version import __version__
from .errors import Error, InvalidError, NotFoundError, UnavailableError

_TASK = struct.Struct("<QQQIIIIQQQ")
_TASKS, _DONES = struct.Struct("<QQIIIIQ"), struct.Struct("<QIIQQ")
_DONE, _U64 = struct.Struct("<QQQ"), struct.Struct("<Q")
_WINDOW = 1024  # tasks that the worker takes at once
_MEMORY = 4 << 20  # bytes of its memory, at least, where the daemon accepts them
_ANY = 1 << 62
_OLD = 1 << 30  # bytes of memory that a daemon accepts that does not say how much
_TOGETHER = 256  # items that are handed over at once, at most
_LOOK = 0.05  # seconds of work after which a worker looks whether its client says something


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
    ended: tuple[int, str] | None = None  # process and end of the worker in whose place this one comes


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


# ---- tasks


class Service:
    """One attachment of a worker: its tasks, its memory, and what it is at."""

    def __init__(self, link: Link, maker: Maker, orders: Orders, clock: Clock) -> None:
        self.link, self.maker, self.orders, self.clock = link, maker, orders, clock
        self.memory = Memory(1)  # a page, until the daemon has said what it accepts
        self.largest = self.most = _ANY  # bytes of a record, and of the memory
        self.inputs: mmap.mmap | None = None
        self.tasks: collections.deque[Task | Run] = collections.deque()
        self.lock = threading.Lock()  # of who answers
        self.making = False  # a task, whose exceptions and interrupts leave nothing half done
        self._bulk: Bulk | None = None if orders.inline else Bulk(maker, self._begins, self.lock)
        self.attached = False
        self.ended: tuple[int, str] | None = None  # of Work
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
        work |= (
            {"inline": True, "window": 1} if o.inline else {"window": _WINDOW, "mark": 0, "batch": True, "tells": True}
        )
        if self.ended is not None:
            work["ended"] = {"pid": self.ended[0], "how": self.ended[1]}
        self.link.send(_wire.WORK, _wire.dump(work), 2, self.memory.fd)
        answer = _wire.parse_json(self._answer(2))
        fd, size = self.link.descriptor(), int(answer.get("inBytes") or 0)
        if fd >= 0:
            try:
                self.inputs = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) if size else None
            finally:
                os.close(fd)
        self._fit(answer)

    def _fit(self, answer: dict[str, Any]) -> None:
        """Takes memory and says where the last words are, as the daemon accepts it; one that does not say is older."""
        o = self.orders
        self.largest = int(answer.get("maxRecord") or _ANY)
        self.most = int(answer.get("maxMemory") or _ANY)
        if self._bulk is not None:
            self._bulk.largest = self.largest
        want = max(1 << 20 if o.inline else _MEMORY, 4 * min(o.bytes, self.largest))
        self._grow(min(want, self.most if answer.get("maxMemory") else _OLD))
        if isinstance(self.clock, Alarm) and int(answer.get("maxWords") or 0) >= self.clock.words.size:
            self.link.send(_wire.WORDS, _U64.pack(self.clock.words.size), 0, self.clock.words.fd)

    def _grow(self, size: int) -> None:
        self.memory.replace(size, self.most)
        self.link.send(_wire.GROW, _U64.pack(self.memory.size), 0, self.memory.fd)

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
        poller = select.poll()
        poller.register(self.link.sock, select.POLLIN)
        if seconds <= 0:
            return bool(poller.poll(0))
        end = _clock.monotonic() + seconds
        while not (came := bool(_clock.poll(poller, 1000 * seconds))) and (seconds := end - _clock.monotonic()) > 0:
            pass
        return came

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
        wrong: BaseException | None = None
        leaves: list[Leaf] = []
        need = 0
        try:
            self.making = True
            given = None
            if task.input_bytes and self.inputs is not None:
                given = bytearray(memoryview(self.inputs)[task.input : task.input + task.input_bytes])
            leaves = self.maker.make(task, given)
            need = self._size(leaves, task.last)
        except (Exception, SystemExit) as e:
            wrong = e
        self.clock.stop()
        self.making = False
        with self.lock:
            self.tasks.popleft()
            if wrong is not None:
                self.fail(task.id, task.sample, wrong)
            else:
                self.deliver(task.id, leaves, need)

    def _size(self, leaves: list[Leaf], last: int) -> int:
        """The bytes of a record of what the steps up to ``last`` (excluded) made.

        Raises:
            InvalidError: they are more than the daemon takes.
        """
        need = _record.size(leaves)
        if need > self.largest:
            largest = max(leaves, key=lambda leaf: leaf.values.nbytes)
            field = self.maker.layouts[last - 1].fields[[x is largest for x in leaves].index(True)]
            raise InvalidError(
                f"a record of {_units.size(need)}, and {_units.size(self.largest)} are the most (workers.max_record): "
                f"field {field['name']} of {field['dtype']} has shape {list(largest.values.shape)}, "
                f"{_units.size(largest.values.nbytes)}",
                subject=field["name"],
                hint="return less, or raise workers.max_record in the configuration of the daemon",
            )
        return need

    def fail(self, task: int, sample: int, e: BaseException) -> None:
        """Reports that a task was not done."""
        f = _items.failure(sample, e)
        self.failed(f, e)
        body: dict[str, object] = {"type": f.type, "message": f.message, "traceback": f.traceback, "retry": False}
        self.link.answer(_wire.FAILED, _U64.pack(task) + _wire.dump(body))

    def deliver(self, task: int, leaves: list[Leaf], need: int) -> None:
        """Writes a record of ``need`` bytes and reports it."""
        at = self._place(need)
        _record.put(leaves, self.memory.bytes, at)
        self.link.answer(_wire.DONE, _DONE.pack(task, at, need))

    def _place(self, need: int) -> int:
        """The offset of so many free bytes of the memory, which grows if that is too small."""
        if need > self.memory.size - FIRST:
            while self.memory.taken:
                self.react()
            self._grow(2 * need)
        while (at := self.memory.place(need)) < 0:
            self.react()
        return at

    # ---- several tasks at once

    def _begins(self, task: int) -> None:
        self.memory.mark(task)
        self.clock.tick()

    def _run_several(self, run: Run) -> None:
        bulk = self._bulk
        assert bulk is not None
        self.clock.start(run.key.timeout_ms / 1000)
        try:
            error = bulk.make(run, _TOGETHER)
        except Hung as e:  # between two items
            error = e
        finally:
            self.clock.stop()
        with self.lock:
            first = run.at
            items, bulk.run = bulk.items[first - bulk.first :], None
            if len(items) < 2 or not self._deliver_stacks(run, items, True):
                for item in items[run.at - first :]:
                    self._deliver_item(run, item)
            if error is not None:
                self.fail(run.id + run.at, run.samples[run.at], error)
                run.at += 1
            self.link.flush()
            if not run.left:
                self.tasks.popleft()

    def relieve(self) -> None:
        """Hands over what waits for the item that is being made. Another thread does so when that takes long."""
        bulk = self._bulk
        if bulk is None or not self.lock.acquire(blocking=False):
            return
        try:
            run = bulk.run
            items = bulk.certain()[run.at - bulk.first :] if run is not None else []
            if run is not None and items:
                self._deliver_stacks(run, items, False)
            self.link.flush()
        except Ended:
            pass  # the thread that makes items sees it too
        finally:
            self.lock.release()

    def _deliver_item(self, run: Run, item: Any) -> None:
        try:
            leaves = self.maker.leaves(item, run.key.last)
            need = self._size(leaves, run.key.last)
        except Exception as e:
            self.fail(run.id + run.at, run.samples[run.at], e)
        else:
            self.deliver(run.id + run.at, leaves, need)
        run.at += 1

    def _deliver_stacks(self, run: Run, items: list[Any], waits: bool) -> bool:
        """Hands items over as stacks, if need be when there is room; False = those from ``run.at`` on were not."""
        columns = _stack.columns(items, self.maker.layouts[run.key.last - 1].structure)
        if columns is None:
            return False
        form = _stack.form(columns)
        try:
            self.maker.require(form, run.key.last)
        except InvalidError:
            return False  # the messages name the items
        if _record.stack_size(form, 1) > self.largest:
            return False
        most = max((self.memory.size - FIRST) // (2 * _record.stack_size(form, 1)), 1)
        for begin in range(0, len(items), most):
            n = min(most, len(items) - begin)
            need = _record.stack_size(form, n)
            at = self._place(need) if waits else self.memory.place(need)
            if at < 0:
                return False
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
        end = _clock.monotonic() + seconds
        try:
            self.link.send(_wire.DETACH, b"", 3)
            while self.arrived(max(0.0, end - _clock.monotonic())):
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
            orders = _serve(pipe, maker, orders, clock, work.ended)
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


def _prepare(work: Work) -> Alarm:
    """Makes this process a worker: signals, threads, random state, get_worker_info()."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if work.main:
        _die_with_parent()
    clock = Alarm()
    seed = (work.seed + work.number) % 2**63
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if work.torch or "torch" in sys.modules:
        torch: Any = importlib.import_module("torch")
        of_torch: Any = importlib.import_module("torch.utils.data._utils.worker")
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        info = of_torch.WorkerInfo(id=work.number, num_workers=work.count, seed=seed, dataset=work.base)
        setattr(of_torch, "_worker_info", info)  # noqa: B010 - what get_worker_info() returns
    Still.watch()
    if work.init is not None:
        work.init(work.number)
    clock.limit(work.memory)  # what the process has up to here is not what its items take
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


def _serve(
    pipe: Any, maker: Maker, orders: Orders, clock: Alarm, ended: tuple[int, str] | None = None
) -> Orders | None:
    """Serves one daemon after the other, as long as one comes within ``orders.patience`` seconds.

    Returns what to serve next; None: the client ended its workers.
    """
    end, attached = _clock.monotonic() + orders.patience, False
    while True:
        service = None
        try:
            service = Service(connected(orders.path), maker, orders, clock)
            service.ended = ended
            linked(service.link)
            service.attach()
            service.attached = True
            clock.late = service.relieve
            _say(pipe, "serving", None)
            return _loop(pipe, service)
        except (Ended, Error) as e:
            again = isinstance(e, (Ended, UnavailableError)) or (service is not None and service.attached)
            if not again and not (attached and isinstance(e, NotFoundError)):
                raise
            if service is not None and service.attached:
                attached = True  # a daemon that comes back may not know the dataset yet
                end = _clock.monotonic() + orders.patience
            if _clock.monotonic() > end:
                raise UnavailableError(f"the larder daemon at {orders.path} did not come back: {e}") from e
        finally:
            clock.late = _nothing
            if service is not None:
                with service.lock:
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
        with service.lock:
            service.link.flush()
        service.clock.rest()
        ready = [fd for fd, _ in poller.poll(0 if service.tasks else None)]
        if told in ready:
            service.leave()
            return _told(pipe)
        if ready:
            with service.lock:
                service.react()


def _nothing() -> None:
    pass


def _told(pipe: Any) -> Orders | None:
    """What the client says; None when it closed the pipe."""
    try:
        orders: Orders | None = pipe.recv()
    except (EOFError, OSError):
        return None
    return orders
