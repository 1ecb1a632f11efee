"""Accelerate: a loop written by hand, `register_for_checkpointing`, `save_state` and `load_state`."""

from __future__ import annotations

from typing import Any

import accelerate
import torch
from common import Plan, loss_of, model

plan = Plan()
loader = plan.loader()


class Progress:
    """The epoch and the step of the script, kept with the checkpoint."""

    def __init__(self) -> None:
        self.epoch = self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


at = Progress()
accelerator = accelerate.Accelerator(cpu=True)
net = model()
net, optimizer, prepared = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01), loader)
assert prepared is loader, "prepare() left the loader as it is"
accelerator.register_for_checkpointing(loader, at)
saved = sorted(plan.checkpoints.glob("step=*"), key=lambda f: int(f.name.partition("=")[2]))
if saved:
    accelerator.load_state(str(saved[-1]))
plan.say(kind="start", resumed=at.step, version=accelerate.__version__)
while at.epoch < plan.epochs:
    for images, labels, ids in loader:
        at.step += 1
        plan.trained(at.epoch, at.step, ids, len(loader))
        loss = loss_of(net, images.to(accelerator.device), labels.to(accelerator.device))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if plan.every and at.step % plan.every == 0:
            accelerator.save_state(str(plan.checkpoints / f"step={at.step}"))
    at.epoch += 1
    if not plan.every:
        accelerator.save_state(str(plan.checkpoints / f"step={at.step}"))
plan.say(kind="end")
