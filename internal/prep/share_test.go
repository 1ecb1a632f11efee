package prep

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/ident"
)

// What may be shared between jobs follows from what an op claims: results of ops that claim to be deterministic are
// shared by all recipes with that prefix, whatever their seeds. These tests hold every op of the registry to its claim.

// sharedOps are examples of every op: with each way of its arguments that changes what it claims.
var sharedOps = map[opKind][]OpSpec{
	opResize: {spec("Resize", "size", 40.0), spec("Resize", "size", []any{30.0, 20.0}),
		spec("Resize", "size", 33.0, "interpolation", "bicubic"),
		spec("Resize", "size", 20.0, "max_size", 24.0, "interpolation", "nearest")},
	opCenterCrop: {spec("CenterCrop", "size", 32.0), spec("CenterCrop", "size", []any{90.0, 20.0})},
	opRandomResizedCrop: {spec("RandomResizedCrop", "size", 24.0), spec("RandomResizedCrop", "size", 16.0, "scale",
		[]any{0.5, 0.6}, "interpolation", "nearest")},
	opHFlip: {spec("HFlip"), spec("RandomHorizontalFlip", "p", 0.5), spec("HFlip", "p", 1.0),
		spec("HFlip", "p", 0.0)},
	opVFlip: {spec("VFlip"), spec("VFlip", "p", 1.0), spec("VFlip", "p", 0.0)},
	opColorJitter: {spec("ColorJitter", "brightness", 0.4), spec("ColorJitter", "contrast", 0.4),
		spec("ColorJitter", "saturation", 0.4), spec("ColorJitter", "hue", 0.2),
		spec("ColorJitter", "brightness", 0.4, "contrast", 0.4, "saturation", 0.4, "hue", 0.1), spec("ColorJitter"),
		spec("ColorJitter", "brightness", []any{1.5, 1.5}), spec("ColorJitter", "brightness", []any{1.5, 1.5}, "saturation",
			[]any{0.3, 0.3})},
	opGrayscale: {spec("Grayscale"), spec("Grayscale", "num_output_channels", 1.0)},
	opGaussianBlur: {spec("GaussianBlur", "kernel_size", 5.0), spec("GaussianBlur", "kernel_size", []any{3.0, 7.0},
		"sigma", 1.5)},
	opRandomRotation: {spec("RandomRotation", "degrees", 30.0), spec("RandomRotation", "degrees", []any{20.0, 20.0},
		"interpolation", "bilinear", "fill", []any{1.0, 2.0, 3.0}), spec("RandomRotation", "degrees", []any{90.0, 90.0})},
	opRandomAffine: {spec("RandomAffine", "degrees", 10.0, "interpolation", "bicubic"), spec("RandomAffine", "degrees",
		0.0, "translate", []any{0.4, 0.4}), spec("RandomAffine", "degrees", 0.0, "scale", []any{0.7, 1.4}, "center",
		[]any{3.0, 2.0}), spec("RandomAffine", "degrees", []any{10.0, 10.0}), spec("RandomAffine", "degrees", 0.0, "shear",
		[]any{0.0, 0.0, -20.0, 20.0})},
	opAutocontrast: {spec("RandomAutocontrast"), spec("RandomAutocontrast", "p", 1.0)},
	opEqualize:     {spec("RandomEqualize"), spec("RandomEqualize", "p", 1.0)},
	opInvert:       {spec("RandomInvert"), spec("RandomInvert", "p", 0.0)},
	opSolarize:     {spec("RandomSolarize", "threshold", 100.0), spec("RandomSolarize", "threshold", 9.5, "p", 1.0)},
	opPosterize:    {spec("RandomPosterize", "bits", 3.0), spec("RandomPosterize", "bits", 0.0, "p", 1.0)},
	opSharpness: {spec("RandomAdjustSharpness", "sharpness_factor", 2.0), spec("RandomAdjustSharpness", "sharpness_factor",
		0.3, "p", 1.0)},
	opRandAugment: {spec("RandAugment"), spec("RandAugment", "num_ops", 5.0, "magnitude", 30.0, "interpolation",
		"bilinear"), spec("RandAugment", "num_ops", 0.0)},
	opTrivialAugmentWide: {spec("TrivialAugmentWide"), spec("TrivialAugmentWide", "num_magnitude_bins", 5.0, "fill", 9.0)},
	opAutoAugment: {spec("AutoAugment"), spec("AutoAugment", "policy", "cifar10"), spec("AutoAugment", "policy", "svhn",
		"interpolation", "bicubic")},
	opErasePixels: {spec("RandomErasing"), spec("RandomErasing", "p", 1.0, "value", []any{1.0, 2.0, 3.0}),
		spec("RandomErasing", "p", 0.0)},
	opRandomErasing: {spec("RandomErasing"), spec("RandomErasing", "p", 0.8, "value", "random"), spec("RandomErasing", "p",
		0.0)},
	opMixUp:  {spec("MixUp", "num_classes", 10.0), spec("MixUp", "num_classes", 10.0, "alpha", 0.2)},
	opCutMix: {spec("CutMix", "num_classes", 10.0), spec("CutMix", "num_classes", 7.0, "alpha", 0.2)},
	opToDtype: {spec("ToDtype"), spec("ToTensor"), spec("ToDtype", "dtype", "uint8", "layout", "HWC"), spec("ToImage"),
		spec("PILToTensor"), spec("ToDtype", "by", "mul")},
	opNormalize: {imagenet, spec("Normalize", "mean", 0.5, "std", 0.25)},
}

