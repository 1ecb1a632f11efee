"""Two training jobs side by side: the same tiny CNN with two learning rates, on the CPU, fed by one daemon.

    python examples/torch_train.py [--data DIR] [--epochs 3]

DIR holds one folder of images per class; without --data a few are drawn. Each job is an ordinary training script
(`train` below); neither knows of the other, and each image is read and decoded once for both. Every job has a training
and a validation Loader. """

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import sys
import tempfile
from pathlib import Path
from threading import Barrier

import larder


def train(data: str, rate: float, epochs: int, together: Barrier | None = None) -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    ops = larder.ops
    train_loader = larder.Loader(
        f"imagefolder:{data}", subset="id % 4 != 0", batch_size=32, shuffle=True, seed=1, epochs=epochs, output="torch",
        transform=[ops.RandomResizedCrop(48, scale=(0.5, 1.0)), ops.HFlip(), ops.Normalize("imagenet")],
    )
    val_loader = larder.Loader(
        f"imagefolder:{data}", subset="id % 4 == 0", batch_size=64, epochs=epochs, output="torch",
        transform=[ops.Resize(48), ops.CenterCrop(48), ops.Normalize("imagenet")],
    )
    if together is not None:
        together.wait(60)  # what two jobs want from the beginning is decoded once for both
    classes = len(train_loader.dataset.classes)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 5, stride=2), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(24 * 9, classes),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        net.train()
        total = 0.0
        for images, labels in train_loader:
            loss = loss_of(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        net.eval()
        with torch.no_grad():
            right = sum(int((net(images).argmax(1) == labels).sum()) for images, labels in val_loader)
        print(f"lr {rate:g}  epoch {epoch}: loss {total / len(train_loader):.3f}, validation "
              f"{right}/{val_loader.num_samples}", flush=True)
    train_loader.close()
    val_loader.close()


def totals(data: Path) -> larder.Counters:
    """What the daemon has done so far; the Loader that asks ends at once, so that nothing is prepared for it."""
    with larder.Loader(f"imagefolder:{data}", batch_size=1, job=f"look-{data.name}") as look:
        return look.stats().totals


def both(data: Path, epochs: int) -> int:
    before = totals(data)
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2)
    jobs = [context.Process(target=train, args=(str(data), rate, epochs, together)) for rate in (0.03, 0.003)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    after = totals(data)
    print(f"both jobs together: {after.samples_delivered - before.samples_delivered} samples from "
          f"{after.decodes - before.decodes} decodes")
    return max(job.exitcode or 0 for job in jobs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="a folder of class folders of images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, help="be one of the two jobs, with this learning rate")
    args = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("this example needs PyTorch; examples/numpy_loop.py does without")
    if args.rate is not None:
        train(str(args.data), args.rate, args.epochs)
        return 0
    if args.data is not None:
        return both(args.data, args.epochs)
    import drawn

    with tempfile.TemporaryDirectory() as folder:
        return both(drawn.folder(Path(folder)), args.epochs)


if __name__ == "__main__":
    sys.exit(main())
