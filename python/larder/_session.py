"""One connection to the daemon: frames in and out, calls, and the attachment of one rank.

There is no thread. Waiting happens in ``pump`` with a deadline, so Ctrl-C works everywhere. Signal handlers raise between any two
bytecodes, therefore every step is either one call into C (``extend`` of what was received, ``append`` of what died), one assignment,
or can be repeated without harm; an interrupt at any moment loses and doubles no batch. Arrays die at any moment and in any thread:
their weak references append themselves to a queue, which the next ``next()`` or call empties. No callback of the interpreter runs Python
code: a signal handler could run inside it, and what that raises (Ctrl-C) would be printed and lost, not raised in the script. Apart from
that a Session is used by one thread at a time (the Loader's lock sees to it); it belongs to the process that made it.
"""

from __future__ import annotations

import collections
import functools
import os
import select
import socket
import threading
import time
import weakref
from typing import Any

import numpy.typing as npt

from . import _board, _ring, _wire
from ._version import __version__
from ._wire import Frame
from .errors import DeadlineError, Error, StaleError, StoppedError, UnavailableError, from_detail

_ANCILLARY = socket.CMSG_SPACE(4 * 4)  # up to four descriptors a message; the protocol sends one
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)
_CHUNK = 1 << 16
_AT_ONCE = (socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL,)
_SMALL = 4096  # bytes a Unix socket takes in one piece
_APART = (_wire.PING, _wire.PONG, _wire.DRAIN, _wire.ERROR, _wire.WAKE)  # not of the stream of an attachment

try:
    import ctypes

    # send(2) itself, which returns -1 where the method of a socket raises: what a callback of the interpreter raises is printed and lost.
    _send_quietly = ctypes.PyDLL(None).send
    _send_quietly.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    _send_quietly.restype = ctypes.c_ssize_t
except (ImportError, OSError, AttributeError):  # a Python without libffi: a forgotten Loader leaves with the next call of another one
    _send_quietly = None

_live: list[weakref.ref[Session]] = []  # not a WeakSet, whose callback is Python code


def _after_fork_in_child() -> None:
    # A socket that the child keeps open would hide the parent's death from the daemon, and two processes would speak on it.
    for r in _live:
        s = r()
        if s is not None:
            s.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)


class _State:
    """What was received; replaced as a whole, never changed but for ``chunks.extend``."""

    __slots__ = ("chunks", "count", "fds", "rest", "results", "stream")

    def __init__(self, rest: bytes, fds: tuple[int, ...], stream: list[Frame], results: dict[int, Frame], count: int) -> None:
        self.chunks: list[Any] = []  # results of recvmsg that are not parsed yet
        self.rest = rest  # the beginning of a frame
        self.fds = fds  # descriptors that came with bytes of rest
        self.stream = stream  # frames nobody asked for, oldest first
        self.results = results  # answers by request id
        self.count = count  # frames of the stream so far


class Lease(weakref.ref["npt.NDArray[Any]"]):
    """The life of one delivery: a weak reference to its root array whose death, in one C call, puts it into the session's queue. The next
    ``next()`` or call gives the slot back.

    What came as a frame counts as handed out when ``frame.taken`` is this lease, what was posted when the slot is held by this lease and
    the board's head has passed the post. A root that dies otherwise gives nothing back.
    """

    __slots__ = ("frame", "generation", "given", "post", "slot", "waited_us")

    # There is no __init__: one is made for every batch, by Session.lease.
    frame: Frame | None
    slot: int
    generation: int
    waited_us: int
    post: int  # its sequence number on the board
    given: bool  # seen to have been handed out

    def handed_out(self, board: _board.Board | None) -> bool:
        """Whether the caller got the batch."""
        if self.frame is not None:
            return self.frame.taken is self
        if not self.given:
            self.given = board is not None and board.held.get(self.slot) is self and 0 < self.post <= board.head
        return self.given


