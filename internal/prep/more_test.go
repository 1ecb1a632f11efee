package prep

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"larder/internal/errs"
	"larder/internal/xrand"
)

// naiveMore runs the ops of parseMore one value at a time with the parameters that Params reports. What has one
// implementation, the matrices and tables, is held to torchvision by the parity tests.
func naiveMore(o *op, p map[string]any, img Image) Image {
	switch o.kind {
	case opGaussianBlur:
		return naiveBlur(img, o.taps, p["sigma"].(float64))
	case opRandomRotation:
		return naiveRotate(img, p["angle"].(float64), o)
	case opRandomAffine:
		a := affineDraw{angle: p["angle"].(float64), tx: float64(p["translate_x"].(int)),
			ty: float64(p["translate_y"].(int)), scale: p["scale"].(float64), shearX: p["shear_x"].(float64),
			shearY: p["shear_y"].(float64), cx: float64(img.W) / 2, cy: float64(img.H) / 2}
		if o.center != nil {
			a.cx, a.cy = o.center[0], o.center[1]
		}
		return naiveAffine(img, a.matrix(), box{w: img.W, h: img.H}, o)
	case opAutocontrast, opEqualize, opInvert, opSolarize, opPosterize, opSharpness:
		if !p["apply"].(bool) {
			return img
		}
		if o.kind == opSharpness {
			return naiveSharpen(img, o.amount)
		}
		return naiveTable(tableSteps[o.kind], o.amount, img)
	case opErasePixels:
		b := box{p["left"].(int), p["top"].(int), p["width"].(int), p["height"].(int)}
		return naiveMap(img.W, img.H, func(x, y, c int) uint8 {
			if x >= b.x && x < b.x+b.w && y >= b.y && y < b.y+b.h {
				return o.fill[c]
			}
			return img.at(x, y, c)
		})
	case opRandAugment, opTrivialAugmentWide, opAutoAugment:
		for i, name := range p["ops"].([]string) {
			img = naiveAuto(name, p["magnitudes"].([]float64)[i], img, o)
		}
		return img
	default:
		return img
	}
}

func naiveAuto(name string, m float64, img Image, o *op) Image {
	shift := affineDraw{scale: 1, cx: float64(img.W) / 2, cy: float64(img.H) / 2}
	affine := func(a affineDraw) Image { return naiveAffine(img, a.matrix(), box{w: img.W, h: img.H}, o) }
	switch name {
	case "ShearX":
		return affine(affineDraw{scale: 1, shearX: degrees(arctangent(m))})
	case "ShearY":
		return affine(affineDraw{scale: 1, shearY: degrees(arctangent(m))})
	case "TranslateX":
		shift.tx = math.Trunc(m)
		return affine(shift)
	case "TranslateY":
		shift.ty = math.Trunc(m)
		return affine(shift)
	case "Rotate":
		return naiveRotate(img, m, o)
	case "Sharpness":
		return naiveSharpen(img, 1+m)
	case "Brightness", "Color", "Contrast":
		img = naiveCrop(img, box{w: img.W, h: img.H})
		switch f := float32(1 + m); {
		case f == 1:
		case name == "Brightness":
			blendTowards(img.Pix, 0, f)
		case name == "Color":
			saturate(img.Pix, f)
		default:
			blendTowards(img.Pix, meanLuma(img.Pix), f)
		}
		return img
	case "Identity":
		return img
	}
	kind := map[string]stepKind{"Posterize": stepPosterize, "Solarize": stepSolarize, "AutoContrast": stepAutocontrast,
		"Equalize": stepEqualize, "Invert": stepInvert}[name]
	return naiveTable(kind, m, img)
}

func naiveTable(kind stepKind, amount float64, img Image) Image {
	img = naiveCrop(img, box{w: img.W, h: img.H})
	new(Worker).applyTables(&step{kind: kind, amount: amount}, img.Pix)
	return img
}

