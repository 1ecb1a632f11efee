package arrow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
)

// File is an Arrow IPC file or stream that was walked. Its methods may be called from any goroutine.
type File struct {
	Schema *Schema
	r      io.ReaderAt
	size   int64
	batch  []batch
	first  []int64 // the number of each batch's first row
	rows   int64

	dicts  map[int64]*dictionary // as of the end of what was walked
	used   bool                  // a batch has dicts
	memory int64                 // about how many bytes dictionaries have
}

// batch is where the buffers of a record batch lie.
type batch struct {
	at, body int64 // of its message, and of its buffers
	rows     int64
	nodes    []fieldNode
	buffers  []span // offsets in the file
	dicts    map[int64]*dictionary
}

type fieldNode struct{ rows, nulls int64 }
type span struct{ at, size int64 }

const (
	magicFile   = "ARROW1\x00\x00"
	magicTail   = "ARROW1"
	maxMessage  = 64 << 20
	maxBatches  = 1 << 24
	maxRows     = 1 << 40
	messageHead = 8
)

// From is the same file, read through another reader of it.
func (f *File) From(r io.ReaderAt) *File {
	other := *f
	other.r = r
	return &other
}

// Reader is what the file is read through.
func (f *File) Reader() io.ReaderAt { return f.r }

// InMemory is about how many bytes are in memory while the file is open: places of buffers, and dictionaries.
func (f *File) InMemory() int64 {
	const perBatch, perSpan = 128, 16
	if f.Schema == nil {
		return f.memory
	}
	return f.memory + int64(len(f.batch))*(perBatch+perSpan*int64(f.Schema.nodes+f.Schema.buffers))
}

// Rows counts the rows of all batches.
func (f *File) Rows() int64 { return f.rows }

// RowBytes is about how many bytes a row of the batch of a row has.
func (f *File) RowBytes(row int64) int64 {
	k, _, err := f.find(row)
	if err != nil || f.batch[k].rows == 0 {
		return 1
	}
	total := int64(0)
	for _, s := range f.batch[k].buffers {
		total += s.size
	}
	return max(total/f.batch[k].rows, 1)
}

// find is the batch of a row, and the row's number in it.
func (f *File) find(row int64) (k int, in int64, err error) {
	if row < 0 || row >= f.rows {
		return 0, 0, fmt.Errorf("row %d of %d", row, f.rows)
	}
	k = sort.Search(len(f.first), func(i int) bool { return f.first[i] > row }) - 1
	return k, row - f.first[k], nil
}

// Batch is where a record batch lies.
type Batch struct {
	First, Rows int64 // the number of its first row in the file, and how many it has
	From, To    int64 // its values, bytes of the file
}

// Batches are the record batches that have rows.
func (f *File) Batches() []Batch {
	var out []Batch
	for i := range f.batch {
		b := &f.batch[i]
		if b.rows == 0 {
			continue
		}
		from, to := b.values(f.size)
		out = append(out, Batch{First: f.first[i], Rows: b.rows, From: from, To: to})
	}
	return out
}

// values is where the buffers of a batch lie in a file of size bytes.
func (b *batch) values(size int64) (from, to int64) {
	from = size
	for _, s := range b.buffers {
		if s.size > 0 {
			from, to = min(from, s.at), max(to, s.at+s.size)
		}
	}
	return min(from, to), to
}

// Open walks the messages of a file of size bytes.
func Open(ctx context.Context, r io.ReaderAt, size int64) (*File, error) {
	f := &File{r: r, size: size}
	at, stream := int64(0), true
	head := make([]byte, min(size, 8))
	if err := readAt(r, head, 0); err != nil {
		return nil, err
	}
	if string(head) == magicFile {
		at, stream = int64(len(magicFile)), false
		tail := make([]byte, len(magicTail))
		if err := readAt(r, tail, max(size-int64(len(tail)), 0)); err != nil {
			return nil, err
		}
		if string(tail) != magicTail {
			return nil, errors.New("it begins as an Arrow file and does not end as one: it is cut")
		}
	}
	for n := 0; ; n++ {
		if n&63 == 63 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		next, end, err := f.message(at)
		if err != nil {
			return nil, fmt.Errorf("message %d, at byte %d: %w", n, at, err)
		}
		if end && stream && next < size {
			return nil, fmt.Errorf("its stream ends at byte %d of %d, and readers of Arrow leave the rest out: several streams "+
				"joined in one file are files of their own", next, size)
		}
		if end {
			break
		}
		at = next
	}
	if f.Schema == nil {
		return nil, errors.New("it has no schema")
	}
	return f, nil
}

