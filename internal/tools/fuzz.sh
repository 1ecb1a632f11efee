#!/usr/bin/env bash
# Every fuzz target of some packages, for so many seconds each, and how often each was run. The exit code is 1 when an input failed.
#
#   internal/tools/fuzz.sh SECONDS PACKAGE...
#
# Where the clock ends a target and a worker is in the midst of an input, Go's coordinator reports "context deadline exceeded" as a failure of the
# target (golang/go#75804, mended in Go 1.27). That alone, without a failing input, is the end of the time and no failure.
set -u -o pipefail
cd "$(dirname "$0")/../.."

seconds=${1%s}
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for p in "$@"; do
  dir=$(go list -f '{{.Dir}}' "$p") || exit 1
  for f in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go 2>/dev/null | sed 's/func //'); do
    how=
    if ! go test -tags "${TAGS-turbo}" -run '^$' -fuzz "^$f\$" -fuzztime "${seconds}s" "$p" >"$log" 2>&1; then
      said=$(grep -vE '^(fuzz: elapsed: .*|warning: .*|FAIL.*|exit status .*|)$' "$log")
      if ! [[ $said =~ ^"--- FAIL: $f ("[0-9.]+"s)"$'\n'" "+"context deadline exceeded"$ ]]; then
        cat "$log" >&2
        exit 1
      fi
      how=", ended in the midst of one"
    fi
    echo "$(basename "$p").$f: $(sed -nE 's/.*execs: ([0-9]+).*/\1/p' "$log" | tail -1) executions$how"
  done
done
