"""Bad input, deaths and the life cycle, with the real daemon and real processes. Nothing here asserts a time."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import eventually
from real import HERE, PATIENCE, draw, find_binary, listing, pillow

import larder
from larder import _rivals

Image = pillow()

CROP = {"name": "RandomResizedCrop", "args": {"size": 32}}


def ids_of(loader):
    return [i for *_, index in loader for i in index.tolist()]


def test_bad_datasets(small, real, tmp_path):
    cases = {
        f"imagefolder:{tmp_path}/nothing": (larder.NotFoundError, "nothing"),
        f"imagefolder:{listing(small)[0][0]}": (larder.Error, "000.jpg"),
        "imagefoldr:/x": (larder.Error, "imagefolder"),
        "unheard-of": (larder.Error, "unheard-of"),
    }
    (tmp_path / "empty").mkdir()
    cases[f"imagefolder:{tmp_path}/empty"] = (larder.Error, "empty")
    (tmp_path / "classes" / "a").mkdir(parents=True)
    (tmp_path / "classes" / "a" / "note.txt").write_text("no image")
    cases[f"imagefolder:{tmp_path}/classes"] = (larder.Error, "classes")
    for uri, (kind, words) in cases.items():
        with pytest.raises(kind, match=words) as e:
            real(uri, batch_size=2)
        assert e.value.reason != "INTERNAL" and e.value.hint, (uri, e.value)


@pytest.mark.parametrize(
    ("kw", "reason", "words"),
    [
        ({"subset": "lable < 50"}, "SUBSET_SYNTAX", "label"),
        ({"subset": "label < "}, "SUBSET_SYNTAX", ""),
        ({"subset": "label = 3"}, "SUBSET_SYNTAX", "=="),
        ({"subset": "label > 100"}, "SUBSET_EMPTY", ""),
        ({"batch_size": 73, "drop_last": True}, "SUBSET_EMPTY", "72"),
        ({"transform": [{"name": "RandomResizeCrop", "args": {"size": 3}}]}, "RECIPE_INVALID", "RandomResizedCrop"),
        ({"transform": [{"name": "Resize", "args": {"sise": 3}}]}, "RECIPE_INVALID", "size"),
        ({"transform": [larder.ops.Resize("big")]}, "RECIPE_INVALID", "size"),
        ({"transform": [larder.ops.CenterCrop(-4)]}, "RECIPE_INVALID", "size"),
        ({"transform": [larder.ops.RandomHorizontalFlip(2)]}, "RECIPE_INVALID", "p"),
        ({"transform": [{"name": "f", "kind": "python"}]}, "", "schema"),
    ],
)
def test_bad_requests(small, real, kw, reason, words):
    with pytest.raises(larder.InvalidError) as e:
        real(f"imagefolder:{small}", **{"batch_size": 4, **kw})
    assert words in str(e.value)
    assert not reason or e.value.reason == reason, e.value


def test_a_typo_in_a_subset_is_pointed_at(small, real):
    with pytest.raises(larder.InvalidError) as e:
        real(f"imagefolder:{small}", batch_size=4, subset="id > 3 and lable < 50")
    lines = str(e.value).splitlines()
    at = next(n for n, line in enumerate(lines) if "lable < 50" in line)
    caret = lines[at + 1]
    assert caret.strip(" ") == "^" and caret.index("^") == lines[at].index("lable"), str(e.value)


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(b"\0" * 64))
    )


@pytest.fixture
def damaged(tmp_path):
    """12 images, 6 of them good; one has the suffix of another format, which is no fault."""
    folder = draw(tmp_path / "damaged", 2, 6, seed=4)
    files = [Path(p) for p, _ in listing(folder)]
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[: len(whole) // 2])
    files[3].write_bytes(b"")
    files[4].write_bytes(b"this is not an image at all " * 10)
    data = bytearray(files[7].read_bytes())
    files[7].write_bytes(bytes(data[:2]) + bytes(200) + bytes(data[202:]))
    sof = data.index(b"\xff\xc0" if b"\xff\xc0" in data else b"\xff\xc2")
    huge = bytearray(files[9].read_bytes() if b"\xff\xc0" in files[9].read_bytes() else data)
    sof = huge.index(b"\xff\xc0") if b"\xff\xc0" in huge else huge.index(b"\xff\xc2")
    huge[sof + 5 : sof + 9] = struct.pack(">HH", 65500, 65500)
    files[9].write_bytes(bytes(huge))
    files[10].write_bytes(png_header(65500, 65500))
    renamed = files[0].with_suffix(".png")
    files[0].rename(renamed)
    files = [Path(p) for p, _ in listing(folder)]
    return folder, files, {1, 3, 4, 7, 9, 10}


def test_bad_samples_skip(damaged, real):
    folder, files, bad = damaged
    loader = real(f"imagefolder:{folder}", batch_size=4, shuffle=True, on_error="skip", return_index=True)
    for _ in range(2):
        assert sorted(ids_of(loader)) == sorted(set(range(12)) - bad)
    assert {q.id for q in loader.quarantined} == bad
    for q in loader.quarantined:
        assert q.path == str(files[q.id]) and q.reason and q.key == os.path.relpath(files[q.id], folder)
    job = loader.stats().job
    assert job is not None and {q.id for q in job.quarantined} == bad and job.counters.quarantined >= 6
    assert all(a.delivered + a.quarantined == a.subset == 12 for a in job.epochs if a.state == "complete")


def test_bad_samples_raise_once_and_the_epoch_continues(damaged, real):
    folder, files, bad = damaged
    loader = real(f"imagefolder:{folder}", batch_size=4, shuffle=True, return_index=True)
    it, got, met = iter(loader), [], {}
    while True:
        try:
            *_, index = next(it)
            got += index.tolist()
        except larder.SampleError as e:
            assert e.file == str(files[e.id]) and e.file in str(e) and e.why in str(e)
            assert (f"at byte {e.offset}:" in str(e)) == (e.offset is not None)
            met.update({q.id: q for q in e.samples})
        except StopIteration:
            break
    assert sorted(got) == sorted(set(range(12)) - bad) and set(met) == bad
    # Where the damage is: the end of a file that is cut, the beginning of what is no image; nowhere if it is not known.
    assert (met[1].offset, met[3].offset, met[4].offset) == (files[1].stat().st_size, 0, 0)
    assert met[9].offset is None and met[10].offset is None, "they are too large"


def test_bad_samples_substitute(damaged, real):
    folder, _, bad = damaged
    loader = real(f"imagefolder:{folder}", batch_size=4, shuffle=True, on_error="substitute", return_index=True)
    got = ids_of(loader)
    assert sorted(got) == sorted(set(range(12)) - bad), "substitutes are samples not delivered yet, so each comes once"
    assert {q.id for q in loader.quarantined} == bad


def test_bombs_take_no_memory(damaged, private):
    folder, _, bad = damaged
    daemon = private("memory: {limit: 512MiB}\ntiers: {total: 32MiB}\n")
    with larder.Loader(
        f"imagefolder:{folder}", batch_size=4, on_error="skip", endpoint=daemon.socket, timeout=PATIENCE
    ) as loader:
        assert sum(len(y) for _, y in loader) == 12 - len(bad)
        with open(f"/proc/{daemon.process.pid}/status") as f:
            peak = next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))
    assert peak < 1024 * 1024, f"{peak} KiB; one 65,500 x 65,500 image would take 12 GiB"


def test_tier_sizes_beyond_the_limit(tmp_path, private, server):
    with pytest.raises(AssertionError, match="did not start") as e:
        private("memory: {limit: 1GiB}\ntiers: {decoded: 900MiB, encoded: 800MiB}\n")
    text = str(e.value).replace(" ", "")
    assert (
        ("1GiB" in text or str(2**30) in text) and ("900MiB" in text or str(900 * 2**20) in text) and "fix" in text
    ), text
    out = server.cli("tiers", "resize", "decoded=20GiB", check=False)
    text = (out.stdout + out.stderr).replace(" ", "")
    assert out.returncode != 0 and ("20GiB" in text or str(20 * 2**30) in text), out
    assert ("64MiB" in text or str(64 * 2**20) in text) and "fix" in text, out


def test_two_jobs_with_one_name(small, real, monkeypatch):
    """Of two processes: those of one know each other, and the older one gives way."""
    monkeypatch.setattr(_rivals, "of", lambda shared: [])
    one = real(f"imagefolder:{small}", batch_size=4, job="same", return_index=True)
    with pytest.raises(
        larder.InvalidError
    ) as e:  # the constructor leaves room for load_state_dict while no iterator uses the job
        iter(real(f"imagefolder:{small}", batch_size=5, job="same"))
    assert e.value.reason == "ALREADY_EXISTS" and "same" in str(e.value)
    two = real(f"imagefolder:{small}", batch_size=4, job="same")
    it = iter(one)
    next(it)
    with pytest.raises(larder.InvalidError, match="another spec"):
        real(f"imagefolder:{small}", batch_size=5, job="same")
    with pytest.raises(larder.RankHeldError, match=str(os.getpid())):
        iter(two)
    assert sum(len(x) for *_, x in it) == 68


# ---- deaths


def test_a_client_killed_with_batches_in_hand(small, server, clients, real):
    before = server.segments()
    c = clients(
        server,
        f"imagefolder:{small}",
        epochs=50,
        delay=0.01,
        loader={"batch_size": 4, "shuffle": True, "job": "killed", "timeout": PATIENCE},
    )
    for _ in range(5):
        c.until("batch")
    assert server.segments() > before
    c.process.kill()
    c.process.wait()
    eventually(lambda: server.segments() == before, PATIENCE)
    loader = real(f"imagefolder:{small}", batch_size=4, shuffle=True, job="killed", return_index=True)  # taken over
    assert sorted(ids_of(loader)) == list(range(72))


def test_a_client_that_never_reads_delays_no_other_client(small, server, clients, real):
    idle = real(f"imagefolder:{small}", batch_size=4, shuffle=True, job="idle")
    iter(idle)  # its ring fills and stays full
    stopped = clients(
        server,
        f"imagefolder:{small}",
        epochs=50,
        delay=0.01,
        loader={"batch_size": 4, "shuffle": True, "job": "stopped", "timeout": PATIENCE},
    )
    stopped.until("batch")
    stopped.process.send_signal(signal.SIGSTOP)
    busy = real(f"imagefolder:{small}", batch_size=4, shuffle=True, return_index=True)
    for _ in range(3):
        assert sorted(ids_of(busy)) == list(range(72))
    stopped.process.send_signal(signal.SIGCONT)
    stopped.until("batch")


def test_a_silent_or_rude_connection_harms_no_other_client(small, server, real):
    rude = []
    for hello in (b"", b"x", b"GET / HTTP/1.1\r\n\r\n", b"\x01\x00\x01\x00\xff\xff\xff\xff" + bytes(8), bytes(64)):
        s = socket.socket(socket.AF_UNIX)
        s.connect(server.socket)
        s.sendall(hello)
        rude.append(s)
    loader = real(f"imagefolder:{small}", batch_size=4, return_index=True)
    assert ids_of(loader) == list(range(72))
    for s in rude:
        s.close()


def test_the_daemon_is_killed(small, private):
    daemon = private()
    loader = larder.Loader(
        f"imagefolder:{small}",
        batch_size=4,
        shuffle=True,
        endpoint=daemon.socket,
        timeout=PATIENCE,
        transform=[CROP],
        on_daemon_loss="raise",
    )
    it = iter(loader)
    images, _ = next(it)
    before = images.copy()
    daemon.kill()
    with pytest.raises(larder.UnavailableError) as e:
        for _ in range(20):
            next(it)
    assert daemon.socket in str(e.value)
    np.testing.assert_array_equal(images, before)  # what was handed out stays
    with pytest.raises(larder.UnavailableError, match="no larder daemon answers"):
        iter(loader)
    loader.close()


def test_the_daemon_drains(small, private):
    daemon = private("", "--drain-timeout", "60s")
    loader = larder.Loader(
        f"imagefolder:{small}", batch_size=4, shuffle=True, endpoint=daemon.socket, timeout=PATIENCE, return_index=True
    )
    it = iter(loader)
    ids = next(it)[-1].tolist()
    daemon.process.send_signal(signal.SIGTERM)
    eventually(lambda: "it is drained" in daemon.cli("jobs", "describe", loader.job, check=False).stdout)
    for *_, index in it:  # the running epoch is finished
        ids += index.tolist()
    assert sorted(ids) == list(range(72))
    with pytest.raises(larder.Error) as e:
        iter(loader)
    assert e.value.reason == "UNAVAILABLE", e.value
    assert daemon.process.wait(PATIENCE) == 0
    loader.close()
    daemon.process.stdout.close()


def test_a_second_daemon_on_the_socket_is_refused(server):
    out = subprocess.run(
        [server.binary, "serve", "--socket", server.socket],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert out.returncode != 0 and server.socket in out.stderr and str(server.process.pid) in out.stderr, out


# ---- command line and life cycle


def test_a_job_registered_by_the_command_line(small, server, real, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(f"""
name: night
dataset: imagefolder:{small}
subset: label < 4
batch_size: 6
shuffle: true
seed: 3
transform:
  - {{name: RandomResizedCrop, args: {{size: 24}}}}
  - {{name: RandomHorizontalFlip}}
