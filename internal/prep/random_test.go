package prep

import (
	"math"
	"sort"
	"testing"
)

// ks is the Kolmogorov-Smirnov distance of x from a distribution function.
func ks(x []float64, cdf func(float64) float64) float64 {
	sort.Float64s(x)
	d := 0.0
	for i, v := range x {
		f := cdf(v)
		d = max(d, f-float64(i)/float64(len(x)), float64(i+1)/float64(len(x))-f)
	}
	return d
}

// ksLimit is the distance that a true sample of n exceeds with probability alpha (asymptotic: sqrt(-ln(alpha/2)/2n)).
func ksLimit(n int, alpha float64) float64 { return math.Sqrt(-math.Log(alpha/2) / (2 * float64(n))) }

const alpha = 1e-5 // false alarms per test; seeds are fixed, so the outcome is too

// TestCropDistribution: on a large square image with small crops nothing is rejected, so area and ratio must follow
// exactly what torchvision draws, and positions must be uniform over what the box leaves.
func TestCropDistribution(t *testing.T) {
	const n, side = 20000, 20000
	r := parse(t, spec("RandomResizedCrop", "size", 224.0, "scale", []any{0.08, 0.6}))
	var area, ratio, top, left []float64
	for i := range n {
		p := r.Params(0, RandKey{Seed: 11, Instance: uint32(i % 7), Sample: uint64(i)}, side, side)
		w, h := float64(p["width"].(int)), float64(p["height"].(int))
		area = append(area, w*h/(side*side))
		ratio = append(ratio, math.Log(w/h))
		left = append(left, (float64(p["left"].(int))+0.5)/(side-w+1))
		top = append(top, (float64(p["top"].(int))+0.5)/(side-h+1))
	}
	limit := ksLimit(n, alpha)
	uni := func(lo, hi float64) func(float64) float64 {
		return func(v float64) float64 { return min(max((v-lo)/(hi-lo), 0), 1) }
	}
	lo, hi := math.Log(0.75), math.Log(4.0/3)
	for name, d := range map[string]float64{
		"area": ks(area, uni(0.08, 0.6)), "log ratio": ks(ratio, uni(lo, hi)), "top": ks(top, uni(0, 1)), "left": ks(left,
			uni(0, 1)),
	} {
		// Boxes have whole pixels, which moves area and ratio by about 1/side.
		if d > limit+2.0/side*10 {
			t.Errorf("%s: distance %.4f exceeds %.4f", name, d, limit)
		}
	}
}

// TestCropBounds: boxes always lie inside, and the fallback is torchvision's: the largest centred box of an allowed
// ratio.
func TestCropBounds(t *testing.T) {
	r := parse(t, spec("RandomResizedCrop", "size", 224.0, "scale", []any{0.9, 1.0}))
	for _, c := range []struct{ w, h, bw, bh, x, y int }{
		{1000, 10, 13, 10, 493, 0}, {10, 1000, 10, 13, 0, 493}, {1, 1, 1, 1, 0, 0}, {5, 1, 1, 1, 2, 0}, {2000, 3, 4, 3,
			998, 0},
	} {
		p := r.Params(0, RandKey{Seed: 5}, c.w, c.h)
		if p["width"] != c.bw || p["height"] != c.bh || p["left"] != c.x || p["top"] != c.y {
			t.Errorf("%d x %d: %v, want %+v", c.w, c.h, p, c)
		}
	}
	r = parse(t, spec("RandomResizedCrop", "size", 224.0, "scale", []any{0.0, 2.0}, "ratio", []any{1e-6, 1e6}))
	for i := range 3000 {
		w, h := 1+i%37, 1+i%53
		p := r.Params(0, RandKey{Seed: 9, Sample: uint64(i)}, w, h)
		x, y, bw, bh := p["left"].(int), p["top"].(int), p["width"].(int), p["height"].(int)
		if x < 0 || y < 0 || bw < 1 || bh < 1 || x+bw > w || y+bh > h {
			t.Fatalf("%d x %d: %v", w, h, p)
		}
	}
}

// TestFlipAndJitterDistribution: flips have their probability, factors are uniform, the 24 orders equally likely, and
// the parameters of one op say nothing about those of another.
func TestFlipAndJitterDistribution(t *testing.T) {
	const n = 24000
	r := parse(t, spec("HFlip", "p", 0.3), spec("HFlip", "p", 0.3), spec("ColorJitter", "brightness", []any{0.2, 1.4},
		"hue", 0.25))
	var b, h []float64
	flips, both := 0, 0
	orders := map[[4]int]int{}
	for i := range n {
		key := RandKey{Seed: 1, Instance: uint32(i / 1000), Sample: uint64(i % 1000)}
		f, g := r.Params(0, key, 9, 9)["flip"].(bool), r.Params(1, key, 9, 9)["flip"].(bool)
		if f {
			flips++
		}
		if f && g {
			both++
		}
		p := r.Params(2, key, 9, 9)
		b, h = append(b, p["brightness"].(float64)), append(h, p["hue"].(float64))
		orders[[4]int(p["order"].([]int))]++
	}
	const z = 4.42 // normal deviate of alpha, two-sided
	near := func(name string, got int, p float64) {
		t.Helper()
		if d := math.Abs(float64(got)-n*p) / math.Sqrt(n*p*(1-p)); d > z {
			t.Errorf("%s: %d of %d, %.1f standard deviations off", name, got, n, d)
		}
	}
	near("flips", flips, 0.3)
	near("both flips", both, 0.09)
	if len(orders) != 24 {
		t.Errorf("%d orders", len(orders))
	}
	for o, c := range orders {
		near(string(rune('0'+o[0])), c, 1.0/24)
	}
	limit := ksLimit(n, alpha)
	if d := ks(b, func(v float64) float64 { return (v - 0.2) / 1.2 }); d > limit {
		t.Errorf("brightness: %g > %g", d, limit)
	}
	if d := ks(h, func(v float64) float64 { return (v + 0.25) / 0.5 }); d > limit {
		t.Errorf("hue: %g > %g", d, limit)
	}
}

func TestHueShift(t *testing.T) {
	for f, want := range map[float64]uint8{0: 0, 0.5: 127, -0.5: 129, 0.1: 25, -0.1: 231, 0.003: 0, -0.003: 0,
		-0.004: 255} {
		if got := hueShift(f); got != want {
			t.Errorf("%g: %d, want %d", f, got, want)
		}
	}
}

func TestResizedSize(t *testing.T) {
	for _, c := range []struct{ w, h, short, most, rw, rh int }{
		{500, 375, 256, 0, 341, 256}, {375, 500, 256, 0, 256, 341}, {100, 100, 7, 0, 7, 7}, {1000, 10, 50, 60, 60, 1}, {1000,
			500, 50, 60, 60, 30}, {10000, 1, 50, 60, 60, 1},
	} {
		o := op{short: c.short, maxSide: c.most}
		if w, h := o.resized(c.w, c.h); w != c.rw || h != c.rh {
			t.Errorf("%+v: %d x %d", c, w, h)
		}
	}
}
