"""What table_files.py writes of samples, and tests compare."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from record_told import sized as sized


def value(x: Any) -> list[Any]:
    """What is compared of one value."""
    if isinstance(x, str):
        b = x.encode()
        return ["text", [len(b)], hashlib.sha256(b).hexdigest()]
    if isinstance(x, bytes):
        told = ["bytes", [len(x)], hashlib.sha256(x).hexdigest()]
        if x.startswith((b"\x89PNG", b"\xff\xd8\xff")):
            told.append(value(np.asarray(Image.open(io.BytesIO(x)).convert("RGB"))))
        return told
    a = np.ascontiguousarray(x)
    return [str(a.dtype), list(np.shape(x)), hashlib.sha256(a.tobytes()).hexdigest()]


def finish(out: Path, name: str, rows: list[dict[str, Any]], uri: str) -> None:
    """Writes what larder is to read, and what it is to give."""
    (out / f"{name}.json").write_text(json.dumps([{k: value(v) for k, v in r.items()} for r in rows]))
    (out / f"{name}.uri").write_text(uri)
