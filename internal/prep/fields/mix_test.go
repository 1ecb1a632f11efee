package fields

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"larder/internal/prep"
	"larder/internal/record"
)

// TestMixingFindsItsFields: names, then known names, then the only field that can be one; else words.
func TestMixingFindsItsFields(t *testing.T) {
	scalar := func(name string, d record.DType) record.Field {
		return record.Field{Name: name, Kind: record.Scalar, DType: d}
	}
	floats, bytes := array("photo", record.Float32, 3, 8, 9), array("image", record.Uint8, 8, 9, 3)
	cls, n, hot := scalar("cls", record.Int64), scalar("n", record.Uint8), array("hot", record.Float64, 5)
	caption := record.Field{Name: "caption", Kind: record.Text, DType: record.Uint8, Shape: []int64{any1}}
	for _, c := range []struct {
		fields []record.Field
		op     prep.OpSpec
		before []prep.OpSpec
		says   string // empty = it can be mixed
	}{
		{[]record.Field{floats, cls, n, caption}, op("MixUp", "num_classes", 5.0), nil, ""},
		{[]record.Field{floats, n}, op("mixup", "num_classes", 5.0), nil, ""},
		{[]record.Field{floats, hot}, op("MixUp"), nil, ""},
		{[]record.Field{bytes, floats, cls}, op("MixUp", "num_classes", 5.0, "image", "photo"), nil, ""},
		{[]record.Field{bytes, floats, cls}, op("MixUp", "num_classes", 5.0), nil, "the image is uint8"},
		{[]record.Field{bytes, floats, cls}, op("MixUp", "num_classes", 5.0),
			[]prep.OpSpec{op(OpName, "image", "photo"), op("HFlip")}, ""},
		{[]record.Field{bytes, cls}, op("CutMix", "num_classes", 5.0), nil, ""},
		{[]record.Field{bytes, cls}, op("CutMix"), nil, "needs the argument num_classes"},
		{[]record.Field{bytes, hot}, op("CutMix", "num_classes", 4.0), nil, "num_classes is 4"},
		{[]record.Field{bytes, n, hot}, op("CutMix"), nil, "2 fields of the records can be its label: n, hot"},
		{[]record.Field{caption, cls}, op("CutMix", "num_classes", 5.0), nil, "0 fields of the records can be its image"},
		{[]record.Field{bytes, caption}, op("CutMix", "label", "caption"), nil, "no label"},
		{[]record.Field{bytes, cls}, op("CutMix", "label", "x"), nil, "no such field"},
		{[]record.Field{bytes, cls}, op("CutMix", "image", "cls"), nil, "no image"},
		{[]record.Field{array("image", record.Uint8, any1, any1, 3), cls}, op("CutMix", "num_classes", 5.0), nil,
			"0 fields of the records can be its image"},
		{[]record.Field{bytes, array("m", record.Uint8, 8, 9), cls}, op("CutMix", "num_classes", 5.0),
			[]prep.OpSpec{op(OpName, "mask", "m"), op("HFlip")}, "not masks, boxes or keypoints"},
	} {
		rest, m, err := TakeMixing(append(c.before, c.op))
		if err != nil || len(rest) != len(c.before) {
			t.Fatal(err, rest)
		}
		err = m.Check(&record.Schema{Fields: c.fields})
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v behind %v on %v: %v, want %q", c.op, c.before, c.fields, err, c.says)
		}
	}
}

// TestMixingFindsWhatTheClientFinds: the fields that a recipe with several Fields ops mixes, by cases that the Python
// client is tested with too (test_mix.py). What finds no image or no label has null there.
func TestMixingFindsWhatTheClientFinds(t *testing.T) {
	text, err := os.ReadFile("testdata/mixing.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Says         string
		Fields       []any
		Before       []prep.OpSpec
		Op           prep.OpSpec
		Image, Label *string
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 10 {
		t.Fatal(err, len(cases))
	}
	for _, c := range cases {
		s, err := schemaOf(c.Fields)
		if err != nil {
			t.Fatal(err)
		}
		_, m, err := TakeMixing(append(c.Before, c.Op))
		if err != nil {
			t.Fatal(err)
		}
		image, label, err := m.roles(s)
		if refused := err != nil; refused != (c.Image == nil) {
			t.Errorf("%s: error %v", c.Says, err)
		} else if !refused && (s.Fields[image].Name != *c.Image || s.Fields[label].Name != *c.Label) {
			t.Errorf("%s: %s and %s, not %s and %s", c.Says, s.Fields[image].Name, s.Fields[label].Name, *c.Image, *c.Label)
		}
		if got := m.Check(s); (got != nil) != (err != nil) {
			t.Errorf("%s: Check says %v, roles %v", c.Says, got, err)
		}
	}
}

// TestMixingRefusesItsArguments: whatever the records are.
func TestMixingRefusesItsArguments(t *testing.T) {
	for says, specs := range map[string][]prep.OpSpec{
		"mixes whole batches": {op("CutMix"), op("HFlip")},
		"from 0.001 to 1000":  {op("CutMix", "alpha", 0.0)},
		"num_classes":         {op("CutMix", "num_classes", 1.5)},
		"label is 3":          {op("CutMix", "label", 3.0)},
		"classes":             {op("CutMix", "classes", 3.0)},
		"use one of":          {op("CutMix"), op("MixUp")},
	} {
		if err := Check(specs); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %q", specs, err, says)
		}
	}
	if rest, m, err := TakeMixing([]prep.OpSpec{op("HFlip")}); m != nil || err != nil || len(rest) != 1 {
		t.Fatal(rest, m, err)
	}
	var none *Mixing
	if err := none.Check(&samples); err != nil {
		t.Fatal(err)
	}
}
