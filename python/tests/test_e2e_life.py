"""What can happen to a job while it runs, against the real daemon: other subsets, files that come and go, pauses, bad
input.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import warnings

import pytest
from conftest import eventually
from real import PATIENCE, draw

import larder
from larder import _rivals, _waits


def ids_of(loader):
    return sorted(i for *_, index in loader for i in index.tolist())


def describe(server, name):
    return json.loads(server.cli("jobs", "describe", name, "-o", "json").stdout)


def accounts(server, name):
    return [
        (
            *(int(e.get(k) or 0) for k in ("epoch", "delivered", "quarantined", "removed", "dropped", "subset")),
            e["state"],
        )
        for e in describe(server, name)["epochs"]
    ]


# ---- subsets


def test_set_subset_takes_effect_with_the_next_epoch(real, server, small):
    loader = real(
        f"imagefolder:{small}",
        batch_size=2,
        prefetch=1,
        shuffle=True,
        job="sets",
        return_index=True,
        subset="label < 4",
    )
    assert loader.set_subset("label < 2") == 0, "no epoch has begun"
    assert (len(loader), loader.num_samples) == (9, 18)
    assert ids_of(loader) == list(range(18))
    it = iter(loader)
    got = next(it)[-1].tolist()
    assert loader.set_subset("label >= 6") == 2, "epoch 1 runs"
    assert (len(loader), loader.num_samples) == (9, 18), "the running one is as it was"
    assert "next epoch" in server.cli("jobs", "describe", "sets").stdout
    got += [i for *_, index in it for i in index.tolist()]
    assert sorted(got) == list(range(18))
    assert ids_of(loader) == list(range(54, 72))
    # Its successor is prepared already, and no client has seen it: it is prepared again.
    assert loader.set_subset(None) == 3
    assert (len(loader), loader.num_samples) == (36, 72)
    assert ids_of(loader) == list(range(72))
    assert [a[0] for a in accounts(server, "sets")[:4]] == [0, 1, 2, 3]
    assert all(a[-1] in ("complete", "running") and a[1] in (a[5], 0) for a in accounts(server, "sets"))
    assert describe(server, "sets")["subset_since"] == 3


def test_a_bad_subset_changes_nothing(real, small):
    loader = real(f"imagefolder:{small}", batch_size=7, shuffle=True, job="bad-subset", return_index=True)
    with pytest.raises(larder.InvalidError) as e:
        loader.set_subset("label < 2 and lable > 0")
    assert e.value.reason == "SUBSET_SYNTAX"
    expression, caret = str(e.value).splitlines()[1:3]
    assert expression[caret.index("^") :].startswith("lable") and "label" in e.value.hint
    with pytest.raises(larder.InvalidError) as e:
        loader.set_subset("label > 99")
    assert e.value.reason == "SUBSET_EMPTY" and e.value.hint
    with pytest.raises(larder.InvalidError, match="expression such as"):
        loader.set_subset(["label < 2"])  # type: ignore[arg-type]
    assert ids_of(loader) == list(range(72))


def test_a_job_with_another_subset_is_still_the_same_job(real, small, monkeypatch):
    monkeypatch.setattr(_rivals, "of", lambda shared: [])  # each Loader stands for a process of its own
    args = {"batch_size": 9, "shuffle": True, "job": "again", "return_index": True, "subset": "label < 4"}
    first = real(f"imagefolder:{small}", **args)
    first.set_subset("label < 3")
    assert ids_of(first) == list(range(27))
    again = real(f"imagefolder:{small}", **args)  # another process of the job, with the arguments of its script
    assert again.num_samples == 27
    running = iter(first)  # else it would give way: it is not being iterated
    next(running)
    with pytest.raises(larder.InvalidError, match="subset is label < 4 there and label < 5 here"):
        real(f"imagefolder:{small}", **{**args, "subset": "label < 5"})


def test_ranks_change_the_subset_together(real, small):
    ranks = [
        real(f"imagefolder:{small}", batch_size=4, shuffle=True, job="ranks", rank=r, world_size=2, return_index=True)
        for r in range(2)
    ]
    for calls in ([0], [0, 1]):  # rank 0 alone, or alike in all
        got = [[], []]

        def run(r, got=got):
            got[r] += ids_of(ranks[r])

        threads = [threading.Thread(target=run, args=(r,)) for r in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(set(got[0]) | set(got[1])) == len(got[0]) + len(got[1]) == ranks[0].num_samples
        wanted = "label < 4" if calls == [0] else "label >= 4"
        assert len({ranks[r].set_subset(wanted) for r in calls}) == 1
    assert ranks[0].num_samples == ranks[1].num_samples == 36


# ---- datasets that grow and shrink


@pytest.fixture
def folder(tmp_path):
    return draw(tmp_path / "grows", 3, 8, size=(24, 40))


def names(loader, ids):
    return [os.path.basename(k) for k in loader.keys(ids)]


def test_new_files_come_with_the_next_epoch(real, server, folder):
    loader = real(f"imagefolder:{folder}", batch_size=5, shuffle=True, job="grows", return_index=True)
    it = iter(loader)
    got = next(it)[-1].tolist()
    shutil.copy(folder / "class000" / "000.jpg", folder / "class000" / "aaa.jpg")
    shutil.copy(folder / "class001" / "000.jpg", folder / "class001" / "zzz.jpg")
    out = server.cli("dataset", "refresh", f"imagefolder:{folder}").stdout
    assert "added 2, removed 0 samples" in out and "job grows" in out
    got += [i for *_, index in it for i in index.tolist()]
    assert sorted(got) == list(range(24)), "the running epoch is as it was"
    assert ids_of(loader) == list(range(26)), "ids are appended"
    assert (len(loader), loader.num_samples) == (6, 26)
    assert names(loader, [24, 25]) == ["aaa.jpg", "zzz.jpg"]


def test_a_registration_finds_the_folder_changed(real, folder):
    first = real(
        f"imagefolder:{folder}", batch_size=6, shuffle=True, job="first", subset="label == 0", return_index=True
    )
    assert ids_of(first) == list(range(8))
    shutil.copy(folder / "class000" / "000.jpg", folder / "class000" / "new.jpg")
    second = real(f"imagefolder:{folder}", batch_size=6, job="second")
    assert second.num_samples == 25
    assert ids_of(first) == [*range(8), 24]


@pytest.mark.parametrize("order", ["stratified", "strict", "fixed"])
def test_removed_files_are_drawn_no_more(real, server, folder, order):
    name = f"shrinks-{order}"
    loader = real(
        f"imagefolder:{folder}",
        batch_size=2,
        shuffle=True,
        order=order,
        prefetch=1,
        job=name,
        on_error="skip",
        return_index=True,
    )
    it = iter(loader)
    got = next(it)[-1].tolist()
    for n in range(1, 8):
        os.remove(next((folder / "class002").glob(f"{n:03}.*")))
    out = server.cli("dataset", "refresh", f"imagefolder:{folder}").stdout
    assert "added 0, removed 7 samples" in out
    # What was being prepared when the files went may be there or not, and then it was bad before anybody said why;
    # nothing else is lost.
    rest = [i for *_, index in it for i in index.tolist()]
    late = [i for i in rest if i > 16]
    assert len(late) <= 3 * 2, "drawn before"
    assert set(range(17)) <= set(got + rest)
    epoch = accounts(server, name)[0]
    assert epoch[1] + epoch[2] == 24 and epoch[2] == 7 - sum(i > 16 for i in got + rest) and epoch[-1] == "complete"
    assert 1 <= epoch[3] == epoch[2] - len(loader.quarantined), "what was removed is not an error"
    assert ids_of(loader) == list(range(17))
    assert "removed from the dataset" in server.cli("jobs", "describe", name).stdout


def test_a_subset_that_selects_nothing_any_more(real, server, folder):
    loader = real(
        f"imagefolder:{folder}",
        batch_size=4,
        shuffle=True,
        job="emptied",
        subset='key ~ "class001/*"',
        return_index=True,
    )
    it = iter(loader)
    next(it)
    for p in list((folder / "class001").iterdir())[1:]:
        os.remove(p)
    server.cli("dataset", "refresh", f"imagefolder:{folder}")
    list(it)
    assert len(ids_of(loader)) == 1
    out = server.cli("dataset", "refresh", "nothing-of-this-name", check=False)
    assert out.returncode == 3 and "nothing-of-this-name" in out.stderr and "fix:" in out.stderr


# ---- pauses


def test_a_paused_job_waits_and_says_so(real, server, small, monkeypatch):
    monkeypatch.setattr(_waits, "_LOOK", 0.05)
    loader = real(f"imagefolder:{small}", batch_size=2, shuffle=True, prefetch=1, job="pausing", return_index=True)
    other = real(f"imagefolder:{small}", batch_size=8, shuffle=True, job="goes-on", return_index=True)
    it = iter(loader)
    got = next(it)[-1].tolist()
    assert "paused" in server.cli("jobs", "pause", "pausing").stdout
    server.cli("jobs", "pause", "pausing")  # twice is once
    assert "paused" in server.cli("jobs", "ls").stdout
    assert ids_of(other) == list(range(72)), "the others go on"
    looks, ask = 0, _waits._ask

    def asked(*a):
        nonlocal looks
        looks += 1
        if looks == 20:  # a second, longer than the timeout
            loader._shared.timeout = PATIENCE
        if looks == 21:
            server.cli("jobs", "unpause", "pausing")
        return ask(*a)

    monkeypatch.setattr(_waits, "_ask", asked)
    loader._shared.timeout = 0.5
    with pytest.warns(larder.PausedWarning, match="larder jobs unpause pausing"):
        while len(got) < 16:  # more than its ring held
            got += next(it)[-1].tolist()
    assert looks > 20 and not describe(server, "pausing").get("paused")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got += [i for *_, index in it for i in index.tolist()]
    assert sorted(got) == list(range(72))
    eventually(lambda: accounts(server, "pausing")[0][-1] == "complete")
    out = server.cli("jobs", "pause", "absent", check=False)
    assert out.returncode == 3 and "absent" in out.stderr


# ---- promises and bad input


def test_a_job_knows_its_promise(real, server, small):
    for order, words in {
        "stratified": "resolution of 4 tiles",
        "stratified(2)": "resolution of 2 tiles",
        "strict": "drawn uniformly",
        "epoch": "may resemble",
        "fixed": "pure function",
    }.items():
        loader = real(
            f"imagefolder:{small}", batch_size=8, shuffle=True, order=order, job=f"promise-{order}", return_index=True
        )
        before = loader.promise
        assert words in before, "before its first batch"
        assert ids_of(loader) == list(range(72))
        assert loader.promise == before == describe(server, loader.job)["promise"]
        assert loader.stats().job.promise == before
    assert "order of the dataset" in real(f"imagefolder:{small}", batch_size=8, job="promise-none").promise


def test_too_many_tiles_are_bounded_and_reported(real, server, small):
    loader = real(
        f"imagefolder:{small}", batch_size=8, shuffle=True, order="stratified(200)", job="tiles", return_index=True
    )
    assert "resolution of 4 tiles" in loader.promise
    text = server.cli("jobs", "describe", "tiles").stdout
    assert "stratified(200)" in text and "4 tiles are used, not 200" in text
    assert loader.stats().job.notes[0].startswith("order stratified(200)")
    assert ids_of(loader) == list(range(72))


@pytest.mark.parametrize("order", ["stratified(0)", "stratified(257)", "stratified(999999999)"])
def test_tiles_that_cannot_be(real, small, order):
    with pytest.raises(larder.InvalidError) as e:
        real(f"imagefolder:{small}", batch_size=8, shuffle=True, order=order, job="no-tiles")
    assert "1 to 256" in e.value.hint


def test_bad_jobs_are_refused_in_words(real, server, small, monkeypatch):
    monkeypatch.setattr(_rivals, "of", lambda shared: [])  # each Loader stands for a process of its own
    uri = f"imagefolder:{small}"
    with pytest.raises(larder.InvalidError) as e:
        real(uri, batch_size=8, subset="label > 99", job="empty")
    assert e.value.reason == "SUBSET_EMPTY" and "inspect" in e.value.hint
    used = real(uri, batch_size=8, job="twice")
    running = iter(used)
    next(running)
    with pytest.raises(larder.InvalidError) as e:
        real(uri, batch_size=9, job="twice")
    assert e.value.reason == "ALREADY_EXISTS" and "batch_size is 8 there and 9 here" in str(e.value)
    with pytest.raises(larder.InvalidError, match="strict"):
        real(uri, batch_size=8, shuffle=True, order="strikt", job="unknown")


def test_the_sixty_fifth_job_is_refused(private, small):
    daemon = private("tiers: {total: 32MiB}\nmemory: {limit: 2GiB}\n")
    loaders = [
        larder.Loader(f"imagefolder:{small}", batch_size=4, shuffle=True, job=f"j{n}", endpoint=daemon.socket)
        for n in range(64)
    ]
    try:
        with pytest.raises(larder.JobLimitError) as e:
            larder.Loader(f"imagefolder:{small}", batch_size=4, job="one-more", endpoint=daemon.socket)
        assert e.value.reason == "JOB_LIMIT" and "64 jobs" in str(e.value) and "end a job first" in e.value.hint
    finally:
        for loader in loaders:
            loader.close()
