"""How runs take turns, and what bench.py makes of them: medians, intervals, bars, the rows of docs/benchmarks.md."""

from __future__ import annotations

import itertools
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Runs = dict[str, list[dict[str, float]]]  # by label
BEGIN, END = "<!-- bars: written by make bench -->", "<!-- end of the bars -->"
DRAWS = 4000
FEWEST = 3  # repetitions that an interval can be made of


def in_turn(steps: Sequence[tuple[str, Callable[[], dict[str, float]]]], minutes: float, quick: bool,
            runs: Runs | None = None) -> Runs:
    """Runs of all steps in turn, every second time backwards, for so many minutes and at least FEWEST times; once where
    quick is set. They are added to runs as they come, where a step may look at those before it."""
    runs = {} if runs is None else runs
    start = time.monotonic()
    for n in itertools.count():
        for label, take in steps if n % 2 == 0 else steps[::-1]:
            runs.setdefault(label, []).append(take())
            print(f"  {label}: " + ", ".join(f"{k} {v:,.4g}" for k, v in runs[label][-1].items()), file=sys.stderr,
                  flush=True)
        if quick or (n + 1 >= FEWEST and (time.monotonic() - start) * (n + 2) / (n + 1) > 60 * minutes):
            break
    return runs


@dataclass(frozen=True)
class Source:
    """A figure of the runs of one label."""

    label: str
    key: str

    def values(self, runs: Runs) -> list[float]:
        return [r[self.key] for r in runs.get(self.label, ()) if self.key in r]


@dataclass(frozen=True)
class Bar:
    """A figure that has to reach a bar. It is the median of mine, over the best (largest) median of reference when
    there is one; where mine and the reference were measured in turn in one run, it is the median of the ratios of the
    runs. With ``inverse`` it is the reference over mine, where less is better. at_least: the lower end of the interval
    counts, else the upper. With ``end`` the figure itself has to reach the bar, and that end of the interval this."""

    what: str
    mine: Source
    bar: float
    reference: tuple[Source, ...] = ()
    named: str = ""  # the reference, for people
    inverse: bool = False
    at_least: bool = True
    unit: str = "x"
    end: float | None = None
    counted: bool = False  # a count, not a time: one run is enough
    valid: Callable[[Runs], str] = field(default=lambda _runs: "")  # why the figure does not count


@dataclass(frozen=True)
class Figure:
    bar: Bar
    value: float
    low: float
    high: float
    best: str  # the label of the reference that counted
    why: str  # there is no figure, or it does not count

    @property
    def met(self) -> bool:
        b = self.bar
        counts = b.bar if b.end is None else b.end
        if b.at_least:
            return not self.why and self.value >= b.bar and self.low >= counts
        return not self.why and self.value <= b.bar and self.high <= counts


def bootstrap(samples: Sequence[Sequence[float]], value: Callable[[Sequence[Sequence[float]]], float]) -> tuple[float,
    float]:
    """The 95 % interval of a value of several independent samples, by the percentiles of resamples. Deterministic."""
    rng = random.Random(1)
    again = sorted(value([rng.choices(s, k=len(s)) for s in samples]) for _ in range(DRAWS))
    return again[int(0.025 * DRAWS)], again[int(0.975 * DRAWS) - 1]


def figure(bar: Bar, runs: Runs) -> Figure:
    mine = bar.mine.values(runs)
    others = [(s, s.values(runs)) for s in bar.reference]
    others = [(s, v) for s, v in others if v]
    if not mine or (bar.reference and not others):
        return Figure(bar, 0, 0, 0, "", "not run" if not mine else f"{bar.named or 'the reference'}: not run")

    def value(samples: Sequence[Sequence[float]]) -> float:
        own = statistics.median(samples[0])
        if len(samples) == 1:
            return own
        best = max(statistics.median(s) for s in samples[1:])
        top, bottom = (best, own) if bar.inverse else (own, best)
        return top / bottom if bottom else float("inf")

    samples = [mine, *(v for _, v in others)]
    if len(others) == 1 and others[0][0].label == bar.mine.label and len(mine) == len(others[0][1]):
        samples = [[b / a if bar.inverse else a / b for a, b in zip(*samples, strict=True)]]
    low, high = bootstrap(samples, value)
    best = max(others, key=lambda o: statistics.median(o[1]))[0].label if others else ""
    few = "" if bar.counted or min(map(len, samples)) >= FEWEST else "too few runs"
    return Figure(bar, value(samples), low, high, best, bar.valid(runs) or few)


