package crashguard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"unsafe"

	"larder/internal/ident"
)

// The layout of the file is described in docs/format/decoding.md.
const (
	fileMagic   = "LARDERDC"
	fileVersion = 1
	// lineBytes is the size of a processor's cache line, so that workers do not contend for one.
	lineBytes  = 64
	maxEntries = 512     // suspects and crashers together
	maxLines   = 1 << 12 // workers
)

// The first eight bytes of a line say what it holds.
const (
	lineFree    = 0
	linePiece   = 1
	lineCrasher = 2
)

// entry is the content of a line.
type entry struct {
	kind    uint64
	piece   Piece
	crasher Crasher
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// newHeader is the first line of a file with lines for so many workers. id is that of the state directory.
func newHeader(id uint64, workers int) []byte {
	b := make([]byte, lineBytes)
	copy(b, fileMagic)
	binary.LittleEndian.PutUint32(b[8:], fileVersion)
	binary.LittleEndian.PutUint32(b[12:], uint32(workers))
	binary.LittleEndian.PutUint32(b[16:], maxEntries)
	binary.LittleEndian.PutUint64(b[24:], id)
	copy(b[32:], headerSum(b))
	return b
}

func headerSum(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b[:32], castagnoli))
}

// parseFile reads a file: the suspects, each once, and the crashers. broken counts lines that hold something else.
func parseFile(b []byte, id uint64) (pieces []Piece, crashers []Crasher, broken int, err error) {
	if err := checkHeader(b, id); err != nil {
		return nil, nil, 0, err
	}
	known := map[Piece]bool{}
	for at := lineBytes; at < len(b); at += lineBytes {
		e, ok := readLine(b[at : at+lineBytes])
		switch {
		case !ok:
			broken++
		case e.kind == linePiece && !known[e.piece]:
			known[e.piece] = true
			pieces = append(pieces, e.piece)
		case e.kind == lineCrasher:
			crashers = append(crashers, e.crasher)
		}
	}
	return pieces, crashers, broken, nil
}

func checkHeader(b []byte, id uint64) error {
	if len(b) < lineBytes {
		return fmt.Errorf("it has %d bytes", len(b))
	}
	if string(b[:8]) != fileMagic {
		return errors.New("it is no file of larder")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != fileVersion {
		return fmt.Errorf("it has version %d, and this larder knows %d", v, fileVersion)
	}
	if crc32.Checksum(b[:32], castagnoli) != binary.LittleEndian.Uint32(b[32:]) {
		return errors.New("its header is broken")
	}
	if binary.LittleEndian.Uint64(b[24:]) != id {
		return errors.New("it is of another state directory")
	}
	lines := uint64(binary.LittleEndian.Uint32(b[12:])) + uint64(binary.LittleEndian.Uint32(b[16:]))
	if have := uint64(len(b)/lineBytes - 1); have != lines || len(b)%lineBytes != 0 {
		return fmt.Errorf("it has %d bytes, and its header says %d", len(b), (1+lines)*lineBytes)
	}
	return nil
}

// sum distinguishes the words of a line from other bytes.
func sum(words ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, w := range words {
		h = (h ^ w) * 0xff51afd7ed558ccd
		h ^= h >> 32
	}
	return h
}

func (p Piece) words() (a, b, c, check uint64) {
	a, b, c = uint64(p.Job)<<32|uint64(p.Sample), uint64(p.Instance), p.Seed
	return a, b, c, sum(linePiece, a, b, c)
}

// putPiece writes all of a line but its kind.
func putPiece(b []byte, p Piece) {
	x, y, z, check := p.words()
	binary.LittleEndian.PutUint64(b[8:], x)
	binary.LittleEndian.PutUint64(b[16:], y)
	binary.LittleEndian.PutUint64(b[24:], z)
	binary.LittleEndian.PutUint64(b[32:], check)
}

// put writes a line. Its kind comes last: a process that dies in between leaves a free line, or one whose sum does
// not fit.
func (e *entry) put(b []byte) {
	setKind(b, lineFree)
	switch e.kind {
	case linePiece:
		putPiece(b, e.piece)
	case lineCrasher:
		binary.LittleEndian.PutUint64(b[8:], uint64(e.crasher.Bytes))
		copy(b[16:32], e.crasher.Hash[:])
		binary.LittleEndian.PutUint64(b[32:], e.crasher.Build)
		clear(b[40:48])
		copy(b[40:48], e.crasher.How)
		binary.LittleEndian.PutUint64(b[48:], crasherSum(b))
	}
	setKind(b, e.kind)
}

func crasherSum(b []byte) uint64 {
	w := func(i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
	return sum(lineCrasher, w(8), w(16), w(24), w(32), w(40))
}

func setKind(b []byte, kind uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[0])), kind)
}

// readLine is the reverse of put; false when the line holds nothing that put writes.
func readLine(b []byte) (e entry, ok bool) {
	w := func(i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
	switch e.kind = w(0); e.kind {
	case lineFree:
		return e, true
	case linePiece:
		e.piece = Piece{Job: ident.JobID(w(8) >> 32), Sample: ident.SampleID(w(8)), Instance: uint32(w(16)), Seed: w(24)}
		x, y, z, check := e.piece.words()
		return e, x == w(8) && y == w(16) && z == w(24) && check == w(32)
	case lineCrasher:
		e.crasher = Crasher{Bytes: int64(w(8)), Hash: [16]byte(b[16:32]), Build: w(32)}
		how := b[40:48]
		for len(how) > 0 && how[len(how)-1] == 0 {
			how = how[:len(how)-1]
		}
		e.crasher.How = string(how)
		return e, crasherSum(b) == w(48)
	}
	return e, false
}
