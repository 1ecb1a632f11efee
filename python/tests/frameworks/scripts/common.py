"""What the training scripts of these tests share: the arguments, the loaders, the log of what was trained on, and how
they die.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import larder
from larder import ops

CLASSES = 7
PATIENCE = 120.0  # as in real.py


class Plan:
    """The arguments of a run, in JSON: where data, socket and checkpoints are, when to save and when to die."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = json.loads(sys.argv[1])
        self.folder = Path(self.given["folder"])
        self.checkpoints = self.folder / "checkpoints"
        self.epochs = int(self.given["epochs"])
        self.every = int(self.given.get("every") or 0)  # steps between two checkpoints; 0 = at the end of epochs
        # the step, counted from the first of all runs, at which the process kills itself
        self.die = int(self.given.get("die") or 0)
        self.log = os.open(self.folder / f"run{self.given['run']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, **record: Any) -> None:
        """Appends to the log; one write, so that a line is there whole or not at all."""
        os.write(self.log, json.dumps(record).encode() + b"\n")

    def loader(self, job: str = "", **more: Any) -> larder.Loader:
        """A loader whose batches are (images, labels, ids)."""
        how: dict[str, Any] = {
            "batch_size": int(self.given["batch"]),
            "shuffle": True,
            "transform": [ops.RandomResizedCrop(8), ops.Normalize("imagenet")],
            "return_index": True,
            "output": "torch",
            "job": job or self.given.get("job", "train"),
            "endpoint": self.given["socket"],
            "timeout": PATIENCE,
        }
        return larder.Loader(self.given["uri"], **{**how, **more})

    def trained(self, epoch: int, step: int, ids: Any, length: int) -> None:
        """Notes a batch as trained on at a step; dies there when that is the plan."""
        self.say(kind="train", epoch=epoch, step=step, ids=ids.tolist(), length=length)
        if step == self.die:
            os.kill(os.getpid(), signal.SIGKILL)


def model() -> torch.nn.Module:
    """A tiny one, equal in every run."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, CLASSES))


def loss_of(net: Any, images: Any, labels: Any) -> Any:
    """What is trained."""
    return torch.nn.functional.cross_entropy(net(images), labels)
