"""A training script for the end-to-end tests: iterates one Loader, checks what it gets against Pillow, and writes a
record.

Reads its orders from a JSON file; prints one JSON line per event: ready, batch, epoch, error, done.
"""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
from pace import pace

import larder


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def pillow(path: str) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as im:
        return np.asarray(im.convert("RGB"))


def main() -> None:
    with open(sys.argv[1]) as f:
        orders = json.load(f)
    files = orders.get("files") or []  # [path, label] by sample id, found without larder
    kw = orders["loader"]
    if "transform" in kw:
        kw["transform"] = [larder.ops.Compose([t]) for t in kw["transform"]]
    loader = larder.Loader(orders["uri"], return_index=True, **kw)
    say(event="ready", batches=len(loader), samples=loader.num_samples, job=loader.job)
    if orders.get("wait"):
        sys.stdin.readline()
    digests: dict[int, str] = {}
    for epoch in range(orders["epochs"]):
        ids: list[int] = []
        compared = 0
        worst, sums = 0, [0.0, 0]
        labels_right = True
        hashes: dict[int, str] = {}
        for images, labels, index in loader:
            given: list[tuple[int, str]] = []
            for image, label, i in zip(images, labels.tolist(), index.tolist(), strict=True):
                ids.append(i)
                if files:
                    labels_right = labels_right and label == files[i][1]
                if orders.get("compare"):
                    digest = hashlib.blake2b(image.tobytes(), digest_size=8).hexdigest()
                    if i not in digests:
                        want = pillow(files[i][0])
                        if want.shape != image.shape:
                            raise SystemExit(f"sample {i}: shape {image.shape} instead of {want.shape}")
                        diff = np.abs(want.astype(np.int16) - image)
                        worst = max(worst, int(diff.max()))
                        sums[0] += float(diff.sum())
                        sums[1] += diff.size
                        digests[i] = digest
                    elif digests[i] != digest:
                        raise SystemExit(f"sample {i}: other pixels in epoch {epoch}")
                    compared += 1
                if orders.get("hashes"):
                    hashes[i] = hashlib.blake2b(np.ascontiguousarray(image), digest_size=8).hexdigest()
                if orders.get("records"):
                    given.append((i, hashlib.blake2b(np.ascontiguousarray(image), digest_size=8).hexdigest()))
            say(event="batch", epoch=epoch, rows=len(index), given=given)
            pace(orders.get("delay", 0.0))
        stats = loader.stats()
        say(
            event="epoch",
            epoch=epoch,
            ids=ids,
            labels_right=labels_right,
            compared=compared,
            worst=worst,
            mean=sums[0] / max(1, sums[1]),
            decodes=stats.totals.decodes,
            augments=stats.totals.augments,
            reads=stats.totals.source_reads,
            hashes=hashes,
        )
    loader.close()
    say(event="done", quarantined=[q.id for q in loader.quarantined])


if __name__ == "__main__":
    try:
        main()
    except larder.Error as e:
        say(event="error", type=type(e).__name__, reason=e.reason, text=str(e))
        sys.exit(1)
