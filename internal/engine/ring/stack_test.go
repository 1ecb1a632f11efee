package ring

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"larder/internal/coordinator"
	"larder/internal/record"
	"larder/internal/xrand"
)

const (
	stackRows  = 6
	stackSlots = 3
)

// drawDense makes a schema of up to five dense fields, of sizes down to nothing.
func drawDense(r *xrand.Rand) *record.Schema {
	s := &record.Schema{}
	for i := range r.IntN(6) {
		f := record.Field{Name: fmt.Sprint(i), Kind: record.Scalar, DType: record.DType(1 + r.IntN(13))}
		if r.IntN(3) > 0 {
			f.Kind, f.Shape = record.Array, make([]int64, r.IntN(4))
			for k := range f.Shape {
				f.Shape[k] = int64(r.IntN(6))
			}
		}
		s.Fields = append(s.Fields, f)
	}
	return s
}

// drawForm makes n records of one form that fit a schema: what may differ in size is as large in all of them.
func drawForm(t testing.TB, r *xrand.Rand, s *record.Schema, n int) (views []record.View, values [][][]byte) {
	t.Helper()
	shapes := make([][]int64, len(s.Fields))
	for i := range s.Fields {
		for _, d := range s.Fields[i].Shape {
			if d == record.Ragged {
				d = int64(r.IntN(20))
			}
			shapes[i] = append(shapes[i], d)
		}
	}
	for range n {
		var row []record.Content
		var bytes [][]byte
		for i := range s.Fields {
			size := s.Fields[i].DType.Size()
			for _, d := range shapes[i] {
				size *= d
			}
			data := make([]byte, size)
			for k := range data {
				if data[k] = byte(r.IntN(256)); s.Fields[i].DType == record.Bool {
					data[k] &= 1
				}
			}
			row, bytes = append(row, record.Content{Dims: shapes[i], Data: data}), append(bytes, data)
		}
		blob, err := record.Encode(s, row)
		if err != nil {
			t.Fatal(err)
		}
		v, err := record.Open(blob)
		if err != nil {
			t.Fatal(err)
		}
		views, values = append(views, v), append(values, bytes)
	}
	return views, values
}

