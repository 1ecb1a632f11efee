#!/usr/bin/env python3
"""Compares miss ratios of larder bench policy with libCacheSim's on the same exported traces, to 4 digits.

It installs nothing: it needs the Python package libcachesim (0.3.5 was used) in the interpreter that runs it, and a built larder.

    LARDER=bin/larder python3 bench/reproductions/libcachesim/compare.py [--write expected.json]
"""
import json
import os
import subprocess
import sys
import tempfile

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
EXACT = ("lru", "fifo", "sieve")  # one algorithm, nothing to choose


def theirs(path, policy, capacity):
    reader = lcs.TraceReader(path, trace_type=lcs.TraceType.ORACLE_GENERAL_TRACE, reader_init_params=lcs.ReaderInitParam(ignore_obj_size=True))
    kw = {"reader": reader} if policy == "belady" else {}
    miss, _ = POLICIES[policy](cache_size=capacity, **kw).process_trace(reader)
    return miss


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
                same = abs(their - r["miss_ratio"]) < 0.00005
                bad += r["policy"] in EXACT and not same
                rows.append({"scenario": name, "policy": r["policy"], "cache": r["cache"], "larder": round(r["miss_ratio"], 6), "libcachesim": round(their, 6), "same": same})
                print(f"{name:12} {r['policy']:8} {r['cache']:6} larder {r['miss_ratio']:.4f} libCacheSim {their:.4f} {'' if same else '<-- differs'}")
    if len(sys.argv) > 2 and sys.argv[1] == "--write":
        with open(sys.argv[2], "w") as f:
            json.dump({"kind": "reproduction", "title": "Miss ratios beside libCacheSim's", "facts": {"libcachesim": "0.3.5"}, "rows": rows}, f, indent=1)
            f.write("\n")
    print(f"{len(rows)} compared, {sum(r['same'] for r in rows)} equal to 4 digits" + (f", {bad} that must be are NOT" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
