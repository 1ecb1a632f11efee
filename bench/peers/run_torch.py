"""torch's DataLoader over torchvision's ImageFolder: Pillow decodes, crops and resizes."""

from __future__ import annotations

import child


def open_loader(spec: child.Spec) -> child.Epoch:
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    torch.manual_seed(spec["job"])
    images = datasets.ImageFolder(spec["data"], transforms.Compose([
        transforms.RandomResizedCrop(spec["crop"]), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]))
    loader = torch.utils.data.DataLoader(images, batch_size=spec["batch"], shuffle=True, num_workers=spec["workers"],
                                         persistent_workers=spec["workers"] > 0)
    return lambda: iter(loader)


if __name__ == "__main__":
    child.run(open_loader)
