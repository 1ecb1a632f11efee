#!/usr/bin/env bash
# The nightly lane: every test in its long form, in parts of at most 45 minutes on two idle cores, with figures.
#
#   internal/tools/nightly.sh                  the parts, and what of them the record has
#   internal/tools/nightly.sh PART...          those parts: nightly.sh kills journal
#   internal/tools/nightly.sh all              all parts
#   ROWS="R2 R7" internal/tools/nightly.sh all some rows
#   LARDER_NIGHTLY=1 ...                       one per cent of every count
#   SHOW=1 ...                                 part, row and command of each, with tabs between them; runs none
#
# out/nightly/record.tsv is the one record. A row that passed at this commit and scale is not run again, so that an
# interrupted night continues; AGAIN=1 runs it again. What a row printed is in out/nightly/ROW.log.
#
# It needs a built bin/larder, Go, and .venv with pytest (make nightly sees to it); mounts and control groups need root.
# The exit code is 1 when a row failed or proved nothing: its tests were skipped, its pattern matched none (verdict.sh),
# or what it needs is not installed. The one row of a part that takes gigabytes, frameworks, may be missing of `all`.
set -u -o pipefail
cd "$(dirname "$0")/../.."

scale=${LARDER_NIGHTLY:-100}
tags=${TAGS-turbo}
python=${PYTHON:-.venv/bin/python}
case $python in /*) ;; *) python=$PWD/$python ;; esac
out=${OUT:-out/nightly}
read -ra rows <<<"${ROWS-}"
parts=(sim dsa journal kills clients disks parsers formats kernels asan go python stores browser cross race frameworks)
chosen=("$@")
all=
[ "${1-}" != all ] || { chosen=("${parts[@]}"); all=yes; }
for p in "${chosen[@]}"; do
  [[ " ${parts[*]} " == *" $p "* ]] || { echo "nightly: there is no part $p; the parts are ${parts[*]}" >&2; exit 2; }
done
mkdir -p "$out"
record="$out/record.tsv"
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo none)
[ -z "$(git status --porcelain 2>/dev/null)" ] || commit=$commit+
touch "$record"
failed=0
part=
seen=' '
export LARDER_LANE=nightly LARDER_REQUIRE_TORCH=1 LARDER_REQUIRE_S3=1 LARDER_REQUIRE_FORMATS=1 LARDER_REQUIRE_NGINX=1
export LARDER_REQUIRE_ARM64=1 LARDER_REQUIRE_BROWSER=1 LARDER_REQUIRE_AZURITE=1
export LARDER_BIN="$PWD/bin/larder" LARDER_TEST_BIN="$PWD/bin/larder-failpoints" LARDER_REQUIRE_BIN=1 LARDER_PYTHON="$python"

# n COUNT: that many, scaled, at least one.
n() { local v=$(($1 * scale / 100)); echo $((v > 0 ? v : 1)); }

# in PART: the rows that follow belong to it; false where it is not chosen.
in_part() {
  part=$1
  local p
  for p in "${chosen[@]}"; do [ "$p" = "$part" ] && return 0; done
  return 1
}

wanted() {
  [ ${#rows[@]} -eq 0 ] && return 0
  local r
  for r in "${rows[@]}"; do [ "$r" = "$1" ] && { seen+="$r "; return 0; }; done
  return 1
}

# note NAME WHAT RESULT FIGURES SECONDS: one line of the record, in place of an older one of that row.
note() {
  local rest
  rest=$(awk -F '\t' -v name="$1" '$4 != name' "$record")
  { [ -z "$rest" ] || echo "$rest"; printf '%s\t%s\t%s\t%s\t%s\t%s\t%s s\t%s\n' "$commit" "$scale" "$part" "$1" "$3" "$2" "$5" "$4"; } \
    >"$record.new" && mv "$record.new" "$record"
  tail -n 1 "$record" >&2
}

# row NAME WHAT COMMAND...: runs it, and notes what it printed of figures.
row() {
  local name=$1 what=$2
  shift 2
  wanted "${name%%/*}" || return 0
  if [ -n "${SHOW-}" ]; then
    printf '%s\t%s\t%s\n' "$part" "$name" "${*@Q}"
    return 0
  fi
  if [ -z "${AGAIN-}" ] && [ "${commit%+}" = "$commit" ] &&
    awk -F '\t' -v c="$commit" -v s="$scale" -v n="$name" '$1 == c && $2 == s && $4 == n && $5 == "ok" {found = 1} END {exit !found}' "$record"; then
    echo "== $name passed before at $commit" >&2
    return 0
  fi
  local log="$out/${name//\//-}.log" begin=$SECONDS result=ok figures
  echo "== $name $what" >&2
  "$@" >"$log" 2>&1 || { result=FAILED; failed=1; tail -40 "$log" >&2; }
  [ $result != ok ] || result=$(internal/tools/lanes/verdict.sh "$log")
  [[ $result =~ ^(ok|FAILED)$ ]] || { failed=1; tail -5 "$log" >&2; }
  # Figures are what tests print behind "nightly:", or the lines of the older ones.
  figures=$(grep -hoE 'nightly: .*|[0-9]+ crash images.*|[0-9]+ damaged directories.*|[0-9]+ subsets were changed.*|audit: [0-9]+ samples.*|[0-9]+ passed.*in .*|--- SKIP.*|execs: [0-9]+' "$log" |
    sed -E 's/^nightly: //' | awk '/^execs:/ {last = $0; next} {print}' | sort -u | head -20 | paste -sd';' | sed 's/;/; /g')
  [ -n "$figures" ] || figures="passed"
  [ "$result" = ok ] || figures="see $log"
  note "$name" "$what" "$result" "$figures" $((SECONDS - begin))
}

# later NAME WHAT WHY: a row that cannot run here. Who asked for it, or for its part, is to know.
later() {
  wanted "${1%%/*}" && [ -z "${SHOW-}" ] || return 0
  note "$1" "$2" "not run" "$3" 0
  [ -n "$all" ] && [ ${#rows[@]} -eq 0 ] || failed=1
}

gotest() { go test -tags "$tags" -count=1 -v -timeout 4h "$@"; }

# tests NAME WHAT VARIABLE COUNT: the Go and Python tests that read the variable, with that count.
tests() {
  local name=$1 what=$2 var=$3 count=$4 files f any=0
  wanted "$name" || return 0
  files=$(grep -rlE "\"$var\"" --include='*_test.go' --include='test_*.py' --exclude-dir='.?*' . | sort)
  for f in $files; do
    any=1
    case $f in
    *_test.go)
      local names
      names=$(awk -v var="\"$var\"" '/^func Test/ {name = $2; sub(/\(.*/, "", name)} index($0, var) && name != "" {print name}' "$f" | sort -u | paste -sd'|')
      row "$name/$(basename "$(dirname "$f")")-$(basename "$f" _test.go)" "$what" env "$var=$count" go test -tags "$tags" -count=1 -v -timeout 4h -run "^($names)\$" "$(dirname "$f")"
      ;;
    *.py) row "$name/$(basename "$f" .py)" "$what" env "$var=$count" "$python" -m pytest -q -s "$f" ;;
    esac
  done
  [ $any = 1 ] || { later "$name" "$what" "no test reads $var"; failed=1; }
}

