// Package engine carries out what the coordinator decides: it reads, decodes and augments samples in a bounded pool of
// workers, keeps their bytes in the tiers, fills the rings of shared memory and hands batches to sessions; and it turns
// requests of people and clients into events.
//
// It decides nothing about order or residency. Engine is safe for concurrent use; its coordinator is owned by Loop.
package engine
