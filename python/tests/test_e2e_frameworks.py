"""End to end: the calls that training frameworks make on a loader, in their order; `make test-frameworks` has the
packages themselves.

Lightning 2.2 to 2.6: `_check_dataloader_iterable`, `_is_dataloader_shuffled`, `FitLoop.setup_data`, `_DataFetcher`,
`_TrainingEpochLoop`. Trainer of transformers 5: `set_initial_training_values`, `_init_training_state`, `_run_epoch`,
`get_batch_samples`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import HERE, PATIENCE
from real import night
from test_e2e_resume import N, folder, rest, take  # noqa: F401  (a fixture)

import larder


def lightning_shuffled(loader):
    """Whether it warns that a validation loader is shuffled: Lightning looks at these attributes of any loader."""
    if hasattr(loader, "__pl_saved_kwargs"):
        return True
    if not hasattr(loader, "sampler"):
        return False
    batch_sampler = loader.batch_sampler
    sampler = loader.sampler if batch_sampler is None else getattr(batch_sampler, "sampler", batch_sampler)
    return type(sampler).__name__ == "RandomSampler"


class Lightning:
    """The fit loop: an epoch's end is known by counting, so that the iterator is never asked for more."""

    def __init__(self, loader, checkpoint=None):
        self.loader, self.epoch, self.ready = loader, 0, 0
        iter(loader)  # whether it can be iterated
        limit = len(loader)  # before it loads the state
        if checkpoint is not None:
            checkpoint = json.loads(checkpoint)
            self.epoch, self.ready = checkpoint["epoch"], checkpoint["ready"]
            loader.load_state_dict(checkpoint["loader"])
        self.iterator = iter(loader)
        self.limit = limit
        self.max_batches = min(limit, len(loader))
        self.restarting = checkpoint is not None

    def checkpoint(self):
        return json.dumps({"epoch": self.epoch, "ready": self.ready, "loader": self.loader.state_dict()})

    def fit(self, epochs, on_batch):
        while self.epoch < epochs:
            self.loader.sampler.set_epoch(self.epoch)
            if self.epoch > 0 and not self.restarting:
                self.iterator = iter(self.loader)
            self.restarting = False
            fetched, length = self.ready, min(self.limit, len(self.loader))
            while not (self.ready >= self.max_batches or fetched >= length):
                try:
                    batch = next(self.iterator)
                except StopIteration:
                    break
                fetched += 1
                self.ready += 1
                if on_batch(self, batch[2].tolist()):
                    return
            self.epoch += 1
            self.ready = 0


