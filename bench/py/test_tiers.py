"""The parts of the benchmark of the tiers that need no daemon."""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import tiers_report
import waiting

import tiers


def run(rate: float, predicted: float = 100.0, foreign: float = 0.0, cpu: float = 0.5) -> dict[str, Any]:
    return {"rate": rate, "predicted": predicted, "foreign": foreign, "daemon_cpu": cpu, "own_cpu": 0.0, "seconds": 1.0}


def cell(percent: Any, split: tuple[int, int, int], *runs: dict[str, Any], predicted: float = 100.0,
         phase: str = "alone") -> dict[str, Any]:
    return {"dataset": "drawn", "phase": phase, "budget": 1000, "percent": percent, "split": split,
            "share": split[2] > 0, "runs": list(runs),
            "predicted": {"bottleneck": {"rate": predicted}, "seneca": {"rate": 10 * predicted}}}


def test_simplex_is_complete():
    for step, n in ((20, 21), (50, 6), (100, 3)):
        splits = tiers.simplex(step)
        assert len(splits) == len(set(splits)) == n
        assert all(sum(s) == 100 and min(s) >= 0 and all(p % step == 0 for p in s) for s in splits)
    assert tiers.bytes_of((20, 30, 50), 1001) == (200, 300, 500)


def test_settings_sweep_both_sides_of_what_fits():
    for s in tiers.SETTINGS.values():
        assert s.budgets[0] < s.budgets[1]


def test_middle_takes_medians():
    a, b, c = ({"rates": {"decode": v, "augment": 10.0 - v}, "workers": 2} for v in (1.0, 5.0, 2.0))
    assert tiers.middle([a, b, c]) == {"rates": {"decode": 2.0, "augment": 8.0}, "workers": 2}


def test_on_cores_scales_processor_time():
    p = {"rates": {"decode": 3.0}, "samples_per_cpu_second": {"decode": 10.0}, "workers": 2}
    assert tiers.on_cores(p, 0.5)["rates"] == {"decode": 5.0} and p["rates"] == {"decode": 3.0}


def test_errors():
    c = cell((100, 0, 0), (1000, 0, 0), run(80, 90), run(100, 105), run(125, 100), predicted=110)
    assert tiers_report.measured(c) == 100 and tiers_report.span(c) == (80, 125)
    assert tiers_report.error(c, "bottleneck") == pytest.approx(0.1)
    assert tiers_report.error(c, "seneca") == pytest.approx(10.0)
    assert tiers_report.error_had(c) == pytest.approx(0.05)  # of 1.125, 1.05, 0.8


@pytest.mark.parametrize(("busy", "out"), [(1.0, False), (1.85, False), (1.87, True)])
def test_starved(busy: float, out: bool):
    assert tiers_report.starved(run(1, foreign=busy - 0.5), 2) is out


@pytest.mark.parametrize(("chosen", "close"), [((94, 94), True), ((80, 91), True), ((80, 89), False), ((96, 96), True)])
def test_chosen_beside_the_best(chosen: tuple[float, float], close: bool):
    best = cell((100, 0, 0), (1000, 0, 0), run(90), run(100), run(110))
    other = cell("chosen", (500, 500, 0), *(run(v) for v in chosen))
    s = tiers_report.summary([best, other], 2)
    assert s["best"] is best and s["close"] is close and s["cells"] == 2 and s["runs"] == 5


