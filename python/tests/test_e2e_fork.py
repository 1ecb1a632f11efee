"""Batches that a forked child holds, against the real daemon: it has them as they were at the fork, whatever the
parent takes afterwards.
"""

from __future__ import annotations

import hashlib
import os
import signal

import numpy as np
import pytest

import larder


def mark(arrays) -> str:
    return hashlib.blake2b(b"".join(np.asarray(a).tobytes() for a in arrays), digest_size=8).hexdigest()


class Child:
    """A forked child that looks at arrays once the parent says so, and says what it saw."""

    def __init__(self, look) -> None:
        self.orders, orders = os.pipe()
        answers, self.answers = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(orders)
                os.close(answers)
                os.read(self.orders, 1)
                os.write(self.answers, look().encode())
            finally:
                os._exit(0)
        os.close(self.orders)
        os.close(self.answers)
        self.orders, self.answers = orders, answers

    def says(self) -> str:
        os.write(self.orders, b"g")
        with open(self.answers, encoding="utf-8") as f:
            text = f.read()
        os.close(self.orders)
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0
        return text


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("ahead", [0, 5])
def test_a_forked_child_keeps_the_batch_that_it_holds(real, small, request, output, ahead):
    if output == "torch":
        request.getfixturevalue("torch")
    loader = real(
        f"imagefolder:{small}", batch_size=4, shuffle=True, job=f"forked-{output}-{ahead}", return_index=True,
        transform=[larder.ops.Resize((32, 32)), larder.ops.Normalize("imagenet")], output=output,
    )  # fmt: skip
    it = iter(loader)
    for _ in range(ahead):  # the batches after the first few are built ahead, on the board
        next(it)
    held = [next(it)]
    was = mark(held[0])
    child = Child(lambda: mark(held[0]))
    ids = held[0][-1].tolist()
    held.clear()
    rest = [i for *_, index in it for i in index.tolist()]  # every slot is filled again
    assert child.says() == was
    assert len(rest) == 72 - 4 * (ahead + 1) and not set(rest) & set(ids), "the parent has the rest of the epoch"
    assert sum(1 for _ in loader) == 18 and loader._shared.copies == 0, "no slot stays taken"


def test_images_of_their_own_size_and_a_grandchild(real, small):
    loader = real(f"imagefolder:{small}", batch_size=6, job="forked-ragged", return_index=True)
    it = iter(loader)
    held = list(next(it))

    def seen() -> str:
        return mark([*held[0], *held[1:]])

    def look() -> str:
        held[0][0][:] += 1  # a child's arrays are its own
        other = Child(seen)
        held[0][0][:] -= 1
        return other.says() + seen()

    was = seen()
    child = Child(look)
    held.clear()
    for _ in it:
        pass
    said = child.says()
    assert said[16:] == was and said[:16] != was, "each process has the batch as it was at its fork"


def test_a_child_that_ends_or_iterates_takes_nothing_from_its_parent(real, small):
    loader = real(f"imagefolder:{small}", batch_size=4, shuffle=True, job="forked-ends", return_index=True)
    it = iter(loader)
    held = list(next(it))
    was, seen = mark([*held[0], *held[1:]]), held[-1].tolist()

    def look() -> str:
        held.clear()  # its end is no end of the parent's batch
        try:
            next(it)
        except larder.StaleError as e:
            return str(e)
        return ""

    ends, killed = Child(look), Child(lambda: "")
    assert "made in process" in ends.says()
    os.kill(killed.pid, signal.SIGKILL)
    os.waitpid(killed.pid, 0)
    assert mark([*held[0], *held[1:]]) == was
    held.clear()
    seen += [i for *_, index in it for i in index.tolist()]
    assert sorted(seen) == list(range(72))
