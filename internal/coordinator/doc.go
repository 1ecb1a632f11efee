// Package coordinator composes the pure rooms (dsa, cachepolicy, jobs, tiers/residency) into one state machine.
//
// Core decides: events come in, effects go out, and time is an argument. It has no mutex, channel, goroutine or clock, so
// the daemon and the simulator run the same decisions. Loop is the one goroutine that owns a Core in the daemon; an
// Executor (internal/engine) carries effects out and sends their results back as events. Core never sees bytes, labels,
// paths or descriptors.
package coordinator
