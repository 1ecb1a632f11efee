package packed

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"

	"larder/internal/record"
	"larder/internal/spool"
)

// What windows of tokens do at the borders of documents (?borders=).
const (
	bordersRun  = "run"  // they run on; as without it
	bordersStop = "stop" // the last one of a document is shorter
	bordersDrop = "drop" // and is left out
	bordersPack = "pack" // documents lie whole in a window, beside others
)

// maxPacked bounds the documents of a file that is packed: one takes 40 bytes while they are put together.
const maxPacked = 1 << 25

const (
	positionName = "position"
	lengthBits   = 25 // of Sample.Off where windows are ragged: the low bits are the length, the others the first id
)

// checkBorders checks what arguments say together.
func (t *tokenFile) checkBorders(a Address) error {
	switch t.borders = a.Args["borders"]; {
	case t.borders == "" || t.borders == bordersRun:
		t.borders = ""
		if a.Args["pad"] != "" {
			return errors.New("?pad= is for windows that are packed; say ?borders=pack, too")
		}
		return nil
	case a.Args["doc"] == "":
		return fmt.Errorf("?borders=%s needs to know where documents end: say ?doc=ID, the id that ends one, or ?doc=idx",
			t.borders)
	case t.borders == bordersPack && a.Args["stride"] != "":
		return errors.New("?stride= is not for windows that are packed: leave it out")
	case t.borders != bordersPack && a.Args["pad"] != "":
		return fmt.Errorf("?pad= is not for ?borders=%s, whose windows have no padding", t.borders)
	case t.n >= 1<<(63-lengthBits):
		return fmt.Errorf("it has %d ids, and %d are the most for ?borders=", t.n, int64(1)<<(63-lengthBits)-1)
	}
	free := uint(8 * t.dtype.Size())
	if t.dtype == record.Int8 || t.dtype == record.Int16 || t.dtype == record.Int32 || t.dtype == record.Int64 {
		free--
	}
	if t.pad = uint64(numberOf(a, "pad", 0)); free < 64 && t.pad>>free != 0 {
		return fmt.Errorf("?pad=%d does not fit ids of %s", t.pad, t.dtype)
	}
	return nil
}

// borderFields are the fields of windows that mind borders.
func borderFields(borders string, d record.DType, each int64) []record.Field {
	switch borders {
	case bordersStop:
		return []record.Field{arrayField(tokensName, d, record.Ragged)}
	case bordersPack:
		return []record.Field{arrayField(tokensName, d, each), arrayField(docName, record.Int32, each),
			arrayField(positionName, record.Int32, each)}
	}
	return []record.Field{arrayField(tokensName, d, each)}
}

// eachDocument calls f with where documents begin and end, in order; those without ids are left out. The id that ends
// a document is its last one.
func (t *tokenFile) eachDocument(ctx context.Context, r io.ReaderAt, f func(begin, end int64) error) error {
	begin := int64(0)
	until := func(end int64) error {
		if end <= begin {
			return nil
		}
		from := begin
		begin = end
		return f(from, end)
	}
	if t.docs != nil {
		for _, at := range t.docs {
			if err := until(at); err != nil {
				return err
			}
		}
		return until(t.n)
	}
	size := t.dtype.Size()
	buf := make([]byte, min(1<<20, t.n*size))
	for from := int64(0); from < t.n; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b := buf[:min(int64(len(buf)), (t.n-from)*size)]
		if err := readFull(within(ctx, r), b, t.at+from*size); err != nil {
			return fmt.Errorf("read its ids from byte %d on: %w", t.at+from*size, err)
		}
		if t.swap {
			swapBytes(b, size)
		}
		for i := int64(0); i < int64(len(b)); i += size {
			if leUint(b[i:i+size]) != t.eos {
				continue
			}
			if err := until(from + i/size + 1); err != nil {
				return err
			}
		}
		from += int64(len(b)) / size
	}
	return until(t.n)
}

// piece is a window in a document: n ids.
type piece struct {
	begin int64
	n     int32
}

// piecesIn calls f for each window in a document. Every id but the first is a target once at least, if the stride is
// not longer than a window; a document of one id has no target, and no window.
func (t *tokenFile) piecesIn(begin, end int64, f func(piece) error) error {
	length := end - begin
	for at := int64(0); at+1 < length && (at == 0 || at-t.slice+t.each < length); at += t.slice {
		n := min(t.each, length-at)
		if n < t.each && t.borders == bordersDrop {
			return nil
		}
		if err := f(piece{begin + at, int32(n)}); err != nil {
			return err
		}
	}
	return nil
}

// eachPiece calls f for each window in all documents, and counts the documents that have none.
func (t *tokenFile) eachPiece(ctx context.Context, r io.ReaderAt, f func(piece) error) (without int, err error) {
	err = t.eachDocument(ctx, r, func(begin, end int64) error {
		n := 0
		err := t.piecesIn(begin, end, func(p piece) error {
			n++
			return f(p)
		})
		if n == 0 {
			without++
		}
		return err
	})
	return without, err
}

