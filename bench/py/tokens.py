"""Measures windows of token ids out of memory, beside a copy of as many bytes, nanoGPT and MosaicML streaming.

    LARDER_BIN=bin/larder .venv/bin/python bench/py/tokens.py [--minutes 5] [--mib 64] [--seq-len 1024] [--batch 64]
        [--windows 1024,8192,65536] [--python .venv-formats/bin/python] [--quick] [--write]

One file of uint16 ids, as nanoGPT writes it, is read by one job at a time, shuffled, and all of it lies in memory:

- larder: `tokens:FILE?seq_len=N`, stored samples in the encoded tier. The first epoch fills it and does not count;
- memcpy: a copy of as many bytes as a batch has, out of a buffer of the size of the file, by numpy.copyto;
- nanoGPT: get_batch of its train.py, on a numpy.memmap whose pages are in the page cache: windows at random places, as
  int64, x and y by torch.stack;
- streaming: MosaicML's StreamingDataset of the same windows (one ndarray a sample) in a DataLoader of torch with as
  many workers as there are processors, batches by numpy.stack. It is left out where the interpreter that --python
  names has no `streaming`.

--windows measures larder and memcpy at other lengths too. A batch has as many ids as with --seq-len and --batch, but
at least 8 windows, so that the rows show from which length on a window is as good as a copy.

All take turns, every second time backwards. The rate is bytes of ids a second: of nanoGPT those in the file, x and y
together being one window. The bar is 0.7 of memcpy, and the lower end of the 95 % bootstrap interval of the ratio of
medians has to reach it. Raw figures go to out/bench/tokens.json; --write rewrites the rows of
docs/measurements/stores.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import figures
from figures import Bar, Source
from loaders import ROOT, Daemon, gate, out_dir

PAGE = ROOT / "docs/measurements/stores.md"
BEGIN, END = "<!-- tokens: written by bench/py/tokens.py -->", "<!-- end of tokens -->"
EPOCHS = 4  # that count, behind one that does not
UNITS = {"rate": "ids, MiB/s", "windows": "windows/s", "cpu": "processor time of the job, ns a window",
         "daemon": "of the daemon"}


# --- children: one job each; each yields how many windows a batch has ------------------------------------------------


def by_larder(spec: dict[str, Any]) -> Callable[[], Iterator[int]]:
    import larder

    loader = larder.Loader(f"tokens:{spec['file']}?seq_len={spec['seq_len']}", batch_size=spec["batch"], shuffle=True,
                           seed=1, job="tokens")

    def epoch() -> Iterator[int]:
        for batch in loader:
            yield len(batch["tokens"])

    return epoch


def by_memcpy(spec: dict[str, Any]) -> Callable[[], Iterator[int]]:
    import numpy as np

    size = spec["batch"] * (spec["seq_len"] + 1)
    source = np.fromfile(spec["file"], np.uint16)
    batches = source[: len(source) // size * size].reshape(-1, size)
    to = np.empty(size, np.uint16)

    def epoch() -> Iterator[int]:
        for b in batches:
            np.copyto(to, b)
            yield spec["batch"]

    return epoch


def by_nanogpt(spec: dict[str, Any]) -> Callable[[], Iterator[int]]:
    import numpy as np
    import torch

    block, batch = spec["seq_len"], spec["batch"]
    torch.manual_seed(1)

    def get_batch() -> tuple[Any, Any]:  # as train.py of nanoGPT has it
        data = np.memmap(spec["file"], dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - block, (batch,))
        x = torch.stack([torch.from_numpy((data[i:i + block]).astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy((data[i + 1:i + 1 + block]).astype(np.int64)) for i in ix])
        return x, y

    def epoch() -> Iterator[int]:
        for _ in range(spec["windows"] // batch):
            yield len(get_batch()[0])

    return epoch


def by_streaming(spec: dict[str, Any]) -> Callable[[], Iterator[int]]:
    import numpy as np
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    workers = len(os.sched_getaffinity(0))
    dataset = StreamingDataset(local=spec["shards"], shuffle=True, shuffle_seed=1, batch_size=spec["batch"])
    loader = DataLoader(dataset, batch_size=spec["batch"], num_workers=workers, persistent_workers=True,
                        collate_fn=lambda rows: np.stack([r["tokens"] for r in rows]))  # torch has no uint16 here

    def epoch() -> Iterator[int]:
        for batch in loader:
            yield len(batch)

    return epoch


KINDS = {"larder": by_larder, "memcpy": by_memcpy, "nanoGPT": by_nanogpt, "streaming": by_streaming}


def child(which: str, spec: dict[str, Any]) -> None:
    """One epoch that does not count and EPOCHS that do; prints windows a second."""
    epoch = KINDS[which](spec)
    gate()
    sum(epoch())
    print("warm", flush=True)
    sys.stdin.readline()
    begin, cpu, n = time.perf_counter(), time.process_time(), 0
    for _ in range(EPOCHS):
        n += sum(epoch())
    seconds = time.perf_counter() - begin
    if n < EPOCHS * (spec["windows"] - spec["batch"]):
        raise SystemExit(f"{which} gave {n} windows in {EPOCHS} epochs of {spec['windows']}")
    cpu = time.process_time() - cpu
    print(json.dumps({"windows": n / seconds, "cpu": cpu, "n": n}), flush=True)
    sys.stdin.readline()


def write_shards(spec: dict[str, Any]) -> None:
    """The same windows as MosaicML's own writer puts them."""
    import numpy as np
    from streaming import MDSWriter

    ids, n = np.fromfile(spec["file"], np.uint16), spec["seq_len"]
    with MDSWriter(out=spec["shards"], columns={"tokens": f"ndarray:uint16:{n + 1}"}) as out:
        for at in range(0, len(ids) - n, n):
            out.write({"tokens": ids[at:at + n + 1]})