# fuzz SECONDS PACKAGE...: every target of the packages, for so long each; how often that was is in the figures.
fuzz() { internal/tools/fuzz.sh "$@" | sed 's/^/nightly: /'; }

if in_part sim; then
  row R1 "random histories without and with faults, orders: exactly once, one seed one trace" \
    env LARDER_SIM_SEEDS="$(n 10000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^(TestRandomWorlds|TestOneSeedOneTrace)$' ./bench/...
  row R29 "whole simulated days with faults" \
    env LARDER_SIM_DAYS="$(n 200)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestDays$' ./bench/...
  row W/worlds "workers of clients that come, leave, die, hang and lie, in virtual time" \
    env LARDER_SIM_WORLDS="$(n 10000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestWorlds' ./internal/engine/crew
fi
if in_part dsa; then
  row G2 "orders of the sampler: worlds drawn at random, laws by chi squared" \
    env LARDER_SIM_SEEDS="$(n 4000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestCorpus' ./dsa
  row G2/laws "the sampler, its baselines and the simulators in their long forms" gotest ./dsa/... ./bench/... ./cachepolicy/...
fi
if in_part journal; then
  row R3 "power failures: unsynced writes lost or reordered" \
    env LARDER_CRASH_IMAGES="$(n 50000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestCrashImages$' ./internal/journal
  row R4/process "every call to the disk fails once, in process" gotest -run '^TestEveryCallFails$' ./internal/journal
  row R4/binary "the n-th call to the disk fails, real binary" \
    env LARDER_DISK_FAILS="$(n 20)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestDiskFails$' ./internal/chaostest
  row R5 "damaged logs: flipped bits, zeroed pages, cuts, swapped records, old files" \
    env LARDER_DAMAGED_LOGS="$(n 100000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestDamagedLogs$' ./internal/journal
  row R9/disk "the writer of the disk tier SIGKILLed" \
    env LARDER_DISK_KILLS="$(n 200)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestKill$' ./tiers/disk
