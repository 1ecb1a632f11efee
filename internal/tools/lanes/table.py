#!/usr/bin/env python3
"""Writes out/lanes.tsv, the lanes of every test, and compares the tests with those of an earlier commit.

    table.py [BASE]

A test that BASE had and this tree does not have needs a line in gone.txt, beside this file: name | reason. BASE
defaults to the commit that gone.txt names in its first line. The exit code is 1 for a test that is gone without a
reason, and for a line of gone.txt whose test exists.

Go tests are named package.Test, Python tests file::test. Their lanes follow the Makefile: check has ./docs,
./internal/archtest and the generated references; faults has ./internal/chaostest; race has the packages that
packages.sh names without the tests of race.tsv; nightly has everything, and alone what calls lane.OnlyNightly or is
marked "nightly".
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
GONE = HERE / "gone.txt"
RACE = HERE / "race.tsv"
OUT = ROOT / "out" / "lanes.tsv"

GO_TEST = re.compile(r"^func ((?:Test|Fuzz|Example)\w*)\(.*?^}", re.MULTILINE | re.DOTALL)


@functools.cache
def makefile(name: str) -> str:
    """The value of a variable of the Makefile."""
    m = re.search(rf"^{name} :?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if not m:
        raise SystemExit(f"table.py: the Makefile has no {name}")
    return m[1]


def packages(lane: str) -> set[str]:
    """The folders of a lane, as packages.sh prints them."""
    out = subprocess.run([HERE / "packages.sh", lane], check=True, capture_output=True, text=True).stdout
    return {line.removeprefix("./") for line in out.split()}


def is_test_file(path: str) -> bool:
    """Whether a file holds tests. Projects that tests make for themselves (testdata) hold none."""
    name = os.path.basename(path)
    if path.startswith(("python/tests/frameworks/", ".")) or "testdata/" in path:
        return False
    return name.endswith("_test.go") or (name.startswith("test_") and name.endswith(".py"))


def go_tests(path: str, text: str) -> Iterator[tuple[str, bool]]:
    """Names of the tests in a Go file, and whether each runs in the nightly lane alone."""
    for m in GO_TEST.finditer(text):
        if m[1] != "TestMain":
            yield f"{os.path.dirname(path)}.{m[1]}", "lane.OnlyNightly(" in m[0]


def python_tests(path: str, text: str) -> Iterator[tuple[str, bool]]:
    """Names of the tests in a Python file, and whether each is marked nightly, by itself or by its file."""
    tree = ast.parse(text)
    module = any(
        isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark" and "nightly" in ast.unparse(n.value)
        for n in tree.body
    )

    def inside(body: list[ast.stmt], marked: bool) -> Iterator[tuple[str, bool]]:
        for n in body:
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                own = marked or any("mark.nightly" in ast.unparse(d) for d in n.decorator_list)
                if isinstance(n, ast.ClassDef):
                    yield from inside(n.body, own)
                elif n.name.startswith("test_"):
                    yield f"{path}::{n.name}", own

    yield from inside(tree.body, module)


def tests(files: dict[str, str]) -> dict[str, bool]:
    """All tests of a tree: name to whether it is nightly alone."""
    found: dict[str, bool] = {}
    for path, text in files.items():
        found.update(go_tests(path, text) if path.endswith(".go") else python_tests(path, text))
    return found


def tree() -> dict[str, str]:
    """The test files of the working tree."""
    out = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    return {p: (ROOT / p).read_text() for p in out.splitlines() if is_test_file(p) and (ROOT / p).exists()}


def commit(base: str) -> dict[str, str]:
    """The test files of a commit."""
    out = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", base], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    paths = [p for p in out.splitlines() if is_test_file(p)]
    show = subprocess.run(
        ["git", "cat-file", "--batch"], check=True, capture_output=True, cwd=ROOT,
        input="".join(f"{base}:{p}\n" for p in paths).encode(),
    ).stdout
    files, at = {}, 0
    for p in paths:
        end = show.index(b"\n", at)
        size = int(show[at:end].split()[2])
        files[p] = show[end + 1 : end + 1 + size].decode()
        at = end + 2 + size
    return files


def lanes_of(name: str, nightly: bool, sets: dict[str, set[str]]) -> list[str]:
    """The lanes that run a test."""
    if nightly:
        return ["nightly"]
    if "::" in name:
        return ["pages" if Path(name.partition("::")[0]).name in sets["pages"] else "test", "nightly"]
    package, test = name.rsplit(".", 1)
    if package in sets["house"]:
        return ["check"]
    if package == "internal/chaostest":
        return ["faults", "nightly"]
    reference = package in sets["references"] and re.match(makefile("REFERENCES"), test)
    found = ["check" if reference else "test"]
    if package == "internal/prep":
        found.append("portable")
    if package in sets["race"] and name not in sets["raced at night"]:
        found.append("race")
    return [*found, "nightly"]


def raced_at_night() -> dict[str, str]:
    """What race.tsv lists, and why: packages, and tests as package.Test."""
    lines = [line for line in RACE.read_text().splitlines() if not line.startswith("#")]
    return {name: reason for name, _, reason in (line.partition("\t") for line in lines)}


def main(arguments: list[str]) -> int:
    """Writes the table and says what is wrong."""
    head, *rest = GONE.read_text().splitlines()
    base = arguments[0] if arguments else head.removeprefix("# since ").split(":")[0]
    gone = {}
    for line in rest:
        if line.strip() and not line.startswith("#"):
            name, _, reason = (p.strip() for p in line.partition("|"))
            gone[name] = reason
    rooms = {k: {r.removeprefix("./") for r in makefile(v).split()} for k, v in
             {"house": "HOUSE", "references": "REFERENCE_ROOMS"}.items()}
    rooms["pages"] = {f"test_{p}" for p in re.findall(r"\w+\.py", makefile("PAGE_TESTS"))}
    late = raced_at_night()
    sets = rooms | {"race": packages("race"), "raced at night": set(late)}
    now = tests(tree())
    OUT.parent.mkdir(exist_ok=True)
    count: dict[str, int] = {}
    with OUT.open("w") as f:
        for name, nightly in sorted(now.items()):
            lanes = lanes_of(name, nightly, sets)
            for lane in lanes:
                count[lane] = count.get(lane, 0) + 1
            f.write(f"{name}\t{' '.join(lanes)}\n")
    print(f"{len(now)} tests: " + ", ".join(f"{n} in {lane}" for lane, n in sorted(count.items())) + f" ({OUT})")
    wrong = [f"gone.txt: {name} exists" for name in gone if name in now]
    wrong += [f"gone.txt: {name} has no reason" for name, reason in gone.items() if not reason]
    wrong += [f"race.tsv: {name} has no reason" for name, reason in late.items() if not reason]
    wrong += [f"race.tsv: {name} does not exist" for name in late if name not in now and not (ROOT / name).is_dir()]
    alike = {name.rpartition(".")[2]: name for name in late if name in now}
    for name in now:
        package, _, test = name.rpartition(".")
        if test in alike and name != alike[test] and package in sets["race"]:
            wrong.append(f"race.tsv: {alike[test]} leaves out {name} too: rename one")
    if subprocess.run(["git", "cat-file", "-e", f"{base}^{{commit}}"], cwd=ROOT, capture_output=True).returncode:
        print(f"this clone has no commit {base}: the tests were not compared with its tests")
    else:
        before = tests(commit(base))
        missing = [name for name in before if name not in now]
        wrong += [f"{name} is gone since {base} without a reason in gone.txt" for name in missing if name not in gone]
        new = sum(name not in before for name in now)
        print(f"since {base}: {new} new, {len(missing)} gone with a reason or renamed")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
