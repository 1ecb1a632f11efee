// Package work carries out what the coordinator hands out: it reads, decodes and augments samples in a bounded [Pool]
// of workers, and fills the rows of rings.
//
// One piece of work takes this way:
//
//	Pool.Add ─┬─ storage is slow → a reader takes the bytes ahead of the workers ─┐
//	          └───────────────────────────────────────────────────────────────────┴→ queues, by turn → a worker
//	worker: Prepare  read → may it be decoded here → gate of large images → decode into a tier or a working copy
//	        Augment  the random suffix, once for a share group
//	        Fill     one row of a slot: the collate
//	        ─→ Config.Send, what became of it
//
// What may wait is bounded: preparations by the coordinator, rows by the rings, working copies by [Pool] itself,
// bytes read ahead by their budget. [Meters] measures what workers and storage do, for the model of the tiers.
// [Serial] carries out what must happen in order, and slowly, beside the workers.
//
// The package decides neither what is prepared nor in which order nor what a tier keeps.
package work
