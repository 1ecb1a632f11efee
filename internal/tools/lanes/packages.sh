#!/usr/bin/env bash
# Prints what a lane runs:
#
#   packages.sh race          packages that start goroutines, in their code or their tests, and are not pure
#   packages.sh race-skip     a pattern of their tests that only make nightly runs under the race detector
#   packages.sh race-night    those that make nightly races whole: also those of race.tsv, but for bench and chaostest
#   packages.sh race-rest     all other packages with tests
#   packages.sh pure          the pure ones, whose assertions are on with the build tag "invariants"
#   packages.sh rest          those of make test that are not pure
#
# internal/archtest compares the list of the pure ones with its own. A package that starts no goroutine is still watched
# by the detector where tests of others call it. race.tsv names what is left out of the race lane, with reasons.
set -euo pipefail
cd "$(dirname "$0")/../../.."

pure=$(sed -e 's/#.*//' -e '/^ *$/d' internal/archtest/testdata/pure.txt)
left=$(grep -v '^#' internal/tools/lanes/race.tsv | cut -f1)
starts='^[[:space:]]*go (func\b|[A-Za-z_.]+\()|\.Go\(|time\.AfterFunc\('
# Prints the folders with tests that are not pure.
others() {
  go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./... | sed -e '/^$/d' -e "s|^$PWD/||" |
    grep -vxF "$pure"
}
# Prints those of them that start goroutines.
start() {
  while read -r p; do
    if grep -qE "$starts" "$p"/*.go; then echo "./$p"; fi
  done
}
night() { others | grep -vxE 'bench|bench/policysim|internal/chaostest' | start; }
case ${1-} in
pure) for p in $pure; do echo "./$p"; done ;;
rest)
  others | while read -r p; do
    case $p in docs | internal/archtest | internal/chaostest) ;; *) echo "./$p" ;; esac # of check and faults
  done
  ;;
race) others | grep -vxF "$left" | start ;;
race-night) night ;;
race-rest) { for p in $pure; do echo "./$p"; done; others | sed 's|^|./|'; } | sort -u | grep -vxFf <(night) ;;
race-skip) echo "^($(sed -nE 's/.*\.(Test|Fuzz)/\1/p' <<<"$left" | sort -u | paste -sd'|'))\$" ;;
*) echo "packages.sh race|race-skip|race-night|race-rest|pure|rest" >&2; exit 2 ;;
esac
