#!/usr/bin/env bash
# Runs `make test` RUNS (10) times, every second one beside two busy loops of equal priority and a disk that is written
# without a pause. The results of Go's cache do not count. Each run's output is in out/flaky/N.log; what ran before an
# interruption is not run again (AGAIN=1 forgets it). The exit code is 1 when a test failed, or passed on a later try.
set -u -o pipefail
cd "$(dirname "$0")/../../.."

runs=${RUNS:-10}
out=${OUT:-out/flaky}
commit=$(git rev-parse HEAD 2>/dev/null || echo none)
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
