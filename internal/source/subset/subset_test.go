package subset

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// table is a View over slices.
type table struct {
	label []int64
	key   []string
	class []string
	dead  map[ident.SampleID]bool
}

func (t *table) Len() int                       { return len(t.label) }
func (t *table) Live(id ident.SampleID) bool    { return !t.dead[id] }
func (t *table) Label(id ident.SampleID) int64  { return t.label[id] }
func (t *table) Key(id ident.SampleID) string   { return t.key[id] }
func (t *table) Class(id ident.SampleID) string { return t.class[id] }

// folder has n samples in classes n00, n01, ... of ten.
func folder(n int) *table {
	t := &table{dead: map[ident.SampleID]bool{}}
	for i := range n {
		c := fmt.Sprintf("n%02d", i/10)
		t.label = append(t.label, int64(i/10))
		t.class = append(t.class, c)
		t.key = append(t.key, fmt.Sprintf("%s/im%d.jpg", c, i%10))
	}
	return t
}

func mustParse(t testing.TB, s string) *Expr {
	t.Helper()
	e, err := Parse(s)
	if err != nil {
		t.Fatalf("Parse(%q): %v", s, err)
	}
	return e
}

func ints(lo, hi int) (out []ident.SampleID) {
	for i := lo; i < hi; i++ {
		out = append(out, ident.SampleID(i))
	}
	return out
}

func TestSelect(t *testing.T) {
	v := folder(100)
	v.dead[55] = true
	v.key[7] = `n00/deep/er/a "b" \c*.jpg`
	v.label[99] = -1
	live := func(ids []ident.SampleID) []ident.SampleID {
		return slices.DeleteFunc(ids, func(i ident.SampleID) bool { return i == 55 })
	}
	for _, c := range []struct {
		expr, canonical string
		want            []ident.SampleID
	}{
		{"", "all", live(ints(0, 100))},
		{" \n\t", "all", live(ints(0, 100))},
		{"all", "all", live(ints(0, 100))},
		{"label < 6", "label < 6", live(ints(0, 60))},
		{"label<=1", "label <= 1", ints(0, 20)},
		{"label > 8", "label > 8", ints(90, 99)},
		{"label >= 9", "label >= 9", ints(90, 99)},
		{"not label < 9", "not label < 9", ints(90, 99)},
		{"label != 4 and id < 60", "label != 4 and id < 60", live(append(ints(0, 40), ints(50, 60)...))},
		{"label in (7, 3,3)", "label in (3, 7)", append(ints(30, 40), ints(70, 80)...)},
		{"label not in (0,1,2,3,4,5,6,7,8)", "not label in (0, 1, 2, 3, 4, 5, 6, 7, 8)", ints(90, 99)},
		{"label % 9 == 8", "label % 9 == 8", ints(80, 90)},
		{"id % 25 == 0", "id % 25 == 0", []ident.SampleID{0, 25, 50, 75}},
		{"id % 50 in (1, 2)", "id % 50 in (1, 2)", []ident.SampleID{1, 2, 51, 52}},
		{"id in [5, 8)", "id in [5, 8)", ints(5, 8)},
		{"id in [5, 8]", "id in [5, 8]", ints(5, 9)},
		{"id in (5, 8]", "id in (5, 8]", ints(6, 9)},
		{"id in (5, 8)", "id in (5, 8)", []ident.SampleID{5, 8}},
		{"id in [90, 1_000_000)", "id in [90, 1000000)", ints(90, 100)},
		{"range(1_0, 13)", "range(10, 13)", ints(10, 13)},
		{`key ~ "n03/*"`, `key ~ "n03/*"`, ints(30, 40)},
		{`key ~ "*"`, `key ~ "*"`, []ident.SampleID{}},
		{`key ~ "**/im3.jpg" and label < 3`, `key ~ "**/im3.jpg" and label < 3`, []ident.SampleID{3, 13, 23, 99}[:3]},
		{`key ~ "n00/**" and id in (6,7,8)`, `key ~ "n00/**" and id in (6, 7, 8)`, ints(6, 9)},
		{`key ~ "n00/**/*c[*].jpg"`, `key ~ "n00/**/*c[*].jpg"`, ints(7, 8)},
		{`key == 'n00/deep/er/a "b" \\c*.jpg'`, `key == "n00/deep/er/a \"b\" \\c*.jpg"`, ints(7, 8)},
		{`class == "n04"`, `class == "n04"`, ints(40, 50)},
		{`class != "n04" and id < 50`, `class != "n04" and id < 50`, ints(0, 40)},
		{`class in ("n09", "n04", "zz")`, `class in ("n04", "n09", "zz")`, append(ints(40, 50), ints(90, 100)...)},
		{`class not in ("n04") and label in [3,5]`, `not class in ("n04") and label in [3, 5]`,
			live(append(ints(30, 40), ints(50, 60)...))},
		{`class ~ "n0[01]"`, `class ~ "n0[01]"`, ints(0, 20)},
		{"not not id < 2", "not not id < 2", ints(0, 2)},
		{"not (id < 2 or id >= 5)", "not (id < 2 or id >= 5)", ints(2, 5)},
		{"(id < 2) or ((id < 4))", "id < 2 or id < 4", ints(0, 4)},
		{"id < 2 or id == 7 and id > 3", "id < 2 or id == 7 and id > 3", []ident.SampleID{0, 1, 7}},
		{"(id < 2 or id == 7) and (id > 0 and id < 8)", "(id < 2 or id == 7) and id > 0 and id < 8", []ident.SampleID{1, 7}},
		{"not all", "not all", []ident.SampleID{}},
		{"sample(1.0)", "sample(1, seed=0)", live(ints(0, 100))},
		{"sample(10, 20, 10, seed=1)", "sample(10, 20, 10, seed=1)", ints(10, 20)},
	} {
		e := mustParse(t, c.expr)
		if got := e.String(); got != c.canonical {
			t.Errorf("%q: canonical form %q, want %q", c.expr, got, c.canonical)
		}
		got, err := e.Select(v)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q selects %v, %v; want %v", c.expr, got, err, c.want)
		}
	}
}

