"""FFCV: one file that is converted beforehand (`convert`), and read through the page cache.

The variant is the quality of the JPEG files it encodes anew, or `raw` for pixels. Its generated code is compiled before
the clock: one batch is taken and forgotten.
"""

from __future__ import annotations

import sys

import child


class Files:
    """A dataset as FFCV's writer reads it."""

    def __init__(self, data: str) -> None:
        self.items = list(zip(*child.files(data), strict=True))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple:
        from PIL import Image

        path, label = self.items[i]
        return Image.open(path).convert("RGB"), label


def convert(data: str, target: str, variant: str) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    how = {"write_mode": "raw"} if variant == "raw" else {"write_mode": "jpg", "jpeg_quality": int(variant)}
    page = 1 << 26 if variant == "raw" else 1 << 23  # an image must fit into a page; else the writer waits for ever
    writer = DatasetWriter(target, {"image": RGBImageField(**how), "label": IntField()}, page_size=page, num_workers=2)
    writer.from_indexed_dataset(Files(data), chunksize=16)


def open_loader(spec: child.Spec) -> child.Epoch:
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor

    side = spec["crop"]
    loader = Loader(spec["converted"], batch_size=spec["batch"], num_workers=spec["workers"], order=OrderOption.RANDOM,
                    os_cache=True, drop_last=False, seed=spec["job"], pipelines={
                        "image": [RandomResizedCropRGBImageDecoder((side, side)), RandomHorizontalFlip(), ToTensor()],
                        "label": [IntDecoder(), ToTensor(), Squeeze()]})
    for _ in loader:  # compiles
        break
    return lambda: iter(loader)


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(*sys.argv[2:5])
    else:
        child.run(open_loader)
