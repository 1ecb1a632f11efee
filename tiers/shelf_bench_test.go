package tiers

import (
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// BenchmarkShelf looks up 64 of 100,000 entries at random, as the rows of a batch of small records are.
func BenchmarkShelf(b *testing.B) {
	const entries, rows = 100_000, 64
	t := newTable()
	for i := range entries {
		s := &slab{key: ident.Key{Object: ident.ObjectID(i), Form: ident.Decoded, Recipe: 7}}
		s.refs.Store(1)
		t.put(s)
	}
	r, keys, out := xrand.New(1), make([]ident.Key, rows), make([]*slab, rows)
	for b.Loop() {
		for i := range keys {
			keys[i] = ident.Key{Object: ident.ObjectID(r.IntN(entries)), Form: ident.Decoded, Recipe: 7}
		}
		t.openAll(keys, out)
		for _, s := range out {
			s.refs.Add(-1)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/entry")
}
