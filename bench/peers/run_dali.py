"""DALI on the CPU: a fused decoder that decodes the crop alone, and two threads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import child


def open_loader(spec: child.Spec) -> child.Epoch:
    from nvidia.dali import fn, pipeline_def

    side, batch = spec["crop"], spec["batch"]
    samples = list(zip(*child.files(spec["data"]), strict=True))
    random.Random(spec["job"]).shuffle(samples)  # the reader shuffles every job's list alike
    paths, labels = map(list, zip(*samples, strict=True))

    @pipeline_def
    def images() -> Any:
        encoded, label = fn.readers.file(files=paths, labels=labels, shuffle_after_epoch=True, pad_last_batch=True,
                                         name="reader")
        decoded = fn.decoders.image_random_crop(encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        resized = fn.resize(decoded, resize_x=side, resize_y=side)
        return fn.flip(resized, horizontal=fn.random.coin_flip()), label

    pipe = images(batch_size=batch, num_threads=spec["workers"], device_id=None, seed=spec["job"] + 1)
    pipe.build()

    def epoch() -> Iterator[tuple[Any, Any]]:
        left = len(paths)
        while left > 0:
            pixels, label = pipe.run()
            n = min(batch, left)  # the last batch is padded
            left -= n
            yield pixels.as_array()[:n], label.as_array()[:n]

    return epoch


if __name__ == "__main__":
    child.run(open_loader)
