#!/usr/bin/env python3
"""Writes out/lanes.tsv, the lanes of every test, and compares the tests with those of an earlier commit.

    table.py [BASE]

A test that BASE had and this tree does not have needs a line in gone.txt, beside this file: name | reason. A test that
BASE ran by day and that only make nightly runs now needs a line in moved.tsv: name, lane and reason, with tabs between
them. BASE defaults to the commit that gone.txt names in its first line. The exit code is 1 for a test without its line,
for a line that names no test or one that still runs by day, and, where CI is set, for a clone without BASE. It is 1
too for a promise of docs/guarantees.md whose row in guarantees-tests.md names no test of make test.

Go tests are named package.Test, Python tests file::test; moved.tsv may name one variant, file::test[variant]. Their
lanes follow the Makefile and packages.sh: check has ./docs, ./internal/archtest and the generated references; faults
has ./internal/chaostest; race has the packages that packages.sh names without the tests of race.tsv. Both run with
-short, so that they have no test that skips itself then. nightly has everything, and alone what calls lane.OnlyNightly
or is marked "nightly". A test may skip itself in its own body or in a helper of its package.
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
MOVED = HERE / "moved.tsv"
RACE = HERE / "race.tsv"
OUT = ROOT / "out" / "lanes.tsv"
PROMISES = ROOT / "docs" / "guarantees.md"
PROOFS = ROOT / "docs" / "guarantees-tests.md"
FAULTS = "internal/chaostest"

# What keeps a test out of lanes: "nightly" of all by day, "short" of those that run with -short.
Skips = frozenset[str]
NONE: Skips = frozenset()

GO_FUNCTION = re.compile(r"func (\([^)]*\) )?(\w+)")
GO_TEST = re.compile(r"(?:Test|Fuzz|Example)")
BRANCH = re.compile(r"if |\} else|case |default:")
CALL = re.compile(r"(?<![\w.])(\w+)\(")
# Statements that do not test: a return behind them leaves the whole test out.
BEFORE = re.compile(r"\w+\.(?:Parallel|Helper)\(\)$")


@functools.cache
def makefile(name: str) -> str:
    """The value of a variable of the Makefile."""
    m = re.search(rf"^{name} :?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if not m:
        raise SystemExit(f"table.py: the Makefile has no {name}")
    return m[1]


@functools.cache
def pytest_roots() -> tuple[str, ...]:
    """The folders of Python tests that make test-python gives to pytest."""
    m = re.search(r"--ignore=,\$\(PAGE_TESTS\)\) (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if not m:
        raise SystemExit("table.py: the Makefile's test-python names no folders behind PAGE_TESTS")
    return tuple(f"{folder}/" for folder in m[1].split())


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


def go_functions(text: str) -> Iterator[tuple[str, bool, list[str]]]:
    """The functions of a Go file as gofmt writes it: name, whether it is a method, and the lines of its body."""
    lines = iter(re.sub(r"(\|\||&&)\n\s*", r"\1 ", text).splitlines())
    for line in lines:
        m = GO_FUNCTION.match(line)
        if not m:
            continue
        body = []
        if line.endswith("}"):
            body = [f"\t{part.strip()}" for part in line.partition(" { ")[2].removesuffix("}").split(";")]
        else:
            for inner in lines:
                if inner.startswith("}"):
                    break
                body.append(inner)
        yield m[2], bool(m[1]), body


def condition(text: str) -> Skips:
    """When the condition of an `if` is true for certain: with -short, or by day. A variable of the environment that
    the condition wants to be empty is empty. Only TestPlantedBugs patches a package, in the nightly lane.
    """
    found = set()
    for part in re.sub(r"^if | \{.*$", "", text).split("||"):
        rest = [p for p in map(str.strip, part.split("&&")) if not re.fullmatch(r'os\.Getenv\(".*"\) == ""', p)]
        if rest == ["testing.Short()"]:
            found.add("short")
        if rest == ["!lane.Nightly()"] or re.fullmatch(r"!(?:dsa\.)?[pP]atched", rest[0] if len(rest) == 1 else ""):
            found.add("nightly")
    return frozenset(found)


def go_skips(body: list[str], helpers: dict[str, Skips], *, test: bool) -> Skips:
    """Where a function leaves the test out that runs it, by itself or through one of the helpers. What it does under
    any other condition, or in one of several subtests, leaves no test out.
    """
    found: Skips = NONE
    above: list[tuple[int, str]] = []
    subtests = sum(".Run(" in line for line in body)
    only_before = True  # nothing was tested before this line
    for line in body:
        text = line.strip()
        if not text or text.startswith("//"):
            continue
        depth = len(line) - len(line.lstrip("\t"))
        while above and above[-1][0] >= depth:
            above.pop()
        inside = [a for _, a in above]
        above.append((depth, text))
        branches = [a for a in inside if BRANCH.match(a)]
        if subtests > 1 and any(".Run(" in a for a in inside):
            continue
        if not branches:
            if "lane.OnlyNightly(" in text:
                found |= {"nightly"}
            for name in CALL.findall(text):
                found |= helpers.get(name, NONE)
            only_before = only_before and bool(BEFORE.match(text) or (BRANCH.match(text) and condition(text)))
        elif len(branches) == 1:
            ends = text.startswith("return") and test and only_before
            if ends or re.match(r"\w+\.Skip(?:f|Now)?\(", text):
                found |= condition(branches[0])
    return found


def go_tests(files: dict[str, str]) -> Iterator[tuple[str, Skips]]:
    """Names of the tests in Go files, and where each leaves itself out."""
    functions = [(os.path.dirname(path), *f) for path, text in files.items() for f in go_functions(text)]
    helpers: dict[str, dict[str, Skips]] = {}
    for package, name, method, body in functions:
        known = helpers.setdefault(package, {})
        if not method and not GO_TEST.match(name):
            known[name] = known.get(name, NONE) | go_skips(body, {}, test=False)
    for package, name, method, body in functions:
        if not method and GO_TEST.match(name) and name != "TestMain":
            yield f"{package}.{name}", go_skips(body, helpers[package], test=True)


def python_tests(path: str, text: str) -> Iterator[tuple[str, Skips]]:
    """Names of the tests in a Python file, and whether each is marked nightly: by itself, by its class or file, or in
    all the values that it is run with.
    """
    tree = ast.parse(text)
    marks = {"pytest.mark.nightly"}
    for n in tree.body:
        if isinstance(n, ast.Assign) and ast.unparse(n.value) in marks:
            marks.add(ast.unparse(n.targets[0]))

    def late(value: ast.expr) -> bool:
        """Whether values of a parametrized test are all of the nightly lane."""
        if isinstance(value, ast.Starred):
            return late(value.value)
        if isinstance(value, (ast.ListComp, ast.GeneratorExp)):
            return late(value.elt)
        if isinstance(value, (ast.List, ast.Tuple)):
            return bool(value.elts) and all(late(e) for e in value.elts)
        if not isinstance(value, ast.Call):
            return False
        given = [ast.unparse(n) for k in value.keywords if k.arg == "marks" for n in ast.walk(k.value)]
        return ast.unparse(value.func) == "night" or not marks.isdisjoint(given)

    def marked(mark: ast.expr) -> bool:
        if isinstance(mark, (ast.List, ast.Tuple)):
            return any(marked(m) for m in mark.elts)
        name = ast.unparse(mark.func if isinstance(mark, ast.Call) else mark)
        if name == "pytest.mark.parametrize" and isinstance(mark, ast.Call):
            return any(late(v) for v in [*mark.args[1:2], *(k.value for k in mark.keywords if k.arg == "argvalues")])
        return name in marks

    def inside(body: list[ast.stmt], above: bool) -> Iterator[tuple[str, Skips]]:
        given = (n for n in body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark")
        above = above or any(marked(n.value) for n in given)
        for n in body:
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                own = above or any(marked(d) for d in n.decorator_list)
                if isinstance(n, ast.ClassDef):
                    yield from inside(n.body, own)
                elif n.name.startswith("test_"):
                    yield f"{path}::{n.name}", frozenset({"nightly"}) if own else NONE

    yield from inside(tree.body, False)


def tests(files: dict[str, str]) -> dict[str, Skips]:
    """All tests of a tree, and what keeps each out of lanes."""
    found = dict(go_tests({path: text for path, text in files.items() if path.endswith(".go")}))
    for path, text in files.items():
        if path.endswith(".py"):
            found.update(python_tests(path, text))
    return found


def tree() -> dict[str, str]:
    """The test files of the working tree."""
    out = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    return {p: (ROOT / p).read_text() for p in out.splitlines() if is_test_file(p) and (ROOT / p).exists()}


def commit(base: str) -> dict[str, str]:
    """The test files of a commit, and its Makefile."""
    out = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", base], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    paths = [p for p in out.splitlines() if is_test_file(p) or p == "Makefile"]
    show = subprocess.run(
        ["git", "cat-file", "--batch"],
        check=True,
        capture_output=True,
        cwd=ROOT,
        input="".join(f"{base}:{p}\n" for p in paths).encode(),
    ).stdout
    files, at = {}, 0
    for p in paths:
        end = show.index(b"\n", at)
        size = int(show[at:end].split()[2])
        files[p] = show[end + 1 : end + 1 + size].decode()
        at = end + 2 + size
    return files


def lanes_of(name: str, skips: Skips, sets: dict[str, set[str]]) -> list[str]:
    """The lanes that run a test."""
    if "nightly" in skips:
        return ["nightly"]
    if "::" in name:
        file = name.partition("::")[0]
        if Path(file).name in sets["pages"]:
            return ["pages", "nightly"]
        return ["test", "nightly"] if file.startswith(pytest_roots()) else []
    package, test = name.rsplit(".", 1)
    short = "short" in skips
    if package in sets["house"]:
        return ["check"]
    if package == FAULTS:
        return ["nightly"] if short else ["faults", "nightly"]
    found = []
    reference = refers(test)
    if reference and package in sets["references"]:
        found.append("check")
    if package in sets["pure"] or (package in sets["rest"] and not reference):
        found.append("test")
    if package == "internal/prep":
        found.append("portable")
    if package in sets["race"] and name not in sets["raced at night"] and not short:
        found.append("race")
    return [*found, "nightly"]


def refers(test: str) -> bool:
    """Whether test-go leaves a test out by its name, since make check has it."""
    return bool(re.match(makefile("REFERENCES"), test))


def by_day(files: dict[str, str]) -> set[str]:
    """The tests that a commit ran by day. A commit from before the lanes ran all of them, in their long form."""
    short = "\nfaults:" in files.get("Makefile", "")
    found = tests(files)
    return {
        name
        for name, skips in found.items()
        if "nightly" not in skips and not (short and "short" in skips and name.rpartition(".")[0] == FAULTS)
    }


def raced_at_night() -> dict[str, str]:
    """What race.tsv lists, and why: packages, and tests as package.Test."""
    lines = [line for line in RACE.read_text().splitlines() if not line.startswith("#")]
    return {name: reason for name, _, reason in (line.partition("\t") for line in lines)}


def read_gone() -> tuple[str, dict[str, str]]:
    """The commit that gone.txt names, and its tests with their reasons."""
    head, *rest = GONE.read_text().splitlines()
    lines = [line for line in rest if line.strip() and not line.startswith("#")]
    gone = {name.strip(): reason.strip() for name, _, reason in (line.partition("|") for line in lines)}
    return head.removeprefix("# since ").split(":")[0], gone


def read_moved(now: dict[str, list[str]]) -> tuple[set[str], list[str]]:
    """The tests of moved.tsv, without those of which it names variants, and what is wrong with its lines."""
    moved: set[str] = set()
    wrong = []
    for line in MOVED.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, *rest = (part.strip() for part in line.split("\t"))
        test = name.split("[")[0]
        if len(rest) != 2 or not all(rest):
            wrong.append(f"moved.tsv: {name}: write its lane and the reason behind it, with tabs between them")
        elif name in moved:
            wrong.append(f"moved.tsv: {name} has two lines")
        elif test not in now:
            wrong.append(f"moved.tsv: {name} does not exist")
        elif test == name and now[name] != ["nightly"]:
            wrong.append(f"moved.tsv: {name} still runs by day, in {' and '.join(now[name][:-1]) or 'check'}")
        moved.add(name)
    return moved, wrong


def all_sets() -> dict[str, set[str]]:
    """The packages and files of each lane, and what race.tsv leaves out of one."""
    sets = {lane: packages(lane) for lane in ("race", "rest", "pure")}
    for key, variable in {"house": "HOUSE", "references": "REFERENCE_ROOMS"}.items():
        sets[key] = {room.removeprefix("./") for room in makefile(variable).split()}
    sets["pages"] = {f"test_{p}" for p in re.findall(r"\w+\.py", makefile("PAGE_TESTS"))}
    sets["raced at night"] = set(raced_at_night())
    return sets


def write(now: dict[str, list[str]]) -> None:
    """Writes the table, and says how many tests each lane has."""
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("".join(f"{name}\t{' '.join(lanes)}\n" for name, lanes in sorted(now.items())))
    count: dict[str, int] = {}
    for lanes in now.values():
        for lane in lanes:
            count[lane] = count.get(lane, 0) + 1
    print(f"{len(now)} tests: " + ", ".join(f"{n} in {lane}" for lane, n in sorted(count.items())) + f" ({OUT})")


def wrong_names(now: dict[str, list[str]], sets: dict[str, set[str]]) -> list[str]:
    """What is wrong with race.tsv and with names of tests, whatever an earlier commit had."""
    late = raced_at_night()
    wrong = [f"race.tsv: {name} has no reason" for name, reason in late.items() if not reason]
    wrong += [f"race.tsv: {name} does not exist" for name in late if name not in now and not (ROOT / name).is_dir()]
    alike = {name.rpartition(".")[2]: name for name in late if name in now}
    for name, lanes in now.items():
        if not lanes:
            wrong.append(f"{name} runs in no lane: make test-python has {' and '.join(pytest_roots())}")
        if "::" in name:
            continue
        package, _, test = name.rpartition(".")
        if test in alike and name != alike[test] and package in sets["race"]:
            wrong.append(f"race.tsv: {alike[test]} leaves out {name} too: rename one")
        if refers(test) and package not in sets["references"] | sets["house"]:
            wrong.append(
                f"{name}: make test leaves out names that begin so (REFERENCES in the Makefile), and make check runs "
                "them in REFERENCE_ROOMS alone: rename it, or add its package there"
            )
    return wrong


def unproved(promises: str, proofs: str, now: dict[str, list[str]]) -> list[str]:
    """Which promises, a heading of the first page each, no test of make test asks of the real daemon: the tests that
    the table "Against the real daemon" of the second page names.
    """
    table = proofs.partition("\n## Against the real daemon\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| \[([^]]+)\]\(guarantees\.md#[^)]*\) \| (.*) \|$", table, re.MULTILINE))
    headings = re.findall(r"^## (.+)$", promises, re.MULTILINE)
    wrong = [f"guarantees-tests.md: guarantees.md has no promise {name}" for name in rows if name not in headings]
    for name in headings:
        file = ""
        for quoted, test in re.findall(r"`(test_e2e\w*\.py)`|\b(test_\w+)\b(?!\.)", rows.get(name, "")):
            file = quoted or file
            if test and "test" not in now.get(f"python/tests/{file}::{test}", []):
                wrong.append(f"guarantees-tests.md: {name}: make test runs no {test} of python/tests/{file}")
        if not re.search(r"\btest_\w+\b(?!\.)", rows.get(name, "")):
            wrong.append(f"guarantees-tests.md: {name} needs a row: a test of make test against the real daemon")
    return wrong


def compare(base: str, gone: dict[str, str], now: dict[str, list[str]], moved: set[str]) -> list[str]:
    """Which tests of a commit are gone, or run by day no longer, without a line that says why."""
    if subprocess.run(["git", "cat-file", "-e", f"{base}^{{commit}}"], cwd=ROOT, capture_output=True).returncode:
        note = f"this clone has no commit {base}: the tests were not compared with its tests"
        if os.environ.get("CI"):
            return [f"{note}, as CI must: give it the whole history (git fetch --unshallow)"]
        print(note)
        return []
    files = commit(base)
    before = tests(files)
    missing = [name for name in before if name not in now]
    wrong = [f"{name} is gone since {base} without a reason in gone.txt" for name in missing if name not in gone]
    late = [name for name in by_day(files) if now.get(name) == ["nightly"]]
    wrong += [
        f"{name} ran by day at {base}, and only make nightly runs it now: say in moved.tsv why, and which test by day "
        "proves the same"
        for name in sorted(late)
        if name not in moved
    ]
    new = sum(name not in before for name in now)
    print(f"since {base}: {new} new, {len(missing)} gone with a reason or renamed, {len(late)} moved to the night")
    return wrong


def main(arguments: list[str]) -> int:
    """Writes the table and says what is wrong."""
    since, gone = read_gone()
    base = arguments[0] if arguments else since
    sets = all_sets()
    now = {name: lanes_of(name, skips, sets) for name, skips in tests(tree()).items()}
    write(now)
    moved, wrong = read_moved(now)
    wrong += [f"gone.txt: {name} exists" for name in gone if name in now]
    wrong += [f"gone.txt: {name} has no reason" for name, reason in gone.items() if not reason]
    wrong += wrong_names(now, sets)
    wrong += unproved(PROMISES.read_text(), PROOFS.read_text(), now)
    wrong += compare(base, gone, now, moved)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
