package trace

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"larder/internal/ident"
)

// The file is a header and chunks: kind, length, payload, checksum. Each checksum also covers the one before it, so
// that a chunk that is missing, doubled or moved is noticed as well as one that is damaged. docs/format/trace.md has
// the bytes.
const (
	magic        = "LARDERTR"
	fileVersion  = 2
	firstVersion = 1 // without decoded sizes and worlds; what has none is written as it
	headerSize   = 16
	maxChunk     = 1 << 24 // bytes of a payload
	blockPicks   = 1 << 16 // most picks, objects or events in a chunk
)

// Kinds of chunks, in the order in which they come.
const (
	chunkDemand  = 1 // name, seed, objects, jobs
	chunkObjects = 2 // sizes and costs of the next objects
	chunkPicks   = 3
	chunkMoves   = 4
	chunkEnd     = 5 // counts of everything
	chunkWorld   = 6 // JSON of World; after the demand
)

// Writer writes a trace as it happens. After an error every call returns it.
type Writer struct {
	w      io.Writer
	sum    uint64
	buf    []byte
	demand *Trace // without picks and moves
	pick   Picks
	moves  []Move
	picks  uint64 // all that were added
	lastAt uint64
	nmoves uint64
	err    error
}

// NewWriter begins a file with the demand of a trace: its picks and moves are not written.
func NewWriter(w io.Writer, demand *Trace) (*Writer, error) {
	d := *demand
	d.Pick, d.Moves = Picks{}, nil
	if err := d.Check(); err != nil {
		return nil, err
	}
	out := &Writer{w: w, demand: &d}
	h := append([]byte(magic), 0, 0, 0, 0, 0, 0, 0, 0)
	version := uint32(firstVersion)
	if d.World != nil || d.Decoded != nil {
		version = fileVersion
	}
	binary.LittleEndian.PutUint32(h[8:], version)
	out.sum = xxhash.Sum64(h)
	out.write(h)
	out.chunk(chunkDemand, appendDemand(nil, &d))
	if d.World != nil {
		raw, err := d.World.marshal()
		if err != nil {
			return nil, err
		}
		out.chunk(chunkWorld, raw)
	}
	for lo := 0; lo < d.Objects && d.sized(); lo += blockPicks {
		out.chunk(chunkObjects, appendObjects(nil, &d, lo, min(d.Objects, lo+blockPicks)))
	}
	return out, out.err
}

func (w *Writer) write(b []byte) {
	if w.err != nil {
		return
	}
	if _, err := w.w.Write(b); err != nil {
		w.err = fmt.Errorf("write a trace: %w", err)
	}
}

// chunk writes one chunk.
func (w *Writer) chunk(kind byte, payload []byte) {
	b := w.buf[:0]
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(len(payload)))
	b = append(b, payload...)
	w.sum = chain(w.sum, b)
	b = binary.LittleEndian.AppendUint64(b, w.sum)
	w.write(b)
	w.buf = b
}

// chain is the checksum of a chunk after one.
func chain(before uint64, chunk []byte) uint64 {
	d := xxhash.NewWithSeed(before)
	_, _ = d.Write(chunk)
	return d.Sum64()
}

// Pick records that a job has taken a sample.
func (w *Writer) Pick(job int, x uint32, begins bool) error {
	if job < 0 || job >= len(w.demand.Jobs) || x >= uint32(w.demand.Objects) {
		return fmt.Errorf("write a trace: object %d of job %d", x, job)
	}
	w.pick.Add(job, x, begins)
	w.picks++
	if w.pick.Len() == blockPicks {
		w.flush()
	}
	return w.err
}

// Move records that something came into memory or left it; its At is the picks so far.
func (w *Writer) Move(x uint32, form ident.Form, in bool) error {
	if x >= uint32(w.demand.Objects) || form >= ident.NumForms {
		return fmt.Errorf("write a trace: object %d in form %d", x, form)
	}
	w.moves = append(w.moves, Move{w.picks, x, form, in})
	w.nmoves++
	if len(w.moves) == blockPicks {
		w.flush()
	}
	return w.err
}

func (w *Writer) flush() {
	if n := w.pick.Len(); n > 0 {
		w.chunk(chunkPicks, appendPicks(nil, w.pick.Object, w.pick.Job))
		w.pick.Object, w.pick.Job = w.pick.Object[:0], w.pick.Job[:0]
	}
	if len(w.moves) > 0 {
		w.chunk(chunkMoves, appendMoves(nil, w.moves, w.lastAt))
		w.lastAt = w.moves[len(w.moves)-1].At
		w.moves = w.moves[:0]
	}
}

