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
// formats that keep columns, pages or pieces of samples.
func InRanges(scheme, file string) bool {
	compressed := []string{".gz", ".tgz", ".bgz", ".bz2", ".zst", ".zstd", ".br", ".zip", ".snappy"}
	return slices.Contains(inRanges, scheme) && !slices.Contains(compressed, strings.ToLower(path.Ext(file)))
}

// Decoded reports whether the samples of a file are decoded in blocks, so that its Rows are InPieces: row groups and
// record batches, and compressed files as a whole.
func Decoded(scheme, file string) bool {
	switch scheme {
	case "parquet", "hf":
		return true
	case "wds":
		return isPackedTar(file)
	case "mds":
		return isPackedShard(file)
	case "jsonl", "csv", "text":
		return isPacked(file)
	}
	return false
}
