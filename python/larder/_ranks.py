"""Which rank of how many this process is, and the default name of its job. Reads the environment, changes nothing."""

from __future__ import annotations

import itertools
import os
import re
import socket
import sys
from dataclasses import dataclass, field

from ._caller import warn
from .errors import InvalidError, OneRankWarning

_MACHINE = 0xEFFFFFFC  # number of the first PID namespace of a machine
_nonce = os.urandom(4).hex()
_said = False  # that a task of Slurm has every sample
_ordinals = itertools.count()  # Loaders without a name in this process
# Jobs of one process in a run of several are counted apart: the other numbers must be equal on all ranks.
_alone = itertools.count()


@dataclass(frozen=True)
class Place:
    """Where this process stands in its job."""

    rank: int
    world_size: int
    node_rank: int = 0
    num_nodes: int = 1
    source: str = "default"
    within: int | None = field(default=None, compare=False)  # rank in a run of several, for a job of this process alone


def _env_int(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidError(
            f"the environment variable {name} is {text!r}, not a number",
            subject=name,
            hint=f"unset {name} or pass rank=",
        ) from None


def _pair(rank: str, size: str) -> tuple[int, int] | None:
    r, n = _env_int(rank), _env_int(size)
    return None if r is None or n is None else (r, n)


def _distributed() -> tuple[int, int] | None:
    """Rank and size of torch.distributed, when the user has imported and initialised it."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return int(dist.get_rank()), int(dist.get_world_size())


def find(rank: int | None, world_size: int | None) -> Place:
    """The place of this process: explicit > torch.distributed > RANK/WORLD_SIZE > alone.

    Sources that disagree are refused. So is a job whose ranks are on several machines (InvalidError, reason
    UNSUPPORTED): a daemon feeds one. Slurm's variables are no source: its tasks may be trials that know nothing of each
    other, and each of those is to have every sample.
    """
    sources = (("torch.distributed", _distributed()), ("RANK/WORLD_SIZE", _pair("RANK", "WORLD_SIZE")))
    found = [(name, pair) for name, pair in sources if pair is not None]
    slurm = _pair("SLURM_PROCID", "SLURM_NTASKS")
    if rank is not None and world_size is not None:
        place, source = (rank, world_size), "rank="
    elif rank is not None or world_size is not None:
        given, missing = ("rank", "world_size") if rank is not None else ("world_size", "rank")
        if world_size == 1:
            place, source = (0, 1), "world_size="
        else:
            raise InvalidError(
                f"{given}= is given without {missing}=", subject=missing, hint="give both, or none to have them found"
            )
    elif found:
        source, place = found[0]
        for other, pair in found[1:]:
            if pair != place:
                raise InvalidError(
                    f"{source} says rank {place[0]} of {place[1]}, {other} says rank {pair[0]} of {pair[1]}",
                    subject="rank",
                    hint="pass rank= and world_size=",
                )
    else:
        if slurm is not None and slurm[1] > 1:
            _say_one_rank(slurm)
        return Place(0, 1)
    if not 0 <= place[0] < place[1]:
        raise InvalidError(
            f"rank {place[0]} of {place[1]} (from {source}) cannot be",
            subject="rank",
            hint="ranks go from 0 to world_size - 1",
        )
    if place[1] == 1:
        of = next((pair[0] for _, pair in found if pair[1] > 1), None)
        return Place(0, 1, source=source, within=of)
    sizes = [size for _, (_, size) in found] or ([] if slurm is None else [slurm[1]])
    fewer = all(place[1] < size for size in sizes)  # ranks than the run has: those of this machine, perhaps
    if not (sizes and fewer):
        _refuse_nodes(place[1])
    return Place(place[0], place[1], source=source)


def _say_one_rank(slurm: tuple[int, int]) -> None:
    """Says once that a task of Slurm has every sample, and how several tasks become one job."""
    global _said
    if not _said:
        _said = True
        warn(
            f"this is task {slurm[0]} of {slurm[1]} of Slurm, and its Loader gives every sample: that alone does not "
            "say that the tasks train one model. If they do, call torch.distributed.init_process_group() first, or "
            "pass rank=int(os.environ['SLURM_PROCID']), world_size=int(os.environ['SLURM_NTASKS']); if they do not, "
            "rank=0, world_size=1 says so",
            OneRankWarning,
        )


def _refuse_nodes(world_size: int) -> None:
    """Raises InvalidError when the run has several machines, by the environment."""
    for rank, size in (("GROUP_RANK", "GROUP_WORLD_SIZE"), ("SLURM_NODEID", "SLURM_NNODES")):
        nodes = _pair(rank, size)
        if nodes is None:
            continue
        if nodes[1] > 1:
            n, node = nodes[1], nodes[0]
            raise InvalidError(
                f"this is machine {node} of {n} ({rank}, {size}), "
                f"and a job of {world_size} ranks on several machines does not work yet",
                reason="UNSUPPORTED",
                subject="num_nodes",
                hint=f'give each machine a job of its own: subset="id % {n} == {node}" here, '
                "rank= and world_size= of this machine alone, such as LOCAL_RANK and LOCAL_WORLD_SIZE of torchrun",
            )
        return


def _run_id(world_size: int) -> str:
    elastic = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic and elastic != "none":  # torchrun without --rdzv_id says "none" in every run
        return elastic
    slurm = os.environ.get("SLURM_JOB_ID")
    if slurm and world_size > 1:
        step = os.environ.get("SLURM_STEP_ID")
        return f"slurm-{slurm}" + (f".{step}" if step else "")
    if world_size > 1:
        address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        if not address or not port:
            raise InvalidError(
                f"{world_size} ranks need a common job name and nothing here names the run",
                subject="job",
                hint="pass the same job= to the Loader of every rank",
            )
        return f"{address}:{port}"
    return f"{socket.gethostname()}{_namespace()}:{os.getpid()}"


def _namespace() -> str:
    """What tells the process numbers of this container from those of others; empty on the machine itself."""
    try:
        name = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return f".{_nonce}"
    return "" if name == _MACHINE else f".{name}"


def default_name(uri: str, world_size: int, within: int | None = None) -> str:
    """run id / basename of the dataset / ordinal of the Loader in its process: distinct in a script, equal on all
    ranks.

    A job of one process ``within`` a run of several has its rank in the name, so that every rank may have one.
    """
    base = re.sub(r"[^\w.-]+", "-", uri.rstrip("/").split(":", 1)[-1].rsplit("/", 1)[-1]).strip("-") or "data"
    return f"{_run_id(world_size)}/{base[:64]}/" + (
        f"{next(_ordinals)}" if within is None else f"rank{within}-{next(_alone)}"
    )
