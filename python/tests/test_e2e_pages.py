"""The guides: their code and commands run as they stand, in the order of the page, with a folder that exists for /data.

A page is one shell script. A Python block that the text before it says to save as NAME.py becomes that file, a YAML
block NAME.yaml; other Python blocks are run, those that follow each other as one script, and other YAML blocks are
configurations. Outputs, and units of other programs, are ``text`` and ``ini``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from real import PATIENCE, ROOT, draw, find_binary, free_port
from s3 import CREDENTIALS, Server, pack

PAGES = [
    "docs/start.md",
    "docs/will-it-help.md",
    "docs/guides/pytorch.md",
    "docs/guides/python-datasets.md",
    "docs/guides/from-tensorsocket.md",
    "docs/guides/several-jobs.md",
    "docs/guides/memory.md",
    "docs/guides/stores.md",
    "docs/guides/packing.md",
    "docs/guides/operating.md",
    "docs/guides/benchmarking.md",
    "docs/resume.md",
    "docs/security.md",
    "docs/subsets.md",
    "README.md",
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SAVED = re.compile(r"`([\w-]+\.(?:py|yaml))`")
SETUP = ("apt-get ", "make ", "pip ", 'export PATH="$PWD/bin:$PATH"')  # what the test itself has done
# Parts that have tests of their own: test_frameworks_page.py; group.txtar and tcp.txtar of cmd/larder.
ELSEWHERE = {
    "docs/resume.md": [("## Frameworks\n", "## Replaying an order\n")],
    "docs/security.md": [("## Several users\n", "## Token\n"), ("## TLS\n", "## HTTP\n")],
}
# What a page takes to be so.
BEFORE = {
    "docs/guides/memory.md": [
        "export LARDER_TIERS__DISK__DIR=$PWD/disk LARDER_TIERS__DISK__SIZE=1GiB",
        "larder serve &",
    ],
    "docs/subsets.md": ["larder serve &"],
}
SMALLER = {
    "{000..099}": "{000..003}",
    "samples: 20000": "samples: 2000",
    "range(90)": "range(2)",
    "batch_size=256": "batch_size=8",
    "steps=100": "steps=3",
    "seed in 0 1 2 3 4": "seed in 0 1 2",
    "% 500": "% 2",
    "--seconds 5": "--seconds 1",
    "larder demo": "larder demo --samples 60 --jobs 2 --epochs 1",
    "--scenario bench/scenarios/demand/staggered.yaml": "--scenario demand.yaml",
    "curl -fsS": "python -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())'",
}


def blocks(text):
    """(language, the text before the block since the one before it, the block)."""
    at = 0
    for m in BLOCK.finditer(text):
        yield m[1], text[at : m.start()], m[2]
        at = m.end()


def shrink(code, port):
    """The same on little data, and on a port that is free."""
    for was, now in {**SMALLER, "127.0.0.1:9464": f"127.0.0.1:{port}", "127.0.0.1:7070": f"127.0.0.1:{port}"}.items():
        code = code.replace(was, now)
    return code


def fashion(folder):
    """The files of FashionMNIST with 200 and 60 images of noise: a class is a row that is bright."""
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    for split, n in (("train", 200), ("t10k", 60)):
        labels = rng.integers(0, 10, n, dtype=np.uint8)
        images = rng.integers(0, 120, (n, 28, 28), dtype=np.uint8)
        images[np.arange(n), 2 * labels + 4] = 255
        for name, kind, a in (("images-idx3", 3, images), ("labels-idx1", 1, labels)):
            head = struct.pack(f">HBB{kind}I", 0, 8, kind, *a.shape)
            (folder / f"{split}-{name}-ubyte").write_bytes(head + a.tobytes())


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A user of their own: folders, no daemon yet, larder and python on the PATH. Returns how to run a script there."""
    pytest.importorskip("PIL.Image", reason="Pillow draws the images")
    draw(tmp_path / "data" / "train", 24, 2)
    draw(tmp_path / "data" / "val", 6, 3, seed=2)
    draw(tmp_path / "data" / "scraps", 2, 2, seed=3)
    rows = [json.dumps({"text": f"photograph {i}", "label": i % 2, "source": "camera"}) for i in range(24)]
    (tmp_path / "data" / "captions.jsonl").write_text("\n".join(rows) + "\n")
    fashion(tmp_path / "data" / "FashionMNIST" / "raw")
    home = Path(tempfile.mkdtemp(prefix="lp-"))  # short: a socket's path has at most 107 bytes
    tools = home / "bin"
    tools.mkdir()
    for name, target in {"larder": find_binary(), "python": sys.executable}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{target}" "$@"\n')
        (tools / name).chmod(0o755)
    (tmp_path / "bench").symlink_to(ROOT / "bench")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    job = tmp_path / "examples" / "job.yaml"
    spec = job.read_text().replace("/data/train", f"{tmp_path}/data/train")
    job.write_text(spec.replace("batch_size: 256", "batch_size: 8"))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_SOCKET", "XDG_"))}
    env |= {"PATH": f"{tools}:{env['PATH']}", "PYTHONPATH": str(ROOT / "python"), "LARDER_BIN": find_binary()}
    env |= {name: str(home) for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR")}
    env |= {"XDG_CACHE_HOME": str(home / "cache"), "XDG_STATE_HOME": str(home / "state"), "OMP_NUM_THREADS": "1"}

    def run(*command):
        with open(tmp_path / "output", "w+") as out:
            to = {"stdout": out, "stderr": subprocess.STDOUT}
            p = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, **to)
            try:
                code = p.wait(PATIENCE)
            finally:
                try:
                    os.killpg(p.pid, signal.SIGKILL)  # a daemon that a page leaves in the background
                except ProcessLookupError:
                    pass
                out.seek(0)
                text = out.read()
        print(text)
        assert code == 0, text
        return text

    yield run
    stop = [str(tools / "larder"), "stop", "--force"]
    subprocess.run(stop, env=env, capture_output=True, timeout=PATIENCE, check=False)
    shutil.rmtree(home, ignore_errors=True)


