// Package profile measures what a machine can do for one dataset under one recipe: how fast its storage, its memory and
// its cores are, and what a sample weighs in each form. Those are the inputs of partition.Model (docs/tiers.md).
//
// Everything is measured through the packages that the daemon uses: reads through source, decoding and ops through
// prep, with as many workers. It does not decide anything, and keeps nothing but the file that Save writes.
package profile
