package coresim

import (
	"fmt"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// memory is the tiers, and the working copies beside them. It refuses what exceeds a tier's budget. What it uses of a
// form is the sum of the entries that it stores of that form.
type memory struct {
	m      *Model
	checks *checks
	used   [ident.NumForms]int64
	budget [ident.NumForms]int64
	peak   [ident.NumForms]int64
	store  map[ident.Key]int64 // bytes of each entry; nil = the coordinator is trusted to know what is stored
	sizes  []augmented         // of what jobs make

	copies     map[coordinator.FlightID]bool
	mostCopies int // at once
	uses       int // of entries, for Model.Lose
}

// augmented is the size of what a suffix makes.
type augmented struct {
	suffix ident.RecipeID
	bytes  int64
}

func newMemory(m *Model, c *checks) memory {
	s := memory{m: m, checks: c, copies: map[coordinator.FlightID]bool{}}
	if !m.trusts() {
		s.store = map[ident.Key]int64{}
	}
	return s
}

// granules rounds an entry up to whole granules.
func (s *memory) granules(n int64) int64 {
	if g := s.m.Granule; g > 1 {
		return (n + g - 1) / g * g
	}
	return n
}

// put stores an entry of n bytes; false if there is no room for it.
func (s *memory) put(k ident.Key, n int64) bool {
	n = s.granules(n)
	if s.used[k.Form]+n > s.budget[k.Form] {
		return false
	}
	if s.store != nil {
		if _, stored := s.store[k]; stored {
			s.checks.fail("%s is stored twice", k)
		}
		s.store[k] = n
	}
	s.used[k.Form] += n
	s.peak[k.Form] = max(s.peak[k.Form], s.used[k.Form])
	return true
}

func (s *memory) free(k ident.Key) {
	if s.store == nil {
		s.used[k.Form] -= s.granules(s.size(k))
		return
	}
	s.used[k.Form] -= s.store[k]
	delete(s.store, k)
}

// size is what an entry weighs.
func (s *memory) size(k ident.Key) int64 {
	switch k.Form {
	case ident.Encoded:
		return s.m.Bytes(k.Object)
	case ident.Decoded:
		return s.m.Decoded(k.Object)
	case ident.Augmented, ident.Stored, ident.NumForms:
		for _, a := range s.sizes {
			if a.suffix == k.Recipe {
				return a.bytes
			}
		}
	}
	return s.m.Augment
}

// has reports whether an entry is stored: always, where the coordinator is trusted.
func (s *memory) has(k ident.Key) bool {
	if s.store == nil {
		return true
	}
	_, ok := s.store[k]
	return ok
}

// lose drops an entry at every n-th use, n being Model.Lose, and reports whether it did.
func (s *memory) lose(k ident.Key) bool {
	if s.m.Lose == 0 {
		return false
	}
	if s.uses++; s.uses%s.m.Lose == 0 {
		s.free(k)
		return true
	}
	return false
}

// copy makes a working copy.
func (s *memory) copy(id coordinator.FlightID) {
	s.copies[id] = true
	s.mostCopies = max(s.mostCopies, len(s.copies))
}

// discard ends a working copy.
func (s *memory) discard(id coordinator.FlightID) {
	if !s.copies[id] {
		s.checks.fail("working copy %d is discarded but does not exist", id)
	}
	delete(s.copies, id)
}

// check compares what is used with the entries. It looks at all of them.
func (s *memory) check() error {
	if s.store == nil {
		return nil
	}
	var sum [ident.NumForms]int64
	for k, n := range s.store {
		sum[k.Form] += n
	}
	if sum != s.used {
		return fmt.Errorf("entries of %v bytes are stored, %v are counted", sum, s.used)
	}
	return nil
}

// rows are the slots that batches are written into, and slots to use again.
type rows struct {
	written map[coordinator.DeliveryID]*batchRows
	spare   []*batchRows
}

// batchRows is what was written into the slot of a batch.
type batchRows struct {
	object   []ident.ObjectID
	instance []uint32
	filled   []bool
}

// write fills a row of a batch.
func (r *rows) write(x *coordinator.Fill) {
	b := r.written[x.Delivery]
	if b == nil {
		if n := len(r.spare); n > 0 {
			b, r.spare = r.spare[n-1], r.spare[:n-1]
			clear(b.filled)
		} else {
			b = &batchRows{}
		}
		r.written[x.Delivery] = b
	}
	for x.Row >= len(b.object) {
		b.object, b.instance, b.filled = append(b.object, 0), append(b.instance, 0), append(b.filled, false)
	}
	b.object[x.Row], b.instance[x.Row], b.filled[x.Row] = x.Object, x.Instance, true
}

// release ends the use of a batch's rows.
func (r *rows) release(id coordinator.DeliveryID) {
	if b := r.written[id]; b != nil {
		r.spare = append(r.spare, b)
		delete(r.written, id)
	}
}

// has reports whether a row of a batch was written.
func (b *batchRows) has(row int) bool { return b != nil && row < len(b.filled) && b.filled[row] }
