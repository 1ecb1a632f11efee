// Package bench measures larder. Its simulator runs the very coordinator of the daemon (with its sampler, policies and
// index) in virtual time: storage, workers and clients are models, decisions are not. One seed gives one trace.
//
// It holds no second implementation of anything it measures. live/ benchmarks the real daemon on real files.
package bench