// stackIn puts a stack of records somewhere into the memory of a worker, and opens it there.
func stackIn(t testing.TB, mem []byte, at int, views []record.View) *record.Stack {
	t.Helper()
	b, err := record.AppendStack(mem[:at], views)
	if err != nil {
		t.Fatal(err)
	}
	if &b[0] != &mem[0] {
		t.Fatal("the memory is too small")
	}
	st, err := record.OpenStack(b[at:], len(views))
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// recordRing is a ring of records whose slots hold something already.
func recordRing(t testing.TB, s *record.Schema) *Ring {
	t.Helper()
	r, err := New(Config{Key: Key{Job: 1, Inc: 1}, Name: "a", Layout: NewRecordLayout(s, stackRows, stackSlots, 100),
		Sink: newSink(), Budget: fixedBudget(64 << 20), Failed: func(Key, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Release)
	for i := range r.seg.Bytes() {
		r.seg.Bytes()[i] = 0xa5
	}
	return r
}

// someRows is n rows of a ring, none of them twice.
func someRows(r *xrand.Rand, n int) (out []*coordinator.Fill) {
	for len(out) < n {
		x := &coordinator.Fill{Delivery: 1, Slot: r.IntN(stackSlots), Row: r.IntN(stackRows)}
		if !slices.ContainsFunc(out, func(o *coordinator.Fill) bool { return o.Slot == x.Slot && o.Row == x.Row }) {
			out = append(out, x)
		}
	}
	return out
}

// A sample of a stack leaves in a ring what its record leaves that is put alone: the bytes of its values, at their
// places, and nothing beside them. Goroutines put the samples of one stack at once, and the stack is overwritten
// afterwards: what was put does not depend on it any more.
func TestStackRowsAreThoseOfRecords(t *testing.T) {
	empty := 0
	for seed := range uint64(400) {
		r := xrand.New(seed, 3)
		s, n := drawDense(r), 1+r.IntN(stackRows*stackSlots)
		views, values := drawForm(t, r, s, n)
		mem := make([]byte, 1<<18)
		st := stackIn(t, mem, 64*r.IntN(8), views)
		twin, ring, rows := recordRing(t, s), recordRing(t, s), someRows(r, n)
		var wg sync.WaitGroup
		for i, x := range rows {
			if err := twin.PutRecord(x, views[i]); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				if err := ring.PutStack(x, st, i); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i := range mem {
			mem[i] = 0xee
		}
		if !bytes.Equal(ring.seg.Bytes(), twin.seg.Bytes()) {
			t.Fatalf("seed %d: %d samples of %v are other bytes than their records", seed, n, s)
		}
		for i, x := range rows {
			for k, f := range ring.Fields[:len(s.Fields)] {
				at := int64(x.Slot)*ring.SlotBytes + int64(f.GetOffset()+uint64(x.Row)*f.GetSampleBytes())
				if got := ring.seg.Bytes()[at:][:len(values[i][k])]; !bytes.Equal(got, values[i][k]) {
					t.Fatalf("seed %d: field %d of sample %d is %x, want %x", seed, k, i, got, values[i][k])
				}
				if len(values[i][k]) == 0 {
					empty++
				}
			}
		}
	}
	if empty < 100 {
		t.Errorf("%d values had no bytes: the test says little", empty)
	}
}

// unlike is a schema that differs from s in one field, or in their number.
func unlike(r *xrand.Rand, s *record.Schema) *record.Schema {
	o := &record.Schema{Fields: slices.Clone(s.Fields)}
	k := r.IntN(len(o.Fields))
	f := &o.Fields[k]
	switch r.IntN(5) {
	case 0:
		f.DType = f.DType%13 + 1
	case 1:
		f.Kind, f.Shape = record.Array, append(slices.Clone(f.Shape), 1)
	case 2:
		if f.Kind == record.Array && len(f.Shape) == 0 {
			f.Kind = record.Scalar
			break
		}
		f.Kind = record.Array
		if f.Shape = slices.Clone(f.Shape); len(f.Shape) > 0 {
			f.Shape[len(f.Shape)-1]++
		}
	case 3:
		o.Fields = slices.Delete(o.Fields, k, k+1)
	case 4:
		o.Fields = append(o.Fields, record.Field{Name: "more", Kind: record.Scalar, DType: record.Int8})
	}
	return o
}

// A stack of another form than the ring's is refused for each of its samples, whichever field differs, and not a byte
// of any row changes: rows that were written before stay.
func TestStackOfAnotherForm(t *testing.T) {
	for seed := range uint64(400) {
		r := xrand.New(seed, 5)
		s := drawDense(r)
		if len(s.Fields) == 0 {
			continue
		}
		o, n := unlike(r, s), 1+r.IntN(4)
		ring, mem := recordRing(t, s), make([]byte, 1<<18)
		good, _ := drawForm(t, r, s, n)
		bad, _ := drawForm(t, r, o, n)
		fits, differs := stackIn(t, mem, 0, good), stackIn(t, mem, 1<<17, bad)
		x := &coordinator.Fill{Delivery: 1, Slot: 1, Row: 2}
		if err := ring.PutStack(x, fits, n-1); err != nil {
			t.Fatal(err)
		}
		before := bytes.Clone(ring.seg.Bytes())
		for i := range n {
			err, alone := ring.PutStack(x, differs, i), ring.PutRecord(x, bad[i])
			if err == nil || alone == nil || err.Error() != alone.Error() {
				t.Fatalf("seed %d: %v in a ring of %v: %v; alone: %v", seed, o, s, err, alone)
			}
		}
		if !bytes.Equal(before, ring.seg.Bytes()) {
			t.Fatalf("seed %d: what is refused is written: %v in a ring of %v", seed, o, s)
		}
	}
}

// A ring with ragged fields takes no samples of stacks, whose rows would have no entries, but their records: these give
// the batches that records give which came alone.
func TestStacksAndRaggedRings(t *testing.T) {
	for seed := range uint64(60) {
		r := xrand.New(seed, 7)
		s := drawDense(r)
		s.Fields = append(s.Fields, record.Field{Name: "ragged", Kind: record.Array, DType: record.Int16,
			Shape: []int64{record.Ragged, 3}})
		views, _ := drawForm(t, r, s, stackRows)
		mem := make([]byte, 1<<18)
		st := stackIn(t, mem, 64, views)
		var got [2]*reader
		for i := range got {
			c := &reader{sink: newSink(), segs: map[uint32][]byte{}}
			cfg := config(t, true, c.sink, fixedBudget(64<<20))
			cfg.Sink, cfg.Layout = c, NewRecordLayout(s, stackRows, stackSlots, 10)
			ring, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			set := NewSet(func(Key) {})
			set.Add(ring)
			c.ring, c.segs[0], got[i] = ring, ring.seg.Bytes(), c
			rows := make([]int, stackRows)
			for row := range rows {
				x := &coordinator.Fill{Delivery: 1, Row: row}
				v := views[row]
				if i == 1 {
					before := bytes.Clone(ring.seg.Bytes())
					if err := ring.PutStack(x, st, row); err == nil || !strings.Contains(err.Error(), "ragged") ||
						!bytes.Equal(before, ring.seg.Bytes()) {
						t.Fatalf("a ragged ring takes a sample of a stack: %v", err)
					}
					blob := bytes.Repeat([]byte{0xff}, int(st.Size()))
					st.Record(blob, row)
					if v, err = record.Open(blob); err != nil {
						t.Fatal(err)
					}
				}
				if err := ring.PutRecord(x, v); err != nil {
					t.Fatal(err)
				}
				ring.Put(0, row, 0, int64(row))
				rows[row] = row
			}
			ring.Push(coordinator.Deliver{Delivery: 1, Rows: rows})
			c.wait(t, 1)
			set.Stop(func(string) error { return nil })
			set.Wait()
			ring.Release()
		}
		for row := range stackRows {
			for k := range s.Fields {
				x, y := got[0].got[0][row][k], got[1].got[0][row][k]
				if !bytes.Equal(x.Data, y.Data) || !slices.Equal(x.Dims, y.Dims) {
					t.Fatalf("seed %d: field %d of row %d: %v, want %v", seed, k, row, y, x)
				}
			}
		}
	}
}

// formOf is the schema that a stack fits.
func formOf(st *record.Stack) *record.Schema {
	s := &record.Schema{}
	for i, v := range st.All(0) {
		s.Fields = append(s.Fields, record.Field{Name: fmt.Sprint(i), Kind: v.Kind, DType: v.DType, Shape: v.Dims()})
	}
	return s
}

// Whatever a worker writes: a stack that can be opened puts into a ring what its records put there one by one, and is
// refused where they are.
func FuzzPutStack(f *testing.F) {
	r := xrand.New(11)
	for i := range 24 {
		s, n := drawDense(r), 1+r.IntN(8)
		views, _ := drawForm(f, r, s, n)
		b, err := record.AppendStack(nil, views)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint8(n), uint64(i))
	}
	f.Fuzz(func(t *testing.T, blob []byte, n uint8, seed uint64) {
		n = 1 + (n-1)%(stackRows*stackSlots)
		st, err := record.OpenStack(blob, int(n))
		if err != nil || st.Size() > 1<<14 {
			return
		}
		r := xrand.New(seed, 13)
		s := formOf(st)
		if s.Check() != nil { // no dataset has it
			return
		}
		if len(s.Fields) > 0 && r.IntN(4) == 0 {
			s = unlike(r, s)
		}
		twin, ring := recordRing(t, s), recordRing(t, s)
		dst := make([]byte, st.Size())
		for i, x := range someRows(r, int(n)) {
			st.Record(dst, i)
			v, err := record.Open(dst)
			if err != nil {
				t.Fatal(err)
			}
			alone, stacked := twin.PutRecord(x, v), ring.PutStack(x, st, i)
			if (alone == nil) != (stacked == nil) {
				t.Fatalf("sample %d of %d in a ring of %v: %v; alone: %v", i, n, s, stacked, alone)
			}
		}
		if !bytes.Equal(ring.seg.Bytes(), twin.seg.Bytes()) {
			t.Fatalf("%d samples of %v are other bytes than their records", n, s)
		}
	})
}