on_error: skip
""")
    server.cli("jobs", "register", "-f", str(job))
    loader = real("job:night", return_index=True)
    assert (loader.batch_size, loader.num_samples, len(loader)) == (6, 36, 6)
    assert sorted(ids_of(loader)) == list(range(36))
    assert "night" in server.cli("jobs", "ls").stdout
    it = iter(loader)
    next(it)
    server.cli("jobs", "kill", "night")
    with pytest.raises(larder.JobEndedError):
        for _ in range(20):
            next(it)
    with pytest.raises(larder.NotFoundError, match="no-such"):
        real("job:no-such")


def test_tiers_resize_live(small, private):
    daemon = private(
        "tiers: {total: 64MiB, encoded: 16MiB, decoded: 32MiB, augmented: 0MiB}\nmemory: {limit: 512MiB}\n"
    )
    with larder.Loader(
        f"imagefolder:{small}", batch_size=4, shuffle=True, endpoint=daemon.socket, timeout=PATIENCE, return_index=True
    ) as loader:
        assert sorted(ids_of(loader)) == list(range(72))
        daemon.cli("tiers", "resize", "decoded=1MiB")
        eventually(lambda: all(t.used <= t.budget for t in loader.stats().tiers), PATIENCE)
        assert {t.form: t.budget for t in loader.stats().tiers}["decoded"] == 2**20
        assert sorted(ids_of(loader)) == list(range(72))


@pytest.mark.parametrize("homeless", [False, True])
def test_a_daemon_is_started_when_none_is_there(small, tmp_path, homeless):
    """Also where neither its own folders nor temporary files can be made, as in a container without a home."""
    binary = find_binary()
    home = tmp_path / "home"
    if homeless:
        home.touch()
    script = (
        "import larder, os, tempfile\n"
        f"tempfile.tempdir = {str(home)!r}\n"
        f"l = larder.Loader('imagefolder:{small}', batch_size=8, timeout={PATIENCE})\n"
        "print(sum(len(y) for _, y in l), l.stats().pid)\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("LARDER_")}
    env |= {
        "XDG_RUNTIME_DIR": str(tmp_path),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
        "LARDER_BIN": binary,
        "PYTHONPATH": str(HERE.parent),
    }
    many = [
        subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    outs = [p.communicate(timeout=PATIENCE)[0].split() for p in many]
    pid = int(outs[0][1])
    try:
        assert outs == [["72", str(pid)]] * 3, "one daemon for all"
        assert os.getsid(pid) == pid
        assert os.path.exists(tmp_path / "larder" / "larder.sock")
        log = (tmp_path / "larder" / "larder.log").read_text()
        assert ("no index is saved" in log) == ("nothing survives this daemon" in log) == homeless
    finally:
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: not os.path.exists(tmp_path / "larder" / "larder.sock"), PATIENCE)


def test_an_idle_daemon_ends_by_itself(small, private, clock):
    daemon = private("", "--idle-exit", "10m", "--clock", clock.address)
    with larder.Loader(f"imagefolder:{small}", batch_size=8, endpoint=daemon.socket, timeout=1e6) as loader:
        clock.advance(3600)  # idle, but in use
        assert sum(len(y) for _, y in loader) == 72
    # It sees its client leave at any moment; from then on it is idle.
    with clock.stepping(600, lambda _: daemon.process.poll() is None):
        assert daemon.process.wait(PATIENCE) == 0
    assert not os.path.exists(daemon.socket)
    daemon.process.stdout.close()


def test_counters_from_another_thread(small, real):
    loader = real(f"imagefolder:{small}", batch_size=2, shuffle=True, return_index=True)
    stop, seen = threading.Event(), []

    def watch():
        while not stop.is_set():
            seen.append(loader.stats().totals.samples_delivered)

    t = threading.Thread(target=watch)
    t.start()
    for _ in range(3):
        assert sorted(ids_of(loader)) == list(range(72))
    stop.set()
    t.join()
    assert seen == sorted(seen) and len(seen) > 1
