#!/usr/bin/env bash
# Runs `make test` RUNS (10) times, every second one beside two busy loops and a disk that is written without a pause. The
# loops have the priority of the Python tests, and a higher one than the Go tests, which make test runs under nice.
#
# The results of Go's cache do not count. Each run's output is in out/flaky/N.log. What ran before an interruption is not
# run again, unless the commit is another one (AGAIN=1 forgets it). A tree that differs from its commit is refused. The
# exit code is 1 when a test failed, or passed on a later try.
set -u -o pipefail
cd "$(dirname "$0")/../../.."

runs=${RUNS:-10}
out=${OUT:-out/flaky}
commit=$(git rev-parse HEAD 2>/dev/null || echo none)
if [ -n "$(git status --porcelain 2>/dev/null)" ]; then
  echo "flaky: the record is of a commit, and this tree has changes: commit them, or run it in a clone" >&2
  exit 2
fi
mkdir -p "$out"
record=$out/record.txt
[ -z "${AGAIN-}" ] || rm -f "$record"
grep -qs "^commit $commit\$" "$record" || echo "commit $commit" >"$record"

busy=()
quiet() { [ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null; busy=(); rm -f "$out/busy"; }
trap quiet EXIT
trap 'exit 130' INT TERM
loud() {
  for _ in 1 2; do
    (while :; do :; done) &
    busy+=($!)
  done
  (while :; do dd if=/dev/zero of="$out/busy" bs=1M count=256 conv=fsync status=none; done) &
  busy+=($!)
}

failed=0
for ((i = 1; i <= runs; i++)); do
  if grep -q "^run $i: " "$record"; then continue; fi
  how="alone"
  if ((i % 2 == 0)); then how="beside a full load" && loud; fi
  begin=$SECONDS result=passed
  GOFLAGS="${GOFLAGS-} -count=1" make test >"$out/$i.log" 2>&1 || result=FAILED
  quiet
  [ $result = FAILED ] || ! grep -q '^flaky: ' "$out/$i.log" || result="passed on a later try"
  echo "run $i: $result, $how, $((SECONDS - begin)) s" | tee -a "$record"
done
echo
grep '^run ' "$record"
failed=$(grep '^run ' "$record" | grep -vc ': passed, ')
echo "$((runs - failed)) passed, $failed failed"
[ "$failed" = 0 ]
