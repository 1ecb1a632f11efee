"""Tests of what the comparison with peers computes, and one run of it: .venv/bin/python -m pytest bench/py"""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "peers"))

import child
import loaders
import peers
import peers_env
import peers_figures as pf
import peers_probe as probe

OWN = pf.System("larder", "larder", cases=pf.CASES)
SHARED = pf.System("shared", "larder", variant="augmented", cases=pf.CASES, jobs=(4,))
PLAIN = pf.System("plain", "torch")
ODD = pf.System("odd", "tfdata", cases=pf.CASES[:1], differs="one order for all")


# --- environments ---------------------------------------------------------------------------------------------------


def test_versions_are_pinned() -> None:
    assert peers_env.versions("# of 2026\nspdl==0.8.0  # the peer\n\nnumpy==1.24\n") == ["spdl==0.8.0", "numpy==1.24"]
    assert peers_env.shown("ffcv==1.0.2\nnumba==0.60\n") == "ffcv 1.0.2"
    with pytest.raises(ValueError, match="write NAME==VERSION"):
        peers_env.versions("torch>=2\n")


def test_every_system_has_its_program_and_its_list_of_versions() -> None:
    for s in peers.SYSTEMS:
        assert peers.program(s).is_file(), s
        assert not s.environment or peers_env.ENVIRONMENTS[s.environment].pins.is_file(), s
        assert s.mine or s.differs or s.note, f"{s.name}: say what is not the same work, or how it runs"
    for e in peers_env.ENVIRONMENTS.values():
        assert peers_env.versions(e.pins.read_text()), e
    assert len({s.name for s in peers.SYSTEMS}) == len(peers.SYSTEMS)


def test_an_environment_of_other_versions_is_not_there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEERS_HOME", str(tmp_path))
    e = peers_env.ENVIRONMENTS["spdl"]
    assert not peers_env.ready(e)
    e.python.parent.mkdir(parents=True)
    e.python.touch()
    (e.home / "installed.txt").write_text(e.pins.read_text())
    assert peers_env.ready(e)
    (e.home / "installed.txt").write_text("spdl==0.1\n")
    assert not peers_env.ready(e)


def test_the_reason_of_a_failed_installation_is_its_last_error() -> None:
    failed = subprocess.CalledProcessError(1, "pip", stderr="ERROR: no wheel for it\nnote: try again\n")
    assert peers_env.last_line(failed) == "ERROR: no wheel for it"
    assert "pip" in peers_env.last_line(subprocess.CalledProcessError(1, "pip"))


# --- figures --------------------------------------------------------------------------------------------------------


def job(samples: list[int], *marks: tuple[float, float, float]) -> dict[str, object]:
    return {"samples": samples, "marks": [dict(zip(("at", "cpu", "servers"), m, strict=True)) for m in marks]}


def test_an_epoch_of_several_jobs_lasts_from_the_first_to_the_last() -> None:
    of = [job([100, 100, 100], (10, 1, 5), (12, 2, 7), (13, 2.5, 8), (14, 3, 9)),
          job([100, 100, 100], (11, 4, 6), (15, 5, 9), (16, 5.5, 9), (17, 6, 9))]
    r = pf.outcome(of)
    assert r["first"] == pytest.approx(200 / 5)  # 10 to 15
    assert r["later"] == pytest.approx(400 / 5)  # 12 to 17
    assert r["first_per_cpu_second"] == pytest.approx(200 / (1 + 1 + 4))
    assert r["later_per_cpu_second"] == pytest.approx(400 / (1 + 1 + 2))
    assert "later" not in pf.outcome([job([5], (0, 0, 0), (1, 1, 0))])
    with pytest.raises(ValueError, match="unlike numbers"):
        pf.outcome([of[0], job([5], (0, 0, 0), (1, 1, 0))])


def runs() -> pf.Runs:
    def some(*rates: float) -> list[dict[str, float]]:
        return [{"first": x, "later": 2 * x, "first_per_cpu_second": x / 2, "later_per_cpu_second": x} for x in rates]

    return {pf.label("larder", "all fits", 1): some(300, 900, 600), pf.label("larder", "a third fits", 1): some(500),
            pf.label("larder", "all fits", 4): some(1000), pf.label("shared", "all fits", 4): some(3000),
            pf.label("plain", pf.ANY, 1): some(400), pf.label("plain", pf.ANY, 4): some(500),
            pf.label("odd", "all fits", 1): some(1200)}


