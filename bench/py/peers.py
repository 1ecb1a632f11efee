"""larder beside other loaders on the same photographs, each in an environment of its own (make bench-peers).

    .venv/bin/python bench/py/peers.py [--minutes 25] [--only WORD] [--images 1216] [--write] [--if-built]
    .venv/bin/python bench/py/peers.py --probe

The work is RandomResizedCrop(224) and a horizontal flip, uint8 batches of 64, on two processors, for one job and for
four at once. A memory case says how many bytes a system may keep for itself: the whole dataset decoded, a third of
that, or nothing. A system without a cache of its own runs once, and its figures stand in each case. The files lie in
the page cache in every case; it is not bounded. Every round runs everything once, every second one backwards, as often
as the minutes allow, and at least once. Figures are medians (lowest to highest).

--probe checks what is the same work: it feeds all systems drawn images that tell which crop was taken, whether it was
flipped, antialiased or encoded anew, and in which order the images came (peers_probe.py).

All raw figures go to out/bench/peers.json, which `larder bench report` shows; --write rewrites the tables of
docs/measurements/peers.md.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import figures
import loaders
import peers_env
import peers_probe
from loaders import BATCH, NOTHING, ROOT, Daemon, out_dir
from peers_figures import ANY, CASES, Runs, System, bars, case_table, differences, label, markdown, outcome

from bench import machine

PROCESSORS = 2
WORKERS = 2
CROP = 224
SMALL = 64 << 20  # bytes of the cache of tf.data service where nothing fits
PATIENCE = 300.0  # seconds for one run
PAGE = ROOT / "docs/measurements/peers.md"
BEGIN, END = "<!-- peers: written by make bench-peers -->", "<!-- end of the peers -->"

PILLOW = "as larder's: Pillow's decoder and antialiasing resize"
NO_FILTER = "resizes without antialiasing"
SYSTEMS = (
    System("larder", "larder", later=7, cases=CASES),
    System('larder, share="augmented"', "larder", variant="augmented", later=7, cases=CASES, jobs=(4,)),
    System("tf.data", "tfdata", "tensorflow", "crop", later=1, differs=NO_FILTER, note="decode_and_crop_jpeg"),
    System("tf.data, cache()", "tfdata", "tensorflow", "cache", cases=CASES[:2], differs=NO_FILTER,
           note="decoded images in memory, of each job its own; a third: the other two thirds are decoded each time"),
    System("tf.data service", "tfdata", "tensorflow", "window", cases=CASES,
           differs=f"{NO_FILTER}; all jobs get the same batches in one order; images repeat within an epoch or are "
                   "left out by a slow job",
           note="cross_trainer_cache of the case's memory; all fits: its worker keeps decoded images with cache() too"),
    *(System(f"FFCV, q{q}", "ffcv", "ffcv", str(q), later=1, converts=True,
             differs="encoded anew beforehand: lossy", note="its file is mapped: the page cache") for q in (95, 90)),
    System("FFCV, raw", "ffcv", "ffcv", "raw", later=1, converts=True,
           differs="decoded beforehand into a file of pixels", note="its file is mapped: the page cache"),
    System("DALI, CPU", "dali", "dali", later=1, note="decodes the crop alone; two threads"),
    System("torch, 2 workers", "torch", later=1, note=PILLOW),
    System("SPDL", "spdl", "spdl", later=1, note="FFmpeg decodes whole images; two threads"),
    System("MosaicML streaming", "mds", "mds", later=1, converts=True,
           note=f"{PILLOW}; shards of the files' own bytes"),
)


# --- data -----------------------------------------------------------------------------------------------------------


def home() -> pathlib.Path:
    path = out_dir() / "peers"
    path.mkdir(exist_ok=True)
    return path


def photographs(count: int) -> str:
    """So many photographs: copies, because one file under two names would be one object to larder."""
    source = pathlib.Path(loaders.photographs())
    have = sorted(f for f in source.glob("*/*") if f.is_file())
    target = home() / f"{source.name}-{count}"
    if not target.is_dir():
        with tempfile.TemporaryDirectory(dir=home()) as half:
            for i in range(count):
                f = have[i % len(have)]
                to = pathlib.Path(half, "images", f.parent.name, f"{i // len(have)}-{f.name}")
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(f, to)
            pathlib.Path(half, "images").rename(target)
    return str(target)


def decoded_bytes(data: str) -> int:
    from PIL import Image

    total = 0
    for f in pathlib.Path(data).glob("*/*"):
        with Image.open(f) as image:
            total += 3 * image.width * image.height
    return total


def converted(s: System, data: str, seconds: dict[str, float], folder: str = "") -> str:
    """What a peer reads instead of the files; made once for a dataset and a version of the peer, and kept."""
    if not s.converts:
        return ""
    e = peers_env.ENVIRONMENTS[s.environment]
    version = peers_env.shown(e.pins.read_text()).replace(" ", "-")
    target = pathlib.Path(folder or home()) / f"{pathlib.Path(data).name}-{version}-{s.variant or 'shards'}"
    if not target.exists():
        half = target.with_name(target.name + ".half")
        shutil.rmtree(half, ignore_errors=True)
        half.unlink(missing_ok=True)
        begin = time.monotonic()
        with open(out_dir() / "peers.log", "a") as log:
            p = subprocess.Popen([str(e.python), str(program(s)), "convert", data, str(half), s.variant], stdout=log,
                                 stderr=log, start_new_session=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(timeout=PATIENCE)
            kill(p)  # its workers, too
            if p.wait():
                raise RuntimeError("converting failed; out/bench/peers.log has its last words")
        seconds[s.name] = time.monotonic() - begin
        half.rename(target)
    return str(target)


# --- runs -----------------------------------------------------------------------------------------------------------


def program(s: System) -> pathlib.Path:
    return ROOT / f"bench/peers/run_{s.program}.py"


def python(s: System) -> str:
    return str(peers_env.ENVIRONMENTS[s.environment].python) if s.environment else sys.executable


def kept(case: str, whole: int) -> int:
    """Bytes that a system may keep in a case, of a dataset that has so many when decoded."""
    return {"all fits": 2 * whole, "a third fits": whole // 3, "nothing fits": 0, ANY: 0}[case]


def tier_flags(case: str, whole: int) -> list[str]:
    """larder's settings: the default has room for all, else its tiers get what every system gets."""
    if case == "all fits":
        return []
    keys = NOTHING if case == "nothing fits" else (f"tiers.total={kept(case, whole)}",)
    return [f for key in keys for f in ("--set", key)]


