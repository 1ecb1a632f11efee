"""Lightning: a Loader as train and as validation loader, ModelCheckpoint in the midst of epochs, `fit(ckpt_path=…)`."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from common import Plan, loss_of, model
from lightning.pytorch.callbacks import ModelCheckpoint

plan = Plan()
loader = plan.loader()
val = plan.loader("val", shuffle=False, subset="id % 4 == 0", batch_size=32)


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels, ids = batch
        plan.trained(self.current_epoch, self.global_step + 1, ids, len(loader))
        return loss_of(self.net, images, labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            plan.say(kind="val", epoch=self.current_epoch, step=self.global_step, ids=batch[2].tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


if plan.every:
    keep = ModelCheckpoint(dirpath=plan.checkpoints, filename="{step}", every_n_train_steps=plan.every, save_top_k=-1)
else:
    keep = ModelCheckpoint(dirpath=plan.checkpoints, filename="{step}", save_on_train_epoch_end=True, save_top_k=-1)
saved = sorted(plan.checkpoints.glob("step=*.ckpt"), key=lambda f: int(f.stem.partition("=")[2]))
plan.say(kind="start", resumed=int(saved[-1].stem.partition("=")[2]) if saved else 0, version=lightning.__version__)
trainer = lightning.Trainer(
    max_epochs=plan.epochs,
    accelerator="cpu",
    callbacks=[keep],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Net(), train_dataloaders=loader, val_dataloaders=val, ckpt_path=str(saved[-1]) if saved else None)
plan.say(kind="end")
