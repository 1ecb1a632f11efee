package measure

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Slices become longer until few enough are left, and no sample is lost on the way.
func TestMerge(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := Recovery{Slice: .1}
		var sums []int
		longest := 0
		for range rapid.IntRange(0, 3).Draw(rt, "jobs") {
			s := rapid.SliceOfN(rapid.IntRange(0, 50), 0, 70).Draw(rt, "samples")
			longest = max(longest, len(s))
			r.Jobs = append(r.Jobs, Recovered{Samples: s})
			sum := 0
			for _, n := range s {
				sum += n
			}
			sums = append(sums, sum)
		}
		was := slices.Clone(r.Jobs)
		most := rapid.IntRange(1, 80).Draw(rt, "most")
		r.Merge(most)
		each := int(math.Round(r.Slice / .1))
		if each > 1 && (longest+each/2-1)/(each/2) <= most {
			rt.Fatalf("%d slices of %d were enough for %d", longest, each/2, most)
		}
		for i := range r.Jobs {
			got, sum := r.Jobs[i].Samples, 0
			for k, n := range got {
				sum += n
				want := 0
				for _, m := range was[i].Samples[k*each : min((k+1)*each, len(was[i].Samples))] {
					want += m
				}
				if n != want {
					rt.Fatalf("slice %d has %d of %d", k, n, want)
				}
			}
			if len(got) > most || sum != sums[i] {
				rt.Fatalf("%d slices with %d samples of %d", len(got), sum, sums[i])
			}
		}
	})
}

// Training is as fast as before when it is for half a second, and not for a moment.
func TestFindBack(t *testing.T) {
	steady := func(n, each int) []int {
		out := make([]int, n)
		for i := range out {
			out[i] = each
		}
		return out
	}
	for _, c := range []struct {
		name string
		jobs [][]int
		back float64 // -1 = not found
	}{
		{"nothing was felt", [][]int{steady(60, 10)}, 0},
		{"a ramp", [][]int{slices.Concat(steady(32, 10), steady(4, 2), []int{10}, steady(4, 2), steady(20, 9))}, .8},
		{"two jobs make up for each other", [][]int{slices.Concat(steady(32, 10), steady(30, 0)),
			slices.Concat(steady(32, 10), steady(10, 10), steady(20, 18))}, .9},
		{"it never is again", [][]int{slices.Concat(steady(32, 10), steady(30, 8))}, -1},
		{"it had hardly begun", [][]int{slices.Concat(make([]int, 0), steady(33, 1))}, -1},
	} {
		r := Recovery{Killed: 3.15, Ready: 3.3, Slice: .1}
		for _, s := range c.jobs {
			r.Jobs = append(r.Jobs, Recovered{Samples: s})
		}
		r.FindBack()
		switch {
		case r.Back == nil && c.back >= 0, r.Back != nil && math.Abs(*r.Back-c.back) > 1e-9:
			t.Errorf("%s: %v, want %v", c.name, r.Back, c.back)
		}
	}
	early := Recovery{Killed: 1, Ready: 1.2, Slice: .1, Jobs: []Recovered{{Samples: steady(60, 10)}}}
	if early.FindBack(); early.Back != nil {
		t.Errorf("one second before shows nothing: %v", *early.Back)
	}
}
