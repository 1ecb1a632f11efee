"""Checks of the Loader's arguments, and the JobSpec they make. Pure but for the working directory and the import of torch."""

from __future__ import annotations

import difflib
import json
import operator
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from . import _ranks, ops
from .errors import InvalidError

FIELDS = ("image", "label", "index")


def unknown_keyword(name: str, known: list[str]) -> TypeError:
    """The TypeError for a keyword nobody knows, with the nearest one."""
    near = difflib.get_close_matches(name, known, 1, 0.6)
    hint = f"; did you mean {near[0]!r}?" if near else f"; the arguments are {', '.join(known)}"
    return TypeError(f"Loader() got an unexpected keyword argument {name!r}{hint}")


def integer(name: str, value: Any, low: int, high: int) -> int:
    """``value`` as an int within bounds; NumPy integers are welcome, bool is not."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidError(f"{name} must be an integer, not {value!r} ({type(value).__name__})", subject=name) from None
    if not low <= number <= high:
        raise InvalidError(f"{name} is {number}; it must be from {low} to {high}", subject=name)
    return number


def flag(name: str, value: Any) -> bool:
    """``value`` as a bool; strings and numbers are refused."""
    if value is True or value is False or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise InvalidError(f"{name} must be True or False, not {value!r} ({type(value).__name__})", subject=name)


def choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """``value``, when it is one of the words."""
    if isinstance(value, str) and value in choices:
        return value
    near = difflib.get_close_matches(value, choices, 1, 0.5) if isinstance(value, str) else []
    words = ", ".join(repr(c) for c in choices)
    raise InvalidError(f"{name} is {value!r}; it must be one of {words}", subject=name, hint=f"did you mean {near[0]!r}?" if near else "")


def seconds(value: Any) -> float:
    """A timeout above 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not number > 0:
        raise InvalidError(f"timeout is {value!r}; it must be a number of seconds above 0", subject="timeout")
    return min(number, 1e8)  # poll() takes no infinity


def job_name(value: Any) -> str:
    """A name the daemon accepts."""
    if not isinstance(value, str) or not value or len(value) > 256 or not value.isprintable():
        raise InvalidError(f"job is {value!r}; it must be a name of 1 to 256 printable characters", subject="job")
    return value


def refuse_described(uri: str, **given: bool) -> None:
    """Refuses arguments that describe a job which was registered already."""
    wrong = [k for k, v in given.items() if v]
    if wrong:
        raise InvalidError(
            f"{uri}: the job was registered with all that describes it, so {', '.join(wrong)} cannot be given here",
            subject=uri,
            hint="leave them out, or change the file given to `larder jobs register`",
        )


def check_fields(fields: Iterable[str] | None, return_index: bool) -> tuple[str, ...]:
    """The fields of a batch, in order."""
    if fields is None:
        names: tuple[str, ...] = ("image", "label")
    elif isinstance(fields, str):
        raise InvalidError(f"fields is the string {fields!r}", subject="fields", hint=f"write fields=({fields!r},)")
    else:
        names = tuple(choice("fields", f, FIELDS) for f in fields)
        if not names or len(set(names)) != len(names):
            raise InvalidError(f"fields is {names!r}; it must name at least one field, each once", subject="fields")
    return (*names, "index") if return_index and "index" not in names else names


def absolute(uri: str) -> str:
    """Makes the folder of an imagefolder uri absolute: the daemon has another working directory."""
    scheme, colon, rest = uri.partition(":")
    if not colon and (uri.startswith(("/", "./", "../", "~")) or os.path.isdir(uri)):
        raise InvalidError(f"{uri!r} does not say what kind of dataset it is", subject=uri, hint=f'write "imagefolder:{uri}"')
    inner, url, _ = rest.partition("://")
    if url and "/" not in inner:  # a scheme, as in imagefolder:s3://bucket, which the daemon refuses with a hint
        return uri
    if scheme == "imagefolder" and rest and not rest.startswith("//"):
        return f"{scheme}:{os.path.abspath(os.path.expanduser(rest))}"
    return uri


_TILES = re.compile(r"stratified\([0-9]{1,9}\)")


def subset_text(value: Any) -> str:
    """A subset expression; None is every sample."""
    if value is None or isinstance(value, str):
        return value or ""
    raise InvalidError(f"subset must be an expression such as 'label < 600', not {value!r} ({type(value).__name__})", subject="subset")


def job_spec(*, name: str, dataset: str, place: _ranks.Place, **a: Any) -> dict[str, Any]:
    """The JobSpec message; only what differs from its zero value is sent."""
    subset = subset_text(a["subset"])
    shuffle = flag("shuffle", a["shuffle"])
    order = a["order"]
    if order is not None:
        if isinstance(order, str) and order.startswith("replay:") and len(order) > 7:
            order = "replay:" + os.path.abspath(os.path.expanduser(order[7:]))
        elif not (isinstance(order, str) and _TILES.fullmatch(order)):  # the daemon knows how many tiles there may be
            choice("order", order, ("fixed", "stratified", "strict", "epoch"))
        if not shuffle:
            raise InvalidError(
                f"order={order!r} needs shuffle=True", subject="order", hint="without shuffle samples come in the dataset's order"
            )
    spec: dict[str, Any] = {
        "name": name,
        "dataset": dataset,
        "subset": subset,
        "batchSize": integer("batch_size", a["batch_size"], 1, 65536),
        "shuffle": shuffle,
        "order": order or "",
        "seed": str(integer("seed", a["seed"], 0, 2**64 - 1)),
        "transform": ops.recipe(a["transform"]),
        "dropLast": flag("drop_last", a["drop_last"]),
        "even": "" if a["even"] is None else choice("even", a["even"], ("drop", "none")),
        "worldSize": place.world_size,
        "numNodes": place.num_nodes,
        "share": choice("share", a["share"], ("none", "augmented")),
        "onError": choice("on_error", a["on_error"], ("raise", "skip", "substitute")),
        "prefetch": integer("prefetch", a["prefetch"], 1, 64),
        **({"skipEmpty": True} if flag("skip_empty", a["skip_empty"]) else {}),
        "epochs": 0 if a["epochs"] is None else integer("epochs", a["epochs"], 1, 2**32 - 1),
    }
    text = json.dumps(spec)
    if len(text) > 1 << 20:
        raise InvalidError(
            f"the description of the job has {len(text)} bytes, more than 1 MiB", subject="subset", hint="shorten the subset expression"
        )
    return spec


def torch_module() -> Any:
    """Imports torch, which was asked for."""
    try:
        import torch
    except ImportError as e:
        raise InvalidError("output='torch' needs PyTorch, which cannot be imported", subject="output", hint=f"{e}") from e
    return torch


def to_torch(value: Any) -> Any:
    """The same memory as tensors."""
    from_numpy = sys.modules["torch"].from_numpy
    return [from_numpy(v) for v in value] if isinstance(value, list) else from_numpy(value)


def refuse_torch_worker() -> None:
    """Raises inside a worker process of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        raise InvalidError(
            "a larder.Loader is iterated inside a worker of torch's DataLoader",
            subject="DataLoader",
            hint="iterate the Loader itself in the training loop; it needs no DataLoader and no workers",
        )
