package prep

import (
	"math"
	"slices"
	"testing"

	"larder/internal/xrand"
)

// The parameters that ops draw, against the distributions that torchvision documents. Seeds are fixed.

const drawn = 20000

// drawsOf are the parameters that one op draws for images of w x h.
func drawsOf(t *testing.T, o OpSpec, w, h int) []map[string]any {
	t.Helper()
	r := parse(t, o)
	all := make([]map[string]any, drawn)
	for i := range all {
		all[i] = r.Params(0, RandKey{Seed: 17, Instance: uint32(i % 7), Sample: uint64(i)}, w, h)
	}
	return all
}

func column(all []map[string]any, name string) []float64 {
	var col []float64
	for _, p := range all {
		if apply, ok := p["apply"].(bool); ok && !apply && name != "apply" {
			continue
		}
		switch v := p[name].(type) {
		case float64:
			col = append(col, v)
		case int:
			col = append(col, float64(v))
		}
	}
	return col
}

func uniform(lo, hi float64) func(float64) float64 {
	return func(v float64) float64 { return min(max((v-lo)/(hi-lo), 0), 1) }
}

// share fails unless got of n is p of them, within what chance leaves once in 100,000 times.
func share(t *testing.T, what string, got, n int, p float64) {
	t.Helper()
	const z = 4.42
	if d := math.Abs(float64(got) - float64(n)*p); d > z*math.Sqrt(float64(n)*p*(1-p))+0.5 {
		t.Errorf("%s: %d of %d, expected %.1f", what, got, n, float64(n)*p)
	}
}

// TestUniformDraws: angles, factors, shears, shifts and sigma are uniform within their bounds.
func TestUniformDraws(t *testing.T) {
	affine := drawsOf(t, spec("RandomAffine", "degrees", []any{-20.0, 70.0}, "translate", []any{0.2, 0.4}, "scale",
		[]any{0.5, 1.5}, "shear", []any{-5.0, 15.0, -30.0, -10.0}), 1000, 5000)
	limit := ksLimit(drawn, alpha)
	for _, c := range []struct {
		name   string
		col    []float64
		lo, hi float64
		whole  float64 // the width of a step of whole numbers, as a share of the range
	}{
		{"sigma", column(drawsOf(t, spec("GaussianBlur", "kernel_size", 5.0), 9, 9), "sigma"), 0.1, 2, 0},
		{"angle", column(drawsOf(t, spec("RandomRotation", "degrees", 30.0), 9, 9), "angle"), -30, 30, 0},
		{"angle of affine", column(affine, "angle"), -20, 70, 0}, {"scale", column(affine, "scale"), 0.5, 1.5, 0},
		{"shear x", column(affine, "shear_x"), -5, 15, 0}, {"shear y", column(affine, "shear_y"), -30, -10, 0},
		{"shift x", column(affine, "translate_x"), -200, 200, 1.0 / 400},
		{"shift y", column(affine, "translate_y"), -2000, 2000, 1.0 / 4000},
	} {
		if lo, hi := slices.Min(c.col), slices.Max(c.col); lo < c.lo || hi > c.hi {
			t.Errorf("%s: from %g to %g, not within %g and %g", c.name, lo, hi, c.lo, c.hi)
		}
		if d := ks(c.col, uniform(c.lo, c.hi)); d > limit+c.whole {
			t.Errorf("%s: distance %.4f exceeds %.4f", c.name, d, limit+c.whole)
		}
	}
}

// TestChances: ops with a probability have it, and nothing else decides.
func TestChances(t *testing.T) {
	for name, o := range map[string]OpSpec{
		"RandomAutocontrast": spec("RandomAutocontrast", "p", 0.2), "RandomEqualize": spec("RandomEqualize", "p", 0.2),
		"RandomInvert": spec("RandomInvert", "p", 0.2), "RandomSolarize": spec("RandomSolarize", "threshold", 9.0, "p", 0.2),
		"RandomPosterize":       spec("RandomPosterize", "bits", 4.0, "p", 0.2),
		"RandomAdjustSharpness": spec("RandomAdjustSharpness", "sharpness_factor", 2.0, "p", 0.2),
		"RandomErasing":         spec("RandomErasing", "p", 0.2),
	} {
		n := 0
		for _, p := range drawsOf(t, o, 400, 300) {
			if p["apply"].(bool) {
				n++
			}
		}
		share(t, name, n, drawn, 0.2)
	}
}