func naiveRotate(img Image, angle float64, o *op) Image {
	r := rotated(angle, img.W, img.H, o.expand, o.center)
	if r.m != (matrix{}) {
		return naiveAffine(img, r.m, box{w: r.w, h: r.h}, o)
	}
	for range r.quarters {
		in := img
		img = naiveMap(in.H, in.W, func(x, y, c int) uint8 { return in.at(in.W-1-y, x, c) })
	}
	return img
}

// naiveAffine gives the pixels of a matrix one by one.
func naiveAffine(img Image, m matrix, size box, o *op) Image {
	if m.identity() {
		return img
	}
	s := step{kind: stepAffine, m: m, rw: size.w, rh: size.h, filter: o.filter, fill: o.fill}
	out := newImage(make([]byte, size.w*size.h*3), size.w, size.h)
	w := NewWorker(Limits{})
	w.level = 0
	w.affine(&s, img, out.Pix)
	return out
}

func naiveBlur(img Image, taps [2]int, sigma float64) Image {
	kx, ky := make([]float32, taps[0]), make([]float32, taps[1])
	gaussWeights(kx, sigma)
	gaussWeights(ky, sigma)
	return naiveMap(img.W, img.H, func(x, y, c int) uint8 {
		sum := float32(0)
		for i := range ky {
			for j := range kx {
				v := img.at(reflected(x+j-taps[0]/2, img.W), reflected(y+i-taps[1]/2, img.H), c)
				sum = fma32(float32(v), ky[i]*kx[j], sum)
			}
		}
		return uint8(min(math.RoundToEven(float64(sum)), 255))
	})
}

func naiveSharpen(img Image, factor float64) Image {
	if float32(factor) == 1 {
		return img
	}
	return naiveMap(img.W, img.H, func(x, y, c int) uint8 {
		v := img.at(x, y, c)
		if img.W < 3 || img.H < 3 || x == 0 || y == 0 || x == img.W-1 || y == img.H-1 {
			return v
		}
		sum := float32(0.5)
		for dy := 1; dy >= -1; dy-- {
			line := float32(0)
			for dx := -1; dx <= 1; dx++ {
				k := float32(1) / 13
				if dx == 0 && dy == 0 {
					k = float32(5) / 13
				}
				line += float32(float32(img.at(x+dx, y+dy, c)) * k)
			}
			sum += line
		}
		return blend(uint8(min(sum, 255)), v, float32(factor))
	})
}

// moreSteps draws one of the steps that kernel_more.h runs, for an image of width x height.
func moreSteps(rnd *xrand.Rand, width, height int) step {
	switch rnd.IntN(6) {
	case 0:
		return step{kind: stepBlur, taps: [2]int{1 + 2*rnd.IntN(12), 1 + 2*rnd.IntN(6)}, sigma: rnd.LogUniform(0.05, 9)}
	case 1:
		return step{kind: stepSharpness, f: float32(rnd.Uniform(0, 3))}
	}
	a := affineDraw{angle: rnd.Uniform(-180, 180), tx: float64(rnd.IntN(2*width+1) - width),
		scale: rnd.LogUniform(0.01, 30), shearX: rnd.Uniform(-89, 89),
		shearY: rnd.Uniform(-89, 89), cx: float64(width) / 2, cy: float64(height) / 2}
	if rnd.IntN(4) == 0 {
		a = affineDraw{tx: a.tx, ty: float64(rnd.IntN(9)), scale: 1, cx: a.cx, cy: a.cy}
	}
	s := step{kind: stepAffine, filter: filter(rnd.IntN(3)), rw: width, rh: height, m: a.matrix()}
	for c := range s.fill {
		s.fill[c] = byte(rnd.IntN(3) * rnd.IntN(128))
	}
	if rnd.IntN(3) == 0 {
		r := rotated(rnd.Uniform(-400, 400), width, height, rnd.IntN(2) == 0, nil)
		if r.m != (matrix{}) {
			s.m, s.rw, s.rh = r.m, r.w, r.h
		}
	}
	return s
}

