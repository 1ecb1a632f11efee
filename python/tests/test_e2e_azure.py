"""Datasets in a container of Azure, served by Azurite: the samples of the folder, whatever the network does."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azurite import ACCOUNT, KEY, Server
from real import PATIENCE, digest, draw, formats
from s3 import Proxy, World, pack
from test_e2e_packed_stores import TABLE, cost

import larder

pytestmark = pytest.mark.filterwarnings("ignore::larder.DatasetWarning")
ROWS = 90
DATASETS = {"imagefolder": "train", "wds": "tars", "parquet": "rows/rows.parquet"}
ANSWERS: dict[int, Any] = {1: 503, 2: "cut", 4: 500, 5: "short", 7: 429, 8: "late", 10: "stall"}


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A container with a folder of images, the same in tars, and a table; and the folder that it was filled from."""
    pytest.importorskip("PIL.Image", reason="Pillow draws the images")
    folder = tmp_path_factory.mktemp("azure")
    server = Server(folder)
    try:
        files = folder / "files"
        pack(draw(files / "train", 5, 18), files / "tars", 3)
        (files / "rows").mkdir()
        table = files / "rows" / "rows.parquet"
        subprocess.run([formats(), "-c", TABLE, table, str(ROWS), "10"], check=True, timeout=PATIENCE)
        server.container("data")
        server.fill("data", files)
        yield server, files
    finally:
        server.stop()


def daemon(world: World, url: str, folder: Path, key: str = KEY, **settings: Any) -> Any:
    """A daemon that reads from the container behind a URL, with a disk tier that holds all of it."""
    account = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};BlobEndpoint={url}/{ACCOUNT};"
    world.monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", account)
    tiers = {"total": "64MiB", "encoded": "0", "decoded": "0", "augmented": "0"}
    disk = {"dir": str(folder), "size": "64MiB"}
    return world.daemon("", {"tiers": {**tiers, "disk": disk}, "stores": {"az": {"hedge": "0", **settings}}})


def samples(uri: str, batch: Any) -> list[tuple[int, str]]:
    """The samples of a batch: id and text of a row, or label and digest of an image."""
    if uri.startswith("parquet:"):
        return [(int(i), t) for i, t in zip(batch["id"], batch["text"], strict=True)]
    return [(int(x), digest(i)) for i, x in zip(*batch, strict=True)]


@pytest.mark.nightly
@pytest.mark.audit("--whole")
@pytest.mark.parametrize("scheme", DATASETS)
def test_four_jobs_get_everything_once(scheme, container, world, tmp_path):
    server, files = container
    proxy = Proxy(server, lambda n: ANSWERS.get(n % 13))
    try:
        d = daemon(world, proxy.url, tmp_path / "disk", timeout="1m")
        local = f"{scheme}:{files / DATASETS[scheme]}"
        with larder.Loader(local, batch_size=8, shuffle=False, epochs=1) as loader:
            want = sorted(x for batch in loader for x in samples(local, batch))
        assert len(want) == 90
        uri = f"{scheme}:az://data/{DATASETS[scheme]}"
        loaders = [larder.Loader(uri, batch_size=8, job=f"job{i}", seed=i, epochs=2, prefetch=3) for i in range(4)]
        spent = []
        for _ in range(2):
            got: list[list[tuple[int, str]]] = [[] for _ in loaders]
            for batches in zip(*loaders, strict=True):
                for seen, batch in zip(got, batches, strict=True):
                    seen += samples(uri, batch)
            assert [sorted(seen) for seen in got] == [want] * 4
            spent.append(cost(d))
        for loader in loaders:
            loader.close()
        assert proxy.spoilt > 0 and spent[1]["errors"] == 0 and spent[1]["name"] == "az://data"
        assert spent[1]["retries"] > 0
        assert (spent[1]["reads"], spent[1]["bytes"]) == (spent[0]["reads"], spent[0]["bytes"])
    finally:
        proxy.close()


@pytest.mark.nightly
def test_what_is_wrong_is_named_without_the_key(container, world, tmp_path):
    server, _ = container
    url = f"http://127.0.0.1:{server.port}"
    daemon(world, url, tmp_path / "disk")
    with pytest.raises(larder.Error, match="no such container"):
        larder.Loader("imagefolder:az://none/train", batch_size=4)
    other = base64.b64encode(bytes(32)).decode()
    d = daemon(world, url, tmp_path / "disk2", key=other)
    with pytest.raises(larder.Error, match=r"access is denied|not accepted") as e:
        larder.Loader("imagefolder:az://data/train", batch_size=4)
    assert other not in str(e.value) + d.log.read_text() + d.cli("config", "show").stdout
