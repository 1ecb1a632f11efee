package partition

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSimpleSplit(t *testing.T) {
	const g = 1 << 30
	for _, c := range []struct {
		name string
		in   Wanted
		want Split
		why  string
	}{
		{"nothing", Wanted{}, Split{}, "no memory"},
		{"negative", Wanted{Total: -5, DecodedBytes: 1}, Split{}, "no memory"},
		{"unknown", Wanted{Total: 8 * g}, Split{Decoded: 8 * g}, "not known yet"},
		{"unknown, groups", Wanted{Total: 8 * g, ShareGroups: 1}, Split{Decoded: 6 * g, Augmented: 2 * g}, "1 share group"},
		{"all fits", Wanted{Total: 8 * g, DecodedBytes: 8 * g, EncodedBytes: g}, Split{Decoded: 8 * g}, "8GiB wanted fit"},
		{"all fits, with room", Wanted{Total: 10 * g, DecodedBytes: 6 * g, EncodedBytes: g},
			Split{Encoded: g, Decoded: 9 * g}, "6GiB wanted fit"},
		{"all fits, with a little room", Wanted{Total: 10 * g, DecodedBytes: 9 * g, EncodedBytes: g},
			Split{Encoded: g / 2, Decoded: 10*g - g/2}, "fit"},
		{"does not fit", Wanted{Total: 10 * g, DecodedBytes: 11 * g}, Split{Encoded: 2 * g, Decoded: 8 * g}, "do not fit"},
		{"little encoded", Wanted{Total: 10 * g, DecodedBytes: 11 * g, EncodedBytes: g}, Split{Encoded: g, Decoded: 9 * g},
			"encoded gets 1GiB"},
		{"groups, small need", Wanted{Total: 8 * g, DecodedBytes: 7 * g, AugmentedBytes: g, ShareGroups: 2},
			Split{Decoded: 7 * g, Augmented: g}, "7GiB wanted fit"},
		{"groups, large need", Wanted{Total: 8 * g, DecodedBytes: 7 * g, AugmentedBytes: 9 * g, ShareGroups: 2},
			Split{Encoded: 6 * g / 5, Decoded: 6*g - 6*g/5, Augmented: 2 * g}, "augmented 2GiB for 2 share group(s)"},
		{"lone jobs get no augmented", Wanted{Total: 8 * g, DecodedBytes: g, AugmentedBytes: g}, Split{Decoded: 8 * g},
			"fit"},
		{"tiny", Wanted{Total: 3, DecodedBytes: 4, ShareGroups: 1}, Split{Decoded: 3}, "do not fit"},
		{"huge", Wanted{Total: math.MaxInt64, DecodedBytes: math.MaxInt64, ShareGroups: 1},
			Split{Encoded: 1383505805528216371, Decoded: 5534023222112865485, Augmented: math.MaxInt64 / 4}, "do not fit"},
	} {
		got, why := SimpleSplit(c.in)
		if got != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%s: %+v, %q; want %+v, %q", c.name, got, why, c.want, c.why)
		}
	}
}

func TestSimpleSplitNeverExceedsTotal(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := Wanted{
			Total: rapid.Int64().Draw(rt, "total"), EncodedBytes: rapid.Int64().Draw(rt, "encoded"),
			DecodedBytes: rapid.Int64().Draw(rt, "decoded"), AugmentedBytes: rapid.Int64().Draw(rt, "augmented"),
			ShareGroups: rapid.IntRange(-1, 3).Draw(rt, "groups"),
		}
		s, why := SimpleSplit(in)
		if s.Encoded < 0 || s.Decoded < 0 || s.Augmented < 0 || s.Total() != max(in.Total, 0) || why == "" {
			rt.Fatalf("%+v gives %+v, %q", in, s, why)
		}
		if in.ShareGroups <= 0 && s.Augmented > 0 {
			rt.Fatalf("%+v: augmented gets %d and no job shares", in, s.Augmented)
		}
	})
}
