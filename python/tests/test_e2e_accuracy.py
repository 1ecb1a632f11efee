"""bench/py/accuracy.py trains on the real daemon: every order teaches a network, and what it writes is what the
report draws.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from fractions import Fraction

import pytest
from real import PATIENCE, ROOT, find_binary

sys.path.insert(0, str(ROOT / "bench/py"))

import accuracy

SEEDS, EPOCHS, SAMPLES = 2, 8, 900


@pytest.mark.nightly
def test_every_order_teaches(tmp_path, torch):
    out = tmp_path / "accuracy.json"
    command = [
        sys.executable,
        str(ROOT / "bench/py/accuracy.py"),
        "--bin",
        find_binary(),
        "--samples",
        str(SAMPLES),
        "--seeds",
        str(SEEDS),
        "--epochs",
        str(EPOCHS),
        "--batch",
        "16",
        "--json",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    r = json.loads(out.read_text())
    orders = [accuracy.BASELINE, *accuracy.ORDERS, accuracy.ALONE, accuracy.CONTROL]
    assert [(x["order"], x["seed"]) for x in r["runs"]] == [(o, s) for o in orders for s in range(SEEDS)]
    assert (r["kind"], r["classes"], r["train_samples"], r["validation_samples"]) == (
        "accuracy",
        10,
        SAMPLES * 3 // 4,
        SAMPLES // 4,
    )
    for x in r["runs"]:
        accuracies = x["validation_accuracy"]
        assert len(accuracies) == EPOCHS and all(0 <= a <= 1 for a in accuracies)
        # Guessing reaches the threshold once in a million epochs at most.
        if x["order"] != accuracy.CONTROL:
            assert accuracy.last(accuracies) > accuracy.threshold(0.1, SAMPLES // 4) == r["threshold"], (
                x["order"],
                x["seed"],
                accuracies,
            )
    rows = {x["order"]: x for x in r["orders"]}
    assert list(rows) == orders
    for o in (*accuracy.ORDERS, accuracy.ALONE):
        assert rows[o]["difference_low"] <= rows[o]["difference"] <= rows[o]["difference_high"]
        assert 0 < rows[o]["decodes_per_delivery"] < 1, "nothing was shared: the orders were not put to the test"
    # A third is in memory from the second epoch on; what is prepared at once for two epochs is decoded once.
    n, held = SAMPLES * 3 // 4, SAMPLES // 4
    most = (n + (EPOCHS - 1) * (n - held)) / (EPOCHS * n)
    decodes = rows[accuracy.ALONE]["decodes_per_delivery"]
    assert 0.98 * most < decodes <= most, "a third of the images should be in memory"
    assert rows[accuracy.CONTROL]["mean"] < min(rows[o]["mean"] for o in orders[:-1]), (
        "class after class teaches as well: this data shows nothing"
    )
    report = subprocess.run(
        [find_binary(), "bench", "report", str(tmp_path), "--out", "-"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert report.returncode == 0, report.stderr
    assert "14. Validation accuracy by epoch" in report.stdout
    assert f">{accuracy.ALONE}</td>" in report.stdout, "the report leaves a row out"


def test_threshold_is_out_of_reach_of_guessing():
    n, p = 150, 0.1
    limit = accuracy.threshold(p, n)
    right = round(limit * n)
    assert right == pytest.approx(limit * n)

    def reach(least):
        return float(
            sum(
                Fraction(math.comb(n, k)) * Fraction(1, 10) ** k * Fraction(9, 10) ** (n - k)
                for k in range(least, n + 1)
            )
        )

    assert reach(right) <= 1e-6 < reach(right - 1)
    assert accuracy.threshold(p, 10 * n) < limit


def test_summary_compares_seed_by_seed():
    def run(order, seed, *accuracies):
        return {"order": order, "seed": seed, "validation_accuracy": list(accuracies)}

    # Seeds differ much, orders by a constant: only pairs show it.
    runs = [run("independent", s, 0.1, 0.1, 0.1, v) for s, v in enumerate((0.5, 0.6, 0.8))]
    runs += [
        run("strict", s, 0.1, 0.1, 0.1, v + d)
        for s, (v, d) in enumerate(zip((0.5, 0.6, 0.8), (0.02, 0.03, 0.04), strict=True))
    ]
    base, strict = accuracy.summary(runs)
    assert (
        base["mean"] == pytest.approx(0.6333, abs=1e-4)
        and base["sd"] == pytest.approx(0.1528, abs=1e-4)
        and "difference" not in base
    )
    half = 4.303 * 0.01 / math.sqrt(3)
    assert (strict["difference"], strict["difference_low"], strict["difference_high"]) == pytest.approx(
        (0.03, 0.03 - half, 0.03 + half)
    )
    assert "| strict | 66.3 % |" in accuracy.table([base, strict])
    assert accuracy.last([0.0, 1.0, 0.5, 0.7, 0.2, 0.4, 0.6, 0.8]) == pytest.approx(0.7)
