"""Which formats there are is the same everywhere: in the program, in the client, on the page, and among the tests that
compare a format with its own writer and reader. A format that is new without such a test fails here.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from real import ROOT, Daemon

from larder import _checks

TESTS = Path(__file__).resolve().parent
FIELDS = "test_fields_are_those_of_the_formats_own_readers"
PACKED = "test_e2e_packed.py"

# The test that compares each format with its own writer and reader, and the script that writes it in another Python.
COMPARED: dict[str, tuple[str, str, str | None]] = {
    "imagefolder": ("test_e2e_folders.py", "test_an_image_folder_goes_to_the_daemons_own_decoders", None),
    "imagefiles": (PACKED, "test_lists_of_images_are_what_their_writers_listed", None),
    "idx": (PACKED, "test_idx_files_are_what_torchvision_reads", None),
    **dict.fromkeys(["cifar10", "cifar100"], (PACKED, "test_cifar_rows_are_the_pixels_of_the_binary_version", None)),
    "beton": ("test_e2e_beton.py", "test_samples_are_those_of_ffcv", "beton_files.py"),
    **dict.fromkeys(
        ["npy", "npz", "tokens", "jsonl", "csv", "text", "wds", "mds"],
        ("test_e2e_records.py", FIELDS, "record_files.py"),
    ),
    **dict.fromkeys(["parquet", "hf", "tfrecord", "lmdb", "fasta"], ("test_e2e_tables.py", FIELDS, "table_files.py")),
}
# How a test or a script names a format whose uri it does not begin with the scheme.
NAMED = {"imagefolder": "datasets.ImageFolder(", **dict.fromkeys(["cifar10", "cifar100"], '"cifar{classes}:')}


def table(heading: str) -> list[list[str]]:
    """The cells of the tables of docs/datasets.md below a line that begins so, up to the next heading."""
    text = (ROOT / "docs" / "datasets.md").read_text()
    part = re.split(r"^#", text[text.index(heading) + len(heading) :], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")]
    return [row for row in rows if not row[0].startswith("-")]


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> set[str]:
    """The schemes that the program names when it is asked for another one."""
    d = Daemon(tmp_path_factory.mktemp("schemes"))
    try:
        out = d.cli("dataset", "inspect", "nothing-of-this-name:/data", check=False)
    finally:
        d.stop()
    assert out.returncode not in (0, 1)
    named = re.search(r"Schemes are ([a-z0-9, ]+)", out.stderr)
    assert named, out.stderr
    return set(named[1].split(", "))


def test_every_format_is_compared_with_its_own_writer(known):
    assert set(COMPARED) == known
    for scheme, (module, test, script) in COMPARED.items():
        text = (TESTS / module).read_text()
        functions = {x.name: x for x in ast.parse(text).body if isinstance(x, ast.FunctionDef)}
        assert test in functions, f"{module} has no {test}, which compares {scheme}"
        said = ast.get_source_segment(text, functions[test]) or ""
        if script is not None:
            assert f'"{script}"' in text, f"{module} does not run {script}"
            said += (TESTS / script).read_text()
        assert NAMED.get(scheme, f'"{scheme}:') in said, f"{test} of {module} reads no dataset of {scheme}"


def test_every_format_has_its_rows_on_the_page_and_is_known_to_the_client(known):
    assert set(_checks._PACKED) == known - {"imagefolder"}
    page = (ROOT / "docs" / "datasets.md").read_text()
    described = set(re.findall(r"^## ([a-z0-9]+):", page, re.MULTILINE))
    for heading in ("## Packed files\n", "## Records\n"):
        for row in table(heading):
            described |= set(re.findall(r"`([a-z0-9]+):", row[0]))
    assert described == known
    compared = [row[0] for row in table("How each format was tried:")]
    for scheme in known:
        name = re.compile(rf"(?<![\w.]){scheme}(?![\w])")
        assert any(name.search(cell) for cell in compared), f"no row says how {scheme} was compared"