// sized puts before an op what it needs: images of one size, and floats.
func sized(kind opKind, ops ...OpSpec) []OpSpec {
	ops = slices.Clone(ops)
	if kind == opRandomErasing || kind == opMixUp {
		ops = slices.Insert(ops, len(ops)-1, spec("ToTensor"))
	}
	return append([]OpSpec{spec("CenterCrop", "size", 24.0)}, ops...)
}

// TestOpsKeepWhatTheyClaim runs every op with many keys: one that claims to be deterministic must always give the same
// bits, one that claims to be random must not.
func TestOpsKeepWhatTheyClaim(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	img := draw(61, 47, 3)
	named := map[string]bool{"Compose": true} // the client flattens it
	for kind := range numOpKinds {
		if len(sharedOps[kind]) == 0 {
			t.Errorf("op kind %d has no example", kind)
		}
		for _, s := range sharedOps[kind] {
			named[s.Name] = true
			ops := []OpSpec{s}
			if kind >= opGrayscale { // which need a fixed size
				ops = sized(kind, s)
			}
			r := parse(t, ops...)
			inPrefix := !slices.ContainsFunc(r.ops[:r.imageOps], func(o op) bool { return o.random })
			random := slices.ContainsFunc(r.ops, func(o op) bool { return o.random })
			var first []byte
			differ := 0
			for n := range 64 {
				key := RandKey{Seed: uint64(n % 4), Instance: uint32(n / 4 % 4), Sample: uint64(n / 16)}
				var got []byte
				if kind < opToDtype {
					p, err := w.plan(r, r.allOps(), key, img.W, img.H) // whatever the cut: the op itself
					if err != nil {
						t.Fatal(err)
					}
					got = w.run(p.steps, img, make([]byte, p.w*p.h*3), p.w, p.h).Pix
				} else {
					got = make([]byte, r.Output().SampleBytes)
					if err := w.DecodeInto(r, drawnJPEG(t, 61, 47, 3), key, got); err != nil {
						t.Fatal(err)
					}
				}
				if n == 0 {
					first = got
				} else if !bytes.Equal(first, got) {
					differ++
				}
			}
			switch {
			case !random && differ > 0:
				t.Errorf("%s %v claims to be deterministic; %d of 63 other keys give other bits", s.Name, s.Args, differ)
			case random && differ == 0:
				t.Errorf("%s %v claims to be random; 64 keys give the same bits", s.Name, s.Args)
			}
			if r.Random() == inPrefix || (r.cut < r.imageOps) == inPrefix {
				t.Errorf("%s %v: random %v, but the recipe says %v and its prefix has %d of %d ops", s.Name, s.Args, random,
					r.Random(), r.cut, r.imageOps)
			}
		}
	}
	for _, n := range append(slices.Clone(opNames), "HFlip", "VFlip") {
		if !named[n] && n != "RandomVerticalFlip" { // VFlip by its long name
			t.Errorf("op %s has no example", n)
		}
	}
}

