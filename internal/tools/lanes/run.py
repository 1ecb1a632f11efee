#!/usr/bin/env python3
"""Runs a test runner, and again, alone and at most twice, those of its failed tests that known.txt lists as flaky.

    run.py go [--flags FLAGS] PACKAGE...      go test FLAGS PACKAGE...
    run.py pytest [--python PYTHON] ARG...    PYTHON -m pytest ARG...

known.txt, beside this file, has at most five entries, each with a date and the owner of the cause. Nothing else is run
again: no test that is not listed, no package that does not build, no panic, no report of the race detector, no broken
invariant, no finding of the auditor. A test that passes on a later try is printed under ``flaky:``, before the closing
lines of the runner. The exit code is that of the last tries.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = Path(__file__).with_name("known.txt")
MOST_KNOWN = 5
TRIES = 2  # of a known test, after its first failure

# What a failure must not contain, or it counts however often the test passes afterwards.
# pytest shows the log of a daemon behind an E; there, too, it shows the ledger's word for an epoch that was not exactly
# once. Elsewhere it shows lines of tests that look for that word.
GRAVE = re.compile(
    r"WARNING: DATA RACE|race detected during execution|invariant violated|^\s*panic: |fatal error: "
    r"|\b[1-9][\d,]* findings\b|epochs are not whole|^E .*(?:panic: |(?i:\bviolated\b))",
    re.MULTILINE,
)


class ListError(Exception):
    """known.txt breaks its rules."""


@dataclass(frozen=True)
class Known:
    """A test that may fail now and then. ``name`` is package.Test for Go and file::test for pytest."""

    name: str
    since: str
    owner: str
    cause: str


def read_known(text: str) -> dict[str, Known]:
    """Reads ``name | date | owner | cause`` lines. Lines that begin with # are comments."""
    known: dict[str, Known] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        part = [p.strip() for p in line.split("|")]
        if len(part) != 4 or not all(part):
            raise ListError(f"known.txt:{number}: write: name | date | owner | cause")
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", part[1]):
            raise ListError(f"known.txt:{number}: {part[1]!r} is not a date such as 2026-01-31")
        known[part[0]] = Known(*part)
    if len(known) > MOST_KNOWN:
        raise ListError(f"known.txt has {len(known)} tests, {MOST_KNOWN} are allowed: mend one before you add another")
    return known


@dataclass
class Result:
    """One run of a runner: its output, and which tests failed. ``hard`` says why a failure cannot be tried again."""

    code: int
    output: str
    failed: list[str] = field(default_factory=list)
    hard: str = ""


def parse_go(code: int, output: str) -> Result:
    """Finds the failed tests in the text of ``go test``. A package that fails without a failed test is hard."""
    result = Result(code, output)
    tests: list[str] = []
    for line in output.splitlines():
        if m := re.match(r"--- FAIL: (\S+)", line):
            tests.append(m[1])
        elif m := re.match(r"(?:FAIL|ok  )\t(\S+)", line):
            if line.startswith("FAIL"):
                result.failed += [f"{m[1]}.{t}" for t in tests]
                if not tests:
                    result.hard = f"package {m[1]} failed without a failed test"
            tests = []
    if tests:
        result.hard = f"{tests[0]} failed in a package without an end"
    return judge(result)


def parse_pytest(code: int, output: str) -> Result:
    """Finds the failed tests in the short summary of pytest. Errors of fixtures (the auditor is one) are hard."""
    result = Result(code, output)
    for line in output.splitlines():
        if m := re.match(r"FAILED (\S+::[^\[\s]+(?:\[.*?\](?= - |$))?)", line):
            result.failed.append(m[1])
        elif line.startswith("ERROR "):
            result.hard = line
    if code not in (0, 1):
        result.hard = f"pytest ended with {code}"
    return judge(result)


def judge(result: Result) -> Result:
    """Marks as hard what is grave, and a failure that names no test."""
    if result.code == 0:
        return result
    if m := GRAVE.search(result.output):
        result.hard = f"the output has {m[0].strip()!r}"
    elif not result.failed and not result.hard:
        result.hard = "it failed and named no test"
    return result


