"""One job's work by torch's DataLoader without workers, for larder bench prep: ImageFolder's loader,
RandomResizedCrop(224), flip, ToTensor, Normalize. Reads the number of files, their paths, then a line a pass; answers
each with its CPU seconds."""
import sys
import time

import torch
from torchvision import transforms as T
from torchvision.datasets.folder import default_loader

torch.set_num_threads(1)
paths = [sys.stdin.readline().rstrip("\n") for _ in range(int(sys.stdin.readline()))]


class Files(torch.utils.data.Dataset):
    transform = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(),
                           T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])

    def __len__(self):
        return len(paths)

    def __getitem__(self, i):
        return self.transform(default_loader(paths[i])), 0


print("ready", flush=True)
for _ in sys.stdin:
    begin = time.process_time()
    for _images, _labels in torch.utils.data.DataLoader(Files(), batch_size=64, shuffle=True):
        pass
    print(time.process_time() - begin, flush=True)
