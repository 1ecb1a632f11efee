package ring

import (
	"hash/crc32"
	"testing"

	"larder/internal/coordinator"
	"larder/jobs"
)

// The slots of image rings are, byte for byte, what they were before rings could hold records: fixed and ragged, with
// holes, and with a batch that moves to a segment of its own.
func TestImageRingsStayWhatTheyWere(t *testing.T) {
	for fixed, want := range map[bool]uint32{true: 0x87d5e0cb, false: 0xafcf4bad} {
		b, s := fixedBudget(1<<20), newSink()
		set := NewSet(func(Key) {})
		r, err := New(config(t, fixed, s, b))
		if err != nil || !set.Add(r) {
			t.Fatal(err)
		}
		sum := uint32(0)
		for d := range 3 {
			for row := range 4 {
				x := &coordinator.Fill{Delivery: coordinator.DeliveryID(d + 1), Slot: d, Row: row}
				var pix []byte
				if fixed {
					pix = r.Image(d, row)
				} else {
					h, w := 3+row+20*d, 25
					if pix, err = r.Room(x, h*w*3); err != nil {
						t.Fatal(err)
					}
					r.Shape(x, h, w, 3)
				}
				for i := range pix {
					pix[i] = byte(i*7 + row*3 + d)
				}
				r.Put(d, row, int64(row*11), int64(d*100+row))
			}
			rows := [][]int{{0, 1, 2, 3}, {1, 3}, {0, 2, 3}}[d]
			r.Push(coordinator.Deliver{Delivery: coordinator.DeliveryID(d + 1), Slot: d, Rows: rows,
				Bad: make([]jobs.Bad, 4-len(rows))})
			s.wait(t, 1)
		}
		sum = crc32.Update(sum, crc32.IEEETable, r.seg.Bytes()[:int64(r.Slots)*r.SlotBytes])
		for i := range r.mu.slots {
			if own := r.mu.slots[i].own; own != nil {
				sum = crc32.Update(sum, crc32.IEEETable, own.Bytes())
			}
		}
		if sum != want {
			t.Errorf("fixed %v: checksum %#x, want %#x; %d segments", fixed, sum, want, s.segs)
		}
		set.Stop(func(string) error { return nil })
		set.Wait()
		r.Release()
	}
}
