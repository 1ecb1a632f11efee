"""docs/ddp.md: its code runs as it stands on two ranks, and what it says of ranks is so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from real import PATIENCE, ROOT, draw, free_port

PAGE = (ROOT / "docs" / "ddp.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
BEGIN, RANK0, ALL, CHECKPOINTS = BLOCKS
N, M = 75, 21  # samples of training and validation


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    pytest.importorskip("PIL.Image", reason="Pillow draws the images")
    folder = tmp_path_factory.mktemp("ddp")
    draw(folder / "train", 5, N // 5, size=(20, 40))
    draw(folder / "val", 3, M // 3, size=(20, 40), seed=2)
    return folder


@pytest.fixture
def ranks(server, data, tmp_path, torch):
    """Runs code on ranks as torchrun starts them (Debian's torchrun does not start); returns what each `say`s."""
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch was built without torch.distributed")

    def run(code, world=2, check=True):
        code = "import json\ndef say(**what): print('SAID', json.dumps(what), flush=True)\n" + code
        for was, now in {
            "/data/checkpoint.pt": str(tmp_path / "checkpoint.pt"),
            "/data/": f"{data}/",
            "range(90)": "range(2)",
            ", 90)": ", 2)",
            "batch_size=64": "batch_size=8",
        }.items():
            code = code.replace(was, now)
        script = tmp_path / "train.py"
        script.write_text(code)
        env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "LARDER_SOCKET": server.socket, "OMP_NUM_THREADS": "1"}
        env |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        made, files = [], []
        try:
            for r in range(world):
                files.append(open(tmp_path / f"rank{r}.out", "w+"))
                command, of = [sys.executable, str(script)], {"RANK": str(r), "LOCAL_RANK": str(r)}
                made.append(subprocess.Popen(command, env=env | of, stdout=files[r], stderr=subprocess.STDOUT))
            codes = [p.wait(PATIENCE) for p in made]
        finally:
            outs = []
            for p, f in zip(made, files, strict=True):
                p.kill()
                p.wait()
                f.seek(0)
                outs.append(f.read())
                f.close()
        assert codes == [0] * world or not check, "\n".join(outs)
        return [[json.loads(line[5:]) for line in out.splitlines() if line.startswith("SAID ")] for out in outs], outs

    return run


def ids_of(loader):
    return f"[i for *_, ids in {loader} for i in ids.tolist()]"


@pytest.mark.nightly
def test_rank_0_validates_alone(ranks):
    said, outs = ranks(BEGIN + RANK0 + "say(batches=len(train), place=repr(train))\n")
    assert (
        [s[0]["batches"] for s in said] == [5, 5]
        and "rank=0/2" in said[0][0]["place"]
        and "rank=1/2" in said[1][0]["place"]
    )
    assert re.findall(r"epoch (\d): \d+ of (\d+) right", outs[0]) == [("0", str(M)), ("1", str(M))]
    assert "right" not in outs[1]


# The first loader of the page, again, of which one rank leaves an epoch early.
BREAK = "train.close()\n" + BEGIN[BEGIN.index("train =") : BEGIN.index("net =")] + (
    "n = 0\n"
    "for b in train:\n"
    "    n += len(b[2])\n"
    "    if rank == 0 and n == 16:\n"
    "        break\n"
    f"del b\nsay(first=n, then=len({ids_of('train')}), epoch=train.epoch)\n"
)
BREAK = BREAK.replace("shuffle=True,", "shuffle=True, return_index=True,")


@pytest.fixture
def ran(ranks):
    """What two ranks do one after the other, for the tests that look at it: to import torch takes most of the time."""
    if not RAN:
        RAN.append(ranks(BEGIN + ALL + BREAK))
    return RAN[0]


RAN: list = []


def test_all_ranks_validate(ran):
    _, outs = ran
    lines = [re.findall(r"\d+ of \d+ right", out) for out in outs]
    assert lines[0] == lines[1] and lines[0][0].endswith(f"of {M} right")


