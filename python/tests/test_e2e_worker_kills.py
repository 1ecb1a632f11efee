"""Worker processes of a Loader killed at random, LARDER_WORKER_KILLS of them, on the real daemon.

What the Loader gave is also judged by `larder audit`, as in every test of a real daemon.
"""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest
from pace import pace
from real import night

import larder

pytestmark = [pytest.mark.filterwarnings(f"ignore::larder.{w}") for w in ("NotSharedWarning", "WorkerWarning")]
KILLS = int(os.environ.get("LARDER_WORKER_KILLS", "30"))
N = 300


class Items:
    """Items that draw, or not, and take some time."""

    def __init__(self, draws):
        self.draws = draws

    def __len__(self):
        return N

    def __getitem__(self, i):
        pace(0.0005)
        return {"i": i, "draw": np.random.rand() if self.draws else 0.0}


@larder.transform(random=True)
def drawn(item, rng):
    pace(0.0005)
    return {**item, "draw": rng.random()}


def epochs(loader):
    """Endless epochs, batch by batch; None behind each."""
    while True:
        yield from loader
        yield None


@pytest.mark.parametrize("random_in", ["item", *night("step")])
def test_workers_killed_at_random_lose_and_repeat_nothing(real, random_in):
    """Every epoch has each sample once or says why not, no draw comes twice, each is the one of an undisturbed run."""
    kw = {"batch_size": 10, "shuffle": True, "num_workers": 2, "on_error": "skip", "seed": 3, "prefetch": 4}
    if random_in == "step":
        kw |= {"cache": "items", "transform": [drawn]}
    dataset = Items(random_in == "item")
    loader, twin = real(dataset, **kw), epochs(real(dataset, **kw))
    rng, kills, rounds, bad, seen = random.Random(4), 0, 0, 0, set()
    want = KILLS // 2
    while kills < want:
        rounds += 1
        got = {}
        before = {q.id for q in loader.quarantined}
        for batch in loader:
            for i, draw in zip(batch["i"].tolist(), batch["draw"].tolist(), strict=True):
                assert i not in got, "a sample came twice"
                got[i] = draw
            alive = [m for m in loader._shared.makers.crew.members if m.alive]
            if kills < want and alive and rng.random() < 0.4:
                kills += 1
                os.kill(rng.choice(alive).process.pid, signal.SIGKILL)
        expected = {}
        while (batch := next(twin)) is not None:
            expected.update(zip(batch["i"].tolist(), batch["draw"].tolist(), strict=True))
        lost = set(range(N)) - set(got)
        reasons = {q.id: q.reason for q in loader.quarantined}
        assert all("ended while it worked on it" in reasons[i] for i in lost), "killed twice at one sample"
        bad += len(lost - before)
        assert got == {i: expected[i] for i in got}
        assert not seen & set(got.values()), "a draw came twice"
        seen |= set(got.values())
    figures = f"{kills} workers killed in {rounds} epochs of {N} samples, random in the {random_in}"
    print(f"nightly: {figures}: {bad} samples left out")
    assert kills == want and bad <= kills // 2
