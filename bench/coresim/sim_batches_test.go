package coresim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/ident"
)

// meeting is how batches of the members of a share group compare: of all pairs of a member's batch and the members
// before it that took the same instances, in how many one of that member's batches holds the same samples in the same
// order, the same samples in any order, and how many of its samples the batch has that is most like it.
type meeting struct{ pairs, equal, same, rows, common int }

func meetings(res *Result) meeting {
	type batch struct {
		ids    []ident.ObjectID
		sorted []ident.ObjectID
	}
	cut := func(r *Received) []batch {
		var out []batch
		at := 0
		for _, n := range r.Sizes {
			ids := r.IDs[at : at+n]
			out = append(out, batch{ids, slices.Sorted(slices.Values(ids))})
			at += n
		}
		return out
	}
	var m meeting
	for i, a := range res.Epochs {
		for _, b := range res.Epochs[:i] {
			if a.Job == b.Job || len(a.IDs) == 0 || len(b.IDs) == 0 || a.Instance[a.IDs[0]] != b.Instance[b.IDs[0]] {
				continue
			}
			theirs := cut(b)
			for _, mine := range cut(a) {
				m.pairs++
				m.rows += len(mine.ids)
				best, equal, same := 0, false, false
				for _, t := range theirs {
					equal = equal || slices.Equal(mine.ids, t.ids)
					same = same || slices.Equal(mine.sorted, t.sorted)
					common := 0
					for _, x := range mine.ids {
						if _, in := slices.BinarySearch(t.sorted, x); in {
							common++
						}
					}
					best = max(best, common)
				}
				m.common += best
				if equal {
					m.equal++
				}
				if same {
					m.same++
				}
			}
		}
	}
	return m
}

// TestHowOftenBatchesCoincide: of a share group, whose members could then map one copy of a batch. With the orders that
// share loads the samples of members that go in step come near each other, in another order inside of each cell, and
// members of unlike speed do not meet in batches at all; only order fixed gives equal batches, always, to jobs of one
// seed. docs/measurements/loaders.md draws the conclusion.
func TestHowOftenBatchesCoincide(t *testing.T) {
	countsOnly(t)
	for _, tc := range []struct {
		mode  dsa.Mode
		steps []int
		most  float64 // part of the batches that are equal to one of another member
		least float64
	}{
		{dsa.Stratified, []int{1, 1, 1, 1}, 0.05, 0},
		{dsa.Stratified, []int{10, 12, 14, 16}, 0.05, 0},
		{dsa.Epoch, []int{1, 1, 1, 1}, 0.05, 0},
		{dsa.Epoch, []int{10, 12, 14, 16}, 0.05, 0},
		{dsa.Strict, []int{1, 1, 1, 1}, 0.8, 0.2},
		{dsa.Strict, []int{10, 12, 14, 16}, 0.15, 0},
		{dsa.Fixed, []int{1, 1, 1, 1}, 1, 1},
		{dsa.Fixed, []int{10, 12, 14, 16}, 1, 1},
	} {
		var clients []Client
		for i, step := range tc.steps {
			c := client(fmt.Sprint("j", i), span(0, 640), 16, 3)
			c.Step, c.Share, c.Key = time.Duration(step)*4*time.Millisecond, true, 9
			c.Sample.Mode = tc.mode
			clients = append(clients, c)
		}
		m := model(1, 0)
		m.Workers, m.Tiers, m.Check = 4, tiers(512_000), 0
		res, err := Run(m, clients, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		wholeEpochs(t, res, clients)
		got := meetings(res)
		equal := float64(got.equal) / float64(got.pairs)
		t.Logf("%v, steps %v: %d pairs, %.0f %% equal, %.0f %% with the same samples, %.0f %% of the samples common with "+
			"the batch most alike", tc.mode, tc.steps,
			got.pairs, 100*equal, 100*float64(got.same)/float64(got.pairs), 100*float64(got.common)/float64(got.rows))
		if got.pairs < 200 || equal > tc.most || equal < tc.least {
			t.Errorf("%v, steps %v: %.3f of %d are equal, want %g to %g", tc.mode, tc.steps, equal, got.pairs, tc.least, tc.most)
		}
	}
}
