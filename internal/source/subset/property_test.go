package subset

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/errs"
	"larder/internal/ident"
)

// columns is a View with properties.
type columns struct {
	*table
	of map[string]*Column
}

func (c *columns) PropertyNames() []string {
	return []string{"width", "ratio", "split", "ok", "image/h"}
}

func (c *columns) Property(name string) (*Column, error) {
	if name == "broken" {
		return nil, errs.New(errs.DatasetUnread, "x", "repair it", "the column cannot be read")
	}
	if col, ok := c.of[name]; ok {
		return col, nil
	}
	return nil, ErrNoProperty
}

func (c *columns) Labels() (*Column, error) { return nil, nil }

// withColumns gives 100 samples widths of -5 to 94, ratios of i/8 (the float32 of i/10 as single), a split and a flag.
// Every seventh has no split and no ratio.
func withColumns(n int) *columns {
	c := &columns{folder(n), map[string]*Column{}}
	width, ratio := &Column{Kind: Int}, &Column{Kind: Float}
	split, ok := &Column{Kind: Text, Words: []string{"train", "val", "a/b.jpg"}}, &Column{Kind: Bool}
	single := &Column{Kind: Float, Single: true}
	split.None = make([]uint64, (n+63)/64)
	for i := range n {
		width.Ints = append(width.Ints, int64(i-5))
		ratio.Floats = append(ratio.Floats, float64(i)/8)
		single.Floats = append(single.Floats, float64(float32(i)/10))
		split.Codes = append(split.Codes, uint32(i%3))
		ok.Ints = append(ok.Ints, int64(i&1))
		if i%7 == 0 {
			ratio.Floats[i] = math.NaN()
			split.None[i>>6] |= 1 << (i & 63)
		}
	}
	c.of = map[string]*Column{"width": width, "ratio": ratio, "split": split, "ok": ok, "image/h": width, "id": width,
		"single": single}
	return c
}

func TestProperties(t *testing.T) {
	v := withColumns(60)
	where := func(f func(i int) bool) []ident.SampleID {
		out := []ident.SampleID{}
		for i := range 60 {
			if f(i) {
				out = append(out, ident.SampleID(i))
			}
		}
		return out
	}
	for _, c := range []struct {
		expr, canonical string
		want            func(i int) bool
	}{
		{"width>=50.0", "width >= 50", func(i int) bool { return i >= 55 }},
		{"width < -2.5", "width < -2.5", func(i int) bool { return i < 3 }},
		{"width % 4 == 1 and not id < 5", "width % 4 == 1 and not id < 5", func(i int) bool { return i >= 5 && i%4 == 2 }},
		{"width in (3, 1, 3.0, 9.5)", "width in (1, 3, 9.5)", func(i int) bool { return i == 6 || i == 8 }},
		{"width in (-5, 0.5]", "width in (-5, 0.5]", func(i int) bool { return i > 0 && i <= 5 }},
		{"ratio == 1", "ratio == 1", func(i int) bool { return i == 8 }},
		{"ratio != 1", "ratio != 1", func(i int) bool { return i != 8 }},
		{"not ratio == 1", "not ratio == 1", func(i int) bool { return i != 8 }},
		{"ratio >= 0", "ratio >= 0", func(i int) bool { return i%7 != 0 }},
		{"ratio not in [0, 1e9)", "not ratio in [0, 1000000000)", func(i int) bool { return i%7 == 0 }},
		{"single == 0.3", "single == 0.3", func(i int) bool { return i == 3 }},
		{"single in (0.1, 0.7)", "single in (0.1, 0.7)", func(i int) bool { return i == 1 || i == 7 }},
		{"split == 'train'", `split == "train"`, func(i int) bool { return i%3 == 0 && i%7 != 0 }},
		{"split != 'train'", `split != "train"`, func(i int) bool { return i%3 != 0 || i%7 == 0 }},
		{"split in ('val', \"a/b.jpg\", 'zz')", `split in ("a/b.jpg", "val", "zz")`,
			func(i int) bool { return i%3 != 0 && i%7 != 0 }},
		{"split ~ '*/b*'", `split ~ "*/b*"`, func(i int) bool { return i%3 == 2 && i%7 != 0 }},
		{"ok == true or width == -5", "ok == true or width == -5", func(i int) bool { return i&1 == 1 || i == 0 }},
		{"ok in (false)", "ok in (false)", func(i int) bool { return i&1 == 0 }},
		{`property("image/h") > 50`, `property("image/h") > 50`, func(i int) bool { return i > 55 }},
		{`property('width') > 50`, "width > 50", func(i int) bool { return i > 55 }},
		{`property('id') == -5`, `property("id") == -5`, func(i int) bool { return i == 0 }},
	} {
		e := mustParse(t, c.expr)
		if e.String() != c.canonical {
			t.Errorf("%q is %q, not %q", c.expr, e, c.canonical)
		}
		for _, e := range []*Expr{e, mustParse(t, e.String())} {
			if got, err := e.Select(v); err != nil || !slices.Equal(got, where(c.want)) {
				t.Errorf("%q selects %v, %v; want %v", e, got, err, where(c.want))
			}
		}
	}
}

