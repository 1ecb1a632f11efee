"""Turns the figures of tiers.py into tables and plots: predicted beside measured rates, and reads beside their lower
bound."""

from __future__ import annotations

import html
import math
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

BEGIN, END = "<!-- measured: written by bench/py/tiers.py --report -->", "<!-- end of what is measured -->"
PHASES = {"alone": "1 job", "aligned": "4 jobs, aligned", "staggered": "4 jobs, staggered",
          "unlike": "3 jobs, batches 25, 50, 75"}
FORMS = ("encoded", "decoded", "augmented")
FREE = 0.07  # of all processors: with less of them idle a window counts as out of cores
CLOSE = 0.95  # of the best measured split, that the chosen one must reach unless their ranges overlap
BARS = {"epoch": 1.35, "strict": 2.1}


# --- figures --------------------------------------------------------------------------------------------------------


def merge(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of several runs of the benchmark on unlike datasets, as one."""
    out: dict[str, Any] = {"cells": [], "reads": [], "profiles": {}, "settings": {}}
    for r in results:
        out = {**r, "cells": out["cells"] + r.get("cells", []), "reads": out["reads"] + r.get("reads", []),
               "profiles": out["profiles"] | r.get("profiles", {}), "settings": out["settings"] | r.get("settings", {})}
    out["cells"] = [c for c in out["cells"] if c["runs"]]
    return out


def measured(c: dict[str, Any]) -> float:
    return statistics.median(r["rate"] for r in c["runs"])


def span(c: dict[str, Any]) -> tuple[float, float]:
    rates = [r["rate"] for r in c["runs"]]
    return min(rates), max(rates)


def error(c: dict[str, Any], model: str) -> float:
    """How far the model is from the median of the repeats, as a part of what was measured."""
    return c["predicted"][model]["rate"] / measured(c) - 1


def error_had(c: dict[str, Any]) -> float:
    """The same for bottleneck, told for every run which cores it had: the median over the repeats."""
    return statistics.median(r["predicted"] / r["rate"] for r in c["runs"]) - 1


def starved(r: dict[str, Any], processors: int) -> bool:
    """Whether the machine had no core left in the window: then what others took decides, and no split."""
    used = (r["daemon_cpu"] + r["own_cpu"]) / r["seconds"] + r["foreign"]
    return used > processors * (1 - FREE)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def groups(r: dict[str, Any]) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    out: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for c in r["cells"]:
        out.setdefault((c["dataset"], c["phase"], c["budget"]), []).append(c)
    order = list(PHASES)
    return dict(sorted(out.items(), key=lambda kv: (kv[0][0] != "imagenet-700", kv[0][0], order.index(kv[0][1]),
                                                    kv[0][2])))


def summary(cells: list[dict[str, Any]], processors: int) -> dict[str, Any]:
    """What the report says of one dataset, phase and budget."""
    best = max(cells, key=measured)
    chosen = next((c for c in cells if c["percent"] == "chosen"), None)
    free = [c for c in cells if not any(starved(x, processors) for x in c["runs"])]
    out = {
        "cells": len(cells), "runs": sum(len(c["runs"]) for c in cells), "free": len(free), "best": best,
        "chosen": chosen,
        "bottleneck": mean([abs(error(c, "bottleneck")) for c in cells]),
        "seneca": mean([abs(error(c, "seneca")) for c in cells]),
        "bottleneck_free": mean([abs(error(c, "bottleneck")) for c in free]),
        "bottleneck_had": mean([abs(error_had(c)) for c in cells]),
    }
    if chosen is not None:
        out["ratio"] = measured(chosen) / measured(best)
        out["close"] = out["ratio"] >= CLOSE or span(chosen)[1] >= span(best)[0]
    return out


def size(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024 or unit == "MiB":
            return f"{n:.3g} {unit}" if n < 100 else f"{n:.0f} {unit}"
        n /= 1024
    raise AssertionError


def percent(x: float) -> str:
    return "-" if math.isnan(x) else f"{100 * x:.0f} %" if abs(x) >= 0.1 else f"{100 * x:.1f} %"


def split(c: dict[str, Any]) -> str:
    total = sum(c["split"]) or 1
    return "-".join(f"{100 * b / total:.0f}" for b in c["split"])


def rate(c: dict[str, Any]) -> str:
    low, high = span(c)
    return f"{measured(c):,.0f} ({low:,.0f}-{high:,.0f})"


# --- words ----------------------------------------------------------------------------------------------------------


def text(r: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    out: list[str] = []
    if r["cells"]:
        out += sweep_tables(r)
    if r["reads"]:
        out += reads_table(r["reads"])
    return "\n".join(out)


def sweep_tables(r: dict[str, Any]) -> list[str]:
    n = r["processors"]
    all_free = [c for c in r["cells"] if not any(starved(x, n) for x in c["runs"])]
    every = [abs(error(c, "bottleneck")) for c in r["cells"]]
    had = [abs(error_had(c)) for c in r["cells"]]
    repeats = sorted({len(c["runs"]) for c in r["cells"]})
    out = ["| dataset | jobs | budget | splits (with free cores) | error of `bottleneck`: all splits | with free "
           "cores | told the cores it had | error of `seneca` |",
           "|---|---|---|---|---|---|---|---|"]
    sums = {k: summary(v, n) for k, v in groups(r).items()}
    for (name, phase, budget), s in sums.items():
        out.append(f"| {name} | {PHASES[phase]} | {size(budget)} | {s['cells']} ({s['free']}) | "
                   f"{percent(s['bottleneck'])} | {percent(s['bottleneck_free'])} | "
                   f"{percent(s['bottleneck_had'])} | {percent(s['seneca'])} |")
    out.append(f"| all | | | {len(r['cells'])} ({len(all_free)}) | {percent(mean(every))} | "
               f"{percent(mean([abs(error(c, 'bottleneck')) for c in all_free]))} | "
               f"{percent(mean(had))} | {percent(mean([abs(error(c, 'seneca')) for c in r['cells']]))} |")
    out += ["", f"{sum(len(c['runs']) for c in r['cells'])} runs, {' or '.join(map(str, repeats))} of each split. "
                f"Errors are means of |predicted / measured - 1|.", "",
            "| dataset | jobs | budget | chosen by `larder tune` (encoded-decoded-augmented, %) | samples/s (range) | "
            "best measured | samples/s (range) | chosen / best | ok |",
            "|---|---|---|---|---|---|---|---|---|"]
    for (name, phase, budget), s in sums.items():
        if s["chosen"] is not None:
            out.append(f"| {name} | {PHASES[phase]} | {size(budget)} | {split(s['chosen'])} | {rate(s['chosen'])} | "
                       f"{split(s['best'])} | {rate(s['best'])} | "
                       f"{s['ratio']:.2f} | {'yes' if s['close'] else 'no'} |")
    return [*out, "", f"ok: at least {CLOSE:.2f} of the best measured, or the ranges overlap."]


def reads_table(rows: list[dict[str, Any]]) -> list[str]:
    out = ["", "| order | reads | lower bound, tier + in flight | ratio | bar | reads over the bound of the tier "
               "alone | delivered |", "|---|---|---|---|---|---|---|"]
    for order in dict.fromkeys(x["order"] for x in rows):
        some = [x for x in rows if x["order"] == order]
        ratios = sorted(x["reads"] / x["bound"] for x in some)
        alone = statistics.median(x["reads"] / x["bound_of_tier"] for x in some)
        bar = f"{BARS[order]:.2f}: {'met' if ratios[-1] <= BARS[order] else 'missed'}" if order in BARS else "-"
        out.append(f"| {order} | {statistics.median(x['reads'] for x in some):,.0f} | "
                   f"{statistics.median(x['bound'] for x in some):,.0f} | "
                   f"{statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f}) | {bar} | {alone:.3f} | "
                   f"{some[0]['delivered']:,} |")
    return out


def write(results: list[dict[str, Any]], docs: pathlib.Path) -> None:
    """Puts the tables between the marks of docs/measurements/tiers.md, and the plots into docs/img."""
    r = merge(results)
    page = docs / "measurements" / "tiers.md"
    old = page.read_text()
    head, mark, rest = old.partition(BEGIN)
    tail = rest.partition(END)
    if not mark or not tail[1]:
        raise SystemExit(f"{page} lacks the marks\n{BEGIN}\n{END}")
    (docs / "img").mkdir(exist_ok=True)
    pictures = []
    if r["cells"]:
        (docs / "img" / "tiers-predicted.svg").write_text(scatter(r))
        (docs / "img" / "tiers-splits.svg").write_text(triangles(r))
        pictures = ["", "![predicted and measured rates of every split](../img/tiers-predicted.svg)", "",
                    "![measured rates over the splits, relative to the best of each group](../img/tiers-splits.svg)"]
    page.write_text(f"{head}{BEGIN}\n{text(r)}\n" + "\n".join(pictures) + f"\n{END}{tail[2]}")


# --- plots ----------------------------------------------------------------------------------------------------------

COLOURS = {"alone": "#1b6ca8", "aligned": "#c05621", "staggered": "#2f855a", "unlike": "#6b46c1"}
FONT = 'font-family="system-ui, sans-serif"'


class Svg:
    def __init__(self, width: float, height: float, title: str) -> None:
        self.size, self.title, self.parts = (width, height), title, []

    def add(self, name: str, body: str | None = None, **attributes: Any) -> None:
        given = " ".join(f'{k.replace("_", "-")}="{html.escape(f"{v:.1f}" if isinstance(v, float) else str(v))}"' for k,
                         v in attributes.items())
        self.parts.append(f"<{name} {given}/>" if body is None else f"<{name} {given}>{body}</{name}>")

    def label(self, x: float, y: float, words: str, anchor: str = "start", size: int = 12,
              colour: str = "#333") -> None:
        self.add("text", html.escape(words), x=float(x), y=float(y), text_anchor=anchor, font_size=size, fill=colour)

    def __str__(self) -> str:
        w, h = self.size
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:.0f} {h:.0f}" width="{w:.0f}" '
                f'height="{h:.0f}" {FONT} role="img">'
                f"<title>{html.escape(self.title)}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
                + "\n".join(self.parts) + "\n</svg>\n")


def decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from low to high."""
    out = []
    for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        out += [m * 10.0**e for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    return out


def scatter(r: dict[str, Any]) -> str:
    """Predicted over measured rates, logarithmic: bottleneck as larder tune says it, bottleneck told the cores,
    seneca."""
    panels: list[tuple[str, Callable[[dict[str, Any]], float]]] = [
        ("bottleneck, as larder tune predicts", lambda c: c["predicted"]["bottleneck"]["rate"]),
        ("bottleneck, told the cores each run had", lambda c: measured(c) * (1 + error_had(c))),
        ("seneca (Eq. 9)", lambda c: c["predicted"]["seneca"]["rate"]),
    ]
    side, gap, top, left = 250.0, 60.0, 60.0, 60.0
    svg = Svg(left + 3 * (side + gap), top + side + 74, "Predicted and measured samples a second")
    values = [measured(c) for c in r["cells"]]
    values += [f(c) for _, f in panels[:2] for c in r["cells"]]
    low, high = min(values) / 1.15, max(values) * 1.15
    n = r["processors"]

    def at(v: float) -> float:
        return side * (math.log(min(max(v, low), high)) - math.log(low)) / (math.log(high) - math.log(low))

    for k, (name, f) in enumerate(panels):
        x0, y0 = left + k * (side + gap), top + side
        svg.label(x0 + side / 2, top - 10, name, "middle", 13)
        svg.add("rect", x=x0, y=top, width=side, height=side, fill="none", stroke="#999")
        for t in decades(low, high):
            svg.add("line", x1=x0 + at(t), y1=y0, x2=x0 + at(t), y2=top, stroke="#eee")
            svg.add("line", x1=x0, y1=y0 - at(t), x2=x0 + side, y2=y0 - at(t), stroke="#eee")
            svg.label(x0 + at(t), y0 + 15, f"{t:,.0f}", "middle", 10)
            svg.label(x0 - 5, y0 - at(t) + 4, f"{t:,.0f}", "end", 10)
        svg.add("line", x1=x0, y1=y0, x2=x0 + side, y2=top, stroke="#555")
        for factor in (0.9, 1.1):  # the bar of 10 %
            shift = side * math.log(factor) / (math.log(high) - math.log(low))
            a, b = max(0.0, -shift), side - max(0.0, shift)
            svg.add("line", x1=x0 + a, y1=y0 - a - shift, x2=x0 + b, y2=y0 - b - shift, stroke="#aaa",
                    stroke_dasharray="3 3")
        for c in r["cells"]:
            hollow = any(starved(x, n) for x in c["runs"])
            beyond = f(c) > high
            x, y = x0 + at(measured(c)), y0 - at(f(c))
            look = {"fill": "none" if hollow else COLOURS[c["phase"]], "stroke": COLOURS[c["phase"]],
                    "fill_opacity": 0.65}
            if beyond:
                svg.add("path", d=f"M{x - 3:.1f} {y + 5:.1f} L{x:.1f} {y:.1f} L{x + 3:.1f} {y + 5:.1f} Z", **look)
            elif c["dataset"] == "imagenet-700":
                svg.add("circle", cx=x, cy=y, r=3.2, **look)
            else:
                svg.add("rect", x=x - 2.8, y=y - 2.8, width=5.6, height=5.6, **look)
        svg.label(x0 + side / 2, y0 + 32, "measured, samples/s", "middle", 11)
    svg.label(14, 22, "predicted, samples/s (dashed: 10 % off)", size=11)
    x = left
    for phase, words in PHASES.items():
        svg.add("circle", cx=x, cy=top + side + 56, r=4, fill=COLOURS[phase])
        svg.label(x + 9, top + side + 60, words, size=11)
        x += 150
    svg.label(x, top + side + 60, "round: photographs, square: drawn, hollow: no core was free, arrow: beyond the axis",
              size=11)
    return str(svg)


def shade(part: float) -> str:
    """White at half of the best and below, dark blue at the best."""
    t = min(max((part - 0.4) / 0.6, 0.0), 1.0)
    return "#" + "".join(f"{round(a + (b - a) * t):02x}" for a, b in zip((247, 251, 255), (8, 69, 148), strict=True))


def triangles(r: dict[str, Any]) -> str:
    """The simplex of splits of every group: circles are shaded by the measured rate, relative to the best of the
    group."""
    every = groups(r)
    side, gap, across = 210.0, 30.0, 4
    high = side * math.sqrt(3) / 2
    rows = -(-len(every) // across)
    svg = Svg(20 + across * (side + gap), 30 + rows * (high + 92), "Measured rates over the splits")
    for k, ((name, phase, budget), cells) in enumerate(every.items()):
        x0, y0 = 30 + (k % across) * (side + gap), 70 + (k // across) * (high + 92) + high
        best = max(map(measured, cells))
        top = max(cells, key=measured)
        svg.label(x0 + side / 2, y0 - high - 38, f"{name}, {PHASES[phase]}", "middle", 12)
        svg.label(x0 + side / 2, y0 - high - 23, f"{size(budget)}; best {best:,.0f}/s", "middle", 11, "#666")
        svg.add("path", d=f"M{x0:.1f} {y0:.1f} h{side:.1f} L{x0 + side / 2:.1f} {y0 - high:.1f} Z", fill="none",
                stroke="#bbb")
        svg.label(x0 - 13, y0 + 24, "encoded", "start", 10)
        svg.label(x0 + side + 13, y0 + 24, "decoded", "end", 10)
        svg.label(x0 + side / 2 + 16, y0 - high - 2, "augmented", "start", 10)
        for c in sorted(cells, key=lambda c: c["percent"] == "chosen"):
            total = sum(c["split"]) or 1
            _, d, a = (b / total for b in c["split"])
            x, y = x0 + side * (d + a / 2), y0 - high * a
            part = measured(c) / best
            if c["percent"] == "chosen":
                svg.add("rect", x=x - 13, y=y - 13, width=26, height=26, fill="none", stroke="#c05621", stroke_width=2)
                continue
            svg.add("circle", cx=x, cy=y, r=11, fill=shade(part), stroke="#c05621" if c is top else "#888",
                    stroke_width=2 if c is top else 1)
            svg.label(x, y + 3.5, f"{100 * part:.0f}", "middle", 9, "#fff" if part > 0.75 else "#333")
    svg.label(30, 18, "Numbers: % of the group's best measured rate. Orange square: the split that larder tune "
                      "chooses; orange circle: the best measured.", size=11)
    return str(svg)
