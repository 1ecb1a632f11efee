// Package disk keeps stored bytes of remote samples, and records of blocks, in one directory of a local disk.
//
// Nothing here is ever needed: an entry that is lost, torn or damaged is a miss and costs a read. So nothing is synced,
// and no failure of the disk reaches a job: it is counted, said once, and the tier does less for a while.
//
// Entries of one group (a dataset) are appended to segments, which leave as a whole (segment.go). Their headers have
// the whole key and checksums (format.go); what a read returns has passed them all. A segment that is full ends with an
// index, so that a start reads no entries; one that was cut off is scanned (load.go). Blocks are files of their own
// (block.go). choose.go decides what leaves, without any I/O: the least needed, then the least recently used.
//
// One daemon owns a directory, by a lock; others read what it has finished (owner.go). Files of others in it are left
// alone. docs/format/disk.md describes the files.
package disk
