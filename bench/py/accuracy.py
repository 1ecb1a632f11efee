"""How well networks learn from larder's orders, beside torch's own RandomSampler: validation accuracy by epoch, over
several seeds.

    LARDER_BIN=bin/larder .venv/bin/python bench/py/accuracy.py [--seeds 5] [--epochs 12]
        [--json out/bench/accuracy.json]

Only the order of the training images differs. They are drawn (larder demo-draw: ten classes, by shape and colour), made
32 x 32 without chance, and every run gets the same bytes; a seed gives the same first weights under every order.
`independent` is torch's RandomSampler on those bytes in memory. For each order of larder one daemon feeds the networks
of all seeds at once, which is where an order could suffer: they start one after the other, at unlike speeds, beside a
job that wants half of the classes only, and a fifth of the images fits the decoded tier. `sequential`, class after
class, is there to show that a bad order is seen. `stratified alone` is one network at a time on a daemon of its own
with a third of the images in memory: an order that prefers what is there would show it the same images early in every
epoch. The JSON is drawn by larder bench report. """

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from fair import tier_bytes
from loaders import ROOT, Daemon, out_dir

sys.path.insert(0, str(ROOT / "python"))

SIDE = 32
RATE = 0.05
TRAIN, VALIDATION, NEIGHBOUR = "id % 4 != 0", "id % 4 == 0", "id % 4 != 0 and label < 5"
BASELINE, CONTROL, ORDERS = "independent", "sequential", ("strict", "stratified", "epoch")
ALONE = "stratified alone"  # a row of its own: no other job, a third of the images in memory
SPEEDS = (1.0, 0.7, 1.4, 0.85, 1.2)  # batches of a job for each of the first one
NETWORK = ("convolutions 3-16-32 (3x3, stride 2), pooled to 4x4, one linear layer; SGD with momentum 0.9, rate from "
           "0.05 down to 0 in equal steps")
# Student's t at 97.5 %, by degrees of freedom from 1.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
     2.110, 2.101, 2.093, 2.086)


# --- what is said of the runs ---------------------------------------------------------------------------------------


def threshold(chance: float, samples: int, level: float = 1e-6) -> float:
    """The accuracy on so many images that guessing reaches with a probability of at most `level`, by the binomial
    distribution."""
    reached = 0.0
    for right in range(samples, -1, -1):
        ways = math.lgamma(samples + 1) - math.lgamma(right + 1) - math.lgamma(samples - right + 1)
        reached += math.exp(ways + right * math.log(chance) + (samples - right) * math.log1p(-chance))
        if reached > level:
            return (right + 1) / samples
    return 0.0


def last(accuracy: list[float]) -> float:
    """The mean of the last quarter of the epochs: one epoch alone jumps more than orders differ."""
    return statistics.fmean(accuracy[-tail(len(accuracy)):])


