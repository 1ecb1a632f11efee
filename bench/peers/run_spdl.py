"""SPDL: a pipeline of threads; FFmpeg decodes whole images, crops and resizes them.

Its crop needs the size of the image beforehand, which Pillow reads from the header.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import child


def open_loader(spec: child.Spec) -> child.Epoch:
    import spdl.io
    import spdl.pipeline
    from PIL import Image

    side, rng = spec["crop"], random.Random(spec["job"])
    samples = list(zip(*child.files(spec["data"]), strict=True))

    def source() -> Iterator[tuple[str, int]]:
        rng.shuffle(samples)
        yield from samples

    def decode(sample: tuple[str, int]) -> tuple[Any, int]:
        path, label = sample
        with Image.open(path) as image:
            x, y, width, height = child.crop(*image.size)
        flip = "hflip," if random.random() < 0.5 else ""
        filters = (f"crop=w={width}:h={height}:x={x}:y={y}:exact=1,scale={side}:{side}:flags=bilinear,{flip}"
                   "format=pix_fmts=rgb24")
        return spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc=filters), label

    def collate(decoded: list[tuple[Any, int]]) -> tuple[Any, list[int]]:
        return spdl.io.to_numpy(spdl.io.convert_frames([f for f, _ in decoded])), [label for _, label in decoded]

    def epoch() -> Iterator[tuple[Any, Any]]:
        pipe = (spdl.pipeline.PipelineBuilder().add_source(source()).pipe(decode, concurrency=spec["workers"])
                .aggregate(spec["batch"]).pipe(collate).add_sink(2).build(num_threads=spec["workers"] + 1))
        with pipe.auto_stop():
            yield from pipe.get_iterator()

    return epoch


if __name__ == "__main__":
    child.run(open_loader)
