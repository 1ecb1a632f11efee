package ring

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"

	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/record"
	"larder/internal/session"
	"larder/internal/xrand"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// drawSchema makes a schema of up to five fields.
func drawSchema(r *xrand.Rand) *record.Schema {
	s := &record.Schema{}
	for i := range r.IntN(6) {
		f := record.Field{Name: fmt.Sprint(i), Kind: record.Kind(1 + r.IntN(4)), DType: record.DType(2 + r.IntN(12))}
		switch f.Kind {
		case record.Bytes, record.Text:
			f.DType, f.Shape = record.Uint8, []int64{record.Ragged}
		case record.Array:
			for range r.IntN(4) {
				f.Shape = append(f.Shape, []int64{record.Ragged, int64(r.IntN(5))}[r.IntN(2)])
			}
		case record.Scalar:
		}
		s.Fields = append(s.Fields, f)
	}
	return s
}

// drawRecord makes values that fit a schema.
func drawRecord(t *testing.T, r *xrand.Rand, s *record.Schema) ([]record.Content, record.View) {
	var values []record.Content
	for i := range s.Fields {
		f := &s.Fields[i]
		c, n := record.Content{}, f.DType.Size()
		for _, d := range f.Shape {
			if d == record.Ragged {
				d = int64(r.IntN(40))
			}
			c.Dims = append(c.Dims, d)
			n *= d
		}
		c.Data = make([]byte, n)
		for k := range c.Data {
			c.Data[k] = byte(1 + r.IntN(127))
		}
		values = append(values, c)
	}
	blob, err := record.Encode(s, values)
	if err != nil {
		t.Fatal(err)
	}
	v, err := record.Open(blob)
	if err != nil {
		t.Fatal(err)
	}
	return values, v
}

// reader reads batches as docs/protocol.md says, from what a session hears alone.
type reader struct {
	*sink
	ring *Ring
	segs map[uint32][]byte
	got  [][][]record.Content // by batch, row, field
	ids  [][]int64
}

func (c *reader) Batch(b session.Batch) {
	if b.NewSegment != nil {
		c.segs[b.Segment] = b.NewSegment.Bytes()
	}
	slot := c.segs[b.Segment][b.Offset:]
	u64 := func(at uint64) uint64 { return binary.LittleEndian.Uint64(slot[at:]) }
	rows, ids := make([][]record.Content, b.Rows), make([]int64, b.Rows)
	for i := range rows {
		for _, f := range c.ring.Fields {
			if f.GetName() == "index" {
				ids[i] = int64(u64(f.GetOffset() + uint64(i)*8))
				continue
			}
			var x record.Content
			at, n := f.GetOffset()+uint64(i)*f.GetSampleBytes(), f.GetSampleBytes()
			for _, d := range f.GetShape() {
				x.Dims = append(x.Dims, int64(d))
			}
			if f.GetRagged() {
				e := f.GetOffset() + uint64(i)*(16+8*uint64(f.GetDims()))
				at, n = u64(e), u64(e+8)
				for k := range uint64(f.GetDims()) {
					x.Dims = append(x.Dims, int64(u64(e+16+8*k)))
				}
				if at%64 != 0 {
					panic("values are not aligned")
				}
			}
			x.Data = bytes.Clone(slot[at : at+n])
			rows[i] = append(rows[i], x)
		}
	}
	c.got, c.ids = append(c.got, rows), append(c.ids, ids)
	c.sink.Batch(b)
}

// What a client reads is what was put, for any schema: dense and ragged fields, rows put by several workers at once,
// rows that failed, slots used again, batches that fit their slot and batches that do not.
func TestRecordsReachTheClient(t *testing.T) {
	moved, boards := 0, 0
	for seed := range uint64(60) {
		r := xrand.New(seed)
		s := drawSchema(r)
		b := fixedBudget(64 << 20)
		c := &reader{sink: newSink(), segs: map[uint32][]byte{}}
		cfg := config(t, true, c.sink, b)
		cfg.Sink, cfg.Layout = c, NewRecordLayout(s, 5, 2, int64(r.IntN(2000)))
		ring, err := New(cfg)
		set := NewSet(func(Key) {})
		if err != nil {
			t.Fatal(err)
		}
		c.ring, c.segs[0] = ring, ring.seg.Bytes()
		if !ring.Records() || !set.Add(ring) {
			t.Fatal("it is no ring of records")
		}
		if ring.Board != 0 {
			boards++
		}
		var want [][][]record.Content
		for d := range 8 {
			rows := fillRecords(t, r, ring, s, d)
			kept := make([]int, 0, 5)
			var batch [][]record.Content
			for i := range 5 {
				if r.IntN(5) > 0 {
					kept, batch = append(kept, i), append(batch, rows[i])
				}
			}
			want = append(want, batch)
			ring.Push(coordinator.Deliver{Delivery: coordinator.DeliveryID(d + 1), Step: d, Slot: d % 2, Rows: kept,
				Bad: make([]jobs.Bad, 5-len(kept))})
			c.wait(t, 1)
			for i, row := range kept {
				if c.ids[d][i] != int64(d*10+row) {
					t.Fatalf("seed %d, batch %d: ids %v, want %v", seed, d, c.ids[d], kept)
				}
			}
		}
		for d := range want {
			if !slices.EqualFunc(c.got[d], want[d], func(a, b []record.Content) bool {
				return slices.EqualFunc(a, b, func(x, y record.Content) bool {
					return bytes.Equal(x.Data, y.Data) && slices.Equal(x.Dims, y.Dims)
				})
			}) {
				t.Fatalf("seed %d, %v: batch %d\n%v\nwant\n%v", seed, s, d, c.got[d], want[d])
			}
		}
		moved += len(c.segs) - 1
		set.Stop(func(string) error { return nil })
		set.Wait()
		ring.Release()
		if b.Used() != 0 {
			t.Fatalf("seed %d: %d bytes are still used", seed, b.Used())
		}
	}
	if moved == 0 || boards == 0 {
		t.Errorf("%d batches moved to segments, %d rings have a board: the test says little", moved, boards)
	}
}

