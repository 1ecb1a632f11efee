#!/usr/bin/env bash
# Says in a word what the log of a command that ended well proves: ok, or why nothing.
#
#   verdict.sh LOG      ok | skipped | no tests | nothing
#
# A test passed if go test -v says so, if pytest counted it, or if go test without -v has a package that ran tests.
# Where none passed, but tests were skipped or a pattern matched none, the log proves nothing; nor does an empty one.
set -u
log=$1
has() { grep -qE -- "$1" "$log"; }

passed='^ *--- PASS|(^|[ ,])[0-9]+ passed'
has '^=== RUN' || passed+='|^ok  	[^	]+	[^ 	]+( coverage: .*)?$|^ok  	[^	]+	\(cached\)$'
if has "$passed"; then
  echo ok
elif has '^ *--- SKIP|(^|[ ,])[0-9]+ skipped'; then
  echo skipped
elif has 'no tests to run|no test files|no tests (ran|collected)|[0-9]+ deselected'; then
  echo "no tests"
elif [ -s "$log" ]; then
  echo ok
else
  echo nothing
fi
