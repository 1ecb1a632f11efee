// Package cachepolicy decides what a tier keeps (Evictor), and how the bytes are split among the tiers (Partitioner).
//
// It does not know what is in a tier (tiers/residency does, and asks), and it never sees a sample's size, cost or name:
// an Evictor gets opaque handles and the number of jobs that still need an entry. That blindness is what keeps the
// sampler's promises (design.md section 4): a choice that could tell two samples of a cell apart would bias the order of
// every job. The few policies that must be told keys are Sighted, and those whose choices depend on them say what they
// break (Breaks, docs/policies.md).
//
// Pure: no I/O, clock, goroutine, lock or map order; randomness comes from the Rand given to New. Not safe for
// concurrent use: the one who made an Evictor owns it.
package cachepolicy
