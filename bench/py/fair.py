"""Whether a training treats its samples alike, on the real daemon: no sample may always be early or always late.

    LARDER_BIN=bin/larder .venv/bin/python bench/py/fair.py [--worlds one,nested] [--epochs 400]
    LARDER_BIN=bin/larder .venv/bin/python bench/py/fair.py --worlds '' --paced --photographs DIR

The k-th of the n samples of an epoch is at position (k + 1/2) / n. In a uniformly random order a position has mean 1/2
and variance (n² - 1) / 12n². If the epochs of a training are independent, the mean position of a sample has that
variance divided by their number, and the squared deviations of all samples, in units of it, sum up to a chi-square
variable of n - 1 degrees of freedom; and positions in epochs five apart have no correlation. (Jobs that share may have
epochs that resemble the last few, and less with each; here that counts against them.) Each world is a daemon of its own
with small drawn images, equal in memory, of which a part fits the decoded tier. Orders are those that the client
received, without the first fifth of the epochs. A fair sampler fails any of these limits once in a million runs.

--paced measures what the order costs: photographs, storage held to a rate (inside larder, past the page cache), a part
of them in memory, and a training that takes a batch every --step seconds. Each order has to come to 97 % of the rate of
`strict`, which looks at nothing. Runs are interleaved; medians count. The exit status is 1 when a row is not within
chance or an order is too slow. It needs NumPy only, and writes out/bench/fair.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from loaders import ROOT, Daemon, out_dir

from tiers import Throttled

sys.path.insert(0, str(ROOT / "python"))

SIDE = 64  # three pages in memory: entries are whole pages
CROP = 224  # of the photographs
BATCH, PACED_BATCH = 8, 16
LAG = 5  # what orders may remember is at most four epochs old
ALPHA = 1e-6  # of all rows of a run together
BAR = 0.97  # of the rate of order strict
PACED = ("strict", "stratified", "epoch")


class Part(NamedTuple):
    """One job of a world. In a subset {third} and {two_thirds} are ids."""

    name: str
    subset: str | None = None
    order: str = "stratified"
    start: float = 0.0  # epochs of the whole dataset after the first one
    speed: float = 1.0  # batches for each of the first one


class World(NamedTuple):
    title: str
    parts: tuple[Part, ...]
    resident: float = 0.3  # part of the dataset that the decoded tier holds


HALVES = (Part("even", "id % 2 == 0"), Part("odd", "id % 2 == 1", start=0.1))
OUTER, INNER = Part("outer"), Part("inner", "id % 2 == 0", start=0.1)
NUMBERS = ("first", "second", "third")
THIRDS = (Part("first", "id < {two_thirds}"), Part("last", "id >= {third}", start=0.1))
WORLDS = {
    "one": World("one job, stratified", (Part("job"),)),
    "one-epoch": World("one job, epoch", (Part("job", order="epoch"),)),
    "one-strict": World("one job, strict", (Part("job", order="strict"),)),
    "one-large": World("one job, stratified, cache of 80 %", (Part("job"),), 0.8),
    "disjoint": World("two jobs, disjoint subsets", HALVES),
    "nested": World("two jobs, one nested in the other, which leaves half way", (OUTER, INNER)),
    "nested-slow": World("two jobs, one nested in the other, at half the speed", (OUTER, INNER._replace(speed=0.5))),
    "same": World("two jobs on the same", (Part("first"), Part("second"))),
    "overlap": World("two jobs, overlapping by half", THIRDS),
    "three-epoch": World("three jobs on the same, epoch", tuple(Part(n, order="epoch") for n in NUMBERS)),
}


# --- figures --------------------------------------------------------------------------------------------------------


def positions(orders: Sequence[Sequence[int]]) -> np.ndarray:
    """Positions less 1/2 of the samples, in the order of their ids, by epoch: each must be the same samples once."""
    if not orders or len(orders[0]) < 3 or len({len(o) for o in orders}) > 1:
        raise ValueError(f"count positions: {len(orders)} epochs of unlike lengths, or of fewer than 3 samples; "
                         "give whole epochs of one subset")
    ids = np.asarray(orders)
    at = ids.argsort(axis=1)
    known = np.take_along_axis(ids, at, axis=1)
    if (known != known[0]).any() or (np.diff(known[0]) == 0).any():
        raise ValueError("count positions: an epoch has other samples than the first, or one of them twice; "
                         "give whole epochs of one subset")
    return (at + 0.5) / ids.shape[1] - 0.5


def variance(n: int) -> float:
    """Of one position in a uniformly random order of n."""
    return (n * n - 1) / (12 * n * n)


def spread(p: np.ndarray) -> tuple[float, float]:
    """The standard deviation of the samples' mean positions, and what chance makes it in independent epochs."""
    epochs, n = p.shape
    return float(np.sqrt((p.mean(axis=0) ** 2).mean())), math.sqrt(variance(n) / epochs)


