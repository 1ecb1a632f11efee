"""Turns the figures of tiers.py into tables and plots: predicted beside measured rates, and reads beside their lower
bound."""

from __future__ import annotations

import json
import math
import pathlib
import statistics
import subprocess
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
    """The same for bottleneck with the cores that each run had: the median over the repeats."""
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
        draw(scatter(r), docs / "img" / "tiers-predicted.svg")
        draw(triangles(r), docs / "img" / "tiers-splits.svg")
        pictures = ["", "![predicted and measured rates of every split](../img/tiers-predicted.svg)", "",
                    "![measured rates over the splits, relative to the best of each group](../img/tiers-splits.svg)"]
    page.write_text(f"{head}{BEGIN}\n{text(r)}\n" + "\n".join(pictures) + f"\n{END}{tail[2]}")


# --- plots ----------------------------------------------------------------------------------------------------------

ROOT = pathlib.Path(__file__).resolve().parents[2]


def draw(plot: dict[str, Any], picture: pathlib.Path) -> None:
    """Draws a plot with the plotter of all reports, internal/plot."""
    done = subprocess.run(["go", "run", "./bench/drawplot"], cwd=ROOT, input=json.dumps(plot), capture_output=True,
                          text=True, check=False)
    if done.returncode:
        raise SystemExit(f"draw {picture}: {done.stderr}")
    picture.write_text(done.stdout)


def scatter(r: dict[str, Any]) -> dict[str, Any]:
    """Predicted over measured rates: bottleneck as larder tune predicts, with the cores of each run, seneca."""
    panels: list[tuple[str, Callable[[dict[str, Any]], float]]] = [
        ("bottleneck, as larder tune predicts", lambda c: c["predicted"]["bottleneck"]["rate"]),
        ("bottleneck, with the cores of each run", lambda c: measured(c) * (1 + error_had(c))),
        ("seneca (Eq. 9)", lambda c: c["predicted"]["seneca"]["rate"]),
    ]
    series = []
    for k, (_, predicted) in enumerate(panels):
        for phase, words in PHASES.items():
            cells = [c for c in r["cells"] if c["phase"] == phase]
            series.append({"name": words, "panel": k, "points": [[measured(c), predicted(c)] for c in cells],
                           "hollow": [any(starved(x, r["processors"]) for x in c["runs"]) for c in cells]})
    top = 1.15 * max(max(measured(c), f(c)) for _, f in panels[:2] for c in r["cells"])
    return {"title": "Predicted and measured samples a second", "form": "scatter", "x": "measured, samples/s",
            "y": "up: predicted", "panels": [name for name, _ in panels], "series": series, "top": top, "off": 0.1,
            "note": "Dashed: 10 % off. Hollow: no core was free. Points at the upper edge are beyond it."}


def triangles(r: dict[str, Any]) -> dict[str, Any]:
    """The simplex of splits of every group: measured rates in per cent of the best of the group."""
    panels, cells = [], []
    for k, ((name, phase, budget), some) in enumerate(groups(r).items()):
        best = max(map(measured, some))
        panels.append(f"{name}, {PHASES[phase]}, {size(budget)}")
        for c in sorted(some, key=lambda c: c["percent"] == "chosen"):
            cells.append({"panel": k, "split": c["split"], "values": [100 * measured(c) / best]}
                         | ({"mark": "the split that larder tune chooses"} if c["percent"] == "chosen" else {}))
    return {"title": "Measured rates over the splits", "form": "simplex", "x": "", "y": "%", "panels": panels,
            "cells": cells, "note": "Numbers: % of the group's best measured rate."}
