package ring

import (
	"larder/internal/prep"
	"larder/internal/session/wire"
	larderv1 "larder/proto/larder/v1"
)

// RaggedEntry is the bytes of one row in a ragged field's table (docs/protocol.md).
const RaggedEntry = 24

const pageSize = 4096

// Layout is where the fields of a slot lie. Sizes and offsets are bytes.
type Layout struct {
	Slots     int
	Rows      int // samples that a slot has room for
	SlotBytes int64
	Fields    []*larderv1.Field
	Board     int64 // behind the slots: where batches are posted; 0 = there is no board
	Posts     int   // that the board has room for

	imageBytes int64 // of one sample; 0 = ragged
	image      int64 // offsets in a slot
	label      int64
	index      int64
	values     int64 // ragged only: where pixel values begin
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
	return l
}
