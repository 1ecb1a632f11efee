"""Compares batches of real datasets.Datasets with what the datasets themselves give; test_e2e_hugging_face.py runs it.

    python hugging_face.py CASE FOLDER

It runs under an interpreter that has datasets, torch and Pillow, and prints one line of JSON.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import warnings
from pathlib import Path

import datasets
import numpy as np
import torch
from structures import equal

import larder
from larder import _dataset
from larder.torch import DataLoader

ROWS = 150
WORDS = {"red", "old"}
datasets.disable_progress_bar()


def rows(n=ROWS):
    """Text, numbers, and lists of one length."""
    return datasets.Dataset.from_dict({
        "text": [f"row {i} " + "é" * (i % 5) for i in range(n)],
        "label": list(range(n)),
        "x": [[i / 3, i / 7, -i / 9] for i in range(n)],
    })  # fmt: skip


def doubled(batch):
    return {"twice": [2 * v for v in batch["label"]], "x": [np.array(v, np.float32) for v in batch["x"]]}


def tripled(batch):
    return {"twice": [3 * v for v in batch["label"]], "x": [np.array(v, np.float32) for v in batch["x"]]}


def pixels(batch):
    return {"image": [torch.from_numpy(np.array(im)) for im in batch["image"]], "label": batch["label"]}


def pictures():
    """An Image feature, decoded at each access, as arrays by a transform."""
    r = np.random.default_rng(0)
    arrays = [r.integers(0, 256, (6, 5, 3), dtype=np.uint8) for _ in range(40)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    made = datasets.Dataset.from_dict({"image": arrays, "label": list(range(40))}, features=features)
    return made.with_transform(pixels)


def in_place():
    made = rows()
    made.set_transform(doubled)
    return made


def all_of_them(folder):
    """A dataset of each kind, by name."""
    rows().save_to_disk(str(folder / "saved"))
    return {
        "plain": rows(),
        "torch": rows().with_format("torch"),
        "torch columns": rows().with_format("torch", columns=["x", "label"]),
        "numpy": rows().with_format("numpy"),
        "with_transform": rows().with_transform(doubled),
        "set_transform": in_place(),
        "images": pictures(),
        "map": rows().map(lambda row: {"n": len(row["text"])}, remove_columns="text"),
        "filter": rows().filter(lambda row: row["label"] % 3 > 0),
        "select": rows().select([5, 3, 3, 90, 149, 0]),
        "select range": rows().select(range(20, 130)),
        "shuffle": rows().shuffle(seed=4),
        "shuffle, torch": rows().shuffle(seed=4).with_format("torch"),
        "sort": rows().sort("label", reverse=True),
        "concatenate": datasets.concatenate_datasets([rows(30), rows(20).select(range(5, 15))]),
        "from disk": datasets.load_from_disk(str(folder / "saved")),
    }


def plain(batch):
    """A batch with text as str, which datasets gives as NumPy's class in the format of NumPy."""
    if isinstance(batch, dict):
        return {k: plain(v) for k, v in batch.items()}
    if isinstance(batch, list):
        return [plain(v) for v in batch]
    return str(batch) if isinstance(batch, np.str_) else batch


def require_same(ours, theirs, what):
    got, want = list(ours), [plain(b) for b in theirs]
    assert len(got) == len(want), (what, len(got), len(want))
    for a, b in zip(got, want, strict=True):
        assert equal(a, b), (what, a, b)


def batches(folder, workers=(0, 2), **kw):
    """In the dataset's order, of all kinds: the batches of torch's own loader, and those of the same items."""
    count = 0
    for name, dataset in all_of_them(folder).items():
        theirs = list(torch.utils.data.DataLoader(dataset, batch_size=16))
        for number, n in enumerate(workers):
            extra = {"cache": "items"} if number % 2 else {}
            with DataLoader(dataset, batch_size=16, num_workers=n, **extra, **kw) as ours:
                for _ in range(2):
                    require_same(ours, theirs, (name, n))
                    count += len(theirs)
    return {"kinds": len(all_of_them(folder)), "batches": count}


def shuffled(folder):
    """Shuffled, each sample once, whole: larder.Loader and larder.torch.DataLoader."""
    count = 0
    for name, dataset in all_of_them(folder).items():
        if name == "select":
            continue  # it has a row twice
        want = sorted(repr(row) for row in dataset)
        loaders = (
            DataLoader(dataset, batch_size=16, shuffle=True, num_workers=1, collate_fn=list),
            larder.Loader(dataset, batch_size=16, shuffle=True, num_workers=1, collate_fn=list),
        )
        for ours in loaders:
            got = [row for batch in ours for row in batch]
            assert sorted(map(repr, got)) == want, name
            count += len(got)
            ours.close()
    return {"samples": count, "kinds": len(all_of_them(folder)) - 1}


