// Package coresim runs the daemon's own coordinator (with its sampler, policies and index) in virtual time: storage,
// workers, memory and clients are models, decisions are not. It holds no second implementation of anything that
// decides. One seed gives one run: the same decisions in the same order, byte for byte.
//
// Run serves two uses. Without a Collector it is a test of the coordinator: everything that it asks for is checked
// against a store of its own, clients may die, hang, pause, lose their connection and change their subsets, caches may
// lose entries, the daemon may die and restore its jobs from a journal, and all that was delivered is kept. With one it
// is the simulator of larder bench sim, bench live and whatif (World): it trusts, keeps nothing, and measures.
//
// Samples that workers of clients make are not the Model's: whoever needs them brings an Outside. The tests of
// internal/engine/crew bring the daemon's own crew.
package coresim
