// Package engine is the service: it registers jobs, attaches clients, resumes, changes subsets and reports; and it
// carries out what the coordinator decides.
//
//	request → Engine ─ event ──→ loop → coordinator ─ effect ─→ Engine.Do ─┬→ work     read, decode, augment, fill
//	          ↑                                                            ├→ ring     batches to sessions
//	          └────────────── reply ←──────────────────────────────────────┼→ journal  by way of record
//	                                                                       └→ tiers    budgets, entries that leave
//
// The rooms below do the work and know no Engine: engine/work (workers, reading ahead, meters), engine/ring (the shared
// memory of ranks), engine/crashguard (images that crash the decoder), engine/record (what the journal has of jobs),
// engine/restore (from the journal to the coordinator) and engine/trace (what `larder trace record` fetches).
//
// In this package the Engine composes structs with fields and locks of their own:
//
//	loop      the way to the coordinator: events, requests and their replies
//	registry  the jobs that are known
//	memory    the settings in force: tiers, rings, strata
//	library   the catalogue as users see it: what each may list, open and read
//	compiler  from a spec to a job
//	history   what was handed out, in this life of the daemon and in those before
//	follower  changes of subsets
//	restorer  jobs of the journal, before Run
//	views     the public form of jobs, tiers and datasets
//
// config.go says what it is made of.
//
// The package decides nothing about order or residency. Engine is safe for concurrent use; its coordinator is owned by
// coordinator.Loop.
package engine
