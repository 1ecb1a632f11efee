#!/bin/sh
# Computes docs/reproductions.md's section seneca-preparations again and compares it with expected.json; -write takes what comes out for it.
set -eu
cd "$(dirname "$0")/../../.."
exec go run larder/bench/reproductions/run "$@" seneca-preparations
