package disk

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/zeebo/xxh3"
)

// Key names stored bytes: a part of one version of an object in a store.
type Key struct {
	Place   string // the store: s3://bucket
	Object  string // its key there
	Version uint64 // store.Info.Version
	Off     int64
	Size    int64 // of the bytes: those of the entry
}

// append appends the key in a form in which no two keys are equal.
func (k *Key) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, k.Version)
	b = binary.LittleEndian.AppendUint64(b, uint64(k.Off))
	b = binary.LittleEndian.AppendUint64(b, uint64(k.Size))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(k.Place)))
	b = append(b, k.Place...)
	return append(b, k.Object...)
}

// Sizes of the parts of files, bytes. docs/format/disk.md has the layouts.
const (
	entryHead   = 40
	fileHead    = 32
	trailer     = 40
	indexEntry  = 16 // of a segment's index
	recordHead  = 8  // checksum before a record of a block
	page        = 4096
	maxKey      = 16 << 10
	maxGroup    = 4 << 10
	maxEntry    = 1<<32 - 1<<20
	fileVersion = 2
)

const (
	entryMagic   = 0x3144454c // LED1
	segmentMagic = 0x314745534452414c
	blockMagic   = 0x314b4c424452414c
	trailerMagic = 0x31444e454452414c
)

var le = binary.LittleEndian

// errTorn says that bytes are not what was written.
var errTorn = errors.New("torn or damaged")

// appendEntry appends the header and key of an entry with a payload.
func appendEntry(b, key, payload []byte) []byte {
	at := len(b)
	b = le.AppendUint32(b, entryMagic)
	b = le.AppendUint32(b, uint32(len(key)))
	b = le.AppendUint64(b, uint64(len(payload)))
	b = le.AppendUint64(b, payloadSum(payload))
	b = le.AppendUint64(b, xxhash.Sum64(key))
	b = le.AppendUint64(b, headSum(b[at:at+32], key))
	return append(b, key...)
}

// payloadSum is the checksum of what is large: the payload of an entry, a record of a block. XXH3 takes a ninth of what
// copying the bytes out of the page cache takes, where xxhash64 takes half of it.
func payloadSum(b []byte) uint64 { return xxh3.Hash(b) }

// headSum is the checksum of an entry's or a file's head and what belongs to it.
func headSum(head, rest []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(uint64(len(rest)))
	_, _ = d.Write(head)
	_, _ = d.Write(rest)
	return d.Sum64()
}

// entryLen is how many bytes an entry takes in a segment. Entries begin at multiples of 8.
func entryLen(key, payload int64) int64 { return (entryHead + key + payload + 7) &^ 7 }

// head is a parsed header of an entry.
type head struct {
	key, payload int64
	sum, hash    uint64
	check        uint64
}

// parseHead reads a header; its checksum covers the key too and is looked at by valid.
func parseHead(b []byte) (h head, ok bool) {
	if len(b) < entryHead || le.Uint32(b) != entryMagic {
		return head{}, false
	}
	h = head{key: int64(le.Uint32(b[4:])), payload: int64(le.Uint64(b[8:])), sum: le.Uint64(b[16:]),
		hash: le.Uint64(b[24:]), check: le.Uint64(b[32:])}
	return h, h.key > 0 && h.key <= maxKey && h.payload >= 0 && h.payload <= maxEntry
}

func (h *head) valid(b, key []byte) bool { return headSum(b[:32], key) == h.check }

// appendFileHead appends the head of a segment or a block: the group that it belongs to, and the key of a block.
func appendFileHead(b []byte, magic uint64, group, key string) []byte {
	at := len(b)
	b = le.AppendUint64(b, magic)
	b = le.AppendUint32(b, fileVersion)
	b = le.AppendUint32(b, uint32(len(group)))
	b = le.AppendUint64(b, uint64(len(key)))
	b = le.AppendUint64(b, headSum(b[at:at+24], []byte(group+key)))
	b = append(append(b, group...), key...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// fileHeadLen is the length of what appendFileHead appends.
func fileHeadLen(group, key string) int64 { return (fileHead + int64(len(group)+len(key)) + 7) &^ 7 }

// parseFileHead reads the head of a file through read, and returns what is in it.
func parseFileHead(magic uint64, read func(p []byte, off int64) error) (group, key string, err error) {
	var b [fileHead]byte
	if err := read(b[:], 0); err != nil {
		return "", "", err
	}
	g, k := int(le.Uint32(b[12:])), le.Uint64(b[16:])
	if le.Uint64(b[:]) != magic || le.Uint32(b[8:]) != fileVersion || g > maxGroup || k > maxKey {
		return "", "", fmt.Errorf("%w: no head of this version", errTorn)
	}
	rest := make([]byte, g+int(k))
	if err := read(rest, fileHead); err != nil {
		return "", "", err
	}
	if headSum(b[:24], rest) != le.Uint64(b[24:]) {
		return "", "", fmt.Errorf("%w: the checksum of its head differs", errTorn)
	}
	return string(rest[:g]), string(rest[g:]), nil
}

// A finished file ends with a table and a trailer, which says where the table begins and how many entries it has.

// appendTrailer appends the trailer of a table that begins at off of the file.
func appendTrailer(b []byte, table []byte, off, n int64) []byte {
	at := len(b)
	b = le.AppendUint64(b, trailerMagic)
	b = le.AppendUint64(b, uint64(off))
	b = le.AppendUint64(b, uint64(n))
	b = le.AppendUint64(b, xxhash.Sum64(table))
	return le.AppendUint64(b, headSum(b[at:at+32], nil))
}

// readTable reads the table of a finished file of that size. width is the bytes of an entry of it.
func readTable(size, width int64, read func(p []byte, off int64) error) (table []byte, off int64, err error) {
	var b [trailer]byte
	if size < trailer {
		return nil, 0, errTorn
	}
	if err := read(b[:], size-trailer); err != nil {
		return nil, 0, err
	}
	off, n := int64(le.Uint64(b[8:])), int64(le.Uint64(b[16:]))
	if le.Uint64(b[:]) != trailerMagic || headSum(b[:32], nil) != le.Uint64(b[32:]) || off < 0 || n < 0 ||
		n > size/width || off != size-trailer-n*width {
		return nil, 0, errTorn
	}
	table = make([]byte, n*width)
	if err := read(table, off); err != nil {
		return nil, 0, err
	}
	if xxhash.Sum64(table) != le.Uint64(b[24:]) {
		return nil, 0, errTorn
	}
	return table, off, nil
}
