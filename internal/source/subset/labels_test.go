package subset

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/ident"
)

// exactLabels has a column of labels.
type exactLabels struct {
	*columns
	column *Column
}

func (x exactLabels) Labels() (*Column, error) { return x.column, nil }

// someLabels are 10 samples with the labels 0 to 9, and no label for every third.
func someLabels() *table {
	v := folder(10)
	for i := range v.label {
		if v.label[i] = int64(i); i%3 == 0 {
			v.label[i], v.class[i] = -1, ""
		}
	}
	return v
}

// A sample without a label fits no condition on it, and not the opposite of one either.
func TestMissingLabelsFitNothing(t *testing.T) {
	// 1, 2, 4, 5, 7 and 8 have labels, which are their ids.
	for expr, want := range map[string][]ident.SampleID{
		"label < 5":                                  {1, 2, 4},
		"not label >= 5":                             {1, 2, 4},
		"label != 5":                                 {1, 2, 4, 7, 8},
		"label == 0":                                 {},
		"label not in (1, 2)":                        {4, 5, 7, 8},
		"label not in [2, 6)":                        {1, 7, 8},
		"label % 2 == 1":                             {1, 5, 7},
		"not label % 2 == 1":                         {2, 4, 8},
		"not (label < 5 or label > 6)":               {5},
		"not (label < 5 and id < 3)":                 {3, 4, 5, 6, 7, 8, 9},
		"label < 5 or id < 2":                        {0, 1, 2, 4},
		"not not label < 5":                          {1, 2, 4},
		"not (not label < 5 or label == 1)":          {2, 4},
		`class != "n00"`:                             {},
		`class ~ "*"`:                                {1, 2, 4, 5, 7, 8},
		`not class ~ "z*"`:                           {1, 2, 4, 5, 7, 8},
		`class == ""`:                                {0, 3, 6, 9},
		`class != ""`:                                {1, 2, 4, 5, 7, 8},
		`class in ("", "n00") and id < 5`:            {0, 1, 2, 3, 4},
		"label < 5 or not label < 5":                 {1, 2, 4, 5, 7, 8},
		"not sample(0, 10, 10) or label in (1, 100)": {1},
	} {
		got, err := mustParse(t, expr).Select(someLabels())
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s selects %v, %v; want %v", expr, got, err, want)
		}
	}
}

// Labels that are no class numbers are compared as what they are.
func TestLabelsThatAreNoClassNumbers(t *testing.T) {
	v := folder(6)
	for i := range v.label {
		v.label[i] = -1
	}
	floats := &Column{Kind: Float, Floats: []float64{-1, 0, 0.5, 1, math.NaN(), 3e9}}
	whole := &Column{Kind: Int, Ints: []int64{-1, 0, 5, 1, 0, 3e9}, None: []uint64{1 << 4}}
	for expr, want := range map[string][2][]ident.SampleID{
		"label < 1":                  {{0, 1, 2}, {0, 1}},
		"label == -1":                {{0}, {0}},
		"label in [0, 1]":            {{1, 2, 3}, {1, 3}},
		"label != 0":                 {{0, 2, 3, 5}, {0, 2, 3, 5}},
		"not label == 0":             {{0, 2, 3, 5}, {0, 2, 3, 5}},
		"label == 3000000000":        {{5}, {5}},
		"label not in (0, 1)":        {{0, 2, 5}, {0, 2, 5}},
		"not label > 0 and id in(4)": {{}, {}},
	} {
		for i, c := range []*Column{floats, whole} {
			got, err := mustParse(t, expr).Select(exactLabels{&columns{table: v}, c})
			if err != nil || !slices.Equal(got, want[i]) {
				t.Errorf("%s of %s selects %v, %v; want %v", expr, c.Kind, got, err, want[i])
			}
		}
	}
	if got, err := mustParse(t, "label % 2 == 1").Select(exactLabels{&columns{table: v}, whole}); err != nil ||
		!slices.Equal(got, []ident.SampleID{0, 2, 3}) {
		t.Errorf("a remainder: %v, %v", got, err)
	}
}

// What cannot be compared is refused with words.
func TestLabelsThatCannotBeCompared(t *testing.T) {
	none, parts := folder(3), &Column{Kind: Float, Floats: []float64{0, 0.5, 1}}
	none.label = []int64{-1, -1, -1}
	for _, c := range []struct {
		v          View
		expr, says string
	}{
		{none, "label < 1", "no sample of the dataset has one"},
		{none, "id < 2 or label != 1", "no sample of the dataset has one"},
		{someLabels(), "label == -1", `class == "" selects the samples without a label`},
		{someLabels(), "label in [-3, 5]", "numbers of classes begin with 0"},
		{exactLabels{&columns{table: none}, &Column{Kind: Text, Words: []string{"a"}, Codes: []uint32{0, 0, 0}}}, "label < 1",
			"the labels of the dataset are text"},
		{exactLabels{&columns{table: none}, parts}, "label % 2 == 1", "has the label 0.5"},
	} {
		got, err := mustParse(t, c.expr).Select(c.v)
		e, ok := errors.AsType[*errs.Error](err)
		if !ok || e.Reason != errs.Invalid || !strings.Contains(e.Message+" "+e.Hint, c.says) {
			t.Errorf("%s: %v, %v; want %q", c.expr, got, err, c.says)
		}
	}
}
