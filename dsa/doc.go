// Package dsa decides which sample each training job sees next, so that jobs on overlapping data meet on the same
// samples while every job keeps the statistical promise of its own order.
//
// # Use
//
// A job joins with a subset of objects (JobSpec), starts an epoch, and calls Next once per sample. After each pick the
// caller says with SetLevel what the pick made available, and what an eviction made unavailable. Need says how many
// jobs still need an object, which is what eviction compares. Example shows the calls.
//
// Objects are dense ids over all datasets of a daemon. The package does not know storage, caches, batches, sizes,
// labels or time; the coordinator owns those. A Sampler is pure (no I/O, clock, goroutine or map order) and
// deterministic: the same seed and the same calls give the same picks. A call that would take long leaves its work to
// Work, in slices, if InSlices was called (work.go).
//
// # Where the next sample is chosen, and by which rule
//
// Sampler.choose in sampler.go is the rule. For modes Stratified and Epoch (Joader's dependent sampling, NeurIPS 2022,
// made exact per epoch) a pick has two steps.
//
// Step 1 names the cell and the tile. A static cell is a set of objects that belong to exactly the same subsets of all
// that visible jobs ever registered (cells.go). Stratified refines cells by the tile of the object's position in the
// job's own previous epoch. Jobs that share objects share one random order of them. The cell of a job's next pick is
// that of the next member of its remaining set in this order, and a number at that position draws the tile in
// proportion to what remains (tape.go). So the sequence of cells has exactly the law remaining-in-cell / remaining, and
// jobs visit cells together, at O(1) per pick. Where nothing stays available at all, cell and tile are drawn for each
// pick and follow a neighbour's draw (follow.go).
//
// Step 2 takes an object of the cell and tile (draw.go). If the job prefers an available object there, it takes the one
// in the highest form, then with the fewest needers, ties at random (lists.go). Otherwise it draws uniformly from what
// remains. A job prefers what another job has taken since it took it itself (prefer.go). Any other available object
// would come early in every epoch, and save nothing.
//
// Where a job has many cells and hardly anything is available in each, it scans instead (scan.go): an order that jobs
// share deals objects into parts (scanorder.go), and jobs meet in parts, by decisions that follow from counts alone.
//
// Jobs of mode Blocks walk through blocks of samples that lie together, a few at a time (walk.go), and meet on them
// (walkmeet.go). The rules above do not know them: they have no slot, no cell and no level, and what they take is
// neutral.
//
// The other modes: Strict jobs draw uniformly from all that remains, together and a bounded number of samples ahead, so
// that the others can follow (strict.go). Fixed and Sequential jobs have a prescribed order (fixed.go).
//
// # Why each epoch is a uniform permutation
//
// Step 1 fixes the proportions of cells, and in step 2 nothing that reaches a choice can tell objects of a cell apart.
// What may differ between objects follows from who took what, and renaming the objects of a cell, with all that
// happened to them, renames the picks. It holds only while
//
//   - availability is decided at the commit of a pick: SetLevel comes before the next Next;
//   - victims are chosen by need, with random ties, never by id, size, cost or name;
//   - what jobs whose order is not exchangeable (Sequential) load is neutral: it counts as unavailable until a visible
//     job (of another mode) picks it, and Neutral reports that to the evictor.
//
// docs/design/orders.md has the argument, and says what jobs remember from epoch to epoch.
//
// # Files
//
// sampler.go lists the components of a Sampler. Each has its own fields, invariants and Check: roster (jobs.go,
// pace.go), cells (cells.go), pool (pool.go, prefer.go), tapes (tape.go), follows (follow.go), scans (scan.go,
// scanorder.go), draws (draw.go, lists.go, smallcell.go), strictDraws (strict.go), walks (walk.go, walkmeet.go),
// layouts (layout.go, groups.go) and work (work.go, passes.go). join.go, epoch.go and query.go hold the other calls.
package dsa
