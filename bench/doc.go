// Package bench reads scenarios and makes of them what can be run. RunSampler: samplers, the modes of dsa and the
// baselines, on a cache, without bytes and time, beside lower bounds (bench/bound). Live: jobs with bytes and time, for
// the simulator of the whole coordinator (coresim) and for a real daemon on real files (live). FromTrace and Change:
// recorded demand, as it was and changed.
//
// It holds no second implementation of anything it measures. scenarios/ holds what ships.
package bench
