"""Frames of the local session (docs/protocol.md): packing and parsing, no I/O and no state."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ._messages import BatchReport, ErrorDetail
from .errors import Error, from_detail

ABI = 1
MAX_PAYLOAD = 16 << 20

HELLO, WELCOME, CALL, RESULT, ERROR, ATTACH, RING, SEGMENT, EPOCH = range(1, 10)
BATCH, RELEASE, EPOCH_END, DETACH, DRAIN, PING, PONG, GONE, WAKE = range(10, 19)
WORK, TASK, DONE, FAILED, FREE, GROW, PICKS, TASKS, DONES, WORDS = range(32, 42)  # of workers, and PICKS of a client
NAMES = (
    *("HELLO", "WELCOME", "CALL", "RESULT", "ERROR", "ATTACH", "RING", "SEGMENT", "EPOCH"),
    *("BATCH", "RELEASE", "EPOCH_END", "DETACH", "DRAIN", "PING", "PONG", "GONE", "WAKE"),
)

_HEADER = struct.Struct("<HHIQ")
_BATCH = struct.Struct("<IIQQIIIIII")
_RELEASE = struct.Struct("<HHIQIIQ")  # with its header
_SEGMENT = struct.Struct("<IIQ")
_EPOCH = struct.Struct("<II")
HEADER_BYTES = _HEADER.size
U32_MAX = 0xFFFFFFFF


class Frame:
    """One frame. It owns the descriptor ``fd`` until its reader takes it and sets ``fd`` to -1."""

    __slots__ = ("batch", "fd", "number", "payload", "request", "taken", "type")

    def __init__(self, type_: int, request: int, payload: bytes, fd: int = -1) -> None:
        self.type = type_
        self.request = request
        self.payload = payload
        self.fd = fd
        self.batch: BatchHeader | None = None  # parsed form of a BATCH
        self.taken: object = None  # who consumed it: set last, in one step, so that an interrupt cannot split it
        self.number = 0  # in the stream, from 1


@dataclass(frozen=True)
class BatchHeader:
    """The fixed part of a BATCH frame and its report."""

    segment: int
    slot: int
    generation: int
    offset: int
    epoch: int
    step: int
    rank: int
    rows: int
    report: BatchReport | None


def protocol_error(what: str) -> Error:
    """An Error for a frame that breaks the protocol."""
    return Error(
        f"the daemon sent what docs/protocol.md does not allow: {what}",
        reason="PROTOCOL",
        hint="client and daemon may be of different versions; `larder version` and larder.__version__ show them",
    )


def pack(type_: int, request: int, payload: bytes = b"") -> bytes:
    """A frame, ready to send."""
    return _HEADER.pack(ABI, type_, len(payload), request) + payload


def dump(message: Mapping[str, object]) -> bytes:
    """A JSON payload; raises ValueError for NaN and infinities."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode()


def pack_release(slot: int, generation: int, waited_us: int) -> bytes:
    """A RELEASE frame; the waited time saturates."""
    return _RELEASE.pack(
        ABI, RELEASE, _RELEASE.size - HEADER_BYTES, 0, slot, max(0, min(waited_us, U32_MAX)), generation
    )


def epoch_payload(epoch: int, from_: int = 0) -> bytes:
    """The payload of an EPOCH frame; ``from_`` is 0, or 1 + the first step that a client still needs."""
    return _EPOCH.pack(epoch, from_)


def parse_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Type, payload length and request id of the header at ``at``; raises Error when it cannot be one."""
    abi, type_, length, request = _HEADER.unpack_from(data, at)
    if abi != ABI:
        raise protocol_error(f"abi {abi} where {ABI} was agreed")
    if not 1 <= type_ <= len(NAMES):
        raise protocol_error(f"frame type {type_}")
    if length > MAX_PAYLOAD:
        raise protocol_error(f"a {NAMES[type_ - 1]} frame of {length} bytes (at most {MAX_PAYLOAD})")
    return type_, length, request


def parse_json(payload: bytes) -> dict[str, Any]:
    """The JSON object of a payload."""
    try:
        value = json.loads(payload or b"{}")
    except ValueError as e:
        raise protocol_error(f"JSON that does not parse: {e}") from None
    if not isinstance(value, dict):
        raise protocol_error("JSON that is not an object")
    return value


def parse_error(payload: bytes) -> Error:
    """The exception that an ERROR, DRAIN or GONE frame describes."""
    return from_detail(cast(ErrorDetail, parse_json(payload)))


def parse_batch(payload: bytes) -> BatchHeader:
    """The content of a BATCH frame."""
    if len(payload) < _BATCH.size:
        raise protocol_error(f"a BATCH frame of {len(payload)} bytes")
    segment, slot, gen, offset, epoch, step, rank, rows, flags, _zero = _BATCH.unpack_from(payload)
    report = cast(BatchReport, parse_json(payload[_BATCH.size :])) if flags & 1 else None
    return BatchHeader(segment, slot, gen, offset, epoch, step, rank, rows, report)


def parse_segment(payload: bytes) -> tuple[int, int, int]:
    """Segment, slot and bytes of a SEGMENT frame."""
    if len(payload) != _SEGMENT.size:
        raise protocol_error(f"a SEGMENT frame of {len(payload)} bytes")
    segment, slot, size = _SEGMENT.unpack(payload)
    return segment, slot, size