def test_predictions_know_which_jobs_work_together(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(tiers, "larder", lambda _args, *command: asked.append(command))
    group = ("drawn", "unlike", 1000)
    for degrees in ({}, {group: [2.5, 0, 0.99]}, {group: [0, 3.1, 1.5]}):
        for share in (False, True):
            tiers.tune(argparse.Namespace(), degrees, tiers.Question("file", group, share, splits=[(1, 2, 3)]))
    degrees_asked = [dict(pairwise(c)).get("--degree") for c in asked]
    # within 1 and the jobs: a run may end in mid-batch
    assert degrees_asked == [None, None, "2.5,0", "2.5,0,1", "0,3", "0,3,1.5"]
    assert ["--share" in c for c in asked] == [False, True] * 3


@pytest.mark.parametrize(("held", "want"), [(0, [2, 0, 1.5]), (0.5, [1, 2.5, 1.5]), (1, [0, 5, 1.5])])
def test_who_works_together_is_counted_without_what_is_held(held: float, want: list[float]):
    assert tiers.degrees_of({"delivered": 600, "source_reads": 300, "decodes": 420, "augments": 400},
                            held) == pytest.approx(want)


def test_jobs_that_share_do_so_in_every_split():
    args = argparse.Namespace(phases=list(tiers.PHASES), step=50, coarse="", budgets=1)
    for c in tiers.cells(args, ["drawn"]):
        assert c["share"] == (c["phase"] == "unlike" or c["split"][2] > 0), c


def result() -> dict[str, Any]:
    cells = []
    for phase in tiers.JOBS:
        for k, p in enumerate(tiers.simplex(50)):
            cells.append(cell(p, tiers.bytes_of(p, 1000), run(50 + 10 * k), run(60 + 10 * k, foreign=1.8), phase=phase))
        cells.append(cell("chosen", (700, 300, 0), run(99), run(101), phase=phase))
    cells.append(cell((0, 0, 100), (0, 0, 1000)))  # time ran out before it was measured
    reads = [{"dataset": "drawn", "order": o, "reads": n, "delivered": 900, "bound": 100, "bound_of_tier": 120} for o,
             n in
             (("epoch", 120), ("epoch", 130), ("strict", 215), ("stratified", 140))]
    return {"processors": 2, "cells": cells, "reads": reads, "profiles": {}, "settings": {}}


def test_tables_say_what_was_met_and_missed():
    text = tiers_report.text(tiers_report.merge([result()]))
    assert "| epoch | 125 | 100 | 1.250 (1.200-1.300) | 1.35: met | 1.042 | 900 |" in text
    assert "| strict | 215 | 100 | 2.150 (2.150-2.150) | 2.10: missed |" in text
    assert "| drawn | 4 jobs, staggered | 1000 B | 7 (1) |" in text
    assert "| drawn | 1 job | 1000 B | 70-30-0 | 100 (99-101) | 0-0-100 | 105 (100-110) | 0.95 | yes |" in text
    assert "nan" not in text


def test_report_is_written_between_the_marks(tmp_path: pathlib.Path):
    page = tmp_path / "measurements" / "tiers.md"
    page.parent.mkdir()
    page.write_text(f"# before\n{tiers_report.BEGIN}\nearlier figures\n{tiers_report.END}\nafter\n")
    for _ in range(2):  # the second time finds the marks again
        tiers_report.write([result()], tmp_path)
    text = page.read_text()
    assert text.startswith("# before\n") and text.endswith(
        "\nafter\n") and "earlier figures" not in text and text.count(tiers_report.BEGIN) == 1
    for name in ("tiers-predicted.svg", "tiers-splits.svg"):
        root = ET.parse(tmp_path / "img" / name).getroot()
        _, _, w, h = map(float, root.attrib["viewBox"].split())
        at = [(e.attrib.get("cx", e.attrib.get("x")), e.attrib.get("cy", e.attrib.get("y"))) for e in root.iter()
              if e.tag.endswith(("circle", "rect"))]
        points = [(float(x), float(y)) for x, y in at if x is not None]
        assert len(points) >= 3 * len(tiers.simplex(50))
        assert all(0 <= x <= w and 0 <= y <= h for x, y in points)
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="lacks the marks"):
        tiers_report.write([result()], tmp_path)


def waits(rate: float, w: float, group: str = "a", **work: float) -> waiting.Cell:
    """A split whose measured rate is what the law says with part w, times rate."""
    c = waiting.Cell((group,), tuple(work.values()), 0.0)
    return c._replace(measured=rate * c.rate(w))


def test_the_waiting_part_is_found():
    some = [waits(1, 0.15, storage=s, cpu=0.01) for s in (0.002, 0.005, 0.01, 0.02)]
    assert waiting.fit(some) == 0.15 and waiting.error(some, 0.15) == pytest.approx(0)
    # With one resource there is nothing to hide: every part predicts the same.
    alone = [waits(1, 0.15, storage=0.01)]
    assert waiting.error(alone, 0) == waiting.error(alone, 0.5) == pytest.approx(0)


def test_the_law_chooses_worse_with_another_part():
    even, uneven = waits(1, 0.5, storage=0.01, cpu=0.01), waits(1, 0.5, storage=0.0102, cpu=0.001)
    assert waiting.worst_choice([even, uneven], 0.5) == 1
    assert waiting.worst_choice([even, uneven], 0) == pytest.approx(even.measured / uneven.measured)
    assert even.measured < uneven.measured


def test_what_trainers_limit_says_nothing_of_waiting():
    c = cell((100, 0, 0), (1000, 0, 0), run(80))
    c["predicted"]["bottleneck"] |= {"rate": 100.0, "binding": "storage", "load": {"storage": 0.8, "cpu": 0.4}}
    cells = waiting.cells("x", {"cells": [c]})
    assert len(cells) == 1 and cells[0].work == (0.008, 0.004) and cells[0].measured == 80
    c["predicted"]["bottleneck"]["binding"] = "training"
    assert waiting.cells("x", {"cells": [c]}) == []


def test_suffixes_are_those_that_the_daemon_indexes():
    code = (pathlib.Path(__file__).parents[2] / "internal/source/pyorder.go").read_text()
    listed = re.search(r"imageSuffixes = \[\]string\{(.*)\}", code)
    assert listed and tuple(re.findall(r'"(\.\w+)"', listed[1])) == tiers.SUFFIXES
