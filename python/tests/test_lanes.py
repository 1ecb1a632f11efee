"""The lanes' own tools (internal/tools/lanes): what is run again, what never is, and which tests a lane has."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from types import ModuleType

import pytest
from collected import COLLECTED
from real import ROOT, bugs

LANES = ROOT / "internal" / "tools" / "lanes"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"lanes_{name}", LANES / f"{name}.py")
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


run, table = module("run"), module("table")

FAILED = """\
--- FAIL: TestOne (0.00s)
    a_test.go:3: no
    --- FAIL: TestOne/part (0.00s)
FAIL
FAIL\tlarder/a\t0.003s
ok  \tlarder/b\t0.1s
FAIL
"""


def test_failed_go_tests_are_found():
    result = run.parse_go(1, FAILED)
    assert (result.failed, result.hard) == (["larder/a.TestOne"], "")


@pytest.mark.parametrize(
    "text",
    [
        FAILED.replace("    a_test.go:3: no", "WARNING: DATA RACE"),
        FAILED.replace("    a_test.go:3: no", "panic: larder: invariant violated: 3 of 2"),
        FAILED.replace("    a_test.go:3: no", "    x.go:1: larder: 2 findings"),
        "FAIL\tlarder/a [build failed]\nFAIL\n",
        "panic: test timed out after 10m0s\nFAIL\tlarder/a\t600s\nFAIL\n",
        "",
    ],
)
def test_what_is_grave_is_never_run_again(text, monkeypatch):
    known = {"larder/a.TestOne": run.Known("larder/a.TestOne", "2026-01-01", "somebody", "a cause")}
    monkeypatch.setattr(run, "run", lambda _: pytest.fail("it was run again"))
    code, said = run.retry("go", run.parse_go(1, text), ["go", "test"], known)
    assert code == 1 and said[0].startswith("not run again: ")


def test_failed_python_tests_are_found():
    text = "FAILED python/tests/test_a.py::test_b[x - y] - AssertionError: no\n1 failed, 3 passed in 0.1s\n"
    result = run.parse_pytest(1, text)
    assert (result.failed, result.hard) == (["python/tests/test_a.py::test_b[x - y]"], "")
    assert run.parse_pytest(1, text.replace("[x - y]", "")).failed == ["python/tests/test_a.py::test_b"]
    audited = text + "ERROR python/tests/test_a.py::test_b - AssertionError: larder: 1 finding\n"
    assert run.parse_pytest(1, audited).hard
    assert run.parse_pytest(2, "").hard and not run.parse_pytest(0, "3 passed in 0.1s\n").hard


INVARIANT = (ROOT / "internal" / "invariant" / "invariant.go").read_text()
BROKEN = re.findall(r'^const Broken = "(.*)"$', INVARIANT, re.MULTILINE)[0]
COMPLAINT = (
    f'time=2026-01-01T00:00:00.000Z level=ERROR msg="{BROKEN}: please report this" job=1 '
    'what="epoch 3: object 1 was picked twice"'
)


@pytest.mark.parametrize("line", [COMPLAINT, f"panic: larder: {BROKEN}: 3 of 2", "fatal error: sync: unlock"])
def test_a_bug_in_the_log_of_a_daemon_fails_its_test(line):
    log = 'level=INFO msg="larder is ready"\nlevel=INFO msg="0 epochs are violated"\n'
    assert not bugs(log)
    assert bugs(f"{log}{line}\n{log}") == [line]
    assert run.parse_go(1, FAILED.replace("    a_test.go:3: no", f'    a_test.go:3: the log has "{line}"')).hard


@pytest.mark.parametrize(
    ("line", "grave"),
    [
        ("E       AssertionError: exit code 2: panic: runtime error: index out of range", True),
        ("E         panic: larder: batch 3 was given twice", True),
        (f"E         {COMPLAINT}", True),
        (f"E       assert not ['{COMPLAINT}']", True),
        ("E       AssertionError: assert ['violated'] == ['complete']", True),
        (">       assert not bugs(shaken.daemon.log.read_text())", False),
        ("E       AssertionError: the daemon did not panic", False),
    ],
)
def test_panics_and_epochs_that_are_not_exactly_once_show_in_the_text_of_pytest(line, grave):
    end = "FAILED python/tests/test_a.py::test_b - AssertionError: no\n1 failed in 1s\n"
    result = run.parse_pytest(1, f"{line}\n{end}")
    assert bool(result.hard) == grave and result.failed == ["python/tests/test_a.py::test_b"]


@pytest.mark.parametrize(
    ("log", "verdict"),
    [
        ("=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\nok  \tlarder/a\t0.1s\n", "ok"),
        ("=== RUN   TestA\n--- SKIP: TestA (0.00s)\nPASS\nok  \tlarder/a\t0.1s\n", "skipped"),
        ("=== RUN   TestA\n--- SKIP: TestA (0.00s)\n=== RUN   TestB\n--- PASS: TestB (0.00s)\nPASS\n", "ok"),
        ("testing: warning: no tests to run\nPASS\nok  \tlarder/a\t0.1s [no tests to run]\n", "no tests"),
        ("ok  \tlarder/a\t0.1s [no tests to run]\n?   \tlarder/b\t[no test files]\n", "no tests"),
        ("ok  \tlarder/a\t0.1s [no tests to run]\nok  \tlarder/b\t0.1s\n", "ok"),
        ("ok  \tlarder/b\t(cached)\n", "ok"),
        ("...s\n3 passed, 1 skipped in 0.12s\n", "ok"),
        ("s\n1 skipped in 0.12s\n", "skipped"),
        ("\n3 deselected in 0.12s\n", "no tests"),
        ("all modules verified\n", "ok"),
        ("", "nothing"),
    ],
)
def test_a_row_of_the_night_that_proves_nothing_is_not_ok(log, verdict, tmp_path):
    path = tmp_path / "row.log"
    path.write_text(log)
    assert subprocess.check_output([LANES / "verdict.sh", path], text=True) == verdict + "\n"


ROOT = LANES.parents[2]


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """The rows of make nightly: name and command."""
    env = os.environ | {"SHOW": "1", "OUT": str(tmp_path_factory.mktemp("night")), "ROWS": ""}
    out = subprocess.check_output([LANES.parent / "nightly.sh", "all"], env=env, text=True)
    return [(name, shlex.split(command)) for _, name, command in (line.split("\t") for line in out.splitlines())]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1] if name in command else ""


def selected(command: list[str], tests: list[str]) -> list[str]:
    """Which of the tests, as package.Test, a command of go test runs."""
    of = [a.removeprefix("./").removeprefix("larder/") for a in command if a.startswith(("./", "larder/"))]
    inside = re.compile("|".join(re.escape(p).replace(r"/\.\.\.", "(/.*)?") for p in of) or "$^")
    run, skip = re.compile(option(command, "-run")), re.compile(option(command, "-skip") or "$^")
    split = ((name, *name.rsplit(".", 1)) for name in tests)
    return [name for name, p, test in split if inside.fullmatch(p) and run.search(test) and not skip.search(test)]


def test_every_go_test_is_in_a_row_of_the_night(night):
    tests = [name for name in table.tests({p: t for p, t in table.tree().items() if p.endswith(".go")})]
    rows = {name: command for name, command in night if "gotest" in command or {"go", "test"} <= set(command)}
    long = [set(selected(c, tests)) for c in rows.values() if "-short" not in c and "-race" not in c]
    assert sorted(set(tests).difference(*long)) == []
    assert sorted(set(tests).difference(*(selected(c, tests) for c in rows.values() if "-race" in c))) == []
    for name, command in rows.items():
        for pattern in (option(command, "-run"), option(command, "-skip")):
            for one in filter(None, re.sub(r"^\^?\(|\)\$?$", "", pattern).split("|")):
                every = [a for a in command if a not in ("-run", "-skip", pattern)]
                assert selected([*every, "-run", one], tests), f"row {name}: {one} is the name of no test"


def test_every_python_test_is_in_a_row_of_the_night(night):
    rows = dict(night)
    one, rest = rows["python"], rows["stores/python"]
    assert option(one, "-k") == f"not ({option(rest, '-k')})" and one[:-1] == rest[:-1]
    assert {f"{a}/" for a in rest} >= set(table.pytest_roots())


def test_only_listed_tests_are_run_again_and_at_most_twice(monkeypatch):
    tries: list[list[str]] = []
    outcomes = iter([(1, FAILED), (0, "ok  \tlarder/a\t0.1s\n")])

    def fake(command):
        tries.append(command)
        return next(outcomes)

    monkeypatch.setattr(run, "run", fake)
    failed = run.parse_go(1, FAILED)
    assert run.retry("go", failed, ["go", "test"], {})[0] == 1 and tries == []
    known = {"larder/a.TestOne": run.Known("larder/a.TestOne", "2026-01-01", "somebody", "a cause")}
    code, said = run.retry("go", failed, ["go", "test", "-race"], known)
    assert code == 0
    assert said == ["flaky: larder/a.TestOne passed on try 3 (listed since 2026-01-01, somebody: a cause)"]
    assert tries[0] == ["go", "test", "-race", "-count=1", "-run", "^TestOne$", "larder/a"]
    outcomes = iter([(1, FAILED), (1, FAILED), (0, "")])
    assert run.retry("go", failed, ["go", "test"], known)[0] == 1  # a third try is not made
    outcomes = iter([(1, FAILED.replace("no", "WARNING: DATA RACE"))])
    assert run.retry("go", failed, ["go", "test"], known)[0] == 1  # a race ends it


def test_the_list_of_flaky_tests_has_rules():
    line = "larder/a.TestOne | 2026-01-31 | somebody | a cause\n"
    assert list(run.read_known("# a comment\n\n" + line)) == ["larder/a.TestOne"]
    for bad in ("larder/a.TestOne\n", line.replace("2026-01-31", "soon"), line.replace("a cause", "")):
        with pytest.raises(run.ListError):
            run.read_known(bad)
    six = "".join(line.replace("One", str(i)) for i in range(6))
    with pytest.raises(run.ListError, match="6 tests, 5 are allowed"):
        run.read_known(six)
    run.read_known((LANES / "known.txt").read_text())


def test_reading_ends_with_the_command(tmp_path, capsys):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    left = os.open(fifo, os.O_RDWR)  # what is left behind reads it, and holds the output of its parent open
    command = ["sh", "-c", f"exec 3<{fifo}; cat <&3 & printf 'one\ntwo\nthree\n'; exit 3"]
    assert run.run(command) == (3, "one\ntwo\nthree\n")
    assert capsys.readouterr().out == "one\ntwo\n"  # the last line is kept for the end
    os.close(left)
    assert run.run(["sh", "-c", "printf 'a\n\n'"]) == (0, "a\n\n")
    assert run.run(["sh", "-c", "seq 100000"])[1] == "".join(f"{n}\n" for n in range(1, 100001))


SETS = {"house": {"docs"}, "references": {"cmd/larder"}, "race": {"cmd/larder", "internal/prep"}}
SETS |= {"pages": {"test_p.py"}, "raced at night": {"cmd/larder.TestSlow"}}
SETS |= {"rest": {"cmd/larder", "internal/prep"}, "pure": {"dsa"}}


def test_lanes_of_tests():
    cases = {
        "docs.TestX": (["check"], ["check"]),
        "cmd/larder.TestCLIDocs": (["check", "race", "nightly"], ["check", "nightly"]),
        "cmd/larder.TestX": (["test", "race", "nightly"], ["test", "nightly"]),
        "cmd/larder.TestSlow": (["test", "nightly"], ["test", "nightly"]),
        "dsa.TestX": (["test", "nightly"], ["test", "nightly"]),
        "dsa.TestGeneratedX": (["test", "nightly"], ["test", "nightly"]),  # test-pure leaves no name out
        "internal/prep.TestX": (["test", "portable", "race", "nightly"], ["test", "portable", "nightly"]),
        "internal/prep.TestGeneratedX": (["portable", "race", "nightly"], ["portable", "nightly"]),
        "internal/chaostest.TestX": (["faults", "nightly"], ["nightly"]),
        "internal/elsewhere.TestX": (["nightly"], ["nightly"]),  # packages.sh names it for no lane
        "python/tests/test_a.py::test_b": (["test", "nightly"], ["test", "nightly"]),
        "python/tests/test_p.py::test_b": (["pages", "nightly"], ["pages", "nightly"]),
        "examples/test_a.py::test_b": ([], []),
    }
    for name, (lanes, short) in cases.items():
        assert table.lanes_of(name, frozenset(), SETS) == lanes, name
        assert table.lanes_of(name, frozenset({"short"}), SETS) == short, name
        assert table.lanes_of(name, frozenset({"nightly"}), SETS) == ["nightly"]


def go(name: str, *lines: str) -> str:
    return f"func {name}(t *testing.T) {{\n" + "".join(f"\t{line}\n" for line in lines) + "}\n\n"


IF_SHORT = ("if testing.Short() {", "\tt.Skip()", "}")


@pytest.mark.parametrize(
    ("lines", "skips"),
    [
        (["t.Parallel()", "lane.OnlyNightly(t, x)"], "nightly"),
        (["late(t)"], "nightly"),
        (["if !lane.Nightly() {", '\tt.Skipf("%d", 1)', "}"], "nightly"),
        (["for range 3 {", '\tt.Run("a", func(t *testing.T) {', "\t\tslow(t)", "\t})", "}"], "short"),
        (IF_SHORT, "short"),
        (["x := slow(t)"], "short"),
        (["if bare ||", "\t\ttesting.Short() {", "\tt.SkipNow()", "}"], "short"),
        (['if a || testing.Short() && os.Getenv("X") == "" {', "\tt.Skip()", "}"], "short"),
        (["t.Parallel()", "if testing.Short() {", "\treturn", "}"], "short"),
        (["// slow(t)", "// lane.OnlyNightly(t, x)"], ""),
        (["small(t)", "if testing.Short() {", "\treturn", "}", "large(t)"], ""),
        (["if testing.Short() {", "\tn = 3", "}"], ""),
        (["if testing.Short() && large {", "\tt.Skip()", "}"], ""),
        (["if large {", "\tslow(t)", "\tlane.OnlyNightly(t, x)", "}"], ""),
        (['t.Run("a", func(t *testing.T) {', "\tslow(t)", "})", 't.Run("b", func(t *testing.T) {', "})"], ""),
        (["other.slow(t)", "every()", "a.late(t)"], ""),
    ],
)
def test_where_go_tests_leave_themselves_out(lines, skips):
    helpers = go("slow", "t.Helper()", *IF_SHORT) + go("late", "lane.OnlyNightly(t, x)")
    helpers += go("every", "if testing.Short() {", "\treturn 8", "}")
    helpers += "func (w world) small(t *testing.T) { slow(t) }\n"
    one = "func TestLine(t *testing.T) { slow(t); small(t) }\n\n"
    files = {"a/help_test.go": helpers, "a/b_test.go": one + go("TestA", *lines) + go("TestB") + go("TestMain")}
    files["b/b_test.go"] = go("TestA", "slow(t)", "late(t)")  # helpers of another package
    found = dict(table.go_tests(files))
    assert found == {
        "a.TestA": frozenset(skips.split()),
        "a.TestB": frozenset(),
        "a.TestLine": frozenset({"short"}),
        "b.TestA": frozenset(),
    }


@pytest.mark.parametrize(
    ("mark", "night"),
    [
        ("@pytest.mark.nightly", True),
        ('@pytest.mark.nightly("slow")', True),
        ("@late", True),
        ('@pytest.mark.parametrize("a", night(1, 2))', True),
        ('@pytest.mark.parametrize("a", [*night(1), pytest.param(2, marks=[x, pytest.mark.nightly])])', True),
        ('@pytest.mark.parametrize("a", [pytest.param(n, marks=late) for n in range(3)])', True),
        ('@pytest.mark.parametrize(argnames="a", argvalues=night(1))', True),
        ('@pytest.mark.parametrize("a", [0, *night(1)])', False),
        ('@pytest.mark.parametrize("a", [0, pytest.param(1, marks=pytest.mark.nightly)])', False),
        ('@pytest.mark.parametrize("a", [])', False),
        ('@pytest.mark.skipif(not nightly, reason="pytest.mark.nightly")', False),
    ],
)
def test_python_tests_of_the_nightly_lane(mark, night):
    text = f"late = pytest.mark.nightly\n{mark}\ndef test_a(a): ...\ndef test_b(): ...\n"
    text += f"{mark}\nclass TestC:\n    def test_d(self): ...\n"
    text += "class TestE:\n    pytestmark = late\n    def test_f(self): ...\n"
    late = {name.rpartition("::")[2] for name, skips in table.python_tests("t.py", text) if "nightly" in skips}
    assert late == ({"test_a", "test_d", "test_f"} if night else {"test_f"})
    assert [n for n, _ in table.python_tests("t.py", text)] == [f"t.py::test_{n}" for n in "abdf"]
    whole = dict(table.python_tests("t.py", "pytestmark = [a, pytest.mark.nightly]\n" + text))
    assert set(whole.values()) == {frozenset({"nightly"})}
    named = dict(table.python_tests("t.py", 'pytestmark = pytest.mark.filterwarnings("nightly")\ndef test_a(): ...\n'))
    assert named == {"t.py::test_a": frozenset()}


class Tree:
    """What table.py reads, planted: test files of a base and of now, the lists, the packages of the lanes."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        for name in ("gone.txt", "moved.tsv", "race.tsv"):
            monkeypatch.setattr(table, name.partition(".")[0].upper(), folder / name)
            self.write(name, "# since HEAD: text\n")
        for name in ("OUT", "PROMISES", "PROOFS"):
            monkeypatch.setattr(table, name, folder / name)
            self.write(name, "")
        monkeypatch.setattr(table, "packages", {"race": {"b", "prep"}, "rest": {"a", "b"}, "pure": {"dsa"}}.__getitem__)
        monkeypatch.delenv("CI", raising=False)

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def have(self, now, base=None):
        self.monkeypatch.setattr(table, "tree", lambda: now)
        self.monkeypatch.setattr(table, "commit", lambda _: now if base is None else base)