func readAt(r io.ReaderAt, b []byte, off int64) error {
	if n, err := r.ReadAt(b, off); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read %d bytes at %d: %w", len(b), off, err)
	}
	return nil
}

// message reads the message at an offset, and returns where the next one begins. end says that there is none.
func (f *File) message(at int64) (next int64, end bool, err error) {
	var head [messageHead]byte
	if at+4 > f.size {
		return 0, false, errors.New("it is cut: the mark of its end is missing")
	}
	if err := readAt(f.r, head[:min(f.size-at, messageHead)], at); err != nil {
		return 0, false, err
	}
	n, from := int64(int32(le.Uint32(head[:]))), at+4
	if n == -1 { // before version 0.15 the length came first
		if at+messageHead > f.size {
			return 0, false, errors.New("it is cut: the mark of its end is missing")
		}
		n, from = int64(int32(le.Uint32(head[4:]))), at+8
	}
	if n == 0 {
		return from, true, nil
	}
	if n < 8 || n > maxMessage || n > f.size-from {
		return 0, false, fmt.Errorf("it says %d bytes of metadata", n)
	}
	meta := &flat{b: make([]byte, n)}
	if err := readAt(f.r, meta.b, from); err != nil {
		return 0, false, err
	}
	root := meta.root()
	kind, body := root.num(1, 1, 0), int64(root.num(3, 8, 0))
	inner, ok := root.child(2)
	switch {
	case meta.bad || !ok:
		return 0, false, errFlat
	case body < 0 || body > f.size-from-n:
		return 0, false, fmt.Errorf("it says %d bytes of values, and %d are left: it is cut", body, f.size-from-n)
	case kind == 1 && f.Schema == nil:
		if f.Schema, err = parseSchema(inner); err == nil {
			err = f.Schema.strange
		}
	case kind == 2 && f.Schema != nil:
		err = f.dictionaryBatch(inner, at, span{from + n, body})
	case kind == 3 && f.Schema != nil:
		err = f.record(inner, at, span{from + n, body})
	default:
		err = fmt.Errorf("it is of kind %d, which does not belong here", kind)
	}
	return from + n + body, false, err
}

// record takes a record batch whose values lie in body.
func (f *File) record(t table, at int64, body span) error {
	b, err := parseBatch(t, f.Schema, at, body)
	if err != nil {
		return err
	}
	if f.rows > maxRows || len(f.batch) >= maxBatches {
		return fmt.Errorf("it has %d rows behind %d", b.rows, f.rows)
	}
	b.dicts, f.used = f.dicts, true
	f.batch = append(f.batch, b)
	f.first = append(f.first, f.rows)
	f.rows += b.rows
	return nil
}

// parseBatch reads a batch of rows of a schema, whose values lie in body.
func parseBatch(t table, s *Schema, at int64, body span) (batch, error) {
	b := batch{at: at, body: body.at, rows: int64(t.num(0, 8, 0))}
	nodes, n := t.list(1, 16)
	buffers, m := t.list(2, 16)
	if _, ok := t.child(3); ok {
		return b, errors.New("its values are compressed; save it without compression")
	}
	switch {
	case t.f.bad:
		return b, errFlat
	case n != s.nodes || m != s.buffers:
		return b, fmt.Errorf("it has %d columns and %d buffers, and its schema %d and %d", n, m, s.nodes, s.buffers)
	case b.rows < 0 || b.rows > maxRows:
		return b, fmt.Errorf("it says %d rows", b.rows)
	}
	for i := range n {
		x := fieldNode{int64(t.f.u(nodes+16*i, 8)), int64(t.f.u(nodes+16*i+8, 8))}
		if x.rows < 0 || x.rows > maxRows || x.nulls < 0 || x.nulls > x.rows {
			return b, fmt.Errorf("column %d has %d values and %d nulls", i, x.rows, x.nulls)
		}
		b.nodes = append(b.nodes, x)
	}
	for i := range m {
		x := span{int64(t.f.u(buffers+16*i, 8)), int64(t.f.u(buffers+16*i+8, 8))}
		if x.at < 0 || x.size < 0 || x.at > body.size || x.size > body.size-x.at {
			return b, fmt.Errorf("buffer %d has %d bytes at %d of %d", i, x.size, x.at, body.size)
		}
		x.at += body.at
		b.buffers = append(b.buffers, x)
	}
	for i := range s.Fields {
		if got := b.nodes[s.Fields[i].node].rows; got != b.rows {
			return b, fmt.Errorf("column %q has %d values for %d rows", s.Fields[i].Name, got, b.rows)
		}
	}
	err := b.checkRows(s)
	return b, err
}

// maxBare is how many rows a batch may have whose columns hold no bytes.
const maxBare = 1 << 20

