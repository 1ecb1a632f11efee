"""FFCV's files against the real daemon: every sample is what FFCV's own reader finds in a file of its own writer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from test_e2e_packed import rows as images
from test_e2e_records import rows as records

HERE = Path(__file__).resolve()
# bench/peers makes it, as FFCV is built with headers of OpenCV and libjpeg-turbo; elsewhere, name a Python that has it.
FFCV = Path(os.environ.get("FFCV_PYTHON") or HERE.parents[2] / "out" / "peers" / "ffcv" / "bin" / "python")

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of the files of all seeds."""
    ready = FFCV.exists() and subprocess.run([FFCV, "-c", "import ffcv.writer"], capture_output=True).returncode == 0
    if not ready and os.environ.get("LARDER_REQUIRE_FFCV"):
        pytest.fail(f"{FFCV} cannot import ffcv, and LARDER_REQUIRE_FFCV is set")
    if not ready:
        pytest.skip(f"{FFCV} cannot import ffcv (FFCV_PYTHON names a Python that can)")
    out = tmp_path_factory.mktemp("beton")
    script = HERE.parent / "beton_files.py"
    subprocess.run([FFCV, "-W", "ignore", script, out, "1,2,3"], check=True, timeout=900, stderr=subprocess.DEVNULL)
    return out


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_samples_are_those_of_ffcv(real, written, seed):
    out = written / str(seed)
    want = json.loads((out / "want.json").read_text())
    assert len(want) == 6
    for rest, samples in want.items():
        assert len(samples) >= 20, rest
        for shuffle in (False, True):
            loader = real(f"beton:{out}/{rest}", batch_size=7, shuffle=shuffle, seed=seed, return_index=True)
            if isinstance(samples[0], dict):
                assert records(loader, samples[0]) == samples, rest
            else:
                assert images(loader) == samples, rest
            loader.close()
    numbers = [r["n"] for r in want["all.beton?fields=n,meta"]]
    loader = real(f"beton:{out}/all.beton", batch_size=5, subset="meta.i % 4 == 1 and n > 0", return_index=True)
    got = sorted(i for _, _, index in loader for i in index.tolist())
    assert got == [i for i in range(len(numbers)) if i % 4 == 1 and i * 3 - 50 > 0]
