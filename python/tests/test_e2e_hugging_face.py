"""Real datasets of Hugging Face on the real daemon: their batches, their workers, and two scripts that share one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from real import PATIENCE, formats

OWN_DAEMON = True
HERE = Path(__file__).resolve().parent
KINDS = 16


pytestmark = pytest.mark.nightly  # each test starts processes that import datasets


@pytest.fixture
def start(server, tmp_path):
    """Starts hugging_face.py under the interpreter that has datasets."""
    made = []

    def begin(case, name="data", **environment):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]), **environment}
        env |= {"LARDER_SOCKET": server.socket, "HF_HOME": str(tmp_path / "home"), "TOKENIZERS_PARALLELISM": "false"}
        command = [formats(), str(HERE / "hugging_face.py"), case, str(tmp_path / name)]
        made.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return made[-1]

    yield begin
    for p in made:
        p.kill()
        p.communicate()


def told(process):
    out, err = process.communicate(timeout=3 * PATIENCE)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def test_batches_are_those_of_torch(start):
    """16 kinds of datasets, without workers and with two and cache="items", two epochs each."""
    found = told(start("batches"))
    assert found == {"kinds": KINDS, "batches": 4 * (11 * 10 + 3 + 7 + 7 + 1 + 3)}


def test_shuffled_epochs_have_each_row_once(start):
    assert told(start("shuffled")) == {"samples": 2 * (11 * 150 + 40 + 110 + 100 + 40), "kinds": KINDS - 1}


@pytest.mark.parametrize("case", ["numpy_batches", "parts"])
def test_arrays_and_parts(start, case):
    assert told(start(case)) == {"checked": 2 if case == "numpy_batches" else 4}


def test_datasets_are_pickled(start):
    assert told(start("spawned")) == {"loaders": 3}


def test_a_transform_that_is_set_between_epochs(start):
    twice = 2 * sum(range(150))
    assert told(start("changed")) == {"sums": [twice, twice // 2 * 3, twice]}


def test_two_processes_have_the_same_fingerprints(start):
    """Lambdas, closures and sets of words too, whatever the hashes of text are in a process."""
    one, two = (start("codes", f"of{seed}", PYTHONHASHSEED=seed) for seed in ("1", "2"))
    first, second = told(one), told(two)
    assert first == second and len(first) == KINDS + 1
    first["set_transform"] = ""  # is with_transform's, of the same function
    assert len(set(first.values())) == len(first)


def test_two_scripts_share_by_name(start):
    """Each row is made once for both, and for two epochs of each."""
    before = told(start("made", "look"))["made"]
    found = [told(p) for p in [start("share", name) for name in ("one", "two")]]
    assert [f["total"] for f in found] == [2 * sum(range(150))] * 2
    assert max(f["made"] for f in found) - before == 150


def test_random_fingerprints_say_what_to_do(start):
    words = told(start("unlike"))
    assert sorted(words) == ["map", "shuffle", "transform"]
    for text in words.values():
        assert "differs: code is" in text and "shuffle(seed=...)" in text and "new_fingerprint=" in text
