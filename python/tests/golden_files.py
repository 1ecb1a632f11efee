"""Golden files: what golden/make.py wrote with the formats' own writers, for tests that run without them."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from real import find_binary

GOLDEN = Path(__file__).resolve().parent / "golden"
LIMIT = 20_000  # bytes of a file


def cut(told: Any) -> Any:
    """What was told of a value, with the first 16 digits of each SHA-256."""
    if isinstance(told, str):
        return re.sub(r"\b([0-9a-f]{16})[0-9a-f]{48}\b", r"\1", told)
    if isinstance(told, dict):
        return {k: cut(v) for k, v in told.items()}
    return [cut(v) for v in told] if isinstance(told, list) else told


def unpack(out: Path) -> Path:
    """Copies all sets to a folder, with the files that are stored compressed as they were."""
    shutil.copytree(GOLDEN, out, ignore=shutil.ignore_patterns("make.py", "__pycache__", ".gitattributes"))
    for path in out.rglob("*.xz"):
        path.with_suffix("").write_bytes(lzma.decompress(path.read_bytes()))
        path.unlink()
    return out


def wanted(folder: Path) -> list[dict[str, Any]]:
    """What the readers gave of the datasets of a set: ``rows``, and what else make.py told of them."""
    found = [{"name": p.stem, **json.loads(p.read_text())} for p in sorted((folder / "want").glob("*.json"))]
    assert found, f"{folder} has no want/*.json: run golden/make.py"
    return found


# Datasets of the sets "records" and "larder_packs" that are packed: uri and the formats that have types for it.
PACKED = {
    "jsonl:records/a.jsonl?fields=id,x,text": ("wds", "mds"),
    "wds:records/wds?fields=jpg,txt,cls,json,npy,bin": ("wds",),
    "wds:records/wds?fields=jpg,txt,cls,bin": ("mds",),
    "npz:records/some.npz": ("wds",),
    "imagefolder:larder_packs/pictures": ("wds", "mds"),
}


def packs(root: Path, out: Path) -> dict[str, dict[str, str]]:
    """Packs the datasets below a root into ``out``: the digest of every file of each pack, without its own note."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LARDER_")} | {"LARDER_SOCKET": f"{out}/none"}
    found = {}
    for n, (uri, formats) in enumerate(PACKED.items()):
        scheme, _, rest = uri.partition(":")
        for to in formats:
            folder = out / f"{n}.{to}"
            command = [find_binary(), "pack", f"{scheme}:{root}/{rest}", "--to", f"{to}:{folder}", "--verify"]
            done = subprocess.run(
                [*command, "--shard-size", "4096", "-o", "json"], capture_output=True, text=True, env=env, timeout=300
            )
            assert done.returncode == 0, done.stderr
            found[f"{uri} {to}"] = {
                p.name: hashlib.sha256(p.read_bytes()).hexdigest()
                for p in sorted(folder.iterdir())
                if p.name != "larder-pack.json"
            }
    return found
