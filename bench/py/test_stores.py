"""Tests of the benchmark of stores, and two small runs of it where its server and a daemon are there."""

from __future__ import annotations

import argparse
import http.server
import os
import pathlib
import subprocess
import sys
import tarfile
import threading
import urllib.request

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import bucket
import loaders
import packed
import peers
import peers_env
import stores

GATEWAY = os.environ.get("LARDER_VERSITYGW") or str(loaders.ROOT / "bin/tools/versitygw")
needs_server = pytest.mark.skipif(not os.environ.get("LARDER_BIN") or not pathlib.Path(GATEWAY).exists(),
                                  reason="LARDER_BIN and versitygw are needed")


def run(rate: float, **more: float) -> stores.Figures:
    return {"rate": rate, "seconds": 2.0, "bytes": 8 << 20, "gets": 10, "index": 100, "indexed": 3.0} | more


def lines(runs: stores.Runs, missing: dict[str, str] | None = None) -> str:
    args = argparse.Namespace(latency=30, bandwidth=8.0, images=64)
    return "\n".join(stores.lines_of(runs, stores.Sizes(1 << 20, 2 << 20), missing or {}, args))


def flat(text: str) -> str:
    return " ".join(text.split())


def test_rows_are_those_that_were_run():
    text = lines({"s3": [run(300), run(100), run(200)], "litdata": [run(50)], "wds": [run(30)], "folder": [run(20)]},
                 {"mds": "its environment is not there"})
    assert "| larder, wds:s3:// | 200 (100 to 300) | 0.50 (0.50 to 0.50) | 8.00 (8.00 to 8.00) | 10 (" in text
    assert "| LitData, s3:// | 50 | 0.50 | 8.00 | 10 |" in text
    assert "larder beside LitData: 4.0x" in text and "larder beside MosaicML" not in text
    assert "MosaicML streaming: not measured (its environment is not there)." in text
    assert "Tars beside a folder on the local disk: 1.50x" in text
    assert "| larder, wds: on the local disk | 30 |  |  |  |" in text
    assert "before the epoch, in 3.0 (3.0 to 3.0) s; index and epoch together: 80 (40 to 120) images/s" in flat(text)
    assert "disk tier" not in text and "random order" not in text


def test_bars_of_the_disk_tier_and_of_blocks():
    text = lines({"disk": [run(10, bytes=0.01 * (2 << 20), index=2 << 20)], "again": [run(20, bytes=0)],
                  "random": [run(10, gets=50)], "blocks": [run(15, gets=5)]})
    bytes_of = ("1.010 bytes for each byte of the tars by the index and the first epoch together (bar: 1.02), "
                "0.010 of them by the epoch, and 0.000 after it")
    assert bytes_of in flat(text)
    assert "The index was made in 3.0 s; index and epoch together: 4 images/s." in flat(text)
    assert "beside random order: 1.50x images/s, with 0.10 of the GETs." in text


def test_every_peer_has_its_program_and_says_why_it_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERS_HOME", str(tmp_path))
    assert set(stores.absent()) == set(stores.PEERS)
    for name in stores.PEERS:
        assert (loaders.ROOT / f"bench/peers/run_{name}.py").is_file()
        assert name in stores.absent()[name]
        assert peers_env.ENVIRONMENTS[name].over, "it uses the torch of the tests"
    assert set(stores.REMOTE) | {"wds", "folder"} == set(stores.ROWS)


def test_the_line_counts_bytes_and_gets():
    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = b"x" * 1000
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with bucket.slow_line(server.server_address[1], 0.0, 1 << 30) as line:
            assert line.passed() == (0, 0)
            for _ in range(3):
                assert len(urllib.request.urlopen(line.url).read()) == 1000
            urllib.request.urlopen(urllib.request.Request(line.url, method="PUT")).read()
            passed = line.passed()
        server.shutdown()
    assert passed.gets == 3 and 4000 < passed.bytes < 6000


def test_tars_hold_every_image_with_its_class(tmp_path):
    loaders.draw(tmp_path / "data", 20)
    out = bucket.tars(str(tmp_path / "data"), tmp_path / "wds")
    members = []
    for path in sorted(out.iterdir()):
        with tarfile.open(path) as tar:
            members += tar.getnames()
    assert len(list(out.iterdir())) == bucket.SHARDS and len(members) == len(set(members)) == 40
    assert bucket.tars("nothing", out) == out, "they are made once"