def normal_of(chi_square: float, df: int) -> float:
    """A chi-square as a standard normal deviate (Wilson and Hilferty 1931)."""
    part = 2 / (9 * df)
    return (math.cbrt(chi_square / df) - 1 + part) / math.sqrt(part)


def deviate(p: np.ndarray) -> float:
    """Large where samples are always early or always late, about standard normal where none is."""
    sd, chance = spread(p)
    df = p.shape[1] - 1  # the mean positions sum up to n/2: one degree of freedom less
    return normal_of((sd / chance) ** 2 * df, df)


def correlation(p: np.ndarray, lag: int) -> tuple[float, float]:
    """Of positions in epochs so far apart, and its standard deviation were they independent."""
    epochs, n = p.shape
    if epochs <= lag:
        raise ValueError(f"correlate epochs {lag} apart: there are {epochs}; give more epochs")
    pairs = epochs - lag
    return float((p[:-lag] * p[lag:]).sum()) / (pairs * n * variance(n)), 1 / math.sqrt((n - 1) * pairs)


def limits(rows: int, alpha: float = ALPHA) -> tuple[float, float]:
    """What the deviate of a row may be (one-sided), and its correlation in standard deviations (two-sided). With a fair
    sampler a run of so many rows exceeds any of its limits with a probability of at most alpha."""
    each = alpha / (2 * rows)  # a row has two statistics
    normal = statistics.NormalDist()
    return normal.inv_cdf(1 - each), normal.inv_cdf(1 - each / 2)


def figures(orders: Sequence[Sequence[int]]) -> dict[str, Any]:
    """What is said of the epochs of one job."""
    p = positions(orders)
    sd, chance = spread(p)
    lag, lag_sd = correlation(p, LAG)
    mean = p.mean(axis=0) + 0.5
    return {"samples": p.shape[1], "epochs": p.shape[0], "sd": sd, "chance": chance, "least": float(mean.min()),
            "most": float(mean.max()), "deviate": deviate(p), "correlation": lag, "correlation_sd": lag_sd}


def judge(rows: list[dict[str, Any]], family: int = 0) -> list[str]:
    """Adds the limits to each row; returns what is not within chance. family: of so many rows these are some."""
    most, far = limits(max(1, len(rows), family))
    wrong = []
    for r in rows:
        r["deviate_limit"], r["correlation_limit"] = most, far * r["correlation_sd"]
        if not r["deviate"] <= most:
            wrong.append(f"{r['row']}: mean positions have a deviate of {r['deviate']:.1f}, by chance {most:.2f} at "
                         "most: samples are always early or always late")
        if not abs(r["correlation"]) <= r["correlation_limit"]:
            wrong.append(f"{r['row']}: epochs {LAG} apart have a correlation of {r['correlation']:+.4f}, "
                         f"by chance {r['correlation_limit']:.4f} at most")
    return wrong


HEAD = ["world, order", "epochs", "sd of the samples' mean positions (chance)", "smallest and largest mean position",
        "chi-square deviate (limit)", f"correlation of epochs {LAG} apart (sd)", "decodes an epoch"]
PACED_HEAD = ["order", "images/s", "of strict's rate", "waiting"]


def cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [[r["row"], str(r["epochs"]), f"{r['sd']:.3f} ({r['chance']:.3f})", f"{r['least']:.3f} to {r['most']:.3f}",
             f"{r['deviate']:.1f} ({r['deviate_limit']:.2f})", f"{r['correlation']:+.3f} ({r['correlation_sd']:.3f})",
             f"{r['decodes']:.1f}"] for r in rows]


def paced_cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [[r["order"], f"{r['rate']:.1f}", f"{r['ratio']:.3f}", f"{100 * r['waiting']:.1f} %"] for r in rows]


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head), *rows])


# --- orders ---------------------------------------------------------------------------------------------------------


class Job:
    """A job that takes turns with others, and keeps what it was given, by epoch."""

    def __init__(self, loader: Any, due: float, speed: float) -> None:
        self.loader, self.due, self.speed = loader, due, speed
        self.orders: list[list[int]] = []
        self.batches, self.ids = None, []

    def take(self) -> None:
        self.due += 1 / self.speed
        if self.batches is None:
            self.batches, self.ids = iter(self.loader), []
        batch = next(self.batches, None)
        if batch is None:
            self.orders.append(self.ids)
            self.batches = None
        else:
            self.ids += batch[0].tolist()


def held(world: World, samples: int) -> int:
    """How many samples the decoded tier holds."""
    return round(samples * world.resident)


