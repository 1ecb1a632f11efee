"""Hugging Face's Trainer: `get_train_dataloader`, and the state in trainer_state.json through a callback that can be
exported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from common import Plan, loss_of, model
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

plan = Plan()
loader = plan.loader()


class Data(TrainerCallback, ExportableState):
    """Saves where the loader is with every checkpoint, in the same file as the Trainer's own state."""

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"loader": loader.state_dict()}}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def forward(self, images: Any) -> Any:
        return self.net(images)


class OnLarder(Trainer):
    def get_train_dataloader(self) -> Any:
        return loader

    def compute_loss(self, net: Any, inputs: Any, return_outputs: bool = False, **_more: Any) -> Any:
        images, labels, ids = inputs
        plan.trained((self.batches - 1) // len(loader), self.batches, ids, len(loader))
        return loss_of(net, images, labels)

    def training_step(self, *args: Any, **more: Any) -> Any:
        self.batches += 1
        return super().training_step(*args, **more)


arguments = TrainingArguments(
    output_dir=str(plan.checkpoints),
    num_train_epochs=plan.epochs,
    save_strategy="steps" if plan.every else "epoch",
    save_steps=plan.every or 500,
    ignore_data_skip=True,
    per_device_train_batch_size=loader.batch_size,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = OnLarder(model=Net(), args=arguments, callbacks=[Data()])
last = get_last_checkpoint(arguments.output_dir)
trainer.batches = 0
if last is not None:
    state = json.loads((Path(last) / "trainer_state.json").read_text())
    loader.load_state_dict(state["stateful_callbacks"]["Data"]["attributes"]["loader"])
    trainer.batches = state["global_step"]
plan.say(kind="start", resumed=trainer.batches, version=transformers.__version__)
trainer.train(resume_from_checkpoint=last)
plan.say(kind="end", steps=trainer.state.global_step)
