"""The clock that decides: the kernel's in every process of a user, a test's where the test says so."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest
import stepped_clock
from real import HERE, PATIENCE
from stepped_clock import START, SteppedClock

from larder import _clock


@pytest.fixture
def stepped(tmp_path):
    """A clock, and Python processes that follow it by the environment."""
    c = SteppedClock(tmp_path / "c.sock")
    made = []

    def follow(code):
        env = {**os.environ, "PYTHONPATH": str(HERE.parent), "LARDER_CLOCK": c.address}
        env["LARDER_CLOCK_MODULE"] = stepped_clock.__file__
        made.append(subprocess.Popen(
            [sys.executable, "-c", f"from larder import _clock\nimport os, select, time\n{code}"], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ))  # fmt: skip
        return made[-1]

    yield c, follow
    c.close()
    for p in made:
        p.kill()
        p.communicate()


def test_without_the_variables_it_is_the_functions_of_python():
    assert _clock.monotonic is time.monotonic and _clock.sleep is time.sleep
    assert _clock.poll is type(select.poll()).poll
    assert _clock.alarm.func is signal.setitimer and _clock.alarm.args == (signal.ITIMER_REAL,)


def test_only_a_file_of_the_tests_puts_another_one_in_its_place(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "LARDER_CLOCK": f"unix:{tmp_path}/none"}
    command = [sys.executable, "-c", "import larder"]
    p = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert p.returncode == 1 and "is for the tests of larder" in p.stderr and "unset both variables" in p.stderr


def test_a_process_that_follows_is_there_when_a_step_returns(stepped):
    clock, follow = stepped
    p = follow("print(_clock.monotonic(), flush=True)\nwhile input(): print(_clock.monotonic(), flush=True)")
    assert float(p.stdout.readline()) == START / 1e9
    for step in (30, 0.25, 3600):
        before = clock.now
        clock.advance(step)
        print("?", file=p.stdin, flush=True)
        assert float(p.stdout.readline()) == clock.now == before + step


def test_a_step_wakes_who_waits_and_reaches_a_forked_child(stepped):
    clock, follow = stepped
    p = follow(
        "r, w = os.pipe()\npid = os.fork()\n"
        "poller = select.poll()\npoller.register(r, select.POLLIN)\nend = _clock.monotonic() + 30\n"
        "print(os.getpid(), flush=True)\n"
        "while (left := end - _clock.monotonic()) > 0: assert _clock.poll(poller, 1000 * left) == []\n"
        "if pid: os.waitpid(pid, 0)\nprint('over', flush=True)"
    )
    pids = [int(p.stdout.readline()) for _ in range(2)]
    assert pids[0] != pids[1]
    clock.followed(*pids)
    clock.advance(29)
    clock.advance(1)
    assert [p.stdout.readline() for _ in range(2)] == ["over\n"] * 2
    assert p.wait(PATIENCE) == 0


def test_what_can_be_read_ends_a_wait_without_a_step(clock):
    r, w = os.pipe()
    poller = select.poll()
    poller.register(r, select.POLLIN)
    came = []

    def wait():
        while not came:
            came.extend(_clock.poll(poller, 1e6))

    thread = threading.Thread(target=wait)
    thread.start()
    clock.waiting(999.0)
    os.write(w, b"x")
    thread.join(PATIENCE)
    assert came == [(r, select.POLLIN)] and clock.ns == START
    os.close(r)
    os.close(w)


def test_time_passes_once_for_each_wait(clock):
    with clock.passing(100.0, longer=1.0):
        end = _clock.monotonic() + 250.0
        while (left := end - _clock.monotonic()) > 0:
            _clock.poll(select.poll(), 1000 * left)
    assert clock.ns == START + 300 * 10**9
    with clock.passing(100.0, longer=1.0):
        _clock.poll(select.poll(), 10.0)
    assert clock.ns == START + 300 * 10**9, "a short wait ends by itself"


def test_an_alarm_ends_a_process_in_which_no_python_code_runs(stepped):
    clock, follow = stepped
    p = follow(
        "import ctypes\n_clock.kernel_timer()(8.0)\nprint('busy', flush=True)\nctypes.PyDLL(None).sleep(3600)"
    )
    assert p.stdout.readline() == "busy\n"
    clock.armed(p.pid)
    clock.advance(8)  # it cannot say that it is there, and its end counts
    assert p.wait(PATIENCE) == -signal.SIGVTALRM


def test_an_alarm_that_was_taken_back_does_not_ring(stepped):
    clock, follow = stepped
    p = follow(
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: print('rang', flush=True))\n"
        "_clock.alarm(5)\n_clock.alarm(0)\nprint('ready', flush=True)\ninput()\n_clock.monotonic()\n"
        "_clock.alarm(5)\nprint('again', flush=True)\ninput()\nprint('not yet', flush=True)\ninput()"
    )
    assert p.stdout.readline() == "ready\n"
    clock.advance(10)
    print(file=p.stdin, flush=True)
    assert p.stdout.readline() == "again\n"
    clock.armed(p.pid)
    clock.advance(4)
    print(file=p.stdin, flush=True)
    assert p.stdout.readline() == "not yet\n"
    clock.advance(1)
    assert p.stdout.readline() == "rang\n"


def test_an_alarm_counts_from_the_last_look_at_the_clock(stepped):
    """A step that comes between the look and the alarm is one that the alarm was to ring in."""
    clock, follow = stepped
    p = follow(
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: print('rang', flush=True))\n"
        "_clock.monotonic()\nprint('looked', flush=True)\ninput()\n_clock.alarm(5)\ninput()"
    )
    assert p.stdout.readline() == "looked\n"
    clock.advance(5)
    print(file=p.stdin, flush=True)
    assert p.stdout.readline() == "rang\n"


def test_a_process_that_was_killed_does_not_hold_a_step_up(stepped):
    clock, follow = stepped
    p = follow("print('up', flush=True)\ninput()")
    assert p.stdout.readline() == "up\n"
    p.kill()
    clock.advance(5)