// fillRecords fills the rows of a batch by as many goroutines, one of them twice.
func fillRecords(t *testing.T, r *xrand.Rand, ring *Ring, s *record.Schema, d int) [][]record.Content {
	rows := make([][]record.Content, 5)
	var wg sync.WaitGroup
	again := r.IntN(5)
	for row := range rows {
		_, first := drawRecord(t, r, s)
		values, v := drawRecord(t, r, s)
		rows[row] = values
		wg.Go(func() {
			x := &coordinator.Fill{Delivery: coordinator.DeliveryID(d + 1), Slot: d % 2, Row: row}
			if row == again {
				if err := ring.PutRecord(x, first); err != nil {
					t.Error(err)
				}
			}
			if err := ring.PutRecord(x, v); err != nil {
				t.Error(err)
			}
			ring.Put(d%2, row, 99, int64(d*10+row))
		})
	}
	wg.Wait()
	return rows
}

// A record of another schema is refused, and a budget that is used up ends the attachment.
func TestRecordsThatDoNotFit(t *testing.T) {
	s := &record.Schema{Fields: []record.Field{{Name: "a", Kind: record.Scalar, DType: record.Int64},
		{Name: "b", Kind: record.Bytes, DType: record.Uint8, Shape: []int64{record.Ragged}}}}
	encode := func(fields []record.Field, values ...record.Content) record.View {
		blob, err := record.Encode(&record.Schema{Fields: fields}, values)
		if err != nil {
			t.Fatal(err)
		}
		v, err := record.Open(blob)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	number := record.Content{Data: make([]byte, 8)}
	failed := make(chan error, 1)
	cfg := config(t, true, newSink(), fixedBudget(64<<10))
	cfg.Layout, cfg.Failed = NewRecordLayout(s, 4, 3, 100), func(_ Key, err error) { failed <- err }
	ring, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	x := &coordinator.Fill{Delivery: 1}
	for _, v := range []record.View{
		encode(s.Fields[:1], number),
		encode([]record.Field{s.Fields[1], s.Fields[1]}, record.Content{}, record.Content{}),
		encode([]record.Field{{Name: "a", Kind: record.Scalar, DType: record.Float64}, s.Fields[1]}, number,
			record.Content{}),
		encode([]record.Field{s.Fields[0], {Name: "b", Kind: record.Array, DType: record.Uint8, Shape: []int64{1, 1}}},
			number, record.Content{Dims: []int64{1, 1}, Data: []byte{1}}),
	} {
		if err := ring.PutRecord(x, v); err == nil {
			t.Errorf("a record of %d fields is taken", v.Len())
		}
	}
	if err := ring.PutRecord(x, encode(s.Fields, number, record.Content{Data: make([]byte, 100<<10)})); err != nil {
		t.Error(err)
	}
	if err := <-failed; !errs.Is(err, errs.RingMemory) {
		t.Error(err)
	}
	ring.Release()
}

// The field table says what docs/protocol.md says.
func TestRecordLayout(t *testing.T) {
	s := &record.Schema{Fields: []record.Field{
		{Name: "image", Kind: record.Array, DType: record.Uint8, Shape: []int64{3, 5, 7}},
		{Name: "boxes", Kind: record.Array, DType: record.Float32, Shape: []int64{record.Ragged, 4}},
		{Name: "label", Kind: record.Scalar, DType: record.Int64},
	}}
	l := NewRecordLayout(s, 3, 4, 1000)
	want := []*larderv1.Field{
		{Name: "image", Dtype: "uint8", Kind: "array", Shape: []uint32{3, 5, 7}, SampleBytes: 105},
		{Name: "boxes", Dtype: "float32", Kind: "array", Ragged: true, Dims: 2, Offset: 320},
		{Name: "label", Dtype: "int64", Kind: "scalar", SampleBytes: 8, Offset: 448},
		{Name: "index", Dtype: "int64", SampleBytes: 8, Offset: 512},
	}
	for i, f := range l.Fields {
		if f.String() != want[i].String() {
			t.Errorf("%v, want %v", f, want[i])
		}
	}
	if n := RecordRow(s, 1000); n != 8+1000+105+32+8 {
		t.Errorf("a row has %d bytes", n)
	}
	if l.SlotBytes != 4096 || l.Board != 0 || !l.ragged || l.values != 576 {
		t.Errorf("%+v", l)
	}
	s.Fields = slices.Delete(s.Fields, 1, 2)
	if l := NewRecordLayout(s, 3, 4, 0); l.Board != 4*4096 || l.Posts == 0 || l.ragged {
		t.Errorf("%+v", l)
	}
}
