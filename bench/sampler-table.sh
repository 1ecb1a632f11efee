#!/usr/bin/env bash
# Makes the tables of docs/measurements/sampler.md again: builds larder and runs `larder bench sampler` on bench/scenarios. About 30 seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -o "$bin/larder" ./cmd/larder
go run ./bench/samplertable --larder "$bin/larder" --page docs/measurements/sampler.md
