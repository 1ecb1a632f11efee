"""Fine-tuning on tokens: batches are dicts, texts differ in length.

    python examples/from_tensorsocket/tokens.py

TensorSocket pads every batch to `max_tensor_length`, labels with -100 and all else with 0. Here each batch is padded to
its own longest text with `pad_value`, and the script makes the labels of the mask. The tokens are drawn; a dataset of
Hugging Face goes the same way (examples/python_datasets/tokens.py). """

from __future__ import annotations

import sys
from pathlib import Path

import larder
import numpy as np
import pair

COUNT, LONGEST = 480, 150


class Texts:
    """Sample i: tokens from 1 on and their mask, as a tokenizer gives them."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        r = np.random.default_rng(index)
        ids = r.integers(1, 5000, r.integers(4, LONGEST))
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def train(job: int, epochs: int, _folder: Path) -> None:
    loader = larder.Loader(
        Texts(), name="texts", cache="items", batch_size=(16, 12)[job], shuffle=True, num_workers=1, ragged="pad",
        job=f"texts-{job}",
    )
    with loader:
        for epoch in range(epochs):
            count, width, tokens = 0, 0, 0
            for batch in loader:
                ids, mask = batch["input_ids"], batch["attention_mask"]
                labels = np.where(mask == 1, ids, -100)
                assert ids.shape[1] == mask.sum(axis=1).max() and (labels > 0).sum() == mask.sum()
                count, width, tokens = count + len(ids), width + ids.size, tokens + int(mask.sum())
            print(f"job {job}, epoch {epoch}: {count} texts, {tokens / width:.0%} of each batch are tokens", flush=True)


if __name__ == "__main__":
    sys.exit(pair.main(train))
