package prep

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/errs"
	"larder/internal/ident"
)

func TestRecipeCanonical(t *testing.T) {
	r := parse(t, spec("ToImage"), spec("RandomResizedCrop", "size", 224.0), spec("HFlip"), imagenet)
	want := []OpSpec{
		spec("RandomResizedCrop", "size", []any{224.0, 224.0}, "scale", []any{0.08, 1.0}, "ratio", []any{0.75, 4.0 / 3},
			"interpolation", "bilinear", "antialias", true),
		spec("RandomHorizontalFlip", "p", 0.5),
		spec("ToDtype", "dtype", "float32", "scale", true, "layout", "CHW"),
		spec("Normalize", "mean", []any{0.485, 0.456, 0.406}, "std", []any{0.229, 0.224, 0.225}),
	}
	if got := r.Ops(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if !r.Random() {
		t.Error("not random")
	}
	o := r.Output()
	if o.DType != Float32 || o.Layout != CHW || o.Ragged || !reflect.DeepEqual(o.Shape, []int{3, 224, 224}) ||
		o.SampleBytes != 3*224*224*4 {
		t.Errorf("output %+v", o)
	}
	r.Ops()[0].Args["size"].([]any)[0] = 1.0
	if got := r.Ops()[0].Args["size"].([]any)[0]; got != 224.0 {
		t.Error("the caller could change the recipe")
	}
}

// TestRecipeOutputs walks the sizes, types and layouts that recipes end in.
func TestRecipeOutputs(t *testing.T) {
	for _, c := range []struct {
		ops  []OpSpec
		want Output
	}{
		{nil, Output{Uint8, HWC, nil, true, 0}},
		{[]OpSpec{spec("Resize", "size", 256.0)}, Output{Uint8, HWC, nil, true, 0}},
		{[]OpSpec{spec("Resize", "size", []any{10.0, 20.0})}, Output{Uint8, CHW, []int{3, 10, 20}, false, 600}},
		{[]OpSpec{spec("Resize", "size", []any{10.0, 20.0}), spec("Resize", "size", []any{5.0})},
			Output{Uint8, CHW, []int{3, 5, 10}, false, 150}},
		{[]OpSpec{spec("CenterCrop", "size", 8.0), spec("ToDtype", "dtype", "uint8", "layout", "HWC")},
			Output{Uint8, HWC, []int{8, 8, 3}, false, 192}},
		{[]OpSpec{spec("CenterCrop", "size", 8.0), spec("Grayscale", "num_output_channels", 1.0), spec("ToTensor")},
			Output{Float32, CHW, []int{1, 8, 8}, false, 256}},
		{[]OpSpec{spec("CenterCrop", "size", 8.0), spec("ToTensor"), spec("ToDtype", "layout", "HWC")},
			Output{Float32, HWC, []int{8, 8, 3}, false, 768}},
		{[]OpSpec{spec("CenterCrop", "size", 8.0), spec("ToDtype", "layout", "hwc"), imagenet},
			Output{Float32, HWC, []int{8, 8, 3}, false, 768}},
		{[]OpSpec{spec("RandomResizedCrop", "size", []int{3, 4}), spec("PILToTensor")}, Output{Uint8, CHW, []int{3, 3, 4},
			false, 36}},
		{[]OpSpec{spec("ToDtype", "dtype", "uint8", "layout", "HWC")}, Output{Uint8, HWC, nil, true, 0}},
		{[]OpSpec{spec("CenterCrop", "size", 4.0), spec("ToTensor"), spec("ToDtype", "dtype", "uint8", "scale", true)},
			Output{Uint8, CHW, []int{3, 4, 4}, false, 48}},
	} {
		if got := parse(t, c.ops...).Output(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: got %+v, want %+v", c.ops, got, c.want)
		}
	}
}

func TestRecipeFingerprints(t *testing.T) {
	rrc, flip := spec("RandomResizedCrop", "size", 224.0), spec("HFlip")
	a := parse(t, rrc, flip)
	same := func(what string, x, y ident.RecipeID, want bool) {
		t.Helper()
		if x == 0 || y == 0 || (x == y) != want {
			t.Errorf("%s: %s and %s, want equal: %v", what, x, y, want)
		}
	}
	b := parse(t, spec("randomresizedcrop", "size", []any{224.0, 224.0}, "antialias", nil),
		spec("RandomHorizontalFlip", "p", 0.5))
	same("spelling", a.ID(), b.ID(), true)
	n := parse(t, rrc, flip, imagenet)
	same("cast changes the whole", a.ID(), n.ID(), false)
	same("cast is not in the augmented cut", a.SuffixID(), n.SuffixID(), true)
	same("cast is not in the decoded cut", a.Prefix(), n.Prefix(), true)
	same("nothing before a random op", a.Prefix(), parse(t).Prefix(), true)
	same("decoded is not augmented", parse(t).Prefix(), parse(t).SuffixID(), false)
	c := parse(t, spec("Resize", "size", 256.0), rrc, flip)
	same("a deterministic op is in the prefix", a.Prefix(), c.Prefix(), false)
	same("prefix is shared", c.Prefix(), parse(t, spec("Resize", "size", 256.0), spec("ColorJitter", "hue", 0.1)).Prefix(),
		true)
	same("order of ops", parse(t, flip, rrc).ID(), a.ID(), false)
	same("order of cast and flip", parse(t, rrc, spec("ToTensor"), flip).ID(), parse(t, rrc, flip, spec("ToTensor")).ID(),
		true)
	same("Normalize brings its cast", parse(t, rrc, imagenet).ID(), parse(t, rrc, spec("ToTensor"), imagenet).ID(), true)
	same("defaults of casts", parse(t, rrc, spec("ToDtype")).ID(), parse(t, rrc, spec("ToTensor")).ID(), true)
	same("default of Grayscale", parse(t, spec("Grayscale")).ID(),
		parse(t, spec("Grayscale", "num_output_channels", 3.0)).ID(), true)
	same("p", parse(t, spec("HFlip", "p", 0.4)).ID(), parse(t, spec("HFlip", "p", 0.6)).ID(), false)
	d := parse(t, spec("HFlip", "p", 1.0), spec("CenterCrop", "size", 9.0))
	if d.Random() || d.Prefix() == parse(t).Prefix() {
		t.Error("a flip that always happens is deterministic")
	}
	if parse(t, spec("HFlip", "p", 0.0), spec("ColorJitter")).Random() {
		t.Error("ops that never do anything are deterministic")
	}
}

// TestRecipeErrors wants a clear refusal: the op, its place, and a hint that names the fix.
func TestRecipeErrors(t *testing.T) {
	for _, c := range []struct {
		ops  []OpSpec
		want string
	}{
		{[]OpSpec{spec("RandomResizeCrop", "size", 224.0)}, "did you mean RandomResizedCrop?"},
		{[]OpSpec{spec("Blur")}, "use one of Resize, CenterCrop"},
		{[]OpSpec{spec("")}, "there is no such op"},
		{[]OpSpec{spec("Resize", "sise", 3.0)}, "did you mean size?"},
		{[]OpSpec{spec("Resize")}, "needs the argument size"},
		{[]OpSpec{spec("Resize", "size", "224")}, `size is "224"`},
		{[]OpSpec{spec("Resize", "size", 2.5)}, "size is 2.5"},
		{[]OpSpec{spec("Resize", "size", 0.0)}, "not a size of 1 to 65500"},
		{[]OpSpec{spec("Resize", "size", 1e9)}, "not a size of 1 to 65500"},
		{[]OpSpec{spec("Resize", "size", true)}, "size is true"},
		{[]OpSpec{spec("Resize", "size", []any{1.0, 2.0, 3.0})}, "a list of 3 numbers"},
		{[]OpSpec{spec("Resize", "size", []any{60000.0, 60000.0})}, "more than the 89478485"},
		{[]OpSpec{spec("Resize", "size", 20.0, "max_size", 20.0)}, "must be larger"},
		{[]OpSpec{spec("Resize", "size", []any{20.0, 30.0}, "max_size", 20.0)}, "one number only"},
		{[]OpSpec{spec("Resize", "size", 20.0, "interpolation", "bilinaer")}, "did you mean bilinear?"},
		{[]OpSpec{spec("Resize", "size", 20.0, "interpolation", 1.0)}, "not a word"},
		{[]OpSpec{spec("Resize", "size", 20.0, "antialias", false)}, "always antialiases"},
		{[]OpSpec{spec("RandomResizedCrop", "size", 20.0, "scale", []any{0.5, 0.1})}, "the first number is the larger"},
		{[]OpSpec{spec("RandomResizedCrop", "size", 20.0, "scale", 0.5)}, "not a list of two"},
		{[]OpSpec{spec("RandomResizedCrop", "size", 20.0, "ratio", []any{0.0, 1.0})}, "not two numbers"},
		{[]OpSpec{spec("HFlip", "p", 1.5)}, "from 0 to 1"},
		{[]OpSpec{spec("HFlip", "prob", 0.5)}, "has no argument"},
		{[]OpSpec{spec("ColorJitter", "hue", 0.7)}, "hue is 0.7"},
		{[]OpSpec{spec("ColorJitter", "brightness", -0.1)}, "brightness is -0.1"},
		{[]OpSpec{spec("ColorJitter", "contrast", "much")}, "not a list of two"},
		{[]OpSpec{spec("Grayscale", "num_output_channels", 2.0)}, "not 1 or 3"},
		{[]OpSpec{spec("CenterCrop", "size", 4.0), spec("Normalize")}, `Normalize("imagenet")`},
		{[]OpSpec{spec("CenterCrop", "size", 4.0), spec("Normalize", "mean", "imagnet")}, "did you mean imagenet?"},
		{[]OpSpec{spec("CenterCrop", "size", 4.0), spec("Normalize", "mean", 0.0, "std", 0.0)}, "a std is 0"},
		{[]OpSpec{spec("CenterCrop", "size", 4.0), spec("Normalize", "mean", []any{0.0, 1.0}, "std", 1.0)},
			"mean has 2 numbers"},
		{[]OpSpec{spec("CenterCrop", "size", 4.0), spec("Grayscale", "num_output_channels", 1.0), imagenet},
			"3 means for images of 1 channels"},
		{[]OpSpec{spec("CenterCrop", "size", 4.0), imagenet, spec("ToDtype", "dtype", "uint8")}, "normalised values back"},
		{[]OpSpec{spec("CenterCrop", "size", 4.0), spec("ToTensor"), spec("ToDtype", "dtype", "uint8", "scale", false)},
			"another scale"},
		{[]OpSpec{spec("ToTensor"), spec("Resize", "size", []any{4.0, 4.0})}, "put it before ToDtype"},
		{[]OpSpec{imagenet, spec("CenterCrop", "size", 4.0)}, "put it before Normalize"},
		{[]OpSpec{spec("Resize", "size", 4.0), spec("ToTensor")}, "float32 output needs images of one size"},
		{[]OpSpec{spec("PILToTensor")}, "leave PILToTensor out"},
		{[]OpSpec{spec("Grayscale", "num_output_channels", 1.0)}, "one-channel output"},
		{[]OpSpec{spec("ToDtype", "dtype", "float16")}, `dtype is "float16"`},
		{[]OpSpec{spec("ToDtype", "by", "multiply")}, `by is "multiply"`},
		{[]OpSpec{spec("ToDtype", "by", 255.0)}, "by is 255, not a word"},
		{[]OpSpec{spec("Compose", "transforms", []any{})}, "plain list"},
		{[]OpSpec{{Kind: "python", Name: "f"}}, "on datasets in Python alone"},
		{[]OpSpec{{Kind: "wasm", Name: "f"}}, "does not exist"},
		{make([]OpSpec, 65), "longer than the 64"},
	} {
		_, err := ParseRecipe(c.ops)
		if !errs.Is(err, errs.RecipeInvalid) {
			t.Errorf("%v: %v is no RECIPE_INVALID", c.ops, err)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %q does not say %q", c.ops, err, c.want)
		}
		if errs.From(err).Subject == "" {
			t.Errorf("%v: no subject", c.ops)
		}
	}
}

// TestRecipeKeepsItsInput parses specs that the caller continues to use.
func TestRecipeKeepsItsInput(t *testing.T) {
	ops := []OpSpec{spec("Resize", "size", 9.0, "interpolation", 3.0), spec("CenterCrop", "size", 4.0), imagenet}
	before, err := json.Marshal(ops)
	if err != nil {
		t.Fatal(err)
	}
	parse(t, ops...)
	after, err := json.Marshal(ops)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Errorf("%s became %s", before, after)
	}
}

