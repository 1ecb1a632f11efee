"""MosaicML streaming: shards of the files' own bytes, read in torch's DataLoader; Pillow decodes, crops and resizes.

A second program, `convert`, writes the shards, of at most so many bytes each. Two jobs cannot open one folder of
shards, so each has a folder of hard links to the same files. With `remote` each job downloads the shards from there
into a folder of its own.

Streaming numbers the datasets that are open on a machine: it looks for the first number whose shared memory is not
there, and then makes it. Jobs that begin together would find the same number, and all but one of them would fail. So
they open their datasets one after the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import child


def convert(data: str, target: str, size: str = "") -> None:
    from streaming import MDSWriter

    with MDSWriter(out=target, columns={"image": "bytes", "label": "int"}, size_limit=int(size or 1 << 26)) as out:
        for path, label in zip(*child.files(data), strict=True):
            out.write({"image": pathlib.Path(path).read_bytes(), "label": label})


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """No other job of this user, of any benchmark, is in here."""
    with open(pathlib.Path(tempfile.gettempdir(), f"larder-bench-mds-{os.getuid()}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def open_loader(spec: child.Spec) -> child.Epoch:
    import torch
    from streaming import StreamingDataset

    torch.set_num_threads(1)
    folder = pathlib.Path(spec["scratch"], f"job-{spec['job']}")
    folder.mkdir()
    remote = spec.get("remote")
    for shard in [] if remote else pathlib.Path(spec["converted"]).iterdir():
        os.link(shard, folder / shard.name)
    cropped = child.cropped(StreamingDataset, spec["crop"])
    with alone():
        images = cropped(remote=remote, local=str(folder), shuffle=True, shuffle_seed=spec["job"],
                         batch_size=spec["batch"])
    loader = torch.utils.data.DataLoader(images, batch_size=spec["batch"], num_workers=spec["workers"],
                                         persistent_workers=spec["workers"] > 0)
    return lambda: iter(loader)


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(*sys.argv[2:5])
    else:
        child.run(open_loader)
