package packed

// Holds are Rows that keep more in memory than a few buffers while they are open, such as tables of their file.
type Holds interface {
	// HeldBytes is about how many bytes that is.
	HeldBytes() int64
}

// HeldBytes is what open rows say that they hold.
func HeldBytes(r Rows) int64 {
	if h, ok := r.(Holds); ok {
		return h.HeldBytes()
	}
	return 0
}

// HeldBytes implements Holds.
func (r *pieceRows) HeldBytes() int64 { return HeldBytes(r.plainRows) }

// HeldBytes implements Holds: where the documents of an .idx file begin.
func (r *tokenRows) HeldBytes() int64 { return 8 * int64(cap(r.docs)) }

// HeldBytes implements Holds: offsets of samples.
func (r *mdsRows) HeldBytes() int64 { return int64(cap(r.offsets)) }

// HeldBytes implements Holds: the table of what was allocated, and the metadata of all samples.
func (r *betonRows) HeldBytes() int64 { return int64(cap(r.meta)) + 16*int64(cap(r.places)) }

// HeldBytes implements Holds: where the blocks of bgzip lie.
func (r *fastaRows) HeldBytes() int64 {
	b, ok := r.r.(*bgzf)
	if !ok {
		return 0
	}
	return 32*int64(cap(b.blocks)) + bgzfMost
}

// HeldBytes implements Holds: the footer.
func (r *parquetRows) HeldBytes() int64 { return r.InMemory() }

// HeldBytes implements Holds: where the buffers of all batches lie, and dictionaries.
func (r *hfRows) HeldBytes() int64 {
	total := int64(0)
	for i, f := range r.files {
		total += f.InMemory() + 40*int64(len(r.batches[i]))
	}
	return total
}
