"""The guides: their code and commands run as they stand, in the order of the page, with a folder that exists for /data.

A page is one session. A Python block that the text before it says to save as NAME.py, and a YAML block as NAME.yaml, becomes that file; other
Python blocks of a page are one script, run where it ends; the shell blocks are one script, too. Outputs and units of other programs are ``text`` and
``ini``.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from real import PATIENCE, ROOT, draw, find_binary

PAGES = [
    "docs/start.md",
    "docs/will-it-help.md",
    "docs/guides/pytorch.md",
    "docs/guides/several-jobs.md",
    "docs/guides/memory.md",
    "docs/guides/operating.md",
    "docs/guides/benchmarking.md",
    "README.md",
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SAVED = re.compile(r"`([\w-]+\.(?:py|yaml))`")
SETUP = ("apt-get ", "make ", "pip ", 'export PATH="$PWD/bin:$PATH"')  # what the test itself has done
BEFORE = {"docs/guides/memory.md": ["larder serve &"]}  # what a page takes to be so
SMALLER = {
    "samples: 20000": "samples: 2000",
    "range(90)": "range(2)",
    "batch_size=256": "batch_size=8",
    "steps=100": "steps=3",
    "--seconds 5": "--seconds 1",
    "larder demo": "larder demo --samples 60 --jobs 2 --epochs 1",
    "--for 10s": "--for 4s",
    "curl -fsS": "python -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())'",
}


def blocks(page):
    """(language, the text before the block since the one before it, the block)."""
    text, at = (ROOT / page).read_text(), 0
    for m in BLOCK.finditer(text):
        yield m[1], text[at : m.start()], m[2]
        at = m.end()


def free_port():
    """A TCP port that nothing listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def shrink(code, port):
    """The same on little data, and on a port that is free."""
    for was, now in {**SMALLER, "127.0.0.1:9464": f"127.0.0.1:{port}"}.items():
        code = code.replace(was, now)
    return code


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A user of his own: folders, no daemon yet, and larder and python on the PATH. Returns how to run a script there."""
    pytest.importorskip("PIL.Image", reason="Pillow draws the images")
    draw(tmp_path / "data" / "train", 24, 2)
    draw(tmp_path / "data" / "val", 6, 3, seed=2)
    draw(tmp_path / "data" / "scraps", 2, 2, seed=3)
    home = Path(tempfile.mkdtemp(prefix="lp-"))  # short: a socket's path has at most 107 bytes
    tools = home / "bin"
    tools.mkdir()
    for name, target in {"larder": find_binary(), "python": sys.executable}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{target}" "$@"\n')
        (tools / name).chmod(0o755)
    (tmp_path / "bench").symlink_to(ROOT / "bench")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    job = tmp_path / "examples" / "job.yaml"
    job.write_text(
        job.read_text().replace("/data/train", f"{tmp_path}/data/train").replace("batch_size: 256", "batch_size: 8")
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_SOCKET", "XDG_"))}
    env |= {
        "PATH": f"{tools}:{env['PATH']}",
        "PYTHONPATH": str(ROOT / "python"),
        "LARDER_BIN": find_binary(),
        "HOME": str(home),
        "TMPDIR": str(home),
    }
    env |= {
        "XDG_RUNTIME_DIR": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
        "OMP_NUM_THREADS": "1",
    }

    def run(*command):
        with open(tmp_path / "output", "w+") as out:
            p = subprocess.Popen(
                command, cwd=tmp_path, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
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
    subprocess.run(
        [str(tools / "larder"), "stop", "--force"], env=env, capture_output=True, timeout=PATIENCE, check=False
    )
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("page", PAGES)
def test_page(page, session, tmp_path, request):
    shell, script, port = list(BEFORE.get(page, ())), [], free_port()
    for language, before, code in blocks(page):
        code = shrink(code, port).replace("/data/", f"{tmp_path}/data/")
        name = SAVED.findall(before.rsplit("\n\n", 2)[-2] if before.count("\n\n") else before)
        if language in ("python", "yaml") and name:
            (tmp_path / name[-1]).write_text(code)
        elif language == "python":
            script.append(code)
        elif language == "yaml":
            (tmp_path / "larder.yaml").write_text(code)
            session("larder", "config", "check", "larder.yaml")
        elif language == "sh":
            shell += [line for line in code.splitlines() if not line.startswith(SETUP)]
        else:
            assert language in ("text", "ini"), f"{page}: a block of {language or 'no language'}"
    if any("torch" in code for code in script):
        request.getfixturevalue("torch")
    if script and page != "docs/guides/several-jobs.md":
        (tmp_path / "page.py").write_text("\n".join(["import larder", "from larder import ops", *script]))
        session("python", "page.py")
    if shell:
        (tmp_path / "train.py").exists() or (tmp_path / "train.py").write_text("import larder\n")
        lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
        for line in shell:
            lines += (
                [line, "until larder status >/dev/null; do sleep 0.05; done"]
                if line.startswith("larder serve")
                else [line]
            )
        session("bash", "-c", "\n".join(lines))
    if script and page == "docs/guides/several-jobs.md":  # its script needs the job that its commands register
        (tmp_path / "page.py").write_text("\n".join(["import larder", "from larder import ops", *script]))
        session("python", "page.py")


def test_every_guide_is_run():
    found = {str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "guides").glob("*.md")}
    assert found <= set(PAGES)
