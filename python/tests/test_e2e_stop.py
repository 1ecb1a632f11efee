"""`larder stop` means it: clients learn who stopped the daemon, none of them starts another one, and what comes
later continues.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import eventually
from real import HERE, PATIENCE, draw, find_binary, pillow

import larder
from larder import _daemon

pillow()

SCRIPT = """
import json, os, sys
import larder
from larder import ops

uri, out, state = sys.argv[1:]
loader = larder.Loader(uri, batch_size=4, shuffle=True, seed=3, job="train", return_index=True,
                       transform=[ops.Resize(24), ops.CenterCrop(24), ops.ToImage()])
if os.path.exists(state):
    with open(state) as f:
        loader.load_state_dict(json.load(f))
try:
    for epoch in range(2):
        for _, _, index in loader:
            if state != "none":
                with open(state + ".tmp", "w") as f:
                    json.dump(loader.state_dict(), f)
                os.replace(state + ".tmp", state)
            with open(out, "a") as f:
                f.write(json.dumps({"epoch": loader.epoch, "ids": index.tolist()}) + chr(10))
            if len(sys.stdin.readline()) == 0:
                break
        print("epoch", flush=True)
except larder.StoppedError as e:
    print("stopped", flush=True)
    print(e, file=sys.stderr, flush=True)
    sys.exit(7)
