"""TensorSocket's pytorch_producer.py: MNIST by torchvision, ToTensor and Normalize.

    python examples/from_tensorsocket/mnist.py

The producer script is gone: each training script makes its own dataset, and `DataLoader` comes from larder. Digits are
drawn in MNIST's own files, so that nothing is downloaded; with MNIST=FOLDER they are torchvision's. """

from __future__ import annotations

import importlib.util
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pair

COUNT = 512


def draw(folder: Path) -> None:
    """Bars at ten places, as files that torchvision.datasets.MNIST reads."""
    r = np.random.default_rng(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, n in (("train", COUNT), ("t10k", 64)):
        labels = (np.arange(n) % 10).astype(np.uint8)
        images = r.integers(0, 60, (n, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[4:24, 4 + 2 * label : 6 + 2 * label] = 255
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, n, 28, 28) + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, n) + labels.tobytes())


def train(job: int, epochs: int, folder: Path) -> None:
    import torch
    from larder.torch import DataLoader
    from torchvision import datasets, transforms

    torch.manual_seed(job)
    torch.set_num_threads(1)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    dataset = datasets.MNIST(os.environ.get("MNIST", str(folder)), train=True, transform=transform)
    loader = DataLoader(
        dataset, batch_size=(8, 32)[job], shuffle=True, num_workers=1, name="mnist", cache="items", job=f"mnist-{job}"
    )
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(28 * 28, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=(0.01, 0.05)[job])
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
    if importlib.util.find_spec("torchvision") is None:
        sys.exit("this example needs torchvision")
    sys.exit(pair.main(train, draw))
