"""The real daemon, real processes, real images: what issue and guarantees promise, seen from the clients' own records.

Needs the binary (LARDER_BIN, or ../bin/larder) and Pillow. Photographs come from LARDER_TESTDATA (default
../shared/data beside the repository); without them images are drawn. Nothing here asserts a time.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import tracemalloc
import warnings

import numpy as np
import pytest
from conftest import eventually
from real import HERE, PATIENCE, digest, draw, listing, photographs, pillow

import larder

Image = pillow()

CROP = {"name": "RandomResizedCrop", "args": {"size": 32}}
FLIP = {"name": "RandomHorizontalFlip", "args": {}}
CLASSES, EACH = 8, 9
EPOCHS = 2  # of four processes: one that fills the tier, and one that finds it full


def ids_of(loader):
    return [i for *_, index in loader for i in index.tolist()]


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
            daemon,
            f"imagefolder:{folder}",
            epochs=epochs,
            files=files,
            compare=True,
            wait=True,
            delay=delay,
            loader={
                "subset": subset,
                "batch_size": batch,
                "shuffle": True,
                "seed": n,
                "job": f"job-{n}",
                "timeout": PATIENCE,
            },
        )
        for n, (subset, _, batch, delay) in enumerate(SUBSETS)
    ]
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
    daemon, made, wanted = four(images, private, clients, EPOCHS)
    with larder.Loader(
        f"imagefolder:{images[0]}", batch_size=1, endpoint=daemon.socket, timeout=PATIENCE, job="onlooker"
    ) as onlooker:
        records = [c.finish() for c in made]
        stats = onlooker.stats()
    for r, want in zip(records, wanted, strict=True):
        check_records(r, want, EPOCHS, stats.parity)
    union = len(set.union(*wanted))
    first = max(r[0]["decodes"] for r in records)  # when the last one had finished its first epoch
    assert first <= 1.02 * union
    assert stats.totals.decodes == first, "no decode after the first epoch"
    assert stats.totals.source_reads <= 1.02 * union
    assert stats.totals.samples_delivered == EPOCHS * sum(map(len, wanted))
    print(f"e2e: {stats.totals.decodes} decodes and {stats.totals.source_reads} reads for a union of {union}, "
          f"{stats.totals.samples_delivered} samples delivered, decoder {stats.decoder}")  # fmt: skip
    for job in stats.jobs:
        if job.name.startswith("job-"):
            done = [a for a in job.epochs if a.epoch < EPOCHS]  # the daemon began another one, for a client that left
            assert [a.state for a in done] == ["complete"] * EPOCHS, job
            assert all(a.delivered == a.subset and a.dropped == a.quarantined == 0 for a in done)
    assert all(t.used <= t.budget for t in stats.tiers)


def test_sigkill_of_one_leaves_the_others_complete(private, clients, tmp_path):
    folder = draw(tmp_path / "seventy", 70, 3)
    daemon, made, wanted = four((folder, listing(folder)), private, clients, 2)
    victim = made[2]
    victim.until("batch", epoch=0)
    victim.until("batch", epoch=0)
    victim.process.kill()  # in the middle of a batch of its first epoch
    for n in (0, 1, 3):
        check_records(made[n].finish(), wanted[n], 2, False)
    victim.process.wait()
    eventually(lambda: daemon.segments() == 0, PATIENCE)  # its ring is freed


# ---- what a user sees


def test_ids_keys_labels_and_pixels(small, real):
    files = listing(small)
    loader = real(f"imagefolder:{small}", batch_size=10, return_index=True)
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


def test_fixed_shapes_and_floats(small, real):
    uri = f"imagefolder:{small}"
    images, _ = next(iter(real(uri, batch_size=5, transform=[larder.ops.Resize(40), larder.ops.CenterCrop(32)])))
    assert images.shape == (5, 3, 32, 32) and images.dtype == np.uint8
    floats, _ = next(
        iter(
            real(uri, batch_size=5, transform=[larder.ops.Resize(40), larder.ops.CenterCrop(32), larder.ops.ToTensor()])
        )
    )
    assert floats.dtype == np.float32
    np.testing.assert_array_equal(floats, images.astype(np.float32) / np.float32(255))
    crop = [larder.ops.CenterCrop(32), larder.ops.ToDtype("uint8", scale=False, layout="HWC")]
    hwc, _ = next(iter(real(uri, batch_size=5, transform=crop)))
    assert hwc.shape == (5, 32, 32, 3)


def test_subsets_agree_with_python(small, real):
    files = listing(small)
    for text, member in {
        "label < 3": lambda i: files[i][1] < 3,
        "label in (3, 7) and not id % 2 == 0": lambda i: files[i][1] in (3, 7) and i % 2,
        "id in [10, 20)": lambda i: 10 <= i < 20,
        'range(5, 9) or key ~ "class007/*"': lambda i: 5 <= i < 9 or files[i][1] == 7,
    }.items():
        loader = real(f"imagefolder:{small}", batch_size=4, subset=text, return_index=True, shuffle=True)
        assert sorted(ids_of(loader)) == [i for i in range(72) if member(i)], text
    half = [
        sorted(ids_of(real(f"imagefolder:{small}", batch_size=4, subset="sample(0.5, seed=3)", return_index=True)))
        for _ in range(2)
    ]
    assert half[0] == half[1] and len(set(half[0])) == 36


def test_drop_last_and_epochs(small, real):
    loader = real(f"imagefolder:{small}", batch_size=10, shuffle=True, drop_last=True, return_index=True, epochs=2)
    for _ in range(2):
        ids = ids_of(loader)
        assert len(ids) == len(set(ids)) == 70 and len(loader) == 7
    with pytest.raises(larder.JobEndedError):
        iter(loader)


def test_break_is_free(small, real):
    loader = real(f"imagefolder:{small}", batch_size=4, shuffle=True, return_index=True)
    for _ in range(20):
        for _batch in loader:
            break
    del _batch
    assert sorted(ids_of(loader)) == list(range(72))


def test_batches_stay_what_they_are(small, real):
    loader = real(
        f"imagefolder:{small}", batch_size=6, shuffle=True, return_index=True, transform=[larder.ops.CenterCrop(32)]
    )
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


def test_torch_output(small, real, torch):
    loader = real(
        f"imagefolder:{small}", batch_size=8, output="torch", shuffle=True, return_index=True,
        transform=[larder.ops.RandomResizedCrop(24), larder.ops.HFlip(), larder.ops.Normalize("imagenet")],
    )  # fmt: skip
    seen = []
    for images, labels, index in loader:
        assert images.dtype == torch.float32 and tuple(images.shape[1:]) == (3, 24, 24) and labels.dtype == torch.int64
        assert -3 < float(images.min()) < float(images.max()) < 3
        seen += index.tolist()
    assert sorted(seen) == list(range(72))


def test_normalizing_on_the_device_gives_what_the_daemon_gives(small, real, torch):
    def batches(name, last):
        loader = real(
            f"imagefolder:{small}",
            batch_size=8,
            output="torch",
            shuffle=True,
            order="fixed",
            seed=3,
            job=f"device-{name}",
            transform=[larder.ops.RandomResizedCrop(24), larder.ops.HFlip(), last],
        )
        return [images.clone() for images, _ in loader]

    means = ("imagenet", None), (0.5, 0.25), ([0.1, 0.2, 0.3], [0.3, 0.2, 0.1])
    uint8 = batches("uint8", larder.ops.ToImage())
    for i, (mean, std) in enumerate(means):
        floats = batches(i, larder.ops.Normalize(mean, std))
        assert len(floats) == len(uint8) == 9
        for want, raw in zip(floats, uint8, strict=True):
            before = raw.clone()
            got = larder.normalize(raw, mean, std)
            assert got.dtype == torch.float32 and torch.equal(got, want) and torch.equal(raw, before)
    for bad, mean, std in (
        (floats[0], "imagenet", None),
        (uint8[0].numpy(), "imagenet", None),
        (uint8[0], "cifar", None),
        (uint8[0], "imagenet", [1, 1, 1]),
        (uint8[0], [0.5, 0.5], 1.0),
        (uint8[0], 0.5, 0.0),
        (uint8[0], 0.5, None),
        (uint8[0], float("nan"), 1.0),
    ):
        with pytest.raises(larder.InvalidError):
            larder.normalize(bad, mean, std)


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_batch_takes_no_memory_of_its_own(small, real, output, request):
    """In steady state a batch is views of the ring: a few small objects, which go with it, and never its bytes."""
    if output == "torch":
        request.getfixturevalue("torch")
    loader = real(
        f"imagefolder:{small}",
        batch_size=8,
        output=output,
        shuffle=True,
        seed=1,
        job=f"steady-{output}",
        transform=[larder.ops.Resize([256, 256])],
    )

    def epochs(n):
        for _ in range(n):
            for images, labels in loader:
                assert len(images) == len(labels) == 8 and tuple(images[0].shape) == (3, 256, 256)
            del images, labels

    epochs(3)
    tracemalloc.start()
    try:
        epochs(2)  # what is made once, tracemalloc's own tables among it
        gc.collect()
        tracemalloc.reset_peak()
        begun, _ = tracemalloc.get_traced_memory()
        epochs(30)
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{kept - begun} bytes kept after 270 batches, {peak - begun} at most")
    assert kept - begun < 270 * 32  # not even a small object a batch; batches are built ahead, for four slots at most
    assert peak - begun < 3 << 16  # a read of the socket has a buffer of 64 KiB; a batch has 1.5 MiB


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


def test_train_and_validation_in_one_script(small, real):
    train = real(
        f"imagefolder:{small}",
        batch_size=8,
        shuffle=True,
        subset="id % 4 != 0",
        return_index=True,
        transform=[CROP, FLIP],
    )
    val = real(
        f"imagefolder:{small}",
        batch_size=8,
        subset="id % 4 == 0",
        return_index=True,
        transform=[larder.ops.CenterCrop(32)],
    )
    assert train.job != val.job
    for _ in range(2):
        assert sorted(ids_of(train)) == [i for i in range(72) if i % 4]
        assert ids_of(val) == list(range(0, 72, 4))


def child(loader, pipe):
    pipe.send(sorted(ids_of(loader)))
    pipe.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_child_processes(small, real, method, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{HERE.parent}{os.pathsep}{HERE}")
    context = multiprocessing.get_context(method)
    loader = real(f"imagefolder:{small}", batch_size=8, shuffle=True, return_index=True)
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
    return [
        (e, i, digest(x))
        for e in range(epochs)
        for images, _, index in loader
        for x, i in zip(images, index.tolist(), strict=True)
    ]


def test_fixed_order_and_augmentation_are_functions_of_the_seed(small, private, real):
    kw = {
        "batch_size": 7,
        "shuffle": True,
        "order": "fixed",
        "seed": 11,
        "return_index": True,
        "transform": [CROP, FLIP],
    }
    kw["transform"] = [*kw["transform"], larder.ops.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    uri = f"imagefolder:{small}"
    cold = stream(real(uri, **kw))
    warm = stream(real(uri, **kw))  # another job, the caches are full
    assert cold == warm
    # evicts all the time
    tiny = private("tiers: {total: 1MiB, encoded: 512KiB, decoded: 512KiB, augmented: 0MiB}\nprep: {workers: 1}\n")
    with larder.Loader(uri, endpoint=tiny.socket, timeout=PATIENCE, **kw) as loader:
        assert stream(loader) == cold
    assert stream(real(uri, **{**kw, "seed": 12})) != cold
    other = stream(real(uri, **{**kw, "batch_size": 5}))
    assert other == cold, "the batch size cuts the same order"
    epochs = [{i: d for e, i, d in cold if e == n} for n in range(2)]
    assert all(epochs[0][i] != epochs[1][i] for i in range(72)), "fresh augmentation in every epoch"


def test_augmentation_does_not_depend_on_the_order(small, real):
    """Randomness is keyed by (seed, epoch, sample): two orders of one seed augment a sample alike."""
    kw = {"batch_size": 9, "seed": 5, "return_index": True, "transform": [CROP, FLIP]}
    a = stream(real(f"imagefolder:{small}", shuffle=True, **kw), 1)
    b = stream(real(f"imagefolder:{small}", **kw), 1)
    assert [i for _, i, _ in a] != [i for _, i, _ in b] and sorted(a) == sorted(b)


def test_shared_augmentation(small, private, clients):
    daemon = private("tiers: {total: 96MiB, encoded: 16MiB, decoded: 32MiB, augmented: 48MiB}\n")
    made = [
        clients(
            daemon,
            f"imagefolder:{small}",
            epochs=4,
            wait=True,
            hashes=True,
            loader={
                "batch_size": 6 + n,
                "shuffle": True,
                "seed": n,
                "job": f"s{n}",
                "share": "augmented",
                "transform": [CROP, FLIP],
                "timeout": PATIENCE,
            },
        )
        for n in range(3)
    ]
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
