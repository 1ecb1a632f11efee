"""Runs of what needs no Python: decoding beside a bare C loop, the gather beside memcpy, allocations of the innermost
loops."""

from __future__ import annotations

import json
import math
import os
import pathlib
import random
import re
import statistics
import struct
import subprocess

from loaders import ROOT, Build, out_dir, photographs


def compiler() -> str:
    return os.environ.get("CC", "cc")


def bare_command(program: pathlib.Path) -> list[str]:
    """What compiles the bare C loop over libjpeg-turbo."""
    prep = ROOT / "internal/prep"
    return [compiler(), "-O3", "-march=native", "-std=c11", f"-I{prep / 'kernel'}", "-o", str(program),
            str(prep / "testdata/bare/bare.c"), str(prep / "kernel/kernel.c"), "-ljpeg", "-lm"]


def bare() -> tuple[str, str]:
    """The bare C loop, compiled, and why there is none when it is empty."""
    program = out_dir() / "bare"
    done = subprocess.run(bare_command(program), capture_output=True, text=True)
    return (str(program), "") if done.returncode == 0 else ("",
                                                            (done.stderr.strip().splitlines()
                                                             or ["the compiler failed"])[0])


def room(build: Build, package: str) -> str:
    """The folder of an internal package in a tree; the engine of older ones, which may be compared with, is exec."""
    older = {"engine": "exec"}.get(package, package)
    return f"internal/{package if (build.tree / 'internal' / package).is_dir() else older}"


def tests(build: Build, package: str) -> str:
    """The package's compiled tests of a build."""
    program = out_dir() / f"{build.name}-{package}.test"
    subprocess.run([os.environ.get("GO", "go"), "test", "-c", "-tags", os.environ.get("TAGS", "turbo"), "-o",
                    str(program), f"./{room(build, package)}"],
                   check=True, cwd=build.tree)
    return str(program)


def benchmark(build: Build, package: str, program: str, pattern: str, times: str) -> dict[str, dict[str, float]]:
    """Metrics by unit of each Go benchmark that matches."""
    env = dict(os.environ, LARDER_TESTDATA=str(pathlib.Path(photographs()).parent))
    done = subprocess.run([program, "-test.run", "^$", "-test.bench", pattern, "-test.benchtime", times,
                           "-test.benchmem"],
                          check=True, capture_output=True, text=True, cwd=build.tree / room(build, package), env=env)
    out: dict[str, dict[str, float]] = {}
    for line in done.stdout.splitlines():
        if m := re.match(r"Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)", line):
            words = m[2].split()
            out[m[1]] = {unit: float(x) for x, unit in zip(words[::2], words[1::2], strict=True)}
    if not out:
        raise SystemExit(f"{program}: no benchmark of {pattern} said anything:\n{done.stdout}")
    return out


def run_gather(build: Build, program: str, times: int) -> dict[str, float]:
    """GB a second of processor time, of a gather and of memcpy, by layout."""
    out: dict[str, float] = {}
    for name, units in benchmark(build, "engine", program, "^BenchmarkGather$", f"{times}x").items():
        layout = name.rsplit("/", 1)[-1].lower()
        out |= {f"{layout}": units["GB/cpu-s"], f"{layout}_memcpy": units["memcpy-GB/cpu-s"]}
    return out


def run_inner(build: Build, program: str, gather: str) -> dict[str, float]:
    """Allocations for each operation, whole ones (Go rounds down): decoding, kernels, gather (a batch of 256). A worker
    keeps the weights of 128 sizes, each of which grows a few times before it is as large as it gets: hence many
    operations."""
    inner = benchmark(build, "prep", program, "^Benchmark(Decode|AugmentInto|DecodeInto)$", "3000x") | benchmark(build,
        "engine", gather, "^BenchmarkGather$", "20x")
    return {name: units["allocs/op"] for name, units in inner.items()}


def run_prep(build: Build, loop: str, images: int, passes: int) -> dict[str, float]:
    """Images a second of processor time of one thread, from bytes in memory to a normalised sample."""
    command = [build.binary, "bench", "prep", f"imagefolder:{photographs()}", "--images", str(images), "--passes",
               str(passes), "-o", "json"]
    done = subprocess.run(command + (["--bare", loop] if loop else []), check=True, capture_output=True, text=True)
    names = {"file to sample": "larder", "bare C loop, decoding the crop": "bare",
             "bare C loop, decoding the whole image": "bare_whole",
             "bare C loop, from file to batch": "bare_batch"}
    return {names[r["what"]]: r["images_per_cpu_second"] for r in json.loads(done.stdout)["rows"] if r["what"] in names}


def jpeg_size(content: bytes) -> tuple[int, int] | None:
    """Width and height of a JPEG of one scan in grey or YCbCr, which is what the bare C loop knows; None for anything
    else."""
    at = 2
    while content[:2] == b"\xff\xd8" and at + 9 < len(content) and content[at] == 0xFF:
        marker, length = content[at + 1], int.from_bytes(content[at + 2 : at + 4], "big")
        if marker in (0xC0, 0xC1):
            height, width, components = struct.unpack(">HHB", content[at + 5 : at + 10])
            return (width, height) if components in (1, 3) else None
        if 0xC2 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return None
        at += 2 + length
    return None


def crop(rng: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    """A box as RandomResizedCrop draws it."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def run_bare(loop: str, at_once: int, images: int, passes: int) -> dict[str, float]:
    """Images a second of processor time of so many bare C loops at once, from file to batch, each on images of its own
    order."""
    found = [(str(path), size) for path in sorted(pathlib.Path(photographs()).rglob("*")) if path.is_file()
             and (size := jpeg_size(path.read_bytes()))][:images]
    loops = [subprocess.Popen([loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(at_once)]
    rates = []
    try:
        shuffled = []
        for number, p in enumerate(loops):
            mine = random.Random(number).sample(found, len(found))
            shuffled.append(mine)
            p.stdin.write(f"{len(mine)}\n" + "".join(f"{path}\n" for path, _ in mine))
            p.stdin.flush()
        for p in loops:
            assert p.stdout.readline() == "ready\n", "the bare C loop did not start"
        for n in range(passes + 1):  # one to warm up
            for number, p in enumerate(loops):
                rng = random.Random(f"{number} {n}")
                lines = [" ".join(map(str, (*crop(rng, *size), rng.randint(0, 1)))) for _, size in shuffled[number]]
                p.stdin.write("batch\n" + "\n".join(lines) + "\n")
            for p in loops:
                p.stdin.flush()
            spent = sum(float(p.stdout.readline()) for p in loops)
            if n:
                rates.append(at_once * len(found) / spent)
    finally:
        for p in loops:
            p.stdin.close()
            p.wait()
    return {"per_cpu_second": statistics.median(rates)}
