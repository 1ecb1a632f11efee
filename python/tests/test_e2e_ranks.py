"""on_error="substitute" on several ranks, against the real daemon: all ranks get equally many batches, whatever cannot
be prepared.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import random

import pytest
from real import PATIENCE, Daemon, draw, night, pillow

import larder

pillow()

N, BATCH = 40, 4


def spoiled(folder, bad):
    """40 images, those of the given numbers cut off."""
    draw(folder, 4, N // 4, size=(20, 40))
    files = sorted(folder.rglob("*.*"))
    assert len(files) == N
    for i in bad:
        files[i].write_bytes(files[i].read_bytes()[:60])
    return f"imagefolder:{folder}"


def epoch(ranks):
    """What each rank gets of an epoch, batch by batch: they run side by side, each at its own speed."""
    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda loader: [index.tolist() for _, _, index in loader], ranks))


@pytest.fixture
def loaders():
    with contextlib.ExitStack() as stack:

        def make(daemon, uri, world=2, **kw):
            kw = {
                "batch_size": BATCH,
                "shuffle": True,
                "on_error": "substitute",
                "return_index": True,
                "timeout": PATIENCE,
                "job": "ranks",
            } | kw
            return [
                stack.enter_context(
                    larder.Loader(uri, endpoint=daemon.socket, rank=r, world_size=world, **kw)
                )
                for r in range(world)
            ]

        yield make


def check(got, bad, ranks):
    """Equally many batches, every good sample once at the most, and fewer than there are ranks missing."""
    batches = [len(of) for of in got]
    assert len(set(batches)) == 1, batches
    ids = sorted(i for of in got for batch in of for i in batch)
    assert len(ids) == len(set(ids))
    assert not set(ids) & set(bad)
    assert N - len(bad) - len(ranks) < len(ids) <= N - len(bad)
    return batches[0]


ORDERS = {"stratified": {"shuffle": True}, "sequential": {"shuffle": False}, "fixed": {"order": "fixed"}}
BAD = {len(bad): bad for bad in ([], [3, 4, 17, 29, 38], range(1, N), range(N), range(0, N, 2), range(15))}
FEW = [*((n, "stratified") for n in BAD), (5, "sequential"), (20, "fixed")]


@pytest.mark.parametrize(
    ("of", "order"), [*FEW, *night(*(c for c in itertools.product(BAD, ORDERS) if c not in FEW))]
)
def test_ranks_get_equally_many_batches(server, loaders, tmp_path, of, order):
    bad = BAD[of]
    ranks = loaders(server, spoiled(tmp_path / "set", bad), prefetch=1, job=f"ranks-{of}-{order}", **ORDERS[order])
    for _ in range(3):
        n = check(epoch(ranks), bad, ranks)
        if len(bad) in (0, 5):
            assert n == 5
    job = json.loads(server.cli("jobs", "describe", f"ranks-{of}-{order}", "-o", "json").stdout)
    for e in job["epochs"][:3]:
        d = {k: int(e.get(k) or 0) for k in ("subset", "delivered", "quarantined", "dropped")}
        assert d["delivered"] + d["quarantined"] + d["dropped"] == d["subset"] == N, e
        assert d["quarantined"] == len(bad), e


def test_a_rank_that_is_behind_is_named(private, loaders, tmp_path):
    daemon = private("tiers: {total: 64MiB}\nmemory: {limit: 1GiB}\n")
    ranks = loaders(daemon, spoiled(tmp_path / "set", [7]), prefetch=1)
    ahead, behind = (iter(r) for r in ranks)
    ranks[0]._shared.timeout = 2.0
    with pytest.raises(larder.DeadlineError, match="rank 1, whose batch of this step is not ready") as e:
        for _ in range(N // BATCH):
            next(ahead)
    assert e.value.cause == "rank"
    ranks[0]._shared.timeout = PATIENCE
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        late = pool.submit(next, ahead)
        for _ in range(4):  # gives three back, of a ring of at most three
            next(behind)
        assert late.result() is not None


@pytest.mark.parametrize("seed", [0, 1, *night(2, 3)])
def test_deaths_of_the_daemon_keep_ranks_in_step(loaders, tmp_path, seed):
    dice = random.Random(seed)
    bad = dice.sample(range(N), dice.choice([5, 15, 30]))
    uri = spoiled(tmp_path / "set", bad)
    config = f"state: {{dir: {tmp_path / 'state'}}}\ntiers: {{total: 64MiB}}\nmemory: {{limit: 1GiB}}\n"
    daemon = Daemon(tmp_path / "d", config=config)
    try:
        ranks = loaders(daemon, uri, prefetch=2)
        for _ in range(3):
            got: list[list[list[int]]] = [[] for _ in ranks]
            live = {r: iter(loader) for r, loader in enumerate(ranks)}
            die = dice.randrange(2 * N // BATCH // 2)
            with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
                while live:
                    if sum(map(len, got)) >= die:
                        daemon.kill()
                        daemon, die = Daemon(tmp_path / "d", config=config), N
                    for r, batch in list(zip(live, pool.map(lambda it: next(it, None), live.values()), strict=True)):
                        if batch is None:
                            del live[r]
                        else:
                            got[r].append(batch[2].tolist())
            check(got, bad, ranks)
    finally:
        for loader in ranks:
            loader.close()
        daemon.stop()
