package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"larder/internal/ident"
)

// The bytes of a log: docs/format/journal.md. A file is a header and frames; a frame is a head and a body.
const (
	version    = 1
	headerSize = 44
	headSize   = 20
	// Limits of one record; what is larger was not written by larder.
	maxBody    = 16 << 20
	maxObjects = 1 << 20
	maxText    = 8 << 20
)

// fileKind says what a file of a state directory holds.
type fileKind uint32

const (
	logFile fileKind = iota + 1
	snapshotFile
	ordersFile
	numFileKinds
)

func (k fileKind) String() string {
	return [...]string{"unknown", "log", "snapshot", "orders"}[k]
}

var magic = [8]byte{'L', 'A', 'R', 'D', 'E', 'R', 'J', 'L'}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header begins every file. Its checksum seeds those of the frames: a frame that was moved to another file is damage.
type header struct {
	kind  fileKind
	id    uint64 // of the state directory, drawn once: a file of another one is damage
	first uint64 // log: number of its first record; snapshot: of the last record in it; orders: its own number
	term  uint64
}

func (h header) encode() []byte {
	b := make([]byte, headerSize)
	copy(b, magic[:])
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], uint32(h.kind))
	binary.LittleEndian.PutUint64(b[16:], h.id)
	binary.LittleEndian.PutUint64(b[24:], h.first)
	binary.LittleEndian.PutUint64(b[32:], h.term)
	binary.LittleEndian.PutUint32(b[40:], crc32.Checksum(b[:40], castagnoli))
	return b
}

// seed is what checksums of the file's frames begin with.
func (h header) seed() uint32 { return crc32.Checksum(h.encode(), castagnoli) }

var (
	errHeader = errors.New("its header is damaged")
	errNewer  = errors.New("it was written by a newer version of larder")
)

func decodeHeader(b []byte) (header, error) {
	if len(b) < headerSize || [8]byte(b[:8]) != magic {
		return header{}, errHeader
	}
	sound := crc32.Checksum(b[:40], castagnoli) == binary.LittleEndian.Uint32(b[40:])
	if v := binary.LittleEndian.Uint32(b[8:]); v != version {
		if sound && v > version {
			return header{}, fmt.Errorf("%w: format %d, and this one knows %d", errNewer, v, version)
		}
		return header{}, errHeader
	}
	h := header{
		kind: fileKind(binary.LittleEndian.Uint32(b[12:])), id: binary.LittleEndian.Uint64(b[16:]),
		first: binary.LittleEndian.Uint64(b[24:]), term: binary.LittleEndian.Uint64(b[32:]),
	}
	if !sound || h.kind == 0 || h.kind >= numFileKinds {
		return header{}, errHeader
	}
	return h, nil
}

// A frame's head: checksum of everything after it, length of the body, number, and how far the number was ahead of what
// was durable when the frame was written. The last distinguishes a torn tail from damage: a frame that was durable
// before a later one was written cannot be missing.
type head struct {
	crc, size uint32
	seq       uint64
	ahead     uint32
}

// openFrame makes room for a head; sealFrame fills it.
func openFrame(b []byte) []byte { return append(b, make([]byte, headSize)...) }

// sealFrame fills the head of the frame that is all of b.
func sealFrame(b []byte, seed uint32, seq, durable uint64) {
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-headSize))
	binary.LittleEndian.PutUint64(b[8:], seq)
	binary.LittleEndian.PutUint32(b[16:], uint32(min(seq-durable, 1<<32-1)))
	binary.LittleEndian.PutUint32(b, crc32.Update(seed, castagnoli, b[4:]))
}

// readFrame returns the frame at the beginning of b; ok is false when there is no sound one.
func readFrame(b []byte, seed uint32) (h head, body []byte, ok bool) {
	if len(b) < headSize {
		return h, nil, false
	}
	h = head{
		crc: binary.LittleEndian.Uint32(b), size: binary.LittleEndian.Uint32(b[4:]), seq: binary.LittleEndian.Uint64(b[8:]),
		ahead: binary.LittleEndian.Uint32(b[16:]),
	}
	if h.size > maxBody || int64(h.size) > int64(len(b)-headSize) {
		return h, nil, false
	}
	all := b[4 : headSize+int(h.size)]
	if crc32.Update(seed, castagnoli, all) != h.crc {
		return h, nil, false
	}
	return h, all[headSize-4:], true
}

