#!/bin/sh
# Computes docs/reproductions.md's section joader-late again and compares it with expected.json; -write takes what comes out for it.
set -eu
cd "$(dirname "$0")/../../.."
exec go run larder/bench/reproductions/run "$@" joader-late
