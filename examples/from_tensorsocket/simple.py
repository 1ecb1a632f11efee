"""TensorSocket's simple_producer.py and simple_consumer.py: numbered tensors for consumers with unlike batch sizes.

    python examples/from_tensorsocket/simple.py

There the producer's loader makes batches, and each consumer gets slices of them. Here the dataset makes samples, and
each job has batches, an order and a speed of its own. Job 1 is slow, begins later and stops in the middle of its first
epoch; then it is loaded again and goes on where it stopped. """

from __future__ import annotations

import sys
import time
from pathlib import Path

import larder
import numpy as np
import pair

COUNT = 960


class Numbers:
    """Sample i: a tensor that is i everywhere, and i."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.float32]:
        return np.full((10, 20), index, np.float32), np.float32(index)


def consume(job: int, state: dict[str, object] | None, stop: int) -> tuple[list[int], dict[str, object]]:
    """Takes batches until the epoch ends, or ``stop`` of them, and returns what came and the state of the loader."""
    loader = larder.Loader(
        Numbers(), name="numbers", cache="items", batch_size=(16, 40)[job], shuffle=True, num_workers=1,
        job=f"numbers-{job}{'-again' if state else ''}",
    )
    seen: list[int] = []
    with loader:
        if state:
            loader.load_state_dict(state)
        for n, (inputs, labels) in enumerate(loader, 1):
            assert np.array_equal(inputs[:, 0, 0], labels)
            seen += labels.astype(int).tolist()
            if job == 1:
                time.sleep(0.005)
            if n == stop:
                return seen, loader.state_dict()
        return seen, loader.state_dict()


def train(job: int, epochs: int, _folder: Path) -> None:
    for epoch in range(epochs):
        if job == 0:
            seen, _ = consume(job, None, 0)
        else:
            time.sleep(0.2)  # the other one is on its way
            first, state = consume(job, None, 10)
            rest, _ = consume(job, state, 0)
            assert len(first) == 400
            seen = first + rest
        assert sorted(seen) == list(range(COUNT)), "each sample once"
        print(f"job {job}, epoch {epoch}: {len(seen)} samples in batches of {(16, 40)[job]}", flush=True)


if __name__ == "__main__":
    sys.exit(pair.main(train))
