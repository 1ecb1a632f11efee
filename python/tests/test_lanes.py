"""The lanes' own tools (internal/tools/lanes): what is run again, what never is, and which tests a lane has."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

LANES = Path(__file__).resolve().parents[2] / "internal" / "tools" / "lanes"


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
    command = ["sh", "-c", f"cat <{fifo} & printf 'one\ntwo\nthree\n'; exit 3"]
    assert run.run(command) == (3, "one\ntwo\nthree\n")
    assert capsys.readouterr().out == "one\ntwo\n"  # the last line is kept for the end
    os.close(left)
    assert run.run(["sh", "-c", "printf 'a\n\n'"]) == (0, "a\n\n")
    assert run.run(["sh", "-c", "seq 100000"])[1] == "".join(f"{n}\n" for n in range(1, 100001))


def test_lanes_of_tests():
    go = "func TestA(t *testing.T) {\n\tlane.OnlyNightly(t, x)\n}\n\nfunc TestB(t *testing.T) {\n}\n"
    go += "\nfunc TestMain(m *testing.M) {\n}\n"
    assert dict(table.go_tests("a/b_test.go", go)) == {"a.TestA": True, "a.TestB": False}
    python = "@pytest.mark.nightly\ndef test_a(): ...\ndef test_b(): ...\nclass TestC:\n    def test_d(self): ...\n"
    found = dict(table.python_tests("t.py", python))
    assert found == {"t.py::test_a": True, "t.py::test_b": False, "t.py::test_d": False}
    assert all(on for _, on in table.python_tests("t.py", "pytestmark = pytest.mark.nightly\n" + python))
    sets = {"house": {"docs"}, "references": {"cmd/larder"}, "race": {"cmd/larder"}}
    sets |= {"pages": {"test_p.py"}, "raced at night": {"cmd/larder.TestSlow"}}
    for name, lanes in {
        "docs.TestX": ["check"],
        "cmd/larder.TestCLIDocs": ["check", "race", "nightly"],
        "cmd/larder.TestX": ["test", "race", "nightly"],
        "cmd/larder.TestSlow": ["test", "nightly"],
        "dsa.TestX": ["test", "nightly"],
        "internal/chaostest.TestX": ["faults", "nightly"],
        "python/tests/test_a.py::test_b": ["test", "nightly"],
        "python/tests/test_p.py::test_b": ["pages", "nightly"],
    }.items():
        assert table.lanes_of(name, False, sets) == lanes
        assert table.lanes_of(name, True, sets) == ["nightly"]


def test_no_test_disappears_without_a_reason(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone.txt"
    monkeypatch.setattr(table, "GONE", gone)
    monkeypatch.setattr(table, "OUT", tmp_path / "lanes.tsv")
    monkeypatch.setattr(table, "tree", lambda: {"a_test.go": "func TestNew(t *testing.T) {\n}\n"})
    monkeypatch.setattr(table, "commit", lambda _: {"a_test.go": "func TestOld(t *testing.T) {\n}\n"})
    monkeypatch.setattr(table, "packages", lambda _: {"b"})
    monkeypatch.setattr(table, "RACE", tmp_path / "race.tsv")
    table.RACE.write_text("# comment\ndsa\ta whole package\n")
    gone.write_text("# since HEAD: text\n")
    assert table.main([]) == 1 and ".TestOld is gone since HEAD without a reason" in capsys.readouterr().out
    gone.write_text("# since HEAD: text\n.TestOld | renamed TestNew\n")
    assert table.main([]) == 0
    gone.write_text("# since HEAD: text\n.TestOld | renamed TestNew\n.TestNew | it went\n")
    assert table.main([]) == 1 and "gone.txt: .TestNew exists" in capsys.readouterr().out
    gone.write_text("# since HEAD: text\n.TestOld | renamed TestNew\n")
    table.RACE.write_text(".TestNew\t\na.TestOther\tslow\n")
    assert table.main([]) == 1
    said = capsys.readouterr().out
    assert "race.tsv: .TestNew has no reason" in said and "race.tsv: a.TestOther does not exist" in said
    monkeypatch.setattr(table, "tree", lambda: {f"{d}/a_test.go": "func TestX(t *testing.T) {\n}\n" for d in "ab"})
    table.RACE.write_text("a.TestX\tslow\n")
    assert table.main([]) == 1 and "race.tsv: a.TestX leaves out b.TestX too" in capsys.readouterr().out
