"""A torchvision script that changes one import: `from larder.torch import DataLoader`.

    python examples/python_datasets/torchvision_folder.py

The images are drawn first. larder has these transforms itself, with equal bits, so its daemon prepares the images and
no worker of either job does. With `native=False`, or a transform that larder has not, workers run the dataset.
`epochs=` is not needed; it tells the daemon that keeping the images pays. """

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import two_jobs


def draw(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    import drawn

    drawn.folder(folder)


def train(job: int, epochs: int, folder: Path) -> None:
    import torch
    from larder.torch import DataLoader
    from torchvision import datasets, transforms

    torch.manual_seed(job)
    torch.set_num_threads(1)
    dataset = datasets.ImageFolder(
        str(folder),
        transforms.Compose([
            transforms.RandomResizedCrop(48), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]),
    )
    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2, job=f"folder-{job}", epochs=epochs)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(32, len(dataset.classes)),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
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
    sys.exit(two_jobs.main(train, draw))
