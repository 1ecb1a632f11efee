// Package bench measures larder and what it is compared with. This page is the map of its rooms.
//
// Tools for users (`larder bench …`, docs/guides/benchmarking.md):
//
//	bench             scenarios as YAML: of the sampler (RunSampler, RunPolicies), of jobs with bytes and time (Live),
//	                  and recorded demand, as it was or changed (FromTrace, Change: larder whatif)
//	bench/coresim     the daemon's own coordinator in virtual time; also the simulation tests
//	bench/live        the same scenarios with a real daemon on real files
//	bench/policysim   one trace against many cache policies and capacities
//	bench/systems     other loading systems, re-implemented from their descriptions, in virtual time
//	bench/trace       what jobs asked for and what was decided: the value, its file, foreign formats
//	bench/report      results as one HTML page, and two results compared
//	bench/scenarios   the scenarios that ship, and their JSON schema
//
// What the tools share:
//
//	bench/measure     the figures of a run, simulated or real, as JSON
//	bench/bound       lower bounds that no order, policy or foresight can go below
//	bench/fair        whether samples come early or late in epoch after epoch
//
// Measurements of this repository (make bench, docs/measurements):
//
//	bench/py          Python scripts: larder beside PyTorch and its peers. bench.py is `make bench`, with figures.py;
//	                  tiers.py and tiers_report.py sweep the split of memory, waiting.py fits the model to them;
//	                  accuracy.py and fair.py train; resize.py, packed.py, promises.py, handover.py and native.py time
//	                  one mechanism each;
//	                  loaders.py and peer_tensorsocket.py are what the others run; train.py is bench/live's job;
//	                  peers.py compares with other loaders (peers_env.py builds them, peers_probe.py checks their work)
//	bench/peers       the program and the pinned versions of each of those loaders
//	bench/drawplot    draws a picture of such a script with internal/plot
//	bench/samplertable, sampler-table.sh
//	                  the tables of the sampler's page
//	bench/smoke.sh    one report of everything that is simulated (make bench-smoke)
//
// Reproductions of papers, apart from all of the above: no tool imports them.
//
//	bench/reproductions
//	                  published figures, computed again: claims, scripts, what they printed, docs/reproductions.md
//
// This package reads scenarios and makes of them what can be run. It holds no second implementation of anything that it
// measures.
package bench