def script_of(page, folder):
    """The page as one shell script, with the files that its steps need in the folder."""
    text = (ROOT / page).read_text()
    for begin, end in ELSEWHERE.get(page, ()):
        text = text.split(begin)[0] + end + text.split(end)[1]
    lines, port, code = list(BEFORE.get(page, ())), free_port(), ["import larder", "from larder import ops"]
    python, number = list(code), 0
    for language, before, block in [*blocks(text), ("", "", "")]:
        block = shrink(block, port).replace("/data/", f"{folder}/data/")
        name = SAVED.findall("\n".join(before.rstrip().split("\n")[-2:]))
        number += 1
        if language in ("python", "yaml") and name:
            (folder / name[-1]).write_text(block)
            continue
        if language == "python":
            python.append(block)
            continue
        if python != code:  # what follows may need what the script did
            (folder / f"step{number}.py").write_text("\n".join(python))
            lines.append(f"python step{number}.py")
            python = list(code)
        if language == "yaml":
            (folder / f"step{number}.yaml").write_text(block)
            lines.append(f"larder config check step{number}.yaml")
        elif language == "sh":
            lines += [line for line in block.splitlines() if not line.startswith(SETUP)]
        elif language:
            assert language in ("text", "ini"), f"{page}: a block of {language}"
    ready = "until larder status >/dev/null; do :; done"
    lines = [x for line in lines for x in ([line, ready] if line.startswith("larder serve") else [line])]
    return "\n".join(["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", *lines])


@pytest.fixture
def bucket(session, tmp_path):
    """A server whose bucket "datasets" is the folder of the data, also as tars. Returns what makes a script speak to
    it: by the configuration of the page, or where it has none by the environment.
    """
    shutil.copytree(tmp_path / "data", tmp_path / "buckets" / "datasets")
    pack(tmp_path / "data" / "train", tmp_path / "buckets" / "datasets", 4, "train-{:03}.tar")
    server = Server(tmp_path / "buckets")

    def prepare(script):
        config, env = tmp_path / "larder.yaml", dict(CREDENTIALS)
        if config.exists():
            config.write_text(config.read_text().replace("http://127.0.0.1:9000", server.url))
        else:
            env["AWS_ENDPOINT_URL"] = server.url
        return "\n".join([f"export {k}={v}" for k, v in env.items()] + [script])

    yield prepare
    server.stop()