PARSERS = {"go": parse_go, "pytest": parse_pytest}


def function_of(test: str) -> str:
    """The name that known.txt has for a test: without parameters."""
    return test.split("[", 1)[0]


def closing(output: str) -> tuple[str, str]:
    """Splits off the last line that is not empty: the runner's own closing line."""
    head, _, last = output.rstrip("\n").rpartition("\n")
    return head + "\n" if head else "", last + "\n"


def run(command: list[str]) -> tuple[int, str]:
    """Runs a command and prints its output as it comes, except the last line. Returns its exit code and all output.

    A process that the command left behind may hold its output open: reading ends with the command.
    """
    come, go = os.pipe()
    output, printed = b"", 0
    with subprocess.Popen(command, stdout=go, stderr=subprocess.STDOUT) as p:
        os.close(go)
        ended = os.pidfd_open(p.pid)
        while True:
            ready, _, _ = select.select([come, ended], [], [])
            if come not in ready:  # it ended, and everything was read
                break
            chunk = os.read(come, 1 << 16)
            if not chunk:
                break
            output += chunk
            last = output.rfind(b"\n", 0, len(output.rstrip(b"\n"))) + 1  # where the last line begins
            sys.stdout.write(output[printed:last].decode(errors="replace"))
            sys.stdout.flush()
            printed = last
    os.close(come)
    os.close(ended)
    return p.returncode, output.decode(errors="replace")


def again(kind: str, test: str, base: list[str]) -> list[str]:
    """The command that runs one failed test alone."""
    if kind == "go":
        package, name = test.rsplit(".", 1)
        return [*base, "-count=1", "-run", f"^{name}$", package]
    return [*base, "-q", "-p", "no:randomly", test]


def retry(kind: str, first: Result, base: list[str], known: dict[str, Known]) -> tuple[int, list[str]]:
    """Runs the failed tests of a first run again, if all of them may be. Returns the exit code and what to print."""
    if first.hard:
        return first.code, [f"not run again: {first.hard}"]
    if unknown := [t for t in first.failed if function_of(t) not in known]:
        return first.code, [f"not run again: {', '.join(unknown)} not listed in {KNOWN.name}"]
    said = []
    for test in first.failed:
        for attempt in range(2, TRIES + 2):
            code, output = run(again(kind, test, base))
            result = PARSERS[kind](code, output)
            if code == 0:
                entry = known[function_of(test)]
                listed = f"listed since {entry.since}, {entry.owner}: {entry.cause}"
                said.append(f"flaky: {test} passed on try {attempt} ({listed})")
                break
            if result.hard or attempt > TRIES:
                return code, [*said, f"not flaky: {test} failed on try {attempt} too. {result.hard}".rstrip()]
    return 0, said


def main(arguments: list[str]) -> int:
    """Runs one lane's runner; see the module's text."""
    if len(arguments) < 2 or arguments[0] not in ("go", "pytest"):
        print(__doc__)
        return 2
    kind, rest = arguments[0], arguments[1:]
    if kind == "go":
        flags = shlex.split(rest[1]) if rest[0] == "--flags" else []
        go = shlex.split(os.environ.get("GO", "go"))  # make test says nice go
        base, wanted = [*go, "test", *flags], rest[2:] if rest[0] == "--flags" else rest
    else:
        python = rest[1] if rest[0] == "--python" else sys.executable
        base, wanted = [python, "-m", "pytest"], rest[2:] if rest[0] == "--python" else rest
    try:
        known = read_known(KNOWN.read_text())
    except ListError as e:
        print(e)
        return 1
    code, output = run([*base, *wanted])
    result = PARSERS[kind](code, output)
    said: list[str] = []
    if code != 0:
        code, said = retry(kind, result, base, known)
    for line in said:
        print(line)
    print(closing(output)[1], end="", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
