"""Four training jobs on overlapping subsets of one folder of images, each sample read and decoded once for all of them.

    larder run -- python examples/four_jobs.py --data /data/imagenet-700

Each job is a process of its own with its own subset, batch size and speed. Every job writes down the ids it received;
the parent checks from these records that each got every sample of its subset exactly once in each epoch, asks the
daemon how much work that took, and with --kill 2 ends job 2 by SIGKILL in the middle of its second epoch: the others do
not notice. """

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import larder

JOBS = [  # subset, batch size, seconds a training step takes
    ("id % 3 > 0", 16, 0.004),
    ("id % 5 < 4", 32, 0.010),
    (None, 64, 0.015),
    ("id % 2 == 0", 7, 0.002),
]


def say(**record: object) -> None:
    print(json.dumps(record), flush=True)


def train(number: int, data: str, epochs: int) -> None:
    """One training script. All it needs of larder is the Loader."""
    subset, batch_size, step = JOBS[number]
    loader = larder.Loader(
        f"imagefolder:{data}", subset=subset, batch_size=batch_size, shuffle=True, seed=number, job=f"job-{number}",
        transform=[larder.ops.RandomResizedCrop(224), larder.ops.HFlip()], return_index=True,
    )
    with loader:
        say(event="ready", samples=loader.num_samples, batches=len(loader))
        sys.stdin.readline()  # all begin together
        for epoch in range(epochs):
            ids: list[int] = []
            for images, labels, index in loader:
                assert images.shape[1:] == (3, 224, 224) and len(labels) == len(index)
                ids += index.tolist()
                say(event="batch", epoch=epoch)
                time.sleep(step)  # the training step
            say(event="epoch", epoch=epoch, ids=ids, decodes=loader.stats().totals.decodes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="a folder of class folders of images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kill", type=int, help="end this job by SIGKILL in its second epoch")
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job is not None:
        train(args.job, args.data, args.epochs)
        return 0

    command = [sys.executable, __file__, "--data", args.data, "--epochs", str(args.epochs), "--job"]
    jobs = [subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for n in range(len(JOBS))]
    sizes = [json.loads(job.stdout.readline())["samples"] for job in jobs]  # every job is registered
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    if args.kill is not None:
        for line in jobs[args.kill].stdout:
            if json.loads(line).get("epoch") == 1:
                break
        jobs[args.kill].kill()
    records: list[dict[int, list[int]]] = []
    for number, job in enumerate(jobs):
        out, _ = job.communicate()
        epochs = {r["epoch"]: r["ids"] for r in map(json.loads,
                                                    filter(str.strip, out.splitlines()[:-1] if job.returncode
                                                           else out.splitlines()))
                  if r["event"] == "epoch"}
        records.append(epochs)
        if job.returncode != 0 and number != args.kill:
            print(f"job {number} failed with exit code {job.returncode}")
            return 1

    whole, total = 0, 0
    for number, epochs in enumerate(records):
        if number == args.kill:
            continue
        for epoch in range(args.epochs):
            ids = epochs.get(epoch, [])
            total += 1
            whole += len(ids) == len(set(ids)) == sizes[number]
        print(f"job {number}: {JOBS[number][0] or 'all':12}  {sizes[number]:6} samples, batches of {JOBS[number][1]}")
    union = len(set().union(*(ids for epochs in records for ids in epochs.values())))
    with larder.Loader(f"imagefolder:{args.data}", batch_size=1, job="look") as look:
        counters = look.stats().totals
    print(f"every sample of its subset exactly once: {whole} of {total} job-epochs")
    print(f"{counters.samples_delivered} samples delivered from {counters.source_reads} reads and {counters.decodes} "
          f"decodes "
          f"of {union} distinct images")
    return 0 if whole == total else 1


if __name__ == "__main__":
    sys.exit(main())