// anyOp draws valid ops.
func anyOp(t *rapid.T) OpSpec {
	side := func(name string) float64 { return float64(rapid.IntRange(1, 60).Draw(t, name)) }
	filters := rapid.SampledFrom([]string{"bilinear", "bicubic", "nearest"})
	switch rapid.IntRange(0, 13).Draw(t, "op") {
	case 0:
		return spec("Resize", "size", side("size"), "interpolation", filters.Draw(t, "filter"))
	case 1:
		return spec("Resize", "size", []any{side("h"), side("w")}, "interpolation", filters.Draw(t, "filter"))
	case 2:
		return spec("CenterCrop", "size", []any{side("h"), side("w")})
	case 3:
		return spec("RandomResizedCrop", "size", []any{side("h"), side("w")}, "interpolation", filters.Draw(t, "filter"))
	case 4:
		return spec("HFlip", "p", rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "p"))
	case 5:
		return spec("VFlip", "p", rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "p"))
	case 6:
		return spec("ColorJitter", "brightness", 0.3, "contrast", 0.3, "saturation", 0.3, "hue", 0.2)
	case 7:
		return spec("GaussianBlur", "kernel_size", []any{1 + 2*float64(rapid.IntRange(0, 4).Draw(t, "kx")), 3.0})
	case 8:
		return spec("RandomRotation", "degrees", 200.0, "interpolation", filters.Draw(t, "filter"), "expand",
			rapid.Bool().Draw(t, "expand"))
	case 9:
		return spec("RandomAffine", "degrees", 90.0, "translate", []any{0.3, 0.2}, "scale", []any{0.2, 3.0}, "shear", 30.0,
			"interpolation", filters.Draw(t, "filter"), "fill", 40.0)
	case 10:
		return spec("RandAugment", "num_ops", 4.0, "magnitude", 20.0, "interpolation", filters.Draw(t, "filter"))
	case 11:
		return spec(rapid.SampledFrom([]string{"RandomEqualize", "RandomAutocontrast", "RandomInvert", "AutoAugment",
			"TrivialAugmentWide"}).Draw(t, "name"))
	case 12:
		return spec("RandomErasing", "p", 0.8, "value", []any{7.0, 200.0, 255.0})
	default:
		return spec("Grayscale", "num_output_channels", 3.0)
	}
}

