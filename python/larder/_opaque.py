"""Items of any kind as bytes: pickled by who makes them, unpickled only by scripts of the same user.

A blob is a header, the place of each array, the pickle, and behind it the bytes of arrays and tensors, which are looked
at where they lie. The header has a code of the pickle under a key that only its user has, and nothing is unpickled that
lacks it: neither another user's worker nor the daemon can make a script run anything. Datasets without a name have the
key of their process and its workers; those of a name have one in a file of the user's, so that scripts share.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import importlib
import io
import math
import multiprocessing
import os
import pickle
import stat
import struct
import sys
from typing import Any

import numpy as np

from . import _record
from ._record import Array, Leaf
from .errors import InvalidError

_MAGIC = 0x314B504C
_HEAD = struct.Struct("<II16sQ")  # magic, arrays, code, bytes of the pickle
_PLACE = struct.Struct("<QQ")
_ALIGN, _KEY = 64, 32
_LARGE = 512  # bytes of an array from which on it lies behind the pickle
_GAPS = 64 << 10  # bytes up to which the gaps of a view are kept, whatever they are
_SPARSE = 4  # how many times larger than its elements the memory of a view may be
_SHORT = 4096  # bytes of a pickle whose code is made of it, not of its digest
_ARRAYS = (np.ndarray, np.memmap, np.matrix)
_PLAIN = "biufcSUVmM"  # kinds of dtypes whose arrays are bytes
# What NumPy, torch and Pillow need to be given back their own objects.
Made = tuple[Any, ...]


class Unreadable(InvalidError):
    """A blob that cannot be unpickled; of a batch the first one, and by ``rows`` all."""

    rows: dict[int, Unreadable]


# ---- keys


def owner(shared: bool) -> str:
    """Who may unpickle: the user id, and which key. ``shared``: all scripts of the user, not just this one."""
    key = _file_key() if shared else b""
    return _name(key or _process_key())


def _name(key: bytes) -> str:
    return f"{os.getuid()}-{hashlib.blake2b(key, digest_size=4, person=b'larder name').hexdigest()}"


@functools.lru_cache(maxsize=16)
def _key(owner: str, pid: int) -> bytes:
    """The key of an owner.

    Raises:
        InvalidError: this script has it not.
    """
    for key in (_process_key(), _file_key()):
        if key and _name(key) == owner:
            return key
    uid = owner.partition("-")[0]
    who = f"user id {uid}" if uid != str(os.getuid()) else "another script, or of one with another home folder"
    raise InvalidError(
        f"the items of this dataset are pickled objects of {who}, and this script of user id {os.getuid()} unpickles "
        "none but its own",
        subject="dataset", hint="give your dataset a name= of its own",
    )  # fmt: skip


def _process_key() -> bytes:
    """The key of this process, its workers and theirs."""
    return hashlib.blake2b(bytes(multiprocessing.current_process().authkey), person=b"larder items").digest()[:_KEY]


def _file_key() -> bytes:
    """The key of this user's scripts; empty where there is no folder to keep it in."""
    folder = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return _kept(os.path.join(folder, "larder", "items.key"))


@functools.lru_cache(maxsize=4)
def _kept(path: str) -> bytes:
    for _ in range(2):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            _write(path)
            continue
        except OSError:
            return b""
        with open(fd, "rb") as f:
            about, key = os.fstat(fd), f.read(_KEY + 1)
        mine = about.st_uid == os.getuid() and not about.st_mode & 0o077 and stat.S_ISREG(about.st_mode)
        return key if mine and len(key) == _KEY else b""
    return b""


def _write(path: str) -> None:
    """Writes a new key, unless another script is quicker."""
    new = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, os.urandom(_KEY))
        finally:
            os.close(fd)
        try:
            os.link(new, path)
        finally:
            os.unlink(new)
    except OSError:
        pass


def _code(key: bytes, data: Any) -> bytes:
    if len(data) > _SHORT:
        data = hashlib.sha256(data).digest()
    return hashlib.blake2b(data, key=key, digest_size=16).digest()


# ---- there


def leaf(item: Any, owner: str) -> Leaf:
    """An item as one leaf.

    Raises:
        InvalidError: it cannot be pickled.
    """
    key = _key(owner, os.getpid())
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    try:
        pickler.dump(item)
    except Exception as e:  # whatever its objects raise
        said = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
        raise InvalidError(
            f"the sample is {type(item).__module__}.{type(item).__qualname__}, and cannot be pickled: {said:.500}",
            hint="return data: arrays, tensors, numbers, text, and objects that pickle can take to another process",
        ) from e
    data, arrays = stream.getbuffer(), pickler.arrays
    table, at = [], _aligned(_HEAD.size + _PLACE.size * len(arrays) + len(data))
    for a in arrays:
        table.append(_PLACE.pack(at, a.nbytes))
        at = _aligned(at + a.nbytes)
    signed = b"".join([*table, data])
    out: Array = np.empty(at, np.uint8)
    head = _HEAD.pack(_MAGIC, len(arrays), _code(key, signed), len(data)) + signed
    out[: len(head)] = np.frombuffer(head, np.uint8)
    end = len(head)
    for a, place in zip(arrays, table, strict=True):
        start, n = _PLACE.unpack(place)
        out[end:start] = 0
        out[start : start + n] = a
        end = start + n
    out[end:] = 0
    return Leaf(_record.ARRAY, 2, out)


