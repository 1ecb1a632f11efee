// Package crashguard keeps an image that crashes the decoder from ending every life of the daemon, one after the other.
//
// Decoders run in the daemon's own process. A [File] notes what each worker is preparing; it outlives the process,
// however that dies. What the next daemon finds there is suspect. A [Guard] has every suspect prepared in a process
// of its own (a trial) before a worker of the daemon may decode it:
//
//	File.Suspects → Guard.Locate → trial ─┬─ the process does its work: innocent, decoded as ever
//	                                      ├─ it dies twice: condemned, its stored bytes fail from now on
//	                                      └─ no trial is possible: decoded as ever, suspect for the next daemon
//
// So an image that crashes the decoder costs one death of the daemon, and at most one suspect for each worker.
// Condemned bytes are known by their hash: they fail for every job, under every name, until another build of larder
// decodes them.
//
// The package does not know jobs, journals or the coordinator: a [Locator] turns a noted piece of work into an
// object, and what is condemned is reported as a reason, as of a file that is no image.
package crashguard
