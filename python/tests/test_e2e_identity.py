"""Who is who, against the real daemon: which processes are one job, and which give way to each other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from real import HERE, PATIENCE, Client

from larder import _daemon


def test_tasks_of_slurm_are_trials_of_their_own(server, small, tmp_path, monkeypatch):
    """Two tasks of one step without torch.distributed: each has every sample, side by side, and is told why."""
    clients = []
    for k, v in {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}.items():
        monkeypatch.setenv(k, v)
    for task in range(2):
        monkeypatch.setenv("SLURM_PROCID", str(task))
        loader = {"batch_size": 8, "shuffle": True}
        clients.append(Client(tmp_path / str(task), server, f"imagefolder:{small}", loader=loader, wait=True))
    ready = [c.until("ready") for c in clients]
    assert len({r["job"] for r in ready}) == 2
    for c in clients:
        c.go()
        c.until("done")
        assert sorted(c.seen[-2]["ids"]) == list(range(72))
        _, err = c.process.communicate(timeout=PATIENCE)
        assert err.count("OneRankWarning") == 1 and "rank=int(os.environ['SLURM_PROCID'])" in err
        c.thread.join(PATIENCE)


HOLDS = """
import sys, larder
loader = larder.Loader(sys.argv[1], batch_size=8, timeout=120)
next(it := iter(loader))
print(loader.job, flush=True)
sys.stdin.readline()
"""


def test_containers_of_one_host_name_do_not_meet(server, small):
    """Two PID namespaces, in both of which the script is process 1, each hold a job without a name."""
    apart = [shutil.which("unshare") or "", "--fork", "--pid", "--mount-proc"]
    if not apart[0] or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this needs root and unshare(1)")
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "LARDER_SOCKET": server.socket}
    command = [*apart, sys.executable, "-c", HOLDS, f"imagefolder:{small}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, env=env, **pipes) for _ in range(2)]
    names = []
    for p in both:
        names.append(p.stdout.readline().strip())
    outs = [p.communicate("\n", timeout=PATIENCE)[1] for p in both]
    assert len(set(names)) == 2 and all(":1/small" in n for n in names), (names, outs)


TAKES = """
import sys, larder
uri, batch, rank, world = sys.argv[1], *map(int, sys.argv[2:5])
loader = larder.Loader(uri, batch_size=batch, job="exp", timeout=120, rank=rank, world_size=world)
if world == 1:
    next(it := iter(loader))
print(len(loader), flush=True)
sys.stdin.readline()
"""


def test_a_killed_job_gives_way_to_another_description(server, small):
    """Started again at once with another batch size, then as two ranks; a job whose client lives does not give way."""
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "LARDER_SOCKET": server.socket}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    def start(*arguments):
        command = [sys.executable, "-c", TAKES, f"imagefolder:{small}", *map(str, arguments)]
        return subprocess.Popen(command, env=env, **pipes)

    for batch, batches in ((8, "9"), (6, "12"), (9, "8")):
        p = start(batch, 0, 1)
        assert p.stdout.readline().strip() == batches
        other = start(4, 0, 1)
        assert "exists with another spec: batch_size" in other.communicate(timeout=PATIENCE)[1]
        p.kill()
        p.communicate(timeout=PATIENCE)
    p = start(9, 0, 2)
    assert p.stdout.readline().strip() == "4"
    p.communicate("\n", timeout=PATIENCE)


def test_a_runtime_folder_that_is_gone(server, tmp_path, monkeypatch):
    """That of a user who logged out: the command and the client look for the daemon at the same other place."""
    gone = {k: v for k, v in server.env.items() if k != "LARDER_SOCKET"} | {"XDG_RUNTIME_DIR": str(tmp_path / "gone")}
    monkeypatch.setenv("XDG_RUNTIME_DIR", gone["XDG_RUNTIME_DIR"])
    out = subprocess.run([server.binary, "status"], env=gone, capture_output=True, text=True, check=False)
    assert _daemon.default_socket() == f"/tmp/larder-{os.getuid()}/larder.sock"
    assert _daemon.default_socket() in out.stdout + out.stderr
