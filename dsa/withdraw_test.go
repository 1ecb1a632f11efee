package dsa

import (
	"reflect"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// A withdrawal while nothing is cached leaves the job in the same state as one while something is: the same tiles, the
// same rest.
func TestWithdrawPlain(t *testing.T) {
	rnd := xrand.New(3)
	for trial := range 300 {
		n := 1 + rnd.IntN(400)
		mode := []Mode{Stratified, Epoch, Fixed}[trial%3]
		var got [2]*job
		parts := make([][]ident.ObjectID, 1+rnd.IntN(4))
		for i := range parts {
			for range rnd.IntN(n + 2) { // some twice, some not of the subset
				parts[i] = append(parts[i], ident.ObjectID(rnd.IntN(n+20)))
			}
		}
		for k := range got {
			s := New(9)
			if err := s.Join(1, JobSpec{Mode: mode, Tiles: 2 + trial%7, Subset: span(0, n)}); err != nil {
				t.Fatal(err)
			}
			if err := s.Join(2, JobSpec{Mode: Stratified, Subset: span(n/2, n+40)}); err != nil {
				t.Fatal(err)
			}
			if k == 1 {
				s.SetLevel(ident.ObjectID(n+30), 2)
			}
			taken := 0
			for e, part := range parts {
				if err := s.StartEpoch(1, uint32(e)); err != nil {
					t.Fatal(err)
				}
				taken += s.Withdraw(1, part)
			}
			if err := s.Check(); err != nil {
				t.Fatal(err)
			}
			got[k] = s.jobs.byID[1]
			if got[k].owed.remaining != n-len(distinct(parts[len(parts)-1], n)) || taken == 0 && got[k].owed.remaining != n {
				t.Fatalf("%d of %d are left", got[k].owed.remaining, n)
			}
		}
		a, b := got[0], got[1]
		if !reflect.DeepEqual(a.owed.left, b.owed.left) || !reflect.DeepEqual(a.tiled, b.tiled) ||
			a.owed.remaining != b.owed.remaining {
			t.Fatalf("trial %d, %d samples, %d tiles: not the same", trial, n, a.tiles)
		}
	}
}

func distinct(ids []ident.ObjectID, n int) map[ident.ObjectID]bool {
	m := map[ident.ObjectID]bool{}
	for _, x := range ids {
		if int(x) < n {
			m[x] = true
		}
	}
	return m
}
