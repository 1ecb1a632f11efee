"""Properties of samples in subset expressions, against the real daemon and files of the formats' own writers."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from real import PATIENCE, Daemon, formats

import larder

HERE = Path(__file__).resolve()

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")

EXPRESSIONS = {
    "width >= 100": lambda r: r["width"] >= 100,
    "width % 7 in (0, 3)": lambda r: r["width"] % 7 in (0, 3),
    "split == 'train' and width < 200": lambda r: r["split"] == "train" and r["width"] < 200,
    "split ~ 'te*' or not width in [0, 300)": lambda r: r["split"] == "test set" or not 0 <= r["width"] < 300,
    "ratio > 3.5": lambda r: r["ratio"] is not None and r["ratio"] > 3.5,
    "ratio != 2": lambda r: r["ratio"] != 2,
    "ok == true and ratio <= 6": lambda r: r["ok"] and r["ratio"] is not None and r["ratio"] <= 6,
}


def ids(real, uri, expr, **more):
    """The samples that an epoch gives, in order."""
    loader = real(uri, batch_size=5, subset=expr, return_index=True, **more)
    out = [i for batch in loader for i in batch[-1].tolist()]
    loader.close()
    return out


def test_golden_expressions_select_what_the_values_say(real, golden):
    expressions_select(real, golden / "properties")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_expressions_select_what_the_values_say(real, tmp_path, seed):
    script = HERE.parent / "property_files.py"
    subprocess.run([formats(), "-W", "ignore", script, tmp_path / "out", str(seed)], check=True, timeout=600)
    expressions_select(real, tmp_path / "out")


def expressions_select(real, out):
    """Compares the expressions with what property_files.py wrote of the values."""
    rows = json.loads((out / "want.json").read_text())
    for uri, (prefix, names) in json.loads((out / "uris.json").read_text()).items():
        scheme, _, rest = uri.partition(":")
        tried = 0
        for expr, fits in EXPRESSIONS.items():
            used = re.findall(r"\b(width|split|ratio|ok)\b", expr)
            if not set(used) <= set(names):
                continue
            want = [i for i, r in enumerate(rows) if fits(r)]
            written = re.sub(r"\b(width|split|ratio|ok)\b", rf"{prefix}\1", expr)
            assert ids(real, f"{scheme}:{out}/{rest}", written) == want, (uri, written)
            tried += 1
        assert tried >= 3
    for uri, expressions in json.loads((out / "own.json").read_text()).items():
        scheme, _, rest = uri.partition(":")
        for expr, want in expressions.items():
            assert len(want) < len(rows)
            if want:
                assert ids(real, f"{scheme}:{out}/{rest}", expr) == want, (uri, expr)


def table(path, n):
    rows = "".join(f"{i},{i * 3},{'train' if i % 4 else 'val'}\n" for i in range(n))
    path.write_text("name,width,split\n" + rows)
    return f"csv:{path}"


def test_an_epoch_of_a_property_goes_on_after_the_daemon_was_killed(tmp_path):
    uri, expr = table(tmp_path / "a.csv", 200), "split == 'train' and width >= 60"
    want = [i for i in range(200) if i % 4 and i * 3 >= 60]
    folder = tmp_path / "daemon"

    def load(socket):
        return larder.Loader(
            uri, endpoint=socket, batch_size=6, subset=expr, shuffle=True, seed=5, job="a", timeout=PATIENCE,
            return_index=True,
        )  # fmt: skip

    first = Daemon(folder)
    loader = load(first.socket)
    seen = []
    for _, (_, index) in zip(range(9), loader, strict=False):
        seen += index.tolist()
    state = loader.state_dict()
    first.kill()
    loader.close()
    second = Daemon(folder)
    again = load(second.socket)
    again.load_state_dict(state)
    for _, index in again:
        seen += index.tolist()
    again.close()
    second.stop()
    assert sorted(seen) == want


def test_errors_name_the_properties(real, tmp_path):
    uri = table(tmp_path / "a.csv", 20)
    with pytest.raises(larder.Error, match="name, width, split") as e:
        real(uri, batch_size=4, subset="widht > 3")
    assert 'did you mean "width"?' in str(e.value)
    with pytest.raises(larder.Error, match="holds whole numbers"):
        real(uri, batch_size=4, subset="width == 'wide'")