@pytest.mark.nightly
@needs_server
def test_a_disk_tier_fetches_each_byte_once(tmp_path):
    loaders.draw(tmp_path / "data", 48)
    data = str(tmp_path / "data")
    stored = sum(f.stat().st_size for f in pathlib.Path(data).glob("*/*"))
    bucket.tars(data, tmp_path / "buckets/bench/wds")
    packed = sum(f.stat().st_size for f in (tmp_path / "buckets/bench/wds").glob("*.tar"))
    with bucket.slow_bucket(tmp_path / "buckets", 0.0, 1 << 30) as line:
        b = stores.Bench(os.path.abspath(os.environ["LARDER_BIN"]), data, line)
        first, later = stores.with_disk(b, f"wds:s3://bench/wds/train-{{000..{bucket.SHARDS - 1:03}}}.tar", stored)
    heads = 700 * (first["gets"] + bucket.SHARDS * 40)  # of answers
    both = first["index"] + first["bytes"]
    assert stored <= both <= 1.02 * packed + heads and later["bytes"] == later["gets"] == 0
    assert first["gets"] <= 1.1 * 48 and first["rate"] > 0


@needs_server
@pytest.mark.parametrize("name", list(stores.PEERS))
def test_a_peer_reads_every_image(name, tmp_path, monkeypatch):
    e = peers_env.ENVIRONMENTS[name]
    if not peers_env.ready(e):
        pytest.skip(f"bench/py/peers_env.py {name} builds it")
    loaders.draw(tmp_path / "data", 48)
    data = str(tmp_path / "data")
    shards = stores.shards_of(name, data, tmp_path / "buckets/bench")
    monkeypatch.setattr(peers, "home", lambda: tmp_path)
    with bucket.slow_bucket(tmp_path / "buckets", 0.0, 1 << 30) as line:
        b = stores.Bench("", data, line)
        r = stores.race(b, str(e.python), f"run_{name}.py", {"remote": f"s3://bench/{shards.name}"}, {})
    stored = sum(f.stat().st_size for f in pathlib.Path(data).glob("*/*"))
    assert r["bytes"] > stores.JOBS * stored, "each job fetches all of it"
    left = [f for f in pathlib.Path("/dev/shm").glob("*_locals") if str(tmp_path).encode() in f.read_bytes()]
    assert not left, "jobs that have ended leave no shared memory"


def test_an_unknown_row_is_refused():
    done = subprocess.run([sys.executable, str(pathlib.Path(stores.__file__)), "--only", "nothing"],
                          capture_output=True, text=True)
    assert done.returncode == 2 and "no row is called like 'nothing'" in done.stderr


def test_rows_of_packed_datasets():
    args = argparse.Namespace(copies=4, limit=20.0, latency=30, bandwidth=32.0)
    one = {"cold": 100.0, "warm": 1200.0, "cpu": 0.0015, "limited": 50.0, "s3": 40.0}
    text = "\n".join(packed.lines_of(args, {"folder": [one], "wds": [one, one | {"s3": 60.0}]},
                                     {"wds": {"seconds": 2.0, "bytes": 3 << 20, "shards": 2, "encoded": 0}},
                                     [{"folder, cold": 100.0, "wds, cold": 100.0 + i, "folder, warm": 50.0,
                                       "wds, warm": 45.0} for i in range(3)]))
    assert "| folder | 100 | 1,200 | 50 | 40 | 1.50 |" in text
    assert "| 50 (40 to 60) | 1.50 (1.50 to 1.50) |" in text and "rounds: 2" in text
    assert "- Packed as wds: 2.0 s, 3 MiB in 2 shards" in text
    assert "| tars beside a folder, local disk, cold | 1.01x | 1.00x – 1.02x | ≥ 1.00x | met |" in text
    assert "| tars beside a folder, local disk, page cache | 0.90x | 0.90x – 0.90x | ≥ 1.00x | missed |" in text
    page = packed.PAGE.read_text()
    assert page.count(packed.BEGIN) == page.count(packed.END) == page.count(stores.BEGIN) == 1


@pytest.mark.nightly
@needs_server
def test_a_packed_dataset_is_read_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("LARDER_TESTDATA", str(tmp_path))
    monkeypatch.setattr(packed, "draw", lambda folder, count: loaders.draw(folder, 64))
    args = argparse.Namespace(bin=os.path.abspath(os.environ["LARDER_BIN"]), copies=1, small=0, limit=1000.0)
    found, packing = packed.datasets(args, tmp_path / "work")
    assert set(found) == {"folder", "wds", "mds"} and set(packing) == {"wds", "mds"}
    with bucket.slow_bucket(tmp_path / "work", 0.0, 1 << 30) as line:
        both = packed.pair(args, found, 1)
        assert set(both) == {f"{n}, {k}" for n in ("folder", "wds") for k in ("cold", "warm")}
        assert min(both.values()) > 0
        for name in ("folder", "wds"):
            before = line.passed().bytes
            r = packed.measure(args, found[name], line)
            assert set(r) == {"cold", "warm", "limited", "s3", "cpu"} and min(r.values()) > 0
            stored = sum(f.stat().st_size for f in (tmp_path / "work/bench/folder").glob("*/*"))
            assert line.passed().bytes - before >= stored, "the bytes came through the line"
