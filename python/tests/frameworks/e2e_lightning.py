"""Lightning, the real package: train, checkpoint, kill, resume, and count what the model was trained on."""

from __future__ import annotations

import lightning
import pytest
from conftest import BATCHES, SAMPLES
from harness import KILLED

VERSION = tuple(int(x) for x in lightning.__version__.split(".")[:2])


def validated(t):
    """The epochs that ended with a validation; every one had every fourth sample once."""
    runs: dict[tuple[int, int], list[int]] = {}
    for s in t.validated:
        runs.setdefault((s["epoch"], s["step"]), []).extend(s["ids"])
    assert all(sorted(ids) == list(range(0, SAMPLES, 4)) for ids in runs.values()), runs
    assert all(step == BATCHES * (epoch + 1) for epoch, step in runs), runs
    return sorted(epoch for epoch, _ in runs)


def test_killed_in_the_midst_of_an_epoch(training):
    t = training("with_lightning.py", every=8)
    t.run(KILLED, die=11)
    said = t.run()
    assert said[0]["resumed"] == 8 and {s["length"] for s in said if s["kind"] == "train"} == {BATCHES}
    t.check(SAMPLES, range(3), BATCHES)
    # Lightning 2.2 does not validate after an epoch that it resumed, whatever the loader is.
    assert validated(t) == ([1, 2] if VERSION < (2, 5) else [0, 1, 2])


def test_killed_again_and_again_in_one_epoch(training):
    t = training("with_lightning.py", every=3)
    for die in (4, 8, 8, 14, 26):
        t.run(KILLED, die=die)
    t.run()
    t.check(SAMPLES, range(3), BATCHES)


@pytest.mark.parametrize("batch", [16, 64])
def test_another_batch_size(training, batch):
    t = training("with_lightning.py", every=8)
    t.run(KILLED, die=11)
    # It iterates a loader before it loads the state, so that a job that has another description needs another name.
    t.run(batch=batch, job="train again")
    t.check(SAMPLES, range(3))


def test_a_checkpoint_at_the_last_batch(training):
    t = training("with_lightning.py", every=BATCHES)
    t.run(KILLED, die=24)
    assert t.run()[0]["resumed"] == BATCHES
    # Lightning 2.5 and 2.6 count the epoch twice, whatever the loader is, and train one less.
    t.check(SAMPLES, range(3) if VERSION < (2, 5) else [0, 2], BATCHES)


def test_a_checkpoint_at_the_end_of_an_epoch(training):
    t = training("with_lightning.py")
    t.run(KILLED, die=24)
    assert t.run()[0]["resumed"] == BATCHES
    t.check(SAMPLES, range(3), BATCHES)


def test_script_and_daemon_are_killed(training, lives):
    t = training("with_lightning.py", every=8)
    t.run(KILLED, die=27)
    lives.restart()
    assert t.run()[0]["resumed"] == 24
    t.check(SAMPLES, range(3), BATCHES)


def test_the_daemon_is_killed_under_it(training, lives):
    t = training("with_lightning.py", every=8)
    process = t.start()
    t.until(process, 23)
    lives.restart()
    t.finish(process, 0)
    t.check(SAMPLES, range(3), BATCHES)
    assert validated(t) == [0, 1, 2]


def test_two_ranks(training):
    t = training("with_lightning_ddp.py", every=4)
    t.run(KILLED, die=6)
    assert t.run()[0]["resumed"] == 4
    t.check(SAMPLES, range(3), BATCHES, ranks=2)
