package prep

import (
	"bytes"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// The naive twin: one op after the other on whole images, one value at a time, nothing fused.

func (img Image) at(x, y, c int) uint8 { return img.Pix[(y*img.W+x)*3+c] }

func naiveMap(w, h int, f func(x, y, c int) uint8) Image {
	out := newImage(make([]byte, w*h*3), w, h)
	for y := range h {
		for x := range w {
			for c := range 3 {
				out.Pix[(y*w+x)*3+c] = f(x, y, c)
			}
		}
	}
	return out
}

func naiveCrop(img Image, b box) Image {
	return naiveMap(b.w, b.h, func(x, y, c int) uint8 {
		x, y = x+b.x, y+b.y
		if x < 0 || y < 0 || x >= img.W || y >= img.H {
			return 0
		}
		return img.at(x, y, c)
	})
}

// naiveWeights are Pillow's weights of output pixel x, by source pixel.
func naiveWeights(in, out, x int, f filter) map[int]int64 {
	scale := float64(in) / float64(out)
	fs := math.Max(scale, 1)
	support := f.support() * fs
	center := (float64(x) + 0.5) * scale
	lo, hi := int(math.Max(center-support+0.5, 0)), int(math.Min(center+support+0.5, float64(in)))
	raw, sum := map[int]float64{}, 0.0
	for i := lo; i < hi; i++ {
		raw[i] = f.weight((float64(i) - center + 0.5) * (1 / fs))
		sum += raw[i]
	}
	fixed := map[int]int64{}
	for i, v := range raw {
		fixed[i] = int64(math.Copysign(math.Trunc(math.Abs(v/sum*(1<<22))+0.5), v))
	}
	return fixed
}

func naiveResize(img Image, w, h int, f filter) Image {
	if w == img.W && h == img.H {
		return img
	}
	if f == nearestSample {
		tx, ty := nearestTable(nil, img.W, w), nearestTable(nil, img.H, h)
		return naiveMap(w, h, func(x, y, c int) uint8 { return img.at(int(tx[x]), int(ty[y]), c) })
	}
	round := func(v int64) uint8 { return uint8(min(max((v+1<<21)>>22, 0), 255)) }
	if w != img.W {
		in := img
		img = naiveMap(w, in.H, func(x, y, c int) uint8 {
			var v int64
			for i, k := range naiveWeights(in.W, w, x, f) {
				v += k * int64(in.at(i, y, c))
			}
			return round(v)
		})
	}
	if h != img.H {
		in := img
		img = naiveMap(w, h, func(x, y, c int) uint8 {
			var v int64
			for i, k := range naiveWeights(in.H, h, y, f) {
				v += k * int64(in.at(x, i, c))
			}
			return round(v)
		})
	}
	return img
}

// naive runs the image ops of r with the parameters that Params reports.
func naive(r *Recipe, img Image, key RandKey) Image {
	for i := range r.ops[:r.imageOps] {
		o, p := &r.ops[i], r.Params(i, key, img.W, img.H)
		switch o.kind {
		case opResize:
			img = naiveResize(img, p["width"].(int), p["height"].(int), o.filter)
		case opCenterCrop, opRandomResizedCrop:
			img = naiveCrop(img, box{p["left"].(int), p["top"].(int), p["width"].(int), p["height"].(int)})
			if o.kind == opRandomResizedCrop {
				img = naiveResize(img, o.w, o.h, o.filter)
			}
		case opHFlip, opVFlip:
			if in := img; p["flip"].(bool) {
				img = naiveMap(in.W, in.H, func(x, y, c int) uint8 {
					if o.kind == opHFlip {
						return in.at(in.W-1-x, y, c)
					}
					return in.at(x, in.H-1-y, c)
				})
			}
		case opColorJitter:
			img = naiveCrop(img, box{w: img.W, h: img.H})
			for _, k := range p["order"].([]int) {
				switch {
				case !o.jitter[k].on:
				case k == 0:
					blendTowards(img.Pix, 0, float32(p["brightness"].(float64)))
				case k == 1:
					blendTowards(img.Pix, meanLuma(img.Pix), float32(p["contrast"].(float64)))
				case k == 2:
					saturate(img.Pix, float32(p["saturation"].(float64)))
				case k == 3:
					shiftHue(img.Pix, hueShift(p["hue"].(float64)))
				}
			}
		case opGrayscale:
			img = naiveCrop(img, box{w: img.W, h: img.H})
			gray(img.Pix)
		default:
			img = naiveMore(o, p, img)
		}
	}
	return img
}

// TestFusedEqualsNaive: whatever the planner joins, and wherever the recipe is cut, the pixels are those of one op
// after the other, and no input is written to.
func TestFusedEqualsNaive(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	rapid.Check(t, func(t *rapid.T) {
		r, err := ParseRecipe(rapid.SliceOfN(rapid.Custom(anyOp), 0, 5).Draw(t, "ops"))
		if err != nil {
			t.Fatal(err)
		}
		img := draw(rapid.IntRange(1, 50).Draw(t, "w"), rapid.IntRange(1, 50).Draw(t, "h"), rapid.Uint64().Draw(t, "picture"))
		key := RandKey{Seed: rapid.Uint64().Draw(t, "seed"), Instance: 2, Sample: 7}
		want := naive(r, img, key)
		enc := bmp24(img)
		dw, dh, _, err := w.DecodedShape(r, enc)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := w.Decode(r, enc, heap)
		if err != nil || decoded.W != dw || decoded.H != dh {
			t.Fatalf("decoded %d x %d, shape %d x %d, error %v", decoded.W, decoded.H, dw, dh, err)
		}
		before := append([]byte(nil), decoded.Pix...)
		got, err := w.Augment(r, decoded, key, heap)
		if err != nil || got.W != want.W || got.H != want.H {
			t.Fatalf("augmented %d x %d, want %d x %d, error %v", got.W, got.H, want.W, want.H, err)
		}
		if !bytes.Equal(got.Pix, want.Pix) {
			t.Fatalf("Augment differs from the naive twin: %v on %d x %d", r.Ops(), img.W, img.H)
		}
		o := r.Output()
		n := o.SampleBytes
		if o.Ragged {
			n = len(want.Pix)
		}
		a, b, c := make([]byte, n), make([]byte, n), make([]byte, n)
		if err := w.Finish(r, got, key, a); err != nil {
			t.Fatal(err)
		}
		if err := w.AugmentInto(r, decoded, key, b); err != nil {
			t.Fatal(err)
		}
		if err := w.DecodeInto(r, enc, key, c); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) || !bytes.Equal(a, c) {
			t.Fatalf("AugmentInto or DecodeInto differs from Augment and Finish: %v", r.Ops())
		}
		if !bytes.Equal(before, decoded.Pix) {
			t.Fatal("the decoded image was changed")
		}
	})
}

