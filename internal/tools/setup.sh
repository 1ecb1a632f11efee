#!/usr/bin/env bash
# Installs what `make test` and `make bench` need, and says what it does. On Debian as root: libjpeg-turbo's headers,
# a CPU PyTorch with torchvision to test against, and a Chromium without windows that looks at reports. Elsewhere: what pip has. Usage: setup.sh VENV
set -euo pipefail
venv=$1
say() { echo "setup: $*"; }

packages=(libjpeg62-turbo-dev python3-venv python3-numpy python3-pil python3-pytest python3-torch python3-torchvision)
# The browser is apart from the rest: where it has another name, the others are installed all the same.
browser=chromium-headless-shell
for b in chromium chromium-headless-shell chromium-browser google-chrome; do
  command -v "$b" >/dev/null && browser=
done

# debian NAME… installs what is not there yet.
debian() {
  local missing=() p log
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "apt-get install ${missing[*]}"
  log=$(mktemp)
  if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 5 "$log"
    say "that failed; going on with what is there"
  fi
  rm -f "$log"
}

if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  debian "${packages[@]}"
  [ -z "$browser" ] || debian "$browser"
else
  say "not root on Debian: nothing is installed into the system (for the fast decoder, the PyTorch tests and a look at reports: ${packages[*]} $browser)"
fi

python=python3
if [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import venv, numpy' 2>/dev/null; then
  python=/usr/bin/python3 # the one that sees Debian's torch
fi
if ! "$venv/bin/python" -c 'import numpy, pytest, larder' 2>/dev/null; then
  say "making $venv from $($python --version)"
  rm -rf "$venv"
  $python -m venv --system-site-packages "$venv"
  need=()
  for m in numpy pytest; do "$venv/bin/python" -c "import $m" 2>/dev/null || need+=("$m"); done
  "$venv/bin/python" -c 'import PIL' 2>/dev/null || need+=(pillow)
  if [ ${#need[@]} -gt 0 ]; then
    say "pip install ${need[*]}"
    "$venv/bin/pip" install -q --disable-pip-version-check "${need[@]}"
  fi
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  (cd "$(dirname "$0")/../../python" && pwd) >"$site/larder.pth" # the client, straight from the tree
fi
if "$venv/bin/python" -c 'import torch, torchvision' 2>/dev/null; then
  say "testing against torch $("$venv/bin/python" -c 'import torch, torchvision; print(torch.__version__, "and torchvision", torchvision.__version__)')"
elif [ -n "${CI:-}" ]; then
  say "torch and torchvision are mandatory in CI and could not be installed"
  exit 1
else
  say "no torch: its tests are skipped (Debian: apt-get install python3-torch python3-torchvision)"
fi
