package wire

import (
	"bytes"
	"reflect"
	"testing"
)

func TestPicks(t *testing.T) {
	for _, f := range []PicksFrame{
		{Batches: [][]uint32{}},
		{Epoch: 3, First: 7, End: true, Batches: [][]uint32{}},
		{Epoch: 1<<32 - 1, First: 1<<32 - 1, Batches: [][]uint32{{5, 5, 0}, {1<<32 - 1}}},
	} {
		p := f.Append(nil)
		got, err := ParsePicks(p)
		if err != nil || !reflect.DeepEqual(got, f) {
			t.Errorf("%+v came back as %+v, %v", f, got, err)
		}
		if f.Batches != nil && len(p) > MaxPicks {
			t.Errorf("%d bytes", len(p))
		}
	}
	full := PicksFrame{Batches: [][]uint32{
		make([]uint32, 1<<16), make([]uint32, 1<<16), make([]uint32, 1<<16), make([]uint32, 1<<16),
	}}
	if n := len(full.Append(nil)); n != MaxPicks {
		t.Errorf("four batches of 65,536 samples have %d bytes, the limit is %d", n, MaxPicks)
	}
}

// Whatever a client sends is refused or means one thing: it is written as it was read.
func FuzzPicks(f *testing.F) {
	f.Add(PicksFrame{Epoch: 1, First: 2, End: true, Batches: [][]uint32{{1, 2}, {3}}}.Append(nil))
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Add(append(PicksFrame{}.Append(nil), 1))
	f.Add(append(make([]byte, 12), 1, 0, 0, 0, 0, 0, 0, 0)) // a batch without a sample
	f.Fuzz(func(t *testing.T, p []byte) {
		got, err := ParsePicks(p)
		if err != nil {
			return
		}
		if !bytes.Equal(got.Append(nil), p) {
			t.Errorf("%x was read as %+v", p, got)
		}
		for _, b := range got.Batches {
			if len(b) == 0 {
				t.Errorf("%x has an empty batch", p)
			}
		}
	})
}
