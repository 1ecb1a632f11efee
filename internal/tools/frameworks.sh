#!/usr/bin/env bash
# Tests the client under real training frameworks: each in an environment of its own, with the versions of
# python/tests/frameworks/requirements.
#
#   internal/tools/frameworks.sh BINARY [NAME...]     all, or some: frameworks.sh bin/larder lightning-2.5 trainer
#
# Environments stay in .frameworks and are made again when their requirements change. torch is installed once: 5.5 GB with its
# CUDA libraries, which the Python index's torch does not load without. The exit code is 1 when a test failed.
set -euo pipefail
cd "$(dirname "$0")/../.."

names=(lightning-2.2 lightning-2.5 lightning-2.6 accelerate trainer)
[ $# -ge 1 ] || { echo "say which binary: internal/tools/frameworks.sh bin/larder"; exit 2; }
binary=$(realpath "$1")
shift
wanted=("$@")
[ $# -gt 0 ] || wanted=("${names[@]}")
wants=python/tests/frameworks/requirements
home=.frameworks
python=$(command -v python3.11 || command -v python3)
say() { echo "frameworks: $*"; }

for n in "${wanted[@]}"; do
  [ -f "$wants/$n.txt" ] && [ "$n" != torch ] || { say "there is no $n; there are ${names[*]}"; exit 2; }
done
mkdir -p "$home"

# environment NAME [BASE]: makes .frameworks/NAME, which sees the packages of BASE.
environment() {
  local name=$1 base=${2-} env=$home/$1 stamp
  stamp=$(cat "$wants/$name.txt" ${base:+"$wants/$base.txt"} <($python --version) | sha256sum)
  [ "$(cat "$env/stamp" 2>/dev/null)" != "$stamp" ] || return 0
  say "installing $env ($(grep -cE '^[A-Za-z]' "$wants/$name.txt") packages, $($python --version))"
  rm -rf "$env"
  "$python" -m venv "$env"
  if [ -n "$base" ]; then
    realpath "$home/$base/lib/"python*/site-packages >"$(echo "$env/lib/"python*/site-packages)/base.pth"
  fi
  "$env/bin/pip" install -q --disable-pip-version-check -r "$wants/$name.txt"
  echo "$stamp" >"$env/stamp"
}

# suite NAME prints the files of a framework's tests.
suite() {
  case $1 in
  lightning-*) echo python/tests/frameworks/e2e_lightning.py ;;
  accelerate | trainer) echo python/tests/frameworks/e2e_huggingface.py ;;
  esac
  echo python/tests/frameworks/e2e_door.py
}

environment torch
failed=()
for n in "${wanted[@]}"; do
  environment "$n" torch
  packages=$(grep -E "^(${n%-*}|transformers)==" "$wants/$n.txt" | sort -u | paste -sd' ')
  say "$packages on $(grep '^torch==' "$wants/torch.txt")"
  mapfile -t files < <(suite "$n")
  LARDER_BIN=$binary LARDER_REQUIRE_BIN=1 "$home/$n/bin/python" -m pytest -q -p no:cacheprovider \
    -o faulthandler_timeout=900 "${files[@]}" || failed+=("$n")
done
[ ${#failed[@]} -eq 0 ] || { say "failed: ${failed[*]}"; exit 1; }
