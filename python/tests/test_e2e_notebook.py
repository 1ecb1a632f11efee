"""A notebook: cells that are run again and again in one process, and what they print."""

from __future__ import annotations

import importlib
import sys
import traceback

import pytest
from real import night

import larder

MAKE = "train = larder.Loader(uri, batch_size=BATCH, job='nb', endpoint=endpoint, shuffle=True)\n"
FIT = "def fit(loader):\n    for n, (images, labels) in enumerate(loader):\n        if n == 2:\n            END\n"


def run(cell, names):
    """A cell as a notebook runs it: an exception is shown, and its traceback kept."""
    try:
        exec(compile(cell, "cell", "exec"), names)
    except ValueError as e:
        sys.last_type, sys.last_value, sys.last_traceback = type(e), e, e.__traceback__
        traceback.format_exc()


ENDS = ["break", "return", "raise ValueError('oops')", "pass"]


@pytest.mark.parametrize(
    ("job", "end"),
    [
        *(("job='nb'", end) for end in ENDS),
        ("seed=1", "break"),
        *night(*(("seed=1", end) for end in ENDS[1:])),
    ],
)
def test_a_cell_that_is_run_again(end, job, real, server, small):
    names = {"larder": larder, "uri": f"imagefolder:{small}", "endpoint": server.socket}
    try:
        for n in range(10):
            make = MAKE.replace("BATCH", str(4 + n % 3)).replace("job='nb'", job)  # edited meanwhile
            run(FIT.replace("END", end) + make + "fit(train)\n", names)
            assert names["train"].batch_size == 4 + n % 3
        sys.last_traceback = sys.last_value = None
        assert sum(len(labels) for _, labels in names["train"]) == 72
    finally:
        sys.last_traceback = sys.last_value = None
        names["train"].close()


def test_an_older_one_gives_way_while_it_is_iterated(real, small):
    """A cell that is run again while its iterator lives; a newer one does not give way to an older one."""
    old = real(f"imagefolder:{small}", batch_size=4, job="held here")
    it = iter(old)
    next(it)
    new = real(f"imagefolder:{small}", batch_size=4, job="held here")
    newer = iter(new)
    next(newer)
    with pytest.raises(larder.StaleError, match="a newer Loader of this process took its job"):
        next(it)
    third = real(f"imagefolder:{small}", batch_size=5, job="held here", subset="label < 4")  # edited
    assert sum(len(y) for _, y in third) == 36
    with pytest.raises(larder.StaleError):
        next(newer)
    first, second = (real(f"imagefolder:{small}", batch_size=4, job="two") for _ in range(2))
    it = iter(second)
    next(it)
    with pytest.raises(larder.RankHeldError, match=r"held by a newer Loader of this process \(pid \d+\).*replace=True"):
        iter(first)
    assert sum(1 for _ in it) == 17


def test_a_module_that_is_reloaded(server, small, tmp_path, monkeypatch):
    (tmp_path / "cell_module.py").write_text(
        "import larder\n"
        f"loader = larder.Loader('imagefolder:{small}', batch_size=8, job='reloaded', endpoint={server.socket!r})\n"
        "it = iter(loader)\nnext(it)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("cell_module")
    try:
        for _ in range(3):
            importlib.reload(module)
        assert sum(1 for _ in module.it) == 8
    finally:
        module.loader.close()


def test_what_is_printed_is_short(real, small):
    loader = real(f"imagefolder:{small}", batch_size=4, job="printed")
    for _ in loader:
        pass
    assert repr(loader) == "<larder.Loader job='printed' rank=0/1 epoch=1>"
    assert repr(loader.dataset) == f"<larder dataset 'imagefolder:{small}': 72 samples>"
    stats = loader.stats()
    assert repr(stats.job).startswith("<larder job 'printed': live, 72 samples, epoch ")
    assert "job 'printed': live" in repr(stats) and "18 batches here" in repr(stats) and len(repr(stats)) < 300


def test_an_epoch_that_did_not_begin_is_not_shown(real, server, small):
    loader = real(f"imagefolder:{small}", batch_size=4, job="two epochs")
    for _ in range(2):
        for _ in loader:
            pass
    loader.close()
    with real(f"imagefolder:{small}", batch_size=4, job="who asks") as other:
        ended = [j for j in other.stats().jobs if j.name == "two epochs"] or [None]
    out = server.cli("jobs", "describe", "two epochs").stdout
    assert "abandoned" not in out and out.count("complete") == 2, (out, ended)
