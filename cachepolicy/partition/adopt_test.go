package partition

import (
	"strings"
	"testing"
)

// TestAdopt: each rule of Adopt, with the reason that it gives.
func TestAdopt(t *testing.T) {
	a, b := Split{Encoded: 100}, Split{Decoded: 100}
	for _, c := range []struct {
		name string
		c    Change
		want bool
		why  string
	}{
		{"same", Change{Now: a, Next: a, NowRate: 1, NextRate: 9, Budget: 100}, false, "is the best"},
		{"other jobs, small gain", Change{Now: a, Next: b, NowRate: 100, NextRate: 103, Budget: 100, First: true}, true,
			"3.0 %"},
		{"other jobs, no gain", Change{Now: a, Next: b, NowRate: 1, NextRate: 1, Budget: 100, First: true}, false,
			"only 0.0 %"},
		{"other jobs, unfair", Change{Now: a, Next: b, NowRate: 2, NextRate: 1, Budget: 100, First: true, Unfair: true}, true,
			"fair share"},
		{"the same jobs, unfair", Change{Now: a, Next: b, NowRate: 2, NextRate: 1, Budget: 100, Unfair: true}, false,
			"only 0.0 %"},
		{"memory of no tier", Change{Now: Split{Encoded: 90}, Next: a, NowRate: 1, NextRate: 1, Budget: 100}, true,
			"10B belong to no tier"},
		{"over budget", Change{Now: a, Next: Split{Decoded: 50}, NowRate: 2, NextRate: 1, Budget: 50}, true, "exceeds 50B"},
		{"big gain, same epoch", Change{Now: a, Next: b, NowRate: 100, NextRate: 111, Budget: 100}, true, "11 %"},
		{"small gain, same epoch", Change{Now: a, Next: b, NowRate: 100, NextRate: 109, Budget: 100, EpochsSinceMoved: .9},
			false, "waits"},
		{"small gain, next epoch", Change{Now: a, Next: b, NowRate: 100, NextRate: 109, Budget: 100, EpochsSinceMoved: 1},
			true, "9.0 %"},
		{"noise", Change{Now: a, Next: b, NowRate: 100, NextRate: 101, Budget: 100, EpochsSinceMoved: 5}, false,
			"only 1.0 %"},
		{"worse", Change{Now: a, Next: b, NowRate: 100, NextRate: 90, Budget: 100, EpochsSinceMoved: 5}, false, "only 0.0 %"},
		{"few bytes", Change{Now: Split{Encoded: 60, Decoded: 40}, Next: Split{Encoded: 56, Decoded: 44}, NowRate: 100,
			NextRate: 105, Budget: 100, EpochsSinceMoved: 5}, false, "only 4B would move"},
		{"few bytes, a tier of its own", Change{Now: a, Next: Split{Encoded: 96, Decoded: 4}, NowRate: 100, NextRate: 105,
			Budget: 100, EpochsSinceMoved: 5}, true, "5.0 %"},
		{"no rate", Change{Now: a, Next: b, NextRate: 105, Budget: 100}, true, "nothing was decided"},
	} {
		got, why := Adopt(c.c)
		if got != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%s: %v, %q", c.name, got, why)
		}
	}
}