// checkRows compares the rows that a batch says it has with its buffers: nothing else bounds them.
func (b *batch) checkRows(s *Schema) error {
	bounded := b.rows <= maxBare
	for i := range s.Fields {
		is, err := b.holds(&s.Fields[i])
		if err != nil {
			return err
		}
		bounded = bounded || is
	}
	if !bounded {
		return fmt.Errorf("it has %d rows, and none of its columns holds a byte of them", b.rows)
	}
	return nil
}

// holds checks that the buffers of a column hold its values, and reports whether their number is bounded so.
func (b *batch) holds(c *Field) (bool, error) {
	rows, width := b.nodes[c.node].rows, int64(0) // bits of a value in its buffer
	size := func(k int) int64 { return b.buffers[c.buffer+k].size }
	if c.dict != nil {
		c = &c.dict.index
	}
	switch c.Kind {
	case Bool:
		width = 1
	case Int, Float, Decimal:
		width = int64(c.Bits)
	case Text, Binary, List:
		if width = 32; c.large {
			width = 64
		}
		if c.Kind == Binary && c.Width > 0 {
			width = 8 * int64(c.Width)
		}
	case FixedList:
		if c.Width == 0 {
			return false, nil
		}
		if got := b.nodes[c.Inner[0].node].rows; got/int64(c.Width) < rows {
			return false, fmt.Errorf("column %q has %d elements for %d lists of %d", c.Name, got, rows, c.Width)
		}
		return b.holds(&c.Inner[0])
	case Struct:
		bounded := false
		for i := range c.Inner {
			if got := b.nodes[c.Inner[i].node].rows; got < rows {
				return false, fmt.Errorf("column %q has %d values for %d rows", c.Name+"."+c.Inner[i].Name, got, rows)
			}
			is, err := b.holds(&c.Inner[i])
			if err != nil {
				return false, err
			}
			bounded = bounded || is
		}
		return bounded, nil
	default:
		return false, nil
	}
	if size(1)/width*8+size(1)%width*8/width >= rows || b.nodes[c.node].nulls == rows && size(0) >= (rows+7)/8 {
		return true, nil
	}
	return false, fmt.Errorf("column %q has %d values in %d bytes: it is cut, or says more than it has", c.Name, rows,
		size(1))
}

// Value is what a row has in a column.
type Value struct {
	Null bool
	Dims []int64 // of lists, from the outermost
	Data []byte  // little-endian; bools are bytes
}

// Read reads one row of a column: Bool, Int, Float, Decimal, Text, Binary, lists of numbers, and lists of text, which
// are JSON. most bounds the bytes of it.
func (f *File) Read(c *Field, row, most int64) (Value, error) {
	k, in, err := f.find(row)
	if err != nil {
		return Value{}, err
	}
	r := reader{r: f.r, batch: &f.batch[k], most: most}
	return r.read(c, in)
}

// reader reads values of a batch.
type reader struct {
	r io.ReaderAt
	*batch
	most int64
	used int64 // of that, by the lists of text that are being made
}

// part reads n bytes at an offset of a buffer.
func (r *reader) part(c *Field, buffer int, off, n int64) ([]byte, error) {
	s := r.buffers[c.buffer+buffer]
	if off < 0 || n < 0 || off > s.size || n > s.size-off {
		return nil, fmt.Errorf("column %q: %d bytes at %d of a buffer of %d", c.Name, n, off, s.size)
	}
	if n > r.most {
		return nil, fmt.Errorf("column %q: a value of %d bytes, and %d are the most", c.Name, n, r.most)
	}
	b := make([]byte, n)
	return b, readAt(r.r, b, s.at+off)
}

// bits reads the bits [from, to) of a buffer as bytes of 0 and 1.
func (r *reader) bits(c *Field, buffer int, from, to int64) ([]byte, error) {
	if to <= from {
		return nil, nil
	}
	b, err := r.part(c, buffer, from/8, (to+7)/8-from/8)
	if err != nil {
		return nil, err
	}
	if to-from > r.most {
		return nil, fmt.Errorf("column %q: a value of %d bytes, and %d are the most", c.Name, to-from, r.most)
	}
	out := make([]byte, to-from)
	for i := range out {
		bit := from%8 + int64(i)
		out[i] = b[bit/8] >> (bit % 8) & 1
	}
	return out, nil
}

// valid reports whether no value of a range is null, and whether all are.
func (r *reader) valid(c *Field, from, to int64) (ok bool, err error) {
	if r.nodes[c.node].nulls == 0 || r.buffers[c.buffer].size == 0 || to <= from {
		return true, nil
	}
	b, err := r.bits(c, 0, from, to)
	return !slices.Contains(b, 0), err
}