def test_a_cell_is_of_its_case_or_of_a_system_without_cases() -> None:
    all_, third, nothing = pf.CASES
    assert pf.values(runs(), OWN, all_, 1, "first") == [300, 900, 600]
    assert pf.values(runs(), OWN, third, 1, "first") == [500]
    assert pf.values(runs(), OWN, nothing, 1, "first") == []
    assert all(pf.values(runs(), PLAIN, case, 4, "later") == [1000] for case in pf.CASES)
    assert pf.values(runs(), ODD, third, 1, "first") == []


def test_cells_are_medians_with_their_range() -> None:
    assert pf.cell(runs(), OWN, "all fits", 1, "first") == "600 (300–900) · 300"
    assert pf.cell(runs(), OWN, "a third fits", 1, "later") == "1,000 · 500"
    assert pf.cell(runs(), OWN, "nothing fits", 1, "later") == "–"


def test_the_best_peer_counts_and_the_best_that_does_the_same_work() -> None:
    systems = [OWN, SHARED, PLAIN, ODD]
    every = pf.ratio_row(runs(), systems, "all fits", False)
    same = pf.ratio_row(runs(), systems, "all fits", True)
    assert every[1] == "0.50x (odd)" and same[1] == "1.50x (plain)"
    assert every[3] == same[3] == "2.00x, shared 6.00x (plain)"
    table = pf.case_table(runs(), systems, "all fits")
    assert [r[0] for r in table["rows"]][:4] == ["larder", "shared", "plain", "odd †"]
    assert table["rows"][1][1] == "–"
    assert pf.case_table({}, systems, "all fits")["rows"] == []
    picture = pf.bars(runs(), systems, "all fits")
    assert picture and picture["bars"] == ["larder", "shared", "plain", "odd"]
    assert picture["series"][0]["points"][0] == [0, 600] and picture["series"][0]["low"][0] == 300


def test_memory_of_a_case_is_the_same_for_all() -> None:
    whole = 900 << 20
    assert peers.tier_flags("all fits", whole) == []
    assert peers.tier_flags("a third fits", whole) == ["--set", f"tiers.total={300 << 20}"]
    assert "tiers.decoded=0" in peers.tier_flags("nothing fits", whole)
    by = {s.name: s for s in peers.SYSTEMS}
    assert [peers.cached(by["tf.data, cache()"], c) for c in pf.CASES] == [1, pytest.approx(1 / 3), 0]
    assert [peers.cached(by["tf.data service"], c) for c in pf.CASES] == [1, 0, 0]
    assert {c for s, c, _ in peers.steps(list(peers.SYSTEMS), ["torch", "SPDL"])} == {pf.ANY}
    assert all(n == 4 for _, _, n in peers.steps(list(peers.SYSTEMS), ["augmented"]))
    assert len(peers.steps(list(peers.SYSTEMS), [])) == sum(len(s.cases) * len(s.jobs) for s in peers.SYSTEMS)


# --- crops, and what is read from pixels ----------------------------------------------------------------------------


def test_crops_are_those_of_random_resized_crop() -> None:
    rng, areas = random.Random(1), []
    for _ in range(2000):
        x, y, w, h = child.crop(480, 360, rng)
        assert x >= 0 and y >= 0 and x + w <= 480 and y + h <= 360
        assert 0.74 < w / h < 1.35
        areas.append(w * h / (480 * 360))
    assert min(areas) < 0.09 and 0.42 < np.mean(areas) < 0.46  # large narrow ones do not fit
    assert child.crop(1000, 10, rng)[2:] == (13, 10)


def cropped(draw: object, tmp_path: pathlib.Path, resample: int | None, gap: float | None = None) -> np.ndarray:
    """Crops by Pillow of drawn images; gap: without antialiasing, unless it is None."""
    from PIL import Image

    draw(tmp_path)
    rng, out = random.Random(2), []
    for path in sorted(tmp_path.glob("*/*")):
        with Image.open(path) as image:
            x, y, w, h = child.crop(*image.size, rng)
            small = image.resize((64, 64), resample, (x, y, x + w, y + h), reducing_gap=gap)
            out.append(np.asarray(small)[:, ::-1] if rng.random() < 0.5 else np.asarray(small))
    return np.stack(out)


