"""versitygw, a real S3 server, over a folder; and a proxy before it, or another server, that spoils answers."""

from __future__ import annotations

import http.client
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import pytest
from pace import eventually, pace
from real import PATIENCE, ROOT, Daemon, digest, free_port

import larder

ACCESS, SECRET = "tester", "a-secret-of-tests"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}


def find_server() -> str:
    """LARDER_VERSITYGW, bin/tools/versitygw or the PATH; absent is a skip, or a failure with LARDER_REQUIRE_S3=1."""
    built = ROOT / "bin" / "tools" / "versitygw"
    path = os.environ.get("LARDER_VERSITYGW") or (str(built) if built.exists() else shutil.which("versitygw"))
    if path:
        return path
    message = "there is no versitygw: make setup builds it into bin/tools"
    if os.environ.get("LARDER_REQUIRE_S3") == "1":
        pytest.fail(message)
    pytest.skip(message)


def wait_for(process: subprocess.Popen[bytes], port: int, said: Callable[[], str] = str) -> None:
    """Waits until a server listens on a port of the loopback address; said is what it says if it does not."""

    def listens() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        except OSError:
            assert process.poll() is None, said()
            return False

    eventually(listens)


EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


class Server:
    """Serves the folders of `folder` as buckets; a file that is there is an object without an ETag."""

    def __init__(self, folder: Path) -> None:
        self.binary, self.folder, self.port = find_server(), folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Starts it, again on the same port, and waits until it answers."""
        meta = self.folder.with_name("meta-of-" + self.folder.name)  # one that begins alike is refused
        for d in (self.folder, meta):
            d.mkdir(parents=True, exist_ok=True)
        command = [self.binary, "--port", f"127.0.0.1:{self.port}", "--access", ACCESS, "--secret", SECRET, "--quiet"]
        self.process = subprocess.Popen(
            [*command, "--keep-alive", "posix", "--sidecar", str(meta), str(self.folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(self.process, self.port)

    def stop(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.process.wait()


def _passing_on(proxy: Proxy, server: Any, spoil: Callable[[int], Any], delay: float) -> type[BaseHTTPRequestHandler]:
    """What answers for a proxy."""
    ranges: set[tuple[str, str | None]] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            with proxy.turn():
                how, answer = self.ask()
            if answer is not None:
                self.pass_on(how, *answer)
            elif how is None:
                self.close_connection = True
            else:
                code, body = (how, b"") if isinstance(how, int) else (403, EXPIRED)
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def ask(self) -> tuple[Any, tuple[int, list[tuple[str, str]], bytes] | None]:
            """How the answer is spoilt, and what the server said: None if it was not asked, or gave no answer."""
            pace(delay)
            how = None
            if self.command == "GET" and "list-type" not in self.path and "comp=list" not in self.path:
                proxy.gets += 1
                how = spoil(proxy.gets)
            if how == "expired":
                how = None if (self.path, self.headers["Range"]) in ranges else how
                ranges.add((self.path, self.headers["Range"]))
            if how:
                proxy.spoilt += 1
            if how and how not in ("cut", "stall", "late", "short"):
                return how, None
            if how == "late":
                pace(1)
                how = None
            there = http.client.HTTPConnection("127.0.0.1", server.port)
            try:
                there.request(self.command, self.path, headers=dict(self.headers))
                answer = there.getresponse()
                return how, (answer.status, answer.getheaders(), answer.read())
            except OSError:
                return None, None
            finally:
                there.close()

        def pass_on(self, how: Any, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            if how == "short":
                body = body[: len(body) // 2]
            for name, value in headers:
                if how == "short" and name.lower() == "content-length":
                    value = str(len(body))
                if name.lower() not in ("connection", "date", "server", "transfer-encoding"):
                    self.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _ in headers):  # it came in chunks
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if how in ("cut", "stall"):
                body, self.close_connection = body[: len(body) // 2], True
            try:
                if self.command == "GET":
                    self.wfile.write(body)
            except OSError:  # the client has given it up
                return
            if how == "stall":
                pace(0.3)

    return Handler


class Proxy:
    """Passes requests on; `spoil` may say for the n-th GET of an object what to do instead: a status such as 503,
    "cut", "stall", "late" (by a second), "short" (a whole answer of another length), "expired" (credentials,
    once for each range), "expired for good". Every request, lists too, waits for `delay` seconds; `most` is how many
    of them were under way at once."""

    def __init__(self, server: Any, spoil: Callable[[int], Any], delay: float = 0) -> None:
        self.gets = self.spoilt = self.under_way = self.most = 0
        self.changed, self.holds = Condition(), False
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _passing_on(self, server, spoil, delay))
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that went away
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One request at the server."""
        with self.changed:
            self.changed.wait_for(lambda: not self.holds)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            yield
        finally:
            with self.changed:
                self.under_way -= 1
                self.changed.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """The server answers nothing meanwhile: later requests wait, and those under way have ended."""
        with self.changed:
            self.holds = True
            assert self.changed.wait_for(lambda: self.under_way == 0, PATIENCE)
        try:
            yield
        finally:
            with self.changed:
                self.holds = False
                self.changed.notify_all()

    def close(self) -> None:
        """Ends it."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class World:
    """Daemons that read from an endpoint, and loaders of them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.daemons, self.monkeypatch = folder, 0, monkeypatch
        for k in [k for k in os.environ if k.startswith("AWS_")]:
            monkeypatch.delenv(k)
        for k, v in CREDENTIALS.items():
            monkeypatch.setenv(k, v)
        monkeypatch.setenv("HOME", str(folder))
        self.live: list[Daemon] = []

    def daemon(self, endpoint: str, config: dict[str, Any] | None = None, **settings: Any) -> Daemon:
        """Starts one. `config` takes the place of a configuration without tiers."""
        self.daemons += 1
        config = {"stores": {"s3": {"endpoint": endpoint, **settings}}, **(config or {"tiers": {"total": "0"}})}
        d = Daemon(self.folder / f"d{self.daemons}", config=json.dumps(config))
        self.live.append(d)
        self.monkeypatch.setenv("LARDER_SOCKET", d.socket)
        return d

    def clients(self) -> dict[str, str]:
        """The environment of processes that are clients."""
        return {**os.environ, "PYTHONPATH": str(ROOT / "python")}


def images(uri: str, **arguments: Any) -> list[tuple[int, str]]:
    """What an epoch gives, in the order of the dataset: label and digest."""
    with larder.Loader(uri, batch_size=7, shuffle=False, epochs=1, **arguments) as loader:
        return [(int(x), digest(i)) for batch, labels in loader for i, x in zip(batch, labels, strict=True)]


def pack(folder: Path, out: Path, shards: int, name: str = "part-{:03}.tar") -> Path:
    """Writes tars of WebDataset with the images of a folder in turn: KEY.jpg, KEY.cls, KEY.json."""
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(p for p in folder.rglob("*.*") if p.is_file())
    classes = sorted({p.parent.name for p in files})
    for k in range(shards):
        with tarfile.open(out / name.format(k), "w", format=tarfile.USTAR_FORMAT) as tar:
            for n, p in list(enumerate(files))[k::shards]:
                label = str(classes.index(p.parent.name)).encode()
                for suffix, body in ((p.suffix, p.read_bytes()), (".json", b'{"n": 1}'), (".cls", label)):
                    member = tarfile.TarInfo(f"{p.parent.name}/{n:04}{suffix}")
                    member.size = len(body)
                    tar.addfile(member, io.BytesIO(body))
    return out
