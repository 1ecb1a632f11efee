"""The few uses of PyTorch, which this package imports only on request."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import InvalidError


def module() -> Any:
    """Imports torch at the user's request.

    Raises:
        InvalidError: torch cannot be imported.
    """
    try:
        import torch
    except ImportError as e:
        raise InvalidError(
            "output='torch' needs PyTorch, which cannot be imported", subject="output", hint=f"{e}"
        ) from e
    return torch


def require_dtypes(fields: Iterable[Mapping[str, Any]]) -> None:
    """Raises InvalidError where fields of records have dtypes of which this torch has no tensors.

    Those are uint16, uint32 and uint64 before torch 2.3; torch itself says so only of a batch.
    """
    torch = module()
    for f in fields:
        if f.get("dtype") and not hasattr(torch, str(f["dtype"])):
            raise InvalidError(
                f"field {f.get('name')} has dtype {f['dtype']}, of which torch {torch.__version__} has no tensors",
                subject=str(f.get("name")),
                hint="convert it in the dataset or a step, e.g. by .astype(np.int64), give a collate_fn, which gets "
                "arrays, or use larder.Loader without output='torch'",
            )


def tensors(value: Any) -> Any:
    """The same memory as a tensor, or a list of arrays as a list of tensors."""
    from_numpy = sys.modules["torch"].from_numpy
    return [from_numpy(v) for v in value] if isinstance(value, list) else from_numpy(value)


def refuse_worker() -> None:
    """Raises InvalidError inside a worker process of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        raise InvalidError(
            "a larder.Loader is iterated inside a worker of torch's DataLoader",
            subject="DataLoader",
            hint="iterate the Loader itself, or give its as_dataset() to a DataLoader with num_workers=0",
        )