"""


class Place:
    """A user's own runtime folder, in which scripts start the daemon by themselves."""

    def __init__(self, folder):
        self.folder = folder
        self.runtime = folder / "r"
        self.runtime.mkdir(mode=0o700)
        self.socket = str(self.runtime / "larder" / "larder.sock")
        self.env = {k: v for k, v in os.environ.items() if k not in ("LARDER_SOCKET", "LARDER_CONFIG")}
        self.env |= {
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.env |= {
            "LARDER_BIN": find_binary(),
            "PYTHONPATH": str(HERE.parent),
            "LARDER_MEMORY__LIMIT": "1GiB",
            "LARDER_TIERS__TOTAL": "64MiB",
        }
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self.data = draw(folder / "data", 2, 20)
        self.out, self.state = folder / "out", folder / "checkpoint"

    def larder(self, *args, code=0):
        done = subprocess.run(
            [find_binary(), *args], env=self.env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        return done

    def pid(self):
        return json.loads(self.larder("status", "-o", "json").stdout)["pid"]

    def train(self, checkpoints=True):
        return subprocess.Popen(
            [
                sys.executable,
                str(self.script),
                f"imagefolder:{self.data}",
                str(self.out),
                str(self.state) if checkpoints else "none",
            ],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def given(self):
        return [json.loads(line) for line in self.out.read_text().splitlines()] if self.out.exists() else []

    def steps(self, script, n):
        """Lets the script train until it has been given n batches in all and waits in the n-th."""
        while len(self.given()) < n:
            before = len(self.given())
            if before:
                script.stdin.write("\n")
                script.stdin.flush()
            eventually(lambda before=before: len(self.given()) > before)


@pytest.fixture
def place(tmp_path, monkeypatch):
    p = Place(tmp_path)
    for name in (
        "XDG_RUNTIME_DIR",
        "XDG_STATE_HOME",
        "XDG_CACHE_HOME",
        "LARDER_BIN",
        "LARDER_MEMORY__LIMIT",
        "LARDER_TIERS__TOTAL",
    ):
        monkeypatch.setenv(name, p.env[name])
    yield p
    p.larder("stop", "--force")
    for d in _daemon._started:
        d.wait(PATIENCE)


def rest(it):
    """The ids of what is left, a batch at a time."""
    return [i for _, _, index in it for i in index.tolist()]


def loader(place, **kw):
    return larder.Loader(
        f"imagefolder:{place.data}", batch_size=4, shuffle=True, return_index=True, timeout=PATIENCE, **kw
    )


def test_a_script_in_mid_epoch_ends_and_no_daemon_comes_back(place):
    script = place.train()
    eventually(lambda: place.given() or script.poll() is not None)
    place.steps(script, 4)
    first = place.pid()
    refused = place.larder("stop", code=5)
    assert "1 job is live: train" in refused.stderr and "--drain" in refused.stderr and "--force" in refused.stderr
    assert place.pid() == first
    done = place.larder("stop", "--force")
    assert f"stopped process {first}" in done.stdout and "live until then: train" in done.stdout
    assert not os.path.exists(place.socket)
    before = len(place.given())
    script.stdin.write("\n")  # its step is over: this is its next next()
    out, err = script.communicate(timeout=PATIENCE)
    assert (script.returncode, out) == (7, "stopped\n"), (out, err)
    assert "was stopped by" in err and "(larder stop, process" in err and "larder serve" in err
    assert len(place.given()) == before
    assert "not running" in place.larder("status", code=3).stdout
    assert not os.path.exists(place.socket) and not os.path.exists(place.socket + ".lock")

    # The script is run again: it starts a daemon as usual, and continues with what its checkpoint had not been given.
    again = place.train()
    out, err = again.communicate("\n" * 100, timeout=PATIENCE)
    assert again.returncode == 0, err
    assert place.pid() != first
    epochs = {}
    for g in place.given():
        epochs.setdefault(g["epoch"], []).extend(g["ids"])
    assert [sorted(ids) for ids in epochs.values()] == [list(range(40))] * len(epochs) and len(epochs) >= 2, epochs


def test_between_two_next_calls_and_going_on(place):
    with loader(place, job="a") as a:
        it = iter(a)
        ids = [i for _ in range(3) for i in next(it)[2].tolist()]
        first = place.pid()
        place.larder("stop", "--force")
        for _ in range(3):  # each next() looks whether a daemon is there, and none starts one
            with pytest.raises(larder.StoppedError, match=r"was stopped by .* \(larder stop, process"):
                next(it)
        with pytest.raises(larder.StoppedError):
            iter(a)
        place.larder("status", code=3)
        with loader(place, job="b") as b:  # made after the stop: it starts a daemon, as ever
            assert len(rest(b)) == 40
            assert place.pid() != first
            ids += rest(it)  # and the old one continues with the very next batch
        assert sorted(ids) == list(range(40))
        assert not os.path.exists(place.socket + ".stopped")


def test_a_client_that_had_lost_its_daemon_hears_of_the_stop(place):
    with loader(place, job="a") as a:
        it = iter(a)
        next(it)
        os.kill(place.pid(), signal.SIGKILL)
        eventually(
            lambda: (
                "not running"
                in subprocess.run(
                    [find_binary(), "status"], env=place.env, capture_output=True, text=True, check=False
                ).stdout
            )
        )
        assert "no daemon serves" in place.larder("stop").stdout
        with pytest.raises(larder.StoppedError):
            for _ in it:  # what lay ready in its ring comes first
                pass
        place.larder("status", code=3)


def test_a_client_on_a_named_socket_does_not_wait(place, monkeypatch):
    with loader(place, job="started") as b:
        monkeypatch.setenv("LARDER_SOCKET", place.socket)
        with loader(place, job="a") as a:
            it = iter(a)
            next(it)
            os.kill(place.pid(), signal.SIGKILL)
            place.larder("stop")
            with pytest.raises(larder.StoppedError):
                for _ in it:
                    pass
        b.close()


def test_drain_gives_the_epoch_to_its_end(place):
    script = place.train(checkpoints=False)
    eventually(lambda: place.given() or script.poll() is not None)
    place.steps(script, 2)
    stop = subprocess.Popen(
        [find_binary(), "stop", "--drain", "--timeout", f"{PATIENCE:g}s"],
        env=place.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    eventually(lambda: json.loads(place.larder("status", "-o", "json").stdout)["stopping"])
    out, err = script.communicate("\n" * 100, timeout=PATIENCE)
    assert (script.returncode, out) == (7, "epoch\nstopped\n"), (out, err)
    assert "stopped process" in stop.communicate(timeout=PATIENCE)[0] and stop.returncode == 0
    assert sorted(i for g in place.given() for i in g["ids"]) == list(range(40))
    place.larder("status", code=3)


def test_drain_is_over_with_its_time(place, private, clock):
    daemon = private("", "--clock", clock.address)
    with loader(place, job="slow", endpoint=daemon.socket) as a:
        it = iter(a)
        next(it)
        command = [daemon.binary, "--socket", daemon.socket, "stop", "--drain", "--timeout", "10m", "-o", "json"]
        stop = subprocess.Popen(command, env=daemon.env, stdout=subprocess.PIPE, text=True)
        eventually(lambda: json.loads(daemon.cli("status", "-o", "json").stdout)["stopping"])
        with clock.stepping(600, lambda _: stop.poll() is None):
            done, _ = stop.communicate(timeout=PATIENCE)
        assert stop.returncode == 0 and json.loads(done)["unfinished"] == ["slow"]
        with pytest.raises(larder.StoppedError):
            for _ in it:
                pass


def test_the_log_in_memory_is_kept_short(place, monkeypatch):
    limit = 16 << 10
    for name, value in {"LARDER_LOG__LEVEL": "debug", "LARDER_LOG__MAX_SIZE": str(limit)}.items():
        monkeypatch.setenv(name, value)
        place.env[name] = value
    log, before = place.socket[: -len("sock")] + "log", place.socket[: -len("sock")] + "log.1"
    turns = set()
    with loader(place, job="first") as a:
        for n in range(2000):
            with loader(place, job=f"job{n}") as b:
                next(iter(b))
            for name in (log, before):
                with contextlib.suppress(FileNotFoundError):  # it is being replaced
                    st = os.stat(name)
                    assert st.st_size <= limit
                    turns |= {(st.st_ino, st.st_mtime_ns)} if name == before else set()
            if len(turns) >= 2:
                break
        assert len(turns) >= 2
        assert re.search(rf"^log +{re.escape(str(log))}", place.larder("status").stdout, re.M)
        # What the runtime writes at its end goes to the file that has the name, not to one that was removed.
        os.kill(place.pid(), signal.SIGQUIT)
        eventually(lambda: "goroutine " in Path(log).read_text())
        a.close()
    assert sorted(n for n in os.listdir(os.path.dirname(log)) if "log" in n) == ["larder.log", "larder.log.1"]
