package ring

import (
	"testing"

	"larder/internal/coordinator"
	"larder/internal/record"
)

// BenchmarkTokens gathers a batch of windows of 1,025 uint16 ids from records all over 256 MiB into a slot, beside
// plain copies of the same values to the same places.
func BenchmarkTokens(b *testing.B) {
	const batch, ids = 64, 1025
	s := &record.Schema{Fields: []record.Field{{Name: "tokens", Kind: record.Array, DType: record.Uint16,
		Shape: []int64{ids}}}}
	size, err := s.Size([][]int64{{ids}})
	if err != nil {
		b.Fatal(err)
	}
	memory := make([]byte, 256<<20/size*size)
	n := int64(len(memory)) / size
	for i := range n {
		for k, v := range s.Frame(memory[i*size:][:size], [][]int64{{ids}}) {
			v[0] = byte(k)
		}
	}
	pick := func(i int) int64 { return int64(uint32(i)*2654435761) % n * size }
	b.Run("records", func(b *testing.B) {
		r, err := New(Config{Key: Key{Job: 1, Inc: 1}, Name: "a", Layout: NewRecordLayout(s, batch, 4, 0), Sink: newSink(),
			Budget: fixedBudget(1 << 30)})
		if err != nil {
			b.Fatal(err)
		}
		defer r.Release()
		b.SetBytes(batch * 2 * ids)
		x := &coordinator.Fill{}
		for i := 0; b.Loop(); i++ {
			for row := range batch {
				x.Slot, x.Row = i&3, row
				v, err := record.Open(memory[pick(i*batch+row):][:size])
				if err != nil {
					b.Fatal(err)
				}
				if err := r.PutRecord(x, v); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("copies", func(b *testing.B) {
		slots := make([]byte, 4*batch*2*ids)
		b.SetBytes(batch * 2 * ids)
		for i := 0; b.Loop(); i++ {
			for row := range batch {
				copy(slots[((i&3)*batch+row)*2*ids:][:2*ids], memory[pick(i*batch+row)+size-2*ids-62:])
			}
		}
	})
}
