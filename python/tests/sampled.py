"""Samplers whose passes are random, in this process and in one that resumes (test_e2e_samplers.py).

It reads the socket of a daemon and states by name of sampler as JSON, and writes what the loaders give that load them.
"""

from __future__ import annotations

import json
import random
import sys

import numpy as np
import torch
from torch.utils import data

N = 23


class Own(data.Sampler):
    """A sampler with a random generator of NumPy or of Python, or a number that only it knows of."""

    def __init__(self, rng):
        self.rng = rng

    def __iter__(self):
        below = next(f for n in ("integers", "randrange", "randint") if (f := getattr(self.rng, n, None)))
        for _ in range(30):
            yield int(below(N))


class Counting(data.Sampler):
    """A sampler that says itself where it is."""

    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter(np.random.default_rng(self.passes).integers(N, size=30).tolist())

    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"]


class Held:
    """A sampler that draws from a generator which it does not hold, as the script's loader does."""

    def __init__(self, generator):
        self.held = [generator]

    def __iter__(self):
        return iter(torch.randint(N, (30,), generator=self.held[0]).tolist())


def seeded():
    return torch.Generator().manual_seed(4)


def _shared(generator):
    return {"sampler": Held(generator), "generator": generator, "batch_size": 4}


_WEIGHTS = [1.0 + i % 3 for i in range(N)]
_SOME = [3, 3, 5, 8, 20, 21, 22, 0, 1, 2, 9, 10]
SAMPLERS = {
    "weighted": lambda: {"sampler": data.WeightedRandomSampler(_WEIGHTS, 35, generator=seeded()), "batch_size": 4},
    "replacement": lambda: {"sampler": data.RandomSampler(range(N), True, 33, generator=seeded()), "batch_size": 5},
    "longer": lambda: {"sampler": data.RandomSampler(range(N), num_samples=60, generator=seeded()), "batch_size": 7},
    "subset": lambda: {"sampler": data.SubsetRandomSampler(_SOME, generator=seeded()), "batch_size": 2},
    "batches": lambda: {
        "batch_sampler": data.BatchSampler(data.WeightedRandomSampler(_WEIGHTS, 30, generator=seeded()), 4, True)
    },
    "one by one": lambda: {"sampler": data.RandomSampler(range(N), True, 12, generator=seeded()), "batch_size": None},
    "shared with the loader": lambda: _shared(seeded()),
    "numpy": lambda: {"sampler": Own(np.random.default_rng(3)), "batch_size": 4},
    "numpy, old": lambda: {"sampler": Own(np.random.RandomState(3)), "batch_size": 4},
    "python": lambda: {"sampler": Own(random.Random(3)), "batch_size": 4},
    "state of its own": lambda: {"sampler": Counting(), "batch_size": 4},
    "global": lambda: {"sampler": data.WeightedRandomSampler(_WEIGHTS, 35), "batch_size": 4},
    "global subset": lambda: {"batch_sampler": data.BatchSampler(data.SubsetRandomSampler(_SOME), 2, False)},
}
GLOBAL = ("global", "global subset")  # the passes after the resumed one draw from what the script seeds


def passes(loader, n):
    """The next epochs of a loader, as lists."""
    return [[b.tolist() for b in loader] for _ in range(n)]


def made(name, socket):
    """A loader with a sampler, on the daemon of a socket."""
    from larder.torch import DataLoader

    numbers = [torch.tensor(i) for i in range(N)]
    return DataLoader(numbers, endpoint=socket, fallback="error", **SAMPLERS[name]())


def main():
    asked = json.load(sys.stdin)
    found = {}
    for name, state in asked["states"].items():
        torch.manual_seed(99)
        with made(name, asked["socket"]) as loader:
            loader.load_state_dict(state)
            before = torch.get_rng_state()
            found[name] = passes(loader, 1)
            same = bool(torch.equal(before, torch.get_rng_state()))
            found[name] += [same, *([] if name in GLOBAL else passes(loader, 1))]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
