"""The Loader's arguments: checks, messages, and what of them travels to the daemon."""

from __future__ import annotations

import inspect
import json
import os
import pickle
from pathlib import Path

import pytest

import larder
from larder import _checks

CROP = [larder.ops.CenterCrop((8, 10))]


def ids_of(loader):
    return [int(i) for *_, index in loader for i in index]


def test_signature_is_the_promised_one():
    names = [p for p in inspect.signature(larder.Loader.__init__).parameters if p not in ("self", "unknown")]
    assert (
        names
        == (
            "dataset batch_size shuffle sampler batch_sampler seed subset transform job order drop_last even rank "
            "world_size output fields return_index share on_error prefetch epochs skip_empty endpoint timeout "
            "on_daemon_loss replace "
            "name version cache num_workers collate_fn ragged pad_value pad_multiple sample_timeout worker_memory "
            "worker_init_fn multiprocessing_context persistent_workers native"
        ).split()
    )


def test_unknown_keyword_names_the_nearest():
    with pytest.raises(TypeError, match="did you mean 'batch_size'"):
        larder.Loader("fake:10", batchsize=3)
    with pytest.raises(TypeError, match="the arguments are batch_size"):
        larder.Loader("fake:10", batch_size=3, zzzzzzz=1)
    with pytest.raises(TypeError, match="batch_size"):
        larder.Loader("fake:10")


@pytest.mark.parametrize(
    ("kw", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2.5}, "must be an integer"),
        ({"batch_size": True}, "must be an integer"),
        ({"batch_size": 70000}, "65536"),
        ({"seed": -1}, "seed is -1"),
        ({"shuffle": "no"}, "shuffle must be True or False"),
        ({"replace": "no"}, "replace must be True or False, not 'no'"),
        ({"replace": None}, "replace must be True or False"),
        ({"order": "strict"}, "needs shuffle=True"),
        ({"order": "stratifed", "shuffle": True}, "did you mean 'stratified'"),
        ({"share": "augmentd"}, "did you mean 'augmented'"),
        ({"on_error": "ignore"}, "'raise', 'skip', 'substitute'"),
        ({"output": "Torch"}, "did you mean 'torch'"),
        ({"even": "repeat"}, "'drop', 'none'"),
        ({"fields": "image"}, r"write fields=\('image',\)"),
        ({"fields": ("imag",)}, "did you mean 'image'"),
        ({"fields": ()}, "at least one"),
        ({"prefetch": 0}, "prefetch is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": "x"}, "timeout is 'x'"),
        ({"job": ""}, "1 to 256 printable"),
        ({"job": "a\nb"}, "1 to 256 printable"),
        ({"subset": 5}, "must be an expression"),
        ({"transform": [lambda x: x]}, "cannot run in the daemon"),
        ({"transform": larder.ops.HFlip}, r"write RandomHorizontalFlip\(...\)"),
        ({"transform": [larder.ops.Resize(float("nan"))]}, "not a finite number"),
        ({"transform": {"op": "Resize"}}, "is not of the form"),
        ({"rank": 1}, "without world_size="),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"endpoint": "tcp://host:1"}, "not a Unix socket"),
        ({"endpoint": "/" + "x" * 200}, "107 bytes"),
    ],
)
def test_bad_arguments(daemon, kw, words):
    with pytest.raises(larder.InvalidError, match=words) as e:
        larder.Loader("fake:10", **{"batch_size": 4, "endpoint": daemon.path, **kw})
    assert isinstance(e.value, ValueError) and e.value.subject
    assert daemon.jobs == {}


def test_bad_uri(daemon, tmp_path, monkeypatch):
    with pytest.raises(larder.InvalidError, match="a uri must be a string"):
        larder.Loader(tmp_path, batch_size=1, endpoint=daemon.path)
    with pytest.raises(larder.InvalidError, match=f'write "imagefolder:{tmp_path}"'):
        larder.Loader(str(tmp_path), batch_size=1, endpoint=daemon.path)
    with pytest.raises(larder.NotFoundError):
        larder.Loader("nothing", batch_size=1, endpoint=daemon.path)
    monkeypatch.chdir(tmp_path)
    from larder._checks import absolute

    assert absolute("imagefolder:a/../b") == f"imagefolder:{tmp_path}/b"
    assert absolute("imagefolder:///x/y") == "imagefolder:///x/y"
    assert absolute("name") == "name"
    assert absolute("imagefolder:s3://b/x") == "imagefolder:s3://b/x", "the daemon says what to do about it"


def test_spec_on_the_wire(load, daemon):
    load(
        "fake:100",
        batch_size=4,
        shuffle=True,
        seed=2**64 - 1,
        subset="label < 5",
        transform=[larder.ops.Resize(9)],
        job="a",
        order="fixed",
        drop_last=True,
        even="none",
        rank=1,
        world_size=2,
        share="augmented",
        on_error="skip",
        prefetch=3,
        epochs=7,
    )
    assert daemon.jobs["a"]["spec"] == {
        "name": "a",
        "dataset": "fake:100",
        "subset": "label < 5",
        "batchSize": 4,
        "shuffle": True,
        "order": "fixed",
        "seed": "18446744073709551615",
        "dropLast": True,
        "even": "none",
        "worldSize": 2,
        "numNodes": 1,
        "share": "augmented",
        "onError": "skip",
        "prefetch": 3,
        "epochs": 7,
        "transform": [{"name": "Resize", "args": {"size": 9, "interpolation": "bilinear", "antialias": True}}],
    }
    assert daemon.hellos[0] == {"client": f"python/{larder.__version__}", "abiMin": 1, "abiMax": 1, "pid": os.getpid()}