// TestMoreKernelsEqualTwin: every instruction set gives the bits of the Go twin for matrices, blurs and sharpness, on
// odd sizes, and touches no byte outside of what it was given.
func TestMoreKernelsEqualTwin(t *testing.T) {
	if bestLevel == 0 {
		t.Skip("this build has no kernels in C")
	}
	const most = 1 << 20
	src, out := newFence(t, most), newFence(t, 4*most)
	twin, fast := NewWorker(Limits{}), NewWorker(Limits{})
	twin.level = 0
	rnd := xrand.New(3, 0x6d6f7265)
	for i := range src.mem {
		src.mem[i] = byte(rnd.IntN(256))
	}
	sides := []int{1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 130}
	n := kernelCases(t, 800)
	for i := range n {
		img := Image{W: sides[rnd.IntN(len(sides))], H: sides[rnd.IntN(len(sides))], C: 3}
		if rnd.IntN(20) == 0 { // thin
			img.W, img.H = 1+rnd.IntN(2), 1+rnd.IntN(3000)
			if rnd.IntN(2) == 0 {
				img.W, img.H = img.H, img.W
			}
		}
		img.Pix = src.last(img.W * img.H * 3)
		s := moreSteps(rnd, img.W, img.H)
		nw, nh := s.resultSize(img)
		if nw*nh*3 > len(out.mem) { // a thin image, turned
			continue
		}
		want := twin.run([]step{s}, img, make([]byte, nw*nh*3), nw, nh)
		for level := 1; level <= bestLevel; level++ {
			fast.level = level
			got := out.last(nw * nh * 3)
			for k := range got {
				got[k] = byte(k)
			}
			fast.run([]step{s}, img, got, nw, nh)
			if !bytes.Equal(got, want.Pix) {
				t.Fatalf("case %d, level %d: %d x %d, %+v: differs", i, level, img.W, img.H, s)
			}
		}
	}
	t.Logf("%d cases at %d levels (%s)", n, bestLevel, KernelName())
}

// TestTrigonometry: angles of all sizes have the sine, cosine, tangent and arctangent that Go's functions give, but for
// the last bits, and those of a C library in all bits.
func TestTrigonometry(t *testing.T) {
	for _, x := range []float64{0, 1e-300, 1e-9, 0.3, 0.7853981633974483, 1, 1.5707963267948966, 2, 3.141592653589793, 4.7,
		6.283185307179586, 31.4, 62.8} {
		for _, x := range []float64{x, -x} {
			for name, p := range map[string][2]float64{"sin": {sine(x), math.Sin(x)}, "cos": {cosine(x), math.Cos(x)},
				"tan": {tangent(x), math.Tan(x)}, "atan": {arctangent(x), math.Atan(x)}} {
				// Go's functions are good to a few units in the last place, but for multiples of pi/2.
				if d := math.Abs(p[0] - p[1]); !(d <= 4e-16*math.Max(math.Abs(p[1]), 1) || math.Abs(p[1]) > 1e15) {
					t.Errorf("%s(%v) = %v, not %v", name, x, p[0], p[1])
				}
			}
			if s, c := sine(x), cosine(x); math.Abs(s*s+c*c-1) > 4e-16 {
				t.Errorf("sin²+cos² of %v is off by %g", x, s*s+c*c-1)
			}
		}
	}
	// From Python's math module.
	for _, c := range []struct{ got, want float64 }{
		{sine(3.141592653589793), 1.2246467991473532e-16}, {cosine(1.5707963267948966), 6.123233995736766e-17},
		{tangent(1.5707963267948966), 1.633123935319537e16}, {tangent(radians(30)), 0.5773502691896257},
		{sine(radians(30)), 0.49999999999999994}, {arctangent(0.3), 0.2914567944778671}, {sine(31.4), -0.0159258626001018},
	} {
		if c.got != c.want {
			t.Errorf("%v, not %v", c.got, c.want)
		}
	}
}