def number(x: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * x:.2g} %"
    digits = 0 if abs(x) >= 100 else 1 if abs(x) >= 20 else 2
    return f"{x:,.{digits}f}{'x' if unit == 'x' else ' ' + unit if unit else ''}"


def bars_table(figures: Sequence[Figure]) -> list[str]:
    out = ["| what | figure | 95 % interval | bar | | of |", "|---|---|---|---|---|---|"]
    for f in figures:
        sign = "≥" if f.bar.at_least else "≤"
        bar = f"{sign} {number(f.bar.bar, f.bar.unit)}"
        if f.bar.end is not None:
            bar += f", its end {sign} {number(f.bar.end, f.bar.unit)}"
        if f.why and not f.value:
            out.append(f"| {f.bar.what} | – | – | {bar} | {f.why} | {f.bar.named} |")
            continue
        verdict = f.why or ("met" if f.met else "missed")
        named = f.bar.named + (f" ({f.best})" if f.best and f.best != f.bar.named and len(f.bar.reference) > 1 else "")
        out.append(f"| {f.bar.what} | {number(f.value, f.bar.unit)} | {number(f.low, f.bar.unit)} – "
                   f"{number(f.high, f.bar.unit)} | {bar} | {verdict} | {named} |")
    return out


def runs_table(runs: Runs, keys: dict[str, str]) -> list[str]:
    """Medians of every label that has one of the keys."""
    labels = [name for name, rs in runs.items() if any(k in r for r in rs for k in keys)]
    if not labels:
        return []
    out = ["", "| run | n | " + " | ".join(keys.values()) + " |", "|---|---|" + "---|" * len(keys)]
    for name in labels:
        cells = []
        for k in keys:
            v = Source(name, k).values(runs)
            cells.append(number(statistics.median(v), "") if v else "")
        out.append(f"| {name} | {len(runs[name])} | " + " | ".join(cells) + " |")
    return out


def change_table(runs: Runs, base: str, new: str, better: dict[str, bool]) -> list[str]:
    """The new build over the base, for every figure that says what is better: more (True) or less (False)."""
    out = ["| run | figure | base | new | new ÷ base | 95 % interval | |", "|---|---|---|---|---|---|---|"]
    for name in runs:
        if not name.startswith(f"{base}: "):
            continue
        rest = name[len(base) + 2:]
        for key, more in better.items():
            before, after = Source(name, key).values(runs), Source(f"{new}: {rest}", key).values(runs)
            if not before or not after or not statistics.median(before):
                continue

            def value(s: Sequence[Sequence[float]]) -> float:
                return statistics.median(s[1]) / statistics.median(s[0])

            ratio, (low, high) = value([before, after]), bootstrap([before, after], value)
            said = "no change shown"
            if min(len(before), len(after)) < FEWEST:
                said = "too few runs"
            elif abs(ratio - 1) >= 0.02 and not low <= 1 <= high:
                said = "better" if (ratio > 1) == more else "worse"
            out.append(f"| {rest} | {key} | {number(statistics.median(before), '')} | "
                       f"{number(statistics.median(after), '')} | {ratio:.3f} | {low:.3f} – {high:.3f} | {said} |")
    return out


def replace_between(page: pathlib.Path, lines: Sequence[str], begin: str = BEGIN, end: str = END) -> None:
    """Rewrites what stands between the marks of a page."""
    text = page.read_text()
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SystemExit(f"{page}: the lines {begin!r} and {end!r} must stand there once each")
    before, after = text[:text.index(begin)], text[text.index(end):]
    page.write_text(before + begin + "\n" + "\n".join(lines) + "\n" + after)
