"""Several users of one daemon (``larder serve --socket-group``), each in a process of his own uid. Needs root, who can
be all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real import PATIENCE, Daemon, draw, pillow

GROUP = 62000

TRAIN = """
import json, sys
import larder
uri, job, epochs, stop = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
loader = larder.Loader(uri, batch_size=8, shuffle=True, job=job, epochs=epochs, timeout=100, return_index=True)
for _ in range(epochs):
    ids = []
    for n, (_, _, index) in enumerate(loader):
        ids += index.tolist()
        if n == stop:
            print(json.dumps("stopped"), flush=True)
            sys.stdin.readline()
    print(json.dumps(ids), flush=True)
"""


class User:
    """A Python process of another user."""

    def __init__(self, uid: int, group: int, socket: str, code: str, *arguments: object) -> None:
        env = {
            "PATH": os.environ["PATH"],
            "LARDER_SOCKET": socket,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env=env,
            user=uid,
            group=uid,
            extra_groups=[group],
        )

    def line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.end()
        return json.loads(line)

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Waits for its end and returns what it wrote of errors."""
        return self.process.communicate(timeout=PATIENCE)[1]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may pass."""
    if os.getuid() != 0:
        pytest.skip("only root can be other users")
    pillow()
    folder = Path(tempfile.mkdtemp(prefix="lg-"))
    try:
        probe = User(61001, GROUP, "", "import larder")
        if error := probe.end():
            pytest.skip(f"another user cannot import larder from here: {error.strip().splitlines()[-1]}")
        draw(folder / "data", 3, 20)
        for where, _, names in os.walk(folder):
            os.chmod(where, 0o755)
            for n in names:
                os.chmod(os.path.join(where, n), 0o644)
        yield folder
    finally:
        shutil.rmtree(folder)


def test_two_users_share_and_outlive_their_daemon(place: Path) -> None:
    """Each gets every sample once an epoch, also over a SIGKILL of the daemon; what is loaded for one is there for the
    other.
    """
    uri = f"imagefolder:{place / 'data'}"
    daemon = Daemon(place / "d", "--socket-group", str(GROUP), "--set", "tiers.decoded=64MiB")
    os.chmod(place / "d", 0o711)
    try:
        users = [User(uid, GROUP, daemon.socket, TRAIN, uri, f"job-{uid}", 3, 2) for uid in (61001, 61002)]
        assert [u.line() for u in users] == ["stopped", "stopped"]
        stats = json.loads(daemon.cli("stats", "-o", "json").stdout)
        assert sorted(j["owner"] for j in stats["jobs"]) == [61001, 61002]
        assert int(stats["totals"]["decodes"]) <= 60  # all of both jobs' batches come from one decode of each sample

        stranger = User(61003, 63000, daemon.socket, TRAIN, uri, "job-61003", 1, -1)
        error = stranger.end()
        assert "DeniedError: no right to speak to the daemon" in error and "members of its socket_group" in error
        command = [daemon.binary, "--socket", daemon.socket, "jobs", "ls"]
        refused = subprocess.run(
            command, user=61003, group=63000, extra_groups=[], cwd="/", env={},
            capture_output=True, text=True, check=False,
        )
        assert refused.returncode == 11 and "members of its socket_group" in refused.stderr, refused.stderr
        thief = User(61002, GROUP, daemon.socket, TRAIN, uri, "job-61001", 1, -1)
        assert "DeniedError: join or replace job job-61001: it is a job of uid 61001, and uid 61002 asks" in thief.end()

        daemon.process.send_signal(signal.SIGKILL)
        daemon.kill()
        daemon = Daemon(place / "d", "--socket-group", str(GROUP), "--set", "tiers.decoded=64MiB")
        for _ in range(2):
            for u in users:
                u.go()
            first = [u.line() for u in users]
            assert [sorted(ids) for ids in first] == [list(range(60))] * 2
            assert [u.line() for u in users] == ["stopped", "stopped"]
        totals = json.loads(daemon.cli("stats", "-o", "json").stdout)["totals"]
        # of this daemon: 60 samples, two jobs, three epochs
        assert int(totals["decodes"]) == int(totals["source_reads"]) == 60
        for u in users:
            u.go()
        assert [sorted(u.line()) for u in users] == [list(range(60))] * 2
        assert [u.end() for u in users] == ["", ""]
        table = daemon.cli("jobs", "ls", "--ended").stdout
        assert "uid 61001" in table and "uid 61002" in table
    finally:
        daemon.stop()


def test_what_a_user_may_not_read(place: Path) -> None:
    """The daemon reads as root here; its users get no more by it than they have."""
    closed = draw(place / "closed", 2, 3)
    os.chmod(closed, 0o700)
    daemon = Daemon(place / "d", "--socket-group", str(GROUP), "--set", "tiers.decoded=64MiB")
    os.chmod(place / "d", 0o711)
    try:
        user = User(61001, GROUP, daemon.socket, TRAIN, f"imagefolder:{closed}", "x", 1, -1)
        error = user.end()
        assert f"DeniedError: uid 61001 may not read {closed}: its owner, mode and access list do not allow it" in error
        assert json.loads(daemon.cli("stats", "-o", "json").stdout)["totals"]["source_reads"] == "0"
    finally:
        daemon.stop()