// scanPieces emits the windows that stop at documents, or are packed.
func (t *tokenFile) scanPieces(ctx context.Context, f File, emit func(Sample) error) (Found, error) {
	var err error
	without, row := 0, int64(0)
	if t.borders == bordersPack {
		var p *packing
		if p, without, err = t.pack(ctx, f); err == nil {
			dims := [][]int64{{t.each}, {t.each}, {t.each}}
			err = emitRows(ctx, f.Schema, dims, int64(len(p.first)-1), emit)
		}
	} else {
		without, err = t.eachPiece(ctx, f, func(p piece) error {
			if row&1023 == 1023 && ctx.Err() != nil {
				return ctx.Err()
			}
			size, err := f.Schema.Size([][]int64{{int64(p.n)}})
			if err != nil {
				return err
			}
			row++
			return emit(Sample{Key: rowKey(row - 1), Off: p.begin<<lengthBits | int64(p.n), Size: size, Label: -1})
		})
	}
	if err != nil || without == 0 {
		return Found{}, err
	}
	return Found{Skipped: map[string]int{"documents shorter than a window": without}}, nil
}

// packing is which pieces each window holds: those of window k are order[first[k]:first[k+1]], in order of the file.
type packing struct {
	pieces []piece
	order  []uint32
	first  []uint32
}

