"""Datasets on a web server with TLS, nginx: the same samples as from the folder, by ranges, checked, behind a proxy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from nginx import HOST, Server, Tunnel
from real import Daemon, draw
from s3 import images, pack

import larder

LINES = 300
TARS = "sets/part-{000..003}.tar"
PROXY = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy")
OWN = ("SSL_CERT_FILE", "AWS_CA_BUNDLE", *PROXY)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Server]:
    pytest.importorskip("PIL.Image", reason="Pillow draws the images")
    root = tmp_path / "www"
    pack(draw(tmp_path / "images", 3, 12), root / "sets", 4)
    (root / "lines.jsonl").write_text("".join(json.dumps({"id": i, "word": "w" * i}) + "\n" for i in range(LINES)))
    server = Server(tmp_path / "nginx", root)
    yield server
    server.stop()


class Place:
    """Daemons with an environment each."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch, self.live = folder, monkeypatch, list[Daemon]()
        monkeypatch.setenv("HOME", str(folder))

    def daemon(self, name: str = "d", disk: bool = False, **environment: str) -> Daemon:
        for k in OWN:
            self.monkeypatch.delenv(k, raising=False)
        for k, v in environment.items():
            self.monkeypatch.setenv(k, v)
        tiers: dict[str, object] = {"total": "0"}
        if disk:
            tiers["disk"] = {"dir": str(self.folder / "tier"), "size": "64MiB"}
        stores = {"https": {"retry_for": "0", "hedge": "0"}}
        d = Daemon(self.folder / name, config=json.dumps({"tiers": tiers, "stores": stores}))
        self.live.append(d)
        self.monkeypatch.setenv("LARDER_SOCKET", d.socket)
        return d

    def stop(self) -> None:
        for d in self.live:
            d.stop()
        self.live.clear()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    p = Place(tmp_path, monkeypatch)
    yield p
    p.stop()


def words(uri: str) -> list[tuple[int, str]]:
    """The records of an epoch, in the order of the dataset."""
    with larder.Loader(uri, batch_size=50, shuffle=False, epochs=1) as loader:
        return [(int(i), w) for batch in loader for i, w in zip(batch["id"], batch["word"], strict=True)]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
def test_files_of_a_web_server_are_those_of_the_folder(web, place):
    """Images and records; each sample is one range, and with a disk tier one for all epochs and after a restart."""
    place.daemon(SSL_CERT_FILE=str(web.authority))
    want = images(f"wds:{web.root}/sets")
    assert len(want) == 36
    uri, lines = f"wds:https://{web.host}/{TARS}", f"jsonl:https://{web.host}/lines.jsonl"
    place.live[0].cli("dataset", "add", uri)
    indexed = len(web.gets())
    assert images(uri) == want
    samples = web.gets()[indexed:]
    assert len(samples) == 36 and all(x[1] == "206" and x[2].startswith("bytes=") for x in samples)
    stored = sum(p.stat().st_size for p in (web.root.parent / "images").rglob("*.*"))
    assert sum(int(x[4]) for x in samples) == stored
    place.stop()
    place.daemon(disk=True, SSL_CERT_FILE=str(web.authority))
    assert images(uri) == want
    assert words(lines) == [(i, "w" * i) for i in range(LINES)]
    for start in range(2):
        before = len(web.gets())
        assert images(uri) == want and words(lines) == [(i, "w" * i) for i in range(LINES)]
        assert len(web.gets()) == before, web.log()[before:]
        if start == 0:
            place.stop()
            place.daemon(disk=True, SSL_CERT_FILE=str(web.authority))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
def test_a_server_of_an_unknown_authority_is_refused(web, place):
    """AWS_CA_BUNDLE names one beside those of the system."""
    uri = f"wds:https://{web.host}/{TARS}"
    place.daemon("none")
    with pytest.raises(larder.Error, match="AWS_CA_BUNDLE") as e:
        images(uri)
    assert "certificate" in str(e.value) and web.gets() == []
    place.daemon("bundle", AWS_CA_BUNDLE=str(web.authority))
    assert len(images(uri)) == 36


@pytest.mark.nightly
def test_what_is_missing_or_changed_is_named(web, place):
    """The shard that is not there, and the file that is another one since it was indexed: an error, never a mix."""
    d = place.daemon(SSL_CERT_FILE=str(web.authority))
    for uri, shard in ((f"wds:https://{web.host}/sets/part-{{000..005}}.tar", "part-004.tar"), ("", "lines.csv")):
        with pytest.raises(larder.Error, match=shard) as missing:
            images(uri or f"csv:https://{web.host}/lines.csv")
        assert "404" in str(missing.value)
    with pytest.raises(larder.Error, match="no list of its"):
        images(f"wds:https://{web.host}/sets")
    d.cli("dataset", "add", f"jsonl:https://{web.host}/lines.jsonl")
    file = web.root / "lines.jsonl"
    status = file.stat()
    file.write_bytes(file.read_bytes().replace(b"ww", b"vv"))  # of equal length: nginx's ETag has the time
    os.utime(file, (status.st_atime, status.st_mtime + 5))
    with pytest.raises(larder.Error, match=r"lines\.jsonl.*changed|changed.*lines\.jsonl"):
        words(f"jsonl:https://{web.host}/lines.jsonl")
    d.cli("dataset", "refresh", f"jsonl:https://{web.host}/lines.jsonl")
    assert "v" in words(f"jsonl:https://{web.host}/lines.jsonl")[2][1]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
def test_requests_go_through_the_proxy(web, place):
    """HTTPS_PROXY: the proxy finds the host, sees only its name, and the certificate is the server's."""
    tunnel, unused = Tunnel(), Tunnel()
    uri = f"wds:https://{HOST}:{web.port}/{TARS}"
    place.daemon("direct", SSL_CERT_FILE=str(web.authority))
    with pytest.raises(larder.Error, match=HOST):
        images(uri)
    place.daemon("proxied", SSL_CERT_FILE=str(web.authority), HTTPS_PROXY=tunnel.url)
    assert len(images(uri)) == 36
    assert tunnel.asked and set(tunnel.asked) == {f"CONNECT {HOST}:{web.port}"}
    place.daemon("left out", SSL_CERT_FILE=str(web.authority), HTTPS_PROXY=unused.url, NO_PROXY=HOST)
    with pytest.raises(larder.Error, match=HOST):
        images(uri)
    assert unused.asked == []
    tunnel.stop()
    unused.stop()
