package prep

import (
	"math"
	"reflect"
	"testing"
)

// TestCastByProduct: ToDtype with by="mul" gives v * (1/255) rounded to float32, as torchvision v2 computes it. The
// test takes every value in every layout, at every level of the kernels, with and without Normalize. The expressions
// here round once from float64, which gives the bits of float32.
func TestCastByProduct(t *testing.T) {
	const side = 16
	img := newImage(make([]byte, 3*side*side), side, side)
	for i := range side * side {
		img.Pix[3*i], img.Pix[3*i+1], img.Pix[3*i+2] = byte(i), byte(255-i), byte(i+77)
	}
	inverse := float64(float32(1.0 / 255))
	size := spec("Resize", "size", []any{float64(side), float64(side)})
	grey := spec("Grayscale", "num_output_channels", 1.0)
	again := spec("Normalize", "mean", []any{0.1, 0.2, 0.5}, "std", []any{0.25, 0.3, 0.7})
	for _, c := range []struct {
		name string
		ops  []OpSpec
		by   [][2][]float64 // mean and std of each Normalize
	}{
		{"CHW", []OpSpec{size, spec("ToDtype", "by", "mul")}, nil},
		{"HWC", []OpSpec{size, spec("ToDtype", "by", "mul", "layout", "HWC")}, nil},
		{"one channel", []OpSpec{size, grey, spec("ToDtype", "by", "mul")}, nil},
		{"normalised", []OpSpec{size, spec("ToImage"), spec("ToDtype", "by", "mul"), imagenet},
			[][2][]float64{{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}}},
		{"normalised HWC", []OpSpec{size, spec("ToDtype", "by", "mul", "layout", "HWC"), imagenet},
			[][2][]float64{{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}}},
		{"normalised twice", []OpSpec{size, spec("ToDtype", "by", "MUL"), imagenet, again},
			[][2][]float64{{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}, {{0.1, 0.2, 0.5}, {0.25, 0.3, 0.7}}}},
	} {
		r := parse(t, c.ops...)
		if fast := bestLevel > 0 && r.out.Layout == CHW && r.channels == 3 && len(c.by) < 2; fast != r.affine.ok {
			t.Errorf("%s: arithmetic of the kernels: %v, level %d", c.name, r.affine.ok, bestLevel)
		}
		w := NewWorker(Limits{})
		for level := 0; level <= bestLevel; level++ {
			w.level = level
			got := make([]byte, r.Output().SampleBytes)
			if err := w.Finish(r, img, RandKey{}, got); err != nil {
				t.Fatal(err)
			}
			products := 0
			for i := range side * side {
				for ch := range r.channels {
					at := ch*side*side + i
					if r.out.Layout == HWC {
						at = i*r.channels + ch
					}
					v := img.Pix[3*i+ch]
					x := float32(float64(v) * inverse)
					if x != float32(v)/255 {
						products++
					}
					for _, by := range c.by {
						d := float32(float64(x) - float64(float32(by[0][ch])))
						x = float32(float64(d) / float64(float32(by[1][ch])))
					}
					if floatAt(got[4*at:]) != math.Float32bits(x) {
						t.Fatalf("%s, level %d: %d of channel %d is %x, not %x", c.name, level, v, ch, floatAt(got[4*at:]),
							math.Float32bits(x))
					}
				}
			}
			if products != 126*r.channels {
				t.Errorf("%s: %d values are no quotients", c.name, products)
			}
		}
		w.Close()
	}
}

// TestMeaningOfBy: the argument counts where floats are scaled, and nowhere else; the recipes that do not have it keep
// their canonical form, and so their fingerprints.
func TestMeaningOfBy(t *testing.T) {
	crop := spec("CenterCrop", "size", 8.0)
	cast := func(kv ...any) OpSpec { return spec("ToDtype", kv...) }
	mul := cast("by", "mul")
	same := [][2][]OpSpec{
		{{crop, cast("by", "div")}, {crop, spec("ToTensor")}},
		{{crop, cast("by", "mul", "scale", false)}, {crop, cast("scale", false)}},
		{{crop, cast("by", "mul", "dtype", "uint8")}, {crop, spec("ToImage")}},
		{{crop, spec("ToTensor"), mul}, {crop, spec("ToTensor")}}, // floats stay as they are
		{{crop, mul, spec("ToTensor")}, {crop, mul}},
		{{crop, mul, imagenet, cast("layout", "HWC")}, {crop, cast("by", "mul", "layout", "HWC"), imagenet}},
		{{crop, mul, cast("dtype", "uint8")}, {crop, spec("ToImage")}},
		{{crop, spec("ToImage"), mul}, {crop, mul}},
		{{crop, mul, cast("dtype", "uint8"), cast()}, {crop, cast()}},
	}
	for i, s := range same {
		a, b := parse(t, s[0]...), parse(t, s[1]...)
		if a.ID() != b.ID() || !reflect.DeepEqual(a.Ops(), b.Ops()) {
			t.Errorf("pair %d: %v is not %v", i, a.Ops(), b.Ops())
		}
	}
	plain := parse(t, crop, spec("ToTensor"))
	want := []OpSpec{crop, cast("dtype", "float32", "scale", true, "layout", "CHW")}
	want[0].Args = map[string]any{"size": []any{8.0, 8.0}}
	if got := plain.Ops(); !reflect.DeepEqual(got, want) {
		t.Errorf("ToTensor is %v, not %v", got, want)
	}
	product := parse(t, crop, mul)
	want[1].Args["by"] = "mul"
	if got := product.Ops(); !reflect.DeepEqual(got, want) {
		t.Errorf("a product is %v, not %v", got, want)
	}
	if product.ID() == plain.ID() || product.Prefix() != plain.Prefix() || product.SuffixID() != plain.SuffixID() {
		t.Error("by is a matter of the whole recipe, and of no part before the cast")
	}
	if again := parse(t, product.Ops()...); again.ID() != product.ID() {
		t.Error("the canonical form has another fingerprint")
	}
}
