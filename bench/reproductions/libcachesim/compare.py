#!/usr/bin/env python3
"""Compares miss ratios of larder bench policy with libCacheSim's on the same exported traces, to 4 digits.

It installs nothing: it needs the Python package libcachesim (0.3.5 was used) in the interpreter that runs it, and a built larder.

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
except ImportError:
    sys.exit("this interpreter has no libcachesim; fix: python3 -m venv v && v/bin/pip install libcachesim==0.3.5, and run it with v/bin/python")

LARDER = os.environ.get("LARDER", "bin/larder")
SCENARIOS = {
    "one job": "{family: aligned, samples: 20000, jobs: 1, epochs: 6, seed: 1}",
    "four jobs": "{family: aligned, samples: 20000, jobs: 4, epochs: 4, seed: 1}",
    "staggered": "{family: staggered, samples: 20000, jobs: 4, epochs: 3, seed: 1}",
    "zipf": "{family: zipf, samples: 20000, jobs: 2, epochs: 10, seed: 1, skew: 1}",
}
SHARES = (1, 10, 35, 65)
POLICIES = {"lru": lcs.LRU, "fifo": lcs.FIFO, "s3-fifo": lcs.S3FIFO, "sieve": lcs.Sieve, "belady": lcs.Belady}
EXACT = ("lru", "fifo", "sieve", "s3-fifo as in larder", "s3-fifo as in libCacheSim")


def s3fifo(path, capacity, released):
    """S3-FIFO written out: as larder has it (SOSP 2023, algorithm 1, the ghost queue as long as the main one, an id that came back keeping its
    place in it), or with what libCacheSim does otherwise: until something was evicted,
    what does not fit the small queue goes to the main one; the main queue is evicted from when it exceeds its nine tenths; the ghost queue holds 0.9 of the capacity."""
    small, main, ghost, where = OrderedDict(), OrderedDict(), OrderedDict(), None
    small_size, ghost_size = capacity // 10, int(capacity * 0.9)
    main_size = capacity - small_size
    evicted, misses, n, turn, first = False, 0, 0, 0, 0
    with open(path, "rb") as f:
        for _, x, _, _ in struct.iter_unpack("<IQIq", f.read()):
            n += 1
            where = small if x in small else main if x in main else None
            if where is not None:
                where[x] = min(where[x] + 1, 3) if not released else where[x] + 1
                continue
            misses += 1
            back = released and ghost.pop(x, None) is not None
            while len(small) + len(main) >= capacity:
                evicted = True
                from_main = (len(main) > main_size or not small) if released else (10 * len(small) < len(small) + len(main) and bool(main))
                while not from_main and small:
                    y, uses = small.popitem(last=False)
                    if uses >= 2:
                        main[y] = 0
                        continue
                    ghost[y] = turn
                    turn += 1
                    if released:
                        while len(ghost) > ghost_size:
                            ghost.popitem(last=False)
                    else:
                        first = max(first, turn - len(main))
                    break
                else:
                    while True:
                        y, uses = main.popitem(last=False)
                        if not uses:
                            break
                        main[y] = min(uses, 3) - 1
            if not released:
                back = ghost.pop(x, -1) >= first
            if back or released and not evicted and len(small) >= small_size:
                main[x] = 0
            else:
                small[x] = 0
    return misses / n


def theirs(path, policy, capacity):
    reader = lcs.TraceReader(path, trace_type=lcs.TraceType.ORACLE_GENERAL_TRACE, reader_init_params=lcs.ReaderInitParam(ignore_obj_size=True))
    kw = {"reader": reader} if policy == "belady" else {}
    miss, _ = POLICIES[policy](cache_size=capacity, **kw).process_trace(reader)
    return miss


def table(rows):
    return {"head": ["trace, policy, cache", "larder", "libCacheSim", "equal to 4 digits"],
            "rows": [[f"{r['scenario']}, {r['policy']}, {r['cache']}", f"{r['larder']:.4f}", f"{r['libcachesim']:.4f}", "yes" if r["same"] else "no"] for r in rows]}


def main():
    rows, bad = [], 0
    for name, spec in SCENARIOS.items():
        with tempfile.TemporaryDirectory() as d:
            scenario, trace = os.path.join(d, "s.yaml"), os.path.join(d, "t.oracleGeneral")
            with open(scenario, "w") as f:
                f.write("generate: " + spec + "\n")
            subprocess.run([LARDER, "bench", "policy", "--scenario", scenario, "--export", trace], check=True)
            raw = subprocess.run([LARDER, "bench", "policy", "--scenario", scenario, "--unit-size", "--policies", ",".join(POLICIES), "--cache", ",".join(f"{s}%" for s in SHARES), "-o", "json"],
                                 check=True, capture_output=True).stdout
            for r in json.loads(raw)["rows"]:
                if r["policy"] not in POLICIES:
                    continue
                their = theirs(trace, r["policy"], r["cache"])
                pairs = [(r["policy"], r["miss_ratio"], their)]
                if r["policy"] == "s3-fifo":
                    pairs.append(("s3-fifo as in larder", r["miss_ratio"], s3fifo(trace, r["cache"], False)))
                    pairs.append(("s3-fifo as in libCacheSim", s3fifo(trace, r["cache"], True), their))
                for policy, ours, their in pairs:
                    same = abs(their - ours) < 0.00005
                    bad += policy in EXACT and not same
                    rows.append({"scenario": name, "policy": policy, "cache": r["cache"], "larder": round(ours, 6), "libcachesim": round(their, 6), "same": same})
                    print(f"{name:12} {policy:26} {r['cache']:6} {ours:.4f} {their:.4f} {'' if same else '<-- differs'}")
    if len(sys.argv) > 2 and sys.argv[1] == "--write":
        with open(sys.argv[2], "w") as f:
            json.dump({"kind": "reproduction", "title": "Miss ratios beside libCacheSim's", "facts": {"libcachesim": "0.3.5"}, "rows": rows, "tables": [table(rows)]}, f, indent=1)
            f.write("\n")
    print(f"{len(rows)} compared, {sum(r['same'] for r in rows)} equal to 4 digits" + (f", {bad} that must be are NOT" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
