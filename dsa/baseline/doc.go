// Package baseline holds the samplers that dsa is compared with, behind the calls of dsa.Sampler: independent loaders,
// Joader's dependent sampling (NeurIPS 2022) as its paper means it and as its code was released, Seneca's opportunistic
// sampling (FAST 2026) as published, and one order shared by all (CoorDL).
//
// It exists for honest comparison and chooses nothing in a daemon. Like dsa it knows no storage, sizes, labels or time,
// is pure and deterministic in its seed; the caller reports with SetLevel what is in memory, and owns the cache. What
// each one does that its authors did, and what was left out so that it can be compared at all, is said where it is
// made: independent.go, joader.go, released.go, ods.go, order.go.
package baseline
