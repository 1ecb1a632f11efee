"""Writes packed datasets with their own writers, and reads them with their own readers; run by test_e2e_packed.py in
the environment that internal/tools/setup.sh makes of internal/tools/python/formats.txt.

    packed_files.py IMAGEFOLDER OUT SEED

Writes OUT/wds, OUT/wds-gz, OUT/mds, OUT/mds-CODEC and, for each, what the format's own reader gives: OUT/wds.json and
so on, lists of [label, sha256 of the RGB pixels, height, width].
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from PIL import Image
from record_told import sized
from streaming import LocalDataset, MDSWriter, StreamingDataset

CODECS = ("zstd:3", "gz", "bz2", "br:4", "snappy")


def row(label: int, image: Any) -> list[Any]:
    """What is compared of one sample."""
    pixels = np.asarray(image.convert("RGB"))
    return [int(label), hashlib.sha256(pixels.tobytes()).hexdigest(), *pixels.shape[:2]]


def main(folder: Path, out: Path, seed: int) -> None:
    """Writes both datasets in an order of their own."""
    pick = random.Random(seed)
    files = sorted(p for p in folder.rglob("*.*") if p.is_file())
    pick.shuffle(files)
    classes = sorted({p.parent.name for p in files})
    for name, suffix in (("wds", "tar"), ("wds-gz", "tar.gz")):
        (out / name).mkdir(parents=True)
        pattern = str(out / name / f"part-%03d.{suffix}")
        with webdataset.ShardWriter(pattern, maxcount=sized(3, pick.randint(3, 9)), verbose=0) as w:
            for i, p in enumerate(files):
                sample = {"__key__": f"{p.parent.name}/{i:04}", p.suffix[1:]: p.read_bytes(), "json": {"n": i}}
                w.write({**sample, "cls": classes.index(p.parent.name)})
        shards = sorted(str(p) for p in (out / name).iterdir())
        read = webdataset.WebDataset(shards, shardshuffle=False)
        rows = [row(s["cls"], Image.open(io.BytesIO(s.get("jpg") or s["png"]))) for s in read]
        (out / f"{name}.json").write_text(json.dumps(rows))

    columns = {"image": "jpeg", "label": pick.choice(["int", "uint8", "int32"]), "name": "str"}
    size = sized(3_000, pick.randint(5_000, 50_000))
    for codec in (None, *CODECS):
        name = f"mds-{codec.partition(':')[0]}" if codec else "mds"
        with MDSWriter(out=str(out / name), columns=columns, size_limit=size, compression=codec, hashes=["sha1"]) as m:
            for p in files:
                image, label = Image.open(p), classes.index(p.parent.name)
                value = label if columns["label"] == "int" else getattr(np, columns["label"])(label)
                if p.suffix == ".jpg":
                    m.write({"image": image, "label": value, "name": p.name})
        if codec:
            dataset = StreamingDataset(remote=str(out / name), local=str(out / "read" / name), batch_size=1)
        else:
            dataset = LocalDataset(str(out / name))
        rows = [row(s["label"], s["image"]) for s in (dataset[i] for i in range(len(dataset)))]
        (out / f"{name}.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