fi
if in_part kills; then
  row R2/daemon "daemon SIGKILLed at random moments and failpoints; fixed orders unchanged" \
    env LARDER_KILLS="$(n 1000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestDaemonIsKilled$' ./internal/chaostest
  row R2/python "daemon SIGKILLed under Python's Loader" \
    env LARDER_KILLS="$(n 200)" "$python" -m pytest -q python/tests/test_e2e_restart.py -k killed_at_random
  row R7 "connections cut by a proxy, anywhere" \
    env LARDER_CUTS="$(n 2000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestConnectionsAreCut$' ./internal/chaostest
  # All but those with rows of their own, in this part and in journal, clients and disks: a new test is here.
  row R11/crash "images that crash the decoder, and its process; the clock, a start right after a kill, words about a full disk" \
    gotest -skip '^(TestDaemonIsKilled|TestDiskFails|TestConnectionsAreCut|TestClientIsStopped|TestDiskIsFull|TestLittleMemory)$' \
    ./internal/chaostest
fi
if in_part clients; then
  tests R6 "client SIGKILLed, chains of resumes, other rank counts" LARDER_RESUMES "$(n 500)"
  export LARDER_STOP_SECONDS
  LARDER_STOP_SECONDS=$(n 20)
  tests R16 "clients stopped (SIGSTOP) for 0 to 20 s" LARDER_STOPS "$(n 100)"
  tests R17 "duplicate names, stale incarnations, two daemons" LARDER_STALE "$(n 2000)"
  tests W "worker processes killed at random: exactly once, no draw twice, audited" LARDER_WORKER_KILLS "$(n 500)"
  row W/stages "workers killed between stages of tasks, and the daemon under them, with the race detector" \
    go test -race -tags "$tags" -count="$(n 30)" -v -timeout 4h -run '^(TestKilledWorkersBetweenStages|TestDaemonDiesUnderWorkers)$' ./internal/engine
fi
if in_part disks; then
  tests R11 "broken, hostile and odd images (and R23)" LARDER_CORPUS "$(n 1000)"
  row R12/full "full disk, a real file system of 64 MiB" \
    env LARDER_FULL_DISKS="$(n 50)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestDiskIsFull$' ./internal/chaostest
  tests R12 "full disk, the log and the engine" LARDER_FULL_DISK "$(n 50)"
  row R13 "control group of 512 MiB, demand 5 GiB" \
    env LARDER_MEMORY_SECONDS="$(n 600)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestLittleMemory$' ./internal/chaostest
  row S "datasets of 100,000 files: listed, indexed, checked again" \
    env LARDER_SHARDS="$(n 100000)" go test -tags "$tags" -count=1 -v -timeout 4h -run '^TestManyShards$' ./internal/source
fi
if in_part parsers; then
  row R24/state "parsers fuzzed (executions of each): journal, snapshot, token, frame, config, subset, audit log, records, workers" \
    fuzz "$(n 180)" ./internal/journal ./internal/resume ./internal/session/wire ./internal/config ./internal/source/subset \
    ./internal/audit ./internal/record
