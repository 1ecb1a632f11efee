// Package arena gives out the memory of a tier: extents of anonymous chunks, outside the Go heap (values on the
// heap cost 2.1 times their budget; here it is 1.01).
//
// It does not know what an extent holds and counts no references: tiers does. The caller of Alloc owns the Extent
// until Free.
//
// Budget is a bound on physical pages, not only on what was handed out: pages of free extents are kept warm while they
// fit, because first touch costs ten times a refill, and returned to the kernel one by one when they do not. An
// allocation takes what has pages before what has none, and while the machine is idle a goroutine gets pages ahead.
// The address space of the chunks can be larger than the budget, which is why fragmentation never makes an Alloc fail
// that the budget allows.
//
// Memory comes in huge pages where [Probe] found that they pay, and as long as they do: in blocks of 2 MiB that come
// and go as a whole, and in small pages where the budget has no room for a whole block. What the kernel holds of a
// huge page that was split it takes back when it needs memory.
//
// Accepted risks: anonymous memory counts against RLIMIT_DATA, so an allocation beyond `ulimit -d` is refused. Before
// Linux 5.14 the kernel ends the process where it has no page, because pages come with the first write.
package arena
