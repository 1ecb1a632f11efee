package packed

import (
	"path"
	"slices"
	"strings"
)

// inRanges are the formats whose samples lie in their files one behind the other: Sample.Off and Size are bytes of the
// file, and reading a sample reads those and little else.
var inRanges = []string{"wds", "mds", "cifar10", "cifar100", "idx", "jsonl", "csv", "text", "tfrecord", "fasta"}

// InRanges reports whether the samples of a file are ranges of its bytes. They are not where it is compressed, nor in
// formats that keep columns, pages or pieces of samples. Names do not say whether TFRecords are: see DecodedAt.
func InRanges(scheme, file string) bool {
	compressed := []string{".gz", ".tgz", ".bgz", ".bz2", ".zst", ".zstd", ".br", ".zip", ".snappy"}
	if !slices.Contains(inRanges, scheme) {
		return false
	}
	return scheme == "tfrecord" || !slices.Contains(compressed, strings.ToLower(path.Ext(file)))
}

// Decoded reports whether the samples of a file may be held in pieces, so that its Rows are InPieces: row groups,
// record batches, rows of arrays, frames of compressed lines, other compressed files as a whole. Where OpenRows gives
// others, as of a compressed .npz, they are not.
func Decoded(scheme, file string) bool {
	switch scheme {
	case "parquet", "hf", "npy", "npz", "tokens":
		return true
	}
	return Unpacked(scheme, file)
}

// Unpacked reports whether a file is compressed as a whole, so that what is kept of it is unpacked.
func Unpacked(scheme, file string) bool {
	switch scheme {
	case "wds":
		return isPackedTar(file)
	case "mds":
		return isPackedShard(file)
	case "jsonl", "csv", "text":
		return isPacked(file)
	}
	return false
}

// WhyNoBlocks says why samples of a file that has no blocks do not lie together, in words that follow the name of the
// file, and what to do about it; "" = there is nothing to say.
func WhyNoBlocks(scheme, file string) (why, hint string) {
	const pack = "use order stratified: a sample of it is a few reads wherever it lies"
	switch scheme {
	case "lmdb":
		return "keeps its values on pages in the order in which they were written, not in that of its keys", pack
	case "beton":
		return "keeps its samples on pages in the order in which the processes that wrote it were done", pack
	case "npz":
		return "has members that are compressed, each as a whole", "write it with numpy.savez, or use order stratified"
	case "tokens":
		return "has windows that mind the borders of documents, and lie at places of their own",
			"leave out ?borders=, or use order stratified"
	case "fasta":
		return "is compressed in blocks of 64 KiB, which are read one by one", "unpack it with bgzip -d, or " + pack
	}
	return "", ""
}
