// Package bench measures larder. Its simulator (Run) runs the very coordinator of the daemon (with its sampler, policies and
// index) in virtual time: storage, workers and clients are models, decisions are not. One seed gives one trace. RunSampler is
// smaller: samplers, the modes of dsa and the baselines, on a cache, without bytes and time, beside lower bounds (bench/bound).
//
// It holds no second implementation of anything it measures. live/ benchmarks the real daemon on real files, scenarios/ holds what
// larder bench sampler runs.
package bench
