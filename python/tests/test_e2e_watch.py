"""End to end: the daemon watches the processes of clients that lost their connection, and lets go of them when they are
back.
"""

from __future__ import annotations

import os
import pathlib

from conftest import PATIENCE, eventually
from test_e2e_restart import cut, folder  # noqa: F401  (fixtures)


def watched(d) -> int:
    """Processes that the daemon watches."""
    fds = pathlib.Path(f"/proc/{d.daemon.process.pid}/fd")
    return sum(os.readlink(f) == "anon_inode:[pidfd]" for f in fds.iterdir() if f.is_symlink())


def test_a_connection_that_is_cut_often_costs_no_descriptors(folder, lives, loads):
    d = lives()
    loader = loads(d, f"imagefolder:{folder}", job="often", batch_size=2)
    it = iter(loader)
    next(it)
    before = watched(d)
    for _ in range(40):
        cut(loader)
        next(it)
    eventually(lambda: watched(d) <= before, PATIENCE)
