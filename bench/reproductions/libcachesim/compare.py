#!/usr/bin/env python3
"""Compares miss ratios of larder bench policy with libCacheSim's on the same exported traces, to 4 digits.

It installs nothing: it needs the Python package libcachesim (0.3.5 was used) in the interpreter that runs it, and a
built larder.

    LARDER=bin/larder python3 bench/reproductions/libcachesim/compare.py [--write expected.json]
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections import OrderedDict

try:
    import libcachesim as lcs
    from libcachesim import cache, libcachesim_python
except ImportError:
    sys.exit("this interpreter has no libcachesim; fix: python3 -m venv v && v/bin/pip install libcachesim==0.3.5, "
             "and run it with v/bin/python")

LARDER = os.environ.get("LARDER", "bin/larder")
SCENARIOS = {
    "one job": "{family: aligned, samples: 20000, jobs: 1, epochs: 6, seed: 1}",
    "four jobs": "{family: aligned, samples: 20000, jobs: 4, epochs: 4, seed: 1}",
    "staggered": "{family: staggered, samples: 20000, jobs: 4, epochs: 3, seed: 1}",
    "zipf": "{family: zipf, samples: 20000, jobs: 2, epochs: 10, seed: 1, skew: 1}",
}
SHARES = (1, 10, 35, 65)


def s3fifo(path, capacity, fills):
    """S3-FIFO written out: as in the paper (SOSP 2023, algorithm 1), or, if it fills, with what libCacheSim's S3FIFO
    does since December 2024: until something was evicted, what does not fit the small queue goes to the main one."""
    small, main, ghost = OrderedDict(), OrderedDict(), OrderedDict()
    small_size, ghost_size = capacity // 10, int(capacity * 0.9)
    evicted, misses, n = False, 0, 0
    with open(path, "rb") as f:
        for _, x, _, _ in struct.iter_unpack("<IQIq", f.read()):
            n += 1
            where = small if x in small else main if x in main else None
            if where is not None:
                where[x] += 1
                continue
            misses += 1
            back = ghost.pop(x, None) is not None
            while len(small) + len(main) >= capacity:
                evicted = True
                from_main = len(small) < small_size or not small
                while not from_main and small:
                    y, uses = small.popitem(last=False)
                    if uses >= 2:
                        main[y] = 0
                        continue
                    ghost[y] = 0
                    if len(ghost) > ghost_size:
                        ghost.popitem(last=False)
                    break
                else:
                    while True:
                        y, uses = main.popitem(last=False)
                        if not uses:
                            break
                        main[y] = min(uses, 3) - 1
            if back or (fills and not evicted and len(small) >= small_size):
                main[x] = 0
            else:
                small[x] = 0
    return misses / n


class S3FIFOv0(cache.CacheBase):
    """The S3-FIFO that the paper's figures were made with: libCacheSim has it, its Python package has no class for
    it."""

    def __init__(self, cache_size):
        super().__init__(_cache=libcachesim_python.S3FIFOv0_init(cache._create_common_params(cache_size, 86400 * 300,
            24, False, None)))


POLICIES = {"lru": lcs.LRU, "fifo": lcs.FIFO, "s3-fifo": S3FIFOv0, "sieve": lcs.Sieve, "belady": lcs.Belady}
LATER = "s3-fifo as libCacheSim changed it"
EXACT = ("lru", "fifo", "sieve", "s3-fifo", LATER)


def theirs(path, policy, capacity):
    reader = lcs.TraceReader(path, trace_type=lcs.TraceType.ORACLE_GENERAL_TRACE,
                             reader_init_params=lcs.ReaderInitParam(ignore_obj_size=True))
    kw = {"reader": reader} if policy == "belady" else {}
    miss, _ = (lcs.S3FIFO if policy == LATER else POLICIES[policy])(cache_size=capacity, **kw).process_trace(reader)
    return miss


def table(rows):
    return {"head": ["trace, policy, cache", "larder", "libCacheSim", "equal to 4 digits"],
            "rows": [[f"{r['scenario']}, {r['policy']}, {r['cache']}", f"{r['larder']:.4f}", f"{r['libcachesim']:.4f}",
                      "yes" if r["same"] else "no"] for r in rows]}


def main():
    rows, bad = [], 0
    for name, spec in SCENARIOS.items():
        with tempfile.TemporaryDirectory() as d:
            scenario, trace = os.path.join(d, "s.yaml"), os.path.join(d, "t.oracleGeneral")
            with open(scenario, "w") as f:
                f.write("generate: " + spec + "\n")
            subprocess.run([LARDER, "bench", "policy", "--scenario", scenario, "--export", trace], check=True)
            raw = subprocess.run([LARDER, "bench", "policy", "--scenario", scenario, "--unit-size", "--policies",
                                  ",".join(POLICIES), "--cache", ",".join(f"{s}%" for s in SHARES), "-o", "json"],
                                 check=True, capture_output=True).stdout
            for r in json.loads(raw)["rows"]:
                if r["policy"] not in POLICIES:
                    continue
                pairs = [(r["policy"], r["miss_ratio"], theirs(trace, r["policy"], r["cache"]))]
                if r["policy"] == "s3-fifo":
                    if abs(s3fifo(trace, r["cache"], False) - r["miss_ratio"]) >= 0.00005:
                        sys.exit(f"{name}, {r['cache']}: the S3-FIFO written out here is not larder's")
                    pairs.append((LATER, s3fifo(trace, r["cache"], True), theirs(trace, LATER, r["cache"])))
                for policy, ours, their in pairs:
                    same = abs(their - ours) < 0.00005
                    bad += policy in EXACT and not same
                    rows.append({"scenario": name, "policy": policy, "cache": r["cache"], "larder": round(ours, 6),
                                 "libcachesim": round(their, 6), "same": same})
                    print(
                        f"{name:12} {policy:26} {r['cache']:6} {ours:.4f} {their:.4f} {'' if same else '<-- differs'}")
    if len(sys.argv) > 2 and sys.argv[1] == "--write":
        with open(sys.argv[2], "w") as f:
            json.dump({"kind": "reproduction", "title": "Miss ratios beside libCacheSim's",
                       "facts": {"libcachesim": "0.3.5"}, "rows": rows, "tables": [table(rows)]}, f, indent=1)
            f.write("\n")
    print(f"{len(rows)} compared, {sum(r['same'] for r in rows)} equal to 4 digits" + (f", {bad} that must be are NOT"
        if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