func TestErrorsOfProperties(t *testing.T) {
	v := withColumns(20)
	for expr, want := range map[string]string{
		"widht > 3":               `did you mean "width"?`,
		"id < 3 and heights == 1": "the dataset has the properties width, ratio, split, ok, image/h",
		"width == 'a'":            `"width" holds whole numbers`,
		"split == 3":              `"split" holds text`,
		"split % 2 == 0":          "% is for whole numbers",
		"ratio % 2 == 0":          "% is for whole numbers",
		"ok == 1":                 `"ok" holds true or false`,
		"width ~ 'a'":             "whole numbers",
		"split < 'a'":             `"<" needs a number`,
		"width in (1, 'a')":       "of one kind",
		"width in [1, 2, 3]":      "two ends",
		"width in [3, 2]":         "swap",
		"split in ['a', 'b']":     "numbers as its ends",
		"width == dog":            "put text in quotes",
		"width == 1 == 2":         "do not chain",
		"width = 1":               `use "=="`,
		"property('') == 1":       "a property has a name",
		"property(width) == 1":    "put text in quotes",
		"width == 1e999":          "too large",
		"broken > 1":              "the column cannot be read",
		"true == 1":               "unknown word",
	} {
		e, err := Parse(expr)
		if err == nil {
			_, err = e.Select(v)
		}
		if f := (*errs.Error)(nil); !errors.As(err, &f) || !strings.Contains(f.Message+f.Hint, want) {
			t.Errorf("%q: %v, want %q", expr, err, want)
		}
	}
	if _, err := mustParse(t, "width > 3").Select(folder(5)); err == nil || !strings.Contains(err.Error(),
		"no properties") {
		t.Errorf("without properties: %v", err)
	}
}

// TestPropertiesModel: conditions on numbers mean what Go's operators mean.
func TestPropertiesModel(t *testing.T) {
	v := withColumns(50)
	rapid.Check(t, func(rt *rapid.T) {
		op := rapid.SampledFrom([]string{"<", "<=", ">", ">=", "==", "!="}).Draw(rt, "op")
		x := float64(rapid.IntRange(-80, 480).Draw(rt, "x")) / 8
		name := rapid.SampledFrom([]string{"width", "ratio"}).Draw(rt, "name")
		got, err := mustParse(t, fmt.Sprintf("%s %s %g", name, op, x)).Select(v)
		if err != nil {
			rt.Fatal(err)
		}
		want := []ident.SampleID{}
		for i := range 50 {
			y := float64(i - 5)
			if name == "ratio" {
				y = v.of["ratio"].Floats[i]
			}
			if map[string]bool{"<": y < x, "<=": y <= x, ">": y > x, ">=": y >= x, "==": y == x, "!=": y != x}[op] {
				want = append(want, ident.SampleID(i))
			}
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("%s %s %g selects %v, want %v", name, op, x, got, want)
		}
	})
}