// TestEraseDraws: in a large square image with small boxes no try is rejected, so that area and ratio are uniform and
// log-uniform, and the place is uniform over what the box leaves.
func TestEraseDraws(t *testing.T) {
	const side = 20000
	all := drawsOf(t, spec("RandomErasing", "p", 1.0, "scale", []any{0.02, 0.25}), side, side)
	w, h := column(all, "width"), column(all, "height")
	left, top := column(all, "left"), column(all, "top")
	area, ratio := make([]float64, len(w)), make([]float64, len(w))
	for i := range w {
		area[i], ratio[i] = w[i]*h[i]/(side*side), math.Log(h[i]/w[i])
		left[i], top[i] = (left[i]+0.5)/(side-w[i]+1), (top[i]+0.5)/(side-h[i]+1)
	}
	limit := ksLimit(drawn, alpha) + 20.0/side // boxes have whole pixels
	for name, d := range map[string]float64{
		"area": ks(area, uniform(0.02, 0.25)), "ratio": ks(ratio, uniform(math.Log(0.3), math.Log(3.3))),
		"left": ks(left, uniform(0, 1)), "top": ks(top, uniform(0, 1)),
	} {
		if d > limit || len(w) != drawn {
			t.Errorf("%s: %d boxes, distance %.4f exceeds %.4f", name, len(w), d, limit)
		}
	}
	// Where the box can never be smaller than the image, nothing is erased; and a box never reaches out of it.
	for _, c := range [][2]int{{1, 1}, {1, 300}, {7, 5}, {3000, 2}} {
		for _, p := range drawsOf(t, spec("RandomErasing", "p", 1.0, "scale", []any{0.0, 1.0}), c[0], c[1]) {
			x, y, bw, bh := p["left"].(int), p["top"].(int), p["width"].(int), p["height"].(int)
			if x < 0 || y < 0 || bw < 0 || bh < 0 || x+bw > c[0] || y+bh > c[1] {
				t.Fatalf("%v: %v", c, p)
			}
		}
	}
}

// counted counts the ops drawn, their magnitudes and their signs.
type counted struct {
	ops        map[string]int
	negative   map[string]int
	magnitudes map[string]map[float64]int
	total      int
}

func count(all []map[string]any) counted {
	c := counted{map[string]int{}, map[string]int{}, map[string]map[float64]int{}, 0}
	for _, p := range all {
		for i, name := range p["ops"].([]string) {
			m := p["magnitudes"].([]float64)[i]
			c.total++
			c.ops[name]++
			if math.Signbit(m) {
				c.negative[name]++
			}
			if c.magnitudes[name] == nil {
				c.magnitudes[name] = map[float64]int{}
			}
			c.magnitudes[name][math.Abs(m)]++
		}
	}
	return c
}

// TestAutoDraws: RandAugment and TrivialAugmentWide take every one of fourteen ops as often, those with a sign in both,
// and TrivialAugmentWide every magnitude. AutoAugment takes each pair as often, and its ops with their probabilities.
func TestAutoDraws(t *testing.T) {
	rand := count(drawsOf(t, spec("RandAugment", "num_ops", 3.0), 331, 662))
	wide := count(drawsOf(t, spec("TrivialAugmentWide"), 331, 662))
	if rand.total != 3*drawn || wide.total != drawn || len(rand.ops) != 14 || len(wide.ops) != 14 {
		t.Fatalf("%d and %d ops of %d and %d kinds", rand.total, wide.total, len(rand.ops), len(wide.ops))
	}
	for k := range autoInvert {
		name := autoNames[k]
		share(t, "RandAugment "+name, rand.ops[name], rand.total, 1.0/14)
		share(t, "TrivialAugmentWide "+name, wide.ops[name], wide.total, 1.0/14)
		if k.signed() {
			share(t, name+" below 0", rand.negative[name], rand.ops[name], 0.5)
			share(t, name+" below 0", wide.negative[name], wide.ops[name], 0.5)
		} else if rand.negative[name]+wide.negative[name] > 0 {
			t.Errorf("%s has a sign", name)
		}
		if len(rand.magnitudes[name]) != 1 {
			t.Errorf("RandAugment: %s has the magnitudes %v", name, rand.magnitudes[name])
		}
		bins := map[bool]int{true: 31, false: 1}[k.strength()]
		if k == autoPosterize { // 8 to 2 bits
			bins = 7
		}
		if len(wide.magnitudes[name]) != bins {
			t.Errorf("TrivialAugmentWide: %s has %d magnitudes, not %d", name, len(wide.magnitudes[name]), bins)
		}
		if bins == 31 {
			for m, n := range wide.magnitudes[name] {
				share(t, name+" of one magnitude", n, wide.ops[name], 1.0/31)
				if m < 0 || m > 255 {
					t.Errorf("%s: magnitude %g", name, m)
				}
			}
		}
	}
	for name, want := range map[string]float64{"ShearX": 0.09, "TranslateX": 45, "TranslateY": 90, "Rotate": 9,
		"Brightness": 0.27, "Solarize": 178.5, "Posterize": 7} { // magnitude 9 of 30
		for m := range rand.magnitudes[name] {
			if math.Abs(m-want) > 1e-4 {
				t.Errorf("%s: magnitude %g, not %g", name, m, want)
			}
		}
	}
	for policy, pairs := range autoPolicies {
		want := map[string]float64{}
		for _, pair := range pairs {
			for _, e := range pair {
				want[autoNames[e.kind]] += e.p / float64(len(pairs))
			}
		}
		got := count(drawsOf(t, spec("AutoAugment", "policy", policy), 331, 331))
		for name, mean := range want { // an op may come twice in a sample
			if d := math.Abs(float64(got.ops[name]) - mean*drawn); d > 4.42*math.Sqrt(2*mean*drawn) {
				t.Errorf("%s %s: %d times, expected %.0f", policy, name, got.ops[name], mean*drawn)
			}
		}
		if len(pairs) != 25 || len(got.ops) > len(want) {
			t.Errorf("%s: %d pairs, ops %v", policy, len(pairs), got.ops)
		}
	}
}