// wrongExpressions is expressions with a ^ where the mistake is, and what its error says.
var wrongExpressions = []struct{ marked, says string }{
	{"^lable < 600", `did you mean "label"?`},
	{"^LABEL < 600", `did you mean "label"?`},
	{"label < 3 ^adn id > 3", `did you mean "and"?`},
	{"label < 3 ^&& id > 3", `write "and"`},
	{"label < 3 ^|| id > 3", `write "or"`},
	{"^!(id < 3)", `write "not"`},
	{"label ^<> 3", `write "!="`},
	{"label ^= 3", `use "=="`},
	{"class ^= 3", `use "=="`},
	{"label ^^ 3", "does not belong"},
	{"label <^", "the end of the expression"},
	{"label ^", `a comparison or "in"`},
	{"label ^ni (3)", `did you mean "in"?`},
	{"label < ^abc", "whole number"},
	{"label < ^0.5", "use a whole number"},
	{`label == ^"dog"`, "use class"},
	{"class == ^dog", "put text in quotes"},
	{"class == ^3", "use label"},
	{"class ^< \"a\"", "compare text with"},
	{"label ^~ \"a\"", "are numbers"},
	{"key ~ ^\"[a\"", "malformed"},
	{"key ~ ^\"abc", "no end"},
	{`key ~ "a^\q"`, `write \\`},
	{"key ~ \"a^\x00\"", "NUL"},
	{"label < 999^x", "does not belong in a number"},
	{"label < ^99999999999999999999", "too large"},
	{"id % ^0 == 1", "must be positive"},
	{"id % ^-2 == 1", "must be positive"},
	{"id in ^[3, 2)", "swap"},
	{"id in ^[3, 2, 5]", "two ends"},
	{"id in [3, 2^", "closing bracket"},
	{"id in (^)", "whole number"},
	{"id in ^3", `"(" or "["`},
	{"^3 < label", "write the field first"},
	{"^\"a\" == class", "write the field first"},
	{"id > 1 ^< 5", "do not chain"},
	{"id == 1 ^== 5", "do not chain"},
	{"(label < 3^", `or ")"`},
	{"label < 3^)", `"and", "or" or the end`},
	{"label < 3 ^label > 1", `"and", "or" or the end`},
	{"not ^", "a condition"},
	{"label < 3 and ^", "a condition"},
	{"label < 3 and ^or id > 1", "unknown word"},
	{"sample ^0.5", `"("`},
	{"sample(^1.5)", "the fraction"},
	{"sample(^0)", "the fraction"},
	{"sample(^10000, seed=3)", "sample(lo, hi, n"},
	{"sample(^x)", "write sample(0.5"},
	{"sample(0.5, ^sed=3)", `did you mean "seed"?`},
	{"sample(0.5, ^3)", `"seed="`},
	{"sample(0.5, seed^==3)", `use "="`},
	{"sample(0.5, seed=^-3)", "from 0"},
	{"sample(0.5, seed=^99999999999999999999)", "2^64"},
	{"sample(0.5^", `")"`},
	{"^sample(0, 10, 11)", "cannot draw 11"},
	{"^sample(10, 0, 1)", "not a range"},
	{"sample(0, 10^)", "lo, hi, n"},
	{"^range(5, 4)", "not a range"},
	{"^range(-1, 4)", "not a range"},
	{"range(5^)", "range(100, 5000)"},
	{"label < 3 \n and\t ^lable < 4", "label"},
	{"class == \"é\" and ^lable < 4", "label"},
	{"label < 3 ^é", "does not belong"},
	{"label < 3 ^\xff", "byte 0xff"},
	{strings.Repeat("label < 3 or ", 300) + "^lable < 4", "label"},
}

