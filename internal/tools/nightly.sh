#!/usr/bin/env bash
# The long runs behind docs/guarantees-tests.md: every row of the table, as often as it says, with figures.
#
#   internal/tools/nightly.sh [ROW...]      all rows, or some: nightly.sh R2 R7
#   LARDER_NIGHTLY=1 internal/tools/nightly.sh   one per cent of every count
#
# It needs a built bin/larder, Go, and .venv with pytest (make nightly sees to it); mounts and control groups need root. What a row printed is in
# out/nightly/ROW.log. The exit code is 1 when a row failed.
set -u -o pipefail
cd "$(dirname "$0")/../.."

scale=${LARDER_NIGHTLY:-100}
tags=${TAGS-turbo}
python=${PYTHON:-.venv/bin/python}
out=${OUT:-out/nightly}
rows=("$@")
mkdir -p "$out"
table="$out/table.txt"
: >"$table"
failed=0

# n COUNT: that many, scaled, at least one.
n() { local v=$(($1 * scale / 100)); echo $((v > 0 ? v : 1)); }

wanted() {
  [ ${#rows[@]} -eq 0 ] && return 0
  local r
  for r in "${rows[@]}"; do [ "$r" = "$1" ] && return 0; done
  return 1
}

# row NAME WHAT COMMAND...: runs it, and notes what it printed of figures.
row() {
  local name=$1 what=$2
  shift 2
  wanted "${name%%/*}" || return 0
  local log="$out/${name//\//-}.log" begin=$SECONDS result=ok figures
  echo "== $name $what" >&2
  "$@" >"$log" 2>&1 || { result=FAILED; failed=1; tail -40 "$log" >&2; }
  grep -q -- '--- SKIP' "$log" && [ $result = ok ] && result=skipped
  # Figures are what tests print behind "nightly:", or the lines of the older ones.
  figures=$(grep -hoE 'nightly: .*|[0-9]+ crash images.*|[0-9]+ damaged directories.*|[0-9]+ subsets were changed.*|audit: [0-9]+ samples.*|[0-9]+ passed.*in .*|--- SKIP.*|execs: [0-9]+' "$log" |
    sed -E 's/^nightly: //' | awk '/^execs:/ {last = $0; next} {print}' | sort -u | paste -sd';' | sed 's/;/; /g')
  [ -n "$figures" ] || figures="passed"
  [ $result = FAILED ] && figures="see $log"
  printf '%s\t%s\t%s\t%s\t%s s\n' "$name" "$what" "$result" "$figures" $((SECONDS - begin)) | tee -a "$table" >&2
}

# later NAME WHAT VARIABLE: a row whose test is not in this tree.
later() { wanted "$1" && printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "not in this tree" "no test reads $3" "0 s" | tee -a "$table" >&2; }

gotest() { go test -tags "$tags" -count=1 -v -timeout 4h "$@"; }

# tests NAME WHAT VARIABLE COUNT: the Go and Python tests that read the variable, with that count.
tests() {
  local name=$1 what=$2 var=$3 count=$4 files f any=0
  wanted "$name" || return 0
  files=$(grep -rlE "\"$var\"" --include='*_test.go' --include='test_*.py' . | grep -v '^./.venv' | sort)
  for f in $files; do
    any=1
    case $f in
    *_test.go)
      local names
      names=$(awk -v var="\"$var\"" '/^func Test/ {name = $2; sub(/\(.*/, "", name)} index($0, var) && name != "" {print name}' "$f" | sort -u | paste -sd'|')
      row "$name/$(basename "$(dirname "$f")")-$(basename "$f" _test.go)" "$what" env "$var=$count" go test -tags "$tags" -count=1 -v -timeout 4h -run "^($names)\$" "$(dirname "$f")"
      ;;
    *.py) row "$name/$(basename "$f" .py)" "$what" env "$var=$count" LARDER_BIN="$PWD/bin/larder" LARDER_REQUIRE_BIN=1 "$python" -m pytest -q -s "$f" ;;
    esac
  done
  [ $any = 1 ] || later "$name" "$what" "$var"
}

# fuzz SECONDS PACKAGE...: every target of the packages, for so long each; how often that was is in the figures.
fuzz() { internal/tools/fuzz.sh "$@" | sed 's/^/nightly: /'; }

row R1 "random histories without and with faults, orders: exactly once, one seed one trace" \
  env LARDER_SIM_SEEDS="$(n 10000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^(TestRandomWorlds|TestOneSeedOneTrace)$' ./bench/...
row G2 "orders of the sampler: worlds drawn at random, laws by chi squared" \
  env LARDER_SIM_SEEDS="$(n 4000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestCorpus' ./dsa
