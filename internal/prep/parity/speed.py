"""Writes docs/measurements/ops.md to standard output: the cost of each op beside Pillow and torchvision.

    PYTHON internal/prep/parity/speed.py imagenet-700 > docs/measurements/ops.md

PYTHON has torchvision. Run it in the repository; it builds the Go benchmark BenchmarkOps, which has the same ops.
"""

import glob
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import PIL
import torch
import torchvision
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import InterpolationMode as M

ROUNDS, IMAGES = 5, 100
TEXT = """# The cost of ops, measured

`internal/prep/parity/speed.py` writes this page. It takes crops of 224 x 224 of {images} ImageNet photographs, already
decoded, and runs one op on each: larder's worker (`BenchmarkOps` of `internal/prep`), and torchvision {tv}
with Pillow {pillow} and torch {torch}, in one thread. Processor time of each image in microseconds, median of {rounds}
interleaved rounds, on {cpu}.

| op | torchvision, µs | larder, µs | ratio |
|---|---|---|---|
"""

BATCHES = """
A batch of 64 float32 images of 3 x 224 x 224, mixed by torchvision's expressions in torch, and by the Loader:

| op | torch, ms | larder, ms | ratio |
|---|---|---|---|
"""


def affine(mode):
    return T.RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10, mode)


OPS = {
    "GaussianBlur(5)": T.GaussianBlur(5),
    "GaussianBlur(23)": T.GaussianBlur(23),
    "RandomRotation(30)": T.RandomRotation(30),
    "RandomRotation(30), bilinear": T.RandomRotation(30, M.BILINEAR),
    "RandomAffine, bilinear": affine(M.BILINEAR),
    "RandomAffine, bicubic": affine(M.BICUBIC),
    "RandomAutocontrast": T.RandomAutocontrast(1.0),
    "RandomEqualize": T.RandomEqualize(1.0),
    "RandomInvert": T.RandomInvert(1.0),
    "RandomSolarize(128)": T.RandomSolarize(128, 1.0),
    "RandomPosterize(4)": T.RandomPosterize(4, 1.0),
    "RandomAdjustSharpness(2)": T.RandomAdjustSharpness(2, 1.0),
    "RandAugment": T.RandAugment(),
    "RandAugment, bilinear": T.RandAugment(interpolation=M.BILINEAR),
    "TrivialAugmentWide": T.TrivialAugmentWide(),
    "AutoAugment": T.AutoAugment(),
    "Normalize, RandomErasing": T.Compose(
        [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), T.RandomErasing(1.0)]
    ),
}


def processor():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "an unnamed processor")


def theirs(op, images):
    begun = time.process_time()
    for image in images:
        op(image)
    return (time.process_time() - begun) * 1e6 / len(images)


def ours(binary, name, data):
    env = {**os.environ, "LARDER_TESTDATA": data, "GOMAXPROCS": "1"}
    one = "^BenchmarkOps$/^" + re.escape(name.replace(" ", "_")) + "$"
    command = [binary, "-test.run=^$", f"-test.bench={one}", f"-test.benchtime={IMAGES}x"]
    out = subprocess.run(command, env=env, cwd="internal/prep", capture_output=True, text=True, check=True).stdout
    return float(re.search(r"([\d.]+) us-cpu/op", out)[1])


def mixing():
    """The cost of MixUp and CutMix of a batch, in milliseconds: torch's expressions, and the client's."""
    sys.path.insert(0, "python")
    from larder._mix import Mixer

    x, labels = torch.randn(64, 3, 224, 224), torch.arange(64)
    names, spec = ("image", "label"), {"seed": "1"}
    mixers = {n: Mixer({"name": n, "args": {"num_classes": 1000}}, spec, 0) for n in ("MixUp", "CutMix")}

    def torchs(name):
        y = torch.nn.functional.one_hot(labels, num_classes=1000).float()
        y.roll(1, 0).mul_(0.3).add_(y.mul(0.7))
        if name == "MixUp":
            return x.roll(1, 0).mul_(0.3).add_(x.mul(0.7))
        out, rolled = x.clone(), x.roll(1, 0)
        out[..., 50:150, 50:150] = rolled[..., 50:150, 50:150]
        return out

    text = ""
    for name, mixer in mixers.items():
        a, b = [], []
        for step in range(4 * ROUNDS):
            begun = time.process_time()
            torchs(name)
            between = time.process_time()
            mixer.mix(names, [x.numpy(), labels.numpy()], False, 0, step)
            a.append((between - begun) * 1e3)
            b.append((time.process_time() - between) * 1e3)
        a, b = statistics.median(a), statistics.median(b)
        text += f"| {name} | {a:,.1f} | {b:,.1f} | {a / b:.1f} |\n"
    return text


def main():
    torch.set_num_threads(1)
    folder = os.path.abspath(sys.argv[1])
    paths = sorted(glob.glob(f"{folder}/*/*"))
    paths = [paths[i * len(paths) // IMAGES] for i in range(IMAGES)]
    crop = T.Compose([T.Resize(256), T.CenterCrop(224)])
    images = [crop(Image.open(p).convert("RGB")) for p in paths]
    with tempfile.TemporaryDirectory() as scratch:
        binary = f"{scratch}/prep.test"
        subprocess.run(["go", "test", "-tags", "turbo", "-c", "-o", binary, "./internal/prep"], check=True)
        rows = {name: ([], []) for name in OPS}
        for _ in range(ROUNDS):
            for name, op in OPS.items():
                rows[name][0].append(theirs(op, images))
                rows[name][1].append(ours(binary, name, os.path.dirname(folder)))
    versions = {"tv": torchvision.__version__, "pillow": PIL.__version__, "torch": torch.__version__}
    text = TEXT.format(images=IMAGES, rounds=ROUNDS, cpu=processor(), **versions)
    for name, (a, b) in rows.items():
        a, b = statistics.median(a), statistics.median(b)
        text += f"| {name} | {a:,.0f} | {b:,.0f} | {a / b:.1f} |\n"
    print(text + BATCHES + mixing(), end="")


main()
