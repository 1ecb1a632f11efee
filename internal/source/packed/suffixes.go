package packed

import (
	"path/filepath"
	"slices"
	"strings"
)

// fileNames says which files a format takes, by their names.
type fileNames struct {
	scheme   string
	suffixes []string
	more     func(base string) bool // names that no suffix describes; nil = none
}

// namedFiles are the formats whose files are known by their names. Files of the formats take their suffixes from here,
// and SchemeOf guesses by it: a suffix of several formats stands for the first of them, which is the more common one.
var namedFiles = []fileNames{
	{scheme: "wds", suffixes: append([]string{".tar"}, tarPackings...)},
	{scheme: "parquet", suffixes: []string{".parquet", ".parq", ".pq"}},
	{scheme: "lmdb", suffixes: []string{".mdb"}}, // its files may have any extension
	{scheme: "tfrecord", suffixes: []string{".tfrecord", ".tfrecords", ".tfrec"}, more: isTFShard},
	{scheme: "beton", suffixes: []string{".beton"}},
	{scheme: "npy", suffixes: []string{".npy"}},
	{scheme: "npz", suffixes: []string{".npz"}},
	{scheme: "jsonl", suffixes: withPackings(".jsonl", ".json", ".ndjson")},
	{scheme: "text", suffixes: withPackings(".txt", ".text", ".md", ".log", ".raw", ".tok", ".tokens")},
	{scheme: "csv", suffixes: withPackings(".csv", ".tsv", ".txt")},
	{scheme: "fasta", suffixes: []string{".fasta", ".fa", ".faa", ".fna", ".ffn", ".fas", ".fasta.gz", ".fa.gz", ".faa.gz",
		".fna.gz", ".fasta.bgz", ".fa.bgz", ".faa.bgz", ".fna.bgz"}},
	{scheme: "hf", suffixes: []string{".arrow"}},
	{scheme: "tokens", suffixes: []string{".bin", ".npy"}},
	{scheme: "imagefiles", suffixes: slices.Concat(csvLists, jsonLists)},
}

// suffixesOf are the suffixes of the files of a scheme.
func suffixesOf(scheme string) []string {
	for i := range namedFiles {
		if namedFiles[i].scheme == scheme {
			return namedFiles[i].suffixes
		}
	}
	return nil
}

// SchemeOf is the scheme that a file is most likely of, by its name, whatever the case of its letters; "" = none.
func SchemeOf(path string) string {
	path = strings.ToLower(path)
	for i := range namedFiles {
		n := &namedFiles[i]
		if hasSuffix(path, n.suffixes) || n.more != nil && n.more(filepath.Base(path)) {
			return n.scheme
		}
	}
	return ""
}
