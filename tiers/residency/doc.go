// Package residency is the exact index: what is in which tier. An entry is decided at the commit of a pick, not when
// its bytes arrive, so that how long a decode takes can never reach the sampler (docs/design/orders.md).
//
// It is dense: keys lead to entries through tables that are indexed by object, without hashing (table.go says at what
// cost). Snapshots share those tables until they are written.
//
// It holds no bytes: tiers does, under the same keys, and does what the index says. It does not order entries either:
// each tier has an Evictor, which the index feeds and asks.
//
// An entry is resident from Admit until it is evicted or dropped. A pinned entry that has to go is leaving: it cannot
// be looked up, no longer counts as Used, and dies with its last pin. A caller that learns that an entry is free (by
// the evicted callback with no pins, or by a true result) must free its bytes in the store.
//
// The budget bounds what is resident. What is leaving comes on top of it until the last pin is gone, so a store needs
// room for both; SetLeavingLimit bounds the latter.
//
// Pure: no I/O, clock, goroutine, lock or map order. Owned by the coordinator; not safe for concurrent use.
package residency
