// Package jobs holds the life of a job: its spec, how an epoch is dealt to its ranks, the ledger of what was delivered,
// slots, leases and incarnations.
//
// It decides nothing about which sample comes next (dsa) or what is kept (cachepolicy), and it does no I/O: time comes
// in as an argument. Values are owned by the coordinator's loop and are not safe for concurrent use.
package jobs
