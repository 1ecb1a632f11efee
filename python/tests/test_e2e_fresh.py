"""No job is given one augmented instance of a sample twice: by bytes, from real processes, across death, take-over,
break and another subset.
"""

from __future__ import annotations

from collections import Counter

import pytest
from real import PATIENCE, digest

import larder

# Continuous parameters: two draws of them never give the same bytes.
OPS = [
    {"name": "RandomResizedCrop", "args": {"size": 32}},
    {"name": "ColorJitter", "args": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.2}},
]
RECIPE = [larder.ops.Compose([op]) for op in OPS]


def given(loader) -> list[tuple[int, str]]:
    """What one epoch gives."""
    return [(i, digest(x)) for images, _, index in loader for x, i in zip(images, index.tolist(), strict=True)]


def assert_fresh(seen: list[tuple[int, str]]) -> None:
    again = [k for k, n in Counter(seen).items() if n > 1]
    assert not again, f"{len(again)} augmented samples came twice"


@pytest.mark.parametrize("share", ["none", "augmented"])
def test_fresh_after_a_take_over(small, server, clients, real, share):
    kw = {"batch_size": 4, "shuffle": True, "seed": 3, "job": f"fresh-{share}", "share": share}
    c = clients(
        server,
        f"imagefolder:{small}",
        epochs=50,
        delay=0.005,
        records=True,
        loader={**kw, "transform": OPS, "timeout": PATIENCE},
    )
    for _ in range(30):  # in the midst of the second epoch
        c.until("batch")
    c.process.kill()
    c.process.wait()
    while (e := c.events.get(timeout=PATIENCE)) is not None:
        c.seen.append(e)
    before = [(i, h) for e in c.seen if e["event"] == "batch" for i, h in e["given"]]
    assert len(before) >= 110
    with_successor = list(before)
    loader = real(f"imagefolder:{small}", transform=RECIPE, return_index=True, **kw)
    for _ in range(2):
        with_successor += given(loader)
    assert_fresh(with_successor)


def test_fresh_after_breaks_and_other_subsets(small, real):
    loader = real(
        f"imagefolder:{small}",
        transform=RECIPE,
        return_index=True,
        batch_size=8,
        shuffle=True,
        seed=4,
        share="augmented",
        job="fresh-broken",
    )
    other = real(
        f"imagefolder:{small}",
        transform=RECIPE,
        return_index=True,
        batch_size=24,
        shuffle=True,
        seed=5,
        share="augmented",
        job="fresh-other",
    )
    seen: list[tuple[int, str]] = []
    theirs: list[tuple[int, str]] = []
    for n in range(6):
        for images, _, index in loader:
            seen += [(i, digest(x)) for x, i in zip(images, index.tolist(), strict=True)]
            if n % 2 == 0 and len(index) and len(seen) % 5 == 2:
                break
        if n == 2:
            loader.set_subset("label < 6")
        if n % 2 == 1:
            theirs += given(other)
    assert_fresh(seen)
    assert_fresh(theirs)
    assert set(seen) & set(theirs), "two jobs of one group share what they augment"
