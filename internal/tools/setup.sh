#!/usr/bin/env bash
# Installs what a target of the Makefile needs, and reports what it does.
#
#   internal/tools/setup.sh VENV             for `make test` and `make bench`; also an S3 server, into bin/tools
#   internal/tools/setup.sh VENV TOOLS       for `make check`: also the pinned linters and generators, into the folder TOOLS
#   internal/tools/setup.sh VENV writers     for `make writers`: also the writers of packed files, in .venv-formats
#   internal/tools/setup.sh VENV nightly     for `make nightly`: these, Azurite, nginx, a headless Chromium, and what
#                                            make cross takes
#
# On Debian as root it installs system packages: libjpeg-turbo's headers, and a CPU PyTorch with torchvision to test
# against. Elsewhere it installs what pip has.
#
# Versions are pinned in internal/tools/{lint,proto,s3}/go.mod, internal/tools/python/{requirements,formats}.txt,
# internal/tools/azurite/package-lock.json and, of pytest-xdist, below. A tool is built or installed again only when its
# version there differs from the installed one. Debian's packages have the versions of its release.
set -euo pipefail
venv=$1
tools=${2-} nightly='' writers=''
case $tools in
nightly) tools='' nightly=yes writers=yes ;;
writers) tools='' writers=yes ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
say() { echo "setup: $*"; }

packages=(libjpeg62-turbo-dev python3-venv python3-numpy python3-pil python3-pytest python3-torch python3-torchvision
  openssl)
[ -z "$nightly" ] || packages+=(nginx-light gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)
# The browser is installed separately: its package has other names elsewhere, and the other packages must not miss.
browser=${nightly:+chromium-headless-shell}
for b in chromium chromium-headless-shell chromium-browser google-chrome; do
  command -v "$b" >/dev/null && browser=
done