// pack puts documents together, longer ones in pieces.
func (t *tokenFile) pack(ctx context.Context, r io.ReaderAt) (*packing, int, error) {
	var pieces []piece
	without, err := t.eachPiece(ctx, r, func(p piece) error {
		if len(pieces) >= maxPacked {
			return fmt.Errorf("it has more than %d documents, which are the most for ?borders=pack", maxPacked)
		}
		pieces = append(pieces, p)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	lengths := make([]int32, len(pieces))
	for i := range pieces {
		lengths[i] = pieces[i].n
	}
	order, first := bestFit(lengths, int32(t.each))
	return &packing{pieces, order, first}, without, nil
}

// bestFit packs pieces of some lengths, of 1 to room each, into windows: the longest first, those of one length in
// order, each into the window that has the least room left of those it fits, the one filled last where several have as
// much, or into a new one. It is a function of the lengths alone. Pieces of a window are in order, and windows in the
// order of their first pieces.
func bestFit(lengths []int32, room int32) (order, first []uint32) {
	byLength := make([]uint32, len(lengths))
	for i := range byLength {
		byLength[i] = uint32(i)
	}
	slices.SortStableFunc(byLength, func(a, b uint32) int { return cmp.Compare(lengths[b], lengths[a]) })
	window := make([]uint32, len(lengths)) // of each piece
	open := map[int32][]uint32{}           // windows by the room that they have left
	var rooms levels
	count := uint32(0)
	for _, i := range byLength {
		w, left := count, room
		if r, ok := rooms.next(uint32(lengths[i])); ok {
			left = int32(r)
			same := open[left]
			w = same[len(same)-1]
			if open[left] = same[:len(same)-1]; len(same) == 1 {
				rooms.remove(r)
				delete(open, left)
			}
		} else {
			count++
		}
		window[i] = w
		if left -= lengths[i]; left > 0 {
			open[left] = append(open[left], w)
			rooms.add(uint32(left))
		}
	}
	number := make([]uint32, count) // of windows, in the order of their first pieces; 0 = none yet
	first = make([]uint32, count+1)
	named := uint32(0)
	for i, w := range window {
		if number[w] == 0 {
			named++
			number[w] = named
		}
		window[i] = number[w] - 1
		first[number[w]]++
	}
	for k := range count {
		first[k+1] += first[k]
	}
	at := slices.Clone(first)
	order = make([]uint32, len(lengths))
	for i, w := range window {
		order[at[w]] = uint32(i)
		at[w]++
	}
	return order, first
}

// levels is a set of numbers below 2^30 that finds the next one: bits by words, and on each level above a bit for every
// word that has one.
type levels [5]map[uint32]uint64

func (s *levels) add(x uint32) {
	for i := range s {
		if s[i] == nil {
			s[i] = map[uint32]uint64{}
		}
		s[i][x>>6] |= 1 << (x & 63)
		x >>= 6
	}
}

func (s *levels) remove(x uint32) {
	for i := range s {
		s[i][x>>6] &^= 1 << (x & 63)
		if s[i][x>>6] != 0 {
			return
		}
		delete(s[i], x>>6)
		x >>= 6
	}
}

// next is the least number that is x or more.
func (s *levels) next(x uint32) (uint32, bool) {
	for i := range s {
		if w := s[i][x>>6] &^ (1<<(x&63) - 1); w != 0 {
			x = x&^63 | uint32(bits.TrailingZeros64(w))
			for ; i > 0; i-- {
				x = x<<6 | uint32(bits.TrailingZeros64(s[i-1][x]))
			}
			return x, true
		}
		x = x>>6 + 1
	}
	return 0, false
}

// packKey names the packing of a file: it depends on the documents, too, which may be those of another file.
func (t *tokenFile) packKey(a Address, f File) string {
	h := xxhash.New()
	var b []byte
	for part := range slices.Chunk(t.docs, 4096) {
		b = b[:0]
		for _, at := range part {
			b = binary.LittleEndian.AppendUint64(b, uint64(at))
		}
		_, _ = h.Write(b) // a hash never fails
	}
	return fmt.Sprintf("packs 1 %016x\x00%s", h.Sum64(), f.blockKey(a))
}

// addWindows packs the documents, and adds what each window holds: where its pieces begin, from the piece before on,
// and how many ids each has.
func (r *tokenRows) addWindows(ctx context.Context, w spool.Writer) error {
	p, _, err := r.pack(ctx, r.ReaderAt)
	if err != nil {
		return err
	}
	var b []byte
	for k := range len(p.first) - 1 {
		b = b[:0]
		last := int64(0)
		for _, i := range p.order[p.first[k]:p.first[k+1]] {
			x := &p.pieces[i]
			b = binary.AppendUvarint(b, uint64(x.begin-last))
			b = binary.AppendUvarint(b, uint64(x.n))
			last = x.begin
		}
		if err := w.Add(b); err != nil {
			return err
		}
	}
	return nil
}

// piecesOf are the pieces of a window, as addWindows added them.
func (r *tokenRows) piecesOf(b []byte) ([]piece, error) {
	var out []piece
	begin, all := int64(0), int64(0)
	for len(b) > 0 {
		d, k := binary.Uvarint(b)
		n, m := binary.Uvarint(b[max(k, 0):])
		if k <= 0 || m <= 0 || n > uint64(r.each-all) || d > uint64(r.n) || begin+int64(d) > r.n-int64(n) {
			return nil, errors.New("what is kept of it is no window of this file")
		}
		begin, all, b = begin+int64(d), all+int64(n), b[k+m:]
		out = append(out, piece{begin, int32(n)})
	}
	return out, nil
}

// readPieces reads ids of pieces, as little-endian bytes.
func (r *tokenRows) readPieces(ctx context.Context, to []byte, pieces []piece) error {
	size := r.dtype.Size()
	together, isStore := rangesReader(r.ReaderAt)
	var ranges []Range
	for _, p := range pieces {
		n, at := int64(p.n)*size, r.at+p.begin*size
		if isStore {
			ranges = append(ranges, Range{at, to[:n]})
		} else if err := readFull(within(ctx, r.ReaderAt), to[:n], at); err != nil {
			return fmt.Errorf("ids at byte %d: %w", at, err)
		}
		if r.swap && !isStore {
			swapBytes(to[:n], size)
		}
		to = to[n:]
	}
	if !isStore {
		return nil
	}
	if err := together.ReadRanges(ctx, ranges); err != nil {
		return err
	}
	for _, x := range ranges {
		if r.swap {
			swapBytes(x.Buf, size)
		}
	}
	return nil
}

// stopped appends a window that stops at its document.
func (r *tokenRows) stopped(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	begin, n := s.Off>>lengthBits, s.Off&(1<<lengthBits-1)
	if n < 1 || n > r.each || begin > r.n-n || r.borders == bordersDrop && n != r.each {
		return dst, fmt.Errorf("a window of %d ids from id %d on, and there are %d", n, begin, r.n)
	}
	dims := [][]int64{{n}}
	size, err := r.schema.Size(dims)
	if err != nil {
		return dst, err
	}
	from := len(dst)
	dst = slices.Grow(dst, int(size))[:from+int(size)]
	if err := r.readPieces(ctx, r.schema.Frame(dst[from:], dims)[0], []piece{{begin, int32(n)}}); err != nil {
		return dst[:from], fmt.Errorf("window at id %d: %w", begin, err)
	}
	return dst, nil
}

// packedWindow appends a window of documents. Which it holds is found once, and kept in the spool: a file that is open
// takes no memory for it, and one that is opened again is not read again.
func (r *tokenRows) packedWindow(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	places, err := fromBlock(ctx, r.spool, r.packs, nil, int(s.Off), r.addWindows)
	if err != nil {
		return dst, fmt.Errorf("window %d: %w", s.Off, err)
	}
	pieces, err := r.piecesOf(places)
	if err != nil {
		return dst, fmt.Errorf("window %d: %w", s.Off, err)
	}
	from := len(dst)
	dst = slices.Grow(dst, int(r.size))[:from+int(r.size)]
	values := r.schema.Frame(dst[from:], r.dims)
	if err := r.readPieces(ctx, values[0], pieces); err != nil {
		return dst[:from], fmt.Errorf("window %d: %w", s.Off, err)
	}
	le, size, at := binary.LittleEndian, int(r.dtype.Size()), 0
	for doc, p := range pieces {
		for i := range int(p.n) {
			le.PutUint32(values[1][4*(at+i):], uint32(doc))
			le.PutUint32(values[2][4*(at+i):], uint32(i))
		}
		at += int(p.n)
	}
	var pad [8]byte
	le.PutUint64(pad[:], r.pad)
	for ; at < int(r.each); at++ {
		copy(values[0][at*size:], pad[:size])
		le.PutUint32(values[1][4*at:], ^uint32(0)) // -1: no document
		le.PutUint32(values[2][4*at:], 0)
	}
	return dst, nil
}
