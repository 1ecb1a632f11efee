"""Finding and starting the daemon: the fake one stands in for the binary."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HERE, eventually
from real import PATIENCE
from stepped_clock import START

import larder
from larder import _daemon

ONE = "import larder, sys; l = larder.Loader('fake:20', batch_size=5, timeout=600); print(sum(len(y) for _, y in l))"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An XDG_RUNTIME_DIR of its own and a `larder` binary that is the fake; daemons that were started are stopped at
    the end.
    """
    binary = tmp_path / "larder"
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE}/fake_daemon.py "$@"\n')
    binary.chmod(0o755)
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("LARDER_BIN", str(binary))
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent))
    yield runtime / "larder" / "larder.sock"
    for pid in starts(runtime / "larder" / "larder.sock"):
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
    for p in _daemon._started:
        p.wait(PATIENCE)
    _daemon._started.clear()


def starts(path: Path) -> list[int]:
    log = Path(f"{path}.starts")
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


def test_starts_a_daemon_and_finds_it_again(machine):
    with larder.Loader("fake:20", batch_size=5) as loader:
        assert sum(len(y) for _, y in loader) == 20
    with larder.Loader("fake:20", batch_size=5) as loader:
        assert len(loader) == 4
    assert len(starts(machine)) == 1
    assert stat.S_IMODE(machine.parent.stat().st_mode) == 0o700
    command = Path(f"{machine}.starts").read_text()
    assert f"serve --socket {machine} --idle-exit 10m" in command