@pytest.fixture
def planted(tmp_path, monkeypatch):
    return Tree(tmp_path, monkeypatch)


def python(name: str, mark: str = "") -> dict[str, str]:
    return {"python/tests/test_a.py": f"{mark}\ndef {name}(): ...\n"}


NIGHT = "@pytest.mark.nightly"
MOVED = [  # at the base, now, the name, the lane by day
    (python("test_x"), python("test_x", NIGHT), "python/tests/test_a.py::test_x"),
    ({"a/a_test.go": go("TestX")}, {"a/a_test.go": go("TestX", "lane.OnlyNightly(t, x)")}, "a.TestX"),
    (
        {"dsa/a_test.go": go("TestX", "late(t)"), "dsa/b_test.go": go("late")},
        {"dsa/a_test.go": go("TestX", "late(t)"), "dsa/b_test.go": go("late", "lane.OnlyNightly(t, x)")},
        "dsa.TestX",
    ),
    (
        {"internal/chaostest/a_test.go": go("TestX", *IF_SHORT)},  # before the lanes it ran in its long form
        {"internal/chaostest/a_test.go": go("TestX", *IF_SHORT)},
        "internal/chaostest.TestX",
    ),
    ({"c/a_test.go": go("TestX")}, {"c/a_test.go": go("TestX")}, "c.TestX"),  # packages.sh names c no longer
]