def spec_of(args: argparse.Namespace, path: str, seq_len: int) -> dict[str, Any]:
    """What a child is to do with windows of a length: batches have as many ids for each length, but 8 windows."""
    n, ids = args.mib << 19, args.seq_len * args.batch
    return {"file": path, "seq_len": seq_len, "batch": max(8, ids // seq_len),
            "windows": (n - seq_len - 1) // seq_len + 1}


# --- runs -------------------------------------------------------------------------------------------------------------


def job(python: str, which: str, spec: dict[str, Any], env: dict[str, str],
        cpu: Callable[[], float] = lambda: 0.0) -> dict[str, float]:
    """Runs a child, and says how many bytes of ids a second it gave, and how much processor time a window took in it
    and in what cpu reads."""
    with subprocess.Popen([python, __file__, "--child", which, json.dumps(spec)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, env=os.environ | env) as p:
        if p.stdin is None or p.stdout is None:
            raise AssertionError("a pipe is missing")
        to, by = p.stdin, p.stdout

        def said(word: str) -> str:
            line = by.readline()
            if not line.startswith(word):
                raise SystemExit(f"{which} said {line!r} instead of {word}")
            return line

        def go() -> None:
            to.write("go\n")
            to.flush()

        said("ready")
        go()
        said("warm")
        before = cpu()
        go()
        got = json.loads(said("{"))
        of_others = cpu() - before
        go()
    if p.returncode:
        raise SystemExit(f"{which} ended with {p.returncode}")
    out = {"rate": got["windows"] * 2 * (spec["seq_len"] + 1) / 2**20, "windows": got["windows"],
           "cpu": 1e9 * got["cpu"] / got["n"]}
    if of_others:
        out["daemon"] = 1e9 * of_others / got["n"]
    return out


def larder_job(binary: str, spec: dict[str, Any]) -> dict[str, float]:
    daemon = Daemon(binary, "--set", "tiers.total=1GiB", "--set", "tiers.encoded=80%")
    try:
        env = {"PYTHONPATH": str(ROOT / "python"), "LARDER_SOCKET": daemon.socket}
        return job(sys.executable, "larder", spec, env, daemon.cpu)
    finally:
        daemon.close()


def measure(args: argparse.Namespace, spec: dict[str, Any]) -> tuple[figures.Runs, str]:
    """The runs, and why streaming is not among them, if it is not."""
    steps: list[tuple[str, Callable[[], dict[str, float]]]] = [
        ("memcpy", lambda: job(sys.executable, "memcpy", spec, {})),
        ("larder", lambda: larder_job(args.bin, spec)),
        ("nanoGPT", lambda: job(sys.executable, "nanoGPT", spec, {})),
    ]
    for n in args.windows:
        other = spec_of(args, spec["file"], n)
        steps += [(f"memcpy, {n}", lambda s=other: job(sys.executable, "memcpy", s, {})),  # type: ignore[misc]
                  (f"larder, {n}", lambda s=other: larder_job(args.bin, s))]  # type: ignore[misc]
    p = subprocess.run([args.python, __file__, "--shards", json.dumps(spec)], capture_output=True, text=True)
    if p.returncode == 0:
        steps.append(("streaming", lambda: job(args.python, "streaming", spec, {})))
        return figures.in_turn(steps, args.minutes, args.quick), ""
    why = f"streaming is not run: {args.python}: {p.stderr.strip().splitlines()[-1]}"
    return figures.in_turn(steps, args.minutes, args.quick), why


def bars(runs: figures.Runs, windows: list[int]) -> list[Bar]:
    def over(of: str, bar: float, named: str) -> Bar:
        return Bar("`tokens:` from memory", Source("larder", "rate"), bar, (Source(of, "rate"),), named)

    out = [over("memcpy", 0.7, "a copy of as many bytes"), over("nanoGPT", 1, "nanoGPT's get_batch")]
    if "streaming" in runs:
        out.append(over("streaming", 1, "MosaicML streaming"))
    return out + [Bar(f"`tokens:` from memory, windows of {n}", Source(f"larder, {n}", "rate"), 0.7,
                      (Source(f"memcpy, {n}", "rate"),), "a copy of as many bytes") for n in windows]


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    p.add_argument("--windows", type=lambda s: [int(x) for x in s.split(",") if x], default=[8192, 65536],
                   help="other lengths of windows, measured beside a copy only")
    p.add_argument("--python", default=str(ROOT / ".venv-formats/bin/python"), help="an interpreter with streaming")
    p.add_argument("--minutes", type=float, default=5, help="at least three repeats are made, whatever they take")
    p.add_argument("--mib", type=int, default=64, help="of ids")
    p.add_argument("--seq-len", type=int, default=1024)
    p.add_argument("--batch", type=int, default=64, help="windows of a batch")
    p.add_argument("--quick", action="store_true", help="once, to see that it runs: nothing is shown by it")
    p.add_argument("--write", action="store_true", help="rewrite the rows of docs/measurements/stores.md")
    args = p.parse_args()
    args.bin = os.path.abspath(args.bin)
    return args


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], json.loads(sys.argv[3]))
        return
    if sys.argv[1:2] == ["--shards"]:
        write_shards(json.loads(sys.argv[2]))
        return
    import numpy as np

    args = arguments()
    load = os.getloadavg()[2]
    with tempfile.TemporaryDirectory(prefix="tokens-", dir=out_dir()) as work:
        n = args.mib << 19
        path = pathlib.Path(work, "train.bin")
        np.random.default_rng(1).integers(0, 50_257, n, dtype=np.uint16).tofile(path)
        spec = spec_of(args, str(path), args.seq_len) | {"shards": f"{work}/mds", "batch": args.batch}
        runs, why = measure(args, spec)
    version = json.loads(subprocess.run([args.bin, "version", "-o", "json"], check=True, capture_output=True,
                                        text=True).stdout)
    (out_dir() / "tokens.json").write_text(json.dumps({"args": vars(args), "version": version, "runs": runs}, indent=1))
    lines = [f"`bench/py/tokens.py`, {time.strftime('%Y-%m-%d')}, {version['version']}: {args.mib} MiB of ids, windows "
             f"of {args.seq_len}, batches of {args.batch}; load before it {load:.1f}.", ""]
    lines += figures.bars_table([figures.figure(b, runs) for b in bars(runs, args.windows)])
    lines += figures.runs_table(runs, UNITS) + ([why] if why else [])
    print("\n".join(lines))
    if args.write:
        figures.replace_between(PAGE, lines, BEGIN, END)


if __name__ == "__main__":
    main()