def test_ramps_tell_crops_and_flips(tmp_path: pathlib.Path) -> None:
    flipped, area, ratio = probe.crops(cropped(probe.draw_ramps, tmp_path, 2))
    assert 0.35 < flipped.mean() < 0.65
    assert area.min() > 0.07 and area.max() < 1.02 and 0.36 < area.mean() < 0.52
    assert 0.72 < ratio.min() and ratio.max() < 1.38


def test_noise_tells_whether_a_resize_filters(tmp_path: pathlib.Path) -> None:
    assert probe.contrast(cropped(probe.draw_noise, tmp_path / "a", 2)) < probe.FILTERED - 0.1
    assert probe.contrast(cropped(probe.draw_noise, tmp_path / "b", 0)) > 0.8
    torch = pytest.importorskip("torch")
    a = torch.randn(1, 1, 640, 640) * 40 + 128
    left = torch.nn.functional.interpolate(a, (64, 64), mode="bilinear", align_corners=False).std() / 40
    assert left > probe.FILTERED + 0.1  # bilinear between four neighbours


def test_colours_tell_which_image_and_so_orders(tmp_path: pathlib.Path) -> None:
    from PIL import Image

    probe.draw_ids(tmp_path)
    paths = sorted(tmp_path.glob("*/*"), key=lambda p: p.name)
    images = np.stack([np.asarray(Image.open(p)) for p in paths])
    assert probe.ids(images) == list(range(probe.IDS))
    a, b = images[::-1], np.roll(images, 5, axis=0)
    said = probe.said_of_orders([np.stack([a, b]), np.stack([b, a])])
    assert said == {"each image once an epoch": "yes", "order": "new each epoch", "order of two jobs": "each its own"}
    said = probe.said_of_orders([np.stack([a, a])] * 2)
    assert said["order"] == "the same each epoch" and said["order of two jobs"] == "one for both"
    twice = np.concatenate([a[:-1], a[:1]])
    assert probe.said_of_orders([np.stack([twice, a])] * 2)["each image once an epoch"] == "no"


# --- a run ----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_two_jobs_of_torch_on_drawn_images(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torchvision")
    loaders.draw(tmp_path / "drawn", 48)
    data = str(tmp_path / "drawn")
    torch = next(s for s in peers.SYSTEMS if s.program == "torch")
    spec = {"data": data, "batch": 16, "crop": 64, "whole": peers.decoded_bytes(data), "epochs": 2, "probe": "",
            "converted": ""}
    results = peers.run(torch, pf.ANY, 2, spec, "")
    assert [r["samples"] for r in results] == [[48, 48]] * 2
    rates = pf.outcome(results)
    assert all(v > 0 for v in rates.values()) and set(rates) >= {"first", "later"}
    assert rates["first_per_cpu_second"] < 1e5, "the workers' processor time is counted"

    class Args:
        images = 48

    missing = {"SPDL": "its environment is not there"}
    found = {pf.label(torch.name, pf.ANY, 1): [rates]}
    result = peers.result_of(found, list(peers.SYSTEMS), Args(), {"absent": missing, "machine": peers.machine()})
    assert any("SPDL" in line for line in peers.lines_of(result))
    shown(json.dumps(result), tmp_path)


def shown(result: str, tmp_path: pathlib.Path) -> None:
    """larder bench report understands a result, where there is a larder."""
    binary = os.environ.get("LARDER_BIN")
    if not binary:
        return
    (tmp_path / "results").mkdir()
    (tmp_path / "results/peers.json").write_text(result)
    page = tmp_path / "report.html"
    subprocess.run([binary, "bench", "report", str(tmp_path / "results"), "--out", str(page)], check=True)
    assert "larder beside its peers" in page.read_text()


def test_rounds_are_added_to_those_of_the_same_commit_only(tmp_path: pathlib.Path) -> None:
    about = {"commit": "abc", "processor": "p", "peers": "torch 1"}
    path = tmp_path / "peers.json"
    assert peers.before(path, about) == {}
    runs = {"1 job, larder, all fits": [{"first": 10.0}]}
    path.write_text(json.dumps({"machine": about | {"date": "any"}, "runs": runs}))
    assert peers.before(path, about) == runs
    for key in about:
        with pytest.raises(SystemExit, match=f"its {key} is {about[key]}, not other; run without --more"):
            peers.before(path, about | {key: "other"})
