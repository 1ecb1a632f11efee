"""LitData: chunks of the files' own bytes in S3, read by its StreamingDataLoader; Pillow decodes, crops and resizes.

A second program, `convert`, writes the chunks, of about so many bytes each. Each job downloads the chunks into a folder
of its own.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import child


def stored(pair: tuple[str, int]) -> dict[str, Any]:
    return {"image": pathlib.Path(pair[0]).read_bytes(), "label": pair[1]}


def unasked() -> None:
    """LitData asks the Python index for a newer release of itself whenever a dataset is opened or written."""
    from litdata import helpers

    helpers._get_newer_version = lambda version: None


def convert(data: str, target: str, size: str) -> None:
    from litdata import optimize

    unasked()
    optimize(fn=stored, inputs=list(zip(*child.files(data), strict=True)), output_dir=target, chunk_bytes=int(size),
             num_workers=1)


def open_loader(spec: child.Spec) -> child.Epoch:
    import torch
    from litdata import StreamingDataLoader, StreamingDataset

    unasked()
    torch.set_num_threads(1)
    folder = pathlib.Path(spec["scratch"], f"job-{spec['job']}")
    folder.mkdir()
    cropped = child.cropped(StreamingDataset, spec["crop"])
    images = cropped(spec["remote"], cache_dir=str(folder), shuffle=True, seed=spec["job"])
    loader = StreamingDataLoader(images, batch_size=spec["batch"], num_workers=spec["workers"],
                                 persistent_workers=spec["workers"] > 0)
    return lambda: iter(loader)


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(*sys.argv[2:5])
    else:
        child.run(open_loader)
