"""Runs of TensorSocket (pip: tensorsocket) beside larder, in a virtual environment of its own on top of the one in use.

One producer (torch's DataLoader on the same images, the same transforms) and several consumers, which all get the same
batches. Two rows: as released, where pickle copies CPU tensors into each message, and with its own hooks (pack_fn,
unpack_fn) used to send names of shared memory instead, which consumers map once: what torch.multiprocessing would do,
without the copies.

What it is given, so that it works, and as well as it can:

* Tensor._typed_storage is aliased for torch before 2.0.
* A consumer's first acknowledgement is often lost (it is published, and what is published before the subscription has
  arrived is lost). The producer then waits 10 s, takes the consumer for one that still needs batch 0, sends that
  again and again, and is refused each time: the run stalls. So each consumer first sends a message that no one needs.
* Its pool of tensors is filled with shared memory before the first batch. Else each of the first ten messages moves
  the memory of its batches into shared memory in one call that holds the interpreter, heartbeats included. Consumers
  that are lost are named in the log.
* producer_batch_size (batches of the loader to a message) is TOGETHER instead of 8. Pickled it is 1: each of a
  message's slices carries the whole storage, once for each consumer, and with 8 no message arrives within a minute.
* The images are repeated, so that no end of an epoch, where all wait for a heartbeat, is within the run.

The producer starts when all consumers have. Rates count whole messages, from the end of the first one behind what the
loader's workers had prepared before the consumers came. """

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time

from loaders import BATCH, IMAGENET, out_dir

PATIENCE = 30.0  # seconds for the first batch
TOGETHER = {True: 2, False: 1}  # batches of the loader to a message; shared memory or pickled
REPEATED = 100  # times that an epoch of TensorSocket has each image
PINS = ("tensorsocket==0.0.5", "pyzmq==27.3.0", "tornado==6.6.1")


def install() -> tuple[str, str]:
    """The Python that has TensorSocket, and why there is none when it is empty."""
    venv = out_dir() / "tensorsocket"
    python = venv / "bin/python"
    check = [str(python), "-c", "import torch, tensorsocket"]
    if python.exists() and subprocess.run(check, capture_output=True).returncode == 0:
        return str(python), ""
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--system-site-packages", str(venv)], check=True,
                       capture_output=True, text=True)
        # Without its dependencies: torch is there, and the wheels of its CUDA libraries are gigabytes.
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1",
                        "--timeout", "20", "--no-deps", *PINS],
                       check=True, capture_output=True, text=True, timeout=180)
        done = subprocess.run(check, capture_output=True, text=True)
        return (str(python), "") if done.returncode == 0 else ("",
                                                               (done.stderr.strip().splitlines()
                                                                or ["import failed"])[-1])
    except subprocess.CalledProcessError as e:
        return "", ((e.stderr or "").strip().splitlines() or [str(e)])[-1]
    except (OSError, subprocess.TimeoutExpired) as e:
        return "", str(e)


# --- children -------------------------------------------------------------------------------------------------------


def alias() -> None:
    import torch

    if not hasattr(torch.Tensor, "_typed_storage"):
        torch.Tensor._typed_storage = torch.Tensor.storage


def storage_of(tensor):
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()._storage


def pack(data: tuple) -> tuple:
    """Names the shared memory of tensors; their storages move there when they are first sent. TensorSocket's pool uses
    each again and again."""
    out = []
    for t in data:
        s = storage_of(t)
        out.append((*s._share_filename_cpu_(), t.dtype, t.storage_offset(), tuple(t.shape), t.stride()))
    return tuple(out)


class Unpack:
    """The other side of pack: a storage is mapped once."""

    def __init__(self) -> None:
        self.storages: dict[bytes, object] = {}

    def __call__(self, data: tuple) -> tuple:
        import torch

        kind = torch.UntypedStorage if hasattr(torch, "UntypedStorage") else torch._UntypedStorage
        out = []
        for manager, name, size, dtype, offset, shape, strides in data:
            s = self.storages.get(name)
            if s is None:
                s = self.storages[name] = kind._new_shared_filename_cpu(manager, name, size)
            out.append(torch.empty(0, dtype=dtype).set_(s, offset, shape, strides))
        return tuple(out)


def fill_pool(pool, together: int) -> None:
    """Gives a TensorPool its tensors, in shared memory: assign copies into what is there."""
    import torch

    for i in range(pool.max_size):
        pool.pool[i] = torch.empty(together * BATCH, 3, 224, 224), torch.empty(together * BATCH, dtype=torch.int64)
        pack(pool.pool[i])