def test_the_daemon_outlives_its_starter_and_is_detached(machine):
    out = subprocess.run([sys.executable, "-c", ONE], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert out.stdout == "20\n"
    (pid,) = starts(machine)
    assert os.getsid(pid) == pid != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert _daemon._listening(str(machine))
    out = subprocess.run([sys.executable, "-c", ONE], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert out.stdout == "20\n" and starts(machine) == [pid]


def test_many_processes_start_one_daemon(machine, monkeypatch, tmp_path):
    os.mkfifo(gate := tmp_path / "gate")
    monkeypatch.setenv("FAKE_HOLD", str(gate))
    code = f"print('here', flush=True); {ONE}"
    many = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [p.stdout.readline() for p in many] == ["here\n"] * 4
    open(gate, "w").close()  # a daemon was started, which is ready from here on
    assert [p.communicate(timeout=PATIENCE)[0] for p in many] == ["20\n"] * 4
    assert len(starts(machine)) == 1


def test_dead_daemon_is_replaced(machine):
    loader = larder.Loader("fake:20", batch_size=5)
    (pid,) = starts(machine)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not _daemon._listening(str(machine)))
    assert sum(len(y) for _, y in loader) == 20
    assert len(starts(machine)) == 2
    loader.close()


def test_daemon_that_fails_to_start_says_why(machine, monkeypatch):
    monkeypatch.setenv("FAKE_FAIL", "1")
    with pytest.raises(
        larder.UnavailableError, match="exit code 3: larder: cannot do it / because the test says so"
    ) as e:
        larder.Loader("fake:20", batch_size=5)
    assert str(machine.with_suffix(".log")) in str(e.value)


def test_daemon_that_never_gets_ready(machine, monkeypatch, tmp_path, clock):
    os.mkfifo(gate := tmp_path / "gate")
    monkeypatch.setenv("FAKE_HOLD", str(gate))
    with clock.passing(60.0), pytest.raises(larder.DeadlineError, match="to become ready"):
        larder.Loader("fake:20", batch_size=5, timeout=600.0)
    assert clock.now >= START / 1e9 + 600
    assert _daemon._started[-1].wait(PATIENCE) != 0  # it does not linger


def test_binary_that_cannot_run(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("LARDER_BIN", str(tmp_path / "nothing"))
    with pytest.raises(larder.UnavailableError, match="which cannot be run"):
        larder.Loader("fake:20", batch_size=5)
    broken = tmp_path / "broken"
    broken.write_text("not a program")
    broken.chmod(0o755)
    monkeypatch.setenv("LARDER_BIN", str(broken))
    with pytest.raises(larder.UnavailableError, match="cannot start"):
        larder.Loader("fake:20", batch_size=5)
    monkeypatch.delenv("LARDER_BIN")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(larder.UnavailableError, match="no `larder` binary to start one") as e:
        larder.Loader("fake:20", batch_size=5)
    assert "LARDER_BIN" in e.value.hint


def test_binary_lookup_order(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _daemon.find_binary() == str(tmp_path / "larder") == os.environ["LARDER_BIN"]
    monkeypatch.delenv("LARDER_BIN")
    assert _daemon.find_binary() == str(tmp_path / "larder")
    monkeypatch.setattr(_daemon, "__file__", str(tmp_path / "package" / "_daemon.py"))
    packaged = tmp_path / "package" / "bin" / "larder"
    packaged.parent.mkdir(parents=True)
    packaged.write_text("")
    packaged.chmod(0o755)
    assert _daemon.find_binary() == str(packaged)


@pytest.mark.parametrize("how", ["endpoint", "environment"])
def test_a_named_socket_is_never_started(machine, monkeypatch, tmp_path, clock, how):
    path = str(tmp_path / "named.sock")
    kw = {"endpoint": f"unix://{path}"} if how == "endpoint" else {}
    if how == "environment":
        monkeypatch.setenv("LARDER_SOCKET", path)
    origin = "endpoint=" if how == "endpoint" else "LARDER_SOCKET"
    words = rf"no larder daemon answers at {path} \(named by {origin}\)"
    with clock.passing(60.0), pytest.raises(larder.UnavailableError, match=words) as e:
        larder.Loader("fake:20", batch_size=5, timeout=600, **kw)
    assert e.value.hint == f"start one with: larder serve --socket {path}"
    assert starts(machine) == [] and clock.ns == START, "it waits for nothing"
    Path(path).touch()  # a file that is no socket
    with pytest.raises(larder.UnavailableError):
        larder.Loader("fake:20", batch_size=5, **kw)


def test_something_else_on_the_socket(machine, monkeypatch, clock):
    import socket
    import threading

    machine.parent.mkdir(mode=0o700)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(machine))
    server.listen()

    def slam():
        while True:
            try:
                server.accept()[0].close()
            except OSError:
                return

    t = threading.Thread(target=slam, daemon=True)
    t.start()
    with clock.passing(60.0), pytest.raises(larder.DeadlineError, match=f"timed out waiting for .*{machine}"):
        larder.Loader("fake:20", batch_size=5, timeout=600.0)
    server.shutdown(socket.SHUT_RDWR)
    t.join(PATIENCE)
    server.close()


def test_folder_of_another_user_is_refused(machine, monkeypatch, tmp_path):
    (tmp_path / "run" / "larder").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(larder.UnavailableError, match="not a folder of this user"):
        larder.Loader("fake:20", batch_size=5)


def test_default_socket(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert _daemon.default_socket() == f"{tmp_path}/larder/larder.sock"
    for folder in ("", "relative", str(tmp_path / "gone")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        assert _daemon.default_socket() == f"/tmp/larder-{os.getuid()}/larder.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert _daemon.default_socket() == f"/tmp/larder-{os.getuid()}/larder.sock"


def _mark(path, uid):
    path.write_text('{"id": "1", "by": "eve", "at": "2026-01-01T00:00:00Z"}')
    os.chown(path, uid, -1)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")
def test_the_mark_of_another_user_stops_no_client(tmp_path):
    socket, mark = str(tmp_path / "l.sock"), tmp_path / "l.sock.stopped"
    _mark(mark, 0)
    assert _daemon.last_stop(socket).by == "eve"
    _mark(mark, 61001)
    assert _daemon.last_stop(socket) is None
    os.chown(tmp_path, 61001, -1)
    assert _daemon.last_stop(socket).by == "eve", "who owns the folder could have stopped the daemon"
    os.chown(tmp_path, 0, -1)
    mark.rename(tmp_path / "real")
    _mark(tmp_path / "real", 0)
    mark.symlink_to(tmp_path / "real")
    assert _daemon.last_stop(socket) is None
    mark.unlink()
    os.mkfifo(mark)
    assert _daemon.last_stop(socket) is None
