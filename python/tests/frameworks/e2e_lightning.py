"""Lightning, the real package: train, checkpoint, kill, resume, and count what the model was trained on."""

from __future__ import annotations

import lightning
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


def test_smaller_batches(training):
    t = training("with_lightning.py", every=8)
    t.run(KILLED, die=11)
    # It iterates a loader before it loads the state, so that a job that has another description needs another name.
    t.run(batch=16, job="train again")
    t.check(SAMPLES, range(3))


def test_larger_batches_end_the_epoch_early(training):
    """As docs/resume.md warns: Lightning takes the length before it loads the state, and stops by that count. Later
    epochs are whole.
    """
    t = training("with_lightning.py", every=8)
    t.run(KILLED, die=11)
    t.run(batch=64, job="train again")
    by_epoch = {e: [i for s in t.counted if s["epoch"] == e for i in s["ids"]] for e in range(3)}
    assert [len(ids) for ids in by_epoch.values()] == [8 * 32 + (64 if VERSION >= (2, 5) else 128), SAMPLES, SAMPLES]
    assert all(len(set(ids)) == len(ids) for ids in by_epoch.values())


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