def _aligned(n: int) -> int:
    return (n + _ALIGN - 1) & -_ALIGN


class _Pickler(pickle.Pickler):
    """Pickles an item, and keeps what lies behind the pickle."""

    def __init__(self, stream: io.BytesIO) -> None:
        self.arrays: list[Array] = []
        self._ours: dict[int, Any] = {}  # buffers that reducer_override made, which alone may lie behind the pickle
        self._storages: dict[int, tuple[Any, Any]] = {}  # by address: tensors that share one still do
        super().__init__(stream, 5, buffer_callback=self._inside)

    def _inside(self, buffer: pickle.PickleBuffer) -> bool:
        raw = self._ours.get(id(buffer))
        if raw is None or raw[1].nbytes < _LARGE:
            return True
        self.arrays.append(raw[1])
        return False

    def _buffer(self, raw: Array) -> pickle.PickleBuffer:
        made = pickle.PickleBuffer(raw.data)
        self._ours[id(made)] = (made, raw)
        return made

    def reducer_override(self, obj: Any) -> Any:
        cls = type(obj)
        if cls in _ARRAYS:
            return self._array(obj)
        if cls is memoryview and obj.c_contiguous:
            return _memoryview, (obj.tobytes(), obj.format, obj.shape)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            if obj.requires_grad and not obj.is_leaf:
                raise TypeError("a tensor that has a graph behind it; return .detach()")
            return self._tensor(obj, torch)
        if cls.__module__ == "torch.storage" and cls.__name__ in ("TypedStorage", "UntypedStorage"):
            return self._storage(obj, torch)
        image = sys.modules.get("PIL.Image")
        if image is not None and isinstance(obj, image.Image):
            return self._image(obj)
        return NotImplemented

    def _array(self, a: Array) -> Any:
        if a.dtype.kind not in _PLAIN or a.dtype.hasobject:
            return NotImplemented
        low = sum(min(0, (n - 1) * s) for n, s in zip(a.shape, a.strides, strict=True)) if a.size else 0
        span = a.itemsize + sum((n - 1) * abs(s) for n, s in zip(a.shape, a.strides, strict=True)) if a.size else 0
        if span > max(_GAPS, _SPARSE * a.nbytes):
            return NotImplemented
        raw = np.asarray(_Memory(a, low, span)) if span else np.empty(0, np.uint8)
        return _array, (self._buffer(raw), type(a), a.dtype, a.shape, (a.strides, -low))

    def _tensor(self, t: Any, torch: Any) -> Any:
        """Of a plain tensor, or of a subclass that leaves to torch how it is pickled."""
        cls, state = type(t), getattr(t, "__dict__", None)
        if t.device.type != "cpu":
            raise TypeError(f"a tensor on {t.device}; return .cpu()")
        own = [n for n in _PICKLING if getattr(cls, n, None) is not getattr(torch.Tensor, n, None)]
        odd = t.layout != torch.strided or t.is_quantized or getattr(t, "is_nested", False)
        if own or odd or getattr(t, "_backward_hooks", None) or _slotted(cls, torch.Tensor):
            return NotImplemented
        with getattr(torch, "_C").DisableTorchFunction():  # noqa: B009 - it is torch's own
            flat = t.detach().as_subclass(torch.Tensor)
            if flat.is_conj() or flat.is_neg():
                return NotImplemented
            shape, strides, n = tuple(flat.shape), tuple(flat.stride()), flat.numel()
            span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if n else 0
            if n and span * flat.element_size() > max(_GAPS, _SPARSE * n * flat.element_size()):
                flat = flat.contiguous()
                strides, span = tuple(flat.stride()), n
            try:
                raw = torch.as_strided(flat, (span,), (1,)).view(torch.uint8).numpy() if span else np.empty(0, np.uint8)
            except (RuntimeError, TypeError):
                return NotImplemented
        made = (self._buffer(raw), str(flat.dtype).rpartition(".")[2], shape, strides, t.requires_grad)
        return (_tensor, made) if cls is torch.Tensor and not state else (_subclass, (cls, made, state))

    def _storage(self, s: Any, torch: Any) -> Any:
        """Of tensors that pickle themselves: parameters, quantized ones."""
        typed = type(s).__name__ == "TypedStorage"
        untyped = getattr(s, "_untyped_storage", s) if typed else s
        if untyped.device.type != "cpu":
            raise TypeError(f"a tensor on {untyped.device}; return .cpu()")
        if typed and untyped is not s:
            key = untyped.data_ptr()
            _, once = self._storages.setdefault(key, (s, untyped))
            return _typed, (once if key else untyped, s.dtype)
        try:
            raw = torch.tensor([], dtype=torch.uint8).set_(s).numpy()
        except (RuntimeError, TypeError):
            return NotImplemented
        return _storage, (self._buffer(raw),)

    def _image(self, image: Any) -> Any:
        made: list[Any] = list(image.__reduce_ex__(2))
        state = made[2] if len(made) > 2 else None
        if not isinstance(state, list | tuple) or not any(isinstance(x, bytes) and len(x) >= _LARGE for x in state):
            return NotImplemented
        parts = [
            self._buffer(np.frombuffer(x, np.uint8)) if isinstance(x, bytes) and len(x) >= _LARGE else x for x in state
        ]
        return _image, (made[0], made[1], type(state), parts)


