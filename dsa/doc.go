// Package dsa decides which sample each training job sees next, so that jobs on overlapping data meet on the same
// samples while every job keeps the statistical promise of its own order.
//
// A call that would take long leaves its work to Work, in slices, if InSlices was called (work.go).
//
// It does not know storage, caches, batches, sizes, labels or time: the coordinator calls Next once per sample, says
// with SetLevel what has become available, and owns everything else. A Sampler is pure (no I/O, clock, goroutine, map
// order) and deterministic: the same seed and the same calls give the same picks. Objects are dense ids over all
// datasets of a daemon.
//
// How it decides, for modes Stratified and Epoch (design: Joader's dependent sampling, NeurIPS 2022, made exact per
// epoch):
//
//   - A static cell is a set of objects with the same membership in every subset that was ever registered (cells.go). A
//     job refines its cells by the tile of the object's position in its own previous epoch (Stratified).
//   - The cell of the next pick comes from the shared-order cell tape (tape.go): jobs share one random order of the
//     objects, and the static cell of the next pick is that of the next member of the job's remaining set in that
//     order; a number at that place of the order draws the tile in proportion to what remains. So the sequence of cells
//     has exactly the law remaining-in-cell / remaining, and jobs visit cells together at O(1) per pick. Where nothing
//     stays available at all, cell and tile are drawn for each pick and follow a neighbour's draw (follow.go).
//   - Inside the cell (groups.go, pick.go) an available object that the job prefers is served first: highest level,
//     then fewest needers, ties at random (above three needers a few are compared, not all). Else a uniformly drawn
//     remaining object of the cell. A job prefers what another job has taken since (prefer.go): anything else that is
//     available would be early in every epoch, and nothing would be saved.
//
// Strict jobs are drawn first, together and a bounded number of samples ahead, so that the others can follow
// (strict.go).
//
// Why each epoch order is a uniform permutation: the tape fixes cell proportions, and inside a cell nothing that
// reaches a choice can tell objects apart. An object may be further along for some jobs than for others (SetLevelFor:
// recipes whose prefixes differ, share groups): then its level for a job is one more thing that follows from who took
// what, and permuting the objects of a cell, with all that happened to them, still permutes the picks. That holds only
// while availability is decided at the commit of a pick (SetLevel before the next Next), victims are chosen by need
// with random ties, and what jobs with a non-exchangeable order (Sequential) load is neutral: such objects count as
// unavailable until a visible job picks them. docs/design/orders.md writes the argument out, and says what jobs
// remember from epoch to epoch.
package dsa
