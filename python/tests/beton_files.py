"""Writes .beton files with FFCV's own writer, and reads them with its own reader; run by test_e2e_beton.py in an
environment that has FFCV.

    beton_files.py OUT SEED[,SEED...]

For each seed it writes OUT/SEED/NAME.beton and OUT/SEED/want.json: for each uri (relative to them) the samples in
order; of images [label, sha256 of the pixels, height, width], of records a dict of field to what ``told`` says of it.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField, TorchTensorField
from ffcv.reader import Reader
from ffcv.types import get_metadata_type
from ffcv.writer import DatasetWriter
from record_told import told

JSON = 5


class Samples:
    """A dataset with items by number."""

    def __init__(self, items: list[tuple[Any, ...]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        return self.items[i]


def read(path: Path) -> list[dict[str, Any]]:
    """What FFCV's reader finds of every sample: its metadata, and the bytes that they point to."""
    reader = Reader(str(path))
    assert get_metadata_type(list(reader.handlers.values())) == reader.metadata_type
    data = np.fromfile(path, np.uint8)
    sizes = {int(ptr): int(size) for _, ptr, size in reader.alloc_table if size}
    rows = []
    for meta in reader.metadata:
        row: dict[str, Any] = {}
        kinds = reader.field_descriptors["type_id"]  # the reader takes JSON for bytes
        for (name, handler), m, kind in zip(reader.handlers.items(), meta, kinds, strict=True):
            if isinstance(handler, RGBImageField):
                at, height, width = int(m["data_ptr"]), int(m["height"]), int(m["width"])
                if m["mode"] == 0:
                    pixels = cv2.imdecode(data[at : at + sizes[at]], cv2.IMREAD_COLOR)[:, :, ::-1]
                else:
                    pixels = data[at : at + height * width * 3].reshape(height, width, 3)
                row[name] = np.ascontiguousarray(pixels)
            elif isinstance(handler, BytesField):
                at, size = int(m["ptr"]), int(m["size"])
                b = data[at : at + size] if size else data[:0]
                row[name] = json.dumps(JSONField.unpack(b)) if kind == JSON else b.tobytes()
            elif isinstance(handler, NDArrayField):
                at = int(m)  # the size is a float64 in NumPy's eyes
                row[name] = data[at : at + int(handler.element_size)].view(handler.dtype).reshape(handler.shape)
            else:
                row[name] = np.float64(m) if isinstance(handler, FloatField) else np.int64(m)
        rows.append(row)
    return rows


def picture(rng: np.random.Generator) -> np.ndarray:
    """Pixels of an odd size; smooth, so that JPEG keeps them small."""
    h, w = rng.integers(1, 90, 2)
    return cv2.resize(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8), (int(w), int(h)))


def write(path: Path, fields: dict[str, Any], items: list[tuple[Any, ...]], workers: int) -> None:
    """FFCV's writer."""
    writer = DatasetWriter(str(path), fields, page_size=1 << 21, num_workers=workers)
    writer.from_indexed_dataset(Samples(items), chunksize=7)


def main(out: Path, seed: int) -> None:
    """Writes all files."""
    import torch

    pick, rng = random.Random(seed), np.random.default_rng(seed)
    out.mkdir(parents=True)
    want: dict[str, Any] = {}
    for mode, more in (
        ("jpg", {"jpeg_quality": 90}), ("raw", {}), ("smart", {"smart_threshold": 5000}),
        ("proportion", {"compress_probability": 0.5}),
    ):  # fmt: skip
        items = [(picture(rng), int(rng.integers(0, 9))) for _ in range(pick.randint(20, 40))]
        path = out / f"{mode}.beton"
        write(path, {"image": RGBImageField(write_mode=mode, **more), "label": IntField()}, items, pick.randint(1, 2))
        want[f"{mode}.beton"] = [
            [int(r["label"]), hashlib.sha256(r["image"].tobytes()).hexdigest(), *r["image"].shape[:2]]
            for r in read(path)
        ]
    shape = tuple(pick.randint(1, 4) for _ in range(pick.randint(1, 4)))
    fields = {
        "blob": BytesField(), "x": FloatField(), "a": NDArrayField(np.dtype("f4"), shape), "meta": JSONField(),
        "rgb": RGBImageField(write_mode="proportion", compress_probability=0.5), "n": IntField(),
        "flags": NDArrayField(np.dtype("?"), (3,)), "t": TorchTensorField(torch.int16, (2, 2)),
    }  # fmt: skip
    items = [
        (
            rng.integers(0, 256, pick.randint(1, 900), dtype=np.uint8), float(rng.standard_normal()),
            rng.standard_normal(shape).astype("f4"), {"i": i, "words": ["größe", None, i / 7]}, picture(rng),
            i * 3 - 50, rng.random(3) < 0.5, torch.full((2, 2), i, dtype=torch.int16),
        )
        for i in range(pick.randint(37, 97))
    ]  # fmt: skip
    write(out / "all.beton", fields, items, pick.randint(1, 2))
    rows = [{k: json.loads(v) if k == "meta" else told(v) for k, v in r.items()} for r in read(out / "all.beton")]
    names = list(fields)
    want[f"all.beton?fields={','.join(names)}"] = rows
    want["all.beton?fields=n,meta"] = [{k: r[k] for k in ("n", "meta")} for r in rows]
    (out / "want.json").write_text(json.dumps(want))


if __name__ == "__main__":
    for n in sys.argv[2].split(","):
        main(Path(sys.argv[1]) / n, int(n))
