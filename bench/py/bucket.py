"""A bucket behind a slow line, for benchmarks: versitygw serves a folder as S3, and a line stands before it.

The line adds its latency to every request and lets through so many bytes a second, of all connections together. It
counts the bytes that came through, and the GETs.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import multiprocessing
import os
import pathlib
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from loaders import ROOT, out_dir

SHARDS = 8
KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests", "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true"}


class Passed(NamedTuple):
    """What came through a line: bytes to clients, and GETs of theirs."""

    bytes: int
    gets: int


class Line:
    """A line that runs in a process of its own."""

    def __init__(self, url: str, counts: Any) -> None:
        self.url = url
        self.counts = counts

    @property
    def env(self) -> dict[str, str]:
        """What clients need to find the bucket: the AWS SDKs' variables, and MosaicML streaming's."""
        return KEYS | {"AWS_ENDPOINT_URL": self.url, "S3_ENDPOINT_URL": self.url}

    def passed(self) -> Passed:
        return Passed(*self.counts[:])


# --- the line -------------------------------------------------------------------------------------------------------


async def line(port: int, server: int, latency: float, rate: float, passed: Any) -> None:
    """Passes connections on: what a client sends is late by `latency`, what it gets comes at `rate` bytes a second."""
    free = [0.0]  # when the line is free again

    async def down(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while chunk := await source.read(64 << 10):
            free[0] = max(free[0], time.monotonic()) + len(chunk) / rate
            await asyncio.sleep(free[0] - time.monotonic())
            passed[0] += len(chunk)
            to.write(chunk)
            await to.drain()
        to.close()

    async def up(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while chunk := await source.read(64 << 10):
            passed[1] += chunk.startswith(b"GET ")  # a client sends a request when it has the answer to the last one
            await asyncio.sleep(latency)
            to.write(chunk)
            await to.drain()
        to.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", server)
        await asyncio.gather(up(reader, back), down(there, writer), return_exceptions=True)
        for to in (writer, back):  # a client or the server that was killed reset its end
            with contextlib.suppress(OSError):
                to.close()
                await to.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", port) as s:
        await s.serve_forever()


def pass_on(*how: Any) -> None:
    asyncio.run(line(*how))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def answers(port: int) -> None:
    """Waits until something listens on a port."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


@contextlib.contextmanager
def slow_line(port: int, latency: float, rate: float) -> Iterator[Line]:
    """A line before a port of this machine; latency in seconds, rate in bytes a second."""
    outer = free_port()
    passed = multiprocessing.Array("q", 2)
    proxy = multiprocessing.Process(target=pass_on, args=(outer, port, latency, rate, passed), daemon=True)
    proxy.start()
    try:
        answers(outer)
        yield Line(f"http://127.0.0.1:{outer}", passed)
    finally:
        proxy.terminate()
        proxy.join()


@contextlib.contextmanager
def slow_bucket(folder: pathlib.Path, latency: float, rate: float) -> Iterator[Line]:
    """A folder as S3 behind a line. Its folders are buckets."""
    binary = os.environ.get("LARDER_VERSITYGW") or str(ROOT / "bin/tools/versitygw")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="stores-") as meta, open(out_dir() / "stores.log", "a") as log:
        server = subprocess.Popen(
            [binary, "--port", f"127.0.0.1:{port}", "--access", KEYS["AWS_ACCESS_KEY_ID"], "--secret",
             KEYS["AWS_SECRET_ACCESS_KEY"], "--quiet", "--keep-alive", "posix", "--sidecar", meta, str(folder)],
            stdout=log, stderr=log)
        try:
            answers(port)
            with slow_line(port, latency, rate) as line:
                yield line
        finally:
            server.kill()
            server.wait()


def tars(data: str, out: pathlib.Path) -> pathlib.Path:
    """The images as tars of WebDataset, in an order that is mixed over the classes; made once and kept."""
    if out.is_dir():
        return out
    files = sorted(f for f in pathlib.Path(data).glob("*/*") if f.is_file())
    classes = {name: str(i).encode() for i, name in enumerate(sorted({f.parent.name for f in files}))}
    half = out.with_name(out.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    for k in range(SHARDS):
        with tarfile.open(half / f"train-{k:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for n, f in list(enumerate(files))[k::SHARDS]:
                for suffix, body in (("jpg", f.read_bytes()), ("cls", classes[f.parent.name])):
                    member = tarfile.TarInfo(f"{n:08}.{suffix}")
                    member.size = len(body)
                    tar.addfile(member, io.BytesIO(body))
    half.rename(out)
    return out
