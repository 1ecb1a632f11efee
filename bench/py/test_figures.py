"""Tests of what bench.py makes of its runs: .venv/bin/python -m pytest bench/py"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import figures
import loaders
import native
import peer_tensorsocket
import promises
import python_datasets
from figures import Bar, Source


def runs(**values: list[float]) -> figures.Runs:
    return {label: [{"k": v} for v in vs] for label, vs in values.items()}


def bar(at: float, **more: object) -> Bar:
    return Bar("x", Source("mine", "k"), at, (Source("a", "k"), Source("b", "k")), "peers", **more)


def test_the_best_reference_counts_and_the_lower_end_decides() -> None:
    f = figures.figure(bar(2.0), runs(mine=[10, 11, 12, 11], a=[1, 1, 1, 1], b=[5, 5, 5, 5]))
    assert f.best == "b" and f.value == pytest.approx(2.2)
    assert f.low == pytest.approx(2.0, abs=0.11) and f.low < f.value < f.high
    assert figures.figure(bar(2.19), runs(mine=[10, 11, 12, 11], a=[1] * 4, b=[5] * 4)).met is False
    assert figures.figure(bar(1.9), runs(mine=[10, 11, 12, 11], a=[1] * 4, b=[5] * 4)).met is True


def test_a_bar_may_set_less_for_the_end_of_the_interval() -> None:
    mine, a = [10, 11, 12, 11], [10] * 4  # 1.1x, 1.0x to 1.2x
    reached = {end: figures.figure(Bar("x", Source("mine", "k"), 1.05, (Source("a", "k"),), end=end),
                                   runs(mine=mine, a=a)).met for end in (None, 0.95, 1.04)}
    assert reached == {None: False, 0.95: True, 1.04: False}
    above = Bar("x", Source("mine", "k"), 1.2, (Source("a", "k"),), end=0.5)
    assert not figures.figure(above, runs(mine=mine, a=a)).met
    less = Bar("x", Source("mine", "k"), 11.5, at_least=False, end=12.5)
    assert figures.figure(less, runs(mine=mine)).met
    assert "≤ 11.50x, its end ≤ 12.50x" in figures.bars_table([figures.figure(less, runs(mine=mine))])[2]


def test_what_was_measured_in_turn_in_one_run_is_compared_run_by_run() -> None:
    b = Bar("x", Source("mine", "k"), 0.7, (Source("mine", "of"),), "memcpy")
    # a machine that is now fast, now slow
    some = {"mine": [{"k": 8.0, "of": 10.0}, {"k": 15.0, "of": 20.0}, {"k": 7.8, "of": 10.0}]}
    f = figures.figure(b, some)
    assert (f.value, f.low, f.high) == pytest.approx((0.78, 0.75, 0.8)) and f.met
    apart = {"mine": [{"k": r["k"]} for r in some["mine"]], "other": [{"of": r["of"]} for r in some["mine"]]}
    assert not figures.figure(Bar("x", Source("mine", "k"), 0.7, (Source("other", "of"),)), apart).met


def test_the_bare_loop_compiles(tmp_path):
    command = native.bare_command(tmp_path / "bare")
    if not shutil.which(command[0]) or "turbo" not in os.environ.get("TAGS", "turbo"):
        pytest.skip("there is no C compiler, or no libjpeg-turbo")
    done = subprocess.run([*command, "-fsyntax-only"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_bare_loop_is_given_what_it_knows() -> None:
    start = b"\xff\xd8\xff\xe0\x00\x04ab"

    def frame(kind: int, components: int) -> bytes:
        return bytes([0xFF, kind, 0, 8 + 3 * components, 8, 1, 44, 2, 88, components]) + bytes(3 * components)

    assert native.jpeg_size(start + frame(0xC0, 3) + b"\xff\xd9") == (600, 300)
    assert native.jpeg_size(start + frame(0xC0, 1) + b"\xff\xd9") == (600, 300)
    assert native.jpeg_size(start + frame(0xC2, 3) + b"\xff\xd9") is None  # progressive
    assert native.jpeg_size(start + frame(0xC0, 4) + b"\xff\xd9") is None  # CMYK
    assert native.jpeg_size(b"\x89PNG\r\n\x1a\n" + bytes(20)) is None
    rng = native.random.Random(1)
    for _ in range(1000):
        x, y, w, h = native.crop(rng, 600, 300)
        assert 0 <= x and 0 <= y and w > 0 and h > 0 and x + w <= 600 and y + h <= 300


def test_less_is_better_turned_round() -> None:
    f = figures.figure(bar(9.0, inverse=True), runs(mine=[0.5, 0.5, 0.5], a=[5, 5, 5]))
    assert f.value == pytest.approx(10) and f.met


def test_the_upper_end_decides_where_less_is_better() -> None:
    b = Bar("p99", Source("mine", "k"), 500, at_least=False, unit="µs")
    assert figures.figure(b, runs(mine=[100, 200, 480])).met
    assert not figures.figure(b, runs(mine=[100, 200, 520])).met


def test_what_was_not_run_or_too_rarely_has_no_verdict() -> None:
    assert figures.figure(bar(1), runs(mine=[3, 3, 3])).why == "peers: not run"
    assert figures.figure(bar(1), runs(a=[3, 3, 3])).why == "not run"
    f = figures.figure(bar(1), runs(mine=[3, 3], a=[1, 1, 1]))
    assert f.why == "too few runs" and not f.met
    assert figures.figure(bar(1, counted=True), runs(mine=[3], a=[1])).met
    assert figures.figure(bar(1, valid=lambda _: "too busy"), runs(mine=[3] * 3, a=[1] * 3)).why == "too busy"


def test_a_change_is_claimed_only_outside_of_the_interval() -> None:
    def said(before: list[float], after: list[float], more: bool = True) -> str:
        table = figures.change_table({"base: r": [{"k": v} for v in before], "this: r": [{"k": v} for v in after]},
                                     "base", "this", {"k": more})
        return table[2].split("|")[-2].strip()

    assert said([10, 11, 12, 10], [20, 21, 22, 20]) == "better"
    assert said([10, 11, 12, 10], [20, 21, 22, 20], more=False) == "worse"
    assert said([10, 20, 30, 15], [11, 21, 31, 16]) == "no change shown"
    assert said([100, 100, 100], [101, 101, 101]) == "no change shown"  # below 2 %
    assert said([10, 11], [20, 21]) == "too few runs"


def test_rows_are_replaced_between_the_marks_only(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{figures.BEGIN}\nold\n{figures.END}\nafter\n")
    figures.replace_between(page, ["| new |"])
    assert page.read_text() == f"before\n{figures.BEGIN}\n| new |\n{figures.END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(SystemExit):
        figures.replace_between(page, [])
    assert page.read_text() == "no marks"


def test_the_published_page_has_its_marks() -> None:
    text = (loaders.ROOT / "docs/benchmarks.md").read_text()
    assert text.count(figures.BEGIN) == 1 and text.count(figures.END) == 1


def test_processor_time_of_the_collector_is_read() -> None:
    line = ("gc 7 @0.381s 4%: 0.12+0.41+0.005 ms clock, 0.24+0.10/0.35/0.52+0.010 ms cpu, 4->4->1 MB, 4 MB goal, "
            "0 MB stacks, 0 MB globals, 2 P")
    one = 1e-3 * (0.24 + 0.10 + 0.35 + 0.010)  # not the 0.52 of idle processors
    assert loaders.gc_seconds(line) == pytest.approx(one)
    assert loaders.gc_seconds(f"time=… level=INFO msg=serving\n{line}\n{line}\n") == pytest.approx(2 * one)
    assert loaders.gc_seconds("time=… level=INFO msg=serving") == 0


def test_a_peer_that_stalls_is_not_a_slow_peer() -> None:
    steady = [[(t + d, 64) for t in (1.0, 2.0, 4.0, 6.0) for d in (0.0, 0.5)] for _ in range(2)]
    assert peer_tensorsocket.rate(steady, 2, 0) == {"warm": pytest.approx(2 * 3 * 128 / 5.0), "stalled": 0}
    # two messages were there before
    assert peer_tensorsocket.rate(steady, 2, 3) == {"warm": pytest.approx(2 * 128 / 2.0), "stalled": 0}
    assert peer_tensorsocket.rate([steady[0], steady[1][:5]], 2,
                                  0) == {"warm": pytest.approx(3 * 128 / 5.0 + 128 / 1.0), "stalled": 0}
    assert peer_tensorsocket.rate([steady[0], []], 2, 0) == {"stalled": 1}
    assert peer_tensorsocket.rate([steady[0][:3], steady[1]], 2, 0) == {"stalled": 1}  # one message has no rate
    assert peer_tensorsocket.rate([[(1.0, 64)], [(1.0, 64)]], 1, 0) == {"stalled": 2}
    some = {"mine": [{"k": 3.0}] * 3, "a": [{"stalled": 1.0}] * 3, "b": [{"k": 1.0}] * 3}
    assert figures.figure(bar(2), some).best == "b"
    none = {"mine": [{"k": 3.0}] * 3, "a": [{"stalled": 1.0}] * 3}
    assert figures.figure(bar(2), none).why == "peers: not run" and not figures.figure(bar(2), none).met


@pytest.mark.nightly
def test_every_bar_names_a_figure_that_a_run_gives() -> None:
    import bench

    names = [b.mine.label for b in bench.bars()] + [s.label for b in bench.bars() for s in b.reference]
    build = loaders.Build("this", "larder", loaders.ROOT)
    steps = {s.label for s in (*bench.larder_steps(build, False, "bare"), *bench.torch_steps(True),
                               *bench.tensorsocket_steps("python", True))}
    assert set(names) <= steps, set(names) - steps


def test_epochs_after_a_moment_count_until_the_first_job_ends() -> None:
    a = {"samples": 10, "marks": [0, 1, 2, 3, 4]}
    b = {"samples": 10, "marks": [0, 2, 4, 6, 8]}
    # From 0.5 on: a has 1-2, 2-3, 3-4, b has 2-4; what b does after a's end is done with more of the machine.
    assert promises.rate_after([a, b], 0.5) == pytest.approx(10 + 5)
    with pytest.raises(SystemExit, match="too short"):
        promises.rate_after([a, b], 2.5)


def test_every_bar_of_the_promises_has_its_runs() -> None:
    runs = {s.label: [{s.key: 10.0}] * 3 for b in promises.bars() for s in (b.mine, *b.reference)}
    assert all(figures.figure(b, runs).met for b in promises.bars())
    runs["all fits, killed"] = [{"rate": 9.0}] * 3
    assert [figures.figure(b, runs).met for b in promises.bars()].count(False) == 1


@pytest.mark.parametrize("package", ["engine", "prep"])
def test_the_go_packages_with_benchmarks_are_there(package):
    this = loaders.Build("this", "", loaders.ROOT)
    folder = loaders.ROOT / native.room(this, package)
    assert any("func Benchmark" in f.read_text() for f in folder.glob("*_test.go")), folder


def test_python_datasets_count_what_came_after_the_first_batch() -> None:
    one = {"marks": [1.0, 2.0, 4.0], "cpu": 0.5, "samples": 100, "late": 20}
    two = {"marks": [1.5, 3.0, 4.0], "cpu": 0.5, "samples": 100, "late": 20}
    r = python_datasets.rates([one], 1.0)
    assert r == pytest.approx({"first": 80.0, "later": 50.0, "cpu": 7500.0})
    both = python_datasets.rates([one, two])
    assert both == pytest.approx({"first": 160 / 2.0, "later": 200 / 2.0, "cpu": 2500.0})


def test_python_datasets_measure_what_their_bars_name() -> None:
    labels = [label for label, _ in python_datasets.steps_of(loaders.Build("x", "x", loaders.ROOT), "x")]
    for b in python_datasets.bars():
        assert {b.mine.label, *(s.label for s in b.reference)} <= set(labels)
    order = []
    steps = [(name, lambda name=name: order.append(name) or {"first": 1.0}) for name in ("a", "b")]
    runs = figures.in_turn(steps, 0, False)
    assert order == ["a", "b", "b", "a", "a", "b"] and len(runs["a"]) == figures.FEWEST
    assert len(figures.in_turn(steps, 0, True)["b"]) == 1
    page = (loaders.ROOT / "docs/benchmarks.md").read_text()
    assert page.count(python_datasets.BEGIN) == page.count(python_datasets.END) == 1
