"""Samples that arrived, and cannot be unpickled: what becomes of their batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._opaque import Unreadable
from ._ring import Ring
from ._run import Run
from ._shared import Shared
from ._stats import Quarantined
from ._wire import BatchHeader
from .errors import SampleError

_HINT = "the next call of next() gives the batch without it; on_error='skip' raises nothing"


def note(shared: Shared, run: Run, ring: Ring, b: BatchHeader, e: Unreadable) -> None:
    """Notes which samples of a batch are to be left out; with on_error="raise" raises SampleError, once for a batch."""
    ids: Any = ring.array(ring.root(b), ring.fields["index"], b.rows)
    bad = tuple(Quarantined(int(ids[i]), str(int(ids[i])), "", None, x.message) for i, x in e.rows.items())
    shared.note_bad(bad)
    run.unread = (b.step, frozenset(e.rows))
    if shared.on_error == "raise":
        raise SampleError(bad, hint=_HINT) from e


def rows(run: Run, b: BatchHeader) -> list[int] | None:
    """The rows of a batch that are left; None: all."""
    step, bad = run.unread
    return [i for i in range(b.rows) if i not in bad] if bad and step == b.step else None


def left(columns: Sequence[Any], rows: list[int]) -> list[Any]:
    """The columns of those rows."""
    return [c[rows] if isinstance(c, np.ndarray) else [c[i] for i in rows] for c in columns]