// entry is a numbered row whose objects are still packed.
type entry struct {
	row
	Seq    uint64 // given by the log, from 1
	Term   uint64 // of the daemon: how often its state was opened
	n      int    // objects
	packed []byte // width and bits; see pack
}

// appendBody encodes all of a record but its number, which is in the head. Objects are packed unless they are already;
// then packed points into what is returned.
func appendBody(b []byte, e *entry) []byte {
	if e.packed == nil {
		e.n = len(e.Objects)
	}
	b = append(b, byte(e.Kind))
	for _, v := range [...]uint64{e.Term, uint64(e.Job), uint64(e.Rank), uint64(e.Incarnation), uint64(e.Epoch),
		uint64(e.Step), uint64(e.n)} {
		b = binary.AppendUvarint(b, v)
	}
	if e.packed == nil {
		from := len(b)
		b = pack(b, e.Objects)
		e.packed = b[from:len(b):len(b)]
	} else {
		b = append(b, e.packed...)
	}
	return append(b, e.Text...)
}

var errBody = errors.New("it is no record of larder")

// decodeBody reads a body. packed points into b.
func decodeBody(b []byte) (entry, error) {
	var e entry
	if len(b) < 1 || b[0] == 0 || kind(b[0]) >= numKinds {
		return e, errBody
	}
	e.Kind = kind(b[0])
	b = b[1:]
	var v [7]uint64
	for i := range v {
		x, k := binary.Uvarint(b)
		if k <= 0 || k > 1 && b[k-1] == 0 { // one way to write a number
			return e, errBody
		}
		v[i], b = x, b[k:]
	}
	for _, i := range [...]int{1, 2, 4, 5} {
		if v[i] > 1<<32-1 {
			return e, errBody
		}
	}
	e.Term, e.Job, e.Rank, e.Incarnation = v[0], ident.JobID(v[1]), uint32(v[2]), ident.Incarnation(v[3])
	e.Epoch, e.Step = uint32(v[4]), uint32(v[5])
	if v[6] > maxObjects {
		return e, errBody
	}
	e.n = int(v[6])
	if e.n > 0 {
		if len(b) < 1 || b[0] > 32 {
			return e, errBody
		}
		size := 1 + (e.n*int(b[0])+7)/8
		if len(b) < size {
			return e, errBody
		}
		e.packed, b = b[:size:size], b[size:]
	}
	if len(b) > maxText {
		return e, errBody
	}
	e.Text = string(b)
	return e, nil
}

// pack appends ids in as many bits each as the largest needs, after one byte that says how many: 3.4 MB for 1.28
// million. No ids take nothing.
func pack(b []byte, ids []ident.ObjectID) []byte {
	if len(ids) == 0 {
		return b
	}
	var most ident.ObjectID
	for _, x := range ids {
		most |= x
	}
	width := bits.Len32(uint32(most))
	b = append(b, byte(width))
	var acc uint64
	have := 0
	for _, x := range ids {
		acc |= uint64(x) << have
		for have += width; have >= 8; have -= 8 {
			b = append(b, byte(acc))
			acc >>= 8
		}
	}
	if have > 0 {
		b = append(b, byte(acc))
	}
	return b
}

// unpack is the reverse of pack, for n ids; b was checked by decodeBody or made by pack.
func unpack(b []byte, n int) []ident.ObjectID {
	out := make([]ident.ObjectID, n)
	if n == 0 {
		return out
	}
	width := int(b[0])
	mask := uint64(1)<<width - 1
	b = b[1:]
	var acc uint64
	have := 0
	for i := range out {
		for have < width {
			acc |= uint64(b[0]) << have
			b = b[1:]
			have += 8
		}
		out[i] = ident.ObjectID(acc & mask)
		acc >>= width
		have -= width
	}
	return out
}