def numpy_batches(folder):
    """larder.Loader gives arrays, and text in lists."""
    with larder.Loader(rows(), batch_size=50) as ours:
        first = next(iter(ours))
    assert first["text"] == rows()[:50]["text"] and first["label"].tolist() == list(range(50))
    columns = [list(c) for c in zip(*rows()[:50]["x"], strict=True)]  # a list is one field a place, as in torch
    assert [v.tolist() for v in first["x"]] == columns
    with larder.Loader(rows().with_format("numpy"), batch_size=50) as ours:
        first = next(iter(ours))
    assert first["x"].shape == (50, 3) and first["x"].tolist() == rows().with_format("numpy")[:50]["x"].tolist()
    return {"checked": 2}


def spawned(folder):
    """Pickled, with a transform of this module."""
    count = 0
    every = all_of_them(folder)
    for method in ("spawn", "forkserver"):
        for name in ("with_transform", "from disk") if method == "spawn" else ("shuffle, torch",):
            theirs = torch.utils.data.DataLoader(every[name], batch_size=16)
            with DataLoader(every[name], batch_size=16, num_workers=1, persistent_workers=True,
                            multiprocessing_context=method) as ours:  # fmt: skip
                for _ in range(2):
                    require_same(ours, theirs, (name, method))
                count += 1
    return {"loaders": count}


def changed(folder):
    """A transform that the script sets between epochs."""
    dataset = in_place()
    counts = []
    with DataLoader(dataset, batch_size=16, num_workers=1) as ours:
        for transform in (doubled, tripled, doubled):
            dataset.set_transform(transform)
            require_same(ours, torch.utils.data.DataLoader(dataset, batch_size=16), transform)
            counts.append(int(sum(b["twice"].sum() for b in ours)))
    return {"sums": counts}


def parts(folder):
    """torch's Subset and random_split, and ConcatDataset, of such datasets."""
    data = torch.utils.data
    whole = rows().with_format("torch")
    train, rest = data.random_split(whole, [120, 30], generator=torch.Generator().manual_seed(1))
    both = data.ConcatDataset([rest, rows(9).with_format("torch")])
    checked = 0
    for part in (data.Subset(whole, range(7, 70)), train, rest, both):
        with DataLoader(part, batch_size=16, num_workers=1) as ours:
            require_same(ours, data.DataLoader(part, batch_size=16), part)
            checked += 1
    return {"checked": checked}


def codes(folder):
    """The fingerprints by which two scripts find out that they have the same dataset."""
    every = all_of_them(folder)
    every["words"] = rows().map(lambda row: {"n": sum(w in WORDS for w in row["text"].split())})
    every["split"] = rows().train_test_split(0.3, seed=2)["test"]
    return {name: _dataset.code(d) for name, d in every.items() if name != "from disk"}


def share(folder):
    """One of two scripts: by name, with a lambda that holds something."""
    offset = 7
    dataset = rows().map(lambda row: {"n": len(row["text"]) + offset}, remove_columns=["text", "x"]).shuffle(seed=1)
    total = 0
    loader = larder.Loader(
        dataset, name="shared-rows", cache="items", batch_size=16, shuffle=True, num_workers=1, epochs=2,
        job=f"share-{folder.name}", return_index=True,
    )  # fmt: skip
    with loader:
        for _ in range(2):
            for batch, index in loader:
                assert [dataset[int(i)]["n"] for i in index] == batch["n"].tolist()
                total += int(batch["label"].sum())
        made = loader.stats().totals.decodes
    return {"total": total, "made": made}


def made(folder):
    """Items that the daemon has had made."""
    with larder.Loader([0], batch_size=1) as look:
        return {"made": look.stats().totals.decodes}


def unlike(folder):
    """Fingerprints that are random say how to get others."""
    base = sqlite3.connect(":memory:")
    words = {}
    for kind, make in (
        ("shuffle", lambda: rows().shuffle()),
        ("map", lambda: rows().map(lambda row: {"n": base.execute("select 1").fetchone()[0]})),
        ("transform", lambda: rows().with_transform(lambda b: {"n": [base.total_changes for _ in b["text"]]})),
    ):
        with larder.Loader(make(), name=f"unlike-{kind}", batch_size=8, job=f"{kind}-1"):
            try:
                larder.Loader(make(), name=f"unlike-{kind}", batch_size=8, job=f"{kind}-2").close()
            except larder.InvalidError as e:
                words[kind] = str(e)
    return words


def main(case, folder):
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    warnings.simplefilter("ignore")
    datasets.logging.set_verbosity_error()
    print(json.dumps(globals()[case](folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
