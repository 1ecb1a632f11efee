#!/usr/bin/env bash
# What 64-bit ARM takes: all packages built and vetted without C; with qemu the tests of the decoder in Go; with a C
# compiler the kernels in C, and with libjpeg-turbo for ARM their tests.
#
# Without a tool its tests are left out, with words; with LARDER_REQUIRE_ARM64=1 that is an error. CC_ARM64 and
# QEMU_ARM64 name the two programs. libjpeg-turbo lies where the compiler finds it, or in bin/tools/arm64
# (make setup-nightly).
set -euo pipefail
cd "$(dirname "$0")/../.."

go=${GO:-go} cc=${CC_ARM64:-aarch64-linux-gnu-gcc} qemu=${QEMU_ARM64:-qemu-aarch64-static}
out=$PWD/out jpeg=$PWD/bin/tools/arm64/usr
cflags="-O2 -I$jpeg/include -I$jpeg/include/aarch64-linux-gnu"
export GOARCH=arm64 CGO_ENABLED=0
lacking=0

has() { command -v "$1" >/dev/null; }
# lacks WHAT PACKAGES LEFT: WHAT is not there; LEFT says what is left out.
lacks() {
  echo "cross: there is no $1: $3 (make setup-nightly installs $2 on Debian)" >&2
  lacking=1
}
has "$cc" || lacks "$cc" "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" "the kernels in C are not compiled"
has "$qemu" || lacks "$qemu" qemu-user-static "no test is run"
libjpeg=
if has "$cc"; then
  # shellcheck disable=SC2086 # several flags
  if printf '#include <stdio.h>\n#include <jpeglib.h>\n' | "$cc" $cflags -E - >/dev/null 2>&1; then
    libjpeg=yes
  else
    lacks "libjpeg-turbo for ARM" "libjpeg62-turbo-dev for arm64, into bin/tools" "no test of the kernels in C is run"
  fi
fi
[ $lacking = 0 ] || [ -z "${LARDER_REQUIRE_ARM64-}" ] || exit 1

# tests FILE PATTERN: tests of internal/prep, run by qemu in their folder.
tests() { (cd internal/prep && "$qemu" "$out/$1" -test.v -test.run "$2"); }

set -x
$go build ./...
$go vet ./...
mkdir -p "$out"
if has "$qemu"; then
  $go test -c -o "$out/prep-arm64-go.test" ./internal/prep
  tests prep-arm64-go.test 'Golden|Naive|Trigonometry|FMA32|Encoded|Extremes'
fi
if has "$cc"; then
  "$cc" -std=c11 -O3 -Wall -Wextra -Wno-unused-parameter -fsyntax-only internal/prep/kernel/kernel.c
fi
if has "$qemu" && [ -n "$libjpeg" ]; then
  CGO_ENABLED=1 CC=$cc CGO_CFLAGS=$cflags CGO_LDFLAGS=-L$jpeg/lib/aarch64-linux-gnu $go test -c -tags turbo \
    -ldflags '-linkmode external -extldflags -static' -o "$out/prep-arm64.test" ./internal/prep
  LARDER_KERNEL_CASES=200 tests prep-arm64.test 'Golden|Kernel|Finish|RegionEquals'
fi