# debian NAME... installs the packages that are missing, and starts no service of them (RUNLEVEL).
debian() {
  local missing=() p log
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "apt-get install ${missing[*]}"
  log=$(mktemp)
  if ! { apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 5 "$log"
    say "the installation failed; continuing without"
  fi
  rm -f "$log"
}

# environment makes the virtual environment of the tests: it sees the system's packages, and the client of this tree.
environment() {
  local python=python3 need=() m site
  if [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import venv, numpy' 2>/dev/null; then
    python=/usr/bin/python3 # this one sees Debian's torch
  fi
  "$venv/bin/python" -c 'import numpy, pytest, larder, xdist' 2>/dev/null && return
  say "making $venv from $($python --version)"
  rm -rf "$venv"
  $python -m venv --system-site-packages "$venv"
  for m in numpy pytest; do "$venv/bin/python" -c "import $m" 2>/dev/null || need+=("$m"); done
  "$venv/bin/python" -c 'import PIL' 2>/dev/null || need+=(pillow)
  "$venv/bin/python" -c 'import xdist' 2>/dev/null || need+=(pytest-xdist==3.6.1 execnet==2.1.1)
  if [ ${#need[@]} -gt 0 ]; then
    say "pip install ${need[*]}"
    "$venv/bin/pip" install -q --disable-pip-version-check "${need[@]}"
  fi
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  (cd "$here/../../python" && pwd) >"$site/larder.pth"
}

# formats makes the environment whose packages write and read packed files for the tests.
formats() {
  local list=$here/python/formats.txt home=$here/../../.venv-formats
  cmp -s "$list" "$home/formats.txt" && return
  say "pip install $(grep -cE '^[A-Za-z]' "$list") packages into .venv-formats"
  rm -rf "$home"
  "$("$venv/bin/python" -c 'import sys; print(sys._base_executable)')" -m venv --system-site-packages "$home"
  "$home/bin/pip" install -q --disable-pip-version-check --no-deps -r "$list"
  cp "$list" "$home/formats.txt"
}

# s3_server builds versitygw. Without a network, its tests are skipped; in CI they are mandatory.
s3_server() {
  local tools=$here/../../bin/tools
  mkdir -p "$tools"
  if ! (cd "$here/s3" && go mod download github.com/versity/versitygw) ||
    ! go_tool s3 github.com/versity/versitygw github.com/versity/versitygw/cmd/versitygw; then
    say "versitygw could not be built: the tests against an S3 server are skipped"
    [ -z "${CI:-}" ]
  fi
}

# azurite installs the emulator of Azure at the version of its lock file. It needs npm, which no package list brings.
azurite() {
  local home=$here/../../bin/tools/azurite
  cmp -s "$here/azurite/package-lock.json" "$home/package-lock.json" &&
    [ -e "$home/node_modules/.bin/azurite-blob" ] && return
  if ! command -v npm >/dev/null; then
    say "no npm: the tests against Azurite are skipped, and make nightly, which demands them, fails"
    return
  fi
  say "npm ci: azurite into bin/tools"
  rm -rf "$home"
  mkdir -p "$home"
  cp "$here"/azurite/package*.json "$home"
  if ! (cd "$home" && npm ci --silent --no-audit --no-fund --ignore-scripts); then
    rm -rf "$home"
    say "azurite could not be installed: its tests are skipped"
    [ -z "${CI:-}" ]
  fi
}

# arm64_jpeg unpacks Debian's libjpeg-turbo for 64-bit ARM into bin/tools: make cross links the kernels in C with it. apt
# reads lists of its own, so that the system need not take packages of a foreign architecture.
arm64_jpeg() {
  local home=$here/../../bin/tools/arm64 tmp
  [ ! -e "$home/usr/lib/aarch64-linux-gnu/libjpeg.a" ] || return 0
  say "apt-get download libjpeg62-turbo-dev for arm64 into bin/tools"
  tmp=$(mktemp -d)
  local apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
    -o Dir::State::Lists="$tmp/lists" -o Dir::Cache="$tmp/cache")
  mkdir -p "$tmp/lists/partial" "$tmp/cache/archives/partial" "$home"
  (cd "$tmp" && "${apt[@]}" update && "${apt[@]}" download libjpeg62-turbo-dev) >"$tmp/log" 2>&1 &&
    dpkg-deb -x "$tmp"/libjpeg62-turbo-dev_*.deb "$home" || {
    tail -n 5 "$tmp/log"
    say "the download failed; continuing without"
  }
  rm -rf "$tmp"
}

# go_modules downloads the modules of others and compiles them into Go's cache, in the forms that TAGS chooses.
go_modules() {
  local stamp=$here/../../bin/tools/go.sum.compiled now
  now=$(go version; echo "${TAGS-}"; cat "$here/../../go.sum")
  [ "$(cat "$stamp" 2>/dev/null)" != "$now" ] || return 0
  say "downloading and compiling Go modules"
  (cd "$here/../.." && go list -deps -test -tags "${TAGS-}" -f \
    '{{with .Module}}{{if not .Main}}{{$.ImportPath}}{{end}}{{end}}' ./... | grep -v ' ' | sort -u |
    xargs go build -tags "${TAGS-}")
  mkdir -p "$(dirname "$stamp")"
  echo "$now" >"$stamp"
}

# lint_modules lets golangci-lint read the modules of others once: what it found in them is in its cache then, under its
# version and settings. A package that imports all of them makes it do so.
lint_modules() {
  local root=$here/../.. stamp=$tools/linted now room
  now=$(cat "$tools/go.sum.compiled" "$root/.golangci.yml" "$here/lint/go.mod")
  [ "$(cat "$stamp" 2>/dev/null)" != "$now" ] || return 0
  say "linting Go modules"
  room=$root/out/_modules # the underscore keeps it out of ./...
  mkdir -p "$room"
  if (
    cd "$root" &&
    others=$(go list -deps -test -tags "${TAGS-}" ./... | grep -vE ' |^main$|\.test$|^larder|^unsafe$|(^|/)(internal|vendor)(/|$)') &&
    printf 'package modules\n\nimport (\n%s\n)\n' "$(sed 's/.*/\t_ "&"/' <<<"$others")" >"$room/modules.go" &&
    GOGC=off GOMEMLIMIT=3GiB "$tools/golangci-lint" run --issues-exit-code 0 --build-tags "${TAGS-}" ./out/_modules >/dev/null
  ); then
    echo "$now" >"$stamp"
  else
    say "the modules could not be linted: make check does it"
  fi
  rm -r "$room"
}

# go_tool ROOM MODULE PACKAGE builds a command at the version that the go.mod of internal/tools/ROOM requires.
go_tool() {
  local room=$1 module=$2 package=$3 binary want have
  binary=$tools/$(basename "$package")
  want=$(cd "$here/$room" && go list -m -f '{{.Version}}' "$module")
  have=$({ go version -m "$binary" 2>/dev/null || true; } | awk '$1 == "mod" {print $3}') # none yet: empty
  [ "$have" != "$want" ] || return 0
  say "building $(basename "$package") $want"
  (cd "$here/$room" && go build -o "$binary" "$package")
}

# python_tools installs the type checkers, the linter and buf into an environment of their own.
python_tools() {
  local list=$here/python/requirements.txt home=$tools/python
  cmp -s "$list" "$home/requirements.txt" && return
  say "pip install $(grep -cE '^[a-z]' "$list") packages into $home"
  rm -rf "$home"
  python3 -m venv "$home"
  "$home/bin/pip" install -q --disable-pip-version-check --no-deps -r "$list"
  cp "$list" "$home/requirements.txt"
}

if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  debian "${packages[@]}"
  [ -z "$browser" ] || debian "$browser"
  [ -z "$nightly" ] || arm64_jpeg
else
  say "not root on Debian: no system package is installed (for the fast decoder and the tests: ${packages[*]} $browser)"
fi
environment
if torch=$("$venv/bin/python" -c 'import torch, torchvision as v; print(torch.__version__, "and torchvision", v.__version__)' \
  2>/dev/null); then
  say "testing against torch $torch"
  [ -z "$writers" ] || formats
elif [ -n "${CI:-}" ]; then
  say "torch and torchvision are mandatory in CI and could not be installed"
  exit 1
else
  say "no torch: its tests are skipped (Debian: apt-get install python3-torch python3-torchvision)"
fi
if [ -n "$tools" ]; then
  mkdir -p "$tools"
  tools=$(cd "$tools" && pwd)
fi
go_modules
[ -n "$tools" ] || s3_server
[ -z "$nightly" ] || azurite
if [ -n "$tools" ]; then
  go_tool lint github.com/golangci/golangci-lint/v2 github.com/golangci/golangci-lint/v2/cmd/golangci-lint
  go_tool proto google.golang.org/protobuf google.golang.org/protobuf/cmd/protoc-gen-go
  go_tool proto google.golang.org/grpc/cmd/protoc-gen-go-grpc google.golang.org/grpc/cmd/protoc-gen-go-grpc
  python_tools
  lint_modules
fi