// TestRecipeRoundTrip: the canonical form means the same recipe, also after a way through JSON.
func TestRecipeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ops := rapid.SliceOfN(rapid.Custom(anyOp), 0, 6).Draw(t, "ops")
		r, err := ParseRecipe(ops)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(r.Ops())
		if err != nil {
			t.Fatal(err)
		}
		var again []OpSpec
		if err := json.Unmarshal(b, &again); err != nil {
			t.Fatal(err)
		}
		r2, err := ParseRecipe(again)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if r.ID() != r2.ID() || r.Prefix() != r2.Prefix() || r.SuffixID() != r2.SuffixID() ||
			!reflect.DeepEqual(r.Ops(), r2.Ops()) ||
			!reflect.DeepEqual(r.Output(), r2.Output()) {
			t.Fatalf("%v became %v", r.Ops(), r2.Ops())
		}
	})
}

// FuzzParseRecipe: no input makes the parser panic or hang, and every refusal is a fault.
func FuzzParseRecipe(f *testing.F) {
	f.Add([]byte(`[{"name":"RandomResizedCrop","args":{"size":224}},{"name":"Normalize","args":{"mean":"imagenet"}}]`))
	f.Add([]byte(
		`[{"name":"Resize","args":{"size":[1,2],"interpolation":"bicubic"}},` +
			`{"name":"ToDtype","args":{"dtype":"uint8","layout":"HWC"}}]`))
	f.Add([]byte(`[{"name":"ColorJitter","args":{"brightness":[0,2],"hue":1e308}},{"kind":"python","name":"x"}]`))
	f.Add([]byte(`[{"name":"RandomAffine","args":{"degrees":[1,2],"shear":[1,2,3,4],"center":[0,1],"fill":[1,2,3]}},` +
		`{"name":"RandAugment","args":{"num_ops":3,"magnitude":4}},{"name":"GaussianBlur","args":{"kernel_size":[3,5]}},` +
		`{"name":"RandomPosterize","args":{"bits":3}},{"name":"RandomErasing","args":{"value":[1,2,3]}}]`))
	f.Add([]byte(`[{"name":"CenterCrop","args":{"size":9}},{"name":"ToTensor"},{"name":"RandomErasing","args":{"value":` +
		`"random","p":1}},{"name":"Normalize","args":{"mean":0.5,"std":2}},{"name":"MixUp","args":{"num_classes":5}}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var ops []OpSpec
		if json.Unmarshal(b, &ops) != nil {
			return
		}
		r, err := ParseRecipe(ops)
		if err != nil {
			if !errs.Is(err, errs.RecipeInvalid) {
				t.Fatal(err)
			}
			return
		}
		if r2, err := ParseRecipe(r.Ops()); err != nil || r2.ID() != r.ID() {
			t.Fatalf("canonical form %v: %v", r.Ops(), err)
		}
	})
}
