"""Text: a Hugging Face dataset with a tokenizer, padded batches.

    python examples/python_datasets/tokens.py

The sentences are made up and the tokenizer is trained on them, so nothing is downloaded. Lists of token ids have
lengths of their own; `ragged="pad"` makes each batch as long as its longest sentence, rounded up to 8. """

from __future__ import annotations

import importlib.util
import os
import random
import sys
from pathlib import Path

import two_jobs

COUNT = 400
WORDS = "the a small red old house dog tree sings runs under over near blue quick and then slowly".split()


def sentences() -> list[str]:
    r = random.Random(0)
    return [" ".join(r.choices(WORDS, k=r.randrange(3, 20))) for _ in range(COUNT)]


def train(job: int, epochs: int, _folder: Path) -> None:
    import datasets
    import larder
    import tokenizers

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # workers are forked
    datasets.disable_progress_bar()
    text = sentences()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(text, tokenizers.trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
    dataset = datasets.Dataset.from_dict({"text": text, "label": [t.count("the") for t in text]})
    dataset = dataset.map(lambda row: {"input_ids": tokenizer.encode(row["text"]).ids}, remove_columns="text")
    loader = larder.Loader(
        dataset, name="sentences", cache="items", batch_size=32, shuffle=True, num_workers=1, ragged="pad",
        pad_multiple=8, job=f"tokens-{job}",
    )
    with loader:
        for epoch in range(epochs):
            count, tokens = 0, 0
            for batch in loader:
                ids = batch["input_ids"]
                assert ids.shape[1] % 8 == 0 and len(batch["label"]) == len(ids)
                count, tokens = count + len(ids), tokens + int((ids > 0).sum())
            print(f"job {job}, epoch {epoch}: {count} sentences, {tokens} tokens", flush=True)


if __name__ == "__main__":
    missing = [m for m in ("datasets", "tokenizers") if importlib.util.find_spec(m) is None]
    if missing:
        sys.exit(f"this example needs {' and '.join(missing)}")
    sys.exit(two_jobs.main(train))