@pytest.mark.parametrize("sizes", [(11, 5, 4), *night([5, 5, 5], [5, 4, 4])])
def test_a_fit_loop_that_counts(lives, loads, folder, sizes):
    """Two resumes in one epoch, then whole epochs. Before, the length was what is left, and the loop stopped short of
    it.
    """
    x = lives()
    seen, saved = {}, None
    for k, size in enumerate(sizes):
        loader = loads(x, f"imagefolder:{folder}", job=f"j{k}", batch_size=size)
        fit = Lightning(loader, saved)
        assert fit.max_batches >= -(-N // size)
        begin = fit.ready

        def on_batch(fit, ids, k=k, begin=begin):
            nonlocal saved
            seen.setdefault(fit.epoch, []).extend(ids)
            if k < 2 and fit.ready == begin + 4:
                saved = fit.checkpoint()
                return True
            return False

        fit.fit(3, on_batch)
        loader.close()
    assert [sorted(ids) for ids in seen.values()] == [list(range(N))] * 3


DIES = """
import json, os, sys
import larder
uri, socket, out = sys.argv[1:]
loader = larder.Loader(uri, batch_size=5, shuffle=True, job="j", return_index=True, endpoint=socket)
iter(loader)
got = []
for k, batch in enumerate(loader):
    got += batch[-1].tolist()
    if k == 3:
        with open(out, "w") as f:
            json.dump([got, loader.state_dict()], f)
    if k == 6:
        os.kill(os.getpid(), 9)
"""


def test_script_and_daemon_are_killed(lives, loads, folder, tmp_path):
    """The script that comes back begins an epoch, to look at the loader, before it loads its checkpoint of the one that
    was running.
    """
    x = lives()
    out = tmp_path / "saved.json"
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    died = subprocess.run(
        [sys.executable, "-c", DIES, f"imagefolder:{folder}", x.socket, str(out)], env=env, timeout=PATIENCE
    )
    assert died.returncode == -9
    x.restart()
    got, state = json.loads(out.read_text())
    loader = loads(x, f"imagefolder:{folder}", job="j", batch_size=5, transform=None)
    fit = Lightning(loader, json.dumps({"epoch": 0, "ready": 4, "loader": state}))
    seen = {}
    fit.fit(2, lambda fit, ids: seen.setdefault(fit.epoch, []).extend(ids))
    assert sorted(got + seen[0]) == list(range(N)) and sorted(seen[1]) == list(range(N))


def test_a_fit_loop_whose_checkpoint_is_the_last_batch(lives, loads, folder):
    x = lives()
    a = loads(x, f"imagefolder:{folder}", job="a", batch_size=50)
    it = iter(a)
    take(it, 3)
    saved = json.dumps({"epoch": 0, "ready": 3, "loader": a.state_dict()})
    b = loads(x, f"imagefolder:{folder}", job="b", batch_size=50)
    fit = Lightning(b, saved)
    assert (fit.max_batches, b.num_samples) == (3, N), "0 batches would end the training without a word"
    seen = {}
    fit.fit(3, lambda fit, ids: seen.setdefault(fit.epoch, []).extend(ids))
    assert {e: sorted(ids) for e, ids in seen.items()} == {e: list(range(N)) for e in (1, 2)}


def test_a_validation_loader(lives, loads, folder):
    x = lives()
    loader = loads(x, f"imagefolder:{folder}", job="val", shuffle=False)
    assert lightning_shuffled(loader) is False
    assert loader.batch_sampler is None and getattr(loader.batch_sampler, "sampler", None) is None
    it = iter(loader)  # the sanity check takes two batches
    assert take(it, 2) == list(range(8))
    for _ in range(2):
        assert rest(loader) == list(range(N))


def trainer(loader, epochs, checkpoint, on_step, accumulate=1):
    """Hugging Face's Trainer with ignore_data_skip: where it is follows from steps and length."""
    per_epoch = max(len(loader) // accumulate + (len(loader) % accumulate > 0), 1)
    step = checkpoint
    for epoch in range(step // per_epoch, epochs):
        loader.set_epoch(epoch)
        it = iter(loader)
        took = 0
        for _ in range(per_epoch):
            batches = []
            for _ in range(accumulate):
                try:
                    batches.append(next(it))
                except StopIteration:
                    break
            for batch in batches:
                took += 1
                step += 1
                if on_step(epoch, step, batch[2].tolist()):
                    return
        assert took, "it ends a training whose epoch has no batch"


@pytest.mark.parametrize("at", [24, 30, *night(4, 47, 48)])
def test_a_trainer_that_divides_steps_by_the_length(lives, loads, folder, at):
    x = lives()
    a = loads(x, f"imagefolder:{folder}", job="a", batch_size=5)  # 24 batches
    seen, saved = {}, None

    def first(epoch, step, ids):
        nonlocal saved
        seen.setdefault(epoch, []).extend(ids)
        if step == at:
            saved = json.dumps(a.state_dict())
        return step == at

    trainer(a, 3, 0, first)
    a.close()
    b = loads(x, f"imagefolder:{folder}", job="b", batch_size=5)
    b.load_state_dict(json.loads(saved))
    assert len(b) == 24
    trainer(b, 3, at, lambda epoch, step, ids: seen.setdefault(epoch, []).extend(ids))
    assert {e: sorted(ids) for e, ids in seen.items()} == {e: list(range(N)) for e in range(3)}


def test_a_number_that_is_ahead_does_not_skip_what_is_left(lives, loads, folder):
    """A framework may count epochs from elsewhere: in a second stage, or since another loader."""
    x = lives()
    a = loads(x, f"imagefolder:{folder}", job="a", batch_size=7)
    it = iter(a)
    got = take(it, 4)
    state = a.state_dict()
    b = loads(x, f"imagefolder:{folder}", job="b", batch_size=7)
    b.load_state_dict(state)
    b.set_epoch(9)
    assert (b.epoch, b.step) == (0, 4)
    assert sorted(got + rest(b)) == list(range(N)) and b.epoch == 1
    b.sampler.set_epoch(9)
    assert sorted(rest(b)) == list(range(N)) and b.epoch == 10


@pytest.mark.parametrize("even", ["drop", "none"])
def test_lengths_by_rank(lives, loads, folder, even):
    """Each rank has the length of its own whole epoch, and comes through it by counting on."""
    x = lives()
    how = {"job": "j", "batch_size": 9, "world_size": 2, "even": even, "subset": "id < 119"}
    two = [loads(x, f"imagefolder:{folder}", rank=r, **how) for r in range(2)]
    its = [iter(a) for a in two]
    whole = [len(a) for a in two]
    for _ in range(3):
        for it in its:
            next(it)
    state = two[0].state_dict()
    for a in two:
        a.close()
    again = [loads(x, f"imagefolder:{folder}", rank=r, **how) for r in range(2)]
    for a in again:
        a.load_state_dict(state)
    assert again[0].num_samples == 119
    its = [iter(a) for a in again]
    assert [len(a) for a in again] == whole and [a.step for a in again] == [3, 3]
    for a, it in zip(again, its, strict=True):
        assert a.step + sum(1 for _ in it) == len(a)


def test_an_epoch_that_continues_through_a_restart_keeps_its_length(lives, loads, folder):
    x = lives()
    a = loads(x, f"imagefolder:{folder}", job="a", batch_size=5)
    it = iter(a)
    got = take(it, 6)
    state = a.state_dict()
    b = loads(x, f"imagefolder:{folder}", job="a2", batch_size=5)
    b.load_state_dict(state)
    x.restart()
    assert (b.step, len(b), b.num_samples) == (6, 24, N)
    it = iter(b)
    got += take(it, 3)
    x.restart()
    got += take(it, 3)
    assert (b.step, len(b), b.num_samples) == (12, 24, N)
    state = b.state_dict(portable=True)
    assert (state["version"], state["step"], state["before"]) == (2, 6, 6)
    c = loads(x, f"imagefolder:{folder}", job="c", batch_size=5)
    c.load_state_dict(state)
    assert c.state_dict() == state and c.state_dict(portable=True) == state and c.step == 12
    assert sorted(got + rest(c)) == list(range(N))
    with pytest.raises(larder.StateError, match="edited"):
        c.load_state_dict({**state, "before": 5})
