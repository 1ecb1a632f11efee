"""Fork, spawn, ranks and names: which process speaks for which rank."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import types
import warnings

import numpy as np
import pytest
from conftest import HERE, eventually
from fake_samples import expected_fixed
from real import PATIENCE, night

import larder
from larder import _ranks
from larder._ranks import Place, default_name, find

CROP = [larder.ops.CenterCrop((8, 10))]


def iterate(loader, queue):
    try:
        ids = []
        for images, _labels, index in loader:
            for image, i in zip(images, index, strict=True):
                assert np.array_equal(image, expected_fixed(int(i), loader.epoch))
            ids += index.tolist()
        queue.put(ids)
    except larder.Error as e:
        queue.put(e)


def in_child(method, loader):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    p = context.Process(target=iterate, args=(loader, queue))
    p.start()
    try:
        return queue.get(timeout=PATIENCE)
    finally:
        p.join(PATIENCE)
        assert p.exitcode == 0


@pytest.fixture
def spawnable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{HERE.parent}{os.pathsep}{HERE}")


@pytest.mark.parametrize("method", ["fork", *night("spawn", "forkserver")])
def test_a_loader_works_in_a_child(load, daemon, spawnable, method):
    loader = load("fake:50", batch_size=7, transform=CROP, return_index=True)
    assert in_child(method, loader) == list(range(50))
    eventually(lambda: daemon.detached == [loader.job])  # the child left in order
    assert sorted(int(i) for *_, x in loader for i in x) == list(range(50))  # and the parent can go on


@pytest.mark.parametrize("method", ["fork", *night("spawn")])
def test_two_live_processes_on_one_rank(load, spawnable, method):
    loader = load("fake:50", batch_size=7, transform=CROP, return_index=True)
    it = iter(loader)
    e = in_child(method, loader)
    assert type(e) is larder.RankHeldError and f"process {os.getpid()}" in str(e)
    assert sum(len(x) for *_, x in it) == 50


def test_an_iterator_does_not_cross_a_fork(load, daemon):
    loader = load("fake:50", batch_size=7, transform=CROP, return_index=True)
    it = iter(loader)
    batch = next(it)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            next(it)
        except larder.StaleError as e:
            code = 0 if "made in process" in str(e) else 2
        del batch  # must not give the parent's slot back
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    loader.stats()
    assert daemon.releases == []
    kept, batch = batch[2].tolist(), None
    seen = [*kept, *(int(i) for *_, x in it for i in x)]
    assert seen == list(range(50))


def test_a_forked_child_does_not_hide_the_parents_death(load, daemon, tmp_path):
    code = f"""
import os, signal, sys, larder
loader = larder.Loader("fake:50", batch_size=7, endpoint={daemon.path!r}, job="parent")
it = iter(loader); next(it)
if os.fork() == 0:
    signal.pause()
    os._exit(0)