def child_producer(data: str, ports: list[int], workers: int, shared: bool) -> None:
    import torch
    from torchvision import datasets, transforms

    alias()
    import tensorsocket
    from tensorsocket.heartbeat import HeartBeater

    def lost(self, heart: bytes) -> None:
        print(f"producer: a heartbeat of consumer {heart.decode()} was missed", file=sys.stderr, flush=True)
        forget(self, heart)

    forget, HeartBeater.handle_heart_failure = HeartBeater.handle_heart_failure, lost
    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_system")
    images = datasets.ImageFolder(data, transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize(*IMAGENET)]))
    loader = torch.utils.data.DataLoader(torch.utils.data.ConcatDataset([images] * REPEATED), batch_size=BATCH,
                                         shuffle=True, num_workers=workers, drop_last=True)
    hooks = {"pack_fn": pack} if shared else {}
    producer = tensorsocket.TensorProducer(loader, ports[0], ports[1], (ports[2], ports[3]),
                                           producer_batch_size=TOGETHER[shared], **hooks)
    if shared:
        fill_pool(producer.pool, TOGETHER[shared])
    print("ready", flush=True)
    threading.Thread(target=lambda: (sys.stdin.readline(), os._exit(0)), daemon=True).start()
    consumers = int(os.environ["CONSUMERS"])
    while len(producer.hb.consumers) < consumers:
        time.sleep(0.01)
    while True:
        try:
            for _ in producer:
                pass
        except Exception as e:
            print(f"producer: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
            os._exit(1)


def child_consumer(ports: list[int], seconds: float, shared: bool, enough: int) -> None:
    import torch

    alias()
    import tensorsocket

    torch.set_num_threads(1)
    got: list[tuple[float, int]] = []
    cpu: list[float] = []

    def consume() -> None:
        hooks = {"unpack_fn": Unpack()} if shared else {}
        consumer = tensorsocket.TensorConsumer(ports[0], ports[1], (ports[2], ports[3]), batch_size=BATCH, **hooks)
        # the first thing that is said here may be lost, and this one is needed by no one
        consumer.ack_socket.send_multipart([b"nobody", b"-1", b"0"])
        while True:
            try:
                for batch in consumer:
                    got.append((time.perf_counter(), len(batch[0])))
                    cpu.append(time.process_time())
            except KeyError:
                continue

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    deadline = time.perf_counter() + PATIENCE
    while not got and thread.is_alive() and time.perf_counter() < deadline:
        time.sleep(0.05)
    time.sleep(seconds)
    while len(got) < enough and thread.is_alive() and time.perf_counter() < deadline + seconds:
        time.sleep(0.05)
    print(json.dumps({"got": got, "cpu": cpu[-1] - cpu[0] if cpu else 0}), flush=True)
    os._exit(0)


# --- runs -----------------------------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    import socket

    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@dataclasses.dataclass(frozen=True)
class Shape:
    """The processes of a run, how long it is, and whether tensors go through shared memory or are pickled."""

    consumers: int
    workers: int
    seconds: float
    shared: bool


def run(python: str, data: str, shape: Shape) -> dict[str, float]:
    consumers, workers, seconds, shared = dataclasses.astuple(shape)
    ports = json.dumps(free_ports(4))
    env = dict(os.environ, CONSUMERS=str(consumers), PYTHONUNBUFFERED="1")
    ahead = 2 * workers  # batches that the loader's workers prepare before a consumer asks
    enough = ahead + 4 * TOGETHER[shared]  # batches of a consumer, on a machine so busy that the seconds bring fewer
    log = open(out_dir() / "tensorsocket.log", "a")
    producer = subprocess.Popen([python, __file__, "--child", "producer", data, ports, str(workers), str(int(shared))],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
    jobs: list[subprocess.Popen] = []
    try:
        if not any(line.strip() == "ready" for line in producer.stdout):  # it logs to stdout
            raise SystemExit(f"TensorSocket's producer did not start: see {log.name}")
        jobs = [subprocess.Popen([python, __file__, "--child", "consumer", ports, str(seconds), str(int(shared)),
                                  str(enough)],
                                 stdout=subprocess.PIPE, stderr=log, text=True, env=env) for _ in range(consumers)]
        results = [json.loads(j.communicate(timeout=seconds + 3 * PATIENCE)[0].splitlines()[-1]) for j in jobs]
    finally:
        for p in (*jobs, producer):
            if p.poll() is None:
                p.kill()
            p.wait()
        log.close()
    return rate([r["got"] for r in results], TOGETHER[shared], ahead)


def rate(got: list[list[tuple[float, int]]], together: int, ahead: int) -> dict[str, float]:
    """Images a second of all consumers. Batches come together, so many to a message: each consumer's time counts from
    the end of the first message behind those ahead to the end of its last whole one. A run in which a consumer got no
    two such messages has no rate: it says nothing of how fast TensorSocket is when it works, and as 0 it would speak
    for larder."""
    ends = [g[together - 1::together][-(-ahead // together):] for g in got]
    stalled = sum(len(e) < 2 for e in ends)
    if stalled:
        return {"stalled": float(stalled)}
    return {"warm": sum((len(e) - 1) * together * e[0][1] / (e[-1][0] - e[0][0]) for e in ends), "stalled": 0.0}


def main() -> None:
    kind, *rest = sys.argv[2:]
    if kind == "producer":
        child_producer(rest[0], json.loads(rest[1]), int(rest[2]), rest[3] == "1")
    else:
        child_consumer(json.loads(rest[0]), float(rest[1]), rest[2] == "1", int(rest[3]))


if __name__ == "__main__":
    main()
