"""End to end: scripts that are killed and go on from the last state they saved, on one daemon and from one to
another.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys

import pytest
from real import HERE, PATIENCE, digest, draw, night

import larder

RUNS = int(os.environ.get("LARDER_RESUMES", "10"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("resume"), 5, 24)


N = 120


def take(it, n):
    out = []
    for _ in range(n):
        out += next(it)[2].tolist()
    return out


def rest(loader):
    return [i for batch in loader for i in batch[2].tolist()]


@pytest.mark.parametrize(
    ("portable", "order"),
    [
        *((False, order) for order in ("stratified", "strict", None)),
        (True, "stratified"),
        *night((False, "epoch"), (False, "fixed")),
        *night(*((True, order) for order in ("strict", "epoch", "fixed", None))),
    ],
)
def test_continues_within_an_epoch(lives, loads, folder, order, portable):
    """A chain of seven loaders of other batch sizes in one epoch, each a job of its own or the same name again."""
    x = lives()
    uri = f"imagefolder:{folder}"
    how = {"shuffle": order is not None, "order": order, "seed": 4}
    a = loads(x, uri, job="a", batch_size=5, **how)
    whole = {}
    for epoch in range(2):
        whole[epoch] = [(i, digest(im)) for b in a for im, i in zip(b[0], b[2].tolist(), strict=True)]
    it = iter(a)
    got = take(it, 3)
    state = a.state_dict(portable=portable)
    steps = a.step
    assert (steps, len(a)) == (3, 24)
    take(it, 2)  # after the checkpoint: comes again
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < (6000 if portable else 600)
    for k, size in enumerate((7, 3, 11, 4, 2, 9)):
        b = loads(x, uri, job=f"b{k}", batch_size=size, **how)
        b.load_state_dict(state)
        assert b.state_dict() == state and b.epoch == 2
        # The whole epoch, as frameworks count it: their number of the batch continues through the chain, whatever the
        # sizes of batches were.
        length = max(-(-N // size), steps + -(-(N - len(got)) // size))
        assert (b.step, len(b), b.num_samples) == (steps, length, N)
        it = iter(b)
        assert (b.step, len(b), b.num_samples) == (steps, length, N)
        if k < 5:
            got += take(it, 2)
            steps += 2
            assert (b.step, len(b)) == (steps, length)
            state = b.state_dict(portable=portable)
            assert (state["step"], state.get("before", 0)) == (2, steps - 2)
            b.close()
            continue
        left = rest(it)
        assert sorted(got + left) == list(range(N))
        if order in (None, "fixed"):
            c = loads(x, uri, job="undisturbed", batch_size=5, **how)
            c.set_epoch(2)
            assert rest(c) == got + left
        assert (b.epoch, b.step, len(b), b.num_samples) == (3, 0, -(-N // size), N)
        assert sorted(rest(b)) == list(range(N))
    assert a.epoch == 2


def test_instances_are_those_of_the_undisturbed_run(lives, loads, folder):
    x = lives()
    uri = f"imagefolder:{folder}"
    a = loads(x, uri, job="a", batch_size=6, seed=9)
    for _ in a:
        pass
    it = iter(a)
    undisturbed = {}
    for _ in range(4):
        b = next(it)
        undisturbed |= {i: digest(im) for im, i in zip(b[0], b[2].tolist(), strict=True)}
    state = a.state_dict()
    undisturbed |= {i: digest(im) for b in it for im, i in zip(b[0], b[2].tolist(), strict=True)}
    b = loads(x, uri, job="b", batch_size=8, seed=9)
    b.load_state_dict(state)
    again = {i: digest(im) for q in b for im, i in zip(q[0], q[2].tolist(), strict=True)}
    assert len(again) == N - 24 and all(undisturbed[i] == d for i, d in again.items())


def test_the_ends_of_epochs(lives, loads, folder):
    x = lives()
    uri = f"imagefolder:{folder}"
    a = loads(x, uri, job="a", batch_size=50)
    fresh = a.state_dict()
    for _ in a:
        inside = a.state_dict()
    after = a.state_dict()
    assert (
        (fresh["epoch"], fresh["step"]) == (0, 0)
        and (inside["epoch"], inside["step"]) == (0, 3)
        and (after["epoch"], after["step"]) == (1, 0)
    )
    b = loads(x, uri, job="b", batch_size=20)
    b.load_state_dict(inside)
    assert b.state_dict() == inside
    assert rest(b) == [] and b.epoch == 1  # the loop that saved it would have ended there
    assert (b.state_dict()["epoch"], b.state_dict()["step"]) == (1, 0)
    assert sorted(rest(b)) == list(range(N))
    c = loads(x, uri, job="c", batch_size=20)
    c.load_state_dict(after)
    c.load_state_dict(after)  # twice in a row
    assert c.epoch == 1 and sorted(rest(c)) == list(range(N)) and c.epoch == 2
    c.load_state_dict(fresh)  # and back, in the same loader
    assert c.epoch == 0 and sorted(rest(c)) == list(range(N))
    it = iter(c)
    got = take(it, 2)
    c.load_state_dict(state := c.state_dict())
    assert state["step"] == 2 and sorted(got + rest(c)) == list(range(N))


def test_ranks(lives, loads, folder):
    """Two ranks save, three go on, then one."""
    x = lives()
    uri = f"imagefolder:{folder}"
    two = [loads(x, uri, job="j", batch_size=4, rank=r, world_size=2, even="none") for r in range(2)]
    its = [iter(a) for a in two]
    got = []
    for _ in range(5):
        for it in its:
            got += take(it, 1)
    states = [a.state_dict() for a in two]
    assert states[0] == states[1]
    for a in two:
        a.close()
    three = [loads(x, uri, job="j", batch_size=3, rank=r, world_size=3, even="none") for r in range(3)]
    for a in three:
        a.load_state_dict(states[0])
    its = [iter(a) for a in three]
    for _ in range(4):
        for it in its:
            got += take(it, 1)
    state = three[2].state_dict(portable=True)
    assert state == three[0].state_dict(portable=True)
    for a in three:
        a.close()
    one = loads(x, uri, job="j", batch_size=7)
    one.load_state_dict(state)
    assert sorted(got + rest(one)) == list(range(N))


@pytest.mark.parametrize("seed", [0, *night(1, 2)])
def test_chains_of_ranks(lives, loads, folder, seed):
    """A training of one to three ranks loses all of them at once, again and again in one epoch, and resumes on
    others.
    """
    x = lives(state="none" if seed == 2 else None)
    rng = random.Random(seed)
    order = rng.choice(["stratified", "strict", "fixed"])
    got, state = [], None
    for attempt in range(8):
        world, size = rng.randint(1, 3), rng.randint(1, 6)
        place = [{"rank": r, "world_size": world} for r in range(world)]
        ranks = [
            loads(x, f"imagefolder:{folder}", job=f"j{attempt}", batch_size=size, order=order, even="none", **p)
            for p in place
        ]
        if state is not None:
            for a in ranks:
                a.load_state_dict(state)
        its = [iter(a) for a in ranks]
        steps = 10**6 if attempt == 7 else rng.randint(0, 3)
        mine = []
        while steps and its:
            steps -= 1
            for it in list(its):
                try:
                    mine += next(it)[2].tolist()
                except StopIteration:
                    its.remove(it)
        if attempt == 7:
            got += mine
            break
        got += mine
        states = [a.state_dict(portable=rng.random() < 0.3 and world == 1) for a in ranks]
        state = rng.choice(states)
        for a in ranks:  # gone without a word
            a._shared.resources.session._close_socket()
    assert sorted(got) == list(range(N))


def test_another_daemon(lives, loads, folder, tmp_path):
    """A portable state goes to another machine, whose copy of the files has other times; others say what they need."""
    x, y = lives("x"), lives("y")
    uri = f"imagefolder:{folder}"
    a = loads(x, uri, job="a", batch_size=5)
    it = iter(a)
    got = take(it, 9)
    near, far = a.state_dict(), a.state_dict(portable=True)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    b = loads(y, f"imagefolder:{copy}", job="b", batch_size=8)
    with pytest.raises(larder.StateError, match=r"another daemon.*portable=True"):
        b.load_state_dict(near)
    b.load_state_dict(far)
    assert sorted(got + rest(b)) == list(range(N))


def test_changed_files_are_named(lives, loads, folder, tmp_path):
    x = lives()
    home = tmp_path / "grows"
    shutil.copytree(folder, home)
    uri = f"imagefolder:{home}"
    a = loads(x, uri, job="a", batch_size=5, shuffle=False)
    it = iter(a)
    got = take(it, 4)  # samples 0 to 19
    near, far = a.state_dict(), a.state_dict(portable=True)
    a.close()
    files = sorted(p for p in home.rglob("*") if p.is_file())
    files[3].unlink()  # was given
    files[50].unlink()  # was not
    shutil.copyfile(files[60], files[70])
    shutil.copyfile(files[0], files[0].with_name("zz-new.jpg"))
    x.daemon.cli("dataset", "refresh", uri)
    for k, state in enumerate((near, far)):
        b = loads(x, uri, job=f"b{k}", batch_size=5, shuffle=False)
        with pytest.raises(larder.StateError, match=r"1 changed .*1 new .*zz-new.jpg.*2 gone .*strict=False"):
            b.load_state_dict(state)
        with pytest.warns(larder.StateChangedWarning, match="2 gone"):
            b.load_state_dict(state, strict=False)
        left = rest(b)
        assert sorted(left) == [i for i in range(20, N + 1) if i != 50]
    assert sorted(got) == list(range(20))


def test_states_that_cannot_be(lives, loads, folder, tmp_path):
    x = lives()
    uri = f"imagefolder:{folder}"
    a = loads(x, uri, job="a", batch_size=5)
    it = iter(a)
    take(it, 3)
    state = a.state_dict()
    other = draw(tmp_path / "other", 2, 30, seed=5)
    b = loads(x, f"imagefolder:{other}", job="b", batch_size=5)
    for bad, what in (
        ({**state, "step": 7}, "edited"),
        ({**state, "epoch": 1}, "edited"),
        ({k: v for k, v in state.items() if k != "sum"}, "edited"),
        ({**state, "more": 1}, "no token"),
        ({"state": 3}, "no version"),
        ({}, "no version"),
        (state, "of another|reads other files|not those"),
    ):
        with pytest.raises(larder.StateError, match=what):
            b.load_state_dict(bad)
    with pytest.raises(larder.InvalidError, match="version 9"):
        b.load_state_dict({**state, "version": 9})
    with pytest.raises(larder.InvalidError, match="takes what state_dict"):
        b.load_state_dict("x")
    with pytest.raises(larder.InvalidError, match="none of larder"):
        b.load_state_dict({"x": object()})
    assert len(rest(b)) == 60  # it continues as if nothing had been tried
    held = loads(x, uri, job="a", batch_size=5)
    with pytest.raises(larder.RankHeldError, match="live client"):
        held.load_state_dict(state)
    assert sorted(rest(it)) and a.epoch == 1


def test_through_a_restart_of_the_daemon(lives, loads, folder):
    """The daemon dies before the state is loaded, between load and iter, and in what is left; the job continues."""
    x = lives()
    uri = f"imagefolder:{folder}"
    a = loads(x, uri, job="a", batch_size=5)
    for _ in a:
        pass
    it = iter(a)
    got = take(it, 6)
    state = a.state_dict()
    x.kill()
    a.close()
    x.start()
    b = loads(x, uri, job="a", batch_size=7)
    b.load_state_dict(state)
    x.restart()
    it = iter(b)
    got += take(it, 3)
    x.restart()
    got += take(it, 2)
    mid = b.state_dict()
    got_then = list(got)
    got += rest(it)
    assert sorted(got) == list(range(N))
    b.close()
    x.restart()
    c = loads(x, uri, job="c", batch_size=4)
    c.load_state_dict(mid)
    assert sorted(got_then + rest(c)) == list(range(N))


def test_replay(lives, loads, folder, tmp_path):
    """A recorded order gives the same batches again, bit for bit, alone and on another day."""
    x = lives()
    uri = f"imagefolder:{folder}"
    noise = loads(x, uri, job="noise", batch_size=9, seed=1)
    first = loads(x, uri, job="lr", batch_size=6, seed=5)
    other = iter(noise)
    seen = []
    for _ in range(3):
        seen.append([])
        for k, b in enumerate(first):
            seen[-1].append([(i, digest(im)) for im, i in zip(b[0], b[2].tolist(), strict=True)])
            if k % 3 == 0:
                next(other, None)
    first.close()
    noise.close()
    trace = tmp_path / "lr.order.gz"
    out = x.daemon.cli("orders", "export", "lr", str(trace))
    assert "3 epochs" in out.stdout, out.stdout
    x.restart()
    assert "120" in x.daemon.cli("orders", "ls", "lr").stdout
    again = loads(x, uri, job="again", batch_size=6, order=f"replay:{trace}")
    for want in seen:
        assert [[(i, digest(im)) for im, i in zip(b[0], b[2].tolist(), strict=True)] for b in again] == want
    with pytest.raises(larder.JobEndedError, match="epochs 0 to 2"):
        iter(again)
    with pytest.raises(larder.InvalidError, match="other files"):
        loads(x, uri, job="less", batch_size=6, order=f"replay:{trace}", subset="label < 3")
    with pytest.raises(larder.NotFoundError, match="orders export"):
        loads(x, uri, job="none", batch_size=6, order=f"replay:{tmp_path / 'none'}")


SCRIPT = """
import json, os, sys, random
sys.path.insert(0, {tests!r})
import larder
from lives import CROP
from pace import pace
a = json.loads(sys.argv[1])
rng = random.Random(a["seed"])
loader = larder.Loader(a["uri"], batch_size=a["batch"], shuffle=True, order=a["order"], seed=3, transform=[CROP],
                       return_index=True, endpoint=a["socket"], timeout=a["patience"], job=a["job"], rank=a["rank"],
                       world_size=a["world"], even="none", on_error="skip")
