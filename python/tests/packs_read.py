"""Reads packs with the formats' own readers, and writes one with MosaicML's own writer; run by test_e2e_pack.py in the
environment that internal/tools/setup.sh makes of internal/tools/python/formats.txt.

    packs_read.py WDS MDS IMAGEFOLDER OWN LIMIT

Prints a list for each pack, of [label, sha256 of the RGB pixels, height, width], and writes the JPEG files of
IMAGEFOLDER to OWN as MDS shards of at most LIMIT bytes.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import webdataset
from packed_files import row
from PIL import Image
from streaming import LocalDataset, MDSWriter


def main(wds: Path, mds: Path, folder: Path, own: Path, limit: int) -> None:
    """Prints what the readers give."""
    shards = sorted(str(p) for p in wds.glob("*.tar"))
    read = webdataset.WebDataset(shards, shardshuffle=False)
    samples = [(s["cls"], s.get("jpg") or s["png"], s["__key__"]) for s in read]
    assert [k for _, _, k in samples] == [f"{i:09}" for i in range(len(samples))]
    decoded = list(webdataset.WebDataset(shards, shardshuffle=False).decode("pil"))
    assert [s["cls"] for s in decoded] == [int(label) for label, _, _ in samples]
    dataset = LocalDataset(str(mds))
    rows = {
        "wds": [row(int(label), Image.open(io.BytesIO(image))) for label, image, _ in samples],
        "mds": [row(s["label"], s["image"]) for s in (dataset[i] for i in range(len(dataset)))],
    }
    print(json.dumps(rows))
    classes = sorted(p.name for p in folder.iterdir())
    with MDSWriter(out=str(own), columns={"image": "jpeg", "label": "int"}, size_limit=limit) as m:
        for label, name in enumerate(classes):
            for p in sorted((folder / name).glob("*.jpg")):
                m.write({"image": Image.open(p), "label": label})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