print("ready", flush=True)
signal.pause()
"""
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    p = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert p.stdout is not None and p.stdout.readline() == b"ready\n"
        assert [x.job for x in daemon.attached()] == ["parent"]
        p.kill()
        eventually(lambda: not daemon.attached())  # the child lives on
    finally:
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        p.stdout.close()


def asleep(daemon):
    """Whether the one client waits in next(): it asked to be woken at the next post."""
    peers = daemon.attached()
    return len(peers) == 1 and peers[0].board is not None and peers[0].segments[0][peers[0].board + 64] == 1


def test_a_fork_while_another_thread_waits(load, daemon):
    daemon.hold = True
    loader = load("fake:50", batch_size=7, transform=CROP, return_index=True)
    it = iter(loader)
    t = threading.Thread(target=lambda: next(it))
    t.start()
    eventually(lambda: asleep(daemon))
    pid = os.fork()
    if pid == 0:
        try:
            loader.stats()  # the thread that held the lock does not exist here
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    daemon.resume()
    t.join(PATIENCE)
    assert not t.is_alive()


def test_exit_without_close_detaches(daemon):
    code = f"import larder; l = larder.Loader('fake:9', batch_size=3, endpoint={daemon.path!r}, job='x'); next(iter(l))"
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    out = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], env=env, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert out.stderr == ""
    eventually(lambda: daemon.detached == ["x"])


def test_ctrl_c_ends_a_script_cleanly(daemon):
    daemon.hold = True
    code = (
        f"import larder; l = larder.Loader('fake:9', batch_size=3, endpoint={daemon.path!r}, job='x', "
        "transform=[larder.ops.CenterCrop((8, 10))])\nfor b in l: pass"
    )
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    p = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True)
    eventually(lambda: asleep(daemon))
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=PATIENCE)
    assert p.returncode != 0 and err.strip().endswith("KeyboardInterrupt")
    eventually(lambda: daemon.detached == ["x"])


def test_inside_a_torch_worker(load, daemon, torch):
    from torch.utils.data import DataLoader, IterableDataset

    class Wrapped(IterableDataset):
        def __init__(self, loader):
            self.loader = loader

        def __iter__(self):
            return iter(self.loader)

    loader = load("fake:20", batch_size=5, transform=CROP, output="torch")
    with pytest.raises(larder.InvalidError, match="inside a worker of torch's DataLoader"):
        list(DataLoader(Wrapped(loader), batch_size=None, num_workers=1))
    assert sum(len(y) for _, y in DataLoader(Wrapped(loader), batch_size=None, num_workers=0)) == 20


# ---- ranks


def test_alone():
    assert find(None, None) == Place(0, 1)


def test_explicit_wins(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert find(0, 1) == Place(0, 1, source="rank=")
    assert find(1, 2).rank == 1
    assert find(None, 1) == Place(0, 1, source="world_size=")  # e.g. a validation loader of rank 0 alone
    assert find(None, None) == Place(3, 4, source="RANK/WORLD_SIZE")


def test_torchrun_over_two_nodes(monkeypatch):
    for k, v in {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "r",
    }.items():
        monkeypatch.setenv(k, v)
    monkeypatch.setenv("SLURM_PROCID", "1")  # one Slurm task per node starts torchrun: no contradiction
    monkeypatch.setenv("SLURM_NTASKS", "2")
    for given in ((None, None), (5, 8)):
        with pytest.raises(
            larder.InvalidError, match=r"machine 1 of 2 .*8 ranks on several machines does not work yet"
        ) as e:
            find(*given)
        assert (e.value.reason, e.value.subject) == ("UNSUPPORTED", "num_nodes") and "id % 2 == 1" in e.value.hint
    assert find(1, 4) == Place(1, 4, source="rank=")  # what the hint says: the ranks of this machine alone
    assert find(None, 1) == Place(0, 1, source="world_size=")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    monkeypatch.setenv("SLURM_NODEID", "1")
    monkeypatch.setenv("SLURM_NNODES", "2")
    assert find(None, None) == Place(5, 8, source="RANK/WORLD_SIZE")  # a torchrun of its own on each machine


def test_slurm_alone_is_no_proof_of_one_job(monkeypatch):
    monkeypatch.setattr(_ranks, "_said", False)
    for k, v in {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_NODEID": "0", "SLURM_NNODES": "2"}.items():
        monkeypatch.setenv(k, v)
    with pytest.warns(larder.OneRankWarning, match=r"task 2 of 4 .*init_process_group.*rank=int.*SLURM_PROCID"):
        assert find(None, None) == Place(0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find(None, None) == Place(0, 1), "once is enough"
        assert find(0, 1).world_size == 1
        assert find(1, 2) == Place(1, 2, source="rank="), "the ranks of this machine"
    with pytest.raises(larder.InvalidError, match=r"machine 0 of 2 .*does not work yet"):
        find(2, 4)
    monkeypatch.setenv("SLURM_NNODES", "1")
    assert find(2, 4) == Place(2, 4, source="rank=")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert find(None, None) == Place(1, 4, source="RANK/WORLD_SIZE")


def test_torch_distributed_comes_first(monkeypatch):
    fake = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 2
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)
    assert find(None, None) == Place(1, 2, source="torch.distributed")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(larder.InvalidError, match=r"torch.distributed says rank 1 of 2, RANK/WORLD_SIZE says"):
        find(None, None)
    fake.is_initialized = lambda: False
    assert find(None, None).rank == 0


def test_real_torch_distributed(daemon, torch, tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch was built without torch.distributed")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert find(None, None) == Place(0, 1, source="torch.distributed")
    finally:
        torch.distributed.destroy_process_group()


def test_nonsense_in_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "one")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(larder.InvalidError, match="RANK is 'one', not a number"):
        find(None, None)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(larder.InvalidError, match=r"rank 2 of 2 \(from RANK/WORLD_SIZE\) cannot be"):
        find(None, None)


def test_names(monkeypatch):
    monkeypatch.setattr(_ranks, "_ordinals", iter(range(100)))
    assert default_name("imagefolder:/data/train/", 1).endswith(f":{os.getpid()}/train/0")
    assert default_name("imagefolder:/data/a b\n/", 1).endswith("/a-b/1")
    with pytest.raises(larder.InvalidError, match="2 ranks need a common job name"):
        default_name("x", 2)
    monkeypatch.setenv("MASTER_ADDR", "n1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert default_name("x", 2) == "n1:29500/x/2"
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert default_name("x", 2) == "slurm-77/x/3"
    monkeypatch.setenv("SLURM_STEP_ID", "1")
    assert default_name("x", 1).endswith(f":{os.getpid()}/x/4"), "tasks of a step may be independent"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert default_name("x", 2) == "slurm-77.1/x/5"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    assert default_name("x", 2) == "run/x/6"


def test_names_of_loaders_that_one_rank_has_alone(monkeypatch):
    """Every rank may have one, of one name in no two of them, and the names that ranks share do not depend on how many
    each has.
    """
    monkeypatch.setattr(_ranks, "_ordinals", iter(range(100)))
    monkeypatch.setattr(_ranks, "_alone", iter(range(100)))
    for k, v in {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "run"}.items():
        monkeypatch.setenv(k, v)
    lone = find(0, 1)
    assert (lone.rank, lone.world_size, lone.within, find(None, None).within) == (0, 1, 1, None)
    assert default_name("x", 1, lone.within) == "run/x/rank1-0"
    assert default_name("x", 2) == "run/x/0"
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert find(0, 1).within is None


def test_ranks_of_one_run_meet(daemon):
    code = f"""
import json, larder
train = larder.Loader("fake:60", batch_size=5, endpoint={daemon.path!r}, return_index=True, shuffle=True)
val = larder.Loader("fake:30", batch_size=5, endpoint={daemon.path!r}, return_index=True)
print(json.dumps([train.job, val.job, [int(i) for *_, x in train for i in x], [int(i) for *_, x in val for i in x]]))
"""
    env = {
        **os.environ,
        "PYTHONPATH": str(HERE.parent),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1234",
    }
    ranks = [
        subprocess.Popen([sys.executable, "-c", code], env={**env, "RANK": str(r)}, stdout=subprocess.PIPE, text=True)
        for r in range(2)
    ]
    import json

    a, b = (json.loads(p.communicate(timeout=PATIENCE)[0]) for p in ranks)
    assert a[0] == b[0] == "localhost:1234/60/0" and a[1] == b[1] == "localhost:1234/30/1"
    assert sorted(a[2] + b[2]) == list(range(60)) and sorted(a[3] + b[3]) == list(range(30))
