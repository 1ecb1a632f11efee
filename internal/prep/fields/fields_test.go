package fields

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/xrand"
)

func op(name string, kv ...any) prep.OpSpec {
	s := prep.OpSpec{Name: name, Args: map[string]any{}}
	for i := 0; i < len(kv); i += 2 {
		s.Args[kv[i].(string)] = kv[i+1]
	}
	return s
}

func array(name string, d record.DType, shape ...int64) record.Field {
	return record.Field{Name: name, Kind: record.Array, DType: d, Shape: shape}
}

const any1 = record.Ragged

// samples are records of an image, a mask, boxes, keypoints and a caption.
var samples = record.Schema{Fields: []record.Field{
	array("image", record.Uint8, any1, any1, any1), array("mask", record.Int32, any1, any1),
	array("boxes", record.Float32, any1, 4), array("points", record.Float64, any1, 2),
	{Name: "caption", Kind: record.Text, DType: record.Uint8, Shape: []int64{any1}},
}}

var all = op(OpName, "mask", "mask", "boxes", "boxes", "keypoints", "points")

// sample draws a record: pixel i of the image is i+1 in 24 bits, and in the mask too.
func sample(tb testing.TB, w, h int, boxes []float32, points []float64) record.View {
	tb.Helper()
	image, mask := make([]byte, 0, 3*w*h), make([]byte, 0, 4*w*h)
	for i := range w * h {
		image = append(image, byte(i+1), byte((i+1)>>8), byte((i+1)>>16))
		mask = binary.LittleEndian.AppendUint32(mask, uint32(i+1))
	}
	var b, p []byte
	for _, v := range boxes {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	for _, v := range points {
		p = binary.LittleEndian.AppendUint64(p, math.Float64bits(v))
	}
	blob, err := record.Encode(&samples, []record.Content{
		{Dims: []int64{int64(h), int64(w), 3}, Data: image}, {Dims: []int64{int64(h), int64(w)}, Data: mask},
		{Dims: []int64{int64(len(boxes) / 4), 4}, Data: b}, {Dims: []int64{int64(len(points) / 2), 2}, Data: p},
		{Data: []byte("é")}})
	if err != nil {
		tb.Fatal(err)
	}
	v, err := record.Open(blob)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func heap(n int) ([]byte, error) {
	return bytes.Repeat([]byte{0xa5}, n), nil // what was there before must not show
}

func parse(tb testing.TB, specs ...prep.OpSpec) *Ops {
	tb.Helper()
	o, err := Parse(specs, 1, &samples)
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// values are the fields of a record, which must fit the schema.
func values(tb testing.TB, s *record.Schema, blob []byte) []record.Value {
	tb.Helper()
	if err := s.Validate(blob, 0); err != nil {
		tb.Fatal(err)
	}
	v, err := record.Open(blob)
	if err != nil {
		tb.Fatal(err)
	}
	var out []record.Value
	for _, x := range v.All {
		out = append(out, x)
	}
	return out
}

// TestMasksMoveWithTheImage: with the nearest pixel an image and its mask are the same picture behind every chain of
// ops that move pixels, whatever the draw. (Resizes by the nearest pixel are left out: for images they are Pillow's,
// for masks torch's.)
func TestMasksMoveWithTheImage(t *testing.T) {
	chains := [][]prep.OpSpec{
		{op("HFlip")}, {op("VFlip"), op("HFlip")}, {op("CenterCrop", "size", []any{9.0, 40.0})},
		{op("RandomRotation", "degrees", 180.0)}, {op("RandomRotation", "degrees", 60.0, "expand", true)},
		{op("RandomRotation", "degrees", []any{90.0, 90.0}, "expand", true)},
		{op("RandomRotation", "degrees", []any{180.0, 180.0})},
		{op("RandomRotation", "degrees", 30.0, "center", []any{3.0, 4.5})},
		{op("RandomAffine", "degrees", 20.0, "translate", []any{0.2, 0.3}, "scale", []any{0.6, 1.5}, "shear", 15.0)},
		{op("RandomAffine", "degrees", 0.0, "translate", []any{0.4, 0.4})},
		{op("RandomAffine", "degrees", 0.0, "scale", []any{0.5, 2.0})},
		{op("CenterCrop", "size", 20.0), op("HFlip"), op("RandomRotation", "degrees", 45.0), op("VFlip"),
			op("CenterCrop", "size", 30.0), op("RandomAffine", "degrees", 10.0)},
	}
	w := NewWorker(prep.NewWorker(prep.Limits{}))
	r := xrand.New(3)
	for i, chain := range chains {
		o := parse(t, append([]prep.OpSpec{all}, chain...)...)
		s := o.Stage(o.Whole())
		for n := range 60 {
			v := sample(t, 1+r.IntN(60), 1+r.IntN(50), nil, nil)
			blob, err := w.Run(s, v, prep.RandKey{Seed: 5, Instance: uint32(n), Sample: uint64(i)}, heap)
			if err != nil {
				t.Fatal(err)
			}
			out := s.Out()
			f := values(t, &out, blob)
			if f[0].Dim(0) != f[1].Dim(0) || f[0].Dim(1) != f[1].Dim(1) {
				t.Fatalf("%v: image %v, mask %v", chain, f[0].Dims(), f[1].Dims())
			}
			for k := range len(f[1].Data) / 4 {
				p := f[0].Data[3*k:]
				if m := binary.LittleEndian.Uint32(f[1].Data[4*k:]); m != uint32(p[0])|uint32(p[1])<<8|uint32(p[2])<<16 {
					t.Fatalf("%v, draw %d: pixel %d of the image is %v, and %d of the mask", chain, n, k, p[:3], m)
				}
			}
			if string(f[4].Data) != "é" {
				t.Fatal("a field that is not named has changed")
			}
		}
	}
}

// TestParts: the ops up to the cut and those behind it make what all together make.
func TestParts(t *testing.T) {
	o := parse(t, all, op("Resize", "size", 40.0), op("RandomResizedCrop", "size", 16.0), op("HFlip"),
		op("ColorJitter", "brightness", 0.4), op("Normalize", "mean", "imagenet"))
	w := NewWorker(prep.NewWorker(prep.Limits{}))
	cut := o.Recipe().Cut()
	if cut != 1 || o.Recipe().ImageOps() != 4 {
		t.Fatalf("cut %d of %d", cut, o.Recipe().ImageOps())
	}
	first, second := o.Stage(prep.Part{To: cut}), o.Stage(prep.Part{From: cut, To: o.Recipe().ImageOps(), Finish: true})
	whole := o.Stage(o.Whole())
	for n := range 20 {
		v := sample(t, 50+n, 70, []float32{1, 2, 30, 40, 5, 5, 6, 6}, []float64{3, 4})
		key := prep.RandKey{Seed: 9, Instance: uint32(n), Sample: 7}
		want, err := w.Run(whole, v, key, heap)
		if err != nil {
			t.Fatal(err)
		}
		middle, err := w.Run(first, v, prep.RandKey{}, heap)
		if err != nil {
			t.Fatal(err)
		}
		m, err := record.Open(middle)
		if err != nil {
			t.Fatal(err)
		}
		got, err := w.Run(second, m, key, heap)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("draw %d differs: %v", n, err)
		}
		out := whole.Out()
		if d := values(t, &out, got)[0].Dims(); d[0] != 3 || d[1] != 16 || d[2] != 16 {
			t.Fatal(d)
		}
	}
	if first.Describe() == second.Describe() || whole.Describe() == second.Describe() {
		t.Error("stages that do other things have one name")
	}
}

// TestRecordsThatDoNotFit: each fault names the field.
func TestRecordsThatDoNotFit(t *testing.T) {
	o := parse(t, all, op("HFlip", "p", 1.0))
	s := o.Stage(o.Whole())
	w := NewWorker(prep.NewWorker(prep.Limits{MaxBytes: 1 << 20}))
	make1 := func(image, mask []int64, boxes int64) []byte {
		size := func(d []int64, n int64) []byte {
			for _, x := range d {
				n *= x
			}
			return make([]byte, n)
		}
		loose := record.Schema{Fields: append([]record.Field(nil), samples.Fields...)}
		loose.Fields[2].Shape = []int64{any1, any1}
		blob, err := record.Encode(&loose, []record.Content{{Dims: image, Data: size(image, 1)},
			{Dims: mask, Data: size(mask, 4)}, {Dims: []int64{1, boxes}, Data: make([]byte, 4*boxes)}, {Dims: []int64{0, 2}},
			{Data: nil}})
		if err != nil {
			t.Fatal(err)
		}
		return blob
	}
	for says, blob := range map[string][]byte{
		"field image: an image of shape [4 4 1]":        make1([]int64{4, 4, 1}, []int64{4, 4}, 4),
		"field image: an image of shape [0 4 3]":        make1([]int64{0, 4, 3}, []int64{0, 4}, 4),
		"field image: an image of shape [1 70000 3]":    make1([]int64{1, 70000, 3}, []int64{1, 70000}, 4),
		"field mask: a mask of shape [4 5] for an":      make1([]int64{4, 4, 3}, []int64{4, 5}, 4),
		"field boxes: shape [1, 3], the schema says":    make1([]int64{4, 4, 3}, []int64{4, 4}, 3),
		"a record of 1.34MiB behind the ops, and 1MiB ": make1([]int64{200, 1000, 3}, []int64{200, 1000}, 4),
	} {
		v, err := record.Open(blob)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = w.Run(s, v, prep.RandKey{}, heap); !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// TestRecipesThatDoNotFit: each refusal names the op and the field, and has a hint.
func TestRecipesThatDoNotFit(t *testing.T) {
	flip := op("HFlip")
	for says, specs := range map[string][]prep.OpSpec{
		`field "no": there is no such field`:           {op(OpName, "image", "no"), flip},
		`field "mask": it is int32 [-1 -1], which is`:  {op(OpName, "image", "mask"), flip},
		`field "boxes": it is named as mask and as bo`: {op(OpName, "mask", "boxes", "boxes", "boxes"), flip},
		`field "caption": it is text, which are no ma`: {op(OpName, "mask", "caption"), flip},
		`field "caption": it is text, which are no ke`: {op(OpName, "keypoints", "caption"), flip},
		`box_format is XYZ`:                            {op(OpName, "boxes", "boxes", "box_format", "XYZ"), flip},
		`has no argument "masks"`:                      {op(OpName, "masks", "mask"), flip},
		`image names 2 fields`:                         {op(OpName, "image", []any{"a", "b"}), flip},
		`mask is 3`:                                    {op(OpName, "mask", 3.0), flip},
		`no op comes behind it`:                        {all},
		`moves pixels of the image alone`:              {all, op("RandAugment")},
		`fills with the colour [1 2 3]`: {all, op("RandomRotation", "degrees", 3.0, "fill",
			[]any{1., 2., 3.})},
		`mixes whole batches`: {all, op("MixUp", "num_classes", 3.0), op("HFlip")},
		`there is no such op`: {op("HFlop")},
	} {
		_, err := Parse(specs, 1, &samples)
		if !errs.Is(err, errs.RecipeInvalid) || !strings.Contains(err.Error(), says) || errs.From(err).Hint == "" {
			t.Errorf("%s: %v", says, err)
		}
	}
	two := record.Schema{Fields: []record.Field{array("a", record.Uint8, 4, 4, 3), array("b", record.Uint8, 4, 4, 3)}}
	if _, err := Parse([]prep.OpSpec{flip}, 1, &two); err == nil || !strings.Contains(err.Error(), "2 fields of the rec") {
		t.Error(err)
	}
	if _, err := Parse([]prep.OpSpec{flip}, 3, nil); err == nil || !strings.Contains(err.Error(), "behind a step in") {
		t.Error(err)
	}
	said := op(OpName, "record", []any{map[string]any{"name": "x", "kind": "array", "dtype": "uint8",
		"shape": []any{"-1", "-1", "3"}}})
	if o, err := Parse([]prep.OpSpec{said, flip}, 3, nil); err != nil || o.bound.image != 0 {
		t.Error(err)
	}
}

// TestRunsOfARecipe: prep splits a recipe as this package does, and its ops draw by the same numbers.
func TestRunsOfARecipe(t *testing.T) {
	named := op(OpName, "image", "image")
	for _, specs := range [][]prep.OpSpec{{}, {op("HFlip")}, {named, op("HFlip")},
		{op("HFlip"), op("VFlip"), named, op("HFlip"), op("Resize", "size", 9.0)},
		{named, op("HFlip"), named, op("VFlip"), named, op("HFlip"), op("ToTensor")}} {
		runs, err := prep.ParseRuns(specs)
		if err != nil || Check(specs) != nil {
			t.Fatal(err, Check(specs))
		}
		parts := Parts(Begun(specs))
		if len(runs) != len(parts) {
			t.Fatalf("%v: %d runs, want %d", specs, len(runs), len(parts))
		}
		for i, p := range parts {
			o, err := Parse(p.Specs, p.First, &samples)
			if err != nil {
				t.Fatal(err)
			}
			if a, b := runs[i].Describe(runs[i].Whole()), o.Recipe().Describe(o.Whole()); a != b {
				t.Errorf("%v, run %d: %q, want %q", specs, i, a, b)
			}
		}
	}
	for _, specs := range [][]prep.OpSpec{{named}, {named, named, op("HFlip")}, {op("HFlop")}, {op("HFlip"), named}} {
		if err := Check(specs); !errs.Is(err, errs.RecipeInvalid) {
			t.Errorf("%v: %v", specs, err)
		}
	}
}

// TestNoBoxes: boxes of an image without any are [0, 4] behind ops, also where the format says [0, 0].
func TestNoBoxes(t *testing.T) {
	in := record.Schema{Fields: []record.Field{array("image", record.Uint8, any1, any1, 3),
		array("boxes", record.Float32, any1, any1)}}
	o, err := Parse([]prep.OpSpec{op(OpName, "boxes", "boxes"), op("CenterCrop", "size", 4.0)}, 1, &in)
	if err != nil {
		t.Fatal(err)
	}
	s := o.Stage(o.Whole())
	for _, dims := range [][]int64{{0, 0}, {0, 4}, {0, 7}, {3, 0}} {
		b, err := record.Encode(&in, []record.Content{{Dims: []int64{5, 6, 3}, Data: make([]byte, 90)}, {Dims: dims}})
		if err != nil {
			t.Fatal(err)
		}
		v, _ := record.Open(b)
		made, err := NewWorker(prep.NewWorker(prep.Limits{})).Run(s, v, prep.RandKey{}, heap)
		if dims[0] > 0 {
			if !errs.Is(err, errs.SampleBad) {
				t.Errorf("%v: %v", dims, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		out := s.Out()
		if got := values(t, &out, made)[1].Dims(); got[0] != 0 || got[1] != 4 {
			t.Errorf("%v: %v", dims, got)
		}
	}
}

// TestSchemaBehindOps: sizes are known where an op fixes them, dtypes and layouts follow the casts.
func TestSchemaBehindOps(t *testing.T) {
	in := record.Schema{Fields: []record.Field{array("image", record.Uint8, 60, 50, 3),
		array("m", record.Bool, 2, 60, 50)}}
	named := op(OpName, "mask", "m")
	for want, specs := range map[string][]prep.OpSpec{
		"uint8[20 20 3] bool[2 20 20]":   {op("RandomResizedCrop", "size", 20.0)},
		"uint8[24 20 3] bool[2 24 20]":   {op("Resize", "size", 20.0)},
		"uint8[60 50 3] bool[2 60 50]":   {op("HFlip")},
		"float32[3 60 50] bool[2 60 50]": {op("HFlip"), op("Normalize", "mean", "imagenet")},
		"uint8[3 60 50] bool[2 60 50]":   {op("ToImage")},
		"uint8[60 50 1] bool[2 60 50]":   {op("Grayscale", "num_output_channels", 1.0)},
		"uint8[-1 -1 3] bool[2 -1 -1]":   {op("RandomRotation", "degrees", 9.0, "expand", true)},
	} {
		o, err := Parse(append([]prep.OpSpec{named}, specs...), 1, &in)
		if err != nil {
			t.Fatal(err)
		}
		s := o.Out(o.Whole())
		var got []string
		for i := range s.Fields {
			got = append(got, s.Fields[i].DType.String()+strings.TrimPrefix(describe(&s.Fields[i]), "it is "+
				s.Fields[i].DType.String()+" "))
		}
		if g := strings.Join(got, " "); g != want {
			t.Errorf("%v: %s, want %s", specs, g, want)
		}
	}
}

// FuzzRun: whatever lies in a record of the schema, the ops make a record of theirs or refuse it.
func FuzzRun(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, math.Float64bits(math.NaN()), uint16(seed), uint16(3*seed))
	}
	f.Fuzz(func(t *testing.T, seed, bits uint64, width, height uint16) {
		r := xrand.New(seed)
		chain := []prep.OpSpec{op(OpName, "mask", "mask", "boxes", "boxes", "keypoints", "points", "box_format",
			[]string{"XYXY", "XYWH", "CXCYWH"}[r.IntN(3)])}
		ops := []prep.OpSpec{op("HFlip"), op("VFlip"), op("CenterCrop", "size", float64(1+r.IntN(40))),
			op("RandomResizedCrop", "size", float64(1+r.IntN(40))), op("Resize", "size", float64(1+r.IntN(40))),
			op("RandomRotation", "degrees", 360.0, "expand", r.IntN(2) == 0), op("GaussianBlur", "kernel_size", 3.0),
			op("RandomAffine", "degrees", 45.0, "scale", []any{0.001, 1000.0}, "shear", 80.0), op("Grayscale")}
		for range 1 + r.IntN(4) {
			chain = append(chain, ops[r.IntN(len(ops))])
		}
		if r.IntN(2) == 0 {
			chain = append(chain, op("ToTensor"))
		}
		numbers := []float64{math.Float64frombits(bits), math.Inf(1), -1e300, 0, 5, math.NaN()}
		var boxes []float32
		var points []float64
		for range r.IntN(4) {
			for range 4 {
				boxes = append(boxes, float32(numbers[r.IntN(len(numbers))]))
			}
			points = append(points, numbers[r.IntN(len(numbers))], numbers[r.IntN(len(numbers))])
		}
		o := parse(t, chain...)
		s := o.Stage(o.Whole())
		w := NewWorker(prep.NewWorker(prep.Limits{MaxPixels: 1 << 18}))
		v := sample(t, int(width%130), int(height%130), boxes, points)
		blob, err := w.Run(s, v, prep.RandKey{Seed: seed}, heap)
		if err != nil {
			if !errs.Is(err, errs.SampleBad) {
				t.Fatal(err)
			}
			return
		}
		out := s.Out()
		values(t, &out, blob)
	})
}

// number is a value as an element of a dtype.
func number(d record.DType, v float64) []byte {
	le := binary.LittleEndian
	switch d {
	case record.Float32:
		return le.AppendUint32(nil, math.Float32bits(float32(v)))
	case record.Float64:
		return le.AppendUint64(nil, math.Float64bits(v))
	case record.Int32:
		return le.AppendUint32(nil, uint32(int32(v)))
	default:
		return le.AppendUint64(nil, uint64(int64(v)))
	}
}
