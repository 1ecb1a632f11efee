// Package crew hands samples to worker processes of clients, and takes over the records that they make.
//
// A worker process attaches through a session, names the recipes that it can run, and has a few tasks at once
// (docs/protocol.md):
//
//	Crew.Add ─→ queue, by turn ─→ a worker whose recipe fits, the least busy ─→ TASK
//	DONE ─→ one copy into a tier, a working copy or memory of a row ─→ the copy is checked ─→ Config.Send
//	FAILED, a lie, an end, no answer in time ─→ once more, with another worker if there is one ─→ Config.Send, with why
//
// Nothing that a worker sends is trusted: its memory is mapped for reading, a record is copied before it is looked at,
// and whatever does not fit costs a try. A task that no worker can make waits and holds nothing that others need.
//
// The package decides neither what is made nor in which order nor what is kept.
package crew
