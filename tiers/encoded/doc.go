// Package encoded holds the refcounted handles of encoded slabs in ristretto, under our exact index.
//
// It does not decide what stays: tiers/residency does, and the arena's budget is enforced before an offer, so ristretto
// always has room and never has to choose. It does not own the bytes either; a handle does. What ristretto gives is the
// concurrent table, and, for a later policy, its frequency sketch.
//
// Ristretto is an offer-and-maybe cache with sharp edges; quirks_test.go pins down each edge this package avoids, so
// that an upgrade that changes one fails loudly. The recipe: keys are a bijection of the object (no conflicts, nothing
// to compare); a key is offered by one caller at a time; the exact index is marked before Set and unmarked if Set says
// no; hooks ignore zero values and strangers, and call nothing; after Set comes a Wait, one per group of concurrent
// offers; a key that was deleted is not offered again before a Wait (otherwise the pending deletion takes the new
// value); no TTL; MaxCost only grows; offers end before Close.
package encoded
