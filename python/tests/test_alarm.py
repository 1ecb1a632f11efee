"""The clock of a worker process: when its timers are set, and that an idle worker has none that runs."""

from __future__ import annotations

import threading

import pytest

from larder import _alarm


def clock_of(kind=_alarm.Alarm, kills=None):
    """A clock without its thread and signals; ``kills``: what the kernel's timer is set to."""
    clock = kind.__new__(kind)
    clock._kill_after = (lambda _seconds: None) if kills is None else kills.append
    clock.deadline = clock._seconds = clock._began = clock._set = clock._grace = 0.0
    clock._armed = clock._taken = False
    clock.words = _alarm.Words()
    clock._works = threading.Event()
    return clock


@pytest.fixture
def timers(monkeypatch):
    """What the timer of items is set to."""
    out = []
    monkeypatch.setattr(_alarm._clock, "alarm", out.append)
    return out


@pytest.fixture
def now(monkeypatch):
    out = [100.0]
    monkeypatch.setattr(_alarm._clock, "monotonic", lambda: out[0])
    return out


def test_a_timer_serves_many_tasks(now, timers):
    kills = []
    clock = clock_of(kills=kills)
    for _ in range(100):
        clock.start(10.0)
        now[0] += 0.02
        clock.stop()
    assert timers == [10.0]
    clock.start(10.0)
    now[0] += 8.1
    clock._ring()  # the timer of the first task
    assert timers[1:] == [pytest.approx(1.9)]
    now[0] += 1.9
    with pytest.raises(_alarm.Hung):
        clock._ring()
    clock.stop()
    clock._ring()  # too late: the task is over
    clock.start(10.0)
    clock.stop()
    clock.rest()
    assert timers[2:] == [10.0, 0]
    assert kills == [20.0, 20.0, 0], "the kernel's timer ends with the tasks"
    for act in (clock._runs, lambda: clock.start(10.0), clock._runs, clock.stop, clock._runs, lambda: clock.start(0.0)):
        act()
    assert kills[3:] == [20.0, 20.0, 0, 0], "and is for tasks with a limit alone"
    clock.start(0.0)
    assert len(kills) == 7, "what does not run is not stopped"
    clock.start(10.0)
    assert kills[7:] == [20.0], "although the timer of items still runs for an earlier task"


def test_a_clock_without_a_limit_touches_no_timer(now, timers):
    kills = []
    clock = clock_of(kills=kills)
    for _ in range(100):
        clock.start(0.0)
        for act in (clock._runs, clock.tick, clock.stop, clock._runs, clock.rest, clock._runs):
            act()
        now[0] += 0.3
    assert (kills, timers) == ([], [])


def test_a_clock_that_rests_sets_its_timers_once_a_round(now, timers):
    kills = []
    clock = clock_of(kills=kills)
    for _ in range(100):
        for _ in range(5):
            clock.start(10.0)
            clock.stop()
        clock.rest()
        clock.rest()
    assert kills == [20.0, 0] * 100 and timers == [10.0, 0] * 100


class Woven(_alarm.Alarm):
    """A clock at each of whose steps another thread may come between: ``between`` is called there."""

    def between(self):
        pass

    def _step(self, name):
        self.between()
        return self.__dict__[name]

    deadline = property(lambda self: self._step("_deadline"), lambda self, v: self._put("_deadline", v))
    _armed = property(lambda self: self._step("_fuse"), lambda self, v: self._put("_fuse", v))

    def _put(self, name, value):
        self.between()
        self.__dict__[name] = value


ROUNDS = {  # what the main thread does: tasks with these limits, then whether it rests
    "a task": ((10.0,), True), "a task without a limit": ((0.0,), True), "two tasks": ((10.0, 10.0), True),
    "another limit": ((10.0, 20.0), True), "with and without": ((10.0, 0.0), True), "a task goes on": ((10.0,), False),
    "a limit behind none": ((0.0, 10.0), False), "one in between without": ((10.0, 0.0, 10.0), False),
}  # fmt: skip


def woven():
    """A clock, and the state of its kernel timer, at each step of which ``between`` may run."""
    clock = clock_of(Woven)
    timer = [0.0]

    def kill_after(seconds):
        clock.between()
        timer[0] = seconds
        clock.between()

    clock._kill_after = kill_after
    return clock, timer


def at(clock, place, act):
    """Has ``act`` run at the ``place``-th step from now on, all at once; whether it did is in the list."""
    left, ran = [place], []

    def between():
        left[0] -= 1
        if left[0] == -1:
            clock.between = lambda: None
            act()
            ran.append(True)
            clock.between = between

    clock.between = between
    return ran


def tasks(clock, limits, rests):
    for limit in limits[:-1]:
        clock.start(limit)
        clock.stop()
    clock.start(limits[-1])
    if rests:
        clock.stop()
        clock.rest()


@pytest.mark.parametrize("before", [False, True], ids=["rested", "in a task"])
@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize("inner", ["watch", "main"])
def test_no_timer_runs_in_an_idle_worker_whatever_its_threads_do(now, timers, name, before, inner):
    """The watching thread comes between any two steps of the main thread, and the other way round."""
    places = 0
    while True:
        clock, timer = woven()
        if before:
            clock.start(10.0)
        run = lambda c=clock: ([c.stop()] if before else [], tasks(c, *ROUNDS[name]))  # noqa: E731
        outer, within = (run, clock._runs) if inner == "watch" else (clock._runs, run)
        ran = at(clock, places, within)
        outer()
        if not ran:
            break
        clock.between = lambda: None
        limits, rests = ROUNDS[name]
        if rests:
            assert timer == [0.0], f"step {places}"
        else:
            clock._runs()  # a quarter of a second later
            assert timer == [1.5 * limits[-1] + 5], f"step {places}"
        places += 1
    assert places >= (1 if inner == "main" else 3)


def test_a_task_sets_again_what_the_other_thread_took_back(now, timers):
    """It looks while a worker writes what it made, between two tasks of one round."""
    kills = []
    clock = clock_of(kills=kills)
    clock.start(60.0)
    clock.stop()
    clock._runs()
    assert kills == [95.0, 0]
    clock.start(60.0)
    assert kills == [95.0, 0, 95.0]
    clock._runs()  # it runs
    assert kills[-1] == 95.0
    clock.stop()
    clock.rest()
    assert kills[-1] == 0
    count = len(kills)
    clock._runs()
    assert len(kills) == count
