"""Finding the daemon of this user, or starting it; the result is a Session after HELLO.

Several processes may need the daemon at the same moment: one of them takes a file lock beside the socket and starts it,
the others wait for the socket. A daemon started here lives in a session of its own and stops by itself after a while
without clients.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import subprocess
from typing import IO, NamedTuple

from . import _clock, _environ
from ._session import Session
from .errors import DeadlineError, DeniedError, Error, InvalidError, StoppedError, UnavailableError

IDLE_EXIT = "10m"  # a daemon started here stops after this long without a session
_SUN_PATH = 107
_started: list[subprocess.Popen[bytes]] = []  # kept so that Popen warns of none that outlives this process


def default_socket() -> str:
    """The per-user socket of docs/protocol.md; a folder that is gone, or closed to this user, counts as none."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    there = os.path.isabs(runtime) and os.path.isdir(runtime) and os.access(runtime, os.W_OK | os.X_OK)
    folder = os.path.join(runtime, "larder") if there else f"/tmp/larder-{os.getuid()}"
    return os.path.join(folder, "larder.sock")


def socket_path(endpoint: str | None) -> tuple[str, bool]:
    """The socket to use and whether the user named it (then no daemon is started)."""
    named = endpoint or os.environ.get("LARDER_SOCKET")
    path = named or default_socket()
    if path.startswith("unix:"):
        path = path[5:]
        if path.startswith("//"):
            path = path[2:]
    if "://" in path or (":" in path and "/" not in path):
        raise InvalidError(
            f"endpoint {path!r} is not a Unix socket",
            subject="endpoint",
            hint="batches are handed over in shared memory, so the daemon runs on this machine: "
            "give the path of its socket",
        )
    path = os.path.abspath(path)
    if len(os.fsencode(path)) > _SUN_PATH:
        raise InvalidError(
            f"the socket path {path!r} is longer than the {_SUN_PATH} bytes Linux allows",
            subject="endpoint",
            hint="choose a shorter one",
        )
    return path, bool(named)


class Stop(NamedTuple):
    """The mark of `larder stop` beside a socket (docs/protocol.md)."""

    id: str
    by: str
    at: str

    def error(self, path: str) -> StoppedError:
        """The error that a Loader raises if it was made before the stop."""
        return StoppedError(
            f"the larder daemon at {path} was stopped by {self.by} at {self.at}",
            subject=path,
            hint="run the script again, or `larder serve`; "
            "next() of this loader continues once a daemon serves the socket",
        )


