// Package packed reads formats that keep many samples in one file: where in a file each sample's image lies, and its
// label.
//
// A Format lists the files of a dataset and scans one file at a time; afterwards every sample is one read at a known
// offset. The package depends on no catalogue, no ids and no store: it reads through io.ReaderAt and leaves all else to
// internal/source. It never unpickles, and writes nothing. What it reads is not trusted: sizes are checked against the
// file before anything of that size is made.
package packed
