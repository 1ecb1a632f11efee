package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/adler32"
	"hash/crc32"
	"strings"

	"larder/internal/ident"
	"larder/internal/source"
	"larder/internal/xrand"
)

// listing returns two digests of a dataset's list of samples; proto/larder/v1 has them byte by byte. byID is of the
// keys, in the bytes of the file system, and the labels in the order of ids, and empty where samples were removed, so
// that ids are not 0 to n-1. inAnyOrder is the same for every order. A client compares its own list of files and labels
// with them. They take time in proportion to the number of samples.
func listing(d *source.Dataset) (byID string, inAnyOrder uint64) {
	h := sha256.New()
	part, labels := make([]byte, 0, 1<<16), make([]byte, 0, 8*d.LiveCount())
	root := strings.TrimSuffix(d.Root(), "/") + "/"
	for id := range ident.SampleID(d.Len()) {
		if !d.Live(id) {
			continue
		}
		from := len(part)
		part = append(part, strings.TrimPrefix(d.Path(id), root)...)
		label := uint64(d.Label(id))
		inAnyOrder += ofSample(part[from:], label)
		part = append(part, 0)
		if len(part) > 1<<15 {
			h.Write(part)
			part = part[:0]
		}
		labels = binary.LittleEndian.AppendUint64(labels, label)
	}
	if d.LiveCount() < d.Len() {
		return "", inAnyOrder
	}
	h.Write(part)
	h.Write(labels)
	return hex.EncodeToString(h.Sum(nil)), inAnyOrder
}

// ofSample returns what one sample adds to the digest in any order. Mix adds the constant once more.
func ofSample(key []byte, label uint64) uint64 {
	x := uint64(crc32.ChecksumIEEE(key))<<32 | uint64(adler32.Checksum(key))
	return xrand.Mix(x + (label-1)*0x9e3779b97f4a7c15)
}