row R2/daemon "daemon SIGKILLed at random moments and failpoints; fixed orders unchanged" \
  env LARDER_KILLS="$(n 1000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestDaemonIsKilled$' ./internal/chaostest
row R2/python "daemon SIGKILLed under Python's Loader" \
  env LARDER_KILLS="$(n 200)" LARDER_BIN="$PWD/bin/larder" LARDER_REQUIRE_BIN=1 "$python" -m pytest -q python/tests/test_e2e_restart.py -k killed_at_random
row R3 "power failures: unsynced writes lost or reordered" \
  env LARDER_CRASH_IMAGES="$(n 50000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestCrashImages$' ./internal/journal
row R4/process "every call to the disk fails once, in process" gotest -run '^TestEveryCallFails$' ./internal/journal
row R4/binary "the n-th call to the disk fails, real binary" \
  env LARDER_DISK_FAILS="$(n 20)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestDiskFails$' ./internal/chaostest
row R5 "damaged logs: flipped bits, zeroed pages, cuts, swapped records, old files" \
  env LARDER_DAMAGED_LOGS="$(n 100000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestDamagedLogs$' ./internal/journal
tests R6 "client SIGKILLed, chains of resumes, other rank counts" LARDER_RESUMES "$(n 500)"
row R7 "connections cut by a proxy, anywhere" \
  env LARDER_CUTS="$(n 2000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestConnectionsAreCut$' ./internal/chaostest
row R9/disk "the writer of the disk tier SIGKILLed" \
  env LARDER_DISK_KILLS="$(n 200)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestKill$' ./tiers/disk
tests R11 "broken, hostile and odd images (and R23)" LARDER_CORPUS "$(n 1000)"
row R12 "full disk, a real file system of 64 MiB" \
  env LARDER_FULL_DISKS="$(n 50)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestDiskIsFull$' ./internal/chaostest
tests R12 "full disk, the log and the engine" LARDER_FULL_DISK "$(n 50)"
row R13 "control group of 512 MiB, demand 5 GiB" \
  env LARDER_MEMORY_SECONDS="$(n 600)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestLittleMemory$' ./internal/chaostest
export LARDER_STOP_SECONDS
LARDER_STOP_SECONDS=$(n 20)
tests R16 "clients stopped (SIGSTOP) for 0 to 20 s" LARDER_STOPS "$(n 100)"
tests R17 "duplicate names, stale incarnations, two daemons" LARDER_STALE "$(n 2000)"
row S "datasets of 100,000 files: listed, indexed, checked again" \
  env LARDER_SHARDS="$(n 100000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestManyShards$' ./internal/source
row R24 "parsers fuzzed (executions of each): journal, snapshot, token, frame, config, subset, audit log, records, workers" \
  fuzz "$(n 240)" ./internal/journal ./internal/resume ./internal/session/wire ./internal/config ./internal/source/subset ./internal/audit \
  ./internal/record ./internal/prep/fields ./internal/engine/crew
row K "kernels in C beside their twins in Go, cases at random" \
  env LARDER_KERNEL_CASES="$(n 1000000)" go test -tags "$tags" -count=1 -v -timeout 4h -run 'Kernel|EveryColor' ./internal/prep
row ASan "the C code over broken files, with the address sanitizer" env TAGS="$tags" internal/prep/testdata/asan.sh
row R29 "whole simulated days with faults" \
  env LARDER_SIM_DAYS="$(n 200)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestDays$' ./bench/...
row W/worlds "workers of clients that come, leave, die, hang and lie, in virtual time" \
  env LARDER_SIM_WORLDS="$(n 10000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestWorlds' ./internal/engine/crew
tests W "worker processes killed at random: exactly once, no draw twice, audited" LARDER_WORKER_KILLS "$(n 500)"
row W/stages "workers killed between stages of tasks, and the daemon under them, with the race detector" \
  go test -race -tags "$tags" -count="$(n 30)" -timeout 4h -run '^(TestKilledWorkersBetweenStages|TestDaemonDiesUnderWorkers)$' ./internal/engine
if [ -d .frameworks ]; then
  row F "Lightning, Accelerate, Hugging Face Trainer: killed, resumed, ids counted" internal/tools/frameworks.sh bin/larder
else
  wanted F && printf 'F\treal frameworks\tnot installed\tmake test-frameworks installs them, 6 GB\t0 s\n' | tee -a "$table" >&2
fi

echo
echo "Rows at $scale % of their counts; R18 (no descriptor, segment, process or goroutine is left) is checked within R2, R4, R7, R12, R13, R16."
awk -F '\t' '{printf "%-24s %-17s %7s  %s: %s\n", $1, $3, $5, $2, $4}' "$table"
echo "all of it: $SECONDS s"
exit $failed
