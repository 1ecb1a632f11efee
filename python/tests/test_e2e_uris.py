"""Paths that hold what means something in a uri or a shell: through the client, the commands, the journal and a daemon
that is killed and started again.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from real import digest, draw, pillow
from s3 import pack

import larder

pillow()

NAMES = [
    "a space  and two",
    "übung 日本 \U0001f600",
    "e\u0301 decomposed",
    "{a,b} {0..3} {",
    "what?x=1&y",
    "a::b",
    "part #1",
    "50% of %20 %2F",
    "'quoted' \"twice\" $HOME `id` \\ *",
    "s3:colon",
    "~",
    "-o",
]
PACKED = [n for n in NAMES if "?" not in n and "::" not in n]


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, Path]:
    """A folder for each name, with a folder of images, tars and lines, each with other labels."""
    drawn = draw(tmp_path / "drawn", 2, 3)
    out = {}
    for i, name in enumerate(NAMES):
        folder = out[name] = tmp_path / "sets" / name
        folder.mkdir(parents=True)
        shutil.copytree(drawn, folder / "images" / name)
        pack(drawn, folder / name, 2, name.replace("{", "{{").replace("}", "}}") + "-{}.tar")
        lines = [json.dumps({"x": 100 * i + k}) for k in range(6)]
        (folder / name / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return out


def uris(sets: dict[str, Path]) -> dict[str, str]:
    """What is read: uri by job."""
    out = {}
    for i, (name, folder) in enumerate(sets.items()):
        out[f"images-{i}"] = f"imagefolder:{folder}/images/{name}"
        if name in PACKED:
            out[f"tars-{i}"] = f"wds:{folder}/{name}"
            out[f"tar-{i}"] = f"wds:{folder}/{name}/{name}-1.tar"
            out[f"lines-{i}"] = f"jsonl:{folder}/{name}/{name}.jsonl"
    return out


@pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
def test_odd_paths_are_read_across_a_restart(sets, lives, tmp_path, monkeypatch):
    d = lives()
    monkeypatch.chdir(tmp_path / "sets")
    jobs = uris(sets)
    loaders, steps, got = {}, {}, {}
    for job, uri in jobs.items():
        given = uri
        if int(job.rpartition("-")[2]) % 3 == 0:  # a relative path means the same
            given = uri.replace(f":{tmp_path}/sets/", ":", 1)
            assert given != uri
        loaders[job] = larder.Loader(
            given, batch_size=2, job=job, return_index=True, prefetch=1, endpoint=d.socket, epochs=1
        )
        steps[job] = iter(loaders[job])
        got[job] = [seen(next(steps[job]))]
    d.restart()
    for job in jobs:
        got[job] += [seen(b) for b in steps[job]]
    with larder.Loader(jobs["images-0"], batch_size=1, return_index=True, endpoint=d.socket, job="plain") as loader:
        first = [digest(x[0]) for x, _, _ in loader]
    for job, uri in jobs.items():
        whole = [x for batch in got[job] for x in batch]
        n = 3 if job.startswith("tar-") else 6
        assert [i for i, *_ in whole] == list(range(n)), uri
        if job.startswith("lines"):
            assert [x for _, x in whole] == [100 * int(job[6:]) + k for k in range(6)], uri
        elif job.startswith("images"):
            assert [x for _, _, x in whole] == first, uri
        else:
            assert {x for _, _, x in whole} <= set(first), uri
    listed = json.loads(d.daemon.cli("dataset", "ls", "-o", "json").stdout)
    assert {x["uri"] for x in listed["datasets"]} == set(jobs.values())
    for x in loaders.values():
        x.close()
    for job, uri in jobs.items():
        assert json.loads(d.daemon.cli("dataset", "inspect", uri, "-o", "json").stdout)["dataset"]["uri"] == uri
        if not job.startswith(("images-", "lines-")):  # the commands find a dataset in one way
            continue
        d.daemon.cli("dataset", "verify", uri)
        d.daemon.cli("dataset", "stats", uri)
        d.daemon.cli("dataset", "rm", uri)


def seen(batch):
    """Id and value, or id, label and digest, of each sample of a batch."""
    if isinstance(batch[0], dict):
        fields, ids = batch
        return list(zip(ids.tolist(), np.asarray(fields["x"]).tolist(), strict=True))
    return [(i, y, digest(x)) for x, y, i in zip(*batch, strict=True)]


@pytest.mark.parametrize("name", ["what?x=1&y", "a::b"])
def test_packed_paths_that_a_uri_cannot_hold_are_refused_with_words(name, sets, server):
    folder = sets[name]
    for uri in (f"wds:{folder}/{name}", f"jsonl:{folder}/{name}/{name}.jsonl"):
        with pytest.raises(larder.Error) as e:
            larder.Loader(uri, batch_size=2, endpoint=server.socket)
        assert "link" in str(e.value), e.value
        out = server.cli("dataset", "inspect", uri, check=False)
        assert out.returncode not in (0, 1) and "link" in out.stderr, out.stderr
    (folder.parent / "plain").symlink_to(folder / name)  # what the message says to do
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", larder.DatasetWarning)
        with larder.Loader(f"wds:{folder.parent}/plain", batch_size=2, endpoint=server.socket) as loader:
            assert sum(len(labels) for _, labels in loader) == 6