# What a subclass of Tensor has of its own where it says itself how it is pickled.
_PICKLING = (
    *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "_reduce_ex_internal", "__torch_dispatch__"),
)


def _slotted(cls: type, base: type) -> bool:
    return any(c.__dict__.get("__slots__") for c in cls.__mro__[: cls.__mro__.index(base)])


class _Memory:
    """The bytes that an array lies in, as NumPy takes them."""

    def __init__(self, a: Array, low: int, span: int) -> None:
        place = a.__array_interface__["data"][0] + low
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (span,), "data": (place, False)}
        self.held = a


# ---- and back: what pickles name, and so stays where it is


def _array(buffer: Any, cls: Any, dtype: Any, shape: tuple[int, ...], place: tuple[tuple[int, ...], int]) -> Any:
    strides, offset = place
    made: Array = np.ndarray(shape, dtype, buffer, offset, strides) if math.prod(shape) else np.ndarray(shape, dtype)
    return made if cls is np.ndarray else made.view(cls)


def _memoryview(data: bytes, kind: str, shape: tuple[int, ...]) -> memoryview:
    flat = memoryview(data)
    return flat if kind == "B" and len(shape) == 1 else flat.cast(kind, shape)  # type: ignore[call-overload]


def _tensor(buffer: Any, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], grad: bool) -> Any:
    torch: Any = importlib.import_module("torch")
    kind = getattr(torch, dtype)
    if math.prod(shape):
        made = torch.from_numpy(np.frombuffer(buffer, np.uint8)).view(kind).as_strided(shape, strides)
    else:
        made = torch.empty_strided(shape, strides, dtype=kind)
    return made.requires_grad_() if grad else made


def _subclass(cls: Any, made: Any, state: Any) -> Any:
    buffer, dtype, shape, strides, grad = made
    out = _tensor(buffer, dtype, shape, strides, False)
    if cls is not importlib.import_module("torch").Tensor:
        out = out.as_subclass(cls)
    out.__dict__.update(state or {})
    return out.requires_grad_() if grad else out


def _typed(storage: Any, dtype: Any) -> Any:
    of_torch: Any = importlib.import_module("torch.storage")
    return of_torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _storage(buffer: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    values = np.frombuffer(buffer, np.uint8)
    made = torch.from_numpy(values) if values.size else torch.empty(0, dtype=torch.uint8)
    return made.untyped_storage()


def _image(new: Any, args: Any, kind: Any, parts: list[Any]) -> Any:
    made = new(*args)
    made.__setstate__(kind(bytes(x) if isinstance(x, bytearray | memoryview) else x for x in parts))
    return made


def load(blob: Any, owner: str) -> Any:
    """The item of a blob. Its arrays are views of the blob.

    Raises:
        Unreadable: it is damaged, or another user's, or its objects cannot be made again.
        InvalidError: this script may not unpickle it.
    """
    key = _key(owner, os.getpid())
    memory = memoryview(blob)
    if len(memory) < _HEAD.size:
        raise _torn(f"it has {len(memory)} bytes")
    magic, count, code, size = _HEAD.unpack_from(memory)
    begin = _HEAD.size + _PLACE.size * count
    if magic != _MAGIC or begin + size > len(memory):
        raise _torn("it has no such header")
    if not hmac.compare_digest(_code(key, memory[_HEAD.size : begin + size]), code):
        raise _torn("its code is not that of its bytes")
    places = _PLACE.iter_unpack(memory[_HEAD.size : begin])
    arrays = [memory[at : at + n] for at, n in places if at + n <= len(memory)]
    if len(arrays) != count:
        raise _torn(f"its arrays end behind its {len(memory)} bytes")
    try:
        return pickle.loads(memory[begin : begin + size], buffers=arrays)
    except Exception as e:  # whatever its objects raise
        said = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
        raise Unreadable(f"its pickle cannot be read here: {said:.500}") from e


def _torn(why: str) -> Unreadable:
    return Unreadable(f"its pickle is damaged, or not of this user's workers: {why}")
