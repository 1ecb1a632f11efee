"""Numbers with their units, for people."""

from __future__ import annotations

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def size(n: int) -> str:
    """A number of bytes as the daemon writes it, rounded to three digits: 1.5GiB, 12.3MiB, 512B."""
    for name, unit in _UNITS:
        if n >= unit:
            x = n / unit
            text = f"{x:.{2 if x < 10 else 1 if x < 100 else 0}f}"
            return (text.rstrip("0").rstrip(".") if "." in text else text) + name
    return f"{n}B"
