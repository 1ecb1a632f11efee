package dsa

// Chunks of a table are small, so that a sampler of few objects is small. Much smaller ones would make the list of
// chunks so long that it crowds the processor's caches.
const (
	chunkBits = 9
	chunkSize = 1 << chunkBits
)

// table is a dense table that grows without copying and without touching much memory at once, because a step that
// lengthens it must not take long.
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

// empty removes all entries. Entries that are added afterwards have undefined values.
func (t *table[T]) empty() { t.n = 0 }

// object is what the sampler knows of every object. The zero value is an object that no call has named.
type object struct {
	cell  uint32 // its static cell; 0 = in no subset yet
	entry uint32 // its entry in the pool; 0 = none
}

// objectTable is the table of all objects, by id. cells owns the field cell, pool the field entry and the bitmap.
type objectTable struct {
	table[object]
	pooled []uint64 // by object: has an entry. A pick asks it first, because it is small
}

// grow makes room for n objects.
func (o *objectTable) grow(n int) {
	o.extend(n)
	if words := (o.n + bitsPerWord - 1) / bitsPerWord; words > len(o.pooled) {
		o.pooled = append(o.pooled, make([]uint64, words-len(o.pooled))...)
	}
}

// known reports whether the table holds x.
func (o *objectTable) known(x uint32) bool { return int(x) < o.n }
