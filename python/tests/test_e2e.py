"""The real daemon, real processes, real images: what issue and guarantees promise, seen from the clients' own records.

Needs the binary (LARDER_BIN, or ../bin/larder) and Pillow. Photographs come from LARDER_TESTDATA (default ../shared/data beside the
repository); without them images are drawn. Nothing here asserts a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import eventually
from real import HERE, PATIENCE, Client, Daemon, draw, find_binary, listing, photographs

import larder

Image = pytest.importorskip("PIL.Image", reason="Pillow draws and checks the images of these tests")

CROP = {"name": "RandomResizedCrop", "args": {"size": 32}}
FLIP = {"name": "RandomHorizontalFlip", "args": {}}
CLASSES, EACH = 8, 9


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """72 small drawn images in 8 classes."""
    return draw(tmp_path_factory.mktemp("small"), CLASSES, EACH)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One daemon for the tests that do not need one of their own."""
    d = Daemon(tmp_path_factory.mktemp("server"), config="tiers: {total: 64MiB}\nmemory: {limit: 1GiB}\n")
    yield d
    d.stop()


@pytest.fixture
def load(server):
    """Loaders on the shared daemon."""
    with contextlib.ExitStack() as stack:

        def make(uri, **kw):
            kw.setdefault("endpoint", server.socket)
            kw.setdefault("timeout", PATIENCE)
            return stack.enter_context(larder.Loader(uri, **kw))

        yield make


@pytest.fixture
def private(tmp_path):
    """Daemons with a configuration of their own."""
    made: list[Daemon] = []

    def make(config: str = "", *arguments: str) -> Daemon:
        d = Daemon(tmp_path / f"daemon{len(made)}", *arguments, config=config)
        made.append(d)
        return d

    yield make
    for d in made:
        d.stop()


@pytest.fixture
def clients(tmp_path):
    """Client processes, ended whatever happens."""
    made: list[Client] = []

    def make(daemon: Daemon, uri: str, **orders) -> Client:
        made.append(Client(tmp_path / "clients", daemon, uri, **orders))
        return made[-1]

    yield make
    for c in made:
        c.close()


def ids_of(loader):
    return [i for *_, index in loader for i in index.tolist()]


def digest(image) -> str:
    return hashlib.blake2b(np.ascontiguousarray(image), digest_size=8).hexdigest()


# ---- the promise: four processes on overlapping subsets

