"""Writes two versions of a dataset of a format, with the format's own writer, whose files have the same names and
lengths; run by test_e2e_changes.py in the environment that internal/tools/setup.sh makes of
internal/tools/python/formats.txt.

    versions_files.py OUT ROWS

Writes OUT/VERSION/FORMAT for the versions 0 and 1. Row i of version v has the number 10000 + 10 i + v and
the text "vvvvvvvv i", so that a value says which version it is of, and a text with bytes of both is of neither.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from streaming import MDSWriter
from tfrecord.writer import TFRecordWriter

FILES = 3


def main(out: Path, rows: int) -> None:
    """Writes everything."""
    for version in range(2):
        table = [(10_000 + 10 * i + version, f"{str(version) * 8} {i:04}") for i in range(rows)]
        for scheme in ("jsonl", "mds", "parquet", "tfrecord"):
            (out / str(version) / scheme).mkdir(parents=True)
        folder = out / str(version)
        for k in range(FILES):
            part = table[k * rows // FILES : (k + 1) * rows // FILES]
            lines = [json.dumps({"number": n, "text": t}) + "\n" for n, t in part]
            (folder / "jsonl" / f"{k}.jsonl").write_text("".join(lines))
            columns = {"number": pa.array([n for n, _ in part]), "text": [t for _, t in part]}
            path = folder / "parquet" / f"{k}.parquet"
            pq.write_table(pa.table(columns), path, row_group_size=2, compression="none", use_dictionary=False)
            writer = TFRecordWriter(str(folder / "tfrecord" / f"{k}.tfrecord"))
            for n, t in part:
                writer.write({"number": (n, "int"), "text": (t.encode(), "byte")})
            writer.close()
        columns = {"number": "int", "text": "str"}
        with MDSWriter(out=str(folder / "mds"), columns=columns, size_limit=600) as w:
            for n, t in table:
                w.write({"number": n, "text": t})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
