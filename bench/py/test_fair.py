"""Tests of what fair.py makes of the orders it was given: .venv/bin/python -m pytest bench/py

python/tests/test_e2e_fair.py runs them in CI.
"""

from __future__ import annotations

import math
import os
import pathlib
import random
import statistics
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import fair


def training(rng: random.Random, n: int, epochs: int, early: int = 0) -> list[list[int]]:
    """Fresh random orders, in which the first `early` samples come a little early."""
    out = []
    for _ in range(epochs):
        order = [3 * i for i in range(n)]  # ids are sparse
        rng.shuffle(order)
        for k in range(n):  # each of them changes places with a random one that is before it
            q = rng.randrange(n)
            if order[k] < 3 * early and q < k:
                order[k], order[q] = order[q], order[k]
        out.append(order)
    return out


def normal(values: list[float]) -> None:
    """Of so many standard normal values the mean has sd 1/√n, the rms 1/√2n: five of each, and some for what the
    approximations lack."""
    n = len(values)
    assert abs(statistics.fmean(values)) < 5 / math.sqrt(n) + 0.02
    assert abs(math.sqrt(statistics.fmean(v * v for v in values)) - 1) < 5 / math.sqrt(2 * n) + 0.02


def test_fair_orders_are_what_chance_is_said_to_be() -> None:
    rng = random.Random(4)
    rows = []
    for _ in range(200):
        rows.append(fair.figures(training(rng, 60, 40)) | {"row": "x"})
    normal([r["deviate"] for r in rows])
    normal([r["correlation"] / r["correlation_sd"] for r in rows])
    assert fair.judge(rows) == []


def test_samples_that_are_always_a_little_early_are_found() -> None:
    rng = random.Random(5)
    row = fair.figures(training(rng, 200, 320, early=60)) | {"row": "biased"}
    assert 0.3 < row["least"] < row["most"] < 0.6, "that is not a little"
    wrong = fair.judge([row])
    assert len(wrong) == 2 and all("biased" in w for w in wrong), (wrong, row)


def test_orders_that_alternate_have_good_means_and_are_found() -> None:
    rng = random.Random(6)
    orders: list[list[int]] = []
    while len(orders) < 200:
        for o in training(rng, 100, fair.LAG):
            orders.append(o)
        orders += [o[::-1] for o in orders[-fair.LAG:]]
    row = fair.figures(orders) | {"row": "mirrored"}
    assert row["deviate"] < 0 and row["sd"] < 1e-9  # a mirrored epoch makes up for its twin
    wrong = fair.judge([row])
    assert len(wrong) == 1 and "correlation of -" in wrong[0], wrong


def test_the_deviate_is_that_of_the_chi_square_distribution() -> None:
    """With an even number of degrees of freedom the upper tail is a sum of Poisson terms."""
    df = 200

    def tail(x: float) -> float:
        return sum(math.exp(-x / 2 + k * math.log(x / 2) - math.lgamma(k + 1)) for k in range(df // 2))

    for x in (150.0, 200.0, 250.0, 300.0, 320.0):
        assert statistics.NormalDist().cdf(-fair.normal_of(x, df)) == pytest.approx(tail(x), rel=0.1), x


def test_limits_share_one_error_among_all_statistics() -> None:
    most, far = fair.limits(13)
    tails = statistics.NormalDist().cdf
    assert 13 * (tails(-most) + 2 * tails(-far)) == pytest.approx(fair.ALPHA, rel=1e-6)
    assert fair.limits(1)[0] < most < far


def test_positions_are_of_whole_epochs() -> None:
    p = fair.positions([[5, 9, 7], [7, 5, 9]])
    assert p == pytest.approx(np.array([[-1 / 3, 1 / 3, 0], [0, -1 / 3, 1 / 3]]))  # of the samples 5, 7 and 9
    assert (p ** 2).mean() == pytest.approx(fair.variance(3))
    for bad in ([], [[1, 2]], [[1, 2, 3], [1, 2, 4]], [[1, 2, 2], [1, 2, 2]]):
        with pytest.raises(ValueError, match="whole epochs"):
            fair.positions(bad)
    with pytest.raises(ValueError, match="give more epochs"):
        fair.correlation(p, 5)


def test_rates_are_compared_repeat_by_repeat() -> None:
    def runs(*rates: float) -> list[dict[str, float]]:
        return [{"rate": r, "waiting": 0.01} for r in rates]

    # A machine that is now fast, now slow: neighbours in time tell the orders apart.
    some = {"strict": runs(70, 35, 70), "stratified": runs(69, 34.5, 68), "epoch": runs(60, 30, 72)}
    rows, wrong = fair.compare(some)
    assert [r["ratio"] for r in rows] == pytest.approx([1, 69 / 70, 6 / 7])
    assert len(wrong) == 1 and wrong[0].startswith("paced, epoch: 0.857")


def test_tiers_hold_what_is_said() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    entry = -(-3 * fair.SIDE**2 // page) * page
    for name, world in fair.WORLDS.items():
        for samples in (60, 61, 200):
            keys = dict(kv.split("=") for kv in fair.settings(world, samples))
            assert int(keys["tiers.decoded"]) * 15 // 16 // entry == fair.held(world, samples), (name, samples)
            assert int(keys["tiers.total"]) >= int(keys["tiers.decoded"])
