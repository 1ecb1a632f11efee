"""MixUp and CutMix: values against torchvision's published expressions, distribution, memory, and what is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import larder
from larder import ops
from larder._mix import Mixer, op_of

CASES = Path(__file__).resolve().parents[2] / "internal/prep/fields/testdata/mixing.json"


def mixer(name="MixUp", alpha=1.0, classes=10, seed=7, rank=0):
    op = {"name": name, "args": {"alpha": alpha, "num_classes": classes}}
    return Mixer.of({"transform": [{"name": "ToTensor"}, op], "seed": str(seed)}, rank)


def ks(values, cdf):
    """The Kolmogorov-Smirnov distance from a distribution function."""
    values, n = sorted(values), len(values)
    return max(max(cdf(v) - i / n, (i + 1) / n - cdf(v)) for i, v in enumerate(values))


def limit(n, alpha=1e-5):
    return math.sqrt(-math.log(alpha / 2) / (2 * n))


def batch(rows=5, shape=(3, 8, 6), dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(rows, *shape)).astype(np.float32)
    if dtype == np.uint8:
        images = rng.integers(0, 256, (rows, *shape), dtype=np.uint8)
    return images, rng.integers(0, 10, rows)


@pytest.mark.parametrize("case", json.loads(CASES.read_text()), ids=lambda c: c["says"])
def test_fields_are_those_that_the_daemon_mixes(case):
    """Of recipes with several Fields ops, too; internal/prep/fields/mix_test.go reads the same cases."""
    spec = {"transform": [*case["before"], case["op"]], "seed": "1"}
    if case["image"] is None:
        with pytest.raises(larder.InvalidError, match="mixes images and labels"):
            Mixer.of(spec, 0, case["fields"])
    else:
        found = Mixer.of(spec, 0, case["fields"]).fields
        assert (found.image, found.label) == (case["image"], case["label"])


def test_mixup_has_torchvisions_values(torch):
    m = mixer(alpha=0.4)
    for step in range(30):
        images, labels = batch(rows=1 + step % 6, seed=step)
        got, got_labels, index = m.mix(("image", "label", "index"), [images, labels, labels], False, 3, step)
        lam = m.draw(3, step, 8, 6).share
        x, y = torch.from_numpy(images), torch.nn.functional.one_hot(torch.from_numpy(labels), num_classes=10).float()
        want = x.roll(1, 0).mul_(1.0 - lam).add_(x.mul(lam))
        assert np.array_equal(got, want.numpy())
        assert np.array_equal(got_labels, y.roll(1, 0).mul_(1.0 - lam).add_(y.mul(lam)).numpy())
        assert got_labels.dtype == np.float32 and np.array_equal(index, labels) and index is not labels


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("hwc", [False, True])
def test_cutmix_has_torchvisions_values(torch, dtype, hwc):
    m = mixer("CutMix", alpha=0.7)
    cut = 0
    for step in range(40):
        images, labels = batch(rows=4, shape=(8, 6, 3) if hwc else (3, 8, 6), dtype=dtype, seed=step)
        got, got_labels = m.mix(("image", "label"), [images, labels], hwc, 0, step)
        share, (left, top, right, bottom) = m.draw(0, step, 8, 6)
        x = torch.from_numpy(images.transpose(0, 3, 1, 2).copy() if hwc else images)
        want = x.clone()
        want[..., top:bottom, left:right] = x.roll(1, 0)[..., top:bottom, left:right]
        assert np.array_equal(got.transpose(0, 3, 1, 2) if hwc else got, want.numpy()) and got.dtype == dtype
        assert share == 1.0 - (right - left) * (bottom - top) / 48
        y = torch.nn.functional.one_hot(torch.from_numpy(labels), num_classes=10).float()
        assert np.array_equal(got_labels, y.roll(1, 0).mul_(1.0 - share).add_(y.mul(share)).numpy())
        cut += share < 1
    assert cut > 10


@pytest.mark.parametrize("alpha", [0.2, 0.999, 1.0, 2.0, 30.0])
def test_the_share_follows_its_beta_distribution(alpha):
    n = 6000
    shares = [mixer(alpha=alpha, seed=5).draw(i // 100, i % 100, 9, 9).share for i in range(n)]
    # The distribution function, summed up over the logit, where the density has no poles.
    at = np.linspace(-200 / min(alpha, 1), 200 / min(alpha, 1), 400_001)
    tail = np.logaddexp(0, -np.abs(at))  # -log of the larger one of x and 1 - x
    density = np.exp(-alpha * (2 * tail + np.abs(at)))
    total = np.cumsum(density) / density.sum()

    def cdf(x):
        return float(np.interp(math.log(x / (1 - x)), at, total)) if 0 < x < 1 else float(x >= 1)

    inner = [s for s in shares if 1e-6 < s < 1 - 1e-6]  # shares are float32
    edges = cdf(1e-6), cdf(1 - 1e-6)
    assert ks(inner, lambda x: (cdf(x) - edges[0]) / (edges[1] - edges[0])) < limit(len(inner))
    expected = (edges[1] - edges[0]) * n
    assert abs(len(inner) - expected) <= 5 * math.sqrt(max(expected * (1 - expected / n), 0)) + 5


def test_the_middle_of_a_box_is_anywhere():
    m, n = mixer("CutMix"), 8000
    middles = Counter()
    for i in range(n):
        share, (left, top, right, bottom) = m.draw(0, i, 1000, 1000)
        if left > 0 and right < 1000:
            middles[(left + right) // 2 * 4 // 1000] += 1
        assert 0 <= left <= right <= 1000 and 0 <= top <= bottom <= 1000 and 0 <= share <= 1
    assert len(middles) == 4 and abs(middles[1] - middles[2]) < 5 * math.sqrt(2 * middles[1])
    assert abs(middles[0] - middles[3]) < 5 * math.sqrt(2 * middles[0])


def test_draws_follow_from_seed_epoch_step_and_rank_alone():
    one = mixer()
    seen = {one.draw(e, s, 9, 9).share for e in range(3) for s in range(3)}
    seen |= {mixer(seed=8).draw(0, 0, 9, 9).share, mixer(rank=1).draw(0, 0, 9, 9).share}
    assert len(seen) == 11
    assert mixer().draw(2, 1, 9, 9) == one.draw(2, 1, 9, 9)
    # These very numbers: a new release must not draw others, or a resumed epoch would change.
    assert mixer(alpha=0.2).draw(1, 2, 9, 9).share == pytest.approx(0.018366083, abs=1e-6)
    assert mixer("CutMix").draw(1, 2, 90, 80) == (pytest.approx(1 - 31 * 40 / 7200), (0, 5, 31, 45))


def test_memory_is_used_again_when_its_arrays_are_gone():
    m = mixer()
    images, labels = batch()

    def mix():
        return m.mix(("image", "label"), [images, labels], False, 0, 0)[0]

    a = mix()
    part = a[1:, 0][..., 3:]
    kept, at = part.copy(), a.ctypes.data
    del a
    b = mix()
    b[:] = 0
    assert np.array_equal(part, kept) and b.ctypes.data != at  # the slice keeps its memory
    del part, b
    places = {mix().ctypes.data for _ in range(10)}
    assert len(places) == 1
    held = [mix() for _ in range(5)]
    assert len({x.ctypes.data for x in held}) == 5


def test_a_label_beyond_num_classes_is_named():
    with pytest.raises(larder.InvalidError, match="label 9, and num_classes is 3") as e:
        mixer(classes=3).mix(("image", "label"), [batch()[0], np.array([1, 9, 0, 2, 2])], False, 0, 0)
    assert e.value.subject == "num_classes"


def test_only_the_last_op_mixes():
    assert op_of([]) is None and op_of([{"name": "ToTensor"}]) is None
    assert Mixer.of({"transform": [{"name": "ToTensor"}]}, 0) is None and Mixer.of({}, 0) is None
    assert op_of(ops.recipe([ops.ToTensor(), ops.CutMix(num_classes=4)])) == {
        "name": "CutMix",
        "args": {"alpha": 1.0, "num_classes": 4},
    }