@pytest.mark.parametrize(("base", "now", "name"), MOVED)
def test_no_test_moves_to_the_night_without_a_reason(planted, capsys, base, now, name):
    planted.have(now, base)
    assert table.main([]) == 1 and f"{name} ran by day at HEAD, and only make nightly" in capsys.readouterr().out
    planted.write("moved.tsv", f"# header\n{name}[a variant]\tnightly\tslow; fast: another\n")
    assert table.main([]) == 1  # a variant is not the test
    planted.write("moved.tsv", f"{name}\tnightly\tslow; fast: another\n")
    assert table.main([]) == 0
    for bad in (f"{name}\tnightly\n", f"{name}\tnightly\t\n", f"{name}\n"):
        planted.write("moved.tsv", bad)
        assert table.main([]) == 1 and f"moved.tsv: {name}: write its lane" in capsys.readouterr().out
    planted.write("moved.tsv", 2 * f"{name}\tnightly\tslow\n")
    assert table.main([]) == 1 and "has two lines" in capsys.readouterr().out
    planted.write("moved.tsv", "")
    planted.have(now, {})  # it never ran by day
    assert table.main([]) == 0
    planted.have(now, {path: text.replace("test_x", "test_y").replace("TestX", "TestY") for path, text in base.items()})
    assert table.main([]) == 1 and "is gone since HEAD without a reason" in capsys.readouterr().out


