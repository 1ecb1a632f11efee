"""What record_files.py and test_e2e_records.py compare of a value, and how much the writers of such files write."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np


def sized(few: Any, many: Any) -> Any:
    """How much a script writes: ``many`` of its draws, or ``few`` for the small files of golden/make.py."""
    return few if os.environ.get("LARDER_GOLDEN") else many


def told(value: Any) -> str:
    """Of numbers dtype, shape and a digest, of text and bytes a digest."""
    if isinstance(value, str):
        return "text " + hashlib.sha256(value.encode()).hexdigest()
    if isinstance(value, bytes):
        return "bytes " + hashlib.sha256(value).hexdigest()
    a = np.ascontiguousarray(value)
    return f"{a.dtype} {list(np.shape(value))} " + hashlib.sha256(a.tobytes()).hexdigest()