@contextlib.contextmanager
def servers(s: System, case: str, whole: int, binary: str, log: Any) -> Iterator[tuple[list[int], dict[str, str], str]]:
    """What all jobs of a run share: pids whose processor time counts, environment variables, and an address."""
    if s.mine:
        daemon = Daemon(binary, *tier_flags(case, whole))
        try:
            yield [daemon.process.pid], {"LARDER_SOCKET": daemon.socket, "PYTHONPATH": str(ROOT / "python")}, ""
        finally:
            daemon.close()
    elif s.variant == "window":
        window = max(SMALL, kept(case, whole) if case != "all fits" else whole)
        p = subprocess.Popen([python(s), str(program(s)), "serve", str(window)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        try:
            yield [p.pid], {}, json.loads(line_of(p, "{"))["address"]
        finally:
            end(p)
    else:
        yield [], {}, ""


def kill(p: subprocess.Popen) -> None:
    """Kills a process that was started in a session of its own, with its workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(p.pid, signal.SIGKILL)


def end(p: subprocess.Popen) -> None:
    kill(p)
    p.wait()
    p.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        p.stdin.close()


def cached(s: System, case: str) -> float:
    """The part of the images that tf.data keeps decoded."""
    if s.variant == "window":
        return 1.0 if case == "all fits" else 0.0
    return {"all fits": 1.0, "a third fits": 1 / 3}.get(case, 0.0) if s.variant == "cache" else 0.0


def line_of(p: subprocess.Popen, begins: str, log: str = "peers.log") -> str:
    """The next line of a job that begins so; libraries print others. A job that hangs is killed after PATIENCE."""
    for line in p.stdout:
        if line.startswith(begins):
            return line
    raise RuntimeError(f"a job ended early; out/bench/{log} has its last words")


def let_end(children: list[subprocess.Popen]) -> None:
    """Gives jobs that have reported the time to remove their shared memory."""
    for p in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.wait(timeout=10)


def run(s: System, case: str, jobs: int, spec: dict[str, Any], binary: str) -> list[dict[str, Any]]:
    """One run: what each of the jobs reports. They begin together when all have opened their loaders."""
    scratch = tempfile.mkdtemp(prefix="peers-", dir=home())
    children: list[subprocess.Popen] = []
    with open(out_dir() / "peers.log", "a") as log, contextlib.ExitStack() as stack:
        log.write(f"--- {label(s.name, case, jobs)}\n")
        log.flush()
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        pids, env, address = stack.enter_context(servers(s, case, spec["whole"], binary, log))
        stack.callback(lambda: [end(p) for p in children])
        for job in range(jobs):
            own = spec | {"variant": s.variant, "servers": pids, "address": address, "job": job, "jobs": jobs,
                          "scratch": scratch, "cached": cached(s, case), "workers": WORKERS}
            if spec["probe"]:
                own["probe"] = f"{spec['probe']}-{job}.npy"
            children.append(subprocess.Popen(
                [python(s), str(program(s)), json.dumps(own)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, text=True, start_new_session=True, env=os.environ | env | {"PYTHONUNBUFFERED": "1"}))
        watch = threading.Timer(PATIENCE, lambda: [kill(p) for p in children])
        watch.start()
        stack.callback(watch.cancel)
        for p in children:
            line_of(p, "ready")
        for p in children:
            p.stdin.write("go\n")
            p.stdin.flush()
        results = [json.loads(line_of(p, "{")) for p in children]
        let_end(children)
        return results


def probe(args: argparse.Namespace, s: System, data: str, jobs: int) -> list[Any]:
    """What a system delivers of drawn images, to each job."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="probe-", dir=home()) as tmp:
        spec = {"data": data, "batch": peers_probe.BATCH, "crop": peers_probe.CROP, "whole": decoded_bytes(data),
                "epochs": peers_probe.EPOCHS, "probe": f"{tmp}/pixels", "converted": converted(s, data, {}, tmp)}
        run(s, peers_probe.case_of(s), jobs, spec, args.bin)
        return [np.load(f"{tmp}/pixels-{job}.npy") for job in range(jobs)]


# --- rounds ---------------------------------------------------------------------------------------------------------


def absent(systems: tuple[System, ...]) -> dict[str, str]:
    """Why a system cannot run here."""
    out = {}
    for s in systems:
        if s.environment and not peers_env.ready(peers_env.ENVIRONMENTS[s.environment]):
            out[s.name] = "its environment is not there: make bench-peers builds it"
    if not machine()["peers"]:
        out |= {s.name: "torch is not installed: make setup" for s in systems if s.program in ("torch", "mds", "ffcv")}
    return out


def steps(systems: list[System], only: list[str]) -> list[tuple[System, str, int]]:
    """Every cell that is measured: a system, a memory case and a number of jobs, by words of their labels."""
    every = [(s, case, jobs) for s in systems for case in s.cases for jobs in s.jobs]
    return [(s, case, jobs) for s, case, jobs in every
            if not only or any(word in label(s.name, case, jobs) for word in only)]


def attempt(failed: dict[str, str], name: str, do: Callable[[], Any]) -> Any:
    """What a run or a conversion returns; nothing, with the reason in failed, where it failed."""
    try:
        return do()
    except RuntimeError as e:
        failed[name] = str(e)
        print(f"  {name}: {e}", flush=True)
        return None


def before(path: pathlib.Path, about: dict[str, Any]) -> Runs:
    """The runs that an earlier call left, for --more: they must be of this commit and this machine."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    for key in ("commit", "processor", "peers"):
        if found["machine"][key] != about[key]:
            raise SystemExit(f"peers: cannot add to {path}: its {key} is {found['machine'][key]}, not {about[key]}; "
                             "run without --more")
    return found["runs"]


def measure(todo: list[tuple[System, str, int]], args: argparse.Namespace, data: str, whole: int,
            failed: dict[str, str], runs: Runs) -> tuple[Runs, dict[str, float]]:
    """Rounds until the minutes are over, beside the runs given; returns all runs, and what conversions took. What fails
    once is left out."""
    earlier = max(map(len, runs.values()), default=0)
    seconds: dict[str, float] = {}
    spec = {"data": data, "batch": BATCH, "crop": CROP, "whole": whole, "probe": ""}
    sources = {s.name: attempt(failed, s.name, lambda s=s: converted(s, data, seconds)) or "" for s, _, _ in todo}
    begun, longest, done = time.monotonic(), 0.0, 0
    while done < 1 or time.monotonic() - begun + longest < 60 * args.minutes:
        start = time.monotonic()
        for s, case, jobs in todo if (earlier + done) % 2 == 0 else reversed(todo):
            name = label(s.name, case, jobs)
            if name in failed or s.name in failed:
                continue
            own = spec | {"epochs": 1 + s.later, "converted": sources[s.name]}
            r = attempt(failed, name, lambda s=s, own=own, at=(case, jobs): outcome(run(s, *at, own, args.bin)))
            if not r:
                continue
            runs.setdefault(name, []).append(r)
            print(f"  [{time.monotonic() - begun:4.0f} s] {name}: "
                  + ", ".join(f"{k} {v:,.0f}" for k, v in r.items()), flush=True)
        done += 1
        longest = max(longest, time.monotonic() - start)
        print(f"round {done} took {time.monotonic() - start:.0f} s", flush=True)
    return runs, seconds


def lines_of(result: dict[str, Any]) -> list[str]:
    """The part of the page that a run writes."""
    about = result["machine"]
    text = (f"`make bench-peers`, {about['date']}, {about['commit']}: {PROCESSORS} processors ({about['processor']}), "
            f"{about['memory_gib']} GiB, {about['peers']}; load before it {about['load_before']:.1f}.")
    out = [text, result["text"][0], ""]
    for table in result["tables"]:
        out += markdown(table)
    out += [f"- {name}: not measured ({why})." for name, why in result["absent"].items()]
    return out


def result_of(runs: Runs, systems: list[System], args: argparse.Namespace, more: dict[str, Any]) -> dict[str, Any]:
    """The JSON that `larder bench report` shows: it brings its tables and pictures itself."""
    cases = [t for case in CASES if (t := case_table(runs, systems, case))["rows"]]
    pictures = [p for case in CASES if (p := bars(runs, systems, case))]
    rounds = max(map(len, runs.values()), default=0)
    text = (f"{args.images} photographs, medians of {rounds} interleaved rounds (lowest–highest) · images per CPU-"
            "second of all processes of the system. † is not the same work.")
    return {"kind": "peers", "title": "larder beside its peers", "text": [text],
            "tables": [*cases, differences(systems)], "plots": pictures, "runs": runs} | more


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", default=os.environ.get("LARDER_BIN", str(ROOT / "bin/larder")))
    parser.add_argument("--minutes", type=float, default=25, help="rounds begin as long as they end within so many")
    parser.add_argument("--images", type=int, default=1216, help="a multiple of 64: tf.data service has no short batch")
    parser.add_argument("--only", action="append", default=[], metavar="WORD",
                        help="run only what has this in its label; may be given again")
    parser.add_argument("--more", action="store_true",
                        help="add to the rounds that out/bench/peers.json has, of the same commit and machine")
    parser.add_argument("--probe", action="store_true", help="find out what is the same work; no figures")
    parser.add_argument("--if-built", action="store_true", help="do nothing but say so when no environment is there")
    parser.add_argument("--write", action="store_true", help="rewrite the tables of docs/measurements/peers.md")
    args = parser.parse_args()
    if args.images % BATCH or args.images < BATCH:
        parser.error(f"--images is a multiple of {BATCH}")
    if args.write and args.only:
        parser.error("--write wants everything: not with --only")
    return args


def main() -> None:
    args = arguments()
    if args.if_built and not any(map(peers_env.ready, peers_env.ENVIRONMENTS.values())):
        print("peers: none of their environments is there; make bench-peers builds and measures them")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no daemon or worker is left behind
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    missing = absent(SYSTEMS)
    systems = [s for s in SYSTEMS if s.name not in missing]
    todo = steps(systems, args.only)
    if not todo:
        raise SystemExit(f"no run is called like {args.only!r}")
    if args.probe:
        named = [s for s in systems if any(t[0] is s for t in todo)]
        found = peers_probe.measure(named, functools.partial(probe, args))
        print("\n".join(markdown(found)))
        (out_dir() / "peers-probe.json").write_text(json.dumps(
            {"kind": "peers-probe", "title": "What is the same work", "tables": [found]}, indent=1))
        return
    data = photographs(args.images)
    about = machine()
    pins = {e.name: peers_env.versions(e.pins.read_text()) for e in peers_env.ENVIRONMENTS.values()}
    out = out_dir() / "peers.json"
    runs, seconds = measure(todo, args, data, decoded_bytes(data), missing, before(out, about) if args.more else {})
    result = result_of(runs, systems, args, {"machine": about, "absent": missing, "versions": pins,
                                             "converted_seconds": seconds})
    out.write_text(json.dumps(result, indent=1))
    lines = lines_of(result)
    print("\n" + "\n".join(lines) + f"\nraw figures: {out}")
    if args.write:
        figures.replace_between(PAGE, lines, BEGIN, END)


if __name__ == "__main__":
    main()
