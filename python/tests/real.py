"""Helpers of the end-to-end tests: the binary, a private daemon, datasets, and clients in processes of their own."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATIENCE = 120.0  # seconds: for things that take well under one on a quiet machine
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def formats() -> Path:
    """The Python whose packages write and read packed files; absent is a skip, or a failure with
    LARDER_REQUIRE_FORMATS=1."""
    python = ROOT / ".venv-formats" / "bin" / "python"
    if python.exists():
        return python
    if os.environ.get("LARDER_REQUIRE_FORMATS"):
        pytest.fail(f"{python} is missing, and LARDER_REQUIRE_FORMATS is set")
    pytest.skip(f"{python} is missing (make setup-nightly makes it)")


NIGHTLY = os.environ.get("LARDER_LANE") == "nightly"


def night(*values: Any) -> list[Any]:
    """Values of a parametrized test that run in the nightly lane; one with several arguments is a tuple."""
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=pytest.mark.nightly) for v in values]


_ports: list[socket.socket] = []


def free_port() -> int:
    """A TCP port of the loopback address that stays free for a server, also one that is started again: this process
    is bound to it to its end, so that the system gives it to nobody else, and does not listen. The server must set
    SO_REUSEADDR, as most do.
    """
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    _ports.append(s)
    return int(s.getsockname()[1])


def digest(image: Any) -> str:
    return hashlib.blake2b(np.ascontiguousarray(image), digest_size=8).hexdigest()


def find_binary() -> str:
    """LARDER_BIN or ../bin/larder; absent is a skip, or a failure with LARDER_REQUIRE_BIN=1."""
    path = os.environ.get("LARDER_BIN") or str(ROOT / "bin" / "larder")
    if os.access(path, os.X_OK):
        return os.path.abspath(path)
    message = f"there is no larder binary at {path}: run `make build`, or set LARDER_BIN"
    if os.environ.get("LARDER_REQUIRE_BIN") == "1":
        pytest.fail(message)
    pytest.skip(message)


def find_stepped() -> str:
    """LARDER_TEST_BIN or ../bin/larder-failpoints, which follows the clock of a test; absent is a skip, or a failure
    with LARDER_REQUIRE_BIN=1."""
    path = os.environ.get("LARDER_TEST_BIN") or str(ROOT / "bin" / "larder-failpoints")
    if os.access(path, os.X_OK):
        return os.path.abspath(path)
    message = f"there is no {path}: go build -tags turbo,failpoints -o bin/larder-failpoints ./cmd/larder"
    if os.environ.get("LARDER_REQUIRE_BIN") == "1":
        pytest.fail(message)
    pytest.skip(message)


def pillow() -> Any:
    """PIL.Image, which draws and checks the images; missing is a skip, or a failure where the binary is required."""
    if os.environ.get("LARDER_REQUIRE_BIN") == "1":
        return importlib.import_module("PIL.Image")
    return pytest.importorskip("PIL.Image", reason="Pillow draws and checks the images of these tests")


def photographs() -> Path | None:
    """The folder of real photographs, when it is there."""
    folder = Path(os.environ.get("LARDER_TESTDATA") or ROOT.parent / "shared" / "data") / "imagenet-700"
    return folder if folder.is_dir() else None


def listing(folder: Path) -> list[tuple[str, int]]:
    """Path and label by sample id, in torchvision's order, found without larder."""
    out = []
    for label, name in enumerate(sorted(e.name for e in os.scandir(folder) if e.is_dir())):
        for where, _, names in sorted(os.walk(folder / name, followlinks=True)):
            out += [(os.path.join(where, n), label) for n in sorted(names) if n.lower().endswith(SUFFIXES)]
    return out


