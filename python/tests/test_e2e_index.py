"""A Loader that waits for the index of its dataset says how far that is, and so does `larder status`."""

from __future__ import annotations

import http.server
import io
import json
import re
import tarfile
import threading
from pathlib import Path

from conftest import eventually
from real import PATIENCE, draw

import larder
from larder import _registration, ops

SHARDS, EACH = 8, 3


def tars(folder: Path) -> dict[str, bytes]:
    """Shards of images, by path."""
    images = sorted(draw(folder, 1, SHARDS * EACH).rglob("*.*"))
    out = {}
    for i in range(SHARDS):
        b = io.BytesIO()
        with tarfile.open(fileobj=b, mode="w") as t:
            for k, path in enumerate(images[i * EACH : (i + 1) * EACH]):
                t.add(path, f"{i}-{k}{path.suffix.lower()}")
        out[f"/{i}.tar"] = b.getvalue()
    return out


class Web:
    """A web server that answers reads of the last shard only when it is let."""

    def __init__(self, files: dict[str, bytes], last: str) -> None:
        self.asked, self.let = threading.Event(), threading.Event()
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.answer(b"")

            def do_GET(self) -> None:
                if self.path == last:
                    web.asked.set()
                    web.let.wait(PATIENCE)
                self.answer(files[self.path])

            def answer(self, body: bytes) -> None:
                size = len(files[self.path])
                r = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                self.send_response(206 if body and r else 200)
                if body and r:
                    first, end = int(r[1]), min(int(r[2]) + 1, size)
                    body = body[first:end]
                    self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
                self.send_header("Content-Length", str(len(body) if body else size))
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("ETag", f'"{self.path}"')
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_a_wait_for_an_index_says_how_far_it_is(private, tmp_path, monkeypatch, capfd):
    files = tars(tmp_path / "images")
    last = f"/{SHARDS - 1}.tar"
    web, daemon = Web(files, last), private()
    uri = f"wds:{web.url}/{{0..{SHARDS - 1}}}.tar"
    seen = []
    tell = _registration._tell_index

    def told(session: object) -> None:
        assert web.asked.wait(PATIENCE)

        def far() -> dict[str, object]:
            return json.loads(daemon.cli("status", "-o", "json").stdout)["indexing"][0]

        # The other shards are answered, and may not be scanned yet.
        eventually(lambda: far().get("files") == str(SHARDS - 1))
        seen.append(far())
        seen.append(daemon.cli("status").stdout)
        tell(session)
        web.let.set()

    monkeypatch.setattr(_registration, "_LOOK", 0.0)
    monkeypatch.setattr(_registration, "_STATUS", PATIENCE)
    monkeypatch.setattr(_registration, "_tell_index", told)
    with larder.Loader(
        uri,
        batch_size=4,
        return_index=True,
        transform=[ops.RandomResizedCrop(24)],
        endpoint=daemon.socket,
        timeout=PATIENCE,
    ) as loader:
        got = [i for *_, index in loader for i in index.tolist()]
    web.close()
    assert sorted(got) == list(range(SHARDS * EACH))
    far, shown = seen
    size, rest = sum(map(len, files.values())), len(files[last])
    assert {k: far[k] for k in ("uri", "samples", "files", "all_files", "bytes", "all_bytes")} == {
        "uri": uri, "samples": str((SHARDS - 1) * EACH), "files": str(SHARDS - 1), "all_files": str(SHARDS),
        "bytes": str(size - rest), "all_bytes": str(size),
    }  # fmt: skip
    assert re.search(rf"indexing +wds:.*: {(SHARDS - 1) * EACH} samples, {SHARDS - 1} of {SHARDS} files", shown)
    lines = [x for x in capfd.readouterr().err.splitlines() if x.startswith("larder: ")]
    assert lines == [
        f"larder: waiting for the index of {uri}: {(SHARDS - 1) * EACH} samples, {SHARDS - 1} of {SHARDS} files, "
        f"{100 * (size - rest) // size} % of {size >> 20} MiB (`larder status` shows it)"
    ]
    assert not json.loads(daemon.cli("status", "-o", "json").stdout).get("indexing")


def test_a_wait_for_an_index_prints_no_control_characters(capfd):
    class Daemon:
        def call(self, method, body, deadline):
            return {"indexing": [{"uri": "imagefolder:/tmp/\x1b]0;x\x07\n\u202eé", "samples": "3"}]}

    _registration._tell_index(Daemon())
    shown = "imagefolder:/tmp/\ufffd]0;x\ufffd\ufffd\ufffdé: 3 samples (`larder status` shows it)"
    assert capfd.readouterr().err == f"larder: waiting for the index of {shown}\n"
