// Package ring is the shared memory through which ranks get their batches.
//
// A [Ring] belongs to one incarnation of one rank. It has slots, each with room for a batch. The coordinator grants a
// slot (a credit), workers fill its rows, and the ring hands finished slots to the session in the order in which they
// were pushed:
//
//	Fill → Image, Room → Put, Shape ──┐
//	       PutRecord → Put            │
//	                                  ├→ Push → gather or compact the rows → Sink.Batch
//	          all rows are there ─────┘
//
// The rows of a ring are images ([NewLayout]) or records ([NewRecordLayout]). Batches of one shape need no work: their
// rows were written to their place. Ragged batches get a table of sizes and, when they do not fit, a larger segment. A
// [Budget] bounds the memory of all rings together, a [Set] holds the rings of the daemon and watches the processes of
// clients that lost their connection.
//
// The package decides nothing: which rows a batch has, when a slot is free and who may attach is for the coordinator.
package ring
