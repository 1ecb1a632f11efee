"""Environments of the peers: one for each, from the pinned versions in bench/peers, under out/peers.

    .venv/bin/python bench/py/peers_env.py [NAME ...]      make bench-peers builds all of them

A peer whose packages cannot be installed, or cannot be imported afterwards, is named with the reason; the others are
built all the same. An environment is made again when its list of versions has changed. What a peer needs of the system
(FFCV: OpenCV's and libjpeg-turbo's headers) is installed where this runs as root on Debian.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from dataclasses import dataclass

from loaders import ROOT

PINS = ROOT / "bench/peers"
PATIENCE = 1500  # seconds for one installation


@dataclass(frozen=True)
class Environment:
    """One peer's packages. Over: it sees the packages of the interpreter that the tests use, torch among them."""

    name: str
    imports: str
    over: bool = False
    debian: tuple[str, ...] = ()

    @property
    def home(self) -> pathlib.Path:
        return pathlib.Path(os.environ.get("PEERS_HOME", ROOT / "out/peers")) / self.name

    @property
    def python(self) -> pathlib.Path:
        return self.home / "bin/python"

    @property
    def pins(self) -> pathlib.Path:
        return PINS / f"{self.name}.txt"


# The wheels of torch from the Python index hold gigabytes of CUDA; what needs torch sees the one that is there.
ENVIRONMENTS = {e.name: e for e in (
    Environment("tensorflow", "import tensorflow"),
    Environment("dali", "import nvidia.dali"),
    Environment("ffcv", "import ffcv.loader", over=True, debian=("libopencv-dev", "libturbojpeg0-dev", "pkg-config")),
    Environment("spdl", "import spdl.pipeline, spdl.io; spdl.io.demux_config()", over=True, debian=("libavdevice59",)),
    Environment("mds", "import streaming, torchvision", over=True),
    Environment("litdata", "import litdata, boto3, torchvision", over=True),
)}


def versions(pins: str) -> list[str]:
    """The requirements of a list of versions; each must be pinned, because a figure belongs to a version."""
    out = [line.split("#")[0].strip() for line in pins.splitlines()]
    out = [line for line in out if line]
    for line in out:
        if "==" not in line:
            raise ValueError(f"{line}: not pinned; write NAME==VERSION")
    return out


def shown(pins: str) -> str:
    """The peer itself, which is the first of a list: `ffcv 1.0.2`."""
    return versions(pins)[0].replace("==", " ")


def ready(e: Environment) -> bool:
    """An environment counts when its last installation ended, from the list of versions that is there now."""
    stamp = e.home / "installed.txt"
    return stamp.is_file() and stamp.read_text() == e.pins.read_text() and e.python.exists()


def last_line(e: subprocess.CalledProcessError) -> str:
    lines = (e.stderr or e.stdout or "").strip().splitlines()
    errors = [line.strip() for line in lines if "error" in line.lower()]
    return (errors or lines or [str(e)])[-1][:200]


def system_packages(names: tuple[str, ...]) -> None:
    """Installs what is missing, as root on Debian; elsewhere the build of the peer says what it lacks."""
    if os.geteuid() or not shutil.which("apt-get"):
        return
    known = subprocess.run(["dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", *names], capture_output=True,
                           text=True).stdout
    missing = [n for n in names if f"{n} installed" not in known]
    if missing:
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], check=True,
                       capture_output=True, text=True, timeout=PATIENCE)


def build(e: Environment) -> str:
    """Builds an environment; returns why it could not, or nothing."""
    if ready(e):
        return ""
    pip = [str(e.python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "2", "--timeout",
           "30"]
    try:
        system_packages(e.debian)
        over = ["--system-site-packages"] if e.over else []
        subprocess.run([base(), "-m", "venv", "--clear", *over, str(e.home)], check=True, capture_output=True,
                       text=True, timeout=PATIENCE)
        # The lists are complete: what they leave out (torch where it is there already) must not be fetched.
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-r", str(e.pins)], check=True, capture_output=True,
                       text=True, timeout=PATIENCE)
        subprocess.run([str(e.python), "-c", e.imports], check=True, capture_output=True, text=True, timeout=300)
    except subprocess.CalledProcessError as failed:
        return last_line(failed)
    except (OSError, subprocess.TimeoutExpired) as failed:
        return str(failed)[:200]
    (e.home / "installed.txt").write_text(e.pins.read_text())
    return ""


def base() -> str:
    """The interpreter below the environment that runs this."""
    return str(pathlib.Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))


def main() -> None:
    names = sys.argv[1:] or list(ENVIRONMENTS)
    for name in names:
        if name not in ENVIRONMENTS:
            raise SystemExit(f"{name}: choose of {', '.join(ENVIRONMENTS)}")
        e = ENVIRONMENTS[name]
        print(f"peers: {shown(e.pins.read_text())}: {build(e) or 'ready'}", flush=True)


if __name__ == "__main__":
    main()
