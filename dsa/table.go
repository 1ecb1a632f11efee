package dsa

// Small chunks, so that a sampler of few objects is small; much smaller ones would make a table of them that crowds the caches.
const (
	chunkBits = 9
	chunkSize = 1 << chunkBits
)

// table is a dense table that grows without being copied, and without touching much memory at once: a step that lengthens it must
// not take long.
type table[T any] struct {
	chunk []*[chunkSize]T
	n     int
}

// at returns entry i, which must be below n.
func (t *table[T]) at(i uint32) *T { return &t.chunk[i>>chunkBits][i&(chunkSize-1)] }

// extend lengthens the table to n zero entries.
func (t *table[T]) extend(n int) {
	for len(t.chunk)<<chunkBits < n {
		t.chunk = append(t.chunk, new([chunkSize]T))
	}
	t.n = max(t.n, n)
}

// empty takes all entries out. What is extended afterwards has undefined values.
func (t *table[T]) empty() { t.n = 0 }
