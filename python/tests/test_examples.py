"""The examples run, as they stand, against the real daemon; so does what README and their own texts say of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from real import PATIENCE, ROOT, Daemon, draw, formats, night

import larder

EXAMPLES = ROOT / "examples"
OWN_DAEMON = True


@pytest.fixture
def images(tmp_path):
    pytest.importorskip("PIL.Image", reason="Pillow draws the images")
    return draw(tmp_path / "images", 6, 12)


def interpreter(needs: list[str]) -> str:
    """The Python that runs an example: this one, or that of the packed files where the packages are there alone.

    A package that is missing is a skip, or a failure with LARDER_REQUIRE_TORCH=1 and LARDER_REQUIRE_FORMATS=1.
    """
    extra = not {"torch", "torchvision", "PIL"} >= set(needs)
    python = str(formats()) if extra else sys.executable
    out = subprocess.run([python, "-c", f"import {', '.join(['sys', *needs])}"], capture_output=True, text=True,
                         timeout=6 * PATIENCE, check=False)  # fmt: skip
    if out.returncode != 0:
        words = f"{python} lacks one of {', '.join(needs)}: {out.stderr.strip()}"
        if os.environ.get("LARDER_REQUIRE_FORMATS" if extra else "LARDER_REQUIRE_TORCH"):
            pytest.fail(words)
        pytest.skip(words)
    return python


def run(server: Daemon, *command: str, patience: float = PATIENCE, python: str = sys.executable) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "LARDER_SOCKET": server.socket}
    env["OMP_NUM_THREADS"] = "1"  # more would wait for each other without sleeping
    out = subprocess.run(
        [python, *command], env=env, capture_output=True, text=True, timeout=patience, check=False
    )
    assert out.returncode == 0, out.stdout + out.stderr
    assert out.stderr == ""
    return out.stdout


def test_numpy_loop_draws_its_own_images(server):
    text = run(server, str(EXAMPLES / "numpy_loop.py"))
    assert "240 samples of 6 classes, 8 batches an epoch" in text
    assert text.count("samples per class [40, 40, 40, 40, 40, 40]") == 2


def test_numpy_loop_on_a_folder(server, images):
    text = run(server, str(EXAMPLES / "numpy_loop.py"), "--data", str(images), "--subset", "label < 2", "--epochs", "1")
    assert "24 samples of 6 classes" in text and "[12, 12, 0, 0, 0, 0]" in text


def test_torch_train_learns_and_shares(server, torch):
    text = run(server, str(EXAMPLES / "torch_train.py"), "--epochs", "2")
    lines = re.findall(r"lr (\S+)  epoch (\d): loss (\S+), validation (\d+)/60", text)
    assert len(lines) == 4
    losses = [float(loss) for rate, _, loss, _ in lines if rate == "0.03"]
    assert losses[-1] < losses[0], text
    delivered, decodes = map(int, re.findall(r"(\d+) samples from (\d+) decodes", text)[0])
    assert delivered == 2 * 2 * 240
    # Two recipes that begin unlike (Resize or not) decode apart; each of the images once for both jobs.
    assert decodes <= 240 * 1.02


@pytest.mark.parametrize(
    ("name", "needs", "given", "made"),
    [
        ("image_and_mask", [], 960, 240),
        *night(
            ("torchvision_folder", ["torchvision", "PIL"], 960, 240),
            ("audio_windows", ["torch"], 360, 120),
            ("tokens", ["datasets", "tokenizers"], 1600, 400),
            ("table_rows", ["pandas", "pyarrow"], 2400, 600),
        ),
    ],
)
def test_datasets_in_python_are_shared(server, monkeypatch, name, needs, given, made):
    python = interpreter(needs)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # torchvision_folder is said to need no workers
    script = str(EXAMPLES / "python_datasets" / f"{name}.py")
    text = run(server, script, patience=6 * PATIENCE, python=python)  # large imports
    assert text.count(", epoch ") == 4, text
    figures = re.findall(r"(\d+) samples from (\d+) items; (\d+) were not made again", text)
    assert [tuple(map(int, f)) for f in figures] == [(given, made, given - made)], text


@pytest.mark.parametrize(
    ("name", "needs", "given", "made"),
    [
        ("tokens", [], 2 * 2 * 480, 480),
        *night(
            ("simple", [], 2 * 2 * 960, 960),
            ("mnist", ["torchvision"], 2 * 2 * 512, 512),
            ("imagenet", ["torch", "PIL"], 2 * 2 * 240, 240),
            ("audio_pairs", [], 2 * 2 * 160, None),
        ),
    ],
)
def test_examples_of_tensorsocket(server, name, needs, given, made):
    script = str(EXAMPLES / "from_tensorsocket" / f"{name}.py")
    text = run(server, script, patience=6 * PATIENCE, python=interpreter(needs))
    assert text.count(", epoch ") == 4, text
    samples, items = map(int, re.findall(r"(\d+) samples from (\d+) items", text)[0])
    # What is prepared ahead of a loader that stops counts as given; views are made for each epoch, together or apart.
    assert samples >= given if name == "simple" else samples == given, text
    assert items == made if made else given // 2 <= items < given, text


def test_torch_train_without_torch_says_so():
    script = str(EXAMPLES / "torch_train.py")
    code = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_path({script!r}, run_name='__main__')"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert out.returncode == 1 and out.stderr == "this example needs PyTorch; examples/numpy_loop.py does without\n", (
        out
    )


@pytest.mark.parametrize("kill", [*night([]), ["--kill", "2"]])
def test_four_jobs(server, tmp_path, kill):
    pytest.importorskip("PIL.Image", reason="Pillow draws the images")
    images = draw(tmp_path / "seventy", 70, 4)
    text = run(server, str(EXAMPLES / "four_jobs.py"), "--data", str(images), "--epochs", "2", *kill)
    n = 6 if kill else 8
    assert f"every sample of its subset exactly once: {n} of {n} job-epochs" in text


def test_job_yaml(server, images, tmp_path):
    text = (EXAMPLES / "job.yaml").read_text()
    assert "imagefolder:/data/train" in text
    job = tmp_path / "job.yaml"
    job.write_text(
        text.replace("imagefolder:/data/train", f"imagefolder:{images}").replace("batch_size: 256", "batch_size: 9")
    )
    server.cli("jobs", "register", "-f", str(job))
    with larder.Loader("job:nightly", endpoint=server.socket, timeout=PATIENCE) as loader:
        shapes = [images.shape for images, _ in loader]
    assert shapes == [(9, 3, 224, 224)] * 4


def test_readme_of_the_package(server, images):
    """The code block of python/README.md, on a folder that exists."""
    text = (Path(__file__).parents[1] / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    code = (
        code.replace("/data/train", str(images))
        .replace("range(90)", "range(2)")
        .replace("batch_size=256", "batch_size=8")
    )
    code = code.replace("        ...", "        assert images.shape[1:] == (3, 224, 224)")
    script = images.parent / "readme.py"
    script.write_text(code)
    run(server, str(script))
