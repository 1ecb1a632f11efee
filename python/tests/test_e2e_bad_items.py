"""Items that no batch can have, and datasets that do what they should not, on the real daemon."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import larder

pytestmark = [pytest.mark.filterwarnings(f"ignore::larder.{w}") for w in ("NotSharedWarning", "WorkerWarning")]


class Items:
    """A dataset of a function."""

    def __init__(self, n, make):
        self.n, self.make = n, make

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        return self.make(i)


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


def test_items_of_two_gibibytes_are_refused(real):
    """Their memory is never written, so the test needs none."""
    with pytest.raises(larder.InvalidError, match=r"field 0.*dimension is .* not 2147483648"):
        real(Items(8, lambda i: np.zeros(2 << 30, np.uint8)), batch_size=4)
    late = Items(14, lambda i: np.broadcast_to(np.zeros(1, np.uint8), (2 << 30 if i == 4 else 5,)))
    loader = real(late, batch_size=14, num_workers=2, on_error="skip")
    assert [len(b) for b in loader] == [13]
    (bad,) = loader.quarantined
    assert bad.id == 4 and "2147483648" in bad.reason


def test_items_that_fork(real):
    """A child that ends at once, and one that outlives its item and holds what the worker has open."""

    def make(i):
        pid = os.fork()
        if pid == 0:
            if i == 2:
                time.sleep(2)
            os._exit(0)
        if i != 2:
            os.waitpid(pid, 0)
        return i

    loader = real(Items(8, make), batch_size=4, num_workers=2)
    assert sorted(int(x) for b in loader for x in b) == list(range(8))
