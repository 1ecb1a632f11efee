// Package spool is what a format uses that reads blocks larger than a sample: row groups, compressed frames, compressed
// tars. A block is read and decoded once; its records are kept, and then each is one random read.
//
// It says what a spool is, and holds the one in memory, for programs without a disk to use. The one on a disk is
// tiers/disk. It knows no format, and trusts nothing that comes back from a disk: a record is what was added, or an
// error.
package spool