// TestFMA32: one rounding, checked against exact sums in integers of float64 where those hold all bits.
func TestFMA32(t *testing.T) {
	rnd := xrand.New(5)
	for range 100000 {
		x, y := float32(rnd.IntN(1<<12)), float32(rnd.IntN(1<<12)) // products and sums fit 53 bits
		z := float32(math.Ldexp(float64(rnd.IntN(1<<24)), rnd.IntN(20)-10))
		if want := float32(float64(x)*float64(y) + float64(z)); fma32(x, y, z) != want {
			t.Fatalf("%v*%v+%v = %v, want %v", x, y, z, fma32(x, y, z), want)
		}
	}
	// A sum halfway between two floats but for a bit far below: two roundings would go to even, one goes up.
	if got := fma32(1+0x1p-12, 1+0x1p-12, 0x1p60); got != 0x1p60 {
		t.Errorf("%v", got)
	}
	if got, want := fma32(0x1p-60, 0x1p-60, 1+0x1p-23), float32(1+0x1p-23); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := fma32(1+0x1p-23, 0x1p-24, 1), float32(1+0x1p-23); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestMoreBadArguments: what cannot work is refused at registration, and the words say the op and what it takes.
func TestMoreBadArguments(t *testing.T) {
	crop, tensor := spec("CenterCrop", "size", 8.0), spec("ToTensor")
	for _, c := range []struct {
		ops  []OpSpec
		want string
	}{
		{[]OpSpec{spec("GaussianBlur")}, "not an odd number from 1 to 255"},
		{[]OpSpec{spec("GaussianBlur", "kernel_size", 4.0)}, "kernel_size is 4"},
		{[]OpSpec{spec("GaussianBlur", "kernel_size", []any{3.0, 5.0, 7.0})}, "not an odd number"},
		{[]OpSpec{spec("GaussianBlur", "kernel_size", []any{})}, "not an odd number"},
		{[]OpSpec{spec("RandomRotation", "degrees", 3.0, "fill", []any{})}, "not a colour"},
		{[]OpSpec{spec("RandomErasing", "value", []any{})}, "0 numbers"},
		{[]OpSpec{spec("GaussianBlur", "kernel_size", 3.0, "sigma", 0.0)}, "not two numbers from 0.001 to 1000"},
		{[]OpSpec{spec("GaussianBlur", "kernel_size", 3.0, "sigma", []any{2.0, 1.0})}, "the first number is the larger"},
		{[]OpSpec{spec("RandomRotation")}, "needs the argument degrees"},
		{[]OpSpec{spec("RandomRotation", "degrees", -3.0)}, "from 0 to 3600"},
		{[]OpSpec{spec("RandomRotation", "degrees", 3.0, "fill", []any{1.0, 2.0})}, "not a colour"},
		{[]OpSpec{spec("RandomRotation", "degrees", 3.0, "fill", 0.5)}, "not a colour"},
		{[]OpSpec{spec("RandomRotation", "degrees", 3.0, "fill", 256.0)}, "not a colour"},
		{[]OpSpec{spec("RandomRotation", "degrees", 3.0, "center", 4.0)}, "not a list of 2 numbers"},
		{[]OpSpec{spec("RandomRotation", "degrees", 3.0, "interpolation", "lanczos")}, `interpolation is "lanczos"`},
		{[]OpSpec{spec("RandomAffine", "degrees", 3.0, "translate", []any{0.1, 1.1})}, "from 0 to 1"},
		{[]OpSpec{spec("RandomAffine", "degrees", 3.0, "scale", []any{0.0, 1.1})}, "from 0.001 to 1000"},
		{[]OpSpec{spec("RandomAffine", "degrees", 3.0, "shear", 90.0)}, "from 0 to 89"},
		{[]OpSpec{spec("RandomAffine", "degrees", 3.0, "shear", []any{1.0, 2.0, 3.0, 2.0})}, "of a pair is the larger one"},
		{[]OpSpec{spec("RandomAutocontrast", "p", 2.0)}, "from 0 to 1"},
		{[]OpSpec{spec("RandomSolarize")}, "needs the argument threshold"},
		{[]OpSpec{spec("RandomPosterize", "bits", 9.0)}, "from 0 to 8"},
		{[]OpSpec{spec("RandomPosterize", "bits", 2.5)}, "not a whole number"},
		{[]OpSpec{spec("RandomAdjustSharpness", "sharpness_factor", -1.0)}, "from 0 to 1e+06"},
		{[]OpSpec{spec("RandAugment", "num_ops", 17.0)}, "from 0 to 16"},
		{[]OpSpec{spec("RandAugment", "magnitude", 31.0)}, "from 0 to 30"},
		{[]OpSpec{spec("TrivialAugmentWide", "num_magnitude_bins", 1.0)}, "from 2 to 1000"},
		{[]OpSpec{spec("AutoAugment", "policy", "imagnet")}, "did you mean imagenet?"},
		{[]OpSpec{spec("RandAugmnet")}, "did you mean RandAugment?"},
		{[]OpSpec{spec("RandomErasing", "value", "random")}, "put it behind ToTensor"},
		{[]OpSpec{spec("RandomErasing", "value", "noise")}, "value is"},
		{[]OpSpec{spec("RandomErasing", "value", 0.5)}, "the image is uint8 there"},
		{[]OpSpec{spec("RandomErasing", "scale", []any{0.1, 1.5})}, "from 0 to 1"},
		{[]OpSpec{crop, spec("Grayscale", "num_output_channels", 1.0), tensor,
			spec("RandomErasing", "value", []any{1.0, 2.0, 3.0})}, "3 values for images of 1 channels"},
		{[]OpSpec{crop, spec("Grayscale", "num_output_channels", 1.0), spec("RandAugment", "fill", []any{1.0, 2.0, 3.0})},
			"one channel there"},
		{[]OpSpec{crop, tensor, spec("RandomErasing"), spec("HFlip")}, "comes after RandomErasing"},
		{[]OpSpec{crop, tensor, spec("RandomErasing"), spec("ToDtype", "dtype", "uint8")}, "back to uint8"},
		{[]OpSpec{crop, tensor, spec("RandAugment")}, "put it before ToDtype"},
		{[]OpSpec{spec("RandomRotation", "degrees", 3.0, "expand", true), tensor}, "images of one size"},
		{[]OpSpec{crop, spec("MixUp", "num_classes", 10.0)}, "mixes float32 values"},
		{[]OpSpec{crop, tensor, spec("MixUp")}, "needs the argument num_classes"},
		{[]OpSpec{crop, tensor, spec("MixUp", "num_classes", 10.0, "alpha", 0.0)}, "from 0.001 to 1000"},
		{[]OpSpec{crop, tensor, spec("MixUp", "num_classes", 2.0), spec("CutMix", "num_classes", 2.0)}, "put MixUp last"},
		{[]OpSpec{crop, spec("CutMix", "num_classes", 2.0), spec("HFlip")}, "put CutMix last"},
		{[]OpSpec{spec("CutMix", "num_classes", 2.0)}, "images of one size"},
	} {
		_, err := ParseRecipe(c.ops)
		if !errs.Is(err, errs.RecipeInvalid) || !bytes.Contains([]byte(fmt.Sprint(err)), []byte(c.want)) {
			t.Errorf("%v: %v does not say %q", c.ops, err, c.want)
		}
	}
}

// TestMoreRecipes: what is deterministic is in the prefix, canonical forms are stable, and sizes are known.
func TestMoreRecipes(t *testing.T) {
	for _, c := range []struct {
		op     OpSpec
		random bool
	}{
		{spec("RandomRotation", "degrees", []any{30.0, 30.0}), false}, {spec("RandomRotation", "degrees", 30.0), true},
		{spec("RandomAffine", "degrees", 0.0, "scale", []any{2.0, 2.0}), false},
		{spec("RandomAffine", "degrees", 0.0, "translate", []any{0.0, 0.1}), true},
		{spec("RandomAffine", "degrees", 0.0, "shear", []any{0.0, 0.0, 0.0, 1.0}), true},
		{spec("GaussianBlur", "kernel_size", 3.0, "sigma", 1.0), false}, {spec("GaussianBlur", "kernel_size", 3.0), true},
		{spec("RandomEqualize", "p", 1.0), false}, {spec("RandomEqualize"), true}, {spec("RandAugment"), true},
		{spec("RandAugment", "num_ops", 0.0), false}, {spec("AutoAugment"), true}, {spec("TrivialAugmentWide"), true},
		{spec("RandomErasing"), true}, {spec("RandomErasing", "p", 0.0), false},
	} {
		if got := parse(t, c.op).Random(); got != c.random {
			t.Errorf("%v: random %v", c.op, got)
		}
	}
	r := parse(t, spec("RandomResizedCrop", "size", 32.0), spec("RandAugment"), imagenet, spec("RandomErasing", "value",
		"random", "inplace", true), spec("MixUp", "num_classes", 10.0))
	names := []string{}
	for _, o := range r.Ops() {
		names = append(names, o.Name)
	}
	want := []string{"RandomResizedCrop", "RandAugment", "ToDtype", "Normalize", "RandomErasing", "MixUp"}
	again := parse(t, r.Ops()...)
	if !slices.Equal(names, want) || again.ID() != r.ID() || again.Output().SampleBytes != 4*3*32*32 {
		t.Errorf("%v, %+v", names, again.Output())
	}
	plain := parse(t, spec("RandomResizedCrop", "size", 32.0), spec("RandAugment"))
	if plain.SuffixID() != r.SuffixID() || plain.ID() == r.ID() {
		t.Error("what is behind the cast must not be in the augmented form, and must be in the whole")
	}
	if o := parse(t, spec("CenterCrop", "size", 4.0), spec("CutMix", "num_classes", 3.0)).Output(); o.DType != Uint8 {
		t.Errorf("%+v", o)
	}
}

// TestErasedOutput: RandomErasing behind the cast writes its value, normalised by what comes behind it, in the box it
// draws, in every layout, and by every way through the worker.
func TestErasedOutput(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	img := draw(40, 30, 1)
	enc := bmp24(img)
	for _, layout := range []string{CHW, HWC} {
		size := spec("Resize", "size", []any{20.0, 24.0})
		cast := spec("ToDtype", "layout", layout)
		plain := parse(t, size, cast, imagenet)
		r := parse(t, size, cast, spec("RandomErasing", "p", 0.7, "value", []any{0.1, 0.2, 0.3}), imagenet,
			spec("RandomErasing", "value", "random"))
		erased := 0
		for i := range 40 {
			key := RandKey{Seed: 3, Instance: 1, Sample: uint64(i)}
			n := r.Output().SampleBytes
			a, b, c, bare := make([]byte, n), make([]byte, n), make([]byte, n), make([]byte, n)
			decoded, err := w.Decode(r, enc, heap)
			if err != nil {
				t.Fatal(err)
			}
			augmented, err := w.Augment(r, decoded, key, heap)
			if err != nil {
				t.Fatal(err)
			}
			for _, err := range []error{w.Finish(r, augmented, key, a), w.AugmentInto(r, decoded, key, b),
				w.DecodeInto(r, enc, key, c), w.DecodeInto(plain, enc, key, bare)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(a, b) || !bytes.Equal(a, c) {
				t.Fatalf("%s, sample %d: the ways differ", layout, i)
			}
			first, second := r.Params(2, key, 24, 20), r.Params(4, key, 24, 20)
			in := func(p map[string]any, x, y int) bool {
				return p["apply"].(bool) && x >= p["left"].(int) && x < p["left"].(int)+p["width"].(int) &&
					y >= p["top"].(int) && y < p["top"].(int)+p["height"].(int)
			}
			for at := 0; at < n/4; at++ {
				ch, y, x := at/480, at/24%20, at%24
				if layout == HWC {
					ch, y, x = at%3, at/72, at/3%24
				}
				got, want := floatAt(a[4*at:]), floatAt(bare[4*at:])
				mean, std := []float32{0.485, 0.456, 0.406}[ch], []float32{0.229, 0.224, 0.225}[ch]
				switch {
				case in(second, x, y):
					erased++
					continue
				case in(first, x, y):
					v := []float32{0.1, 0.2, 0.3}[ch]
					want = math.Float32bits(float32(v-mean) / std)
					erased++
				}
				if got != want {
					t.Fatalf("%s, sample %d, channel %d, row %d, column %d: %x, want %x", layout, i, ch, y, x, got, want)
				}
			}
		}
		if erased == 0 {
			t.Error("nothing was erased")
		}
	}
}