SUBSETS = [  # subset, what it means, batch size, seconds between batches
    ("label < 50", lambda i, label: label < 50, 16, 0.0),
    ("label >= 20", lambda i, label: label >= 20, 33, 0.002),
    (None, lambda i, label: True, 64, 0.01),
    ("id % 2 == 0", lambda i, label: i % 2 == 0, 7, 0.004),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = photographs()
    if folder is None:
        folder = draw(tmp_path_factory.mktemp("drawn"), 70, 10)
        print("e2e: 700 drawn images (the photographs of LARDER_TESTDATA are absent)")
    else:
        print(f"e2e: the photographs of {folder}")
    return folder, listing(folder)


def four(images, private, clients, epochs):
    """A daemon whose decoded tier holds everything, and the four clients, waiting to start together."""
    folder, files = images
    decoded = 0
    for path, _ in files:
        with Image.open(path) as im:
            decoded += im.width * im.height * 3
    encoded = sum(os.path.getsize(p) for p, _ in files)
    mib = [decoded * 3 // 2 // 2**20 + 64, encoded * 3 // 2 // 2**20 + 32]
    sizes = f"total: {sum(mib)}MiB, decoded: {mib[0]}MiB, encoded: {mib[1]}MiB, augmented: 0MiB"
    config = f"tiers: {{{sizes}}}\nmemory: {{limit: {sum(mib) + 3072}MiB}}\n"
    daemon = private(config)
    made = [
        clients(
            daemon, f"imagefolder:{folder}", epochs=epochs, files=files, compare=True, wait=True, delay=delay,
            loader={"subset": subset, "batch_size": batch, "shuffle": True, "seed": n, "job": f"job-{n}", "timeout": PATIENCE},
        )
        for n, (subset, _, batch, delay) in enumerate(SUBSETS)
    ]  # fmt: skip
    wanted = [{i for i, (_, label) in enumerate(files) if member(i, label)} for _, member, _, _ in SUBSETS]
    for c, want, (_, _, batch, _) in zip(made, wanted, SUBSETS, strict=True):
        ready = c.until("ready")
        assert ready["samples"] == len(want) and ready["batches"] == -(-len(want) // batch)
    for c in made:
        c.go()
    return daemon, made, wanted


def check_records(records, want, epochs, parity):
    assert [e["epoch"] for e in records] == list(range(epochs))
    for e in records:
        assert len(e["ids"]) == len(want) and set(e["ids"]) == want, "each id of the subset exactly once"
        assert e["labels_right"] and e["compared"] == len(want)
        if parity:
            assert e["worst"] == 0, "every decoded pixel equals Pillow's"
        assert e["mean"] <= 1.0
    orders = [tuple(e["ids"]) for e in records]
    assert len(set(orders)) == epochs, "every epoch has an order of its own"


def test_four_processes_exactly_once_decoded_once(images, private, clients):
    daemon, made, wanted = four(images, private, clients, 3)
    with larder.Loader(f"imagefolder:{images[0]}", batch_size=1, endpoint=daemon.socket, timeout=PATIENCE, job="onlooker") as onlooker:
        records = [c.finish() for c in made]
        stats = onlooker.stats()
    for r, want in zip(records, wanted, strict=True):
        check_records(r, want, 3, stats.parity)
    union = len(set.union(*wanted))
    first = max(r[0]["decodes"] for r in records)  # when the last one had finished its first epoch
    assert first <= 1.02 * union
    assert stats.totals.decodes == first, "no decode after the first epoch"
    assert stats.totals.source_reads <= 1.02 * union
    assert stats.totals.samples_delivered == 3 * sum(map(len, wanted))
    print(f"e2e: {stats.totals.decodes} decodes and {stats.totals.source_reads} reads for a union of {union}, "
          f"{stats.totals.samples_delivered} samples delivered, decoder {stats.decoder}")  # fmt: skip
    for job in stats.jobs:
        if job.name.startswith("job-"):
            done = [a for a in job.epochs if a.epoch < 3]  # the daemon began a fourth one, for a client that left
            assert [a.state for a in done] == ["complete"] * 3, job
            assert all(a.delivered == a.subset and a.dropped == a.quarantined == 0 for a in done)
    assert all(t.used <= t.budget for t in stats.tiers)


def test_sigkill_of_one_leaves_the_others_complete(images, private, clients):
    daemon, made, wanted = four(images, private, clients, 2)
    victim = made[2]
    victim.until("batch", epoch=0)
    victim.until("batch", epoch=0)
    victim.process.kill()  # in the middle of a batch of its first epoch
    for n in (0, 1, 3):
        check_records(made[n].finish(), wanted[n], 2, False)
    victim.process.wait()
    eventually(lambda: daemon.segments() == 0, PATIENCE)  # its ring is freed


# ---- what a user sees


def test_ids_keys_labels_and_pixels(small, load):
    files = listing(small)
    loader = load(f"imagefolder:{small}", batch_size=10, return_index=True)
    assert len(loader) == 8 and loader.num_samples == 72
    stats = loader.stats()
    for images, labels, index in loader:
        for image, label, i in zip(images, labels.tolist(), index.tolist(), strict=True):
            path, want = files[i]
            assert label == want
            with Image.open(path) as im:
                pixels = np.asarray(im.convert("RGB"))
            assert image.shape == pixels.shape and image.dtype == np.uint8
            if stats.parity:
                np.testing.assert_array_equal(image, pixels)
    assert loader.keys(range(72)) == [os.path.relpath(p, small) for p, _ in files]
    assert loader.dataset.classes == [f"class{c:03}" for c in range(CLASSES)]
    assert ids_of(loader) == list(range(72)), "without shuffle: the dataset's own order"


def test_fixed_shapes_and_floats(small, load):
    uri = f"imagefolder:{small}"
    images, _ = next(iter(load(uri, batch_size=5, transform=[larder.ops.Resize(40), larder.ops.CenterCrop(32)])))
    assert images.shape == (5, 3, 32, 32) and images.dtype == np.uint8
    floats, _ = next(iter(load(uri, batch_size=5, transform=[larder.ops.Resize(40), larder.ops.CenterCrop(32), larder.ops.ToTensor()])))
    assert floats.dtype == np.float32
    np.testing.assert_array_equal(floats, images.astype(np.float32) / np.float32(255))
    crop = [larder.ops.CenterCrop(32), larder.ops.ToDtype("uint8", scale=False, layout="HWC")]
    hwc, _ = next(iter(load(uri, batch_size=5, transform=crop)))
    assert hwc.shape == (5, 32, 32, 3)


def test_subsets_agree_with_python(small, load):
    files = listing(small)
    for text, member in {
        "label < 3": lambda i: files[i][1] < 3,
        "label in (3, 7) and not id % 2 == 0": lambda i: files[i][1] in (3, 7) and i % 2,
        "id in [10, 20)": lambda i: 10 <= i < 20,
        'range(5, 9) or key ~ "class007/*"': lambda i: 5 <= i < 9 or files[i][1] == 7,
    }.items():
        loader = load(f"imagefolder:{small}", batch_size=4, subset=text, return_index=True, shuffle=True)
        assert sorted(ids_of(loader)) == [i for i in range(72) if member(i)], text
    half = [sorted(ids_of(load(f"imagefolder:{small}", batch_size=4, subset="sample(0.5, seed=3)", return_index=True))) for _ in range(2)]
    assert half[0] == half[1] and len(set(half[0])) == 36


def test_drop_last_and_epochs(small, load):
    loader = load(f"imagefolder:{small}", batch_size=10, shuffle=True, drop_last=True, return_index=True, epochs=2)
    for _ in range(2):
        ids = ids_of(loader)
        assert len(ids) == len(set(ids)) == 70 and len(loader) == 7
    with pytest.raises(larder.JobEndedError):
        iter(loader)


def test_break_is_free(small, load):
    loader = load(f"imagefolder:{small}", batch_size=4, shuffle=True, return_index=True)
    for _ in range(20):
        for _batch in loader:
            break
    del _batch
    assert sorted(ids_of(loader)) == list(range(72))


def test_batches_stay_what_they_are(small, load):
    loader = load(f"imagefolder:{small}", batch_size=6, shuffle=True, return_index=True, transform=[larder.ops.CenterCrop(32)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", larder.KeptBatchesWarning)
        kept = []
        for images, _labels, index in loader:
            kept.append((images, index, [digest(x) for x in images]))
    for _ in range(2):
        for _batch in loader:
            pass
    del _batch
    loader.close()
    assert len(kept) == 12
    for images, _index, digests in kept:
        assert [digest(x) for x in images] == digests


def test_torch_output(small, load, torch):
    loader = load(
        f"imagefolder:{small}", batch_size=8, output="torch", shuffle=True, return_index=True,
        transform=[larder.ops.RandomResizedCrop(24), larder.ops.HFlip(), larder.ops.Normalize("imagenet")],
    )  # fmt: skip
    seen = []
    for images, labels, index in loader:
        assert images.dtype == torch.float32 and tuple(images.shape[1:]) == (3, 24, 24) and labels.dtype == torch.int64
        assert -3 < float(images.min()) < float(images.max()) < 3
        seen += index.tolist()
    assert sorted(seen) == list(range(72))


def test_two_ranks(small, server, clients):
    made = [
        clients(
            server, f"imagefolder:{small}", epochs=3, wait=True,
            loader={"batch_size": 5, "shuffle": True, "job": "ranks", "rank": r, "world_size": 2, "timeout": PATIENCE},
        )
        for r in range(2)
    ]  # fmt: skip
    sizes = {(c.until("ready")["batches"]) for c in made}
    assert sizes == {8}
    for c in made:
        c.go()
    a, b = (c.finish() for c in made)
    for x, y in zip(a, b, strict=True):
        assert len(x["ids"]) == len(y["ids"]) == 36
        assert sorted(x["ids"] + y["ids"]) == list(range(72))


def test_train_and_validation_in_one_script(small, load):
    train = load(f"imagefolder:{small}", batch_size=8, shuffle=True, subset="id % 4 != 0", return_index=True, transform=[CROP, FLIP])
    val = load(f"imagefolder:{small}", batch_size=8, subset="id % 4 == 0", return_index=True, transform=[larder.ops.CenterCrop(32)])
    assert train.job != val.job
    for _ in range(2):
        assert sorted(ids_of(train)) == [i for i in range(72) if i % 4]
        assert ids_of(val) == list(range(0, 72, 4))


def child(loader, pipe):
    pipe.send(sorted(ids_of(loader)))
    pipe.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_child_processes(small, load, method, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{HERE.parent}{os.pathsep}{HERE}")
    context = multiprocessing.get_context(method)
    loader = load(f"imagefolder:{small}", batch_size=8, shuffle=True, return_index=True)
    for _ in range(2):  # one after the other: the rank is free again
        ours, theirs = context.Pipe(False)
        p = context.Process(target=child, args=(loader, theirs))
        p.start()
        theirs.close()
        assert ours.poll(PATIENCE) and ours.recv() == list(range(72))
        p.join(PATIENCE)
        assert p.exitcode == 0
        ours.close()
    assert sorted(ids_of(loader)) == list(range(72))


# ---- augmentation


def stream(loader, epochs=2):
    """What a loader gives, as (epoch, id, bytes) in order."""
    return [(e, i, digest(x)) for e in range(epochs) for images, _, index in loader for x, i in zip(images, index.tolist(), strict=True)]


def test_fixed_order_and_augmentation_are_functions_of_the_seed(small, private, load):
    kw = {"batch_size": 7, "shuffle": True, "order": "fixed", "seed": 11, "return_index": True, "transform": [CROP, FLIP]}
    kw["transform"] = [*kw["transform"], larder.ops.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    uri = f"imagefolder:{small}"
    cold = stream(load(uri, **kw))
    warm = stream(load(uri, **kw))  # another job, the caches are full
    assert cold == warm
    tiny = private("tiers: {total: 1MiB, encoded: 512KiB, decoded: 512KiB, augmented: 0MiB}\nprep: {workers: 1}\n")  # evicts all the time
    with larder.Loader(uri, endpoint=tiny.socket, timeout=PATIENCE, **kw) as loader:
        assert stream(loader) == cold
    assert stream(load(uri, **{**kw, "seed": 12})) != cold
    other = stream(load(uri, **{**kw, "batch_size": 5}))
    assert other == cold, "the batch size cuts the same order"
    epochs = [{i: d for e, i, d in cold if e == n} for n in range(2)]
    assert all(epochs[0][i] != epochs[1][i] for i in range(72)), "fresh augmentation in every epoch"


def test_augmentation_does_not_depend_on_the_order(small, load):
    """Randomness is keyed by (seed, epoch, sample): two orders of one seed augment a sample alike."""
    kw = {"batch_size": 9, "seed": 5, "return_index": True, "transform": [CROP, FLIP]}
    a = stream(load(f"imagefolder:{small}", shuffle=True, **kw), 1)
    b = stream(load(f"imagefolder:{small}", **kw), 1)
    assert [i for _, i, _ in a] != [i for _, i, _ in b] and sorted(a) == sorted(b)


def test_shared_augmentation(small, private, clients):
    daemon = private("tiers: {total: 96MiB, encoded: 16MiB, decoded: 32MiB, augmented: 48MiB}\n")
    made = [
        clients(
            daemon, f"imagefolder:{small}", epochs=4, wait=True, hashes=True,
            loader={"batch_size": 6 + n, "shuffle": True, "seed": n, "job": f"s{n}", "share": "augmented", "transform": [CROP, FLIP],
                    "timeout": PATIENCE},
        )
        for n in range(3)
    ]  # fmt: skip
    for c in made:
        c.until("ready")
    for c in made:
        c.go()
    records = [c.finish() for c in made]
    for r in records:
        for e in r:
            assert sorted(e["ids"]) == list(range(72))
        for i in range(72):
            instances = [e["hashes"][str(i)] for e in r]
            assert len(set(instances)) == 4, "no job gets one augmented instance twice"
    augments = max(r[-1]["augments"] for r in records)
    delivered = 3 * 4 * 72
    print(f"e2e: {augments} augments for {delivered} samples of three jobs that share")
    assert augments < delivered


# ---- bad input


def test_bad_datasets(small, load, tmp_path):
    cases = {
        f"imagefolder:{tmp_path}/nothing": (larder.NotFoundError, "nothing"),
        f"imagefolder:{listing(small)[0][0]}": (larder.Error, "000.jpg"),
        "imagefoldr:/x": (larder.Error, "imagefolder"),
        "unheard-of": (larder.Error, "unheard-of"),
    }
    (tmp_path / "empty").mkdir()
    cases[f"imagefolder:{tmp_path}/empty"] = (larder.Error, "empty")
    (tmp_path / "classes" / "a").mkdir(parents=True)
    (tmp_path / "classes" / "a" / "note.txt").write_text("no image")
    cases[f"imagefolder:{tmp_path}/classes"] = (larder.Error, "classes")
    for uri, (kind, words) in cases.items():
        with pytest.raises(kind, match=words) as e:
            load(uri, batch_size=2)
        assert e.value.reason != "INTERNAL" and e.value.hint, (uri, e.value)


@pytest.mark.parametrize(
    ("kw", "reason", "words"),
    [
        ({"subset": "lable < 50"}, "SUBSET_SYNTAX", "label"),
        ({"subset": "label < "}, "SUBSET_SYNTAX", ""),
        ({"subset": "label = 3"}, "SUBSET_SYNTAX", "=="),
        ({"subset": "label > 100"}, "SUBSET_EMPTY", ""),
        ({"batch_size": 73, "drop_last": True}, "SUBSET_EMPTY", "72"),
        ({"transform": [{"name": "RandomResizeCrop", "args": {"size": 3}}]}, "RECIPE_INVALID", "RandomResizedCrop"),
        ({"transform": [{"name": "Resize", "args": {"sise": 3}}]}, "RECIPE_INVALID", "size"),
        ({"transform": [larder.ops.Resize("big")]}, "RECIPE_INVALID", "size"),
        ({"transform": [larder.ops.CenterCrop(-4)]}, "RECIPE_INVALID", "size"),
        ({"transform": [larder.ops.RandomHorizontalFlip(2)]}, "RECIPE_INVALID", "p"),
        ({"transform": [{"name": "f", "kind": "python"}]}, "", "python"),
    ],
)
def test_bad_requests(small, load, kw, reason, words):
    with pytest.raises(larder.InvalidError) as e:
        load(f"imagefolder:{small}", **{"batch_size": 4, **kw})
    assert words in str(e.value)
    assert not reason or e.value.reason == reason, e.value


def test_a_typo_in_a_subset_is_pointed_at(small, load):
    with pytest.raises(larder.InvalidError) as e:
        load(f"imagefolder:{small}", batch_size=4, subset="id > 3 and lable < 50")
    lines = str(e.value).splitlines()
    at = next(n for n, line in enumerate(lines) if "lable < 50" in line)
    caret = lines[at + 1]
    assert caret.strip(" ") == "^" and caret.index("^") == lines[at].index("lable"), str(e.value)


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(b"\0" * 64))
    )


@pytest.fixture
def damaged(tmp_path):
    """12 images, 6 of them good; one has the suffix of another format, which is no fault."""
    folder = draw(tmp_path / "damaged", 2, 6, seed=4)
    files = [Path(p) for p, _ in listing(folder)]
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[: len(whole) // 2])
    files[3].write_bytes(b"")
    files[4].write_bytes(b"this is not an image at all " * 10)
    data = bytearray(files[7].read_bytes())
    files[7].write_bytes(bytes(data[:2]) + bytes(200) + bytes(data[202:]))
    sof = data.index(b"\xff\xc0" if b"\xff\xc0" in data else b"\xff\xc2")
    huge = bytearray(files[9].read_bytes() if b"\xff\xc0" in files[9].read_bytes() else data)
    sof = huge.index(b"\xff\xc0") if b"\xff\xc0" in huge else huge.index(b"\xff\xc2")
    huge[sof + 5 : sof + 9] = struct.pack(">HH", 65500, 65500)
    files[9].write_bytes(bytes(huge))
    files[10].write_bytes(png_header(65500, 65500))
    renamed = files[0].with_suffix(".png")
    files[0].rename(renamed)
    files = [Path(p) for p, _ in listing(folder)]
    return folder, files, {1, 3, 4, 7, 9, 10}


def test_bad_samples_skip(damaged, load):
    folder, files, bad = damaged
    loader = load(f"imagefolder:{folder}", batch_size=4, shuffle=True, on_error="skip", return_index=True)
    for _ in range(2):
        assert sorted(ids_of(loader)) == sorted(set(range(12)) - bad)
    assert {q.id for q in loader.quarantined} == bad
    for q in loader.quarantined:
        assert q.path == str(files[q.id]) and q.reason and q.key == os.path.relpath(files[q.id], folder)
    job = loader.stats().job
    assert job is not None and {q.id for q in job.quarantined} == bad and job.counters.quarantined >= 6
    assert all(a.delivered + a.quarantined == a.subset == 12 for a in job.epochs if a.state == "complete")


def test_bad_samples_raise_once_and_go_on(damaged, load):
    folder, files, bad = damaged
    loader = load(f"imagefolder:{folder}", batch_size=4, shuffle=True, return_index=True)
    it, got, met = iter(loader), [], {}
    while True:
        try:
            *_, index = next(it)
            got += index.tolist()
        except larder.SampleError as e:
            assert e.file == str(files[e.id]) and e.file in str(e) and e.why in str(e) and "byte" in str(e)
            met.update({q.id: q for q in e.samples})
        except StopIteration:
            break
    assert sorted(got) == sorted(set(range(12)) - bad) and set(met) == bad


def test_bad_samples_substitute(damaged, load):
    folder, _, bad = damaged
    loader = load(f"imagefolder:{folder}", batch_size=4, shuffle=True, on_error="substitute", return_index=True)
    got = ids_of(loader)
    assert sorted(got) == sorted(set(range(12)) - bad), "substitutes are samples not delivered yet, so each comes once"
    assert {q.id for q in loader.quarantined} == bad


def test_bombs_take_no_memory(damaged, private):
    folder, _, bad = damaged
    daemon = private("memory: {limit: 512MiB}\ntiers: {total: 32MiB}\n")
    with larder.Loader(f"imagefolder:{folder}", batch_size=4, on_error="skip", endpoint=daemon.socket, timeout=PATIENCE) as loader:
        assert sum(len(y) for _, y in loader) == 12 - len(bad)
        with open(f"/proc/{daemon.process.pid}/status") as f:
            peak = next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))
    assert peak < 1024 * 1024, f"{peak} KiB; one 65,500 x 65,500 image would take 12 GiB"


def test_tier_sizes_beyond_the_limit(tmp_path, private, server):
    with pytest.raises(AssertionError, match="did not start") as e:
        private("memory: {limit: 1GiB}\ntiers: {decoded: 900MiB, encoded: 800MiB}\n")
    text = str(e.value).replace(" ", "")
    assert ("1GiB" in text or str(2**30) in text) and ("900MiB" in text or str(900 * 2**20) in text) and "fix" in text, text
    out = server.cli("tiers", "resize", "decoded=20GiB", check=False)
    text = (out.stdout + out.stderr).replace(" ", "")
    assert out.returncode != 0 and ("20GiB" in text or str(20 * 2**30) in text), out
    assert ("64MiB" in text or str(64 * 2**20) in text) and "fix" in text, out


def test_two_jobs_with_one_name(small, load):
    one = load(f"imagefolder:{small}", batch_size=4, job="same", return_index=True)
    with pytest.raises(larder.InvalidError) as e:
        load(f"imagefolder:{small}", batch_size=5, job="same")
    assert e.value.reason == "ALREADY_EXISTS" and "same" in str(e.value)
    two = load(f"imagefolder:{small}", batch_size=4, job="same")
    it = iter(one)
    next(it)
    with pytest.raises(larder.RankHeldError, match=str(os.getpid())):
        iter(two)
    assert sum(len(x) for *_, x in it) == 68


# ---- deaths


def test_a_client_killed_with_batches_in_hand(small, server, clients, load):
    before = server.segments()
    c = clients(
        server,
        f"imagefolder:{small}",
        epochs=50,
        delay=0.01,
        loader={"batch_size": 4, "shuffle": True, "job": "killed", "timeout": PATIENCE},
    )
    for _ in range(5):
        c.until("batch")
    assert server.segments() > before
    c.process.kill()
    c.process.wait()
    eventually(lambda: server.segments() == before, PATIENCE)
    loader = load(f"imagefolder:{small}", batch_size=4, shuffle=True, job="killed", return_index=True)  # taken over
    assert sorted(ids_of(loader)) == list(range(72))


def test_a_client_that_never_reads_holds_nobody_up(small, server, clients, load):
    idle = load(f"imagefolder:{small}", batch_size=4, shuffle=True, job="idle")
    iter(idle)  # its ring fills and stays full
    stopped = clients(
        server,
        f"imagefolder:{small}",
        epochs=50,
        delay=0.01,
        loader={"batch_size": 4, "shuffle": True, "job": "stopped", "timeout": PATIENCE},
    )
    stopped.until("batch")
    stopped.process.send_signal(signal.SIGSTOP)
    busy = load(f"imagefolder:{small}", batch_size=4, shuffle=True, return_index=True)
    for _ in range(3):
        assert sorted(ids_of(busy)) == list(range(72))
    stopped.process.send_signal(signal.SIGCONT)
    stopped.until("batch")


def test_a_silent_or_rude_connection_harms_nobody(small, server, load):
    rude = []
    for hello in (b"", b"x", b"GET / HTTP/1.1\r\n\r\n", b"\x01\x00\x01\x00\xff\xff\xff\xff" + bytes(8), bytes(64)):
        s = socket.socket(socket.AF_UNIX)
        s.connect(server.socket)
        s.sendall(hello)
        rude.append(s)
    loader = load(f"imagefolder:{small}", batch_size=4, return_index=True)
    assert ids_of(loader) == list(range(72))
    for s in rude:
        s.close()


def test_the_daemon_is_killed(small, private):
    daemon = private()
    loader = larder.Loader(f"imagefolder:{small}", batch_size=4, shuffle=True, endpoint=daemon.socket, timeout=PATIENCE, transform=[CROP])
    it = iter(loader)
    images, _ = next(it)
    before = images.copy()
    daemon.kill()
    with pytest.raises(larder.UnavailableError) as e:
        for _ in range(20):
            next(it)
    assert daemon.socket in str(e.value)
    np.testing.assert_array_equal(images, before)  # what was handed out stays
    with pytest.raises(larder.UnavailableError, match="no larder daemon answers"):
        iter(loader)
    loader.close()


def test_the_daemon_drains(small, private):
    daemon = private("", "--drain-timeout", "60s")
    loader = larder.Loader(f"imagefolder:{small}", batch_size=4, shuffle=True, endpoint=daemon.socket, timeout=PATIENCE, return_index=True)
    it = iter(loader)
    ids = next(it)[-1].tolist()
    daemon.process.send_signal(signal.SIGTERM)
    for *_, index in it:  # the running epoch is finished
        ids += index.tolist()
    assert sorted(ids) == list(range(72))
    with pytest.raises(larder.Error) as e:
        iter(loader)
    assert e.value.reason in ("UNAVAILABLE", "JOB_ENDED")
    assert daemon.process.wait(PATIENCE) == 0
    loader.close()
    daemon.process.stdout.close()


def test_a_second_daemon_on_the_socket_is_refused(server):
    out = subprocess.run([server.binary, "serve", "--socket", server.socket], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert out.returncode != 0 and server.socket in out.stderr and str(server.process.pid) in out.stderr, out


# ---- command line and life cycle


def test_a_job_registered_by_the_command_line(small, server, load, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(f"""
name: night
dataset: imagefolder:{small}
subset: label < 4
batch_size: 6
shuffle: true
seed: 3
transform:
  - {{name: RandomResizedCrop, args: {{size: 24}}}}
  - {{name: RandomHorizontalFlip}}
on_error: skip
""")
    server.cli("jobs", "register", "-f", str(job))
    loader = load("job:night", return_index=True)
    assert (loader.batch_size, loader.num_samples, len(loader)) == (6, 36, 6)
    assert sorted(ids_of(loader)) == list(range(36))
    assert "night" in server.cli("jobs", "ls").stdout
    it = iter(loader)
    next(it)
    server.cli("jobs", "kill", "night")
    with pytest.raises(larder.JobEndedError):
        for _ in range(20):
            next(it)
    with pytest.raises(larder.NotFoundError, match="no-such"):
        load("job:no-such")


def test_tiers_resize_live(small, private):
    daemon = private("tiers: {total: 64MiB, encoded: 16MiB, decoded: 32MiB, augmented: 0MiB}\nmemory: {limit: 512MiB}\n")
    with larder.Loader(
        f"imagefolder:{small}", batch_size=4, shuffle=True, endpoint=daemon.socket, timeout=PATIENCE, return_index=True
    ) as loader:
        assert sorted(ids_of(loader)) == list(range(72))
        daemon.cli("tiers", "resize", "decoded=1MiB")
        eventually(lambda: all(t.used <= t.budget for t in loader.stats().tiers), PATIENCE)
        assert {t.form: t.budget for t in loader.stats().tiers}["decoded"] == 2**20
        assert sorted(ids_of(loader)) == list(range(72))


def test_a_daemon_is_started_when_none_is_there(small, tmp_path):
    binary = find_binary()
    script = (
        "import larder, os\n"
        f"l = larder.Loader('imagefolder:{small}', batch_size=8, timeout={PATIENCE})\n"
        "print(sum(len(y) for _, y in l), l.stats().pid)\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("LARDER_")}
    env |= {
        "XDG_RUNTIME_DIR": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "LARDER_BIN": binary,
        "PYTHONPATH": str(HERE.parent),
    }
    many = [subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outs = [p.communicate(timeout=PATIENCE)[0].split() for p in many]
    pid = int(outs[0][1])
    try:
        assert outs == [["72", str(pid)]] * 3, "one daemon for all"
        assert os.getsid(pid) == pid
        assert os.path.exists(tmp_path / "larder" / "larder.sock")
    finally:
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: not os.path.exists(tmp_path / "larder" / "larder.sock"), PATIENCE)


def test_an_idle_daemon_ends_by_itself(small, private):
    daemon = private("", "--idle-exit", "1s")
    with larder.Loader(f"imagefolder:{small}", batch_size=8, endpoint=daemon.socket, timeout=PATIENCE) as loader:
        time.sleep(1.5)  # idle, but in use
        assert sum(len(y) for _, y in loader) == 72
    assert daemon.process.wait(PATIENCE) == 0
    assert not os.path.exists(daemon.socket)
    daemon.process.stdout.close()


def test_counters_from_another_thread(small, load):
    loader = load(f"imagefolder:{small}", batch_size=2, shuffle=True, return_index=True)
    stop, seen = threading.Event(), []

    def watch():
        while not stop.is_set():
            seen.append(loader.stats().totals.samples_delivered)

    t = threading.Thread(target=watch)
    t.start()
    for _ in range(3):
        assert sorted(ids_of(loader)) == list(range(72))
    stop.set()
    t.join()
    assert seen == sorted(seen) and len(seen) > 1
