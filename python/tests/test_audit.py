"""The log of what a process was given, without a daemon."""

from __future__ import annotations

import json
import threading
import zlib

import pytest
from conftest import eventually

from larder import _audit


def numbers(path):
    out = []
    for line in path.read_bytes().splitlines():
        checksum, body = line.split(b" ", 1)
        assert int(checksum, 16) == zlib.crc32(body)
        out.append(json.loads(body)["i"])
    return out


@pytest.mark.parametrize("written", [False, True])
def test_an_interrupt_before_and_after_a_write_leaves_numbers_whole(tmp_path, monkeypatch, written):
    log = _audit._Log(str(tmp_path))
    log.write(r="epoch", run=1)
    file = log.file

    class Interrupted:
        def __getattr__(self, name):
            return getattr(file, name)

        def write(self, line):
            if written:
                file.write(line)
            raise KeyboardInterrupt

    monkeypatch.setattr(log, "file", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        log.write(r="left", run=1)
    monkeypatch.setattr(log, "file", file)
    log.write(r="epoch", run=2)
    log.write(r="left", run=2)
    (path,) = tmp_path.iterdir()
    assert numbers(path) == list(range(1, 6 if written else 5))


def test_threads_that_begin_at_once_make_one_log(tmp_path, monkeypatch):
    monkeypatch.setenv("LARDER_AUDIT_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(_audit, "_log", None)
    made = _audit._Log.__init__
    came = []

    def slowly(self, folder):
        eventually(lambda: len(came) == 8)
        made(self, folder)

    monkeypatch.setattr(_audit._Log, "__init__", slowly)
    together = threading.Barrier(8)
    seen = []

    def begin():
        together.wait()
        came.append(True)
        seen.append(_audit._process())

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(map(id, seen))) == 1 and len(list((tmp_path / "log").iterdir())) == 1
