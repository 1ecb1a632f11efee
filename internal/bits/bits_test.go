package bits

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func (s *Set) members() (out []uint32) {
	s.Each(func(i uint32) bool { out = append(out, i); return true })
	return out
}

// TestSetAgainstMap: a Set does what a map of its members does, whatever it was made for.
func TestSetAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := new(Set)
		if rapid.Bool().Draw(t, "sized") {
			s = NewSet(rapid.IntRange(0, 200).Draw(t, "size"))
		}
		m := map[uint32]bool{}
		id := rapid.OneOf(rapid.Uint32Range(0, 130), rapid.SampledFrom([]uint32{0, 63, 64, 127, 128, 9999, 1 << 16}))
		var old *Set
		var oldMembers []uint32
		t.Repeat(map[string]func(*rapid.T){
			"Add": func(t *rapid.T) {
				i := id.Draw(t, "i")
				if got := s.Add(i); got == m[i] {
					t.Fatalf("Add(%d) says %v", i, got)
				}
				m[i] = true
			},
			"Remove": func(t *rapid.T) {
				i := id.Draw(t, "i")
				if got := s.Remove(i); got != m[i] {
					t.Fatalf("Remove(%d) says %v", i, got)
				}
				delete(m, i)
			},
			"Clear": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					s.Clear()
					clear(m)
				}
			},
			"Clone": func(*rapid.T) { // continue with the copy: what happens to it must not reach the original
				old, oldMembers = s, s.members()
				s = s.Clone()
			},
			"": func(t *rapid.T) {
				want := slices.Sorted(maps.Keys(m))
				if got := s.members(); !slices.Equal(got, want) || s.Len() != len(want) {
					t.Fatalf("%d members %v, want %v", s.Len(), got, want)
				}
				i := id.Draw(t, "asked")
				if s.Has(i) != m[i] {
					t.Fatalf("Has(%d) is %v", i, s.Has(i))
				}
				if old != nil && !slices.Equal(old.members(), oldMembers) {
					t.Fatalf("the original of a clone became %v, it was %v", old.members(), oldMembers)
				}
				seen := 0
				s.Each(func(uint32) bool { seen++; return seen < 2 })
				if seen != min(2, len(want)) {
					t.Fatalf("Each visited %d members after it was asked to stop", seen)
				}
			},
		})
	})
}

// TestAddNew: all of a list is added, or none of it, with the same count as Add would give.
func TestAddNew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Uint32Range(0, 300)
		s, of := new(Set), new(Set)
		for _, i := range rapid.SliceOf(id).Draw(t, "of") {
			of.Add(i)
		}
		for _, i := range rapid.SliceOfN(id, 0, 5).Draw(t, "there") {
			s.Add(i)
		}
		ids := rapid.SliceOfN(id, 0, 8).Draw(t, "ids")
		if rapid.Bool().Draw(t, "members") {
			ids = slices.DeleteFunc(ids, func(i uint32) bool { return !of.Has(i) || s.Has(i) })
		}
		want, ok := s.Clone(), true
		for _, i := range ids {
			ok = of.Has(i) && want.Add(i) && ok
		}
		if !ok {
			want = s.Clone()
		}
		if got := AddNew(s, of, ids); got != ok || !slices.Equal(s.members(), want.members()) || s.Len() != want.Len() {
			t.Fatalf("%v is added to a set: %v, which has %v, want %v and %v", ids, got, s.members(), ok, want.members())
		}
	})
}

func TestSetKeepsItsMemory(t *testing.T) {
	s := NewSet(1000)
	if n := testing.AllocsPerRun(10, func() {
		for i := range uint32(1000) {
			s.Add(i)
		}
		s.Clear()
	}); n != 0 {
		t.Errorf("%v allocations in a set that is large enough", n)
	}
}

func TestJobSetAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s JobSet
		m := map[uint8]bool{}
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			i := uint8(rapid.IntRange(0, MaxJobs-1).Draw(t, "slot"))
			if rapid.Bool().Draw(t, "with") {
				s, m[i] = s.With(i), true
			} else {
				s = s.Without(i)
				delete(m, i)
			}
			if s.Len() != len(m) {
				t.Fatalf("%d slots, want %d", s.Len(), len(m))
			}
			for j := range uint8(MaxJobs) {
				if s.Has(j) != m[j] {
					t.Fatalf("Has(%d) is %v", j, s.Has(j))
				}
			}
		}
	})
}

// TestLenIn compares the count of a range with one by one.
func TestLenIn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := NewSet(rapid.IntRange(0, 300).Draw(rt, "room"))
		for _, i := range rapid.SliceOf(rapid.Uint32Range(0, 400)).Draw(rt, "members") {
			s.Add(i)
		}
		from, to := rapid.Uint32Range(0, 500).Draw(rt, "from"), rapid.Uint32Range(0, 500).Draw(rt, "to")
		want := 0
		for i := from; i < to; i++ {
			if s.Has(i) {
				want++
			}
		}
		if n := s.LenIn(from, to); n != want {
			rt.Fatalf("%d of [%d, %d), want %d", n, from, to, want)
		}
	})
}