def draw(folder: Path, classes: int, each: int, seed: int = 1, size: tuple[int, int] = (40, 100)) -> Path:
    """Draws images: gradients and noise as JPEG (baseline, progressive, grey, several subsamplings) and a few PNG."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    pick = random.Random(seed)
    for c in range(classes):
        d = folder / f"class{c:03}"
        d.mkdir(parents=True)
        for n in range(each):
            h, w = pick.randint(*size), pick.randint(*size)
            y, x = np.mgrid[0:h, 0:w]
            base = np.stack(
                [(x * pick.uniform(0, 3) + y * pick.uniform(0, 3) + 40 * k) % 256 for k in range(3)], axis=-1
            )
            im = Image.fromarray(np.clip(base + rng.normal(0, 12, base.shape), 0, 255).astype(np.uint8))
            if n % 5 == 3:
                im = im.convert("L")
            if n % 7 == 6:
                im.save(d / f"{n:03}.png")
            else:
                mode = {} if im.mode == "L" else {"subsampling": pick.choice([0, 1, 2])}
                im.save(d / f"{n:03}.jpg", quality=pick.randint(70, 95), progressive=n % 3 == 2, **mode)
    return folder


BUG = re.compile(r"panic|invariant violated|fatal error:")  # internal/testenv/bug.go has the same for the tests in Go


def bugs(log: str) -> list[str]:
    """The lines of a daemon's log that tell of a bug of larder: a broken invariant, as a ledger that is not exactly
    once, or a panic."""
    return [line for line in log.splitlines() if BUG.search(line)]


class Daemon:
    """`larder serve` in a folder of its own; `stop` asserts that it ends in order and leaves nothing.

    With `--clock` and the address of a stepped clock it decides by that. `failpoint` is a call to its state directory
    that fails (LARDER_FAILPOINT).
    """

    def __init__(self, folder: Path, *arguments: str, config: str = "", failpoint: str = "") -> None:
        self.binary = find_stepped() if "--clock" in arguments or failpoint else find_binary()
        folder.mkdir(parents=True, exist_ok=True)
        self.socket = str(folder / "d.sock")
        self.log = folder / "daemon.log"
        (folder / "larder.yaml").write_text(config or "{}\n")
        env = {k: v for k, v in os.environ.items() if not k.startswith("LARDER_")}
        env |= {f"XDG_{x.upper()}_HOME": str(folder / x) for x in ("cache", "state")}
        env |= {"XDG_RUNTIME_DIR": str(folder), "GOTRACEBACK": "all"}
        self.env = dict(env)
        if failpoint:
            env["LARDER_FAILPOINT"] = failpoint
        command = [self.binary, "serve", "--socket", self.socket, "--config", str(folder / "larder.yaml"), *arguments]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=env
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(PATIENCE)
            self.process.stdout.close()
            raise AssertionError(f"the daemon did not start: {self.log.read_text()}")
        self.ready = json.loads(line)
        assert self.ready["socket"] == self.socket and self.ready["pid"] == self.process.pid and self.ready["version"]

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs the larder command against this daemon."""
        command = [self.binary, "--socket", self.socket, *arguments]
        out = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=self.env, check=False)
        assert not check or out.returncode == 0, f"{command}: {out.stdout}{out.stderr}"
        return out

    def segments(self) -> int:
        """Shared memory segments that the daemon maps for rings."""
        with open(f"/proc/{self.process.pid}/maps") as f:
            return sum("memfd:" in line and "ring" in line for line in f)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> None:
        if self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGQUIT)  # where everything hangs is in the log
            self.process.wait(PATIENCE)
            raise AssertionError(f"the daemon did not end after SIGTERM: {self.log.read_text()[-8000:]}") from None
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()
        text = self.log.read_text()
        assert code == 0, f"exit code {code}: {text}"
        assert not os.path.exists(self.socket), "the socket was left behind"
        assert not bugs(text), text


class Client:
    """client_process.py in a process of its own; events arrive in a queue."""

    def __init__(self, folder: Path, daemon: Daemon, uri: str, *, epochs: int = 1, **orders: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"orders-{os.urandom(4).hex()}.json"
        path.write_text(json.dumps({"uri": uri, "epochs": epochs, **orders}))
        env = {**os.environ, "PYTHONPATH": str(HERE.parent), "LARDER_SOCKET": daemon.socket}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "client_process.py"), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.seen: list[dict[str, Any]] = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self.events.put(json.loads(line))
        except ValueError:
            pass  # a line cut off by SIGKILL
        self.events.put(None)

    def until(self, event: str, **fields: Any) -> dict[str, Any]:
        """Reads events up to the one that fits."""
        while True:
            e = self.events.get(timeout=PATIENCE)
            if e is None:
                _, err = self.process.communicate()
                raise AssertionError(f"the client ended before {event}: {self.seen[-1:]} {err}")
            self.seen.append(e)
            if e["event"] == event and all(e[k] == v for k, v in fields.items()):
                return e

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def finish(self) -> list[dict[str, Any]]:
        """Waits for the end and returns the epochs' records."""
        self.until("done")
        self.close()
        assert self.process.returncode == 0
        return [e for e in self.seen if e["event"] == "epoch"]

    def close(self) -> None:
        if self.process.poll() is None and not any(e["event"] in ("done", "error") for e in self.seen):
            self.process.kill()
        self.process.wait(PATIENCE)
        self.thread.join(PATIENCE)
        for f in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert f is not None
            try:
                f.close()
            except OSError:
                pass


def served(dataset, **kw):
    """A DataLoader that the daemon or workers of larder serve, whatever it asks for; its job is registered."""
    from larder.torch import DataLoader

    loader = DataLoader(dataset, fallback="error", **kw)
    assert loader.loader is not None
    return loader