done = [[]]
epoch = 0
if os.path.exists(a["checkpoint"]):
    saved = json.load(open(a["checkpoint"]))
    loader.load_state_dict(saved["data"])
    done, epoch = saved["done"], saved["epoch"]
print("ready", flush=True)
while epoch < a["epochs"]:
    for k, batch in enumerate(loader):
        done[-1] += batch[2].tolist()
        print("batch", flush=True)
        pace(rng.choice((0.0, 0.002)))
        if rng.random() < 0.3:
            tmp = a["checkpoint"] + ".tmp"
            state = loader.state_dict(portable=rng.random() < 0.3)
            json.dump({{"data": state, "done": done, "epoch": epoch}}, open(tmp, "w"))
            os.replace(tmp, a["checkpoint"])
    epoch += 1
    done.append([])
json.dump(done, open(a["out"] + ".tmp", "w"))
os.replace(a["out"] + ".tmp", a["out"])  # it is there whole or not at all, whenever the script is killed
"""


@pytest.mark.parametrize("runs", [2, *night(RUNS)])
def test_killed_scripts(lives, folder, tmp_path, runs):
    """R6: a training script is killed by SIGKILL at random moments, again and again, in other batch sizes and orders;
    what the run that ends has trained on is each sample once in every epoch."""
    x = lives()
    rng = random.Random(int(os.environ.get("LARDER_SEED", "7")))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(tests=str(HERE)))
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    kills = 0
    round_ = 0
    while kills < runs:
        round_ += 1
        checkpoint, out = tmp_path / f"c{round_}.json", tmp_path / f"o{round_}.json"
        order = rng.choice(["stratified", "strict", "epoch", "fixed"])
        attempts = 0
        while not out.exists():
            attempts += 1
            if attempts == 1 or checkpoint.exists():  # with nothing to load it is the same job that comes back
                batch = rng.randint(1, 9)
            arguments = {
                "uri": f"imagefolder:{folder}",
                "batch": batch,
                "order": order,
                "socket": x.socket,
                "patience": PATIENCE,
                "checkpoint": str(checkpoint),
                "out": str(out),
                "epochs": 2,
                "seed": rng.random(),
                "rank": 0,
                "world": 1,
                # One that was killed when it had written its results is still there, with its lease.
                "job": f"train-{round_}",
            }
            p = subprocess.Popen([sys.executable, str(script), json.dumps(arguments)], stdout=subprocess.PIPE, env=env)
            assert p.stdout is not None
            assert p.stdout.readline() == b"ready\n"
            if attempts < 6 and kills < runs:
                lines = [p.stdout.readline() for _ in range(rng.randrange(30))]
                if b"" not in lines:
                    p.send_signal(signal.SIGKILL)
                    kills += 1
            p.communicate(timeout=PATIENCE)
            code = p.returncode
            assert code in (0, -signal.SIGKILL), code
        done = json.loads(out.read_text())
        assert len(done) == 3 and not done[2]
        for e in range(2):
            assert sorted(done[e]) == list(range(N)), f"round {round_} epoch {e} order {order}"
    print(f"{kills} scripts were killed in {round_} trainings")
