"""What peers.py makes of its runs: rates of first and later epochs, medians with ranges, tables by memory case."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CASES = ("all fits", "a third fits", "nothing fits")
ANY = "any"  # of a run whose system keeps nothing: it is the same in every case
JOBS = (1, 4)
KEYS = {"first": "first epoch", "later": "later epochs"}

Runs = dict[str, list[dict[str, float]]]  # by label


@dataclass(frozen=True)
class System:
    """A loader beside larder. Cases: those in which it runs differently, or ANY. Differs: what is not the same work."""

    name: str
    program: str  # of bench/peers
    environment: str = ""  # of peers_env; empty: the interpreter that runs this
    variant: str = ""
    cases: tuple[str, ...] = (ANY,)
    jobs: tuple[int, ...] = JOBS
    later: int = 2  # epochs after the first
    differs: str = ""
    note: str = ""  # beside the figure too, though it is the same work
    converts: bool = False

    @property
    def mine(self) -> bool:
        return self.program == "larder"


def label(system: str, case: str, jobs: int) -> str:
    return f"{jobs} job{'s' if jobs > 1 else ''}, {system}, {case}"


def outcome(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Images per second and per CPU-second of all jobs of one run, in the first epoch and in the later ones.

    Of more than three later epochs the last two count, when caches are full. An epoch of several jobs lasts from when
    the first of them begins it to when the last one ends it. The servers' part is counted in the same window, once for
    all jobs.
    """
    if len({len(r["samples"]) for r in results}) != 1:
        raise ValueError("rate: jobs of one run have unlike numbers of epochs")
    out: dict[str, float] = {}
    epochs = len(results[0]["samples"])
    spans = {"first": (0, 1)} | ({"later": (max(1, epochs - 2) if epochs > 4 else 1, epochs)} if epochs > 1 else {})
    for key, (begin, end) in spans.items():
        images = sum(sum(r["samples"][begin:end]) for r in results)
        from_, to = ([r["marks"][k] for r in results] for k in (begin, end))
        seconds = max(m["at"] for m in to) - min(m["at"] for m in from_)
        cpu = sum(b["cpu"] - a["cpu"] for a, b in zip(from_, to, strict=True))
        cpu += max(m["servers"] for m in to) - min(m["servers"] for m in from_)
        out[key], out[f"{key}_per_cpu_second"] = images / seconds, images / cpu
    return out


def values(runs: Runs, system: System, case: str, jobs: int, key: str) -> list[float]:
    """Of the runs of a cell: those of its case, or those of a system that has no cases."""
    for c in (case, ANY):
        found = [r[key] for r in runs.get(label(system.name, c, jobs), ()) if key in r]
        if found:
            return found
    return []


def best(runs: Runs, systems: Sequence[System], case: str, jobs: int, key: str) -> tuple[str, float]:
    """The system with the largest median of a cell, and that median; an empty name where nothing was measured."""
    found = [(s.name, statistics.median(v)) for s in systems if (v := values(runs, s, case, jobs, key))]
    return max(found, key=lambda f: f[1], default=("", 0.0))


def cell(runs: Runs, system: System, case: str, jobs: int, key: str) -> str:
    """`median (lowest–highest) · per CPU-second`, or a dash."""
    v = values(runs, system, case, jobs, key)
    if not v:
        return "–"
    text = f"{statistics.median(v):,.0f}"
    if len(v) > 1:
        text += f" ({min(v):,.0f}–{max(v):,.0f})"
    cpu = values(runs, system, case, jobs, f"{key}_per_cpu_second")
    return f"{text} · {statistics.median(cpu):,.0f}" if cpu else text


def columns() -> list[tuple[int, str]]:
    return [(jobs, key) for jobs in JOBS for key in KEYS]


def ratio_row(runs: Runs, systems: Sequence[System], case: str, same: bool) -> list[str]:
    """larder over the best peer in each column; same: only peers that do the same work count."""
    mine = [s for s in systems if s.mine]
    peers = [s for s in systems if not s.mine and not (same and s.differs)]
    row = ["**larder ÷ the best peer" + (" of the same work**" if same else "**")]
    for jobs, key in columns():
        of = mine if jobs > 1 else [s for s in mine if not s.variant]
        (_, own), (name, other) = best(runs, of[:1], case, jobs, key), best(runs, peers, case, jobs, key)
        shared = best(runs, of[1:], case, jobs, key)[1]
        if not own or not other:
            row.append("–")
            continue
        text = f"{own / other:.2f}x"
        if shared:
            text += f", shared {shared / other:.2f}x"
        row.append(f"{text} ({name})")
    return row


def case_table(runs: Runs, systems: Sequence[System], case: str) -> dict[str, Any]:
    """One case as head and rows: systems that were measured in it, then the ratios."""
    head = ["system"] + [f"{jobs} job{'s' if jobs > 1 else ''}, {KEYS[key]}" for jobs, key in columns()]
    rows = []
    for s in systems:
        cells = [cell(runs, s, case, jobs, key) for jobs, key in columns()]
        if any(c != "–" for c in cells):
            rows.append([s.name + (" †" if s.differs else ""), *cells])
    if rows:
        rows += [ratio_row(runs, systems, case, False), ratio_row(runs, systems, case, True)]
    return {"title": f"Images a second: {case}", "head": head, "rows": rows}


def differences(systems: Sequence[System]) -> dict[str, Any]:
    rows = [[s.name + (" †" if s.differs else ""), s.differs or "–", s.note or "–"] for s in systems if not s.mine]
    return {"title": "What is not the same work", "head": ["system", "differs (†)", "how it runs"], "rows": rows}


def bars(runs: Runs, systems: Sequence[System], case: str) -> dict[str, Any] | None:
    """A picture of one case in the form of internal/plot: a group for each system, a bar for each column."""
    shown = [s for s in systems if any(values(runs, s, case, jobs, key) for jobs, key in columns())]
    if not shown:
        return None
    series = []
    for jobs, key in columns():
        of = [values(runs, s, case, jobs, key) for s in shown]
        series.append({"name": f"{jobs} job{'s' if jobs > 1 else ''}, {KEYS[key]}",
                       "points": [[0, statistics.median(v) if v else 0] for v in of],
                       "low": [min(v, default=0) for v in of], "high": [max(v, default=0) for v in of]})
    return {"title": f"larder beside its peers: {case}", "y": "images a second", "bars": [s.name for s in shown],
            "series": series}


def markdown(table: dict[str, Any]) -> list[str]:
    rows = [table["head"], ["---"] * len(table["head"]), *table["rows"]]
    return [f"**{table['title']}**", "", *("| " + " | ".join(r) + " |" for r in rows), ""]
