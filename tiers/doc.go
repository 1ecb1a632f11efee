// Package tiers holds the bytes of the cache: published entries of the forms encoded, decoded and augmented.
//
// It decides nothing. tiers/residency knows what should be here; the coordinator's effects say what to free. An entry
// may be lost at any time: that costs a read or a decode, never data (docs/guarantees.md).
//
// Memory comes from tiers/arena, one arena per form. A Buf belongs to its allocator until Commit or Abort. From Commit
// on the store owns it and lends Views. Bytes return to the arena when the entry was freed and its last View is closed,
// so nothing is overwritten or unmapped under a reader.
package tiers
