package dsa

import (
	"fmt"
	"math"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand/xrandtest"
)

// followers fixes a state of two jobs without tapes, in which the neighbour's remaining samples lie in the tiles (or
// static cells, each half of the data) of the follower as unlike as keep says, lets the neighbour draw once and then
// the follower twice, and counts the pairs of tiles. The law of the pairs is that of two draws without replacement from
// what the follower needs, whatever the neighbour still needs. It returns the largest deviate of all keeps and where it
// was.
func followers(t *testing.T, cells bool, runs int, bugs planted) (worst float64, where string) {
	t.Helper()
	const n = 8
	worst = math.Inf(-1)
	for _, keep := range [][2]int{{1, 0}, {2, 0}, {0, 3}, {3, 1}, {1, 4}} {
		var pairs [4]int
		for run := range runs {
			s := New(uint64(run))
			s.SetRoom(0)
			plant(s, bugs)
			if run%2 == 0 {
				s.cells.scanSize = 0
			}
			follower := strat(2, span(0, n))
			if cells {
				must(t, s.Stratum(span(0, n/2)))
				follower = byEpoch(span(0, n))
			}
			must(t, s.Join(2, follower))
			must(t, s.StartEpoch(2, 0))
			half := [n]int{n / 2: 1, 1, 1, 1} // by object: tile or cell
			if !cells {
				for p := range n {
					x, _ := s.Next(2)
					half[x] = p * 2 / n
				}
				must(t, s.StartEpoch(2, 1))
			}
			must(t, s.Join(1, byEpoch(span(0, n))))
			must(t, s.StartEpoch(1, 0))
			var gone []ident.ObjectID
			left := keep
			for x, h := range half {
				if left[h]--; left[h] < 0 {
					gone = append(gone, ident.ObjectID(x))
				}
			}
			s.Withdraw(1, gone)
			if s.layouts.run(s.jobs.byID[2]); run%3 == 0 { // who is laid out first does not matter
				s.layouts.run(s.jobs.byID[1])
			}
			s.follows.turn++ // of which the follower has had its pick
			x, _ := s.Next(1)
			s.SetLevel(x, 2)
			y, _ := s.Next(2)
			s.SetLevel(x, 0)
			z, _ := s.Next(2)
			pairs[2*half[y]+half[z]]++
			if run < 50 {
				must(t, s.Check())
			}
		}
		// Of n/2 and n/2 the second is like the first with (n/2-1) / (n-1).
		if z := xrandtest.Deviate(pairs[:], 3./14, 4./14, 4./14, 3./14); z > worst {
			worst, where = z, fmt.Sprintf("the neighbour needs %v: %v", keep, pairs)
		}
	}
	return worst, where
}

// TestFollowersKeepTheLawOfCells: what a job draws without a tape has the law remaining-in-cell / remaining given
// everything before the neighbour's draw, and its next draw too. That the coupling is taken too often, or that a draw
// follows what a neighbour drew in an earlier turn, must show: in marginal orders and in orders of consecutive epochs
// it hardly does, because by symmetry a neighbour's remaining samples seldom lie unlike in a job's tiles.
func TestFollowersKeepTheLawOfCells(t *testing.T) {
	t.Parallel()
	for _, cells := range []bool{false, true} {
		name := map[bool]string{false: "tiles", true: "cells"}[cells]
		if !patched {
			z, where := followers(t, cells, effort(2000), planted{})
			t.Logf("%s: z = %.1f (%s)", name, z, where)
			if z >= 4 {
				t.Errorf("%s: z = %.1f: %s", name, z, where)
			}
			continue
		}
		for bug, bugs := range map[string]planted{ // order-free: each is judged by itself
			"taken too often":         {biased: true},
			"follows an earlier turn": {followPrevious: true},
		} {
			z, where := followers(t, cells, 400, bugs)
			t.Logf("%s, %s: z = %.1f (%s)", name, bug, z, where)
			if z < 8 {
				t.Errorf("%s, %s: z = %.1f (%s): the check is blind to it", name, bug, z, where)
			}
		}
	}
}
