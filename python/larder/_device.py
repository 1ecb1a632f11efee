"""Normalising where the model is: batches travel as uint8, a quarter of the bytes, and become float32 on the device."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Sequence
from typing import Any

from . import _torch
from .errors import InvalidError

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def normalize(
    images: Any, mean: str | float | Sequence[float] = "imagenet", std: float | Sequence[float] | None = None
) -> Any:
    """Computes (x / 255 - mean) / std of a batch on the device where it is.

    The daemon computes the same for ``ops.Normalize``. Here it is for jobs that take uint8 (``ops.ToImage()`` in its
    place), a quarter of the bytes. On the CPU the values are the daemon's, bit for bit; other devices round their way.

    Args:
        images: a uint8 tensor of shape (..., C, H, W).
        mean: "imagenet", which brings its own ``std``, or a number, or one number for each channel.
        std: a number, or one number for each channel; none may be 0.

    Returns:
        A new float32 tensor of the same shape on the same device.

    Raises:
        InvalidError: not a uint8 tensor of images, or numbers that do not fit.

    Example:
        >>> for images, labels in loader:
        ...     images = larder.normalize(images.to("cuda"), "imagenet")
    """
    torch = _torch.module()
    if not isinstance(images, torch.Tensor) or images.dtype != torch.uint8 or images.dim() < 3:
        what = f"{tuple(images.shape)} of {images.dtype}" if isinstance(images, torch.Tensor) else type(images).__name__
        raise InvalidError(
            f"normalize: images are {what}, not a uint8 tensor of (..., channels, height, width)",
            subject="images",
            hint='give the Loader output="torch" and ops.ToImage() where Normalize was; '
            "ops.Normalize has been applied already",
        )
    if isinstance(mean, str):
        if mean != "imagenet" or std is not None:
            raise InvalidError(
                f"normalize: mean is {mean!r}",
                subject="mean",
                hint='"imagenet", which brings its own std, or numbers for both',
            )
        mean, std = _IMAGENET
    channels = images.shape[-3]
    full, m, s = _constants(_numbers("mean", mean, channels), _numbers("std", std, channels), images.device)
    return images.to(torch.float32).div_(full).sub_(m).div_(s)


def _numbers(name: str, value: Any, channels: int) -> tuple[float, ...]:
    values = (value,) if isinstance(value, numbers.Real) else tuple(value) if isinstance(value, Sequence) else ()
    if len(values) not in (1, channels) or not all(
        isinstance(v, numbers.Real) and math.isfinite(v) and (v or name == "mean") for v in values
    ):
        raise InvalidError(
            f"normalize: {name} is {value!r} for images of {channels} channels",
            subject=name,
            hint="give one number, or one for each channel; no std may be 0",
        )
    return tuple(float(v) for v in values)


@functools.lru_cache(maxsize=64)
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: Any) -> tuple[Any, Any, Any]:
    """The numbers on the device, sent there once. 255 is a tensor too: by a number some devices multiply with its
    inverse.
    """
    torch = _torch.module()
    return tuple(torch.tensor(v, dtype=torch.float32, device=device).view(-1, 1, 1) for v in ((255.0,), mean, std))