def tier_bytes(samples: int, side: int) -> int:
    """Of a tier that holds so many images of that side: entries take whole pages, and a sixteenth stays free."""
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-samples * -(-3 * side * side // page) * page * 16 // 15)


def settings(world: World, samples: int) -> list[str]:
    """The daemon's tiers."""
    fits = tier_bytes(held(world, samples), SIDE)
    return [f"tiers.total={fits}", "tiers.encoded=0", f"tiers.decoded={fits}", "tiers.augmented=0"]


def play(endpoint: str, data: str, world: World, samples: int, epochs: int) -> list[dict[str, Any]]:
    """Trains every job for its epochs; then it leaves, the others go on. They take batches in turn. A row for each."""
    import larder

    ops, jobs = larder.ops, []
    names = {"third": samples // 3, "two_thirds": samples - samples // 3}
    with contextlib.ExitStack() as stack:
        for part in world.parts:
            loader = larder.Loader(
                f"imagefolder:{data}", subset=part.subset and part.subset.format(**names), batch_size=BATCH,
                shuffle=True, order=part.order, transform=[ops.Resize(SIDE), ops.CenterCrop(SIDE)], fields=("index",),
                job=f"fair-{part.name}", endpoint=endpoint, timeout=120)
            jobs.append(Job(stack.enter_context(loader), part.start * samples / BATCH, part.speed))
        an_epoch = by_turns(jobs, epochs)
    out = []
    for j, part in zip(jobs, world.parts, strict=True):
        row = world.title if len(jobs) == 1 else f"{world.title}: the {part.name} one"
        counted = figures(j.orders[epochs // 5:])
        out.append({"row": row, "order": part.order, "held": held(world, samples), "decodes": an_epoch} | counted)
    return out


def by_turns(jobs: list[Job], epochs: int) -> float:
    """The client that is due takes a batch, until all have had their epochs.

    Returns the daemon's decodes for each epoch of the first job, without the first fifth of them.
    """
    skip, running = epochs // 5, list(jobs)
    decodes: list[int] = []
    while running:
        j = min(running, key=lambda j: j.due)
        j.take()
        if j.batches is not None:
            continue
        if j is jobs[0] and len(j.orders) in (skip, epochs):
            decodes.append(j.loader.stats().totals.decodes)
        if len(j.orders) == epochs:
            running.remove(j)
            j.loader.close()
    return (decodes[1] - decodes[0]) / (epochs - skip)


def draw(binary: str, folder: str, samples: int) -> None:
    command = [binary, "demo-draw", folder, "--samples", str(samples), "--shrink", "8"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def train(args: argparse.Namespace, data: str, name: str) -> list[dict[str, Any]]:
    world = WORLDS[name]
    keys = [f"sampler.seed={args.seed}", *settings(world, args.samples)]
    daemon = Daemon(args.bin, *(f for kv in keys for f in ("--set", kv)))
    try:
        rows = play(daemon.socket, data, world, args.samples, args.epochs)
        tier = next(t for t in daemon.stats(args.bin)["tiers"] if t["form"] == "decoded")
        if int(tier["entries"]) != held(world, args.samples):
            raise SystemExit(f"measure {name}: the decoded tier holds {tier['entries']} samples, "
                             f"{held(world, args.samples)} were meant; mend SIDE or tier_bytes() in {__file__}")
        return [r | {"world": name} for r in rows]
    finally:
        daemon.close()


# --- rates ----------------------------------------------------------------------------------------------------------


def paced_epoch(loader: Any, step: float) -> float:
    """An epoch of a training that takes so many seconds for an image; returns how long it waited."""
    waited, asked, got = 0.0, time.perf_counter(), 0
    for _images, labels in loader:
        waited += time.perf_counter() - asked
        n = len(labels)
        got += n
        del _images, labels  # what is kept is not filled again meanwhile
        time.sleep(step * n)
        asked = time.perf_counter()
    if got != loader.num_samples:
        raise SystemExit(f"pace: an epoch had {got} samples of {loader.num_samples}; look for the others with larder "
                         "jobs describe, or give other photographs")
    return waited + time.perf_counter() - asked


def pace(args: argparse.Namespace, order: str) -> dict[str, float]:
    """One run of an order: an epoch fills the tier at full speed, then storage is held to its rate, for an epoch that
    does not count and some that do."""
    import larder

    ops = larder.ops
    daemon = Throttled(args, (0, tier_bytes(round(args.images * args.resident), CROP), 0))
    try:
        with larder.Loader(
            f"imagefolder:{args.photographs}", subset=f"id < {args.images}", batch_size=PACED_BATCH, shuffle=True,
            order=order, transform=[ops.Resize(CROP), ops.CenterCrop(CROP)], job=f"pace-{order}",
            endpoint=daemon.socket, timeout=120,
        ) as loader:
            if loader.num_samples != args.images:
                raise SystemExit(f"pace {order}: {args.photographs} has {loader.num_samples} images, {args.images} are "
                                 "wanted; name a folder with more, or give --images")
            for _ in loader:
                pass
            daemon.throttle(args.limit)
            step = args.step / PACED_BATCH
            paced_epoch(loader, step)
            begin = time.perf_counter()
            waited = sum(paced_epoch(loader, step) for _ in range(args.paced_epochs))
            seconds = time.perf_counter() - begin
        return {"rate": args.images * args.paced_epochs / seconds, "waiting": waited / seconds}
    finally:
        daemon.close()


def paced(args: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """Medians by order, and which order is too slow. A repeat has every order once, each time another one first."""
    runs: dict[str, list[dict[str, float]]] = {o: [] for o in PACED}
    for repeat in range(args.repeats):
        turn = repeat % len(PACED)
        for order in PACED[turn:] + PACED[:turn]:
            runs[order].append(pace(args, order))
            rate, waiting = runs[order][-1]["rate"], runs[order][-1]["waiting"]
            print(f"  paced, {order}: {rate:.1f} images/s, {100 * waiting:.1f} % waiting", file=sys.stderr, flush=True)
    return compare(runs)


def compare(runs: dict[str, list[dict[str, float]]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Ratios are taken repeat by repeat: what slows the machine down for a while slows its neighbours in time too."""
    rows, wrong = [], []
    for order, of in runs.items():
        ratio = statistics.median(a["rate"] / b["rate"] for a, b in zip(of, runs["strict"], strict=True))
        rows.append({"order": order, "rate": statistics.median(r["rate"] for r in of), "ratio": ratio,
                     "waiting": statistics.median(r["waiting"] for r in of), "runs": of})
        if not ratio >= BAR:
            wrong.append(f"paced, {order}: {ratio:.3f} of strict's rate, {BAR} at least")
    return rows, wrong


# --- command --------------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    version = subprocess.run([args.bin, "version"], capture_output=True, text=True, check=True).stdout.strip()
    result: dict[str, Any] = {
        "kind": "fair", "title": "Fairness over a training: mean positions of samples",
        "facts": {"processors": str(len(os.sched_getaffinity(0))), "machine": platform.machine(), "larder": version,
                  "seed": str(args.seed)},
        "samples": args.samples, "epochs": args.epochs, "rows": [], "paced": [], "tables": [],
    }
    wrong: list[str] = []
    if args.worlds:
        with tempfile.TemporaryDirectory(prefix="larder-fair-") as tmp:
            data = f"{tmp}/drawn"
            draw(args.bin, data, args.samples)
            for name in args.worlds:
                begin = time.monotonic()
                result["rows"] += train(args, data, name)
                print(f"  {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        wrong += judge(result["rows"])
        title = f"{args.samples} samples, {args.epochs} epochs of each job, the first fifth left out"
        result["tables"].append({"title": title, "head": HEAD, "rows": cells(result["rows"])})
    if args.paced:
        result["paced"], slow = paced(args)
        wrong += slow
        most = f"{PACED_BATCH / args.step:.1f} images/s" if args.step else "any rate"
        title = (f"{args.images} photographs, storage at {args.limit}, {100 * args.resident:g} % decoded in memory, "
                 f"{PACED_BATCH} images every {args.step:g} s ({most} without waiting), medians of {args.repeats}")
        result["tables"].append({"title": title, "head": PACED_HEAD, "rows": paced_cells(result["paced"])})
    return result | {"wrong": wrong}, wrong


def arguments() -> argparse.Namespace:
    given = os.environ.get("LARDER_TESTDATA")
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    parser.add_argument("--worlds", default=",".join(WORLDS), help=f"of {', '.join(WORLDS)}; '' for none")
    parser.add_argument("--samples", type=int, default=200, help="images to draw")
    parser.add_argument("--epochs", type=int, default=400, help="of each job")
    parser.add_argument("--seed", type=int, default=1, help="sampler.seed of the worlds")
    parser.add_argument("--paced", action="store_true", help="measure rates of photographs, too")
    parser.add_argument("--photographs", default=given and f"{given}/imagenet-700",
                        help="a folder of them, by default imagenet-700 in $LARDER_TESTDATA")
    parser.add_argument("--images", type=int, default=300, help="of the photographs that are used")
    parser.add_argument("--resident", type=float, default=0.4, help="part of the photographs that is kept decoded")
    parser.add_argument("--limit", default="5MB/s", help="rate that storage is held to")
    parser.add_argument("--step", type=float, default=0.22,
                        help=f"seconds that a training takes for {PACED_BATCH} images")
    parser.add_argument("--paced-epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3, help="of the paced runs")
    parser.add_argument("--workers", default="auto", help="prep.workers of the paced runs")
    parser.add_argument("--json", default=str(out_dir() / "fair.json"))
    args = parser.parse_args()
    args.worlds = [w for w in args.worlds.split(",") if w]
    for w in args.worlds:
        if w not in WORLDS:
            parser.error(f"--worlds {w}: choose of {', '.join(WORLDS)}")
    if args.samples < 20 or args.epochs < 10 or min(args.repeats, args.paced_epochs, args.images) < 1 or args.step < 0:
        parser.error("--samples is 20 at least, --epochs 10, --repeats, --paced-epochs and --images 1, --step 0")
    if not args.worlds and not args.paced:
        parser.error("there is nothing to measure: name --worlds, or give --paced")
    if args.paced and not (args.photographs and pathlib.Path(args.photographs).is_dir()):
        parser.error(f"--paced reads photographs, and {args.photographs or 'what was named'} is no folder: "
                     "give --photographs or $LARDER_TESTDATA")
    if args.paced:
        args.photographs = str(pathlib.Path(args.photographs).resolve())
    return args


def main() -> None:
    args = arguments()
    result, wrong = measure(args)
    path = pathlib.Path(args.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1))
    for t in result["tables"]:
        print(f"{t['title']}:\n\n{table(t['head'], t['rows'])}\n")
    print(f"raw figures: {path}")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