class Session:
    """A connection after HELLO; made by ``_daemon.open_session``."""

    def __init__(self, sock: socket.socket, path: str) -> None:
        sock.setblocking(False)
        self.pid = os.getpid()
        self.path = path
        self.error: Error | None = None  # why the connection is over
        self.draining: Error | None = None  # the daemon will stop when the running epochs are done
        self.peer_left = False  # the connection ended from the other side, or by an accident: another one may go on
        self._heard_stop = False
        self.forsaken = False  # another session goes on where this one ended: what it has ready comes again there
        self.revoked: Error | None = None  # the rank was given to somebody else: what was sent before must not be used
        self.daemon_pid = 0
        self.daemon_version = ""
        self.ring: _ring.Ring | None = None
        self.board: _board.Board | None = None
        self.held: dict[int, Frame | Lease] = {}  # by slot: batches that the caller's arrays keep
        self.queue: collections.deque[bytes | Lease] = collections.deque()  # small frames to send, and deaths to report
        self._sent: list[tuple[bytes | Lease, int]] = []  # the first of the queue, and how much of it was sent, if it was
        self.goodbye: weakref.ref[Any] | None = None  # of the Loader; see leaves_with
        self._said: list[int] = []  # what send returned for it
        self.left = False  # the daemon was told that nobody comes back
        self._sock: socket.socket | None = sock
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._state = _State(b"", (), [], {}, 0)
        self._waiting: set[int] = set()
        self._request = 0
        self._send_lock = threading.RLock()
        self._sending = False  # this thread is sending: whoever comes from inside (a signal handler) leaves it alone
        _live[:] = [r for r in _live if r() is not None] + [weakref.ref(self)]

    # ---- life

    @property
    def usable(self) -> bool:
        """Whether this process may still speak on the connection."""
        return self.error is None and self._sock is not None and self.pid == os.getpid()

    def fail(self, error: Error) -> Error:
        """Ends the connection because of ``error`` (the first one stays) and returns what to raise."""
        if self.error is None:
            self.error = error
        self._close_socket()
        return self.error

    def cut(self, why: str) -> Error:
        """Ends the connection for a reason that the next one may not have: its rank can be taken again (see _restart)."""
        if self.error is None:
            self.peer_left = True
        return self.fail(UnavailableError(why, subject=self.path, hint="call again: it connects anew"))

    def abandon(self) -> None:
        """Closes this process's copy of the socket without a word: for a forked child."""
        self._send_lock = threading.RLock()  # the parent's thread that held it does not exist here
        self._sending = False
        self.queue.clear()
        if self.error is None:
            self.error = StaleError("this loader's connection belongs to another process", hint="call iter(loader) in this process")
        self._close_socket()

    def close(self, attached: bool, seconds: float = 2.0) -> None:
        """Leaves in order (DETACH when attached), waiting at most ``seconds``; never raises."""
        if not self.usable:
            self._close_socket()
            return
        try:
            if attached:
                self.request(_wire.DETACH, b"", time.monotonic() + seconds, "the daemon's answer to DETACH")
                self.left = True
        except UnavailableError:
            pass  # see _goodbye
        except Error:
            self.left = True  # it has no such client any more, or will read it late
        finally:
            if self.error is None:
                self.error = StaleError("the loader is closed")
            self._close_socket()

    def leaves_with(self, owner: Any) -> None:
        """The attachment ends in order when ``owner`` is forgotten: its death sends DETACH, in C calls alone. What else there is to let
        go is for ``_parts.bury``."""
        if self._sock is not None and _send_quietly is not None:
            self._request += 1
            frame = _wire.pack(_wire.DETACH, self._request, b"")
            send = map(_send_quietly, (self._sock.fileno(),), (frame,), (len(frame),), _AT_ONCE)
            self._said = []
            self.goodbye = weakref.ref(owner, functools.partial(next, map(self._said.extend, (send,))))

    def said_goodbye(self) -> bool:
        """Whether the death of the Loader has sent DETACH."""
        return bool(self._said) and self._said[0] == _wire.HEADER_BYTES

    def _close_socket(self) -> None:
        self.goodbye = None
        if self.board is not None:
            self.board.close()
        s, self._sock = self._sock, None
        if s is not None:
            s.close()
        st = self._state
        self._state = _State(b"", (), [f for f in st.stream if f.fd < 0], st.results, st.count)
        fds = [*st.fds, *(f.fd for f in st.stream if f.fd >= 0), *(f.fd for f in st.results.values() if f.fd >= 0)]
        for f in st.results.values():
            f.fd = -1
        for c in st.chunks:
            fds.extend(_descriptors(c[1]))
        for fd in fds:
            os.close(fd)

    # ---- sending

    def lease(self, root: npt.NDArray[Any], frame: Frame | None, slot: int, waited_us: int) -> Lease:
        """Watches a root array; once it is handed out (see Lease) its death gives the slot back, with the next flush."""
        lease = Lease(root, self.queue.append)
        lease.frame, lease.slot, lease.waited_us = frame, slot, waited_us
        lease.generation = 0 if frame is None or frame.batch is None else frame.batch.generation
        lease.post, lease.given = 0, False
        return lease

    def flush(self) -> None:
        """Sends what is queued as far as the socket takes it; never blocks on the daemon, never raises but for interrupts."""
        while self.queue:
            with self._send_lock:
                if self._sending:
                    return
                self._sending = True
                try:
                    if not self._drain():
                        return
                finally:
                    self._sending = False

    def _drain(self) -> bool:
        """Empties the queue; False when the socket is full or gone. That an item was sent is noted in the C call that sends it, so an
        interrupt sends nothing twice and leaves nothing out."""
        while self.queue:
            item = self.queue[0]
            if isinstance(item, Lease):
                if not item.handed_out(self.board):
                    self.queue.popleft()  # interrupted before it was handed out: the batch waits for the next next()
                    continue
                if self.held.get(item.slot) is (item.frame or item):
                    del self.held[item.slot]
                data = _wire.pack_release(item.slot, item.generation, item.waited_us)
            else:
                data = item
            s = self._sock
            if s is None or self.pid != os.getpid():
                self.queue.clear()
                return False
            try:
                if not self._sent or self._sent[-1][0] is not item:
                    self._sent.extend(zip((item,), map(s.send, (data,), _AT_ONCE), strict=False))
                sent = self._sent[-1][1]
            except BlockingIOError:
                return False  # the daemon does not read just now; pump tries again
            except OSError as e:
                if e.errno is None:
                    raise  # by a signal handler: a TimeoutError, say
                self.queue.clear()  # the reader will see the end of the connection and say so
                return False
            if sent < len(data):  # so small a frame is sent whole or not at all by a Unix socket
                self.fail(_wire.protocol_error("a socket that splits small frames"))
                return False
            self.queue.popleft()
            self._sent.clear()
            if isinstance(item, Lease) and self.board is not None:
                self.board.prepare(self, item.slot)
        return True

    def _send(self, data: bytes, deadline: float, what: str) -> None:
        """Sends a request; on an interrupt in the middle of a frame the connection cannot go on."""
        self.flush()
        view = memoryview(data)
        with self._send_lock:
            self._sending = True
            try:
                while view:
                    if self._sock is None:
                        raise self._gone()
                    try:
                        view = view[self._sock.send(view, socket.MSG_NOSIGNAL) :]
                    except BlockingIOError:
                        left = deadline - time.monotonic()
                        if left <= 0:
                            raise self._late(what) from None
                        writable = select.poll()
                        writable.register(self._sock, select.POLLOUT)
                        writable.poll(min(left, 60.0) * 1000)
                    except OSError as e:
                        if e.errno is None:
                            raise  # by a signal handler
                        self.look()  # it may have said why
                        raise self.fail(self._died(e)) from e
            except BaseException:
                if len(data) > _SMALL or 0 < len(view) < len(data):
                    self.cut(f"the connection to the daemon at {self.path} was interrupted in the middle of a request")
                raise
            finally:
                self._sending = False

    # ---- receiving

    def pump(self, deadline: float, posts: bool = False) -> bool:
        """Waits for bytes, or (``posts``) for a batch on the board, and parses them; False when the deadline passed.

        Raises when the connection is over.
        """
        self.flush()
        if self.error is not None or self._sock is None:
            raise self._gone()
        if self._state.chunks:  # an interrupt came between receiving and parsing
            self._parse()
            return True
        left = deadline - time.monotonic()
        wait_ms = min(max(0.0, left), 86400.0) * 1000
        if self.queue:  # the socket was full: look again soon
            wait_ms = min(wait_ms, 20.0)
        board = self.board if posts and wait_ms > 0 else None
        if board is not None and not board.sleeps(self._state.count):
            return True
        came = self._poller.poll(wait_ms)
        if board is not None:
            board.woken()
        if not came:
            return time.monotonic() < deadline
        st = self._state
        try:
            # One C call: received data is either still in the kernel or in chunks, also when a signal handler raises.
            st.chunks.extend(map(self._sock.recvmsg, (_CHUNK,), (_ANCILLARY,), (_CLOEXEC,)))
        except BlockingIOError:
            return True
        except OSError as e:
            if e.errno is None:
                raise  # by a signal handler
            self._ended(e)
            return True
        self._parse()
        return True

    def look(self) -> None:
        """Takes over what has arrived, without waiting: a GONE behind the batches that were read may forbid their use."""
        while self.error is None and self._sock is not None and (self._state.chunks or self._poller.poll(0)):
            self.pump(0.0)

    def _ended(self, cause: OSError | None) -> None:
        """Notes the end of the connection; raises unless something that came before it is still to be used."""
        if self.error is not None:
            return
        if not self._state.stream and not self._state.results:
            raise self.fail(self._died(cause))
        self.error = self._died(cause)

    def _parse(self) -> None:
        st = self._state
        end = any(not c[0] for c in st.chunks)
        if any(c[2] & socket.MSG_CTRUNC for c in st.chunks):
            raise self.cut("a descriptor of the daemon did not arrive: this process has too many open files (ulimit -n)")
        data = b"".join([st.rest, *(c[0] for c in st.chunks)])
        fds = list(st.fds)
        for c in st.chunks:
            fds.extend(_descriptors(c[1]))
        frames: list[Frame] = []
        at = 0
        try:
            while len(data) - at >= _wire.HEADER_BYTES:
                type_, length, request = _wire.parse_header(data, at)
                if len(data) - at - _wire.HEADER_BYTES < length:
                    break
                start = at + _wire.HEADER_BYTES
                f = Frame(type_, request, data[start : start + length])
                if type_ == _wire.RING or type_ == _wire.SEGMENT:
                    if not fds:
                        raise _wire.protocol_error(f"{_wire.NAMES[type_ - 1]} without a descriptor")
                    f.fd = fds.pop(0)  # rides on the first byte of its frame, so order of frames = order of descriptors
                elif type_ == _wire.BATCH:
                    f.batch = _wire.parse_batch(f.payload)
                frames.append(f)
                at = start + length
        except Error as e:
            for f in frames:
                if f.fd >= 0:
                    fds.append(f.fd)
            self._state = _State(b"", tuple(fds), st.stream, st.results, st.count)
            raise self.fail(e) from None
        fresh = [f for f in frames if not f.request and f.type not in _APART]
        for n, f in enumerate(fresh, st.count + 1):
            f.number = n
        answers = {f.request: f for f in frames if f.request and f.type != _wire.PING and f.request in self._waiting}
        self._state = _State(data[at:], tuple(fds), st.stream + fresh, {**st.results, **answers}, st.count + len(fresh))
        for f in frames:
            if f.type == _wire.PING:
                self.queue.append(_wire.pack(_wire.PONG, f.request))
            elif f.type == _wire.DRAIN:
                self.draining = from_detail(_wire.parse_json(f.payload))
            elif f.type == _wire.GONE:
                gone = from_detail(_wire.parse_json(f.payload))
                if isinstance(gone, StaleError):
                    self.revoked = gone
                elif isinstance(gone, StoppedError):
                    raise self._stopped(gone)
            elif f.type == _wire.ERROR and not f.request:
                told = from_detail(_wire.parse_json(f.payload))
                raise self._stopped(told) if isinstance(told, StoppedError) else self.fail(told)
            elif f.fd >= 0 and f.request and f.request not in self._waiting:
                os.close(f.fd)  # the answer to an ATTACH that was interrupted
        self.flush()
        if end:
            self._ended(None)

    def head(self) -> Frame | None:
        """The oldest of what was sent as a frame or posted that nobody has consumed."""
        if self.forsaken:
            return None
        st = self._state
        stream = st.stream
        while stream and stream[0].taken is not None:
            del stream[0]
        f = stream[0] if stream else None
        if self.board is not None:
            # What was posted before a frame that was received is there to be seen, so a frame without a post before it is the next.
            posted = self.board.next(f.number - 1 if f is not None else st.count)
            if posted is not None:
                return posted
        return f

    def discard(self, frame: Frame) -> None:
        """Consumes a frame unseen; a batch is given back."""
        b = frame.batch
        if b is not None:
            self.queue.append(_wire.pack_release(b.slot, b.generation, 0))
        frame.taken = True
        self.flush()

    # ---- calls

    def request(self, type_: int, payload: bytes, deadline: float, what: str) -> Frame:
        """Sends a request and waits for its answer; ERROR is raised. ``what`` says in words what is waited for."""
        if not self.usable:
            raise self._gone()
        self._request += 1
        rid = self._request
        self._waiting.add(rid)
        try:
            self._send(_wire.pack(type_, rid, payload), deadline, what)
            while True:
                f = self._state.results.pop(rid, None)
                if f is not None:
                    break
                if not self.pump(deadline):
                    raise self._late(what)
        finally:
            self._waiting.discard(rid)
        if f.type == _wire.ERROR:
            raise from_detail(_wire.parse_json(f.payload))
        return f

    def hello(self, deadline: float) -> None:
        """Opens the session; raises when the daemon speaks no common abi."""
        body = {"client": f"python/{__version__}", "abiMin": _wire.ABI, "abiMax": _wire.ABI, "pid": os.getpid()}
        f = self.request(_wire.HELLO, _wire.dump(body), deadline, f"the daemon at {self.path} to answer HELLO")
        if f.type != _wire.WELCOME:
            raise self.fail(_wire.protocol_error(f"{_wire.NAMES[f.type - 1]} in answer to HELLO"))
        answer = _wire.parse_json(f.payload)
        self.daemon_pid = int(answer.get("pid") or 0)
        self.daemon_version = str(answer.get("version", ""))

    def call(self, method: str, body: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Calls a method of LarderService."""
        f = self.request(
            _wire.CALL, _wire.dump({"method": method, "body": body}), deadline, f"the daemon at {self.path} to answer {method}"
        )
        if f.type != _wire.RESULT:
            raise self.fail(_wire.protocol_error(f"{_wire.NAMES[f.type - 1]} in answer to {method}"))
        return _wire.parse_json(f.payload)

    def attach(self, job: str, rank: int, node_rank: int, held: int, client: str, deadline: float) -> dict[str, Any]:
        """Binds the session to a rank and maps its ring; ``held`` is the incarnation held before, or 0, ``client`` what this client is
        known by when its old connection seems to live. If it is interrupted the session is over: its ring may be anywhere."""
        body = {"job": job, "rank": rank, "nodeRank": node_rank, "pid": os.getpid(), "client": client}
        body |= {"incarnation": str(held)} if held else {}
        what = f"the daemon at {self.path} to prepare the ring of job {job!r}, rank {rank}"
        try:
            f = self.request(_wire.ATTACH, _wire.dump(body), deadline, what)
            if f.type != _wire.RING or f.fd < 0:
                raise _wire.protocol_error(f"{_wire.NAMES[f.type - 1]} in answer to ATTACH")
            answer = _wire.parse_json(f.payload)
            fd, f.fd = f.fd, -1
            self.ring = _ring.Ring(answer, fd)
            self.board = _board.of(self.ring, answer, self.held)
            return answer
        except Error as e:
            if e.reason in ("PROTOCOL", "DEADLINE"):
                self.fail(e)
            raise
        except BaseException:
            self.cut(f"attaching to job {job!r} was interrupted")
            raise

    def answers(self, seconds: float = 1.0) -> bool:
        """Whether the daemon answers a PING within ``seconds``."""
        try:
            self.request(_wire.PING, b"", time.monotonic() + seconds, "PONG")
        except Error:
            return False
        return True

    # ---- errors

    def _gone(self) -> Error:
        if self.error is not None:
            return self.error
        if self.pid != os.getpid():
            return StaleError("this loader's connection belongs to another process", hint="call iter(loader) in this process")
        return StaleError("the loader is closed")

    def _died(self, cause: OSError | None) -> Error:
        self.peer_left = True
        who = f"daemon (pid {self.daemon_pid})" if self.daemon_pid else "daemon"
        return UnavailableError(
            f"the larder {who} at {self.path} ended the connection" + (f": {cause}" if cause else ": it stopped or was killed"),
            subject=self.path,
            hint="batches you hold stay valid; iterating again connects anew",
        )

    def _stopped(self, told: StoppedError) -> Error:
        """The daemon says that it was stopped. What it still had ready comes again from its successor, as after its death."""
        self.peer_left = True
        error = self.fail(told)
        st = self._state
        self._state = _State(b"", (), [], st.results, st.count)
        return error

    def lost(self, e: Error) -> bool:
        """Whether ``e`` says that the daemon has gone, so that its successor is to be asked; of a stop that was meant not the first time."""
        heard, self._heard_stop = self._heard_stop, isinstance(e, StoppedError)
        return self.peer_left and e is self.error and (heard or not isinstance(e, StoppedError))

    def _late(self, what: str) -> Error:
        return DeadlineError(
            f"waited in vain for {what}", subject=self.path, hint="a longer timeout= may help; `larder doctor` looks further"
        )


def _descriptors(ancillary: Any) -> list[int]:
    fds: list[int] = []
    for level, type_, data in ancillary:
        if level == socket.SOL_SOCKET and type_ == socket.SCM_RIGHTS:
            n = len(data) // 4
            fds.extend(int.from_bytes(data[i * 4 : i * 4 + 4], "little", signed=True) for i in range(n))
    return fds