fi
if in_part formats; then
  row R24/formats "parsers fuzzed (executions of each): packed files, stores, fields, workers, sandbox" \
    fuzz "$(n 120)" ./internal/source/packed ./internal/store ./internal/prep/fields ./internal/prep/sandbox ./internal/engine/crew
fi
if in_part kernels; then
  row K "kernels in C beside their twins in Go, cases at random" \
    env LARDER_KERNEL_CASES="$(n 1000000)" go test -tags "$tags" -count=1 -v -timeout 4h -run 'Kernel|EveryColor' ./internal/prep
  row K/images "decoding into planes and of regions, outputs, beside their twins: images at random" \
    env LARDER_KERNEL_CASES="$(n 10000)" go test -tags "$tags" -count=1 -v -timeout 4h -run 'Finish|Compact|Region|Chroma' ./internal/prep
fi
if in_part asan; then
  row ASan "the C code over broken files, with the address sanitizer" env TAGS="$tags" CASES="$(n 3000)" internal/prep/testdata/asan.sh
fi
if in_part go; then
  row go/modules "the modules on this machine have the sums of go.sum" go mod verify
  row go "every Go test in its long form" gotest $(go list ./... | grep -vE '/(dsa|bench|cachepolicy|internal/chaostest)(/|$)')
fi
if in_part python; then
  row python "every Python test, those of the nightly lane among them" \
    "$python" -m pytest -q python/tests bench/py -k 'not (azure or https or s3 or stores)'
fi
if in_part stores; then
  row stores/python "Azurite, versitygw, nginx: Python" \
    "$python" -m pytest -q python/tests bench/py -k 'azure or https or s3 or stores' # all that part python leaves
  row stores/go "real servers: Go" go test -tags "$tags" -count=1 -v -timeout 4h -run 'Azurite|ARealServer' ./internal/...
fi
if in_part browser; then
  row browser/page "a report with every picture, and one with faults, seen by Chromium" \
    gotest -run '^(TestReportInBrowser|TestBrowserSeesFaults)$' ./bench/report
  row browser "a report of all benchmarks, seen by Chromium" make --no-print-directory test-report
fi
if in_part cross; then
  row cross "64-bit ARM: build, vet; the decoder in Go and the kernels in C under qemu" make --no-print-directory cross
fi
# The detector makes what computes ten times as slow, so it watches the sizes of make test (LARDER_LANE is empty), and of
# what starts goroutines all tests, those of lanes/race.tsv too. What starts none, plays worlds that share nothing
# (bench) or watches processes of its own (internal/chaostest) has -short and 40 worlds: goroutines of others that it
# calls are watched there.
if in_part race; then
  row race "packages that start goroutines under the race detector, all their tests" \
    env LARDER_LANE= go test -race -tags "$tags" -count=1 -timeout 4h $(internal/tools/lanes/packages.sh race-night)
  row race/rest "every other Go package under the race detector, with -short and 40 worlds" \
    env LARDER_LANE= LARDER_SIM_SEEDS="$(n 40)" go test -race -short -tags "$tags" -count=1 -timeout 4h \
    $(internal/tools/lanes/packages.sh race-rest)
fi
if in_part frameworks; then
  if [ -d .frameworks ]; then
    row F "Lightning, Accelerate, Hugging Face Trainer: killed, resumed, ids counted" internal/tools/frameworks.sh bin/larder
  else
    later F "real frameworks" "not installed: make test-frameworks installs them, 6 GB"
  fi
fi

[ -z "${SHOW-}" ] || exit 0
echo
echo "Rows at $scale % of their counts; R18 (no descriptor, segment, process or goroutine is left) is checked within R2, R4, R7, R12, R13, R16."
awk -F '\t' '{printf "%-10s %-24s %-8s %8s  %s  %s: %s\n", $3, $4, $5, $7, $1, $6, $8}' "$record"
awk -F '\t' '{seconds[$3] += $7} END {for (p in seconds) printf "%s: %d s\n", p, seconds[p]}' "$record" | sort
[ ${#chosen[@]} -gt 0 ] || echo "parts: ${parts[*]}"
for r in "${rows[@]}"; do
  [[ $seen == *" $r "* ]] || { echo "nightly: there is no row $r in these parts: ${chosen[*]}" >&2; failed=1; }
done
exit $failed
