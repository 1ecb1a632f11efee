"""What docs/resume.md says of frameworks is what `make test-frameworks` tests: the versions, and the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PAGE = (HERE.parents[1] / "docs" / "resume.md").read_text().split("## Frameworks\n")[1].split("\n## ")[0]
FRAMEWORKS = HERE / "frameworks"
PACKAGES = {"Lightning": "lightning", "Accelerate": "accelerate", "Hugging Face Trainer": "transformers"}


def pins(package):
    """The versions of a package that environments have."""
    found = set()
    for f in (FRAMEWORKS / "requirements").glob("*.txt"):
        if f.stem.partition("-")[0] in (package, {"transformers": "trainer"}.get(package)):
            found |= set(re.findall(rf"^{package}==(\S+)$", f.read_text(), re.M))
    return found


@pytest.mark.parametrize("name", PACKAGES)
def test_versions_are_those_that_are_tested(name):
    row = re.search(rf"^\| {name} \|([^|]*)\|", PAGE, re.M)
    assert row and set(re.findall(r"\d+\.\d+\.\d+", row[1])) == pins(PACKAGES[name])


def test_nothing_else_is_named():
    assert set(re.findall(r"^\| ([A-Z][^|]*?) \|", PAGE, re.M)) == set(PACKAGES)
    torch = re.search(r"^torch==(\S+)$", (FRAMEWORKS / "requirements" / "torch.txt").read_text(), re.M)
    assert torch and f"PyTorch {torch[1]}" in PAGE


def test_every_environment_pins_everything():
    files = sorted((FRAMEWORKS / "requirements").glob("*.txt"))
    assert [f.stem for f in files] == [
        "accelerate",
        "lightning-2.2",
        "lightning-2.5",
        "lightning-2.6",
        "torch",
        "trainer",
    ]
    for f in files:
        for line in f.read_text().splitlines():
            assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", line), (
                f"{f.name}: {line}"
            )


def test_the_code_is_that_of_the_script():
    script = {line.strip() for line in (FRAMEWORKS / "scripts" / "with_trainer.py").read_text().splitlines()}
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    missing = [line for line in block.splitlines() if line.strip() and line.strip() not in script]
    assert not missing
