package ring

import (
	"testing"

	"larder/internal/coordinator"
	"larder/internal/record"
)

// What a record costs on its way from a block of bytes into a row, beside the copy that it is.
func BenchmarkPutRecord(b *testing.B) {
	for name, shape := range map[string][]int64{"150KB": {224, 224, 3}, "4KB": {4096}, "ragged4KB": {record.Ragged}} {
		s := &record.Schema{Fields: []record.Field{{Name: "x", Kind: record.Array, DType: record.Uint8, Shape: shape},
			{Name: "label", Kind: record.Scalar, DType: record.Int64}}}
		dims, n := []int64{4096}, 4096
		if len(shape) > 1 {
			dims, n = shape, 224*224*3
		}
		blob, err := record.Encode(s, []record.Content{{Dims: dims, Data: make([]byte, n)}, {Data: make([]byte, 8)}})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			r, err := New(Config{Key: Key{Job: 1, Inc: 1}, Name: "a", Layout: NewRecordLayout(s, 64, 3, 4096),
				Sink: newSink(), Budget: fixedBudget(1 << 30)})
			if err != nil {
				b.Fatal(err)
			}
			defer r.Release()
			b.ReportAllocs()
			b.SetBytes(int64(n))
			for i := 0; b.Loop(); i++ {
				v, err := record.Open(blob)
				if err != nil {
					b.Fatal(err)
				}
				x := &coordinator.Fill{Delivery: coordinator.DeliveryID(i/64 + 1), Slot: i / 64 % 3, Row: i % 64}
				if err := r.PutRecord(x, v); err != nil {
					b.Fatal(err)
				}
				r.Put(x.Slot, x.Row, 0, 1)
			}
		})
	}
}
