"""The bytes that a session received and has not used yet, and how they become frames. No I/O."""

from __future__ import annotations

import socket
from collections.abc import Container
from typing import Any, NamedTuple

from . import _wire
from ._wire import Frame
from .errors import Error

# Frames that are not of the stream of an attachment.
_OUTSIDE_STREAM = (_wire.PING, _wire.PONG, _wire.DRAIN, _wire.ERROR, _wire.WAKE)


class Received:
    """What was received. A session replaces it as a whole and changes it only by ``chunks.extend``."""

    __slots__ = ("chunks", "count", "fds", "rest", "results", "stream")

    def __init__(
        self, rest: bytes, fds: tuple[int, ...], stream: list[Frame], results: dict[int, Frame], count: int
    ) -> None:
        self.chunks: list[Any] = []  # results of recvmsg that are not parsed yet
        self.rest = rest  # the beginning of a frame
        self.fds = fds  # descriptors that came with bytes of rest
        self.stream = stream  # frames that answer no request, oldest first
        self.results = results  # answers by request id
        self.count = count  # frames of the stream so far

    @classmethod
    def nothing(cls) -> Received:
        """The empty state of a new connection."""
        return cls(b"", (), [], {}, 0)

    def without_descriptors(self) -> tuple[Received, list[int]]:
        """What is left when the connection is over, and the descriptors to close."""
        left = Received(b"", (), [f for f in self.stream if f.fd < 0], self.results, self.count)
        fds = [
            *self.fds,
            *(f.fd for f in self.stream if f.fd >= 0),
            *(f.fd for f in self.results.values() if f.fd >= 0),
        ]
        for f in self.results.values():
            f.fd = -1
        for c in self.chunks:
            fds.extend(descriptors(c[1]))
        return left, fds


class Parsed(NamedTuple):
    """What ``parse`` makes of the chunks."""

    received: Received  # takes the place of the one before
    frames: list[Frame]  # all new ones, in order
    error: Error | None  # the daemon broke the protocol: nothing of the chunks is used


def parse(st: Received, waiting: Container[int]) -> Parsed:
    """Cuts the chunks of ``st`` into frames; ``waiting`` has the ids of requests whose answers are awaited."""
    data = b"".join([st.rest, *(c[0] for c in st.chunks)])
    fds = list(st.fds)
    for c in st.chunks:
        fds.extend(descriptors(c[1]))
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
                # It rides on the first byte of its frame, so the order of frames is the order of descriptors.
                f.fd = fds.pop(0)
            elif type_ == _wire.BATCH:
                f.batch = _wire.parse_batch(f.payload)
            frames.append(f)
            at = start + length
    except Error as e:
        fds.extend(f.fd for f in frames if f.fd >= 0)
        return Parsed(Received(b"", tuple(fds), st.stream, st.results, st.count), [], e)
    fresh = [f for f in frames if not f.request and f.type not in _OUTSIDE_STREAM]
    for n, f in enumerate(fresh, st.count + 1):
        f.number = n
    answers = {f.request: f for f in frames if f.request and f.type != _wire.PING and f.request in waiting}
    stream, results = st.stream + fresh, {**st.results, **answers}
    return Parsed(Received(data[at:], tuple(fds), stream, results, st.count + len(fresh)), frames, None)


def descriptors(ancillary: Any) -> list[int]:
    """The descriptors in the ancillary data of one recvmsg."""
    fds: list[int] = []
    for level, type_, data in ancillary:
        if level == socket.SOL_SOCKET and type_ == socket.SCM_RIGHTS:
            n = len(data) // 4
            fds.extend(int.from_bytes(data[i * 4 : i * 4 + 4], "little", signed=True) for i in range(n))
    return fds
