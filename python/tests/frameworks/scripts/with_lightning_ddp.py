"""Lightning on two ranks: the Loader is made in the hook, where torch.distributed is there to say which rank this
is.
"""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch
from common import Plan, loss_of, model
from lightning.pytorch.callbacks import ModelCheckpoint

plan = Plan()


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def train_dataloader(self) -> Any:
        self.loader = plan.loader()
        return self.loader

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels, ids = batch
        plan.trained(self.current_epoch, self.global_step + 1, ids, len(self.loader))
        return loss_of(self.net, images, labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


first = os.environ.get("LOCAL_RANK", "0") == "0"
keep = ModelCheckpoint(dirpath=plan.checkpoints, filename="{step}", every_n_train_steps=plan.every, save_top_k=-1)
saved = sorted(plan.checkpoints.glob("step=*.ckpt"), key=lambda f: int(f.stem.partition("=")[2]))
if first:
    plan.say(kind="start", resumed=int(saved[-1].stem.partition("=")[2]) if saved else 0, version=lightning.__version__)
trainer = lightning.Trainer(
    max_epochs=plan.epochs,
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    use_distributed_sampler=False,
    callbacks=[keep],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Net(), ckpt_path=str(saved[-1]) if saved else None)
if first:
    plan.say(kind="end")
