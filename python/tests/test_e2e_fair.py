"""bench/py/fair.py trains on the real daemon: no sample stays early or late, and that costs no decodes."""

from __future__ import annotations

import sys

import pytest
from real import ROOT, find_binary, night

sys.path.insert(0, str(ROOT / "bench/py"))

import fair

SAMPLES, EPOCHS = 130, 120  # with fewer than 128 samples stratified has one tile, and is epoch
ALONE = ("one", "one-epoch", "one-strict", "one-large", "disjoint")  # worlds whose jobs share nothing
FAMILY = sum(len(w.parts) for w in fair.WORLDS.values())


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fair") / "drawn"
    fair.draw(find_binary(), str(folder), SAMPLES)
    return str(folder)


@pytest.mark.parametrize("name", ["nested", *night(*(name for name in fair.WORLDS if name != "nested"))])
def test_no_sample_is_early_for_ever(name, drawn, private):
    world = fair.WORLDS[name]
    daemon = private("", *(f for kv in fair.settings(world, SAMPLES) for f in ("--set", kv)))
    rows = fair.play(daemon.socket, drawn, world, SAMPLES, EPOCHS)
    assert [r["epochs"] for r in rows] == [EPOCHS - EPOCHS // 5] * len(world.parts)
    # A fair sampler exceeds any limit of these tests once in a million runs.
    wrong = fair.judge(rows, FAMILY)
    assert not wrong, "\n".join(wrong)
    # What is in memory is not decoded again, whatever the order. An epoch ends while batches of the next one are being
    # prepared: fewer than four of each job.
    held = fair.held(world, SAMPLES)
    slack = 4 * fair.BATCH * len(rows) / rows[0]["epochs"]
    if name in ALONE:
        most = SAMPLES - held
        assert rows[0]["decodes"] > most - slack, f"the tier holds more than {held} samples: nothing is tested"
    else:  # together they decode less than if each had all the memory for itself
        most = sum(r["samples"] - held for r in rows)
    assert rows[0]["decodes"] < most + slack
