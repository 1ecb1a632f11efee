// Package raster reads the headers of TIFF and netpbm images, and the pixels of netpbm, as Pillow does. It does no I/O
// of its own and imports nothing of larder: package source probes files with it, package prep decodes with it.
//
// The pixels of TIFF come from golang.org/x/image/tiff. TIFF is many formats in one, and that decoder takes some of
// them for others (planes stored apart, bits in reverse); so TIFFHeader says what a file is, and refuses in words
// whatever would not come out as Pillow gives it.
package raster