@pytest.mark.nightly
def test_checkpoints(ranks, tmp_path):
    """The page's loop dies in the second epoch and is run again: on two ranks, then on one; over all of them each
    sample comes once.
    """
    begin = BEGIN.replace("shuffle=True,", "shuffle=True, return_index=True, even='none',")
    loop = CHECKPOINTS.replace("% 500", "% 2").replace(
        "for images, labels in train:", "for images, labels, ids in train:"
    )
    note = "        say(epoch=epoch, step=train.step, ids=ids.tolist())\n"
    loop = loop.replace("        optimizer.zero_grad()", note + "        optimizer.zero_grad()")
    counted: dict[int, list] = {0: [], 1: []}
    checkpoint = (0, 0)
    for world, dies_at in ((2, (1, 3)), (2, (1, 5)), (1, None)):
        code = begin + loop
        if dies_at is not None:
            die = f"        if (epoch, train.step) == {dies_at}:\n            dist.barrier()\n            os._exit(9)\n"
            code = code.replace("        say(epoch", die + "        say(epoch")
        said, outs = ranks(code, world, check=dies_at is None)
        assert all("Traceback" not in out for out in outs), outs
        for e in counted:  # what came after the checkpoint that this run began with is lost with its model
            counted[e] = [s for s in counted[e] if (e, s["step"]) <= checkpoint]
        for s in (x for one in said for x in one):
            counted[s["epoch"]].append(s)
        if dies_at is not None:
            checkpoint = (dies_at[0], (dies_at[1] - 1) // 2 * 2)
    for e, got in counted.items():
        assert sorted(i for s in got for i in s["ids"]) == list(range(N)), (
            e,
            [(s["step"], len(s["ids"])) for s in got],
        )


@pytest.mark.nightly
def test_what_a_rank_gets(ranks):
    code = BEGIN.replace("shuffle=True,", "shuffle=True, return_index=True,")
    again = code[code.index("train =") : code.index("net =")].replace("train = ", "all = ")
    code += again.replace("shuffle=True,", "shuffle=True, even='none',") + "".join(
        f"say(n=len({x}), all={x}.num_samples, ids={ids_of(x)})\n" for x in ("train", "all")
    )
    said, _ = ranks(code)
    for k, sizes in enumerate(([37, 37], [37, 38])):
        got = [s[k]["ids"] for s in said]
        assert sorted(map(len, got)) == sizes and len(set(got[0]) | set(got[1])) == sum(sizes)
        assert all(s[k]["n"] == 5 and s[k]["all"] == N for s in said)


@pytest.mark.nightly
def test_a_rank_alone_is_warned_and_continues(ranks, server, clock):
    code = BEGIN.replace("shuffle=True,", "shuffle=True, return_index=True, timeout=600 if rank == 0 else 1e6,") + (
        "got = []\n"
        "if rank == 0:\n"
        "    it = iter(train)\n"
        "    try:\n"
        "        got += next(it)[2].tolist()\n"
        "    except larder.DeadlineError as e:\n"
        "        say(error=str(e))\n"
        "dist.barrier()\n"
        "it = it if rank == 0 else iter(train)\n"
        "while True:\n"
        "    try:\n"
        "        got += next(it)[2].tolist()\n"
        "    except larder.DeadlineError:\n"
        "        continue\n"
        "    except StopIteration:\n"
        "        break\n"
        "say(ids=got)\n"
    )

    def waits_for_rank_1(_):
        jobs = json.loads(server.cli("jobs", "ls", "-o", "json").stdout).get("jobs") or []
        waits = [(r.get("wait") or {}) for j in jobs for r in j.get("ranks") or () if r.get("rank", 0) == 0]
        return any(w.get("cause") == "rank" and w.get("ranks") == [1] for w in waits)

    with clock.stepping(600, waits_for_rank_1):
        said, _ = ranks(code)
    assert "epoch 0 of job" in said[0][0]["error"] and "rank 0" in said[0][0]["error"]
    got = [s[-1]["ids"] for s in said]
    assert [len(set(ids)) for ids in got] == [37, 37] and not set(got[0]) & set(got[1])


def test_a_break_on_one_rank(ran):
    said, _ = ran
    assert [s[0] for s in said] == [{"first": 16, "then": 37, "epoch": 2}, {"first": 37, "then": 37, "epoch": 2}]


@pytest.mark.nightly
def test_every_rank_may_have_a_loader_of_its_own(ranks):
    """Also in a run that has a name, and when ranks have unlike numbers of them before those they share."""
    code = (
        "import os\nos.environ['TORCHELASTIC_RUN_ID'] = 'run'\n"
        + BEGIN.replace("shuffle=True,", "shuffle=True, return_index=True,").replace(
            "train = larder",
            "own = [larder.Loader('imagefolder:/data/val', batch_size=8, return_index=True, rank=0, world_size=1)\n"
            "       for _ in range(1 + rank)]\ntrain = larder",
        )
        + f"n = [sorted({ids_of('v')}) for v in own]\n"
        + f"say(job=train.job, names=[v.job for v in own], n=n, ids={ids_of('train')})\n"
    )
    said, _ = ranks(code)
    one, two = (s[0] for s in said)
    assert one["names"] == ["run/val/rank0-0"] and two["names"] == ["run/val/rank1-0", "run/val/rank1-1"]
    assert one["job"] == two["job"] == "run/train/0"
    assert one["n"] + two["n"] == [list(range(M))] * 3
    assert len(set(one["ids"]) | set(two["ids"])) == 74


@pytest.mark.nightly
def test_ranks_that_have_not_all_loaded_a_state_are_refused(ranks):
    code = BEGIN.replace("shuffle=True,", "shuffle=True, timeout=60,") + (
        "it = iter(train)\nnext(it)\nstate = train.state_dict()\ndist.barrier()\ntrain.close()\ndist.barrier()\n"
        "train = larder.Loader('imagefolder:/data/train', batch_size=8, shuffle=True, job='again', timeout=60)\n"
        "if rank == 0:\n    train.load_state_dict(state)\n    it = iter(train)\ndist.barrier()\n"
        "if rank == 1:\n"
        "    try:\n        iter(train)\n    except larder.StaleError as e:\n        say(error=str(e))\n"
        "dist.barrier()\n"
    )
    said, _ = ranks(code)
    error = said[1][0]["error"]
    assert "rank 0" in error and "rank 1" in error and "load the same state_dict in every rank" in error
