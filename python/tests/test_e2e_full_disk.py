"""A full disk of the state directory, against the real daemon: jobs wait and say why; nothing is lost or repeated."""

from __future__ import annotations

import threading

import pytest
from conftest import eventually
from real import PATIENCE, Daemon, draw

import larder
from larder import ops

EPOCHS = 20  # each is a write at least, so that the twelfth write is in the midst of them
CONFIG = "tiers: {total: 64MiB}\nmemory: {limit: 2GiB}\n"


@pytest.mark.filterwarnings("error::larder.KeptBatchesWarning")
@pytest.mark.parametrize("killed", [False, True], ids=["room is made", "the daemon is killed"])
def test_jobs_wait_for_room(tmp_path, killed):
    """The disk is full in one of many epochs. When there is room, in place or after SIGKILL, the job continues, and
    every epoch has each sample once.
    """
    images = draw(tmp_path / "images", 2, 12, size=(24, 40))
    room = tmp_path / "room"
    daemon = Daemon(tmp_path / "d", config=CONFIG, failpoint=f"write:log:ENOSPC:12:{room}")
    got: list[list[int]] = []
    words = f"the disk of the state directory {tmp_path}/d/state/larder/"
    try:
        with larder.Loader(
            f"imagefolder:{images}",
            batch_size=1,
            shuffle=True,
            return_index=True,
            transform=[ops.Resize(24), ops.CenterCrop(24)],
            job="full",
            endpoint=daemon.socket,
        ) as loader:

            def train() -> None:
                got.extend([i for *_, index in loader for i in index.tolist()] for _ in range(EPOCHS))

            script = threading.Thread(target=train)
            script.start()
            try:
                eventually(lambda: "failpoint reached" in daemon.log.read_text())
                eventually(lambda: words in " ".join(daemon.cli("explain", "full").stdout.split()))
                assert len(got) < EPOCHS
                with pytest.raises(larder.InvalidError, match="is full") as e:
                    larder.Loader(f"imagefolder:{images}", batch_size=2, job="another", endpoint=daemon.socket)
                assert e.value.reason == "DISK_FULL" and isinstance(e.value, larder.DiskFullError)
                if killed:
                    daemon.kill()
                    daemon = Daemon(tmp_path / "d", config=CONFIG)
                else:
                    room.touch()
                script.join(PATIENCE)
                assert not script.is_alive()
            finally:
                room.touch()
                script.join(PATIENCE)
            assert [sorted(epoch) for epoch in got] == [list(range(24))] * EPOCHS and not loader.quarantined
    finally:
        daemon.stop()