@pytest.mark.parametrize("page", PAGES)
def test_page(page, session, tmp_path, request):
    (tmp_path / "train.py").write_text("import larder\n")
    script = script_of(page, tmp_path)
    if page in ("docs/guides/stores.md", "docs/guides/packing.md", "README.md"):
        script = request.getfixturevalue("bucket")(script)
    if any("torch" in p.read_text() for p in tmp_path.glob("*.py")):
        request.getfixturevalue("torch")
    said = session("bash", "-c", script)
    if page == "docs/guides/several-jobs.md":
        right = [int(x) for x in re.findall(r"^seed [0-2]: (\d+) of 60 test images$", said, re.M)]
        assert len(right) == 3 and min(right) > 30, "each seed has learnt what a class is"


def test_the_first_example_warns_of_nothing(session, tmp_path, request):
    """As a newcomer runs it, and again in a process that continues where it was; no name is needed."""
    request.getfixturevalue("torch")
    pytest.importorskip("torchvision", reason="the example is of its ImageFolder")
    code = shrink(next(block for language, _, block in blocks((ROOT / "README.md").read_text()) if language), 0)
    code = code.replace("/data/", f"{tmp_path}/data/").replace("random_split(", "split(")
    code = (
        "def split(folder, parts):\n"
        "    return random_split(folder, parts, generator=torch.Generator().manual_seed(1))\n" + code
    )
    loop = "for images, labels in train:\n    ...\n"
    assert loop in code and "name=" not in code
    halt = "seen = 0\nfor images, labels in train:\n    seen += len(labels)\n    if seen == 16:\n        break\n"
    rest = (
        'train.load_state_dict(torch.load("train.pt"))\n'
        "print('rest', sum(len(labels) for images, labels in train), train.served_by)\n"
    )
    (tmp_path / "first.py").write_text(code.replace(loop, halt))
    (tmp_path / "again.py").write_text(code.replace(loop, rest))
    said = session("bash", "-c", "python first.py && python again.py")
    assert "Warning" not in said and "rest 28 native" in said
    assert [x for x in said.splitlines() if x.startswith("larder: ")] == 2 * [
        "larder: DataLoader of dataset torch.utils.data.dataset.Subset: the daemon reads and prepares it"
    ]


def test_every_guide_is_run():
    found = {str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "guides").glob("*.md")}
    assert found <= set(PAGES)


def test_every_expression_is_one(session, tmp_path):
    """Those of the table are expressions, though they may select nothing here; the mistake is shown as on the page.
    Folders have no properties: test_e2e_properties.py has those."""
    page = (ROOT / "docs" / "subsets.md").read_text()
    table = page.split("| expression | selects |")[1].split("\n\n")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines()
             if line.startswith("| `") and "(#properties)" not in line]
    expressions = [e for cell in cells for e in re.findall(r"`([^`]+)`", cell)]
    expressions = [e for e in expressions if e not in ("a and b", "a or b", "not a", "( )")]
    assert len(expressions) > 10
    where = f"larder dataset inspect imagefolder:{tmp_path}/data/train --subset"
    lines = ["larder serve &", "until larder status >/dev/null; do :; done"]
    lines += [f"{where} {shlex.quote(e)} || echo of exit code $?" for e in [*expressions, "lable < 600"]]
    said = session("bash", "-c", "\n".join([*lines, "larder stop"]))
    wrong = said.count("larder: subset: ") - said.count("goes beyond") - said.count("selects none")
    assert wrong == said.count("unknown word") == 1, said
    shown = re.findall(r"```text\n(.*?)```", page, re.S)[-1]
    assert shown in said
