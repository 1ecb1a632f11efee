"""LARDER_AUDIT_LOG and `larder audit`: what is noted of Python's clients, and what is found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
import zlib
from pathlib import Path

import pytest
from real import HERE, PATIENCE, find_binary

import larder


def audit(*arguments):
    """The exit code, and the report."""
    folder = os.environ["LARDER_AUDIT_LOG"]
    out = subprocess.run(
        [find_binary(), "audit", folder, "-o", "json", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return out.returncode, json.loads(out.stdout)


def logs():
    return sorted(Path(os.environ["LARDER_AUDIT_LOG"]).glob("*.log"))


def records(path):
    return [json.loads(line[9:]) for line in path.read_text().splitlines()]


def change(path, f):
    """Rewrites a log as a client that lies would have written it."""
    out = b""
    for n, changed in enumerate(x for r in records(path) for x in f(r)):
        body = json.dumps({**changed, "i": n + 1}, separators=(",", ":")).encode()
        out += b"%08x %s\n" % (zlib.crc32(body), body)
    path.write_bytes(out)


def train(real, small, epochs=2, **kw):
    kw = {"batch_size": 7, "shuffle": True, "transform": [{"name": "RandomResizedCrop", "args": {"size": 16}}]} | kw
    loader = real(f"imagefolder:{small}", **kw)
    for _ in range(epochs):
        for batch in loader:
            del batch
    loader.close()


@pytest.mark.audit("--whole")
def test_whole_epochs(real, small):
    train(real, small, job="audit-fixed")
    train(real, small, job="audit-ragged", transform=None, fields=["image"], output="numpy")
    code, report = audit("--expect", "audit-fixed=0-71")
    assert (code, report["states"], report["findings"]) == (0, {"whole": 4}, [])
    assert report["samples"] == 4 * 72 and len(logs()) == 1
    assert audit("--expect", "audit-fixed=0-70")[0] == 10


def test_bytes_at_both_ends_of_a_step(real, small):
    loader = real(
        f"imagefolder:{small}",
        batch_size=9,
        job="audit-holds",
        transform=[{"name": "Resize", "args": {"size": [16, 16]}}],
    )
    kept = None
    for images, labels in loader:
        kept = images[0] if kept is None else kept  # a view keeps the whole batch
        del images, labels
    loader.close()
    noted = [r for r in records(logs()[0]) if r["r"] == "done"]
    assert len(noted) == 8 and "hash" in noted[0] and not any("hash" in r for r in noted[1:])
    assert kept is not None


@pytest.mark.audit("--in-place")
def test_a_batch_that_changes_is_altered(real, small):
    loader = real(
        f"imagefolder:{small}",
        batch_size=9,
        job="audit-writes",
        transform=[{"name": "Resize", "args": {"size": [16, 16]}}],
    )
    for n, (images, _labels) in enumerate(loader):
        if n == 3:
            images[0, 0, 0, 0] ^= 1
    del images, _labels
    loader.close()
    code, report = audit()
    assert code == 10 and [(f["kind"], f["step"]) for f in report["findings"]] == [("altered", 3)]
    assert audit("--in-place")[0] == 0


@pytest.mark.parametrize("what", ["lost", "repeated", "foreign", "damaged"])
def test_what_is_planted_is_found(what, real, small):
    train(real, small, epochs=3, job=f"audit-{what}")
    path = logs()[0]
    batches = [r for r in records(path) if r["r"] == "batch"]
    a, b = batches[2], batches[5]

    def plant(r):
        if r["r"] == "done":
            r.pop("hash", None)
        if (r.get("run"), r.get("step"), r["r"]) == (1, a["step"], "batch"):
            if what == "lost":
                r = {**r, "ids": r["ids"][1:], "rows": 6}
            if what == "repeated":
                r = {**r, "ids": [b["ids"][0], *r["ids"][1:]]}
            if what == "foreign":
                r = {**r, "ids": [999, *r["ids"][1:]]}
        return [r]

    if what == "damaged":
        path.write_bytes(path.read_bytes().replace(b'"step":2', b'"step":3', 1))
    else:
        change(path, plant)
    code, report = audit()
    assert code == 10 and what in {f["kind"] for f in report["findings"]}, report
    if what in ("lost", "foreign"):  # another epoch had the right ones
        named = [f for f in report["findings"] if f["kind"] == what]
        assert any(f.get("ids") == ([a["ids"][0]] if what == "lost" else [999]) for f in named), report
    path.unlink()  # it has been judged


def test_break_and_close_are_noted(real, small):
    loader = real(f"imagefolder:{small}", batch_size=7, job="audit-breaks")
    next(iter(loader))
    next(iter(loader))
    loader.close()
    assert [r["why"] for r in records(logs()[0]) if r["r"] == "left"] == [
        "another epoch was begun",
        "the loader was closed",
    ]
    assert audit()[1]["states"] == {"broken off": 2}
    assert audit("--whole")[0] == 10


def test_threads_write_one_log(real, small):
    loaders = [real(f"imagefolder:{small}", batch_size=3, job=f"audit-thread-{n}") for n in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=lambda x=x: [None for _ in range(3) for _ in x]) for x in loaders]
        for t in threads:
            t.start()
        for t in threads:
            t.join(PATIENCE)
    assert len(logs()) == 1 and audit()[1]["states"] == {"whole": 12}


def test_a_client_that_is_killed_leaves_a_log(server, small):
    script = (
        "import larder, os, signal\n"
        f"l = larder.Loader('imagefolder:{small}', batch_size=4, job='audit-killed', "
        f"endpoint='{server.socket}', timeout={PATIENCE})\n"
        "for n, x in enumerate(l):\n"
        "    if n == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        timeout=PATIENCE,
        check=False,
    )
    assert out.returncode == -signal.SIGKILL
    code, report = audit()
    assert code == 0 and report["states"] == {"broken off": 1} and report["samples"] == 24


def test_a_log_that_cannot_be_written_is_an_error(real, small, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LARDER_AUDIT_LOG", str(tmp_path / "file"))
    loader = real(f"imagefolder:{small}", batch_size=4, job="audit-nowhere")
    with pytest.raises(larder.InvalidError, match="LARDER_AUDIT_LOG"):
        iter(loader)