// TestErrors: the place of the caret (a ^ in the pattern stands before the offending byte) and what the error offers.
func TestErrors(t *testing.T) {
	for _, c := range wrongExpressions {
		at := strings.IndexByte(c.marked, '^')
		src := c.marked[:at] + c.marked[at+1:]
		e, err := Parse(src)
		if err == nil { // an unknown word may be a property, which the dataset says
			_, err = e.Select(folder(30))
		}
		fe := errs.From(err)
		if err == nil || fe.Reason != errs.SubsetSyntax {
			t.Errorf("Parse(%q) = %v, want SUBSET_SYNTAX", src, err)
			continue
		}
		if !strings.Contains(err.Error(), c.says) {
			t.Errorf("Parse(%q):\n%v\ndoes not say %q", src, err, c.says)
		}
		lines := strings.Split(fe.Message, "\n")
		if len(lines) != 3 || !strings.HasSuffix(lines[2], "^") || !utf8.ValidString(fe.Message) {
			t.Errorf("Parse(%q): message is not three valid lines with a caret:\n%s", src, fe.Message)
			continue
		}
		shown, col := []rune(lines[1]), len(lines[2])-1
		want, got := ' ', ' '
		if at < len(src) {
			if want, _ = utf8.DecodeRuneInString(src[at:]); want == utf8.RuneError {
				want = '?'
			}
			want = max(want, ' ')
		}
		if col < len(shown) {
			got = shown[col]
		}
		before := caretText(src[:at])
		if got != want || !strings.HasSuffix(string(shown[:min(col, len(shown))]), before) {
			t.Errorf("Parse(%q): caret under %q, want it under byte %d (%q):\n%s", src, got, at, want, fe.Message)
		}
	}
}

// caretText is what stands left of a caret after the (cleaned) text before it: its last 20 runes at most.
func caretText(before string) string {
	rs := []rune(strings.NewReplacer("\n", " ", "\t", " ").Replace(strings.ToValidUTF8(before, "?")))
	return string(rs[max(0, len(rs)-20):])
}

func TestBounds(t *testing.T) {
	for _, s := range []string{
		strings.Repeat("(", 30_000) + "all",
		strings.Repeat("not ", 15_000) + "all",
		strings.Repeat("a", MaxLength+1),
		`key ~ "` + strings.Repeat("*", 1025) + `"`,
		strings.Repeat("x", MaxLength),
		strings.Repeat("id<1 or ", 8_000) + "id<1", // fits, but its canonical form does not
	} {
		_, err := Parse(s)
		if !errs.Is(err, errs.SubsetSyntax) {
			t.Errorf("Parse of %d bytes: %v", len(s), err)
		} else if len(err.Error()) > 1000 {
			t.Errorf("the error of a long expression has %d bytes", len(err.Error()))
		}
	}
	long := "label in (" + strings.Repeat("3,", 20_000) + "3)"
	if got := mustParse(t, long).String(); got != "label in (3)" {
		t.Errorf("%.60s", got)
	}
	mustParse(t, strings.Repeat("(", MaxDepth)+"all"+strings.Repeat(")", MaxDepth))
}