// Close ends the file; without it a reader says that the trace was cut off.
func (w *Writer) Close() error {
	w.flush()
	b := binary.AppendUvarint(nil, w.picks)
	w.chunk(chunkEnd, binary.AppendUvarint(b, w.nmoves))
	return w.err
}

// Write writes all of a trace.
func Write(to io.Writer, t *Trace) error {
	if err := t.Check(); err != nil {
		return err
	}
	w, err := NewWriter(to, t)
	if err != nil {
		return err
	}
	for i, k := 0, 0; ; i++ {
		for ; k < len(t.Moves) && t.Moves[k].At == uint64(i); k++ {
			if err := w.Move(t.Moves[k].Object, t.Moves[k].Form, t.Moves[k].In); err != nil {
				return err
			}
		}
		if i == t.Pick.Len() {
			return w.Close()
		}
		if err := w.Pick(int(t.Pick.Job[i]&JobMask), t.Pick.Object[i], t.Pick.Job[i]&Begins != 0); err != nil {
			return err
		}
	}
}

func appendString(b []byte, s string) []byte {
	s = s[:min(len(s), maxName)]
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendDemand(b []byte, t *Trace) []byte {
	b = appendString(b, t.Name)
	b = binary.LittleEndian.AppendUint64(b, t.Seed)
	b = binary.AppendUvarint(b, uint64(t.Objects))
	flags := byte(0)
	for i, on := range []bool{t.Sizes != nil, t.Decode != nil, t.Augment != nil, t.Decoded != nil} {
		if on {
			flags |= 1 << i
		}
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, uint64(len(t.Jobs)))
	for i := range t.Jobs {
		j := &t.Jobs[i]
		b = appendString(b, j.Name)
		b = appendString(b, j.Order)
		looks := byte(0)
		if j.Looks {
			looks = 1
		}
		b = append(b, looks)
		for _, v := range []uint64{uint64(j.Arrive), uint64(j.Leave), uint64(j.Step), uint64(j.Batch), uint64(j.Epochs),
			uint64(len(j.Subset))} {
			b = binary.AppendUvarint(b, v)
		}
		last := uint32(0)
		for _, r := range j.Subset {
			b = binary.AppendUvarint(b, uint64(r.Lo-last))
			b = binary.AppendUvarint(b, uint64(r.Hi-r.Lo))
			last = r.Hi
		}
	}
	return b
}

func appendObjects(b []byte, t *Trace, lo, hi int) []byte {
	b = binary.AppendUvarint(b, uint64(hi-lo))
	if t.Sizes != nil {
		b = appendColumn(b, t.Sizes[lo:hi])
	}
	if t.Decode != nil {
		b = appendColumn(b, t.Decode[lo:hi])
	}
	if t.Augment != nil {
		b = appendColumn(b, t.Augment[lo:hi])
	}
	if t.Decoded != nil {
		b = appendColumn(b, t.Decoded[lo:hi])
	}
	return b
}

func appendPicks(b []byte, objects []uint32, jobs []uint16) []byte {
	b = binary.AppendUvarint(b, uint64(len(objects)))
	turned := make([]uint16, len(jobs)) // the mark of an epoch's first pick comes lowest, so that columns stay narrow
	for i, j := range jobs {
		turned[i] = j<<1 | j>>15
	}
	return appendColumn(appendColumn(b, objects), turned)
}

func appendMoves(b []byte, m []Move, at uint64) []byte {
	b = binary.AppendUvarint(b, uint64(len(m)))
	var ats, objects []uint64
	kinds := make([]uint8, len(m))
	for i := range m {
		ats, objects = append(ats, m[i].At-at), append(objects, uint64(m[i].Object))
		at = m[i].At
		kinds[i] = uint8(m[i].Form) << 1
		if m[i].In {
			kinds[i] |= 1
		}
	}
	return appendColumn(appendColumn(appendColumn(b, ats), objects), kinds)
}

type number interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int64
}

// appendColumn packs numbers: the least as a varint, the width in bits of what is above it, then that, lowest bits
// first.
func appendColumn[T number](b []byte, v []T) []byte {
	least, most := v[0], v[0]
	for _, x := range v {
		least, most = min(least, x), max(most, x)
	}
	width := bits.Len64(uint64(most - least))
	b = binary.AppendUvarint(b, uint64(least))
	b = append(b, byte(width))
	acc, n := uint64(0), 0
	for _, x := range v {
		d := uint64(x - least)
		acc |= d << n
		for n += width; n >= 64; {
			b = binary.LittleEndian.AppendUint64(b, acc)
			n -= 64
			acc = 0
			if n > 0 {
				acc = d >> (width - n)
			}
		}
	}
	for ; n > 0; n -= 8 {
		b = append(b, byte(acc))
		acc >>= 8
	}
	return b
}
