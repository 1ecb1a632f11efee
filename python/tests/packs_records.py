"""Reads packs of records with the formats' own readers; run by test_e2e_pack_records.py in the environment that
internal/tools/setup.sh makes of internal/tools/python/formats.txt.

    packs_records.py OUT

For each folder NAME.mds and NAME.wds below OUT it writes what the reader gives to OUT/NAME.mds.json and
OUT/NAME.wds.json, each sample a dict of name to what ``told`` says of its value. Each MDS pack is also written again by
MDSWriter, with the columns and the stored values that it has, and compared byte by byte.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from PIL import Image
from record_told import told
from streaming import LocalDataset, MDSWriter


def tell(value: Any) -> Any:
    """What is compared of a value."""
    if isinstance(value, Image.Image):
        return told(np.asarray(value.convert("RGB")))
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return told(value[()])
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, int):
        return told(np.int64(value))
    return told(value) if isinstance(value, bytes | np.ndarray | np.generic) else {"json": value}


def again(pack: Path) -> None:
    """Has MDSWriter write the samples of a pack, and compares the files."""
    index = json.loads((pack / "index.json").read_text())["shards"]
    if max(s["raw_data"]["bytes"] for s in index) > index[0]["size_limit"]:
        return  # a sample that is larger than a shard may be: MDSWriter makes other shards around it
    columns = dict(zip(index[0]["column_names"], index[0]["column_encodings"], strict=True))
    dataset = LocalDataset(str(pack))
    own = pack.with_suffix(".own")
    with MDSWriter(out=str(own), columns=columns, size_limit=index[0]["size_limit"]) as m:
        for shard in dataset.shards:
            for i in range(shard.samples):
                raw, values, at = shard.get_sample_data(i), {}, 4 * shard.column_sizes.count(None)
                sizes = np.frombuffer(raw[:at], "<u4").tolist()
                for name, fixed in zip(shard.column_names, shard.column_sizes, strict=True):
                    size = sizes.pop(0) if fixed is None else fixed
                    values[name], at = raw[at : at + size], at + size
                m.write(values)
    for f in own.iterdir():
        assert f.read_bytes() == (pack / f.name).read_bytes(), f


def main(out: Path) -> None:
    """Reads everything."""
    for pack in sorted(out.glob("*.mds")):
        again(pack)
        dataset = LocalDataset(str(pack))
        rows = [{k: tell(v) for k, v in dataset[i].items()} for i in range(len(dataset))]
        pack.with_suffix(".mds.json").write_text(json.dumps(rows))
    for pack in sorted(out.glob("*.wds")):
        shards = sorted(str(p) for p in pack.glob("*.tar"))
        raw = list(webdataset.WebDataset(shards, shardshuffle=False))
        rows = []
        for stored, s in zip(raw, webdataset.WebDataset(shards, shardshuffle=False).decode("rgb8"), strict=True):
            rows.append({k: tell(v) for k, v in s.items() if not k.startswith("__")})
            for name, b in stored.items():  # files of arrays are those that NumPy writes
                if name.endswith("npy"):
                    file = io.BytesIO()
                    np.save(file, s[name])
                    assert file.getvalue() == b, name
        pack.with_suffix(".wds.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
