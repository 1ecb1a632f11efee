// Package bits holds the two bit sets larder needs: Set for samples of one job, JobSet for jobs of one sample.
package bits

import (
	"math"
	mathbits "math/bits"
)

// Set is a growable bit set over dense ids. The zero value is empty. Not safe for concurrent use.
type Set struct {
	words []uint64
	count int
}

// NewSet returns an empty set that holds ids below n without growing.
func NewSet(n int) *Set { return &Set{words: make([]uint64, (n+63)/64)} }

// Has reports whether i is in the set.
func (s *Set) Has(i uint32) bool {
	w := int(i >> 6)
	return w < len(s.words) && s.words[w]&(1<<(i&63)) != 0
}

// Add adds i and reports whether it was absent.
func (s *Set) Add(i uint32) bool {
	w := int(i >> 6)
	for w >= len(s.words) {
		s.words = append(s.words, 0)
	}
	if s.words[w]&(1<<(i&63)) != 0 {
		return false
	}
	s.words[w] |= 1 << (i & 63)
	s.count++
	return true
}

// AddNew adds ids that are all in of, absent, and each there once. If one is not, it adds none and returns false.
func AddNew[T ~uint32](s, of *Set, ids []T) bool {
	for n, i := range ids {
		w, bit := int(i>>6), uint64(1)<<(i&63)
		if w >= len(of.words) || of.words[w]&bit == 0 || w < len(s.words) && s.words[w]&bit != 0 {
			for _, k := range ids[:n] {
				s.words[k>>6] &^= 1 << (k & 63)
			}
			return false
		}
		if w >= len(s.words) {
			s.words = append(s.words, make([]uint64, len(of.words)-len(s.words))...)
		}
		s.words[w] |= bit
	}
	s.count += len(ids)
	return true
}

// Remove removes i and reports whether it was present.
func (s *Set) Remove(i uint32) bool {
	if !s.Has(i) {
		return false
	}
	s.words[i>>6] &^= 1 << (i & 63)
	s.count--
	return true
}

// Len returns the number of members.
func (s *Set) Len() int { return s.count }

// Bytes is the memory that the set takes.
func (s *Set) Bytes() int { return 8 * cap(s.words) }

// LenIn returns the number of members from one id up to, not including, another.
func (s *Set) LenIn(from, to uint32) (n int) {
	to = min(to, uint32(min(len(s.words), math.MaxUint32>>6)<<6))
	for from < to {
		end := min(to, from|63+1) // of this word
		n += mathbits.OnesCount64(s.words[from>>6] << (63 - (end-1)&63) >> (63 - (end-1)&63) >> (from & 63))
		from = end
	}
	return n
}

// Clear empties the set and keeps its memory.
func (s *Set) Clear() {
	clear(s.words)
	s.count = 0
}

// Clone returns a copy.
func (s *Set) Clone() *Set {
	return &Set{words: append([]uint64(nil), s.words...), count: s.count}
}

// Each calls f for every member, ascending, until f returns false.
func (s *Set) Each(f func(i uint32) bool) {
	for w, x := range s.words {
		for x != 0 {
			b := mathbits.TrailingZeros64(x)
			if !f(uint32(w<<6 + b)) {
				return
			}
			x &= x - 1
		}
	}
}

// JobSet is a set of up to 64 slots, one per job that draws from a dataset; a value type.
type JobSet uint64

// MaxJobs is the number of slots of a JobSet.
const MaxJobs = 64

// With returns the set with slot i.
func (s JobSet) With(i uint8) JobSet { return s | 1<<i }

// Without returns the set without slot i.
func (s JobSet) Without(i uint8) JobSet { return s &^ (1 << i) }

// Has reports whether slot i is in the set.
func (s JobSet) Has(i uint8) bool { return s&(1<<i) != 0 }

// Len returns the number of slots in the set.
func (s JobSet) Len() int { return mathbits.OnesCount64(uint64(s)) }