func TestEvaluationErrors(t *testing.T) {
	v := folder(100)
	for i := ident.SampleID(10); i < 15; i++ {
		v.dead[i] = true
	}
	for expr, says := range map[string]string{
		"range(50, 101)":                     "ids are 0 to 99",
		"label < 0 and range(50, 101)":       "ids are 0 to 99", // whatever the left side leaves
		"all or not sample(0, 101, 3)":       "ids are 0 to 99",
		"sample(10, 20, 6, seed=1)":          "only 5",
		`key ~ "%d%s" and sample(10, 20, 6)`: "only 5",
	} {
		_, err := mustParse(t, expr).Select(v)
		if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "%!") {
			t.Errorf("%s: %v", expr, err)
		}
	}
	if got, err := mustParse(t, "sample(10, 20, 5) or range(10, 12)").Select(v); err != nil ||
		!slices.Equal(got, ints(15, 20)) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestSampleLaw: the size is exact, each sample is taken equally often over seeds, pairs are independent up to the
// fixed size, draws of one seed are nested, and a removal moves no other sample.
func TestSampleLaw(t *testing.T) {
	const n, k, rounds = 40, 10, 20_000
	v := folder(n)
	var single [n]int
	var pair int
	for s := range rounds {
		ids, err := mustParse(t, fmt.Sprintf("sample(0.25, seed=%d)", s)).Select(v)
		if err != nil || len(ids) != k {
			t.Fatalf("seed %d: %d ids, %v", s, len(ids), err)
		}
		has := [2]bool{}
		for _, id := range ids {
			single[id]++
			if id < 2 {
				has[id] = true
			}
		}
		if has[0] && has[1] {
			pair++
		}
	}
	// Chi-square of the 40 counts around k/n; the variance of a count is rounds*p*(1-p), with n-1 degrees of freedom
	// after the correction n/(n-1) for the fixed total. 39 degrees: 99.999 % point is 87.
	p := float64(k) / n
	chi := 0.0
	for _, c := range single {
		d := float64(c) - rounds*p
		chi += d * d / (rounds * p * (1 - p)) * (n - 1) / n
	}
	if chi > 87 {
		t.Errorf("chi-square %.1f of the inclusion counts, 39 degrees of freedom", chi)
	}
	pp := p * float64(k-1) / (n - 1)
	if d := math.Abs(float64(pair)-rounds*pp) / math.Sqrt(rounds*pp*(1-pp)); d > 4.5 {
		t.Errorf("pairs are %.1f standard deviations off", d)
	}

	big := folder(5000)
	sel := func(s string) []ident.SampleID {
		ids, err := mustParse(t, s).Select(big)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	half, tenth := sel("sample(0.5, seed=3)"), sel("sample(0.1, seed=3)")
	if len(half) != 2500 || len(tenth) != 500 {
		t.Errorf("%d and %d of 5000", len(half), len(tenth))
	}
	if rest := sel("sample(0.1, seed=3) and not sample(0.5, seed=3)"); len(rest) != 0 {
		t.Errorf("%d samples of 10 %% are not within 50 %%", len(rest))
	}
	// 1250 +- 4 sd
	if other := sel("sample(0.5, seed=4) and sample(0.5, seed=3)"); len(other) < 1100 || len(other) > 1400 {
		t.Errorf("two seeds share %d of 2500", len(other))
	}
	big.dead[half[17]] = true
	now := sel("sample(0, 5000, 2500, seed=3)")
	moved := 0
	for _, id := range now {
		if _, ok := slices.BinarySearch(half, id); !ok {
			moved++
		}
	}
	if moved != 1 || len(now) != 2500 {
		t.Errorf("one removal moved %d samples of %d", moved, len(now))
	}
	if got := len(sel("sample(0.5, seed=3)")); got != 2500 { // round(4999/2)
		t.Errorf("%d", got)
	}
}

// drawExpr draws an expression and its meaning as a naive predicate (ok for everything but the draws).
func drawExpr(rt *rapid.T, depth int) (string, func(v View, id ident.SampleID) bool) {
	num := func(name string) int64 { return rapid.Int64Range(-3, 60).Draw(rt, name) }
	top := 8
	if depth == 0 {
		top = 5
	}
	switch rapid.IntRange(0, top).Draw(rt, "op") {
	case 0:
		op := rapid.SampledFrom([]string{"<", "<=", ">", ">=", "==", "!="}).Draw(rt, "cmp")
		x := num("x")
		return fmt.Sprintf("label %s %d", op, x), func(v View, id ident.SampleID) bool {
			l := v.Label(id)
			return map[string]bool{"<": l < x, "<=": l <= x, ">": l > x, ">=": l >= x, "==": l == x, "!=": l != x}[op]
		}
	case 1:
		m, r := rapid.Int64Range(1, 9).Draw(rt, "mod"), rapid.Int64Range(0, 8).Draw(rt, "rem")
		return fmt.Sprintf("id%%%d==%d", m, r), func(_ View, id ident.SampleID) bool { return int64(id)%m == r }
	case 2:
		lo := num("lo")
		hi := lo + rapid.Int64Range(0, 40).Draw(rt, "len")
		return fmt.Sprintf("id in [%d,%d)", lo, hi), func(_ View, id ident.SampleID) bool {
			return int64(id) >= lo &&
				int64(id) < hi
		}
	case 3:
		a, b := num("a"), num("b")
		return fmt.Sprintf("label in (%d,%d)", a, b), func(v View, id ident.SampleID) bool {
			return v.Label(id) == a ||
				v.Label(id) == b
		}
	case 4:
		pat := rapid.SampledFrom([]string{"**", "n0*/*", "*/im3.jpg", "n01/**", "**/im[0-4]*"}).Draw(rt, "glob")
		return fmt.Sprintf("key ~ %q", pat), func(v View, id ident.SampleID) bool {
			return naiveGlob(strings.Split(pat, "/"), strings.Split(v.Key(id), "/"))
		}
	case 5:
		c := rapid.SampledFrom([]string{"n00", "n03", "zz"}).Draw(rt, "class")
		return fmt.Sprintf("class == '%s'", c), func(v View, id ident.SampleID) bool { return v.Class(id) == c }
	case 6:
		s, f := drawExpr(rt, depth-1)
		return "not (" + s + ")", func(v View, id ident.SampleID) bool { return !f(v, id) }
	default:
		a, f := drawExpr(rt, depth-1)
		b, g := drawExpr(rt, depth-1)
		if rapid.Bool().Draw(rt, "and") {
			return "(" + a + ") and (" + b + ")", func(v View, id ident.SampleID) bool { return f(v, id) && g(v, id) }
		}
		return "(" + a + ") or (" + b + ")", func(v View, id ident.SampleID) bool { return f(v, id) || g(v, id) }
	}
}

func naiveGlob(segs, names []string) bool {
	if len(segs) == 0 {
		return len(names) == 0
	}
	if segs[0] == "**" {
		return naiveGlob(segs[1:], names) || len(names) > 0 && naiveGlob(segs, names[1:])
	}
	if len(names) == 0 {
		return false
	}
	ok, _ := path.Match(segs[0], names[0])
	return ok && naiveGlob(segs[1:], names[1:])
}

func drawFolder(rt *rapid.T) *table {
	v := folder(rapid.IntRange(0, 130).Draw(rt, "n"))
	r := xrand.New(rapid.Uint64().Draw(rt, "dead"))
	for i := range v.label {
		if r.IntN(5) == 0 {
			v.dead[ident.SampleID(i)] = true
		}
	}
	return v
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := drawFolder(rt)
		s, f := drawExpr(rt, 4)
		e, err := Parse(s)
		if err != nil {
			rt.Fatalf("%q: %v", s, err)
		}
		want := []ident.SampleID{}
		for id := range ident.SampleID(v.Len()) {
			if v.Live(id) && f(v, id) {
				want = append(want, id)
			}
		}
		for _, e := range []*Expr{e, mustParse(t, e.String())} {
			if got, err := e.Select(v); err != nil || !slices.Equal(got, want) {
				rt.Fatalf("%q selects %v, %v; want %v", e, got, err, want)
			}
		}
	})
}

