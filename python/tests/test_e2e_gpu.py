"""What only a machine with a GPU can show: pinned batches, copies to the device, workers that open CUDA, the driver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from real import PATIENCE, find_binary
from test_e2e_python import Items, loader_of, same

import larder

__all__ = ["loader_of"]
pytestmark = [pytest.mark.filterwarnings("ignore::larder.NotSharedWarning")]


@pytest.fixture
def gpu(torch):
    """PyTorch with a GPU; absent is a skip, or a failure with LARDER_REQUIRE_GPU=1."""
    if not torch.cuda.is_available():
        if os.environ.get("LARDER_REQUIRE_GPU") == "1":
            pytest.fail("PyTorch finds no GPU, and LARDER_REQUIRE_GPU is set")
        pytest.skip("PyTorch finds no GPU")
    return torch


def nested(i):
    """Tensors, numbers, texts and tuples, the structures that torch pins part by part."""
    import torch

    return {"x": torch.full((3, 5), float(i)), "more": (i, f"item {i}", [np.int16(i), torch.arange(4) + i])}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [False, True])
def test_pinned_batches_are_torchs(loader_of, gpu, workers, collate):
    data = gpu.utils.data
    kw = {"collate_fn": data.default_collate} if collate else {}
    dataset = Items(50, nested)
    theirs = list(data.DataLoader(dataset, batch_size=8, pin_memory=True, num_workers=workers, **kw))
    ours = loader_of(dataset, batch_size=8, pin_memory=True, num_workers=workers, **kw)
    seen = 0
    for _ in range(2):
        for a, b in zip(ours, theirs, strict=True):
            same(gpu, a, b)
            for t in (a["x"], a["more"][0], a["more"][2][0], a["more"][2][1]):
                assert t.is_pinned()
                seen += 1
    assert seen == 2 * 7 * 4


def test_pinned_image_batches(small, server, gpu):
    """Of the built-in path: a list of images and labels, as torch gives it."""
    from larder.torch import DataLoader

    uri = f"imagefolder:{small}"
    recipe = [larder.ops.Resize(32), larder.ops.CenterCrop(32), larder.ops.ToTensor()]
    with larder.Loader(uri, batch_size=9, transform=recipe, endpoint=server.socket, timeout=PATIENCE,
                       output="torch") as plain:
        expected = [(x.clone(), y.clone()) for x, y in plain]
    torchvision = pytest.importorskip("torchvision")
    t = torchvision.transforms
    folder = torchvision.datasets.ImageFolder(
        str(small), t.Compose([t.Resize(32), t.CenterCrop(32), t.ToTensor()])
    )
    with DataLoader(folder, batch_size=9, pin_memory=True, endpoint=server.socket, timeout=PATIENCE) as ours:
        got = list(ours)
    assert len(got) == len(expected) == 8
    for (x, y), (ex, ey) in zip(got, expected, strict=True):
        assert x.is_pinned() and y.is_pinned()
        assert gpu.equal(x, ex) and gpu.equal(y, ey)


@pytest.mark.parametrize("pin", [False, True])
def test_copies_that_do_not_wait_are_whole(loader_of, gpu, pin):
    """Slots are given back and filled again while copies to the device are under way: none may show a later batch."""
    n, each = 400, 1 << 18
    dataset = Items(n, lambda i: gpu.full((each,), i, dtype=gpu.int32))
    ours = loader_of(dataset, batch_size=4, num_workers=2, pin_memory=pin)
    busy = gpu.ones(4096, 4096, device="cuda")
    for _ in range(2):
        copies = []
        for batch in ours:
            busy = busy @ busy * 0  # the device's queue is never empty: copies start late
            copies.append(batch.to("cuda", non_blocking=True))
            del batch
        gpu.cuda.synchronize()
        assert len(copies) == n // 4
        for k, c in enumerate(copies):
            expected = gpu.arange(4 * k, 4 * k + 4, device="cuda", dtype=gpu.int32)[:, None].expand(4, each)
            assert gpu.equal(c, expected), f"batch {k}"


def test_images_normalized_on_the_gpu(small, real, gpu):
    recipe = [larder.ops.Resize(48), larder.ops.CenterCrop(48), larder.ops.ToImage()]
    loader = real(f"imagefolder:{small}", batch_size=12, transform=recipe, output="torch")
    count = 0
    for images, _ in loader:
        there = larder.normalize(images.to("cuda"), "imagenet")
        here = larder.normalize(images, "imagenet")
        assert there.is_cuda and there.dtype == gpu.float32
        assert gpu.allclose(there.cpu(), here, atol=1e-6)
        count += len(images)
    assert count == 72


def test_a_forked_worker_that_opens_cuda_is_quoted(real, gpu):
    """CUDA that the script has opened cannot be opened in a fork: torch says so, and larder quotes it."""
    gpu.zeros(1, device="cuda")
    loader = real(Items(14, lambda i: gpu.zeros(3).cuda() if i == 4 else gpu.zeros(3)), batch_size=14, num_workers=2,
                  multiprocessing_context="fork", on_error="skip")
    assert [len(b) for b in loader] == [13]
    (bad,) = loader.quarantined
    assert bad.id == 4 and "Cannot re-initialize CUDA in forked subprocess" in bad.reason


def test_tensors_of_the_gpu_are_refused(real, gpu):
    with pytest.raises(larder.InvalidError, match=r"item 0: the sample is a tensor on cuda.*return \.cpu\(\)"):
        real(Items(8, lambda i: gpu.zeros(3, device="cuda")), batch_size=4)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_may_compute_on_the_gpu(method, server, tmp_path, gpu):
    """A script, since workers that are not forks import it: items are made on the GPU, and one forgets .cpu()."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, warnings\n"
        "import torch, larder\n"
        "class Made:\n"
        "    def __len__(self): return 40\n"
        "    def __getitem__(self, i):\n"
        "        x = torch.arange(6, device='cuda') * i\n"
        "        return x if i == 33 else x.cpu()\n"
        "if __name__ == '__main__':\n"
        "    warnings.simplefilter('ignore')\n"
        "    torch.zeros(1, device='cuda')\n"
        f"    kw = dict(num_workers=2, multiprocessing_context={method!r}, on_error='skip')\n"
        "    with larder.Loader(Made(), batch_size=8, timeout=120, output='torch', **kw) as loader:\n"
        "        print('batches', torch.cat(list(loader)).tolist())\n"
        "        print('bad', [(q.id, q.reason) for q in loader.quarantined])\n"
    )
    env = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join([str(Path(larder.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        "LARDER_SOCKET": server.socket,
    }
    out = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert out.returncode == 0, out.stderr
    lines = dict(line.split(" ", 1) for line in out.stdout.splitlines())
    assert json.loads(lines["batches"]) == [[i * j for j in range(6)] for i in range(40) if i != 33]
    assert "(33, " in lines["bad"] and "a tensor on cuda" in lines["bad"] and ".cpu()" in lines["bad"]


def test_the_driver_is_read(private, gpu):
    """`larder version` and the metrics name the GPUs that PyTorch sees; it may not see all of them."""
    names = [gpu.cuda.get_device_name(i) for i in range(gpu.cuda.device_count())]
    version = subprocess.run([find_binary(), "version"], capture_output=True, text=True, timeout=PATIENCE, check=True)
    for name in names:
        assert name in version.stdout
    d = private("", "--http", "127.0.0.1:0")
    with urllib.request.urlopen(f"http://{d.ready['http']}/metrics", timeout=PATIENCE) as answer:
        told = answer.read().decode()
    series = re.findall(r'^larder_gpu_memory_bytes\{name="([^"]*)",uuid="GPU-[0-9a-f-]+"\} (\S+)$', told, re.M)
    assert series
    for i, name in enumerate(names):
        total = gpu.cuda.get_device_properties(i).total_memory
        assert any(n == name and total <= float(size) < 1.1 * total for n, size in series), (name, total, series)
