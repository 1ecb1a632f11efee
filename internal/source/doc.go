// Package source knows what is stored where: it indexes datasets, gives their samples and objects dense ids, and reads
// the bytes of an object.
//
// It does not decode images, cache bytes, or choose what to read; prep, tiers and the coordinator do. The Catalog owns
// datasets and object ids for the life of the daemon; a Dataset is a view of the newest version of one root and may be
// used from any goroutine. Sample ids are sorted at first indexing and append-only afterwards, also across restarts
// when the index is saved (docs/format/index.md). Object ids are assigned per run of the daemon.
//
// What is noticed when storage changes: Add and Open compare the modification time, device and inode of every folder,
// which finds added, removed and renamed files and folders; Read compares size and modification time of the file it
// reads, which finds a file rewritten in place (Add indexes again after that). A file replaced by one with equal
// size and modification time is not noticed.
package source
