"""Warnings that point at the line of the user's script, however deep in this package they are found."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def warn(message: str, category: type[Warning]) -> None:
    """Warns with the place of the nearest caller outside this package."""
    level = 2  # the caller of this function
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
