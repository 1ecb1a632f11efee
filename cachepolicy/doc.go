// Package cachepolicy decides what a tier keeps: an Evictor ranks the entries of one tier and names the next victim.
// How many bytes each tier has is decided by package cachepolicy/partition.
//
// The package does not know what is in a tier (tiers/residency does, and asks), and never sees a sample's size, cost or
// name: an Evictor gets opaque handles and the number of jobs that still need each entry. The sampler's promises rest
// on that: a choice that could tell two samples of a cell apart would bias the order of every job
// (docs/design/orders.md). The few policies that need keys are Sighted. A policy whose choices depend on keys says
// which promise it breaks (Breaks, docs/policies.md).
//
// The package is pure: no I/O, clock, goroutine, lock or map order. Randomness comes from the Rand given to New. An
// Evictor is not safe for concurrent use; its creator owns it.
package cachepolicy
