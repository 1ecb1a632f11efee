"""Variables that begin with LARDER_ and mean nothing cause one warning, with the name that was meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from real import HERE

import larder
from larder import _environ


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("LARDER_SOKET", "did you mean LARDER_SOCKET?"),
        ("LARDER_TIERS_TOTAL", r"did you mean LARDER_TIERS__TOTAL\? \(two underscores stand for a dot\)"),
        ("LARDER_STATE_DIR", "did you mean LARDER_STATE__DIR?"),
        ("LARDER_LOG_LEVEL", "did you mean LARDER_LOG__LEVEL?"),
        ("LARDER_DECODED", "did you mean LARDER_TIERS__DECODED?"),
        ("LARDER_QUITE_SOMETHING_ELSE", "config show --origin"),
    ],
)
def test_unknown_names_warn_once(name, want, monkeypatch):
    for n in [n for n in os.environ if n.startswith("LARDER_")]:
        monkeypatch.delenv(n)
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(_environ, "_warned", False)
    with pytest.warns(larder.UnknownVariableWarning, match=f"{name} means nothing to larder; .*{want}") as warned:
        _environ.warn_once()
    assert len(warned) == 1
    _environ.warn_once()
    assert len(warned) == 1


def test_known_names_are_not(monkeypatch):
    known = _environ._known()
    names = [
        "LARDER_SOCKET",
        "LARDER_BIN",
        "LARDER_SIM_SEEDS",
        "LARDER_PORT_9464_TCP",
        "LARDER_TIERS__DECODDED",
        "LARDER_HTTP",
        "OTHER",
    ]
    assert _environ.unknown(names, known) == []
    assert [k for k in known if k.startswith("LARDER_LOG__")] and "LARDER_AUDIT_LOG" in known


def test_the_warning_names_the_line_that_makes_the_loader(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import larder\ntry:\n    larder.Loader('imagefolder:/x', batch_size=1)\n"
        "except larder.UnavailableError:\n    print('none')\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("LARDER_")}
    env |= {
        "LARDER_SOCKET": str(tmp_path / "unserved.sock"),
        "LARDER_TIERS_TOTAL": "1GiB",
        "PYTHONPATH": str(HERE.parent),
    }
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "none\n"
    assert (
        f"{script}:3: UnknownVariableWarning: the environment variable LARDER_TIERS_TOTAL means nothing" in done.stderr
    ), done.stderr


def test_the_list_is_one_file():
    here = Path(larder.__file__).parent / "environment.txt"
    assert here.read_bytes() == (HERE.parents[1] / "internal" / "config" / "environment.txt").read_bytes()
