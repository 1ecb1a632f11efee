package dsa

import "larder/internal/ident"

// Slow reports whether the job is slow beside some other, so that its need may not count.
func (s *Sampler) Slow(id ident.JobID) bool {
	j := s.jobs.byID[id]
	return j != nil && j.pace.faster != 0
}

// NewPreferring returns a sampler with a planted bug: all that is available is preferred.
func NewPreferring(seed uint64) *Sampler {
	s := New(seed)
	plant(s, planted{preferAll: true})
	return s
}

// NewCountingSlow returns a sampler with a planted bug: a slow job decides what stays in memory like any other.
func NewCountingSlow(seed uint64) *Sampler {
	s := New(seed)
	plant(s, planted{countSlow: true})
	return s
}

// Patched says whether this is the copy of the package that has planted bugs.
const Patched = patched
