package arrow

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"sort"
)

// encoding is how a column that is dictionary-encoded is stored: its batches have numbers of values.
type encoding struct {
	id     int64
	index  Field // the numbers, which have the column's node and buffers
	values Field // of the batches that hold the values
}

// maxDictionaries bounds the values of all dictionaries of a file, which are in memory while it is open.
const maxDictionaries = 64 << 20

// dictionary are the values that a batch's numbers mean. What comes later in the file makes another one of it.
type dictionary struct {
	parts []*dictionaryPart
	rows  int64
}

// dictionaryPart is a batch of values in memory.
type dictionaryPart struct {
	first int64
	Held
	batch
}

// Held is a part of a file that is in memory: bytes from a place of the file on.
type Held struct {
	From  int64
	Bytes []byte
}

// ReadAt implements io.ReaderAt, with the places of the file.
func (h *Held) ReadAt(p []byte, off int64) (int, error) {
	at := off - h.From
	if at < 0 || at > int64(len(h.Bytes)) {
		return 0, fmt.Errorf("read at byte %d, outside of the part of the file that is in memory", off)
	}
	n := copy(p, h.Bytes[at:])
	if n < len(p) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// Encoded reports whether the column's values are in a dictionary.
func (f *Field) Encoded() bool { return f.dict != nil }

// encode makes a dictionary-encoded column of one that is described by its values and by t.
func (f *Field) encode(t table) error {
	e := &encoding{id: int64(t.num(0, 8, 0)), index: Field{Name: f.Name, Kind: Int, Bits: 32, Signed: true, buffers: 2},
		values: *f}
	if typ, ok := t.child(1); ok {
		e.index.Bits, e.index.Signed = int(typ.num(0, 4, 0)), typ.num(1, 1, 0) != 0
	}
	switch e.index.Bits {
	case 8, 16, 32, 64:
	default:
		return fmt.Errorf("column %q has numbers of %d bits into its dictionary", f.Name, e.index.Bits)
	}
	e.index.node, e.index.buffer = f.node, f.buffer
	e.values.node, e.values.buffer = 0, 0
	f.buffers = e.index.buffers
	switch f.Kind {
	case Other:
	case List, FixedList, Struct:
		f.Kind, f.Word = Other, "dictionary of lists or structs"
	default:
		f.dict = e
	}
	return nil
}

// encoded notes whose dictionary has a number. Columns of the same values may share one.
func (s *Schema) encoded(id int64, f *Field) error {
	if was, ok := s.dicts[id]; ok {
		if (was == nil) != (f.dict == nil) || was != nil && !was.like(f.dict) {
			return fmt.Errorf("column %q shares dictionary %d with a column of another type", f.Name, id)
		}
		return nil
	}
	if s.dicts == nil {
		s.dicts = map[int64]*encoding{}
	}
	s.dicts[id] = f.dict
	return nil
}

// within notes the numbers of dictionaries inside of a dictionary.
func (s *Schema) within(t table, depth int) error {
	at, n := t.list(5, 4)
	if s.walked += n; n > 0 && depth >= maxDepth || s.walked > maxColumns { // fields may share what is inside of them
		return fmt.Errorf("its dictionaries are deeper than %d levels or have more than %d columns", maxDepth, maxColumns)
	}
	for k := range n {
		inner := table{t.f, t.f.jump(at + 4*k)}
		if d, ok := inner.child(4); ok {
			if s.inside == nil {
				s.inside = map[int64]bool{}
			}
			s.inside[int64(d.num(0, 8, 0))] = true
		}
		if err := s.within(inner, depth+1); err != nil {
			return err
		}
	}
	if t.f.bad {
		return errFlat
	}
	return nil
}

// like reports whether batches of values are read alike.
func (e *encoding) like(o *encoding) bool {
	a, b := &e.values, &o.values
	return a.Kind == b.Kind && a.Bits == b.Bits && a.Width == b.Width && a.buffers == b.buffers && a.large == b.large
}

// dictionaryBatch takes a batch of the values of a dictionary, which lie in body.
func (f *File) dictionaryBatch(t table, at int64, body span) error {
	id := int64(t.num(0, 8, 0))
	e, known := f.Schema.dicts[id]
	inner, ok := t.child(1)
	switch {
	case t.f.bad || !ok:
		return errFlat
	case !known && f.Schema.inside[id]:
		return nil
	case !known:
		return fmt.Errorf("dictionary %d belongs to no column", id)
	case e == nil: // of a column that is not read
		return nil
	}
	one := &Schema{Fields: []Field{e.values}, nodes: 1, buffers: e.values.buffers}
	b, err := parseBatch(inner, one, at, body)
	if err != nil {
		return fmt.Errorf("dictionary %d: %w", id, err)
	}
	if f.used {
		f.dicts, f.used = maps.Clone(f.dicts), false
		f.memory += 64 * int64(len(f.dicts))
	}
	if f.dicts == nil {
		f.dicts = map[int64]*dictionary{}
	}
	part := &dictionaryPart{batch: b}
	from, to := b.values(f.size)
	if f.memory += to - from + 256; f.memory > maxDictionaries {
		return fmt.Errorf("its dictionaries have more than %d bytes, which are in memory while it is open: save column %q "+
			"decoded", maxDictionaries, e.index.Name)
	}
	part.Held = Held{from, make([]byte, to-from)}
	if err := readAt(f.r, part.Bytes, from); err != nil {
		return err
	}
	d := &dictionary{}
	if was := f.dicts[id]; was != nil && t.num(2, 1, 0) != 0 { // more values
		*d = *was
	}
	part.first = d.rows
	d.parts = append(d.parts, part) // what was only grows at its end
	d.rows += b.rows
	f.dicts[id] = d
	return nil
}

// encoded reads a row of a dictionary-encoded column.
func (r *reader) encoded(c *Field, row int64) (Value, error) {
	b, _, err := r.numbers(&c.dict.index, row, row+1)
	if err != nil {
		return Value{}, err
	}
	return r.meaning(c, b)
}

// meaning is the value that a number of a dictionary means.
func (r *reader) meaning(c *Field, number []byte) (Value, error) {
	var word [8]byte
	copy(word[:], number)
	n := int64(le.Uint64(word[:]))
	if c.dict.index.Signed {
		shift := 64 - c.dict.index.Bits
		n = n << shift >> shift
	}
	d := r.dicts[c.dict.id]
	if d == nil {
		return Value{}, fmt.Errorf("column %q: its dictionary does not come before its rows", c.Name)
	}
	if n < 0 || n >= d.rows {
		return Value{}, fmt.Errorf("column %q: value %d of a dictionary of %d", c.Name, n, d.rows)
	}
	p := d.parts[sort.Search(len(d.parts), func(i int) bool { return d.parts[i].first > n })-1]
	in := reader{r: &p.Held, batch: &p.batch, most: r.most}
	return in.read(&c.dict.values, n-p.first)
}

// errStrange is the part of an error about columns of types that larder does not read.
var errStrange = errors.New("which larder does not read; save the file without it")