def test_a_base_with_lanes_has_what_its_faults_ran(planted):
    now = {"internal/chaostest/a_test.go": go("TestX", *IF_SHORT)}
    planted.have(now, {**now, "Makefile": "all:\n\nfaults:\n"})
    assert table.main([]) == 0


def test_ci_needs_the_base(planted, capsys, monkeypatch):
    planted.have({"a/a_test.go": go("TestX")}, {"a/a_test.go": go("TestOld")})
    planted.write("gone.txt", "# since 0123456789abcdef0123456789abcdef01234567: text\n")
    said = "this clone has no commit 0123456789abcdef0123456789abcdef01234567"
    for value, code in {"": 0, "true": 1, "0": 1}.items():
        monkeypatch.setenv("CI", value)
        assert table.main([]) == code and said in capsys.readouterr().out


def test_lines_of_moved_tests_name_tests_of_the_night(planted, capsys):
    planted.have(python("test_x") | {"internal/archtest/a_test.go": go("TestX")})
    for name, said in {
        "python/tests/test_a.py::test_x": "still runs by day, in test",
        "internal/archtest.TestX": "still runs by day, in check",
        "tests/test_a.py::test_x": "does not exist",
        "python/tests/test_a.py::test_y[1]": "does not exist",
    }.items():
        planted.write("moved.tsv", f"{name}\tnightly\tslow\n")
        assert table.main([]) == 1 and f"moved.tsv: {name} {said}" in capsys.readouterr().out
    planted.write("moved.tsv", "python/tests/test_a.py::test_x[large]\tnightly\tslow\n")
    assert table.main([]) == 0  # test_variants_of_moved_tests_run_at_night_alone looks at those