func (r *reader) read(c *Field, row int64) (Value, error) {
	if ok, err := r.valid(c, row, row+1); err != nil || !ok {
		return Value{Null: !ok}, err
	}
	if c.dict != nil {
		return r.encoded(c, row)
	}
	switch c.Kind { //nolint:exhaustive // the others are numbers
	case Decimal:
		return r.decimal(c, row)
	case Text, Binary:
		if c.Width > 0 {
			b, err := r.part(c, 1, row*int64(c.Width), int64(c.Width))
			return Value{Data: b}, err
		}
		from, to, err := r.offsets(c, row)
		if err != nil {
			return Value{}, err
		}
		b, err := r.part(c, 2, from, to-from)
		return Value{Data: b}, err
	case List, FixedList:
		if c.OfTexts() {
			all, err := r.texts(c, row, row+1)
			if err != nil {
				return Value{}, err
			}
			return Value{Data: all[0]}, nil
		}
		return r.list(c, row)
	}
	b, _, err := r.numbers(c, row, row+1)
	return Value{Data: b}, err
}

// offsets are the bounds of a row of text, binary or a list.
func (r *reader) offsets(c *Field, row int64) (from, to int64, err error) {
	all, err := r.bounds(c, row, row+1)
	if err != nil {
		return 0, 0, err
	}
	return all[0], all[1], nil
}

// bounds are the offsets of rows [from, to], to included.
func (r *reader) bounds(c *Field, from, to int64) ([]int64, error) {
	size := int64(4)
	if c.large {
		size = 8
	}
	if to-from > maxRows {
		return nil, fmt.Errorf("column %q: %d values", c.Name, to-from)
	}
	if from == to && r.buffers[c.buffer+1].size == 0 { // columns of no rows need no offsets
		return []int64{0}, nil
	}
	b, err := r.part(c, 1, from*size, (to-from+1)*size)
	if err != nil {
		return nil, err
	}
	out := make([]int64, to-from+1)
	for i := range out {
		if c.large {
			out[i] = int64(le.Uint64(b[8*i:]))
		} else {
			out[i] = int64(int32(le.Uint32(b[4*i:])))
		}
		if out[i] < 0 || i > 0 && out[i] < out[i-1] {
			return nil, fmt.Errorf("column %q: its offsets fall", c.Name)
		}
	}
	return out, nil
}

// list reads a list of numbers, or of lists of equal lengths.
func (r *reader) list(c *Field, row int64) (Value, error) {
	from, to := row, row+1
	var v Value
	for c.Kind == List || c.Kind == FixedList {
		n := int64(c.Width)
		switch {
		case c.Kind == List:
			all, err := r.bounds(c, from, to)
			if err != nil {
				return v, err
			}
			if n = 0; len(all) > 1 {
				n = all[1] - all[0]
			}
			for i := 2; i < len(all); i++ {
				if all[i]-all[i-1] != n {
					return v, fmt.Errorf("column %q: lists in one value have %d and %d elements, so it is no array", c.Name, n,
						all[i]-all[i-1])
				}
			}
			from, to = all[0], all[len(all)-1]
		case n > 0 && to > maxRows/n:
			return v, fmt.Errorf("column %q: %d lists of %d", c.Name, to, n)
		default:
			from, to = from*n, to*n
		}
		v.Dims = append(v.Dims, n)
		c = &c.Inner[0]
		ok, err := r.valid(c, from, to)
		if err != nil {
			return v, err
		}
		if !ok {
			return v, fmt.Errorf("column %q has a null inside a list", c.Name)
		}
	}
	var err error
	v.Data, _, err = r.numbers(c, from, to)
	return v, err
}

// numbers reads the values [from, to) of a column of a fixed width; size is the bytes of one.
func (r *reader) numbers(c *Field, from, to int64) (b []byte, size int64, err error) {
	switch c.Kind { //nolint:exhaustive // the others hold no numbers
	case Bool:
		b, err = r.bits(c, 1, from, to)
		return b, 1, err
	case Int, Float:
		size = int64(c.Bits / 8)
		if to > maxRows {
			return nil, size, fmt.Errorf("column %q: value %d", c.Name, to)
		}
		b, err = r.part(c, 1, from*size, (to-from)*size)
		return b, size, err
	}
	return nil, 0, fmt.Errorf("column %q holds no numbers", c.Name)
}

// Null reports whether a row of a column is null.
func (f *File) Null(c *Field, row int64) (bool, error) {
	k, in, err := f.find(row)
	if err != nil {
		return false, err
	}
	r := reader{r: f.r, batch: &f.batch[k], most: 1}
	ok, err := r.valid(c, in, in+1)
	return !ok, err
}