// TestErasedNoise: random values follow the standard normal distribution.
func TestErasedNoise(t *testing.T) {
	r := parse(t, spec("CenterCrop", "size", 64.0), spec("ToTensor"), spec("RandomErasing", "p", 1.0, "value", "random"))
	w := NewWorker(Limits{})
	defer w.Close()
	img := newImage(make([]byte, 64*64*3), 64, 64)
	dst := make([]byte, r.Output().SampleBytes)
	var noise []float64
	for i := range 20 {
		if err := w.Finish(r, img, RandKey{Sample: uint64(i)}, dst); err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(dst); at += 4 {
			if v := math.Float32frombits(floatAt(dst[at:])); v != 0 { // the image is black
				noise = append(noise, float64(v))
			}
		}
	}
	normal := func(v float64) float64 { return 0.5 * math.Erfc(-v/math.Sqrt2) }
	if d := ks(noise, normal); len(noise) < 5000 || d > ksLimit(len(noise), alpha) {
		t.Errorf("%d values, distance %.4f exceeds %.4f", len(noise), d, ksLimit(len(noise), alpha))
	}
}

// TestOddImages: every op works on images of one pixel, one row and one column, and gives what the twin gives.
func TestOddImages(t *testing.T) {
	w, twin := NewWorker(Limits{}), NewWorker(Limits{})
	defer w.Close()
	defer twin.Close()
	twin.level = 0
	rnd := xrand.New(8)
	for _, side := range [][2]int{{1, 1}, {1, 2}, {2, 1}, {1, 4000}, {4000, 1}, {2, 2}, {3, 3}, {2, 900}} {
		img := draw(side[0], side[1], rnd.Uint64())
		for kind, specs := range sharedOps {
			if kind >= opToDtype {
				continue
			}
			for _, s := range specs {
				if s.Args["num_output_channels"] == 1.0 {
					continue // needs a fixed size
				}
				r := parse(t, s)
				key := RandKey{Seed: rnd.Uint64()}
				whole := Recipe{ops: r.ops, imageOps: r.imageOps, channels: 3, out: r.out} // nothing in the prefix
				a, err := w.Augment(&whole, img, key, heap)
				if err != nil {
					t.Fatalf("%v on %v: %v", s, side, err)
				}
				b, err := twin.Augment(&whole, img, key, heap)
				if err != nil || a.W != b.W || a.H != b.H || !slices.Equal(a.Pix, b.Pix) {
					t.Errorf("%v on %v: differs from the twin, or %v", s, side, err)
				}
			}
		}
	}
}

// FuzzOddImages: any op on an image of any size gives what the Go twin gives, or the same refusal.
func FuzzOddImages(f *testing.F) {
	f.Add(uint16(1), uint16(1), uint64(1), uint8(0))
	f.Add(uint16(1), uint16(700), uint64(2), uint8(1))
	f.Add(uint16(65), uint16(3), uint64(3), uint8(7))
	var specs []OpSpec
	for kind := range numOpKinds {
		for _, s := range sharedOps[kind] {
			if kind < opToDtype && s.Args["num_output_channels"] != 1.0 {
				specs = append(specs, s)
			}
		}
	}
	w, twin := NewWorker(Limits{}), NewWorker(Limits{})
	twin.level = 0
	f.Fuzz(func(t *testing.T, width, height uint16, seed uint64, pick uint8) {
		wide, high := 1+int(width)%700, 1+int(height)%700
		if wide*high > 20000 {
			high = 1 + 20000/wide
		}
		r := parse(t, specs[int(pick)%len(specs)], specs[int(seed%uint64(len(specs)))])
		whole := Recipe{ops: r.ops, imageOps: r.imageOps, channels: 3, out: r.out} // nothing in the prefix
		img, key := draw(wide, high, seed), RandKey{Seed: seed}
		a, err := w.Augment(&whole, img, key, heap)
		b, twinErr := twin.Augment(&whole, img, key, heap)
		if (err == nil) != (twinErr == nil) || a.W != b.W || a.H != b.H || !slices.Equal(a.Pix, b.Pix) {
			t.Fatalf("%v on %d x %d differs from the twin, %v and %v", r.Ops(), wide, high, err, twinErr)
		}
	})
}
