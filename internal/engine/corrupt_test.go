package engine_test

import (
	"bytes"
	"fmt"
	"testing"

	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/prep"
)

// Bits flip in the memory of a tier while the daemon runs. A reader of such an entry gets the sample all the same,
// made again from storage: counted, never delivered with the flipped bit (guarantee G6).
func TestFlippedBitsAreNeverDelivered(t *testing.T) {
	const n = 60
	r, err := prep.ParseRecipe(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []ident.Key{{Form: ident.Encoded}, {Form: ident.Decoded, Recipe: r.Prefix()}} {
		t.Run(key.Form.String(), func(t *testing.T) {
			dir := folder(t, n)
			w := serve(t, func(c *engine.Config) {
				c.Memory.Tiers.Sizes = [ident.NumForms]int64{}
				c.Memory.Tiers.Sizes[key.Form] = 16 * mib
			})
			before := w.train(spec("before", dir, 6), 0)
			want := before.must(0)
			exactly(t, "before", want.ids, all(n))
			before.detach()
			eventually(t, "all is in the tier", func() bool { return w.store.Stats(key.Form).Entries == n })
			// What was planned ahead may still be read from the tier: a bit that flips between the check of an entry
			// and its use is beyond any check.
			last, same := uint64(0), 0
			eventually(t, "nothing is under way", func() bool {
				if now := w.store.Stats(key.Form).Reads + w.stats().GetTotals().GetDecodes(); now == last {
					same++
				} else {
					last, same = now, 0
				}
				return same >= 10
			})
			reads, flipped := w.stats().GetTotals().GetSourceReads(), 0
			for o := 0; o < n; o += 2 {
				key.Object = ident.ObjectID(o)
				v, err := w.store.Open(key)
				if err != nil {
					t.Fatal(err)
				}
				v.Bytes[(o*37)%len(v.Bytes)] ^= 1 << (o % 8)
				v.Close()
				flipped++
			}
			after := w.train(spec("after", dir, 4), 0)
			for e := range uint32(2) {
				got := after.must(e)
				exactly(t, fmt.Sprint("epoch ", e), got.ids, all(n))
				if len(got.bad) > 0 {
					t.Errorf("%d samples were quarantined for what was wrong in memory only", len(got.bad))
				}
				for id, pix := range got.pixels {
					if got.sizes[id] != want.sizes[id] || !bytes.Equal(pix, want.pixels[id]) {
						t.Errorf("epoch %d: sample %d is not what it was", e, id)
					}
				}
			}
			after.detach()
			if st := w.store.Stats(key.Form); st.Corrupt != uint64(flipped) {
				t.Errorf("%d entries were flipped, %+v", flipped, st)
			}
			// Once for the flip; and once more for what is not kept on that occasion but in the epoch after it.
			if again := w.stats().GetTotals().GetSourceReads() - reads; again < uint64(flipped) || again > uint64(2*flipped) {
				t.Errorf("%d samples were read again, %d were flipped", again, flipped)
			}
		})
	}
}