def test_variants_of_moved_tests_run_at_night_alone(request):
    """Of all files that this session collects whole."""
    files = request.config.stash.get(COLLECTED, {})
    if not files or any("::" in a for a in request.config.args):
        pytest.skip("the session has the tests of the nightly lane, or names tests")
    night = {name: late for found in files.values() for name, late in found.items()}
    lines = [line.split("\t")[0] for line in table.MOVED.read_text().splitlines() if not line.startswith("#")]
    variants = [name for name in lines if "[" in name and name.partition("::")[0] in files]
    assert [name for name in variants if name not in night] == [], "moved.tsv names variants that do not exist"
    assert [name for name in variants if not night[name]] == [], "moved.tsv has lines of what runs by day"


@pytest.mark.parametrize("name", ["TestGeneratedX", "TestErrorDocsX"])
def test_no_name_is_left_out_everywhere(planted, capsys, name):
    text = go(name)
    for package, right in {"internal/x": False, "dsa": False, "cmd/larder": True, "docs": True}.items():
        planted.have({f"{package}/a_test.go": text})
        assert table.main([]) == (0 if right else 1)
        assert right or f"{package}.{name}: make test leaves out names" in capsys.readouterr().out
    planted.have({"examples/test_a.py": "def test_x(): ...\n"})
    assert table.main([]) == 1 and "examples/test_a.py::test_x runs in no lane" in capsys.readouterr().out


