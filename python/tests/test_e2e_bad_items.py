"""Items that no batch can have, and datasets that do what they should not, on the real daemon."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from function_items import Items
from pace import eventually
from real import PATIENCE, night

import larder

pytestmark = [pytest.mark.filterwarnings(f"ignore::larder.{w}") for w in ("NotSharedWarning", "WorkerWarning")]


def test_items_unlike_others_are_bad_samples_with_both_types(real):
    odd = {4: np.zeros(3), 8: "text", 12: None}  # none of them is looked at first
    dataset = Items(14, lambda i: {"x": odd.get(i, np.zeros(2, np.float32))})
    loader = real(dataset, batch_size=14, on_error="skip")
    list(loader)
    reasons = {q.id: q.reason for q in loader.quarantined}
    assert "x has dtype float64, and float32 in other items" in reasons[4]
    assert "x is str" in reasons[8] and "NoneType" in reasons[12] and len(reasons) == 3


def test_a_dataset_that_changes_length(real):
    numbers = list(range(10))
    loader = real(numbers, batch_size=2)
    list(loader)
    numbers.append(10)
    with pytest.raises(larder.InvalidError, match="had 10 samples, and has 11 now"):
        iter(loader)


def test_a_dataset_that_grows_while_workers_make_its_items(real):
    """The epoch that runs has the samples that it began with; the next one says what is wrong."""
    numbers = list(range(40))
    loader = real(numbers, batch_size=4, num_workers=2)
    got = []
    for batch in loader:
        numbers.append(-1)
        got += batch.tolist()
    assert got == list(range(40))
    with pytest.raises(larder.InvalidError, match="had 40 samples, and has 50 now"):
        iter(loader)


class Shrinks:
    """Has half of its samples from the moment on that item 10 of an epoch is made, which the other half waits for."""

    def __init__(self, folder):
        self.begun, self.mark = folder / "begun", folder / "mark"

    def __len__(self):
        return 20 if self.mark.exists() else 40

    def __getitem__(self, i):
        if self.begun.exists():  # else it is looked at before the first epoch
            if i == 10:
                self.mark.touch()
            if i >= 20:
                eventually(self.mark.exists)
        if i >= len(self):
            raise IndexError(f"no sample {i}")
        return i


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dataset_that_shrinks_while_workers_make_its_items(real, tmp_path, workers):
    """What is not there any more is left out and named, and nothing hangs."""
    dataset = Shrinks(tmp_path)
    loader = real(dataset, batch_size=4, num_workers=workers, on_error="skip")
    dataset.begun.touch()
    assert [i for batch in loader for i in batch.tolist()] == list(range(20))
    bad = {q.id: q.reason for q in loader.quarantined}
    assert sorted(bad) == list(range(20, 40))
    assert all(f"IndexError: no sample {i}" in why for i, why in bad.items())
    with pytest.raises(larder.InvalidError, match="had 40 samples, and has 20 now"):
        iter(loader)


@pytest.mark.parametrize("method", ["fork", *night("spawn")])
def test_what_items_print_goes_where_the_script_prints(server, tmp_path, method):
    """Lines of both streams, whole, of every item; and the batches are there."""
    script = tmp_path / "prints.py"
    script.write_text(
        "import os, sys, warnings\nimport larder\n"
        "class Prints:\n"
        "    def __len__(self): return 24\n"
        "    def __getitem__(self, i):\n"
        "        print(f'item {i} {os.getpid()}')\n"
        "        sys.stderr.write(f'error {i}\\n')\n"
        "        return i\n"
        "if __name__ == '__main__':\n"
        "    warnings.simplefilter('ignore')\n"
        "    print('script', os.getpid())\n"
        f"    kw = dict(num_workers=2, multiprocessing_context={method!r})\n"
        "    with larder.Loader(Prints(), batch_size=6, timeout=120, **kw) as loader:\n"
        "        print('batches', [b.tolist() for b in loader])\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}  # which writes lines in pieces
    env |= {"PYTHONPATH": str(Path(larder.__file__).parents[1]), "LARDER_SOCKET": server.socket}
    out = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert out.returncode == 0, out.stderr
    lines = out.stdout.splitlines()
    items = [re.fullmatch(r"item (\d+) (\d+)", line) for line in lines]
    rest = [line for line, item in zip(lines, items, strict=True) if item is None]
    script_pid = rest[0].split()[1]
    assert rest == [f"script {script_pid}", f"batches {[list(range(i, i + 6)) for i in range(0, 24, 6)]}"]
    assert {int(m[1]) for m in items if m} == set(range(24)) and script_pid not in {m[2] for m in items if m}
    assert set(out.stderr.splitlines()) == {f"error {i}" for i in range(24)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_tensor_of_a_device_says_cpu(real, torch, workers):
    """Tensors on a GPU cannot be made here; those on *meta* are no data of the CPU either."""
    with pytest.raises(larder.InvalidError, match=r"item 0: the sample is a tensor on meta.*return \.cpu\(\)"):
        real(Items(8, lambda i: torch.zeros(3, device="meta")), batch_size=4, num_workers=workers)
    late = Items(14, lambda i: torch.zeros(3, device="meta" if i == 4 else "cpu"))
    loader = real(late, batch_size=14, num_workers=workers, on_error="skip")
    assert [len(b) for b in loader] == [13]
    (bad,) = loader.quarantined
    assert bad.id == 4 and "a tensor on meta" in bad.reason and ".cpu()" in bad.reason


def test_a_worker_that_opens_cuda_where_there_is_none_is_quoted(real, torch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    loader = real(Items(14, lambda i: torch.zeros(3).cuda() if i == 4 else torch.zeros(3)), batch_size=14,
                  num_workers=2, on_error="skip")
    assert [len(b) for b in loader] == [13]
    (bad,) = loader.quarantined
    assert bad.id == 4 and "CUDA" in bad.reason.upper()


@pytest.mark.nightly
def test_items_of_two_gibibytes_are_refused(real):
    """Their memory is never written, so the test needs none."""
    with pytest.raises(larder.InvalidError, match=r"field 0.*dimension is .* not 2147483648"):
        real(Items(8, lambda i: np.zeros(2 << 30, np.uint8)), batch_size=4)


@pytest.mark.nightly
def test_items_of_two_gibibytes_from_workers_are_refused(real):
    late = Items(14, lambda i: np.broadcast_to(np.zeros(1, np.uint8), (2 << 30 if i == 4 else 5,)))
    loader = real(late, batch_size=14, num_workers=2, on_error="skip")
    assert [len(b) for b in loader] == [13]
    (bad,) = loader.quarantined
    assert bad.id == 4 and "2147483648" in bad.reason


def test_items_that_fork(real, tmp_path):
    """A child that ends at once, and one that outlives its item and holds what the worker has open."""
    os.mkfifo(gate := tmp_path / "gate")

    def make(i):
        pid = os.fork()
        if pid == 0:
            if i == 2:
                open(gate, "w").close()  # until the batches were there
            os._exit(0)
        if i != 2:
            os.waitpid(pid, 0)
        return i

    loader = real(Items(8, make), batch_size=4, num_workers=2)
    assert sorted(int(x) for b in loader for x in b) == list(range(8))
    open(gate).close()


class Deadly:
    """Each item, or the even ones, ends the process that makes it, once the epochs begin."""

    def __init__(self, folder, every):
        self.begun, self.every = folder / "begun", every

    def __len__(self):
        return 24

    def __getitem__(self, i):
        if self.begun.exists() and i % self.every == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        return i


@pytest.mark.filterwarnings("ignore::larder.WorkerWarning")
@pytest.mark.parametrize("workers", [1, 2])
def test_items_that_end_every_worker_are_named_with_signal_and_count(real, server, tmp_path, workers):
    """48 workers die, and the job lives: whoever asks hears which sample it was, which signal, and how often."""
    kw = {"batch_size": 6, "num_workers": workers, "job": f"deadly{workers}"}
    dataset, words = Deadly(tmp_path, 1), r"ended while it worked on it: killed by SIGSEGV; it was tried 2 times"
    loader = real(dataset, on_error="raise", **kw)
    dataset.begun.touch()
    it, bad = iter(loader), []
    for _ in range(4):
        with pytest.raises(larder.SampleError, match=rf"cannot prepare sample \d+: .*{words}") as e:
            next(it)
        bad += [q.id for q in e.value.samples]
    assert sorted(bad) == list(range(24)) and next(it, None) is None
    for asked in (("explain", kw["job"]), ("jobs", "describe", kw["job"])):
        assert re.search(words, " ".join(server.cli(*asked).stdout.split())), asked


@pytest.mark.filterwarnings("ignore::larder.WorkerWarning")
def test_items_that_end_workers_are_skipped(real, server, tmp_path):
    dataset = Deadly(tmp_path, 2)
    loader = real(dataset, batch_size=6, num_workers=2, on_error="skip", job="deadly-skip")
    dataset.begun.touch()
    assert [i for batch in loader for i in batch.tolist()] == list(range(1, 24, 2))
    assert all(q.reason.endswith("killed by SIGSEGV; it was tried 2 times") for q in loader.quarantined)
    assert sorted(q.id for q in loader.quarantined) == list(range(0, 24, 2))
    assert "killed by SIGSEGV" in server.cli("explain", "deadly-skip").stdout


@pytest.mark.filterwarnings("ignore::larder.NotSharedWarning")
def test_a_dataset_whose_first_items_all_end_their_process(real, tmp_path):
    dataset = Deadly(tmp_path, 1)
    dataset.begun.touch()
    with pytest.raises(larder.SampleError, match=r"sample 0: it ended the worker .*killed by SIGSEGV; .* 6 items") as e:
        real(dataset, batch_size=6, num_workers=1, on_error="skip")
    assert len(e.value.samples) == 6