def tail(epochs: int) -> int:
    return max(1, epochs // 4)


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By order: mean and standard deviation over the seeds, and the difference to the baseline, seed by seed, with its
    95 % interval."""
    by: dict[str, dict[int, float]] = {}
    for r in runs:
        by.setdefault(r["order"], {})[r["seed"]] = last(r["validation_accuracy"])
    out = []
    for order, of in by.items():
        row: dict[str, Any] = {"order": order, "mean": statistics.fmean(of.values()),
                               "sd": statistics.stdev(of.values()) if len(of) > 1 else 0.0}
        pairs = [v - by[BASELINE][s] for s, v in of.items() if s in by.get(BASELINE, {})]
        if order != BASELINE and len(pairs) > 1:
            middle, t = statistics.fmean(pairs), T[len(pairs) - 2] if len(pairs) - 2 < len(T) else T[-1]
            half = t * statistics.stdev(pairs) / math.sqrt(len(pairs))
            row |= {"difference": middle, "difference_low": middle - half, "difference_high": middle + half}
        out.append(row)
    return out


def table(rows: list[dict[str, Any]]) -> str:
    text = ["| order | accuracy | standard deviation | less independent (95 % interval) |", "|---|---|---|---|"]
    for r in rows:
        less = ""
        if "difference" in r:
            low, high = 100 * r["difference_low"], 100 * r["difference_high"]
            less = f"{100 * r['difference']:+.1f} % ({low:+.1f} to {high:+.1f})"
        text.append(f"| {r['order']} | {100 * r['mean']:.1f} % | {100 * r['sd']:.1f} % | {less} |")
    return "\n".join(text)


# --- training -------------------------------------------------------------------------------------------------------


class Learner:
    """One network that learns; accuracies has its accuracy after each epoch."""

    def __init__(self, seed: int, whole: dict[str, Any], args: argparse.Namespace) -> None:
        import torch
        from torch import nn

        torch.manual_seed(seed)
        self.seed, self.validation, self.accuracies = seed, whole["validation"], []
        self.steps, self.last = 0, args.epochs * -(-len(whole["train_ids"]) // args.batch)
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2,
            padding=1), nn.ReLU(),
                                 nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * 16, whole["classes"]))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=RATE, momentum=0.9)

    def step(self, images: Any, labels: Any) -> None:
        from torch.nn import functional

        for group in self.optimizer.param_groups:
            group["lr"] = RATE * (1 - self.steps / self.last)
        self.steps += 1
        self.optimizer.zero_grad()
        functional.cross_entropy(self.net(scaled(images)), labels).backward()
        self.optimizer.step()

    def validate(self) -> None:
        import torch

        images, labels = self.validation
        with torch.no_grad():
            self.accuracies.append(float((self.net(scaled(images)).argmax(1) == labels).float().mean()))


def scaled(images: Any) -> Any:
    return (images.float() - 128) / 64


def in_memory(images: Any, labels: Any, order: str, seed: int, batch: int) -> Any:
    """The batches of torch's own samplers."""
    import torch
    from torch.utils import data

    whole = data.TensorDataset(images, labels)
    sampler = data.RandomSampler(whole,
                                 generator=torch.Generator().manual_seed(
                                     seed)) if order == BASELINE else data.SequentialSampler(whole)
    return data.DataLoader(whole, batch_size=batch, sampler=sampler)


class Job:
    """A job of the daemon that takes turns with others; without a learner it only takes."""

    def __init__(self, loader: Any, speed: float, start: float, learner: Learner | None = None) -> None:
        self.loader, self.learner, self.speed, self.due = loader, learner, speed, start
        self.epochs, self.batches, self.ids = 0, None, []

    def take(self, wanted: list[int]) -> None:
        self.due += 1 / self.speed
        if self.batches is None:
            self.batches, self.ids = iter(self.loader), []
        batch = next(self.batches, None)
        if batch is None:
            self.epochs, self.batches = self.epochs + 1, None
            if self.learner is not None:
                if sorted(self.ids) != wanted:
                    raise SystemExit(f"an epoch of {len(self.ids)} samples, {len(set(self.ids))} of them different, "
                                     f"of {len(wanted)}: not exactly once")
                self.learner.validate()
            return
        images, labels, index = batch
        self.ids += index.tolist()
        if self.learner is not None:
            self.learner.step(images, labels)


def by_turns(jobs: list[Job], epochs: int, wanted: list[int]) -> None:
    """The learner that is due takes a batch, until all have had their epochs."""
    left = [j for j in jobs if j.learner is not None]
    while left:
        running = [j for j in jobs if j.learner is None or j in left]
        j = min(running, key=lambda j: j.due)
        j.take(wanted)
        if j in left and j.epochs == epochs:
            left.remove(j)
            j.loader.close()


def loader(daemon: Daemon, data: str, **kw: Any) -> Any:
    import larder

    return larder.Loader(f"imagefolder:{data}", transform=[larder.ops.Resize(SIDE), larder.ops.CenterCrop(SIDE)],
                         output="torch", return_index=True,
                         endpoint=daemon.socket, timeout=600, **kw)


def read(args: argparse.Namespace, data: str) -> dict[str, Any]:
    """All images once, in their own order: of training and of validation."""
    import torch

    daemon = Daemon(args.bin)
    try:
        out: dict[str, Any] = {}
        for name, subset in (("train", TRAIN), ("validation", VALIDATION)):
            with loader(daemon, data, subset=subset, batch_size=64, job=f"read-{name}") as batches:
                got = [(x.clone(), y.clone(), i.tolist()) for x, y, i in batches]
                out["classes"] = len(batches.dataset.classes)
            out[name] = torch.cat([x for x, _, _ in got]), torch.cat([y for _, y, _ in got])
            out[f"{name}_ids"] = sorted(i for *_, ids in got for i in ids)
        return out
    finally:
        daemon.close()


def torch_runs(args: argparse.Namespace, order: str, whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for seed in range(args.seeds):
        learner = Learner(seed, whole, args)
        batches = in_memory(*whole["train"], order, seed, args.batch)
        for _ in range(args.epochs):
            for images, labels in batches:
                learner.step(images, labels)
            learner.validate()
        yield {"order": order, "seed": seed, "validation_accuracy": learner.accuracies}


def larder_runs(args: argparse.Namespace, order: str, data: str, whole: dict[str, Any]) -> tuple[list[dict[str, Any]],
    float]:
    """The runs of all seeds, and how many decodes there were for each sample that was delivered."""
    n = len(whole["train_ids"])
    fits = max(1 << 20, n * 3 * SIDE * SIDE // 5)
    daemon = Daemon(args.bin, *(f for kv in (f"tiers.total={fits}", "tiers.encoded=0", f"tiers.decoded={fits}",
                                             "tiers.augmented=0") for f in ("--set", kv)))
    try:
        steps = -(-n // args.batch)
        jobs = [
            Job(loader(daemon, data, subset=TRAIN, batch_size=args.batch, shuffle=True, order=order, seed=seed,
                       job=f"{order}-{seed}"), SPEEDS[seed % len(SPEEDS)],
                seed * steps / args.seeds, Learner(seed, whole, args))
            for seed in range(args.seeds)
        ]
        jobs.append(Job(loader(daemon, data, subset=NEIGHBOUR, batch_size=args.batch, shuffle=True, order=order,
                               seed=99, job=f"{order}-neighbour"), 2.0, 0.0))
        by_turns(jobs, args.epochs, whole["train_ids"])
        totals = daemon.stats(args.bin)["totals"]
        jobs[-1].loader.close()
        learners = [j.learner for j in jobs if j.learner is not None]
        return ([{"order": order, "seed": x.seed, "validation_accuracy": x.accuracies} for x in learners],
                int(totals["decodes"]) / max(1, int(totals["samples_delivered"])))
    finally:
        daemon.close()


def alone_runs(args: argparse.Namespace, data: str, whole: dict[str, Any]) -> tuple[list[dict[str, Any]], float]:
    """As larder_runs, of networks that have a daemon of their own."""
    n, runs, decodes, delivered = len(whole["train_ids"]), [], 0, 0
    fits = tier_bytes(n // 3, SIDE)
    tiers = (f"tiers.total={fits}", "tiers.encoded=0", f"tiers.decoded={fits}", "tiers.augmented=0")
    for seed in range(args.seeds):
        keys = (f"sampler.seed={seed + 1}", *tiers)  # a job's own seed does not change stratified orders
        daemon = Daemon(args.bin, *(f for kv in keys for f in ("--set", kv)))
        try:
            learner = Learner(seed, whole, args)
            batches = loader(daemon, data, subset=TRAIN, batch_size=args.batch, shuffle=True, order="stratified",
                             seed=seed, job=f"alone-{seed}", epochs=args.epochs)
            by_turns([Job(batches, 1.0, 0.0, learner)], args.epochs, whole["train_ids"])
            totals = daemon.stats(args.bin)["totals"]
            decodes, delivered = decodes + int(totals["decodes"]), delivered + int(totals["samples_delivered"])
            runs.append({"order": ALONE, "seed": seed, "validation_accuracy": learner.accuracies})
        finally:
            daemon.close()
    return runs, decodes / max(1, delivered)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="larder-accuracy-") as tmp:
        data = f"{tmp}/drawn"
        subprocess.run([args.bin, "demo-draw", data, "--samples", str(args.samples), "--shrink", str(args.shrink)],
                       check=True)
        whole = read(args, data)
        chance = 1 / whole["classes"]
        result: dict[str, Any] = {
            "kind": "accuracy", "title": "Accuracy by order: a small network on drawn images",
            "facts": {"processors": str(len(os.sched_getaffinity(0))), "machine": platform.machine(),
                      "python": platform.python_version(), "torch": torch.__version__,
                      "seeds": f"0 to {args.seeds - 1}", "images": f"larder demo-draw --samples {args.samples} "
                                                                   f"--shrink {args.shrink}, {SIDE} x {SIDE}"},
            "network": NETWORK, "classes": whole["classes"], "chance": chance, "train_samples": len(whole["train_ids"]),
            "validation_samples": len(whole["validation_ids"]),
            "threshold": threshold(chance, len(whole["validation_ids"])), "epochs": args.epochs,
            "last_epochs": tail(args.epochs), "batch": args.batch, "baseline": BASELINE, "runs": [],
        }
        shared: dict[str, float] = {}
        for order in args.orders:
            if order in ORDERS:
                runs, shared[order] = larder_runs(args, order, data, whole)
            elif order == ALONE:
                runs, shared[order] = alone_runs(args, data, whole)
            else:
                runs = list(torch_runs(args, order, whole))
            result["runs"] += runs
            print(f"{order}: " + ", ".join(f"{100 * last(r['validation_accuracy']):.1f} %" for r in runs),
                  file=sys.stderr, flush=True)
        result["orders"] = [row | ({"decodes_per_delivery": shared[row["order"]]} if row["order"] in shared else {})
                            for row in summary(result["runs"])]
        return result


def main() -> None:
    known = (BASELINE, *ORDERS, ALONE, CONTROL)
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    parser.add_argument("--samples", type=int, default=3000, help="images to draw; a quarter of them is for validation")
    parser.add_argument("--shrink", type=int, default=8, help="as larder demo-draw has it")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--orders", default=",".join(known))
    parser.add_argument("--json", default=str(out_dir() / "accuracy.json"))
    args = parser.parse_args()
    args.orders = [o for o in args.orders.split(",") if o]
    for o in args.orders:
        if o not in known:
            parser.error(f"--orders {o}: choose of {', '.join(known)}")
    if min(args.seeds, args.epochs, args.batch) < 1 or args.samples < 40:
        parser.error("--seeds, --epochs and --batch are 1 at least, --samples 40")
    result = measure(args)
    path = pathlib.Path(args.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1))
    print(table(result["orders"]))
    print(f"guessing: {100 * result['chance']:.0f} %, {100 * result['threshold']:.1f} % in an epoch once in a million "
          f"at most; raw figures: {path}")


if __name__ == "__main__":
    main()
