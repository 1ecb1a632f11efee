"""What a forked child has of the batches that its parent holds: a copy, made at the fork.

The slots of a ring are memory that the daemon shares with this process, and a fork shares it with the child too. The
parent drops a batch, the daemon fills its slot again, and the arrays of the child would change. So the forking process
copies the batches that are held, and the child puts the copies where its arrays look. Neither waits for the other.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy.typing as npt

ctypes: Any = None
_libc: Any = None
try:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    _libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
except (ImportError, OSError, AttributeError):  # a Python without libffi
    _libc = None

_MAY_MOVE_FIXED = 1 | 2  # of mremap
_pinned: list[npt.NDArray[Any]] = []  # without libffi: batches of children, whose slots stay taken


class Copy(NamedTuple):
    """The pages of a batch, copied to memory that no daemon shares."""

    at: int  # where the batch is
    copied: int  # where its copy is
    size: int


def copied(root: npt.NDArray[Any]) -> Copy | None:
    """A copy of the pages under a root array; None where this Python cannot make one, and the batch is kept instead.

    Raises:
        MemoryError: there is no room for it.
    """
    if _libc is None:
        _pinned.append(root)
        return None
    begin = root.__array_interface__["data"][0]
    at = begin - begin % mmap.PAGESIZE
    size = -(-(begin + root.nbytes - at) // mmap.PAGESIZE) * mmap.PAGESIZE
    to = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if to == ctypes.c_void_p(-1).value:
        raise MemoryError(f"no {size} bytes for the batch that a forked child is to keep")
    ctypes.memmove(to, at, size)
    return Copy(at, to, size)


def put(copy: Copy) -> None:
    """In the child: the copy takes the place of the shared pages."""
    if _libc.mremap(copy.copied, copy.size, copy.size, _MAY_MOVE_FIXED, copy.at) != copy.at:
        raise MemoryError(f"a batch of {copy.size} bytes cannot be kept from changing in this forked child")


def drop(copy: Copy) -> None:
    """In the parent: gives the memory of the copy back."""
    _libc.munmap(copy.copied, copy.size)