// TestVersionsAreInFingerprints: raising the version of an op changes every fingerprint that the op is in, and no
// other.
func TestVersionsAreInFingerprints(t *testing.T) {
	defer func(was [numOpKinds]int) { opVersions = was }(opVersions)
	for kind, specs := range sharedOps { // order-free: each on its own
		for _, s := range specs {
			for _, ops := range [][]OpSpec{
				sized(kind, s),
				sized(kind, spec("ColorJitter", "hue", 0.1), s),
			} {
				before := parse(t, ops...)
				at := slices.IndexFunc(before.ops, func(o op) bool { return o.kind == kind })
				if at < 0 { // ToImage and the like leave no trace of their own
					continue
				}
				opVersions[kind]++
				after := parse(t, ops...)
				opVersions[kind]--
				for _, c := range []struct {
					what string
					a, b ident.RecipeID
					in   bool
				}{
					{"prefix", before.Prefix(), after.Prefix(), at < before.cut},
					{"augmented", before.SuffixID(), after.SuffixID(), at < before.imageOps},
					{"whole", before.ID(), after.ID(), true},
				} {
					if (c.a != c.b) != c.in {
						t.Errorf("%v: %s has another version: the fingerprint of the %s part changed: %v, want %v", ops, s.Name, c.what,
							c.a != c.b, c.in)
					}
				}
			}
		}
	}
}

// TestPrefixesAreSharedAtEveryCut: recipes that begin alike have one prefix, whatever follows, and their decoded forms
// have the same bits; what comes after gives the same bits from it as without any cut.
func TestPrefixesAreSharedAtEveryCut(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	enc := drawnJPEG(t, 90, 67, 5)
	var fixed, random []OpSpec
	for _, kind := range slices.Sorted(maps.Keys(sharedOps)) {
		for _, s := range sharedOps[kind] {
			switch r := parse(t, sized(kind, s)...); {
			case kind >= opToDtype || r.channels == 1:
			case r.Random():
				random = append(random, s)
			default:
				fixed = append(fixed, s)
			}
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		prefix := rapid.SliceOfN(rapid.SampledFrom(fixed), 0, 4).Draw(rt, "prefix")
		if rapid.Bool().Draw(rt, "resized") {
			prefix = append([]OpSpec{spec("Resize", "size", 48.0), spec("CenterCrop", "size", 40.0)}, prefix...)
		}
		suffix := func(label string) *Recipe {
			ops := append(slices.Clone(prefix), rapid.SampledFrom(random).Draw(rt, label))
			ops = append(ops, rapid.SliceOfN(rapid.SampledFrom(append(slices.Clone(fixed), random...)), 0, 3).Draw(rt,
				label+" ops")...)
			r, err := ParseRecipe(ops)
			if err != nil {
				rt.Fatal(err)
			}
			return r
		}
		a, b := suffix("a"), suffix("b")
		if a.Prefix() != b.Prefix() || a.cut != len(prefix) {
			rt.Fatalf("prefixes %s and %s, cuts %d and %d of %d", a.Prefix(), b.Prefix(), a.cut, b.cut, len(prefix))
		}
		if len(prefix) > 0 {
			if c, err := ParseRecipe(prefix[:len(prefix)-1]); err != nil || c.Prefix() == a.Prefix() {
				rt.Fatalf("a shorter prefix has the same fingerprint, or %v", err)
			}
		}
		da, err := w.Decode(a, enc, heap)
		if err != nil {
			rt.Fatal(err)
		}
		db, err := w.Decode(b, enc, heap)
		if err != nil || da.W != db.W || da.H != db.H || !bytes.Equal(da.Pix, db.Pix) {
			rt.Fatalf("the decoded forms of one prefix differ, or %v", err)
		}
		key := RandKey{Seed: rapid.Uint64().Draw(rt, "seed"), Instance: 3, Sample: 8}
		want, err := w.Augment(a, da, key, heap)
		if err != nil {
			rt.Fatal(err)
		}
		whole, err := w.Decode(parse(t), enc, heap)
		if err != nil {
			rt.Fatal(err)
		}
		for cut := range a.imageOps + 1 {
			img := whole
			for _, part := range []opRange{{0, cut}, {cut, a.imageOps}} {
				p, err := w.plan(a, part, key, img.W, img.H)
				if err != nil {
					rt.Fatal(err)
				}
				img = w.run(p.steps, img, make([]byte, p.w*p.h*3), p.w, p.h)
			}
			if img.W != want.W || img.H != want.H || !bytes.Equal(img.Pix, want.Pix) {
				rt.Fatalf("cut after %d of %d ops gives other bits than after %d", cut, a.imageOps, a.cut)
			}
		}
	})
}
