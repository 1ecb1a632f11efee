package xrand

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/xrand/xrandtest"
)

// The reference outputs of the authors: xoshiro256** from state 1, 2, 3, 4, SplitMix64 from seed 1234567.
func TestReferenceOutputs(t *testing.T) {
	r := &Rand{s: [4]uint64{1, 2, 3, 4}}
	for i, want := range []uint64{
		11520, 0, 1509978240, 1215971899390074240, 1216172134540287360, 607988272756665600, 16172922978634559625,
		8476171486693032832, 10595114339597558777, 2904607092377533576,
	} {
		if got := r.Uint64(); got != want {
			t.Errorf("xoshiro256** %d: %d, want %d", i, got, want)
		}
	}
	seed := uint64(1234567)
	for i, want := range []uint64{
		6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
	} {
		if got := Mix(seed); got != want {
			t.Errorf("SplitMix64 %d: %d, want %d", i, got, want)
		}
		seed += 0x9e3779b97f4a7c15
	}
}

// What a seed gives is part of the product (orders replay, augmentations replay), so it is written down, to the bit.
func TestGoldenStreams(t *testing.T) {
	if got, want := Hash(), uint64(0x243f6a8885a308d3); got != want {
		t.Errorf("Hash() = %#x, want %#x", got, want)
	}
	if Hash(1, 2) == Hash(2, 1) || Hash(0) == Hash(0, 0) {
		t.Error("Hash does not see order or length")
	}
	r := New(7, 11)
	got := []uint64{
		Hash(1, 2, 3), r.Uint64(), r.Uint64n(1000), uint64(r.IntN(1 << 40)),
		math.Float64bits(r.Float64()), math.Float64bits(r.Uniform(0.08, 1)), math.Float64bits(r.Uniform(-3, 1e9)),
		math.Float64bits(r.LogUniform(3.0/4, 4.0/3)), math.Float64bits(r.LogUniform(1e-6, 1e6)), r.Split().Uint64(),
		r.Uint64(),
	}
	perm := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	r.Shuffle(len(perm), func(i, j int) { perm[i], perm[j] = perm[j], perm[i] })
	if want := ([]uint64{
		0xe234b8e7662009c0, 0xfa1d3778dd54ae88, 0x17f, 0x87ccbdb657, 0x3fee482c2efd8c9d, 0x3fce78cadba08620,
		0x41ad0ea8c891b5cf, 0x3ff0b95823334ac3, 0x408974098f554805, 0xed6a37b4161e9395, 0x14eb9c3d6567fea,
	}); !slices.Equal(got, want) {
		t.Errorf("got  %#x\nwant %#x", got, want)
	}
	if want := ([]int{8, 9, 4, 3, 0, 2, 5, 1, 7, 6}); !slices.Equal(perm, want) {
		t.Errorf("shuffled to %v, want %v", perm, want)
	}
}

// TestNothingIsFused: where a fused multiply-add would give another number, Uniform gives the one of two roundings.
// (GOAMD64=v3 and arm64 compilers fuse whatever the language allows them to.)
func TestNothingIsFused(t *testing.T) {
	a, b := New(5), New(5)
	differ := 0
	for range 10_000 {
		lo, hi := 0.1, 0.7
		got, u := a.Uniform(lo, hi), b.Float64()
		product := (hi - lo) * u
		if want := lo + math.Float64frombits(math.Float64bits(product)); got != want {
			t.Fatalf("Uniform with %v: %v, want %v", u, got, want)
		}
		if math.FMA(hi-lo, u, lo) != got {
			differ++
		}
	}
	if differ == 0 {
		t.Error("no draw distinguishes a fused product from a rounded one: the test shows nothing")
	}
}

// ulps is how many representable numbers lie between two of equal sign.
func ulps(a, b float64) uint64 {
	x, y := math.Float64bits(a), math.Float64bits(b)
	return max(x, y) - min(x, y)
}

func TestExpAndLogAreAccurate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Float64Range(1e-300, 1e300).Draw(t, "x")
		if got, want := log(x), math.Log(x); got != want && ulps(got, want) > 2 {
			t.Fatalf("log(%v) = %v, math has %v", x, got, want)
		}
		y := rapid.Float64Range(-740, 709).Draw(t, "y")
		if got, want := exp(y), math.Exp(y); ulps(got, want) > 2 {
			t.Fatalf("exp(%v) = %v, math has %v", y, got, want)
		}
	})
	inf := math.Inf(1)
	for _, c := range [][2]float64{
		{log(1), 0}, {log(0), -inf}, {log(inf), inf}, {exp(0), 1}, {exp(-inf), 0}, {exp(inf), inf}, {exp(710),
			inf}, {exp(-746), 0},
	} {
		if c[0] != c[1] {
			t.Errorf("%v, want %v", c[0], c[1])
		}
	}
	if !math.IsNaN(log(-1)) || !math.IsNaN(log(math.NaN())) || !math.IsNaN(exp(math.NaN())) {
		t.Error("what is no number should stay none")
	}
}

func TestUniformStaysInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := New(rapid.Uint64().Draw(t, "seed"))
		lo := rapid.Float64Range(1e-6, 1e6).Draw(t, "lo")
		hi := lo + rapid.Float64Range(0, 1e6).Draw(t, "width")
		for range 20 {
			if u := r.Float64(); u < 0 || u >= 1 {
				t.Fatalf("Float64: %v", u)
			}
			if u := r.Uniform(lo, hi); u < lo || u > hi {
				t.Fatalf("Uniform(%v, %v): %v", lo, hi, u)
			}
			if u := r.LogUniform(lo, hi); u < lo*(1-1e-14) || u > hi*(1+1e-14) {
				t.Fatalf("LogUniform(%v, %v): %v", lo, hi, u)
			}
		}
	})
}

// fits fails when the counts are further from their shares than chance goes once in a million.
func fits(t *testing.T, what string, got []int, share ...float64) {
	t.Helper()
	if z := xrandtest.Deviate(got, share...); z > 4.75 {
		t.Errorf("%s: %.1f standard deviations from what it should be: %v", what, z, got)
	}
}

func TestUniformity(t *testing.T) {
	const draws = 200_000
	for _, n := range []int{2, 3, 6, 10, 100} {
		r, got := New(uint64(n)), make([]int, n)
		for range draws {
			got[r.IntN(n)]++
		}
		fits(t, fmt.Sprintf("IntN(%d)", n), got)
	}
	r, low, high, float, logs := New(99), make([]int, 64), make([]int, 64), make([]int, 64), make([]int, 64)
	for range draws {
		u := r.Uint64()
		low[u&63]++
		high[u>>58]++
		float[int(64*r.Float64())]++
		logs[min(int(64*(math.Log(r.LogUniform(0.5, 8))-math.Log(0.5))/math.Log(16)), 63)]++
	}
	fits(t, "low bits", low)
	fits(t, "high bits", high)
	fits(t, "Float64", float)
	fits(t, "LogUniform", logs)
}

// With n = 3/4 of 2^64 the multiplication alone, without Lemire's rejection, would give every third number twice as
// often.
func TestUint64nIsUnbiased(t *testing.T) {
	r, got, biased := New(3), make([]int, 3), make([]int, 3)
	for range 100_000 {
		v := r.Uint64n(3 << 62)
		if v >= 3<<62 {
			t.Fatalf("Uint64n gave %d", v)
		}
		got[v%3]++
		u := r.Uint64()
		biased[(u/4*3+u%4*3/4)%3]++ // floor(u*3/4)
	}
	fits(t, "Uint64n(3<<62) mod 3", got)
	fits(t, "the biased way mod 3", biased, .5, .25, .25)
}

func TestShuffleIsUniform(t *testing.T) {
	r, got, at := New(4), make([]int, 24), map[[4]int]int{}
	for range 50_000 {
		p := [4]int{0, 1, 2, 3}
		r.Shuffle(4, func(i, j int) { p[i], p[j] = p[j], p[i] })
		if _, ok := at[p]; !ok {
			at[p] = len(at)
		}
		got[at[p]]++
	}
	fits(t, "orders of four", got)
}

// A split stream must not repeat its parent, nor two splits each other.
func TestSplitIsIndependent(t *testing.T) {
	r := New(1)
	a, b := r.Split(), r.Split()
	same := make([]int, 16)
	for range 100_000 {
		same[(a.Uint64()^b.Uint64())&3|(a.Uint64()^r.Uint64())&3<<2]++
	}
	fits(t, "differences between streams", same)
}

// TestNormal compares with the distribution function, by the Kolmogorov-Smirnov distance.
func TestNormal(t *testing.T) {
	const n = 50000
	r, v := New(9), make([]float64, n)
	for i := range v {
		v[i] = r.Normal()
	}
	slices.Sort(v)
	d := 0.0
	for i, x := range v {
		f := 0.5 * math.Erfc(-x/math.Sqrt2)
		d = max(d, f-float64(i)/n, float64(i+1)/n-f)
	}
	if limit := math.Sqrt(-math.Log(1e-5/2) / (2 * n)); d > limit {
		t.Errorf("distance %.4f exceeds %.4f", d, limit)
	}
}
