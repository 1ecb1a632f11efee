// Package coordinator composes the pure rooms (dsa, cachepolicy, jobs, tiers/residency) into one state machine.
//
// Core decides: events come in, effects go out, and time is an argument. It has no mutex, channel, goroutine or clock,
// so the daemon and the simulator run the same decisions. Loop is the one goroutine that owns a Core in the daemon; an
// Executor (internal/engine) carries effects out and sends their results back as events. Core never sees bytes, labels,
// paths or descriptors.
//
// Core is made of components in layers, each with its own fields and its own Check. From the highest layer to the
// lowest:
//
//	lifecycle  jobs, clients and epochs (lifecycle.go, epochs.go, attach.go, cut.go, restore.go, change.go, idle.go)
//	planner    batches, from the picks to the account (plan.go, picks.go, deal.go, account.go, remainder.go)
//	flights    preparations, and what fills a row (flight.go, follow.go, outage.go, rows.go, inplace.go, share.go)
//	tiering    how large the tiers are: the model, the rule of thumb, quotas (tiering.go, quota.go, model.go, degree.go)
//	needs      what is cached for whom, and who still needs it (needs.go, entries.go)
//	roster     live jobs, and the prefixes, share groups and datasets that they have in common
//	step       the running Step: its time, its effects, what work it may still do, records that are not durable yet
//
// A component calls those below it. It never holds one above it, nor the Core: what it must ask of a higher layer, it
// gets as a function value from compose (flights.settle, planner.advance). TestComponentsKnowOnlyLowerLayers enforces
// that. Two tables are shared: stream, a job's part in the core, which the roster owns, and flying, the flights under
// way by what they make, which flights writes and needs reads.
//
// One sample's way: lifecycle begins an epoch, planner picks the sample and commits it (planOne, pick), flights finds
// out where its row comes from (source), needs ranks what is kept of it (renew), and planner sends the batch when all
// rows are there and its records are durable (settle, sendReady).
package coordinator
