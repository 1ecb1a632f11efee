#!/usr/bin/env bash
# Prints the packages of a lane:
#
#   packages.sh race          those that start goroutines, in their code or their tests, and are not pure
#   packages.sh invariants    the pure ones, whose assertions are on with the build tag "invariants"
#
# internal/archtest compares the list of the pure ones with its own. A package that starts none is still watched by the
# detector where tests of others call it. Left out are internal/chaostest, which tests a process of its own, and the
# simulators of bench, whose goroutines each play a world of their own, and internal/source/packed, whose tests read
# damaged files for minutes and whose goroutines the tests of internal/source start: make nightly PART=race has them.
set -euo pipefail
cd "$(dirname "$0")/../../.."

pure=$(sed -e 's/#.*//' -e '/^ *$/d' internal/archtest/testdata/pure.txt)
starts='^[[:space:]]*go (func\b|[A-Za-z_.]+\()|\.Go\(|time\.AfterFunc\('
case ${1-} in
invariants) for p in $pure; do echo "./$p"; done ;;
race)
  go list -f '{{.Dir}}' ./... | while read -r dir; do
    p=${dir#"$PWD/"}
    case $p in internal/chaostest | bench | bench/policysim | internal/source/packed) continue ;; esac
    ls "$dir"/*_test.go >/dev/null 2>&1 || continue
    ! grep -qxF "$p" <<<"$pure" || continue
    if grep -qE "$starts" "$dir"/*.go; then echo "./$p"; fi
  done
  ;;
*) echo "packages.sh race|invariants" >&2; exit 2 ;;
esac
