"""The two things that a worker has of its daemon: a connection, and memory that the daemon reads records from."""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import struct
import time

import numpy as np

from . import _wire
from .errors import UnavailableError

_HEADER = struct.Struct("<HHIQ")
_U64 = struct.Struct("<Q")
_PAGE = mmap.PAGESIZE
_SEALS = 1 | 2 | 4  # no more seals, no shrinking, no growing
_ADD_SEALS = 1033
_GATHER = 0.0005  # seconds after an answer in which others are gathered
FIRST = 64  # of the memory: where records begin


class Ended(Exception):
    """The daemon ended the connection."""


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

    @property
    def waits(self) -> bool:
        """Whether something was answered that has not left."""
        return bool(self._later)

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


def linked(link: Link) -> None:
    """Says which connection this worker process has."""
    _links[:] = [link]


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
        self.size, self._end = 0, FIRST  # of the memory, and of the youngest record
        self.replace(size)

    def replace(self, size: int, most: int = 1 << 62) -> None:
        """Takes new memory with room for ``size`` bytes, of ``most`` at most. Nothing may be taken in the old one."""
        size = min(-(-(size + FIRST) // _PAGE) * _PAGE, most)
        fd = os.memfd_create("larder-worker", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, _ADD_SEALS, _SEALS)
        self.close()
        self.fd, self.map, self.size, self._end = fd, mmap.mmap(fd, size), size, FIRST
        self.bytes = np.frombuffer(self.map, np.uint8)

    def place(self, need: int) -> int:
        """The offset of ``need`` free bytes, taken from now on; -1 when there are none."""
        at, oldest = self._end, next(iter(self.taken), -1)
        if oldest < 0 or (oldest < at and at + need > self.size):  # what is free lies behind the youngest, and before
            at = FIRST
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


def connected(path: str) -> Link:
    """A connection to the daemon; raises UnavailableError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
    except OSError as e:
        sock.close()
        raise UnavailableError(f"no larder daemon answers at {path}: {e}", subject=path) from e
    return Link(sock)
