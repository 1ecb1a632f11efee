"""TensorSocket's timm_producer.py and imagenet_producer.py: a folder of images in classes, augmented for training.

    python examples/from_tensorsocket/imagenet.py

There all consumers get one augmentation and one order. Here both jobs crop and flip at random, each its own draws, and
only job 0 changes colours. Both need the same images, so the daemon decodes each once, and keeps it. Images are drawn;
with IMAGENET=FOLDER/train they are yours. """

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import larder
import pair
from larder import ops


def draw(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    import drawn

    if "IMAGENET" not in os.environ:
        drawn.folder(folder)


def train(job: int, epochs: int, folder: Path) -> None:
    import torch

    torch.manual_seed(job)
    torch.set_num_threads(1)
    jitter = [ops.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4)] if job == 0 else []
    loader = larder.Loader(
        f"imagefolder:{os.environ.get('IMAGENET', folder)}", batch_size=(32, 24)[job], shuffle=True,
        transform=[ops.RandomResizedCrop(48), ops.HFlip(), *jitter, ops.ToTensor(), ops.Normalize("imagenet")],
        job=f"imagenet-{job}", epochs=epochs, output="torch",
    )
    with loader:
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 5, stride=3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(),
            torch.nn.Linear(32, len(loader.dataset.classes)),
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=2e-5)
        for epoch in range(epochs):
            count, total = 0, 0.0
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(net(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                count, total = count + len(labels), total + loss.item() * len(labels)
            print(f"job {job}, epoch {epoch}: {count} samples, loss {total / count:.3f}", flush=True)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        sys.exit("this example needs PyTorch")
    sys.exit(pair.main(train, draw))
