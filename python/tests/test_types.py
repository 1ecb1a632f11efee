"""What type checkers know of the public API: mypy reads a script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

SCRIPT = """
import larder
arrays = larder.Loader("imagefolder:/x", batch_size=4)
tensors = larder.Loader("imagefolder:/x", batch_size=4, output="torch")
reveal_type(arrays)
reveal_type(tensors)
for images, labels in tensors:
    reveal_type(images)
old: larder.Loader = arrays
reveal_type(arrays.stats().job)
reveal_type(arrays.state_dict())
with arrays as same:
    reveal_type(same)
larder.Loader("imagefolder:/x", batch_size=4, shufle=True)
larder.Loader("imagefolder:/x", batch_size=4, output="tf")
larder.Loader("imagefolder:/x", batch_size=4, share="all")
larder.Loader("imagefolder:/x", batch_size="4")
from larder.torch import DataLoader
class Mine(DataLoader[str]):
    pass
def train(loader: DataLoader[int], other: DataLoader[str]) -> None:
    made = DataLoader([1, 2], batch_size=2)
    train(made, Mine(["a"]))
"""


def test_output_decides_what_a_batch_is_and_mistakes_show(tmp_path):
    mypy = ROOT / "bin/tools/python/bin/mypy"  # of `make tools`
    if not mypy.exists():
        pytest.skip("mypy is not installed (internal/tools/python/requirements.txt)")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [str(mypy), "--strict", "--ignore-missing-imports", f"--python-executable={sys.executable}"]
    command += [f"--cache-dir={tmp_path}", str(script)]
    env = {**os.environ, "MYPYPATH": str(HERE.parent)}
    said = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    revealed = re.findall(r'note: Revealed type is "(.*)"', said)
    array, tensor = revealed[0], revealed[1]
    assert "Loader[" in array and "ndarray" in array, said
    assert "Loader[" in tensor and "ndarray" not in tensor, said
    assert revealed[2].split(" ")[0] in ("torch._tensor.Tensor", "torch.Tensor", "Any"), said  # Any without PyTorch
    assert revealed[3] == "larder._stats.JobStats | None" and revealed[4] == "dict[str, Any]", said
    assert revealed[5] == array, said
    errors = [line for line in said.splitlines() if ": error: " in line]
    assert {int(line.split(":")[1]) for line in errors} == {14, 15, 16, 17}, said
