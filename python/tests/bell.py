"""A signal at a random moment, which no clock decides: how far another process has counted does."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from types import TracebackType

# It reads orders: their number, the counts until the signal, and those until each later one; 0 counts = none, which it
# answers: no signal comes after that. A new order ends the one before.
RINGER = """
import os, select, signal, struct
parent = os.getppid()
orders = select.poll()
orders.register(0, select.POLLIN)
while order := os.read(0, 12):
    number, counts, again = struct.unpack("3I", order)
    if not counts:
        os.write(1, struct.pack("I", number))
    while counts:
        if any(orders.poll(0) for _ in range(counts)):
            break
        os.kill(parent, signal.SIGALRM)
        counts = again
"""


class Bell:
    """Sends this process SIGALRM after so many counts of a process of its own; a count is about a microsecond."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", RINGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._orders = 0

    def ring(self, counts: int, again: int = 0) -> None:
        """Has it sent once after so many counts, and then each time after ``again``."""
        self._orders += 1
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), struct.pack("3I", self._orders, counts, again))

    def silence(self) -> None:
        """No signal comes after this."""
        self.ring(0)
        number = self._orders
        assert self._process.stdout is not None
        while struct.unpack("I", os.read(self._process.stdout.fileno(), 4))[0] != number:
            pass  # the answer to one that a signal interrupted

    def __enter__(self) -> Bell:
        self.silence()  # its process is there
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()
