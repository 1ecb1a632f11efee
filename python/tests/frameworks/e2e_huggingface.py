"""Accelerate or Hugging Face's Trainer, the real package: train, checkpoint, kill, resume, count what it trained on.

The script is that of the environment: the Trainer's where transformers is installed, else Accelerate's (Accelerate
alone).
"""

from __future__ import annotations

from importlib.util import find_spec

from conftest import BATCHES, SAMPLES
from harness import KILLED

SCRIPT = "with_trainer.py" if find_spec("transformers") else "with_accelerate.py"


def test_killed_in_the_midst_of_an_epoch(training):
    t = training(SCRIPT, every=8)
    t.run(KILLED, die=11)
    said = t.run()
    assert said[0]["resumed"] == 8 and {s["length"] for s in said if s["kind"] == "train"} == {BATCHES}
    t.check(SAMPLES, range(3), BATCHES)


def test_killed_again_and_again_in_one_epoch(training):
    t = training(SCRIPT, every=3)
    for die in (4, 8, 8, 14, 26):
        t.run(KILLED, die=die)
    t.run()
    t.check(SAMPLES, range(3), BATCHES)


def test_a_checkpoint_at_the_last_batch(training):
    t = training(SCRIPT, every=BATCHES)
    t.run(KILLED, die=24)
    assert t.run()[0]["resumed"] == BATCHES
    t.check(SAMPLES, range(3), BATCHES)


def test_a_checkpoint_at_the_end_of_an_epoch(training):
    t = training(SCRIPT)
    t.run(KILLED, die=24)
    assert t.run()[0]["resumed"] == BATCHES
    t.check(SAMPLES, range(3), BATCHES)


def test_script_and_daemon_are_killed(training, lives):
    t = training(SCRIPT, every=8)
    t.run(KILLED, die=27)
    lives.restart()
    assert t.run()[0]["resumed"] == 24
    t.check(SAMPLES, range(3), BATCHES)


def test_the_daemon_is_killed_under_it(training, lives):
    t = training(SCRIPT, every=8)
    process = t.start()
    t.until(process, 23)
    lives.restart()
    t.finish(process, 0)
    t.check(SAMPLES, range(3), BATCHES)