def last_stop(path: str) -> Stop | None:
    """The last stop of the socket's daemon, if none has served it since.

    A mark counts only if root, this user or the folder's owner left it.
    """
    try:
        fd = os.open(path + ".stopped", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as f:
            st = os.fstat(fd)
            believed = (0, os.getuid(), os.stat(os.path.dirname(path) or ".").st_uid)
            if not stat.S_ISREG(st.st_mode) or st.st_uid not in believed:
                return None
            mark = json.loads(f.read(4096))
        return Stop(str(mark["id"]), str(mark["by"]), str(mark["at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def known_stop(endpoint: str | None) -> str:
    """The id of the last stop, "" if there is none. A Loader made now ignores it, and raises after a later one."""
    _environ.warn_once()
    stop = last_stop(socket_path(endpoint)[0])
    return stop.id if stop is not None else ""


def open_session(endpoint: str | None, timeout: float, known: str = "") -> Session:
    """Connects and says HELLO, starting a daemon when none was named and none answers; at most ``timeout`` seconds.

    When a daemon was stopped on purpose after the stop ``known``, StoppedError takes the place of starting or waiting.
    """
    path, named = socket_path(endpoint)
    deadline = _clock.monotonic() + timeout
    while True:
        try:
            return _connect(path, deadline)
        except _NotServed as e:
            stop = last_stop(path)
            if stop is not None and stop.id != known:
                raise stop.error(path) from None
            if named:
                origin = "endpoint=" if endpoint else "LARDER_SOCKET"
                error = UnavailableError(
                    f"no larder daemon answers at {path} (named by {origin}): {e}",
                    subject=path,
                    hint=f"start one with: larder serve --socket {path}",
                )
                error.gone = e.gone
                raise error from None
            if _clock.monotonic() > deadline:
                raise DeadlineError(
                    f"timed out waiting for a larder daemon at {path}: {e}",
                    subject=path,
                    hint=f"its log is {_log_path(path)}",
                ) from None
        _start(path, deadline, known)


def reach(path: str, timeout: float) -> Session:
    """Connects to the daemon that serves the socket now and says HELLO; starts none, and does not wait for one."""
    try:
        return _connect(path, _clock.monotonic() + timeout)
    except _NotServed as e:
        raise UnavailableError(f"no larder daemon answers at {path}: {e}", subject=path) from None


class _NotServed(Exception):
    """Raised when there is no socket, or no process listens on it; ``gone``: one did."""

    def __init__(self, words: str, gone: bool) -> None:
        super().__init__(words)
        self.gone = gone


def _connect(path: str, deadline: float) -> Session:
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as e:
        if e.errno is None:
            raise  # by a signal handler
        raise UnavailableError(
            f"cannot open a connection to {path}: {e.strerror}", subject=path, hint="close files, or raise `ulimit -n`"
        ) from None
    try:
        sock.settimeout(max(0.001, min(deadline - _clock.monotonic(), 1e6)))
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as e:
            raise _NotServed(os.strerror(e.errno or 0).lower(), _left_behind(path)) from None
        except TimeoutError:
            raise DeadlineError(
                f"timed out waiting for the daemon at {path} to accept a connection",
                subject=path,
                hint="`larder doctor` looks further",
            ) from None
        except OSError as e:
            if e.errno in (errno.EACCES, errno.EPERM):
                raise DeniedError(
                    f"no right to speak to the daemon at {path}: a daemon serves its own user, root and the members of "
                    "its socket_group",
                    subject=path,
                    hint="run as one of them, or start your own: larder serve --socket PATH, with LARDER_SOCKET=PATH",
                ) from None
            raise UnavailableError(
                f"cannot connect to {path}: {e.strerror or e}",
                subject=path,
                hint="name another socket with LARDER_SOCKET",
            ) from None
        session = Session(sock, path)
    except BaseException:
        sock.close()
        raise
    try:
        session.hello(deadline)
    except UnavailableError as e:
        session.close(False)
        if session.peer_left:  # it was just stopping
            raise _NotServed("it ended the connection before it said HELLO", True) from None
        raise e
    except BaseException:
        session.close(False)
        raise
    return session


def _left_behind(path: str) -> bool:
    """Whether a socket is there without a listener: that of a daemon that was killed."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def find_binary() -> str | None:
    """The larder binary: LARDER_BIN, the one in the package, the one on PATH."""
    named = os.environ.get("LARDER_BIN")
    if named:
        if not os.access(named, os.X_OK):
            raise UnavailableError(
                f"LARDER_BIN names {named}, which cannot be run",
                subject=named,
                hint="give the path of the larder binary",
            )
        return named
    packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "larder")
    if os.access(packaged, os.X_OK):
        return packaged
    return shutil.which("larder")


def _private_folder(folder: str) -> None:
    """Makes the folder of the socket, 0700; refuses one that another user made, as any user could in /tmp."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        st = os.stat(folder, follow_symlinks=False)
    except OSError as e:
        raise UnavailableError(
            f"cannot make the folder of the daemon's socket, {folder}: {e.strerror}",
            subject=folder,
            hint="set XDG_RUNTIME_DIR to a folder of yours, or start `larder serve --socket PATH` and set "
            "LARDER_SOCKET=PATH",
        ) from None
    if not stat.S_ISDIR(st.st_mode) or st.st_uid != os.getuid():
        raise UnavailableError(
            f"{folder} is not a folder of this user (uid {os.getuid()})",
            subject=folder,
            hint="remove it, or start `larder serve --socket PATH` and set LARDER_SOCKET=PATH",
        )


def _start(path: str, deadline: float, known: str) -> None:
    """Starts a daemon unless another process is doing so; returns when trying to connect again makes sense."""
    binary = find_binary()
    if binary is None:
        raise UnavailableError(
            f"no larder daemon answers at {path}, and there is no `larder` binary to start one",
            subject=path,
            hint="put larder on PATH or name it with LARDER_BIN, or start `larder serve` yourself",
        )
    _private_folder(os.path.dirname(path))
    with open(path + ".start", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _clock.monotonic() > deadline:
                raise DeadlineError(
                    f"timed out waiting for another process to start the larder daemon at {path}",
                    subject=path,
                    hint=f"its log is {_log_path(path)}",
                ) from None
            _clock.sleep(0.02)
            return
        if _listening(path):  # another process started it before this one got the lock
            _clock.sleep(0.02)
            return
        stop = last_stop(path)  # of one that was started and stopped meanwhile
        if stop is not None and stop.id != known:
            return
        _launch(binary, path, deadline)


def _listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(1.0)
        try:
            s.connect(path)
        except OSError:
            return False
        return True


def _log_path(path: str) -> str:
    return os.path.splitext(path)[0] + ".log"


def _launch(binary: str, path: str, deadline: float) -> None:
    log = _log_path(path)
    # The log is in memory where the socket is: log.file keeps it short.
    command = [binary, "serve", "--socket", path, "--idle-exit", IDLE_EXIT, "--set", f"log.file={log}"]
    # The ready line goes to a file in memory: a pipe would kill the daemon with SIGPIPE when this process ends.
    with open(os.memfd_create("larder-ready"), "r+b") as ready, open(log, "ab") as errors:
        start = errors.tell()
        try:
            daemon = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=ready,
                stderr=errors,
                cwd="/",
                start_new_session=True,
                close_fds=True,
            )
        except OSError as e:
            raise UnavailableError(
                f"cannot start {binary}: {e.strerror}", subject=binary, hint="LARDER_BIN names the binary to use"
            ) from None
        _started.append(daemon)
        try:
            _await_ready(_Starting(daemon, ready, " ".join(command), log, start), deadline)
        except BaseException:
            if daemon.poll() is None:
                daemon.terminate()
            raise


class _Starting(NamedTuple):
    """A daemon that was started and is not ready yet."""

    process: subprocess.Popen[bytes]
    ready: IO[bytes]  # where its ready line goes
    command: str
    log: str  # the path of its log
    start: int  # where in the log its lines begin

    def tail(self) -> str:
        """The last lines that it wrote."""
        return _tail(self.log, self.start) or "its log is empty"


def _await_ready(daemon: _Starting, deadline: float) -> None:
    """Waits for the ready line; the file's offset is shared with the daemon, so it is read with pread."""
    words, log = daemon.command, daemon.log
    while True:
        line = os.pread(daemon.ready.fileno(), 1 << 16, 0)
        if b"\n" in line:
            try:
                json.loads(line.split(b"\n", 1)[0])
            except ValueError:
                raise Error(
                    f"`{words}` said {line[:200]!r} where its ready line was expected", reason="PROTOCOL", subject=log
                ) from None
            return
        if daemon.process.poll() is not None:
            raise UnavailableError(
                f"`{words}` ended with exit code {daemon.process.returncode}: {daemon.tail()}",
                subject=log,
                hint=f"the log is {log}; run the command by hand to see more",
            )
        if _clock.monotonic() > deadline:
            raise DeadlineError(
                f"timed out waiting for `{words}` to become ready: {daemon.tail()}",
                subject=log,
                hint=f"the log is {log}",
            )
        _clock.sleep(0.005)


def _tail(log: str, start: int) -> str:
    """The last lines that the daemon wrote."""
    try:
        with open(log, "rb") as f:
            f.seek(start if start <= os.fstat(f.fileno()).st_size else 0)  # else the log was truncated meanwhile
            text = f.read(1 << 16).decode(errors="replace")
    except OSError:
        return ""
    return " / ".join(text.strip().splitlines()[-3:])