def test_no_test_disappears_without_a_reason(planted, capsys):
    now, base = {"a/a_test.go": go("TestNew")}, {"a/a_test.go": go("TestOld")}
    planted.have(now, base)
    planted.write("race.tsv", "# comment\ndsa\ta whole package\n")
    planted.write("gone.txt", "# since HEAD: text\n")
    assert table.main([]) == 1 and "a.TestOld is gone since HEAD without a reason" in capsys.readouterr().out
    planted.write("gone.txt", "# since HEAD: text\na.TestOld | renamed TestNew\n")
    assert table.main([]) == 0
    planted.write("gone.txt", "# since HEAD: text\na.TestOld | renamed TestNew\na.TestNew | it went\n")
    assert table.main([]) == 1 and "gone.txt: a.TestNew exists" in capsys.readouterr().out
    planted.write("gone.txt", "# since HEAD: text\na.TestOld | renamed TestNew\n")
    planted.write("race.tsv", "a.TestNew\t\na.TestOther\tslow\n")
    assert table.main([]) == 1
    said = capsys.readouterr().out
    assert "race.tsv: a.TestNew has no reason" in said and "race.tsv: a.TestOther does not exist" in said
    planted.have({f"{d}/a_test.go": go("TestX") for d in "ab"})
    planted.write("gone.txt", "# since HEAD: text\n")
    planted.write("race.tsv", "a.TestX\tslow\n")
    assert table.main([]) == 1 and "race.tsv: a.TestX leaves out b.TestX too" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("`test_e2e.py` test_a, test_b, `test_e2e_more.py` test_c", ""),
        ("`test_e2e.py` test_gone", "G1 Exactly once: make test runs no test_gone of python/tests/test_e2e.py"),
        ("`test_e2e.py` test_late", "G1 Exactly once: make test runs no test_late of python/tests/test_e2e.py"),
        ("`dsa`: TestTwin", "G1 Exactly once needs a row: a test of make test against the real daemon"),
        ("", "G1 Exactly once needs a row: a test of make test against the real daemon"),
    ],
)
def test_each_promise_has_a_test_against_the_real_daemon(row, wrong):
    now = {f"python/tests/test_e2e{t}": ["test", "nightly"] for t in (".py::test_a", ".py::test_b", "_more.py::test_c")}
    now["python/tests/test_e2e.py::test_late"] = ["nightly"]
    rows = f"| [G1 Exactly once](guarantees.md#g1-exactly-once) | {row} |\n" if row else ""
    proofs = f"# Proofs\n\n## Against the real daemon\n| promise | tests |\n|---|---|\n{rows}\n## Exactly once\n"
    found = table.unproved("# Promises\n## G1 Exactly once\nEvery\n", proofs, now)
    assert found == ([f"guarantees-tests.md: {wrong}"] if wrong else [])


def test_no_row_is_of_a_promise_that_is_gone():
    proofs = "\n## Against the real daemon\n| [G8 More](guarantees.md#g8) | `test_e2e.py` test_a |\n"
    assert table.unproved("", proofs, {}) == ["guarantees-tests.md: guarantees.md has no promise G8 More"]