// TestAlgebra: laws that hold for any condition, the random draws included.
func TestAlgebra(t *testing.T) {
	draw := func(rt *rapid.T, name string) string {
		s, _ := drawExpr(rt, 2)
		if rapid.Bool().Draw(rt, name) {
			s = fmt.Sprintf("(%s) or sample(0.3, seed=%d)", s, rapid.IntRange(0, 3).Draw(rt, "seed"))
		}
		return "(" + s + ")"
	}
	rapid.Check(t, func(rt *rapid.T) {
		v := drawFolder(rt)
		a, b, c := draw(rt, "a"), draw(rt, "b"), draw(rt, "c")
		for _, law := range [][2]string{
			{"not (" + a + " and " + b + ")", "not " + a + " or not " + b},
			{"not (" + a + " or " + b + ")", "not " + a + " and not " + b},
			{a + " and " + b, b + " and " + a},
			{a + " or " + b, b + " or " + a},
			{a + " and (" + b + " or " + c + ")", a + " and " + b + " or " + a + " and " + c},
			{"not not " + a, a},
			{a + " or not " + a, "all"},
			{a + " and not " + a, "not all"},
		} {
			l, err1 := mustParse(t, law[0]).Select(v)
			r, err2 := mustParse(t, law[1]).Select(v)
			if err1 != nil || err2 != nil || !slices.Equal(l, r) {
				rt.Fatalf("%s = %v (%v)\n%s = %v (%v)", law[0], l, err1, law[1], r, err2)
			}
		}
	})
}

func TestGlobModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		segs := rapid.SliceOfN(rapid.StringMatching(`\*\*|[ab*?]{0,3}`), 1, 6).Draw(rt, "pattern")
		names := rapid.SliceOfN(rapid.StringMatching(`[ab]{0,3}`), 1, 6).Draw(rt, "key")
		if got, want := matchGlob(segs, strings.Join(names, "/")), naiveGlob(segs, names); got != want {
			rt.Fatalf("%q against %q: %v", segs, names, got)
		}
	})
	// A pattern that makes a backtracking matcher take 2^40 steps.
	segs := strings.Split(strings.Repeat("**/a/", 40)+"b", "/")
	if matchGlob(segs, strings.Repeat("a/", 100)+"c") {
		t.Error("matched")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "label < 600", "label in (3, 7)", "id % 2 == 0", "id in [100, 5000)",
		`key ~ "a/**/[b-c]*.jpg" and not class == 'x\\y'`,
		"sample(0.5, seed=3) or range(0, 3)", "sample(0, 30, 10, seed=11)", "not (all or all) and id in (3, 4]",
		"sample(1e-3)", "label == -9223372036854775808",
		"\"\xff\"", "label < 1_0 && x", "width >= 0.5 and property(\"a b\") in ('x', 'y')", "a.b % 3 != -2 or c ~ '*'",
		"x in [-1e3, .5) or y == true",
	} {
		f.Add(s)
	}
	v := folder(30)
	f.Fuzz(func(t *testing.T, s string) {
		e, err := Parse(s)
		if err != nil {
			fe := errs.From(err)
			if fe.Reason != errs.SubsetSyntax || !utf8.ValidString(fe.Message) || len(fe.Message) > 2000 {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		c := e.String()
		again, err := Parse(c)
		if err != nil || again.String() != c {
			t.Fatalf("%q is %q, which is %v, %v", s, c, again, err)
		}
		a, err1 := e.Select(v)
		b, err2 := again.Select(v)
		if !slices.Equal(a, b) || (err1 == nil) != (err2 == nil) || !slices.IsSorted(a) {
			t.Fatalf("%q selects %v, %v; %q selects %v, %v", s, a, err1, c, b, err2)
		}
	})
}

func BenchmarkSelect(b *testing.B) {
	v := folder(1_281_167)
	for _, s := range []string{"all", "label < 600", "sample(0.5, seed=3)", `key ~ "n1*/im[0-4]*"`} {
		e := mustParse(b, s)
		b.Run(s, func(b *testing.B) {
			for b.Loop() {
				if _, err := e.Select(v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
