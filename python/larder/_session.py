"""One connection to the daemon: frames in and out, calls, and the attachment of one rank.

There is no thread. Waiting happens in ``pump`` with a deadline, so Ctrl-C works everywhere. Signal handlers raise
between any two bytecodes. Therefore every step is one call into C (``extend`` of what was received, ``append`` of a
dead root's lease), or one assignment, or can be repeated without harm: an interrupt at any moment loses and doubles no
batch. Arrays die at any moment and in any thread: their weak references append themselves to a queue, which the next
``next()`` or call empties. No callback of the interpreter runs Python code: a signal handler could run inside it, and
what that raises (Ctrl-C) would be printed and lost, not raised in the script. Apart from that a Session is used by one
thread at a time (the Loader's lock sees to it), and it belongs to the process that made it.
"""

from __future__ import annotations

import collections
import functools
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

from . import _board, _clock, _forked, _received, _ring, _wire
from ._lease import Lease, Queue
from ._messages import AttachRequest, AttachResponse, HelloResponse, Method, Request, Response
from ._received import Received
from ._version import __version__
from ._wire import Frame
from .errors import DeadlineError, Error, StaleError, StoppedError, UnavailableError

_ANCILLARY = socket.CMSG_SPACE(4 * 4)  # up to four descriptors a message; the protocol sends one
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)
_CHUNK = 1 << 16
_AT_ONCE = (socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL,)
_SMALL = 4096  # bytes a Unix socket takes in one piece

Aside = tuple[float, Callable[[], None]]  # seconds, and what is called after them
_send_quietly: Callable[..., Any] | None
try:
    import ctypes

    # send(2) itself returns -1 where the method of a socket raises: what a callback of the interpreter raises is
    # printed and lost.
    _send = ctypes.PyDLL(None).send
    _send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    _send.restype = ctypes.c_ssize_t
    _send_quietly = _send
except (ImportError, OSError, AttributeError):
    # A Python without libffi: the DETACH of a forgotten Loader goes with the next call of another one.
    _send_quietly = None

_live: list[weakref.ref[Session]] = []  # not a WeakSet, whose callback is Python code


_copies: dict[int, list[_forked.Copy]] = {}  # by thread that forks: of the batches that are held


def _delivered(session: Session) -> list[Any]:
    """The root arrays of the batches that this process holds."""
    leases = [f if isinstance(f, Lease) else f.taken for f in list(session.held.values())]
    return [root for lease in leases if isinstance(lease, Lease) and (root := lease()) is not None]


def _before_fork() -> None:
    copies = _copies[threading.get_ident()] = []
    for r in list(_live):
        s = r()
        for root in () if s is None or s.pid != os.getpid() else _delivered(s):
            copy = _forked.copied(root)
            if copy is not None:
                copies.append(copy)


def _after_fork_in_parent() -> None:
    for copy in _copies.pop(threading.get_ident(), ()):
        _forked.drop(copy)


def _after_fork_in_child() -> None:
    for copy in _copies.pop(threading.get_ident(), ()):
        _forked.put(copy)
    # A socket that the child keeps open would hide the parent's end from the daemon, and two processes would use it.
    for r in _live:
        s = r()
        if s is not None:
            s.abandon()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


