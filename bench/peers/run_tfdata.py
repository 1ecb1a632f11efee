"""tf.data, in the job's own process or with the service (`serve`), whose worker the jobs share.

Variants: `crop` decodes the crop alone each time. `cache` keeps the part of the images that its memory holds with
cache(), decoded whole, in the order of a shuffle buffer that refers to the same memory. `window` is the service with
cross_trainer_cache, whose dataset must be without end: batches of all jobs are the same.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import child

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def pipeline(spec: child.Spec, cached: float) -> Any:
    """Images and labels of one epoch, of which a part is cached."""
    import tensorflow as tf

    side = spec["crop"]

    def window(shape: Any) -> Any:
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, bounding_boxes=tf.zeros([1, 0, 4]), aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0),
            max_attempts=10, use_image_if_no_bounding_boxes=True)
        return begin[0], begin[1], size[0], size[1]

    def finish(image: Any) -> Any:
        image = tf.image.random_flip_left_right(tf.image.resize(image, [side, side]))
        return tf.cast(tf.round(image), tf.uint8)

    def read(path: Any, label: Any) -> Any:
        return tf.io.read_file(path), label

    def decode_crop(encoded: Any, label: Any) -> Any:
        area = tf.stack(window(tf.image.extract_jpeg_shape(encoded)))
        return finish(tf.image.decode_and_crop_jpeg(encoded, area, channels=3)), label

    def decode_whole(encoded: Any, label: Any) -> Any:
        return tf.image.decode_jpeg(encoded, channels=3), label

    def crop_whole(image: Any, label: Any) -> Any:
        top, left, height, width = window(tf.shape(image))
        return finish(image[top:top + height, left:left + width]), label

    def mapped(d: Any, *functions: Any) -> Any:
        for f in functions:
            d = d.map(f, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        return d

    paths, labels = child.files(spec["data"])
    mixed = tf.random.Generator.from_seed(1).uniform([len(paths)])
    at = tf.argsort(mixed)  # a fixed random part is cached
    paths, labels = tf.gather(paths, at), tf.gather(labels, at)
    keep = int(cached * len(at))
    parts = []
    if keep:
        kept = tf.data.Dataset.from_tensor_slices((paths[:keep], labels[:keep]))
        parts.append(mapped(mapped(kept, read, decode_whole).cache().shuffle(keep), crop_whole))
    if keep < len(at):
        rest = tf.data.Dataset.from_tensor_slices((paths[keep:], labels[keep:])).shuffle(len(at) - keep)
        parts.append(mapped(rest, read, decode_crop))
    if len(parts) == 1:
        return parts[0]
    weights = [keep / len(at), 1 - keep / len(at)]
    return tf.data.Dataset.sample_from_datasets(parts, weights, stop_on_empty_dataset=False)


def open_loader(spec: child.Spec) -> child.Epoch:
    import tensorflow as tf

    batch, total = spec["batch"], len(child.files(spec["data"])[0])
    if spec["address"]:
        endless = pipeline(spec, spec["cached"]).repeat().batch(batch, drop_remainder=True)
        service = tf.data.experimental.service
        shared = endless.apply(service.distribute(
            processing_mode=service.ShardingPolicy.OFF, service=spec["address"], job_name="shared", compression=None,
            cross_trainer_cache=service.CrossTrainerCache(trainer_id=f"job {spec['job']}")))
        batches = shared.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()

        def epoch() -> Iterator[tuple[Any, Any]]:
            for _ in range(total // batch):
                yield next(batches)

        return epoch
    images = pipeline(spec, spec["cached"]).batch(batch).prefetch(tf.data.AUTOTUNE)
    return images.as_numpy_iterator


def serve(window: int) -> None:
    """A dispatcher and a worker whose cache for several trainers has so many bytes, until the end of input."""
    import tensorflow as tf
    from tensorflow.core.protobuf import service_config_pb2

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    named = service.WorkerConfig(dispatcher_address=dispatcher.target.partition("://")[2])._asdict()
    config = service_config_pb2.WorkerConfig(**{k: v for k, v in named.items() if v is not None},
                                             cross_trainer_cache_size_bytes=window)  # the named tuple has no such field
    worker = service.WorkerServer(config)
    print(json.dumps({"address": dispatcher.target}), flush=True)
    sys.stdin.read()
    del worker
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        child.run(open_loader)
