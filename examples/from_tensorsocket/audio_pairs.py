"""Contrastive learning of audio, as in the paper of TensorSocket (CLMR): two random views of a recording.

    python examples/from_tensorsocket/audio_pairs.py

A view is expensive to make and random, so no item can be kept. `share="augmented"` makes each view once and gives it
to every job, as TensorSocket gives its batches to every consumer; but each job has its own order and batch size, and
none gets a view twice. Recordings are made, not read. """

from __future__ import annotations

import sys
from pathlib import Path

import larder
import numpy as np
import pair

RATE, SECONDS, COUNT, CUT = 4000, 4, 160, 6000


class Views:
    """Sample i: two windows of recording i, each with its own loudness, polarity and noise, and the number i."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        t = np.arange(RATE * SECONDS) / RATE
        sound = np.sin(2 * np.pi * (100 + index) * t * (1 + t / SECONDS))
        return np.stack([self.view(sound), self.view(sound)]).astype(np.float32), index

    @staticmethod
    def view(sound: np.ndarray) -> np.ndarray:
        # larder sets NumPy's random state for each item of each epoch: what is drawn depends on no worker
        start = np.random.randint(len(sound) - CUT)
        view = sound[start : start + CUT] * np.random.uniform(0.5, 1) * np.random.choice([-1, 1])
        return view + np.random.normal(scale=0.01, size=CUT)


def train(job: int, epochs: int, folder: Path) -> None:
    loader = larder.Loader(
        Views(), name="views", share="augmented", batch_size=(16, 20)[job], shuffle=True, num_workers=1,
        job=f"views-{job}",
    )
    ever: set[bytes] = set()
    with loader:
        pair.meet(job, folder)
        for epoch in range(epochs):
            seen: list[int] = []
            for pairs, numbers in loader:
                assert pairs.shape[1:] == (2, CUT) and not np.array_equal(pairs[:, 0], pairs[:, 1])
                ever |= {pair.tobytes()[:64] for pair in pairs}
                seen += numbers.tolist()
            assert sorted(seen) == list(range(COUNT))
            print(f"job {job}, epoch {epoch}: {len(seen)} pairs of views", flush=True)
    assert len(ever) == epochs * COUNT, "a view came twice"


if __name__ == "__main__":
    sys.exit(pair.main(train))