// TestResizeExtremes: many taps, one pixel, thin images; lanes must neither overflow nor borrow.
func TestResizeExtremes(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	for _, c := range [][4]int{{1, 1, 300, 200}, {20000, 1, 1, 1}, {1, 10000, 1, 3}, {9000, 2, 3, 2}, {3, 2, 2, 5},
		{8193, 1, 4, 1}, {200, 3, 199, 3}} {
		for _, fill := range []string{"white", "checks", "drawn"} {
			img := draw(c[0], c[1], 3)
			for i := range img.Pix {
				switch fill {
				case "white":
					img.Pix[i] = 255
				case "checks":
					img.Pix[i] = uint8(255 * (i / 3 % 2))
				}
			}
			for _, f := range []filter{bilinear, bicubic, nearestSample} {
				s := step{kind: stepGeo, filter: f, src: box{w: c[0], h: c[1]}, rw: c[2], rh: c[3], win: box{w: c[2], h: c[3]}}
				got := w.run([]step{s}, img, nil, c[2], c[3])
				if want := naiveResize(img, c[2], c[3], f); !bytes.Equal(got.Pix, want.Pix) {
					t.Errorf("%v %s filter %d: got %v…, want %v…", c, fill, f, got.Pix[:3], want.Pix[:3])
				}
			}
		}
	}
}