def test_errors_of_the_daemon_carry_everything(load):
    with pytest.raises(larder.InvalidError) as e:
        load(subset="lable < 5")
    assert e.value.reason == "SUBSET_SYNTAX" and e.value.subject == "subset" and e.value.hint == "did you mean label?"
    lines = str(e.value).splitlines()
    assert lines[1:] == ["  lable < 5", "  ^", "(did you mean label?)"]
    with pytest.raises(larder.InvalidError, match="selects none of 100") as e:
        load(subset="label > 10")
    assert e.value.reason == "SUBSET_EMPTY"
    again = pickle.loads(pickle.dumps(e.value))
    assert type(again) is larder.InvalidError and str(again) == str(e.value) and again.reason == "SUBSET_EMPTY"


def test_one_name_two_specs(load):
    first = load(job="same", seed=1)
    load(job="same", seed=1)
    # no iterator uses the job: a state may be loaded that replaces it, and nothing else works
    other = load(job="same", seed=2)
    for use in (iter, len, larder.Loader.stats):
        with pytest.raises(larder.InvalidError, match="another spec") as e:
            use(other)
        assert e.value.reason == "ALREADY_EXISTS"
    assert first.job == "same"


def test_rank_held(load, monkeypatch):
    a, b = load(job="same"), load(job="same")
    it = iter(b)
    next(it)
    monkeypatch.setattr("larder._connection._RANK_HELD_PATIENCE", 0.1)
    with pytest.raises(larder.RankHeldError, match=rf"held by a newer Loader of this process \(pid {os.getpid()}\)"):
        iter(a)
    b.close()
    assert sum(1 for _ in a) == 13


def test_two_ranks_are_disjoint_and_complete(load):
    a = load(job="two", rank=0, world_size=2, return_index=True, shuffle=True)
    b = load(job="two", rank=1, world_size=2, return_index=True, shuffle=True)
    assert len(a) == len(b) == 7
    x, y = ids_of(a), ids_of(b)
    assert sorted(x + y) == list(range(100)) and len(x) == len(y)


def test_default_names(load, monkeypatch):
    monkeypatch.setattr("larder._ranks._ordinals", iter(range(10)))
    train, val = load("fake:100"), load("fake:100")
    assert train.job.endswith("/100/0") and val.job.endswith("/100/1")
    assert f":{os.getpid()}/" in train.job
    assert sum(len(y) + len(v) for (_x, y), (_u, v) in zip(train, val, strict=True)) == 200  # both at once


def test_attach_to_a_registered_job(load, daemon):
    spec = load(job="night", subset="label < 5", batch_size=5).job and daemon.jobs["night"]["spec"]
    loader = load("job:night", return_index=True)
    assert loader.job == "night" and loader.batch_size == 5 and loader.num_samples == 50 and len(loader) == 10
    assert len(ids_of(loader)) == 50 and spec["batchSize"] == 5
    with pytest.raises(larder.InvalidError, match="batch_size 5, not 6"):
        load("job:night", batch_size=6)
    with pytest.raises(larder.InvalidError, match="seed, subset cannot"):
        load("job:night", subset="label < 5", seed=1)
    with pytest.raises(larder.InvalidError, match="registered with world_size 1"):
        load("job:night", rank=0, world_size=2)
    with pytest.raises(larder.NotFoundError, match="no job 'day'") as e:
        load("job:day")
    assert "larder jobs register" in e.value.hint


def test_job_yaml_and_python_names_agree():
    """Every field of JobSpec that Python sends exists in the proto, in its JSON name."""
    proto = (Path(__file__).resolve().parents[2] / "proto/larder/v1/larder.proto").read_text()
    body = proto.split("message JobSpec {")[1].split("\n}")[0]
    names = {
        line.split("=")[0].split()[-1]
        for line in body.splitlines()
        if "=" in line and not line.strip().startswith("//")
    }
    camel = {n.split("_")[0] + "".join(p.title() for p in n.split("_")[1:]) for n in names}
    from larder import _arguments, _ranks

    given = _arguments.Arguments("d", batch_size=1, skip_empty=True)
    spec = _arguments.job_spec("n", "d", _ranks.Place(0, 1), given)
    of_records = ("cache", "schema", "indices", "sampleTimeout", "advance")
    assert set(spec) - {"replica"} <= camel and camel - set(spec) == {"replica", *of_records}
    json.dumps(spec)


@pytest.mark.parametrize("order", ["blocks", "blocks()", "block(4)", "blocks 4"])
def test_blocks_are_named_with_their_number(order: str) -> None:
    with pytest.raises(larder.InvalidError, match=r"blocks\("):
        _checks.order_name(order, True)


def test_an_order_of_blocks_goes_to_the_daemon() -> None:
    assert _checks.order_name("blocks(16)", True) == "blocks(16)"
    assert _checks.order_name("blocks(16, 4MiB)", True) == "blocks(16, 4MiB)"
    with pytest.raises(larder.InvalidError, match="shuffle"):
        _checks.order_name("blocks(16)", False)
