"""Several small items at once: random state, __getitems__, stacks, and what does not wait for a slow item."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading

import numpy as np
import pytest
from real import PATIENCE

import larder
from larder import _bulk, _items, _link, _makers, _nested, _record, _seeds, _stack, _transform, _wire, _worker

pytestmark = [pytest.mark.filterwarnings(f"ignore::larder.{w}") for w in ("NotSharedWarning", "WorkerWarning")]


class Items:
    """A dataset of a function; ``several`` gives it __getitems__."""

    def __init__(self, make, n=1000):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.make(i)


class Several(Items):
    calls: list
    several = None

    def __getitems__(self, indices):
        self.calls.append(list(indices))
        return self.several(indices) if self.several else [self.make(i) for i in indices]


def maker_of(dataset, steps=(), item=None):
    maker = _items.Maker(dataset, steps)
    leaves, structure = _nested.flatten(dataset[0] if item is None else item)
    fields = _record.relax(_record.describe(leaves, structure.names))
    maker.layouts = [_items.Layout(fields, structure)] * (len(steps) + 1)
    return maker


def run_of(n, first=0, last=1):
    key = _bulk.Key(7, 0, first, last, 0)
    return _bulk.Run(1, key, list(range(n)), [3] * n)


def made(maker, run, begun=None):
    """All items of a run, and what stands for those that could not be made, by place."""
    lock, items = threading.Lock(), []
    bulk = _bulk.Bulk(maker, (begun if begun is not None else []).append, lock)
    while run.left:
        error = bulk.make(run, 64)
        items += bulk.items
        run.at += len(bulk.items)
        if error is not None:
            items.append(error)
            run.at += 1
    return items


def one_by_one(maker, run):
    key = run.key
    out = []
    for sample, instance in zip(run.samples, run.instances, strict=True):
        item = None
        for number in range(key.last):
            item = maker.step(item, key.seed, instance, sample, number)
        out.append(item)
    return out


def draw_random(i):
    return [i, random.random() if i > 300 else 0.0]


def draw_numpy(i):
    return [i, float(np.random.normal()) if i % 100 == 99 else 0.0]


def draw_torch(i):
    import torch

    return [i, float(torch.rand(())) if i == 150 else 0.0]


def ask_torch(i):
    import torch

    return [i, float(torch.initial_seed() % 1000) if i > 200 else 0.0]


@pytest.mark.parametrize("kind", [Items, Several])
@pytest.mark.parametrize("make", [draw_random, draw_numpy, draw_torch, ask_torch])
def test_items_that_draw_are_those_of_their_own_state(torch_seen, make, kind):
    dataset = kind(make)
    dataset.calls = []
    maker = maker_of(dataset)
    assert made(maker, run_of(400)) == one_by_one(maker, run_of(400))


@pytest.fixture
def torch_seen(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "initial_seed", torch.initial_seed)
    monkeypatch.setattr(torch.random, "initial_seed", torch.initial_seed)
    _bulk.Still.watch_torch(torch)


def test_random_transforms_have_their_own_state():
    def step(x, rng):
        return x + float(rng.random())

    transform = larder.transform(version=1, random=True)(step)
    maker = maker_of(Items(float), list(_transform.steps([transform])))
    assert made(maker, run_of(100, last=2)) == one_by_one(maker, run_of(100, last=2))


def test_a_getitems_is_asked_for_many_and_marked_as_several(steady):
    dataset = Several(lambda i: i * 3)
    dataset.calls, begun = [], []
    assert made(maker_of(dataset), run_of(300), begun) == [i * 3 for i in range(300)]
    assert sum(map(len, dataset.calls)) == 300 - 8 and len(dataset.calls) < 40  # the first 8 are proven
    assert begun.count(0) == len(dataset.calls)  # several tasks at once: none of them can be blamed


def test_tiny_items_are_made_in_groups(steady, monkeypatch):
    monkeypatch.setattr(_bulk, "_TINY", 1e9)
    monkeypatch.setattr(_bulk, "_QUICK", 1e9)
    begun: list[int] = []
    assert made(maker_of(Items(int)), run_of(1000), begun) == list(range(1000))
    assert len(begun) < 1000 / _bulk._GROUP + 40 and begun.count(0) > 1000 / _bulk._GROUP - 10


def test_a_group_names_the_item_that_does_not_come(steady, monkeypatch):
    monkeypatch.setattr(_bulk, "_TINY", 1e9)
    monkeypatch.setattr(_bulk, "_QUICK", 1e9)
    calls: list[int] = []
    bad = {500: ValueError("bad"), 600: StopIteration(), 601: StopIteration(), 700: SystemExit(3)}

    def make(i):
        calls.append(i)
        if i in bad:
            raise bad[i]
        if i == 800 and calls.count(800) == 1:
            raise TimeoutError  # the time of the group was up
        return i

    items = made(maker_of(Items(make)), run_of(1000))
    assert items == [bad.get(i, i) for i in range(1000)]
    assert calls.count(500) == 1 and calls.count(800) == 2


def test_one_draw_from_each_generator_shows_what_moved(torch_seen):
    torch = pytest.importorskip("torch")
    still = _seeds.Still()
    draws = [
        lambda: random.random(),
        lambda: random.gauss(0, 1),
        lambda: np.random.normal(),
        lambda: np.random.bytes(1),
        lambda: torch.randn(()),
        lambda: random.seed(1),
        lambda: np.random.seed(1),
        lambda: torch.manual_seed(1),
    ]
    for draw in draws:
        for _ in range(2):
            still.begin()
            assert not still.moved() and not still.drew()
        still.begin()
        draw()
        assert still.drew()


def test_the_draw_that_shows_it_works_in_every_mode_of_torch(torch_seen, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(_seeds, "_number", None)
    still = _seeds.Still()
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):  # it is made in the first one
        with mode():
            for _ in range(2):
                still.begin()
                assert not still.drew()
            still.begin()
            torch.rand(1)
            assert still.drew()
    still.begin()
    kept = _seeds._number
    assert not still.drew()
    assert _seeds._number is kept and not kept.is_inference(), "one tensor serves many draws"


def test_arrays_are_asked_for_many():
    text = np.arange(4000).reshape(1000, 4)
    begun = []
    items = made(maker_of(text), run_of(200), begun)
    assert np.array_equal(items, text[:200]) and begun[:8] == list(range(1, 9)) and set(begun[8:]) == {0}


def fails(indices):
    raise OSError("all of them")


def short(indices):
    return [0]


@pytest.mark.parametrize("several", [fails, short])
def test_a_getitems_that_fails_leaves_the_items_to_name_the_bad_one(steady, several):
    def make(i):
        if i == 70:
            raise ValueError("seventy")
        return i

    dataset = Several(make)
    dataset.calls, dataset.several = [], several
    items = made(maker_of(dataset), run_of(200))
    assert isinstance(items[70], ValueError)
    assert [x for i, x in enumerate(items) if i != 70] == [i for i in range(200) if i != 70]
    assert len(dataset.calls) == 1


# ---- stacks


def test_stacks_have_the_values_of_records():
    torch = pytest.importorskip("torch")
    rng = random.Random(1)
    for _ in range(300):
        shape = tuple(rng.randint(0, 3) for _ in range(rng.randint(0, 3)))
        parts = {
            "t": torch.zeros(shape, dtype=rng.choice([torch.float32, torch.int64, torch.bool])),
            "a": np.zeros(shape, rng.choice(["uint8", "float64", "int16"])),
            "n": np.float32(3), "i": 5, "f": 0.5, "b": True,
        }  # fmt: skip
        item = {k: parts[k] for k in rng.sample(list(parts), rng.randint(1, 4))}
        other = {"n": np.float32(4), "i": -6, "f": 1e300, "b": False}
        items = [item, {k: other.get(k, v) for k, v in item.items()}, item]
        if rng.random() < 0.3:
            items = [(x, [x]) for x in items]
        structure = _nested.flatten(items[0])[1]
        columns = _stack.columns(items, structure)
        assert columns is not None
        form, memory = _stack.form(columns), np.full(1 << 14, 255, np.uint8)
        assert form == _record.form(_nested.leaves(items[0], structure))
        places = _record.open_stack(form, 3, memory, 64)
        for column, out in zip(columns, places, strict=True):
            column.write(column.values, out)
        for k, x in enumerate(items):
            for leaf, out in zip(_nested.leaves(x, structure), places, strict=True):
                assert out[k].dtype == leaf.values.dtype and np.array_equal(out[k], leaf.values)


def test_large_tensors_are_copied_one_by_one():
    torch = pytest.importorskip("torch")
    items = [torch.full((_stack._LARGE,), float(i)) for i in range(3)]
    (column,) = _stack.columns(items, _nested.Structure("tensor"))
    out = np.zeros((3, _stack._LARGE), np.float32)
    column.write(column.values, out)
    assert np.array_equal(out, torch.stack(items).numpy())
    with pytest.raises(ValueError, match="unlike shapes"):
        column.write([items[0], items[1][:1], items[2]], out)
    with pytest.raises(RuntimeError):
        column.write([items[0], items[1].requires_grad_(), items[2]], out)


UNLIKE = [
    *([["a", "b"], [1, 2.0], [(1,), (1, 2)], [{"a": 1}, {"b": 1}], [None, None], [1, True]]),
    *([[np.zeros(2), np.zeros(3)], [np.zeros(2), np.zeros(2, "f4")]]),
]


@pytest.mark.parametrize("items", UNLIKE)
def test_items_unlike_each_other_are_no_stack(items):
    kind = _nested.flatten(items[0])[1] if items[0] is not None else _nested.Structure("int")
    assert _stack.columns(items, kind) is None


# ---- what is made does not wait


def service_of(dataset, item=None):
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    there.settimeout(PATIENCE)
    orders = _worker.Orders("", "", ("r",), "c", (), 64, 1.0)
    service = _worker.Service(_link.Link(here), maker_of(dataset, item=item), orders, _items.Clock())
    return service, there


def frames_of(sock, n):
    """The next frames, until they answer n tasks: (type, first task, tasks)."""
    data, found = b"", []
    while sum(f[2] for f in found) < n:
        part = sock.recv(1 << 16)
        assert part
        data += part
        while len(data) >= 16 and len(data) >= 16 + struct.unpack_from("<I", data, 4)[0]:
            _, type_, size, _ = struct.unpack_from("<HHIQ", data)
            first, count = struct.unpack_from("<QI", data, 16)
            found.append((type_, first, count if type_ == _wire.DONES else 1))
            data = data[16 + size :]
    return found


def test_items_do_not_wait_for_a_slow_one():
    slow, go = threading.Event(), threading.Event()

    def make(i):
        if i == 11:
            slow.set()
            assert go.wait(PATIENCE)
        return i

    service, there = service_of(Items(make), 0)
    service.tasks.append(run_of(14))
    threading.Thread(target=lambda: [service.run() for _ in range(14) if service.tasks], daemon=True).start()
    assert slow.wait(PATIENCE)
    service.relieve()
    assert frames_of(there, 11) == [*[(_wire.DONE, k, 1) for k in range(1, 9)], (_wire.DONES, 9, 3)]
    go.set()
    assert sum(f[2] for f in frames_of(there, 3)) == 3
    service.close()
    there.close()


def test_a_single_answer_does_not_wait_for_a_slow_task():
    service, there = service_of(Items(int), 0)
    for _ in range(2):
        service.link.answer(_wire.DONE, b"x" * 24)
    assert service.link.waits  # the second of two that follow each other at once
    service.relieve()
    assert not service.link.waits and len(frames_of(there, 2)) == 2
    service.close()
    there.close()


# ---- interrupts of a script that makes its own items


class Stopped(BaseException):
    pass


STEPS = ["deliver", "answer", "flush", "sent", "popleft", "react", "fail"]


@pytest.mark.parametrize("at", STEPS)
def test_an_interrupt_in_an_answer_ends_the_connection(monkeypatch, at):
    service, there = service_of(Items(lambda i: 1 // i if at == "fail" else i), 0)
    inline = _makers.Inline(service.maker)
    inline.service, inline.orders = service, service.orders

    def stop(*_):
        raise Stopped

    if at == "popleft":
        service.tasks = type("Tasks", (type(service.tasks),), {"popleft": stop})()
    elif at == "sent":
        send = service.link.flush
        monkeypatch.setattr(service.link, "flush", lambda: (send(), stop()))
    else:
        owner = service.link if at in ("answer", "flush") else service
        monkeypatch.setattr(owner, at, stop)
    task = struct.pack("<QQQIIIIQQQ", 1, 0, 0, 0, 0, 0, 1, 0, 0, 0)
    frame = struct.pack("<HHIQ", 1, _wire.TASK, len(task), 0) + task
    if at == "react":
        there.sendall(frame)
    else:
        service.tasks.append(_items.Task(*struct.unpack("<QQQIIIIQQQ", task)))
    with pytest.raises(Stopped):
        inline.step()
    assert inline.service is None and service.link.sock.fileno() < 0
    there.close()


def test_an_interrupt_in_an_item_has_it_made_again():
    tries = []

    def make(i):
        tries.append(i)
        if len(tries) == 1:
            raise Stopped
        return i

    service, there = service_of(Items(make), 0)
    inline = _makers.Inline(service.maker)
    inline.service, inline.orders = service, service.orders
    service.tasks.append(_items.Task(1, 5, 0, 0, 0, 0, 1, 0, 0, 0))
    with pytest.raises(Stopped):
        inline.step()
    assert inline.service is service and len(service.tasks) == 1
    inline.step()
    assert tries == [5, 5] and not service.tasks
    assert frames_of(there, 1) == [(_wire.DONE, 1, 1)]
    inline._drop()
    there.close()


# ---- on the real daemon


class Deadly(Items):
    """Ends its process at one sample, in whatever call."""

    def __getitem__(self, i):
        if i == 333:
            os._exit(3)
        return np.full(4, i)

    def __getitems__(self, indices):
        return [self[i] for i in indices]


def test_the_sample_that_ends_a_process_is_found_among_several(server):
    with larder.Loader(Deadly(None, 600), batch_size=50, num_workers=2, on_error="skip", endpoint=server.socket,
                       shuffle=False, timeout=PATIENCE) as loader:  # fmt: skip
        seen = [int(x) for batch in loader for x in batch[:, 0]]
        assert seen == [i for i in range(600) if i != 333]
        assert [q.id for q in loader.quarantined] == [333]


def test_batches_are_those_of_one_process(server):
    """Whatever is made together, and by whichever worker: as one item after the other."""
    from real import served

    for make in (draw_random, draw_numpy, draw_torch):
        out = []
        for workers in (0, 3):
            with served(
                Items(make, 500), batch_size=32, num_workers=workers, endpoint=server.socket, seed=4, timeout=PATIENCE
            ) as loader:
                out.append([[c.tolist() for c in batch] for batch in loader])
        assert out[0] == out[1]
