#!/usr/bin/env bash
# Every fuzz target of some packages, for so long each, and how often each was run. The exit code is 1 when an input failed.
#
#   internal/tools/fuzz.sh TIME PACKAGE...     seconds, or as Go has it: 90s, 2m
#
# Where the clock ends a target and a worker is in the midst of an input, Go's coordinator reports "context deadline exceeded" as a failure of the
# target (golang/go#75804, mended in Go 1.27). That alone, without a failing input, is the end of the time and no failure.
set -u -o pipefail
cd "$(dirname "$0")/../.."

case $1 in *[!0-9]*) time=$1 ;; *) time=${1}s ;; esac
shift
failed=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
log=$tmp/log
cache=$(go env GOCACHE)/fuzz
for p in "$@"; do
  read -r path dir < <(go list -f '{{.ImportPath}} {{.Dir}}' "$p") || exit 1
  targets=$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go 2>/dev/null | sed 's/func //')
  [ -n "$targets" ] || continue
  go test -tags "${TAGS-turbo}" -c -fuzz . -o "$tmp/test" "$p" || exit 1 # once: go test links for every target
  for f in $targets; do
    how=
    if ! (cd "$dir" && "$tmp/test" -test.paniconexit0 -test.run '^$' -test.fuzz "^$f\$" -test.fuzztime "$time" \
      -test.fuzzcachedir "$cache/$path") >"$log" 2>&1; then
      said=$(grep -vE '^(fuzz: elapsed: .*|warning: .*|FAIL.*|exit status .*|)$' "$log")
      if ! [[ $said =~ ^"--- FAIL: $f ("[0-9.]+"s)"$'\n'" "+"context deadline exceeded"$ ]]; then
        cat "$log" >&2
        failed=1
        continue
      fi
      how=", ended in the midst of one"
    fi
    execs=$(sed -nE 's/.*execs: ([0-9]+).*/\1/p' "$log" | tail -1)
    echo "$(basename "$p").$f: ${execs:-0} executions$how"
    if [ "${execs:-0}" -eq 0 ] && ! grep -q 'baseline coverage: [1-9]' "$log"; then # those that are known come first, and are not counted
      echo "$p $f was not run once in $time" >&2
      failed=1
    fi
  done
done
exit $failed