class Session:
    """A connection after HELLO; made by ``_daemon.open_session``."""

    def __init__(self, sock: socket.socket, path: str) -> None:
        sock.setblocking(False)
        self.pid = os.getpid()
        self.path = path
        self.error: Error | None = None  # why the connection is over
        self.draining: Error | None = None  # the daemon will stop when the running epochs are done
        self.peer_left = False  # the other side ended the connection, or an accident: another one may take its place
        self._stop_reported = False
        self.superseded = False  # another session continues the epoch: the daemon sends what is ready here again
        self.revoked: Error | None = None  # another client has the rank: what was sent before must not be used
        self.daemon_pid = 0
        self.daemon_version = ""
        self.ring: _ring.Ring | None = None
        self.board: _board.Board | None = None
        self.held: dict[int, Frame | Lease] = {}  # by slot: batches that the caller's arrays keep
        self.queue: Queue = collections.deque()
        self._sent: list[tuple[bytes | Lease, int]] = []  # the first of the queue once it was sent, and its bytes
        self.owner: weakref.ref[Any] | None = None  # its death sends DETACH; see detach_with
        self._detach_sent: list[int] = []  # what send returned for it
        self.detached = False  # the daemon was told that this client does not come back
        self._sock: socket.socket | None = sock
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._received = Received.nothing()
        self._waiting: set[int] = set()
        self._request = 0
        self._send_lock = threading.RLock()
        self._sending = False  # this thread is sending: code that interrupts it (a signal handler) does not send
        _live[:] = [r for r in _live if r() is not None] + [weakref.ref(self)]

    # ---- life

    @property
    def usable(self) -> bool:
        """Reports whether this process may still use the connection."""
        return self.error is None and self._sock is not None and self.pid == os.getpid()

    def fail(self, error: Error) -> Error:
        """Ends the connection because of ``error`` (the first one stays) and returns what to raise."""
        if self.error is None:
            self.error = error
        self._close_socket()
        return self.error

    def cut(self, why: str) -> Error:
        """Ends the connection for a reason that the next one may not have: its rank can be taken again (_reconnect)."""
        if self.error is None:
            self.peer_left = True
        return self.fail(UnavailableError(why, subject=self.path, hint="call again: it reconnects"))

    def abandon(self) -> None:
        """Closes this process's copy of the socket and sends nothing: for a forked child."""
        self._send_lock = threading.RLock()  # the parent's thread that held it does not exist here
        self._sending = False
        self.queue.clear()
        if self.board is not None:
            self.board.disarm()
        if self.error is None:
            self.error = self._foreign()
        self._close_socket()

    def close(self, attached: bool, seconds: float = 2.0) -> None:
        """Leaves in order (DETACH when attached), waiting at most ``seconds``; never raises."""
        if not self.usable:
            self._close_socket()
            return
        try:
            if attached:
                self.request(_wire.DETACH, b"", _clock.monotonic() + seconds, "the daemon's answer to DETACH")
                self.detached = True
        except UnavailableError:
            pass  # see _detach
        except Error:
            self.detached = True  # it has no such client any more, or will read it late
        finally:
            if self.error is None:
                self.error = StaleError("the loader is closed")
            self._close_socket()

    def detach_with(self, owner: Any) -> None:
        """Ends the attachment in order when ``owner`` is forgotten.

        Its death sends DETACH, in C calls alone. ``_finalizer.run_pending`` releases the rest.
        """
        if self._sock is not None and _send_quietly is not None:
            self._request += 1
            frame = _wire.pack(_wire.DETACH, self._request, b"")
            send = map(_send_quietly, (self._sock.fileno(),), (frame,), (len(frame),), _AT_ONCE)
            self._detach_sent = []
            self.owner = weakref.ref(owner, functools.partial(next, map(self._detach_sent.extend, (send,))))

    def owner_detached(self) -> bool:
        """Reports whether the death of the owner has sent DETACH."""
        return bool(self._detach_sent) and self._detach_sent[0] == _wire.HEADER_BYTES

    def _close_socket(self) -> None:
        self.owner = None
        if self.board is not None:
            self.board.close()
        s, self._sock = self._sock, None
        if s is not None:
            s.close()
        self._received, fds = self._received.without_descriptors()
        for fd in fds:
            os.close(fd)

    # ---- sending

    def flush(self) -> None:
        """Sends what is queued as far as the socket takes it; never waits, and raises interrupts only."""
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
        """Empties the queue; False when the socket is full or closed.

        The C call that sends an item also notes that it was sent, so an interrupt sends nothing twice and leaves
        nothing out.
        """
        queue, board, s = self.queue, self.board, self._sock
        if s is None or self.pid != os.getpid():
            queue.clear()
            return False
        while queue:
            item = queue[0]
            if isinstance(item, Lease):
                if not item.handed_out():
                    queue.popleft()  # interrupted before it was handed out: the batch waits for the next next()
                    continue
                if self.held.get(item.slot) is item.frame:
                    del self.held[item.slot]
                if board is not None and board.words:
                    board.give_back(item.slot, item.generation, item.waited_us)
                    queue.popleft()
                    continue
                data = _wire.pack_release(item.slot, item.generation, item.waited_us)
            else:
                data = item
            try:
                if not self._sent or self._sent[-1][0] is not item:
                    self._sent.extend(zip((item,), map(s.send, (data,), _AT_ONCE), strict=False))
                sent = self._sent[-1][1]
            except BlockingIOError:
                return False  # the socket is full; pump tries again
            except OSError as e:
                if e.errno is None:
                    raise  # by a signal handler: a TimeoutError, say
                queue.clear()  # the reader will see the end of the connection and say so
                return False
            if sent < len(data):  # so small a frame is sent whole or not at all by a Unix socket
                self.fail(_wire.protocol_error("a socket that splits small frames"))
                return False
            queue.popleft()
            self._sent.clear()
        if board is not None and board.given != board.told and board.due():
            self._note_told(board)
        return True

    def tell(self) -> None:
        """Has the daemon look at the release words; while it prepares batches, this builds their arrays."""
        if self.board is not None:
            self._note_told(self.board)
            self.flush()
            if self.board.reader is not None:
                self.board.build(0)

    def _note_told(self, board: _board.Board) -> None:
        """Queues the frame that tells of the release words. An interrupt may repeat it."""
        died, given = len(board.died), board.given
        self.queue.append(_wire.pack(_wire.WAKE, 0))  # an object of its own: what was sent is found by identity
        board.note_told(died, given)

    def send(self, type_: int, payload: bytes, deadline: float, what: str) -> None:
        """Sends a frame that is not answered."""
        if not self.usable:
            raise self._unusable()
        self._send(_wire.pack(type_, 0, payload), deadline, what)

    def _send(self, data: bytes, deadline: float, what: str) -> None:
        """Sends a request; an interrupt in the middle of a frame ends the connection."""
        self.flush()
        view, board = memoryview(data), self.board
        died, given = (0, 0) if board is None else (len(board.died), board.given)
        with self._send_lock:
            self._sending = True
            try:
                while view:
                    if self._sock is None:
                        raise self._unusable()
                    try:
                        view = view[self._sock.send(view, socket.MSG_NOSIGNAL) :]
                    except BlockingIOError:
                        left = deadline - _clock.monotonic()
                        if left <= 0:
                            raise self._late(what) from None
                        writable = select.poll()
                        writable.register(self._sock, select.POLLOUT)
                        _clock.poll(writable, min(left, 60.0) * 1000)
                    except OSError as e:
                        if e.errno is None:
                            raise  # by a signal handler
                        self.look()  # it may have said why
                        raise self.fail(self._died(e)) from e
                if board is not None:
                    board.note_told(died, given)  # with any frame the daemon looks at the release words
            except BaseException:
                if len(data) > _SMALL or 0 < len(view) < len(data):
                    self.cut(f"the connection to the daemon at {self.path} was interrupted in the middle of a request")
                raise
            finally:
                self._sending = False

    # ---- receiving

    def pump(self, deadline: float, posts: bool = False, also: Sequence[int] = ()) -> bool:
        """Waits for bytes, or (``posts``) for a batch on the board, and parses them; False when the deadline passed.

        Also returns when one of the descriptors ``also`` can be read. Raises when the connection is over.
        """
        self.flush()
        if self.error is not None or self._sock is None:
            raise self._unusable()
        if self._received.chunks:  # an interrupt came between receiving and parsing
            self._parse()
            return True
        left = deadline - _clock.monotonic()
        wait_ms = min(max(0.0, left), 86400.0) * 1000
        if self.queue:  # the socket was full: look again soon
            wait_ms = min(wait_ms, 20.0)
        board = self.board
        if board is not None and wait_ms > 0:
            board.reap()
            if board.untold():  # else this might wait for a slot that the daemon does not know of
                self.tell()
        if not posts or wait_ms <= 0:
            board = None
        if board is not None and not board.sleeps(self._received.count):
            return True
        came = self._poll(wait_ms, also)
        if board is not None:
            board.woken()
        if not came:
            return _clock.monotonic() < deadline
        if also and all(fd in also for fd, _ in came):
            return True
        st = self._received
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

    def _poll(self, wait_ms: float, also: Sequence[int]) -> list[tuple[int, int]]:
        if not also or self._sock is None:
            return _clock.poll(self._poller, wait_ms)
        poller = select.poll()
        for fd in (self._sock.fileno(), *also):
            poller.register(fd, select.POLLIN)
        return _clock.poll(poller, wait_ms)

    def look(self) -> None:
        """Reads what has arrived, without waiting: a GONE behind the batches that were read may forbid their use."""
        while self.error is None and self._sock is not None and (self._received.chunks or self._poller.poll(0)):
            self.pump(0.0)

    def _ended(self, cause: OSError | None) -> None:
        """Notes the end of the connection; raises unless something that came before it is unused."""
        if self.error is not None:
            return
        if not self._received.stream and not self._received.results:
            raise self.fail(self._died(cause))
        self.error = self._died(cause)

    def _parse(self) -> None:
        st = self._received
        end = any(not c[0] for c in st.chunks)
        if any(c[2] & socket.MSG_CTRUNC for c in st.chunks):
            raise self.cut(
                "a descriptor of the daemon did not arrive: this process has too many open files (ulimit -n)"
            )
        parsed = _received.parse(st, self._waiting)
        self._received = parsed.received
        if parsed.error is not None:
            raise self.fail(parsed.error)
        for f in parsed.frames:
            self._react(f)
        self.flush()
        if end:
            self._ended(None)

    def _react(self, f: Frame) -> None:
        """Does what a frame asks for that concerns the connection itself."""
        if f.type == _wire.PING:
            self.queue.append(_wire.pack(_wire.PONG, f.request))
        elif f.type == _wire.DRAIN:
            self.draining = _wire.parse_error(f.payload)
        elif f.type == _wire.GONE:
            gone = _wire.parse_error(f.payload)
            if isinstance(gone, StaleError):
                self.revoked = gone
            elif isinstance(gone, StoppedError):
                raise self._stopped(gone)
        elif f.type == _wire.ERROR and not f.request:
            error = _wire.parse_error(f.payload)
            raise self._stopped(error) if isinstance(error, StoppedError) else self.fail(error)
        elif f.fd >= 0 and f.request and f.request not in self._waiting:
            os.close(f.fd)  # the answer to an ATTACH that was interrupted

    def head(self) -> Frame | None:
        """The oldest frame or post that was not consumed yet."""
        if self.superseded:
            return None
        st = self._received
        stream = st.stream
        while stream and stream[0].taken is not None:
            del stream[0]
        f = stream[0] if stream else None
        if self.board is not None:
            # Posts that precede a received frame can be seen already, so a frame without a post before it is the next.
            posted = self.board.next(f.number - 1 if f is not None else st.count)
            if posted is not None:
                return posted
        return f

    def discard(self, frame: Frame) -> None:
        """Consumes a frame without using it; the slot of a batch is released."""
        b, board = frame.batch, self.board
        if b is not None and board is not None and board.words:
            board.give_back(b.slot, b.generation, 0)
            board.others += frame.number > 0
        elif b is not None:
            self.queue.append(_wire.pack_release(b.slot, b.generation, 0))
        frame.taken = True
        self.flush()
        if board is not None and board.due():
            self.tell()

    # ---- calls

    def request(self, type_: int, payload: bytes, deadline: float, what: str, aside: Aside | None = None) -> Frame:
        """Sends a request and waits for its answer; raises what ERROR says.

        ``what`` names in words what is waited for. ``aside`` is called once, after so many seconds without an answer;
        it may send requests of its own.
        """
        if not self.usable:
            raise self._unusable()
        self._request += 1
        rid = self._request
        self._waiting.add(rid)
        try:
            self._send(_wire.pack(type_, rid, payload), deadline, what)
            aside_at = _clock.monotonic() + aside[0] if aside is not None else deadline
            while True:
                f = self._received.results.pop(rid, None)
                if f is not None:
                    break
                if self.pump(min(deadline, aside_at)):
                    continue
                if aside is None or aside_at >= deadline:
                    raise self._late(what)
                aside_at = deadline
                aside[1]()
        finally:
            self._waiting.discard(rid)
        if f.type == _wire.ERROR:
            raise _wire.parse_error(f.payload)
        return f

    def hello(self, deadline: float) -> None:
        """Opens the session; raises when the daemon speaks no common abi."""
        body = {"client": f"python/{__version__}", "abiMin": _wire.ABI, "abiMax": _wire.ABI, "pid": os.getpid()}
        f = self.request(_wire.HELLO, _wire.dump(body), deadline, f"the daemon at {self.path} to answer HELLO")
        if f.type != _wire.WELCOME:
            raise self.fail(_wire.protocol_error(f"{_wire.NAMES[f.type - 1]} in answer to HELLO"))
        answer = cast(HelloResponse, _wire.parse_json(f.payload))
        self.daemon_pid = int(answer.get("pid") or 0)
        self.daemon_version = str(answer.get("version", ""))

    def call(
        self, method: Method[Request, Response], body: Request, deadline: float, aside: Aside | None = None
    ) -> Response:
        """Calls a method of LarderService; ``aside`` is that of request."""
        payload = _wire.dump({"method": method.name, "body": body})
        f = self.request(_wire.CALL, payload, deadline, f"the daemon at {self.path} to answer {method.name}", aside)
        if f.type != _wire.RESULT:
            raise self.fail(_wire.protocol_error(f"{_wire.NAMES[f.type - 1]} in answer to {method.name}"))
        return cast(Response, _wire.parse_json(f.payload))

    def attach(self, body: AttachRequest, deadline: float) -> AttachResponse:
        """Binds the session to a rank and maps its ring.

        An interrupt ends the session: the descriptor of its ring may be anywhere.
        """
        job = body["job"]
        what = f"the daemon at {self.path} to prepare the ring of job {job!r}, rank {body['rank']}"
        try:
            f = self.request(_wire.ATTACH, _wire.dump(body), deadline, what)
            if f.type != _wire.RING or f.fd < 0:
                raise _wire.protocol_error(f"{_wire.NAMES[f.type - 1]} in answer to ATTACH")
            answer = cast(AttachResponse, _wire.parse_json(f.payload))
            fd, f.fd = f.fd, -1
            self.ring = _ring.Ring(answer, fd)
            self.board = _board.of(self.ring, answer, self.held)
            if self.board is not None:
                self.board.queue = self.queue
            return answer
        except Error as e:
            if e.reason in ("PROTOCOL", "DEADLINE"):
                self.fail(e)
            raise
        except BaseException:
            self.cut(f"attaching to job {job!r} was interrupted")
            raise

    def answers(self, seconds: float = 1.0) -> bool:
        """Reports whether the daemon answers a PING within ``seconds``."""
        try:
            self.request(_wire.PING, b"", _clock.monotonic() + seconds, "PONG")
        except Error:
            return False
        return True

    # ---- errors

    def _unusable(self) -> Error:
        if self.error is not None:
            return self.error
        if self.pid != os.getpid():
            return self._foreign()
        return StaleError("the loader is closed")

    @staticmethod
    def _foreign() -> Error:
        return StaleError(
            "this loader's connection belongs to another process", hint="call iter(loader) in this process"
        )

    def _died(self, cause: OSError | None) -> Error:
        self.peer_left = True
        who = f"daemon (pid {self.daemon_pid})" if self.daemon_pid else "daemon"
        error = UnavailableError(
            f"the larder {who} at {self.path} ended the connection: {cause or 'it stopped or was killed'}",
            subject=self.path,
            hint="batches you hold stay valid; iterating again reconnects",
        )
        error.gone = True
        return error

    def _stopped(self, stopped: StoppedError) -> Error:
        """Notes that a user stopped the daemon. Its successor sends again what was ready, as after a crash."""
        self.peer_left = True
        error = self.fail(stopped)
        st = self._received
        self._received = Received(b"", (), [], st.results, st.count)
        return error

    def lost(self, e: Error) -> bool:
        """Reports whether ``e`` says that the daemon is gone, so that its successor must be asked.

        The first error of a deliberate stop is for the script, so it does not count.
        """
        reported, self._stop_reported = self._stop_reported, isinstance(e, StoppedError)
        return self.peer_left and e is self.error and (reported or not isinstance(e, StoppedError))

    def _late(self, what: str) -> Error:
        hint = "a longer timeout= may help; `larder doctor` looks further"
        return DeadlineError(f"timed out waiting for {what}", subject=self.path, hint=hint)
