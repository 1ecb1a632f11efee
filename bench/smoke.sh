#!/bin/sh
# Makes a report of everything that is simulated: policies and systems on a demand of each kind, samplers, reproductions. Virtual time and
# fixed seeds, so that two runs differ in nothing but picks_per_second. Usage: bench/smoke.sh LARDER DIR
set -eu
larder=${1:?the binary} out=${2:?a folder for the results}
cd "$(dirname "$0")/.."
mkdir -p "$out"
rm -f "$out"/policy-*.json "$out"/sampler-*.json "$out"/run-*.json "$out"/reproduction-*.json "$out"/report.html # what else is there is shown too
systems="--systems all --read-time 200us --prep-time 1ms" # a worker prepares as fast as one job takes: what is not shared is waited for
small() { # a demand of bench/scenarios/demand with fewer samples
	sed -E 's/samples: [0-9]+/samples: 8000/' "bench/scenarios/demand/$1.yaml"
}
for d in one aligned staggered speeds nested crossed disjoint poisson sizes; do
	echo "policy and systems: $d"
	small $d | "$larder" bench policy --scenario - --cache 5%,20%,50% $systems -o json > "$out/policy-$d.json"
done
for jobs in 2 8; do # beside the four of aligned and the one of one
	echo "policy and systems: aligned, $jobs jobs"
	small aligned | sed "s/jobs: 4/jobs: $jobs/" | "$larder" bench policy --scenario - --policies need,lru,minio --cache 5%,20%,50% $systems -o json > "$out/policy-aligned-$jobs.json"
done
for d in zipf curriculum; do
	echo "policy: $d"
	small $d | "$larder" bench policy --scenario - --cache 5%,20%,50% -o json > "$out/policy-$d.json"
done
for s in a aligned staggered4; do
	echo "sampler: $s"
	"$larder" bench sampler --scenario "bench/scenarios/$s.yaml" -o json > "$out/sampler-$s.json"
done
for s in sweep staggered unlike; do
	[ -e "bench/scenarios/live/$s.yaml" ] || continue
	echo "simulated run: $s"
	"$larder" bench sim --scenario "bench/scenarios/live/$s.yaml" -o json > "$out/run-$s.json"
done
for r in bench/reproductions/*/expected.json; do
	cp "$r" "$out/reproduction-$(basename "$(dirname "$r")").json"
done
"$larder" bench report "$out" --out "$out/report.html" --title "larder: policies, systems, samplers, reproductions"
