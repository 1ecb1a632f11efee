"""Tars in a bucket behind a slow line, and tars beside folders on a local disk.

    .venv/bin/python bench/py/stores.py [--minutes 10] [--images 1216] [--latency 30] [--bandwidth 8] [--write]

The work is that of peers.py: RandomResizedCrop(224) and a flip, uint8 batches of 64. larder keeps stored bytes in
memory and nothing decoded, as MosaicML streaming keeps its shards on the disk. versitygw serves a folder as S3; a line
before it adds the latency to every request and lets through so many MiB a second, of all connections together. Four
jobs begin together and go through one epoch: larder on `wds:s3://`, and MosaicML streaming on `s3://` with boto3, each
job with a cache of its own, as it is written for. Bytes are those that came through the line. Then four jobs of larder
on the same images on the local disk, as a folder and as tars, from the page cache, and nothing is kept. Every round
runs all of it in turn, every second one backwards. Figures are medians (lowest to highest).

--write rewrites the rows of docs/measurements/stores.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import multiprocessing
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import figures
import loaders
import peers
import peers_env
from loaders import BATCH, NOTHING, ROOT, Daemon, out_dir
from peers_figures import outcome

from bench import machine

JOBS, SHARDS = 4, 8
PAGE = ROOT / "docs/measurements/stores.md"
BEGIN, END = "<!-- stores: written by bench/py/stores.py -->", "<!-- end of the stores -->"
KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests", "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true"}
ROWS = {"s3": "larder, wds:s3://", "mosaic": "MosaicML streaming, s3://", "wds": "larder, wds: on the local disk",
        "folder": "larder, imagefolder: on the local disk"}


# --- the line -------------------------------------------------------------------------------------------------------


async def line(port: int, server: int, latency: float, rate: float, passed: Any) -> None:
    """Passes connections on: what a client sends is late by `latency`, what it gets comes at `rate` bytes a second."""
    free = [0.0]  # when the line is free again

    async def down(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while chunk := await source.read(64 << 10):
            free[0] = max(free[0], time.monotonic()) + len(chunk) / rate
            await asyncio.sleep(free[0] - time.monotonic())
            passed.value += len(chunk)
            to.write(chunk)
            await to.drain()
        to.close()

    async def up(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while chunk := await source.read(64 << 10):
            await asyncio.sleep(latency)
            to.write(chunk)
            await to.drain()
        to.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", server)
        await asyncio.gather(up(reader, back), down(there, writer), return_exceptions=True)

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
def slow_bucket(folder: pathlib.Path, latency: float, rate: float) -> Iterator[tuple[str, Any]]:
    """The address of S3 behind the line, and the bytes that came through."""
    binary = os.environ.get("LARDER_VERSITYGW") or str(ROOT / "bin/tools/versitygw")
    port, outer = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="stores-") as meta, open(out_dir() / "stores.log", "a") as log:
        server = subprocess.Popen(
            [binary, "--port", f"127.0.0.1:{port}", "--access", KEYS["AWS_ACCESS_KEY_ID"], "--secret",
             KEYS["AWS_SECRET_ACCESS_KEY"], "--quiet", "--keep-alive", "posix", "--sidecar", meta, str(folder)],
            stdout=log, stderr=log)
        passed = multiprocessing.Value("q", 0)
        proxy = multiprocessing.Process(target=pass_on, args=(outer, port, latency, rate, passed), daemon=True)
        proxy.start()
        try:
            answers(port)
            answers(outer)
            yield f"http://127.0.0.1:{outer}", passed
        finally:
            proxy.terminate()
            proxy.join()
            server.kill()
            server.wait()


# --- data -----------------------------------------------------------------------------------------------------------


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


# --- runs -----------------------------------------------------------------------------------------------------------


def race(python: str, program: str, spec: dict[str, Any], env: dict[str, str], each: Any = None) -> dict[str, float]:
    """Four jobs that begin together; `each` is called when they begin."""
    children: list[subprocess.Popen] = []
    with open(out_dir() / "stores.log", "a") as log, tempfile.TemporaryDirectory(dir=peers.home()) as scratch:
        try:
            for job in range(JOBS):
                own = spec | {"batch": BATCH, "crop": 224, "epochs": 1, "probe": "", "job": job, "jobs": JOBS,
                              "scratch": scratch, "variant": "", "workers": 2, "servers": spec.get("servers", [])}
                children.append(subprocess.Popen(
                    [python, str(ROOT / "bench/peers" / program), json.dumps(own)], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
                    env=os.environ | env | {"PYTHONUNBUFFERED": "1"}))
            watch = threading.Timer(peers.PATIENCE, lambda: [peers.kill(p) for p in children])
            watch.start()
            for p in children:
                peers.line_of(p, "ready")
            begun = each() if each else 0
            for p in children:
                p.stdin.write("go\n")
                p.stdin.flush()
            results = [json.loads(peers.line_of(p, "{")) for p in children]
            watch.cancel()
        finally:
            for p in children:
                peers.end(p)
    seconds = max(r["marks"][1]["at"] for r in results) - min(r["marks"][0]["at"] for r in results)
    return {"rate": outcome(results)["first"], "seconds": seconds, "bytes": (each() - begun) if each else 0}


def larder(args: argparse.Namespace, uri: str, data: str, env: dict[str, str], passed: Any = None) -> dict[str, float]:
    """One run of larder: the index is made before the clock."""
    binary = args.bin
    with tempfile.TemporaryDirectory(prefix="stores-") as cache:  # no index of an earlier run
        return of_daemon(binary, uri, data, env | {"XDG_CACHE_HOME": cache}, passed)


def of_daemon(binary: str, uri: str, data: str, env: dict[str, str], passed: Any) -> dict[str, float]:
    """One run with a daemon of its own."""
    keep = ("tiers.total=512MiB", "tiers.encoded=448MiB", "tiers.decoded=0", "tiers.augmented=0", "source.readers=64")
    daemon = Daemon(binary, *(f for k in (keep if passed else NOTHING) for f in ("--set", k)), env=os.environ | env)
    try:
        before = passed.value if passed else 0
        subprocess.run([binary, "--socket", daemon.socket, "dataset", "add", uri], check=True, capture_output=True,
                       env=os.environ | env)
        index = (passed.value - before) if passed else 0
        spec = {"uri": uri, "data": data, "servers": [daemon.process.pid]}
        mine = env | {"LARDER_SOCKET": daemon.socket, "PYTHONPATH": str(ROOT / "python")}
        return race(sys.executable, "run_larder.py", spec, mine, (lambda: passed.value) if passed else None) | {
            "index": index}
    finally:
        daemon.close()


def measure(args: argparse.Namespace) -> tuple[dict[str, list[dict[str, float]]], int, str]:
    """The runs of each row, the bytes of the images, and why MosaicML is not among them."""
    data = peers.photographs(args.images)
    stored = sum(f.stat().st_size for f in pathlib.Path(data).glob("*/*"))
    buckets = peers.home() / f"buckets-{args.images}"
    packed = tars(data, buckets / "bench" / "wds")
    mosaic = peers_env.ENVIRONMENTS["mds"]
    can = subprocess.run([str(mosaic.python), "-c", "import streaming, boto3"], capture_output=True, check=False) \
        if mosaic.python.exists() else None
    absent = "" if can and can.returncode == 0 else "its environment has no boto3, or is not there: make bench-peers"
    shards = buckets / "bench" / "mds"
    if not absent and not shards.is_dir():
        subprocess.run([str(mosaic.python), str(ROOT / "bench/peers/run_mds.py"), "convert", data, str(shards)],
                       check=True)
    runs: dict[str, list[dict[str, float]]] = {}
    with slow_bucket(buckets, args.latency / 1000, args.bandwidth * (1 << 20)) as (url, passed):
        env = KEYS | {"AWS_ENDPOINT_URL": url, "S3_ENDPOINT_URL": url}
        do = {
            "s3": lambda: larder(args, f"wds:s3://bench/wds/train-{{000..{SHARDS - 1:03}}}.tar", data, env, passed),
            "mosaic": lambda: race(str(mosaic.python), "run_mds.py", {"data": data, "remote": "s3://bench/mds"}, env,
                                   lambda: passed.value),
            "wds": lambda: larder(args, f"wds:{packed}", data, {}),
            "folder": lambda: larder(args, f"imagefolder:{data}", data, {}),
        }
        names = [n for n in do if not (n == "mosaic" and absent)]
        begun, longest, rounds = time.monotonic(), 0.0, 0
        while rounds < 1 or time.monotonic() - begun + longest < 60 * args.minutes:
            start = time.monotonic()
            for name in names if rounds % 2 == 0 else reversed(names):
                r = do[name]()
                runs.setdefault(name, []).append(r)
                print(f"  {ROWS[name]}: " + ", ".join(f"{k} {v:,.1f}" for k, v in r.items()), flush=True)
            rounds += 1
            longest = max(longest, time.monotonic() - start)
    return runs, stored, absent


def span(values: list[float], digits: int = 0) -> str:
    if len(values) == 1:
        return f"{values[0]:,.{digits}f}"
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def lines_of(runs: dict[str, list[dict[str, float]]], stored: int, absent: str, args: argparse.Namespace) -> list[str]:
    """The part of the page that a run writes."""
    about, line_rate = machine(), args.bandwidth * (1 << 20)
    out = [f"{about['date']}, {about['commit']}: {about['processor']}, {about['processors']} processors, load before "
           f"it {about['load_before']:.1f}. {JOBS} jobs, {args.images} photographs ({stored / 1e6:.0f} MB), one epoch;",
           f"a line with {args.latency} ms and {args.bandwidth} MiB/s; {len(runs['folder'])} rounds.", "",
           "| system | images/s of all jobs | part of the line's bandwidth | bytes fetched for each byte of an image |",
           "|---|---|---|---|"]
    for name, some in runs.items():
        remote = name in ("s3", "mosaic")
        used = span([r["bytes"] / r["seconds"] / line_rate for r in some], 2) if remote else ""
        part = span([r["bytes"] / stored for r in some], 2) if remote else ""
        out.append(f"| {ROWS[name]} | {span([r['rate'] for r in some])} | {used} | {part} |")
    by = {n: statistics.median([r["rate"] for r in some]) for n, some in runs.items()}
    index = span([r["index"] / stored for r in runs["s3"]], 2)
    out += ["", f"- The index read {index} bytes for each byte of the images, before the epoch.",
            f"- Tars beside a folder on the local disk: {by['wds'] / by['folder']:.2f}x (bar: 1.0x)."]
    if absent:
        out.append(f"- MosaicML streaming: not measured ({absent}).")
    else:
        out.append(f"- larder beside MosaicML streaming: {by['s3'] / by['mosaic']:.1f}x (bar: 3x).")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--images", type=int, default=1216)
    parser.add_argument("--latency", type=int, default=30, help="milliseconds that every request waits")
    parser.add_argument("--bandwidth", type=int, default=8, help="MiB a second through the line")
    parser.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    parser.add_argument("--write", action="store_true", help="rewrite the rows of docs/measurements/stores.md")
    args = parser.parse_args()
    loaders.photographs()  # says early what is missing
    runs, stored, absent = measure(args)
    lines = lines_of(runs, stored, absent, args)
    print("\n".join(lines))
    (out_dir() / "stores.json").write_text(json.dumps({"runs": runs, "stored": stored, "machine": machine()}, indent=1))
    if args.write:
        figures.replace_between(PAGE, lines, BEGIN, END)


if __name__ == "__main__":
    main()
