"""Tables and other files of records against the real daemon: every field of every sample is what the format's own
reader gives, images as pixels.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from golden_files import cut, wanted
from real import formats
from table_told import value

import larder

HERE = Path(__file__).resolve()

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The folder of what table_files.py wrote for three seeds."""
    out = tmp_path_factory.mktemp("tables")
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(out / "home")}
    script = [formats(), "-W", "ignore", HERE.parent / "table_files.py", out, "1,2,3"]
    subprocess.run(script, check=True, timeout=600, env=env)
    return out


def wanted_of(told):
    """Of an image file its pixels, of others themselves."""
    return {k: v[3] if len(v) > 3 else v for k, v in told.items()}


def samples(loader):
    """What is told of every sample, in the order of the dataset, by id."""
    out = {}
    for batch, index in loader:
        for k, i in enumerate(index.tolist()):
            assert i not in out
            out[i] = {name: value(column[k]) for name, column in batch.items()}
    return [out[i] for i in sorted(out)]


def test_golden_fields_are_those_of_the_formats_own_readers(real, golden):
    """Of the set "tables": small files of all the kinds that table_files.py writes."""
    sets = wanted(golden / "tables")
    assert len(sets) == 45
    for told in sets:
        scheme, _, rest = told["uri"].partition(":")
        loader = real(f"{scheme}:{golden}/tables/{rest}", batch_size=3, shuffle=True, seed=1, return_index=True)
        assert cut(samples(loader)) == [wanted_of(x) for x in told["rows"]], told["name"]
        loader.close()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fields_are_those_of_the_formats_own_readers(real, tables, seed):
    found = sorted((tables / str(seed)).glob("*.uri"))
    assert len(found) >= 7
    for path in found:
        want = [wanted_of(x) for x in json.loads(path.with_suffix(".json").read_text())]
        loader = real(path.read_text(), batch_size=7, shuffle=seed > 1, seed=seed, return_index=True)
        assert samples(loader) == want, path
        loader.close()


@pytest.mark.nightly
def test_fields_over_https_are_those_of_the_formats_own_readers(tables, over_https):
    """Each dataset of a seed once, from nginx; what needs more than .arrow files of a folder cannot be read there."""
    out = tables / "1"
    load = over_https(out)
    found = sorted(p for p in out.glob("*.uri") if p.stem != "hf_indices")
    assert {p.read_text().partition(":")[0] for p in found} == {"fasta", "hf", "lmdb", "mds", "parquet", "tfrecord"}
    for path in found:
        want = [wanted_of(x) for x in json.loads(path.with_suffix(".json").read_text())]
        loader = load(path.read_text().replace(f":{out}/", ":"), batch_size=32, shuffle=True, return_index=True)
        assert samples(loader) == want, path
        loader.close()


def test_classes_have_the_names_of_the_dataset(real, golden):
    for told in wanted(golden / "tables"):
        if told["name"] not in ("hf", "parquet_hf"):
            continue
        scheme, _, rest = told["uri"].partition(":")
        dogs = cut(value(np.int64(1)))
        want = [wanted_of(x) for x in told["rows"] if x["label"] == dogs]
        loader = real(f"{scheme}:{golden}/tables/{rest}", batch_size=5, subset="class == 'dog'", return_index=True)
        assert 0 < len(want) < len(told["rows"]) and cut(samples(loader)) == want
        loader.close()


def test_a_damaged_record_costs_its_own_sample(real, golden, tmp_path):
    folder = tmp_path / "tfrecord"
    shutil.copytree(golden / "tables" / "tfrecord", folder)
    path = sorted(folder.iterdir())[0]
    loader = real(f"tfrecord:{folder}", batch_size=4, on_error="skip", return_index=True)
    stat = path.stat()
    b = bytearray(path.read_bytes())
    b[200] ^= 1  # in the first record
    path.write_bytes(b)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    got = sorted(i for _, index in loader for i in index.tolist())
    assert got == list(range(1, len(got) + 1))
    (bad,) = loader.quarantined
    assert bad.id == 0
    assert "checksum" in bad.reason


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("hf:{0}/hf", "has the splits train, test"),
        ("hf:{0}/hf?split=val", "has the splits train, test"),
        ("hf:{0}", "no state.json"),
        ("lmdb:{0}", "no data.mdb"),
        ("lmdb:{0}/lmdb_text?value=jpeg", "not one of image, audio, bytes"),
        ("parquet:{0}/parquet?fields=id,nothing", 'names "nothing"'),
        ("parquet:{0}/nowhere/*.parquet", "no file fits"),
        ("tfrecord:{0}", "has no *.tfrecord"),
        ("tfrecord:{0}/parquet/part-0.parquet", "the checksum of its length is wrong"),
    ],
)
def test_what_cannot_be_read_is_refused_with_words(real, golden, uri, words):
    with pytest.raises(larder.Error) as e:
        real(uri.format(golden / "tables"), batch_size=4)
    assert words in str(e.value)
