"""Writes scenes (a photograph, its mask, boxes and a number) with the writers of three formats, and what their own
readers give; run by test_e2e_stored_ops.py in the environment that internal/tools/setup.sh makes of
internal/tools/python/formats.txt.

    joint_files.py OUT SEED

Writes OUT/FORMAT, OUT/FORMAT.npz (image, mask, boxes of each scene: image0, mask0, ...) and OUT/FORMAT.json: the uri
relative to OUT, and the names of the fields.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import webdataset
from PIL import Image
from record_told import sized
from streaming import LocalDataset, MDSWriter

N = sized(7, 23)


def scenes(seed: int, least: int = 0) -> list[tuple[bytes, bytes, Any]]:
    """Photographs in JPEG and PNG, masks with a palette or in grey, at least so many boxes."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(N):
        h, w = (int(n) for n in rng.integers(20, sized(29, 70), 2))
        photo, mask = io.BytesIO(), io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)).save(photo, "JPEG" if i % 3 else "PNG")
        classes = Image.fromarray(rng.integers(0, 21, (h, w), dtype=np.uint8))
        if i % 2:
            classes.putpalette(rng.integers(0, 256, 768, dtype=np.uint8).tobytes())
        classes.save(mask, "PNG")
        n = max(i % 4, least)
        boxes = np.sort(rng.integers(0, 20, (n, 2, 2)), axis=1).reshape(n, 4)
        out.append((photo.getvalue(), mask.getvalue(), boxes.astype(np.float32)))
    return out


def pixels(file: bytes, kind: str = "RGB") -> Any:
    """An image file as an array; masks as they are."""
    img = Image.open(io.BytesIO(file))
    return np.asarray(img.convert(kind) if kind else img)


def finish(out: Path, name: str, uri: str, names: list[str], items: list[tuple[bytes, bytes, Any]]) -> None:
    """Writes what the format's own reader gave."""
    assert len(items) == N
    arrays = {}
    for i, (photo, mask, boxes) in enumerate(items):
        arrays |= {f"image{i}": pixels(photo), f"mask{i}": pixels(mask, "")}
        arrays[f"boxes{i}"] = np.asarray(boxes, "<f4").reshape(len(boxes), 4)
    np.savez(out / f"{name}.npz", **arrays)
    (out / f"{name}.json").write_text(json.dumps([uri, *names]))


def wds(out: Path, seed: int) -> None:
    """webdataset."""
    with webdataset.TarWriter(str(out / "wds.tar")) as sink:
        for i, (photo, mask, boxes) in enumerate(scenes(seed)):
            sink.write({"__key__": f"{i:04}", "jpg": photo, "seg.png": mask, "boxes.npy": boxes, "cls": i})
    read = webdataset.WebDataset(str(out / "wds.tar"), shardshuffle=False)
    items = [(r["jpg"], r["seg.png"], np.load(io.BytesIO(r["boxes.npy"]))) for r in read]
    finish(out, "wds", "wds:wds.tar?fields=jpg,seg.png,boxes.npy,cls", ["jpg", "seg.png", "boxes.npy", "cls"], items)


def parquet(out: Path, seed: int) -> None:
    """pyarrow: images as structs of bytes and path, as Hugging Face has them, boxes as lists of lists."""
    rows = []
    for i, (photo, mask, boxes) in enumerate(scenes(seed)):
        files = {k: {"bytes": b, "path": None} for k, b in (("image", photo), ("mask", mask))}
        rows.append({**files, "boxes": boxes.tolist(), "n": i})
    file = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    lists = pa.list_(pa.list_(pa.float32()))
    schema = pa.schema([("image", file), ("mask", file), ("boxes", lists), ("n", pa.int64())])
    (out / "parquet").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema), out / "parquet" / "a.parquet", row_group_size=sized(3, 9))
    read = pq.read_table(out / "parquet").to_pylist()
    items = [(r["image"]["bytes"], r["mask"]["bytes"], r["boxes"]) for r in read]
    finish(out, "parquet", "parquet:parquet", ["image", "mask", "boxes", "n"], items)


def mds(out: Path, seed: int) -> None:
    """MosaicML, which writes no empty array. Its reader decodes images with Pillow."""
    columns = {"image": "jpeg", "mask": "png", "boxes": "ndarray:float32", "n": "int64"}
    items = []
    with MDSWriter(out=str(out / "mds"), columns=columns, size_limit=sized(1 << 13, 1 << 14)) as sink:
        for i, (photo, mask, boxes) in enumerate(scenes(seed, least=1)):
            picture = Image.open(io.BytesIO(photo)).convert("RGB")
            sink.write({"image": picture, "mask": Image.open(io.BytesIO(mask)), "boxes": boxes, "n": np.int64(i)})
    read = LocalDataset(str(out / "mds"))
    for r in (read[i] for i in range(len(read))):
        files = []
        for img in (r["image"], r["mask"]):
            b = io.BytesIO()
            img.save(b, "PNG")
            files.append(b.getvalue())
        items.append((files[0], files[1], r["boxes"]))
    finish(out, "mds", "mds:mds?fields=image,mask,boxes,n", ["image", "mask", "boxes", "n"], items)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for make in (wds, parquet, mds):
        make(target, int(sys.argv[2]))
