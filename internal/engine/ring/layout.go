package ring

import (
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/session/wire"
	larderv1 "larder/proto/larder/v1"
)

// RaggedEntry is the bytes of one row in the table of a ragged field of images (docs/protocol.md).
const RaggedEntry = 24

// raggedEntry is the bytes of one row in the table of a ragged field of records.
func raggedEntry(dims int) int64 { return 16 + 8*int64(dims) }

const pageSize = 4096

// Layout is where the fields of a slot lie. Sizes and offsets are bytes.
type Layout struct {
	Slots     int
	Rows      int // samples that a slot has room for
	SlotBytes int64
	Fields    []*larderv1.Field
	Board     int64 // behind the slots: where batches are posted; 0 = there is no board
	Posts     int   // that the board has room for

	imageBytes int64 // of one sample; 0 = ragged, or of records
	image      int64 // offsets in a slot
	label      int64 // noField = there is none
	index      int64
	values     int64 // ragged only: where values of rows begin

	ragged  bool
	columns []column // what a row has in every batch: the fixed fields
	places  []place  // of records: by field of the schema; nil = of images
}

// noField is the offset of a field that a layout has not.
const noField = -1

// column is a fixed field: row i has size bytes at at + i x size.
type column struct{ at, size int64 }

// place is where a field of records lies: its values, or its table of entries where it is ragged.
type place struct {
	field  *record.Field
	at     int64
	size   int64 // of one row, in values or in the table
	ragged bool
}

// Bytes is the size of segment 0.
func (l *Layout) Bytes() int64 {
	n := l.SlotBytes * int64(l.Slots)
	if l.Board != 0 {
		n += align(wire.BoardBytes(l.Posts)+wire.ReleaseBytes(l.Slots), pageSize)
	}
	return n
}

// Releases is where the release words lie in segment 0: behind the board; 0 = there are none.
func (l *Layout) Releases() int64 {
	if l.Board == 0 {
		return 0
	}
	return l.Board + wire.BoardBytes(l.Posts)
}

func align(n, to int64) int64 { return (n + to - 1) / to * to }

// NewLayout lays out slots for batches of a recipe's output. guess is the mean decoded size of a sample, which
// matters for ragged slots only.
func NewLayout(r *prep.Recipe, batch, slots int, guess int64) Layout {
	l := Layout{Slots: slots, Rows: batch}
	l.ragged = r.Output().Ragged
	out := r.Output()
	image := &larderv1.Field{Name: "image", Dtype: out.DType, Layout: out.Layout, Ragged: out.Ragged}
	if out.Ragged {
		l.label = align(int64(batch)*RaggedEntry, 64)
	} else {
		l.imageBytes = int64(out.SampleBytes)
		for _, d := range out.Shape {
			image.Shape = append(image.Shape, uint32(d))
		}
		image.SampleBytes = uint64(out.SampleBytes)
		l.label = align(int64(batch)*l.imageBytes, 64)
	}
	l.index = align(l.label+8*int64(batch), 64)
	l.values = align(l.index+8*int64(batch), 64)
	l.SlotBytes = l.values
	if out.Ragged {
		l.SlotBytes += int64(batch) * guess
	}
	l.SlotBytes = align(l.SlotBytes, pageSize)
	if !out.Ragged { // ragged slots may move to another segment, which a board cannot say
		l.Board, l.Posts = l.SlotBytes*int64(slots), wire.Posts(slots)
	}
	l.Fields = []*larderv1.Field{
		image,
		{Name: "label", Dtype: "int64", Offset: uint64(l.label), SampleBytes: 8},
		{Name: "index", Dtype: "int64", Offset: uint64(l.index), SampleBytes: 8},
	}
	l.columns = []column{{l.label, 8}, {l.index, 8}}
	if !l.ragged {
		l.columns = append(l.columns, column{l.image, l.imageBytes})
	}
	return l
}

// RecordRow is about the bytes that a record takes in a slot, whose ragged fields have guess bytes.
func RecordRow(s *record.Schema, guess int64) int64 {
	n := 8 + guess
	for i := range s.Fields {
		if f := &s.Fields[i]; f.Dense() {
			n += f.Size()
		} else {
			n += raggedEntry(len(f.Shape))
		}
	}
	return n
}

// NewRecordLayout lays out slots for batches of records of a checked schema. guess is the mean bytes of the ragged
// fields of a sample. An index follows the fields of the schema.
func NewRecordLayout(s *record.Schema, batch, slots int, guess int64) Layout {
	l := Layout{Slots: slots, Rows: batch, label: noField, places: make([]place, 0, len(s.Fields))}
	at := int64(0)
	for i := range s.Fields {
		f := &s.Fields[i]
		p, out := place{field: f, at: at, size: f.Size(), ragged: !f.Dense()}, &larderv1.Field{Name: f.Name,
			Dtype: f.DType.String(), Offset: uint64(at), Kind: f.Kind.String(), Ragged: !f.Dense()}
		if p.ragged {
			l.ragged = true
			p.size = raggedEntry(len(f.Shape))
			out.Dims = uint32(len(f.Shape))
		} else {
			for _, d := range f.Shape {
				out.Shape = append(out.Shape, uint32(d))
			}
			out.SampleBytes = uint64(p.size)
			l.columns = append(l.columns, column{at, p.size})
		}
		l.places, l.Fields = append(l.places, p), append(l.Fields, out)
		at = align(at+int64(batch)*p.size, 64)
	}
	l.index = at
	l.columns = append(l.columns, column{at, 8})
	l.Fields = append(l.Fields, &larderv1.Field{Name: "index", Dtype: "int64", Offset: uint64(at), SampleBytes: 8})
	l.values = align(at+8*int64(batch), 64)
	l.SlotBytes = l.values
	if l.ragged {
		l.SlotBytes += int64(batch) * guess
	}
	l.SlotBytes = align(l.SlotBytes, pageSize)
	if !l.ragged {
		l.Board, l.Posts = l.SlotBytes*int64(slots), wire.Posts(slots)
	}
	return l
}
