"""Writes the folders beside it: small files of the formats' own writers, and what their own readers give. Tests of the
fast lane read them without those packages (golden_files.py). From the root of the repository, with a built daemon:

    .venv-formats/bin/python python/tests/golden/make.py [SET...]

The scripts are those that write the large files of the nightly lane; LARDER_GOLDEN makes their files small. Digests are
cut to 16 digits. A file of more than 20,000 bytes is stored compressed, as NAME.xz; a larger one is refused.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from golden_files import LIMIT, cut, packs, unpack  # noqa: E402
from real import draw  # noqa: E402

ENVIRONMENT = {**os.environ, "LARDER_GOLDEN": "1", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}
# Runs a script at a fixed time, which tars and files of gzip have in their headers.
START = """
import os, runpy, sys, time
time.time = lambda: 1.7e9
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LEFT_OUT = ("lock.mdb", "bytes.mdb-lock", "home", "read", "images")  # what writers leave behind, and what was packed


def script(name: str, *arguments: object) -> None:
    """Runs one of the scripts that write with the formats' own writers."""
    command = [sys.executable, "-W", "ignore", "-c", START, str(HERE.parent / name), *map(str, arguments)]
    home = {"HF_HOME": tempfile.mkdtemp()}
    done = subprocess.run(command, env={**ENVIRONMENT, **home}, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(home["HF_HOME"])


def told(folder: Path, name: str, value: Any) -> None:
    """Writes what a reader gave, with one line for each sample."""
    rows = value["rows"] if isinstance(value, dict) and "rows" in value else value
    lines = ",\n".join(json.dumps(cut(r)) for r in rows)
    head = json.dumps({k: v for k, v in value.items() if k != "rows"}) if rows is not value else "{}"
    (folder / name).write_text(f'{head[:-1]}{", " if head != "{}" else ""}"rows": [\n{lines}\n]}}\n')


def records(out: Path) -> None:
    """record_files.py. The same samples of several uris are told once."""
    script("record_files.py", out, 1)
    want = json.loads((out / "want.json").read_text())
    (out / "want.json").unlink()
    for leftover in out.glob("[0-9]*.jpg"):
        leftover.unlink()
    same: dict[str, list[str]] = {}
    for uri, rows in want.items():
        same.setdefault(json.dumps(rows), []).append(uri)
    (out / "want").mkdir()
    for n, (rows, uris) in enumerate(same.items()):
        told(out / "want", f"{n:02}.json", {"uris": uris, "rows": json.loads(rows)})


def tables(out: Path) -> None:
    """table_files.py."""
    whole = out.with_name("whole")
    script("table_files.py", whole, 1)
    (whole / "1").rename(out)
    (out / "want").mkdir()
    for path in sorted(out.glob("*.uri")):
        rows = json.loads(path.with_suffix(".json").read_text())
        uri = path.read_text().replace(f"{whole}/1/", "")
        told(out / "want", f"{path.stem}.json", {"uri": uri, "rows": rows})
        path.with_suffix(".json").unlink()
        path.unlink()


def packed(out: Path) -> None:
    """packed_files.py."""
    script("packed_files.py", draw(out.with_name("images"), 3, 3, seed=1, size=(1, 24)), out, 1)
    (out / "want").mkdir()
    for path in sorted(out.glob("*.json")):
        told(out / "want", path.name, {"rows": json.loads(path.read_text())})
        path.unlink()


def properties(out: Path) -> None:
    """property_files.py."""
    script("property_files.py", out, 1)


def scenes(out: Path) -> None:
    """joint_files.py."""
    script("joint_files.py", out, 1)


def blocks(out: Path) -> None:
    """block_files.py."""
    out.mkdir()
    script("block_files.py", out, 240, 1, "parquet", "tars", "mds")
    for path in out.glob("*.uri"):
        path.write_text(path.read_text().replace(f":{out}/", ":"))


def larder_packs(out: Path) -> None:
    """What `larder pack` makes of the set "records" and of images: read by the readers of both formats, and for MDS
    compared with the bytes of MosaicML's own writer. Kept are the digests of these files, and the images.
    """
    root, made = out.with_name("root"), out.with_name("packs")
    unpack(root)
    shutil.rmtree(root / out.name, ignore_errors=True)
    draw(out / "pictures", 3, 4, seed=5, size=(1, 40))
    shutil.copytree(out, root / out.name)
    found = packs(root, made)
    script("packs_records.py", made)
    (out / "digests.json").write_text(json.dumps(found, indent=1) + "\n")


SETS = {f.__name__: f for f in (records, tables, packed, properties, scenes, blocks, larder_packs)}


def stored(made: Path, to: Path) -> None:
    """Copies a set to its folder, in the form in which it is committed."""
    shutil.rmtree(to, ignore_errors=True)
    for path in sorted(p for p in made.rglob("*") if p.is_file()):
        rest = path.relative_to(made)
        if set(rest.parts) & set(LEFT_OUT):
            continue
        (to / rest).parent.mkdir(parents=True, exist_ok=True)
        body = path.read_bytes()
        if len(body) > LIMIT:
            rest, body = rest.with_name(rest.name + ".xz"), lzma.compress(body, preset=9)
        if len(body) > LIMIT:
            raise SystemExit(f"{rest} of {to.name} has {len(body)} bytes, and golden files have at most {LIMIT}")
        (to / rest).write_bytes(body)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SETS:
        with tempfile.TemporaryDirectory() as scratch:
            SETS[chosen](Path(scratch) / chosen)
            stored(Path(scratch) / chosen, HERE / chosen)
        print("wrote", HERE / chosen)
