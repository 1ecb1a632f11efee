// Package pack writes a dataset of images, or of records, as WebDataset tars or MosaicML's MDS shards.
//
// One goroutine writes; others read ahead and encode. Samples come in an order that follows from the source and the
// options alone, and a shard is closed when the next sample does not fit, so that every run makes the same bytes. What
// is finished is on disk and in a journal before the next shard begins: a run that was killed is continued after its
// last shard. In a folder, shards are made in a hidden folder of the target and moved to their places when all are
// there (folder.go). In a store, each appears whole under its name, beside a note of what it holds (prefix.go). Either
// way the manifest is last.
//
// Records become columns of MDS or members of tars, one for each field (records.go). Image files among the fields are
// encoded again as other images are.
//
// The package decides nothing about images: internal/prep decodes, resizes and encodes. It writes no format of its own,
// and reads what it wrote with internal/source/packed, as everybody else would.
package pack
