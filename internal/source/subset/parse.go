package subset

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"larder/internal/errs"
	"larder/internal/nearest"
)

// Parse reads an expression; the empty one means all. Every error is a *errs.Error with reason SUBSET_SYNTAX whose
// message shows the expression with a caret under the offending character.
func Parse(expr string) (*Expr, error) {
	if len(expr) > MaxLength {
		return nil, tooLong(len(expr))
	}
	p := &parser{src: expr}
	if err := p.next(); err != nil {
		return nil, err
	}
	if p.tok.kind == tEOF {
		return &Expr{allNode{}, expr}, nil
	}
	n, err := p.or(0)
	if err != nil {
		return nil, err
	}
	if p.tok.kind != tEOF {
		return nil, p.unexpected(`"and", "or" or the end`, "and", "or", "in")
	}
	e := &Expr{n, expr}
	if canonical := len(e.String()); canonical > MaxLength { // or String would give what Parse refuses
		return nil, tooLong(canonical)
	}
	return e, nil
}

func tooLong(n int) error {
	return errs.New(errs.SubsetSyntax, "subset", "select by class, range or pattern instead of listing",
		"subset: the expression has %d bytes, the limit is %d", n, MaxLength)
}

// parser is a recursive descent over one token of look-ahead. depth counts parentheses and nots.
type parser struct {
	src string
	tok token
	end int // where the look-ahead ends
}

func (p *parser) next() error {
	t, end, err := lex(p.src, p.end)
	if err != nil {
		return err
	}
	p.tok, p.end = t, end
	return nil
}

func (p *parser) errAt(pos int, hint, format string, args ...any) error {
	return syntax(p.src, pos, hint, format, args...)
}

// unexpected says what would fit here; when the token is a word, the nearest of words is offered.
func (p *parser) unexpected(want string, words ...string) error {
	hint := ""
	if p.tok.kind == tWord {
		if n := nearest.Word(p.tok.text, words); n != "" {
			hint = "did you mean " + strconv.Quote(n) + "?"
		}
	}
	return p.errAt(p.tok.pos, hint, "expected %s, found %s", want, p.tok.shown())
}

func (p *parser) is(kind kind, text string) bool { return p.tok.kind == kind && p.tok.text == text }

// punct consumes one of the given punctuation marks.
func (p *parser) punct(text string) error {
	if !p.is(tPunct, text) {
		return p.unexpected(strconv.Quote(text))
	}
	return p.next()
}

func (p *parser) or(depth int) (node, error)  { return p.list(depth, false) }
func (p *parser) and(depth int) (node, error) { return p.list(depth, true) }

func (p *parser) list(depth int, and bool) (node, error) {
	word, operand := "or", p.and
	if and {
		word, operand = "and", p.unary
	}
	var kids []node
	for {
		k, err := operand(depth)
		if err != nil {
			return nil, err
		}
		kids = append(kids, k)
		if !p.is(tWord, word) {
			return join(and, kids), nil
		}
		if err := p.next(); err != nil {
			return nil, err
		}
	}
}

func (p *parser) unary(depth int) (node, error) {
	if depth > MaxDepth {
		return nil, p.errAt(p.tok.pos, "write it flatter", "parentheses and nots nest deeper than %d", MaxDepth)
	}
	switch {
	case p.is(tWord, "not"):
		if err := p.next(); err != nil {
			return nil, err
		}
		x, err := p.unary(depth + 1)
		if err != nil {
			return nil, err
		}
		return &notNode{x}, nil
	case p.is(tPunct, "("):
		if err := p.next(); err != nil {
			return nil, err
		}
		x, err := p.or(depth + 1)
		if err != nil {
			return nil, err
		}
		if !p.is(tPunct, ")") {
			return nil, p.unexpected(`"and", "or" or ")"`, "and", "or")
		}
		return x, p.next()
	}
	return p.primary()
}

// maxPattern bounds the work of one match; the total is bounded by MaxLength times the keys.
const maxPattern = 1024

// words a condition may begin with.
var words = []string{"label", "id", "key", "class", "sample", "range", "all", "not"}

func (p *parser) primary() (node, error) {
	if p.tok.kind != tWord {
		hint := ""
		switch p.tok.kind {
		case tInt, tFloat:
			hint = "write the field first, as in label < 600"
		case tString:
			hint = `write the field first, as in class == "dog"`
		case tEOF, tPunct, tWord:
		}
		return nil, p.errAt(p.tok.pos, hint, "expected a condition, found %s", p.tok.shown())
	}
	t := p.tok
	if err := p.next(); err != nil {
		return nil, err
	}
	switch t.text {
	case "all":
		return allNode{}, nil
	case "label":
		return p.intCondition(term{})
	case "id":
		return p.intCondition(term{id: true})
	case "key":
		return p.strCondition(false)
	case "class":
		return p.strCondition(true)
	case "sample":
		return p.sample(t.pos)
	case "range":
		return p.rangeCall(t.pos)
	case "property":
		return p.propertyCall()
	}
	if p.condition() && !slices.Contains(reserved, t.text) {
		return p.property(t.text, t.pos)
	}
	hint := "the words are " + strings.Join(words, ", ")
	if n := nearest.Word(t.text, words); n != "" {
		hint = "did you mean " + strconv.Quote(n) + "?"
	}
	return nil, p.errAt(t.pos, hint, "unknown word %q", clip(t.text))
}

// condition reports whether the look-ahead can follow a property.
func (p *parser) condition() bool {
	switch p.tok.kind {
	case tWord:
		return p.tok.text == "in" || p.tok.text == "not"
	case tPunct:
		return slices.Contains([]string{"==", "!=", "<", "<=", ">", ">=", "=", "~", "%"}, p.tok.text)
	case tEOF, tInt, tFloat, tString:
	}
	return false
}

// comparison reports whether the look-ahead is a comparison, and refuses the common mistake "=".
func (p *parser) comparison() (bool, error) {
	if p.tok.kind != tPunct {
		return false, nil
	}
	switch p.tok.text {
	case "==", "!=", "<", "<=", ">", ">=":
		return true, nil
	case "=":
		return false, p.errAt(p.tok.pos, `use "=="`, `"=" does not compare`)
	}
	return false, nil
}

func (p *parser) intCondition(t term) (node, error) {
	if p.is(tPunct, "%") {
		m, err := p.modulus()
		if err != nil {
			return nil, err
		}
		t.mod = m
	}
	cmp, err := p.comparison()
	if err != nil {
		return nil, err
	}
	if cmp {
		op := p.tok.text
		if err := p.next(); err != nil {
			return nil, err
		}
		v, err := p.integer()
		if err != nil {
			return nil, err
		}
		if p.tok.kind == tPunct && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">=", "="}, p.tok.text) {
			return nil, p.errAt(p.tok.pos, `join two comparisons with "and"`, "comparisons do not chain")
		}
		return &intCmp{t, op, v}, nil
	}
	if p.is(tPunct, "~") {
		return nil, p.errAt(p.tok.pos, `use key ~ "..." or class ~ "..."`, `"~" matches text, labels and ids are numbers`)
	}
	return p.membership(func() (node, error) { return p.intMembers(t) })
}

// membership parses ["not"] "in" and then what members parses.
func (p *parser) membership(members func() (node, error)) (node, error) {
	negate := p.is(tWord, "not")
	if negate {
		if err := p.next(); err != nil {
			return nil, err
		}
	}
	if !p.is(tWord, "in") {
		want := `a comparison or "in"`
		if negate {
			want = `"in"`
		}
		return nil, p.unexpected(want, "in", "not")
	}
	if err := p.next(); err != nil {
		return nil, err
	}
	n, err := members()
	if err != nil {
		return nil, err
	}
	if negate {
		return &notNode{n}, nil
	}
	return n, nil
}

// bracketed parses values between brackets of either kind, which it returns.
func bracketed[T any](p *parser, value func() (T, error)) (open, closing token, vals []T, err error) {
	open = p.tok
	if !p.is(tPunct, "(") && !p.is(tPunct, "[") {
		return open, closing, nil, p.unexpected(`"(" or "["`)
	}
	if err := p.next(); err != nil {
		return open, closing, nil, err
	}
	if vals, err = commas(p, value); err != nil {
		return open, closing, nil, err
	}
	closing = p.tok
	if !p.is(tPunct, ")") && !p.is(tPunct, "]") {
		return open, closing, nil, p.unexpected(`"," or a closing bracket`)
	}
	return open, closing, vals, p.next()
}

// intMembers parses "(a, b, ...)", a set, or an interval: [a, b) [a, b] (a, b]. "(a, b)" is the set.
func (p *parser) intMembers(t term) (node, error) {
	open, closing, vals, err := bracketed(p, p.integer)
	if err != nil {
		return nil, err
	}
	if open.text == "(" && closing.text == ")" {
		return &intSet{t, sortedDistinct(vals)}, nil
	}
	if len(vals) != 2 {
		return nil, p.errAt(open.pos, "write a set with round brackets: (3, 7, 9)", "an interval has two ends, this has %d",
			len(vals))
	}
	if vals[0] > vals[1] {
		return nil, p.errAt(open.pos, "swap them", "the lower end %d is above the upper end %d", vals[0], vals[1])
	}
	return &interval{term: t, lo: vals[0], hi: vals[1], loOpen: open.text == "(", hiOpen: closing.text == ")"}, nil
}

// commas parses one or more values with commas between them.
func commas[T any](p *parser, one func() (T, error)) (vals []T, err error) {
	for {
		v, err := one()
		if err != nil {
			return nil, err
		}
		vals = append(vals, v)
		if !p.is(tPunct, ",") {
			return vals, nil
		}
		if err := p.next(); err != nil {
			return nil, err
		}
	}
}

func (p *parser) strCondition(class bool) (node, error) {
	field := strField(class)
	if p.is(tPunct, "~") {
		s, segs, err := p.pattern(field)
		if err != nil {
			return nil, err
		}
		return &globNode{class: class, pattern: s, segs: segs}, nil
	}
	cmp, err := p.comparison()
	if err != nil {
		return nil, err
	}
	if cmp {
		form := formEq
		switch p.tok.text {
		case "==":
		case "!=":
			form = formNe
		default:
			return nil, p.errAt(p.tok.pos, "compare text with ==, !=, in or ~", "%q needs a number, %s is text", p.tok.text,
				field)
		}
		if err := p.next(); err != nil {
			return nil, err
		}
		s, err := p.str(field)
		if err != nil {
			return nil, err
		}
		return &strSet{class, []string{s}, form}, nil
	}
	return p.membership(func() (node, error) {
		if err := p.punct("("); err != nil {
			return nil, err
		}
		vals, err := commas(p, func() (string, error) { return p.str(field) })
		if err != nil {
			return nil, err
		}
		if !p.is(tPunct, ")") {
			return nil, p.unexpected(`"," or ")"`)
		}
		return &strSet{class, sortedDistinct(vals), formIn}, p.next()
	})
}

func (p *parser) str(field string) (string, error) {
	if p.tok.kind != tString {
		hint := "put text in quotes, as in " + field + ` == "dog"`
		if field == "class" && p.tok.kind == tInt {
			hint = "classes are folder names in quotes; for the class number use label"
		}
		return "", p.errAt(p.tok.pos, hint, "expected text in quotes, found %s", p.tok.shown())
	}
	s := p.tok.text
	return s, p.next()
}

// integer parses ["-"] INT into an int64.
func (p *parser) integer() (int64, error) {
	pos, sign := p.tok.pos, ""
	if p.is(tPunct, "-") {
		sign = "-"
		if err := p.next(); err != nil {
			return 0, err
		}
	}
	if p.tok.kind != tInt {
		hint := ""
		switch p.tok.kind {
		case tString:
			hint = "labels and ids are numbers; for folder names use class"
		case tFloat:
			hint = "use a whole number"
		case tEOF, tWord, tInt, tPunct:
		}
		return 0, p.errAt(p.tok.pos, hint, "expected a whole number, found %s", p.tok.shown())
	}
	v, err := strconv.ParseInt(sign+strings.ReplaceAll(p.tok.text, "_", ""), 10, 64)
	if err != nil {
		return 0, p.errAt(pos, "numbers go to 9223372036854775807", "the number is too large")
	}
	return v, p.next()
}

// seed parses an optional ", seed=N"; the seed is 0 when absent.
func (p *parser) seed() (uint64, error) {
	if !p.is(tPunct, ",") {
		return 0, nil
	}
	if err := p.next(); err != nil {
		return 0, err
	}
	if !p.is(tWord, "seed") {
		if p.tok.kind != tWord {
			return 0, p.errAt(p.tok.pos, "write sample(0.5, seed=3) or sample(lo, hi, n, seed=3)", `expected "seed=", found %s`,
				p.tok.shown())
		}
		return 0, p.unexpected(`"seed="`, "seed")
	}
	if err := p.next(); err != nil {
		return 0, err
	}
	if p.is(tPunct, "==") {
		return 0, p.errAt(p.tok.pos, `use "="`, "seed takes a value, it is not compared")
	}
	if err := p.punct("="); err != nil {
		return 0, err
	}
	if p.tok.kind != tInt {
		return 0, p.errAt(p.tok.pos, "as in seed=3", "expected a whole number from 0, found %s", p.tok.shown())
	}
	v, err := strconv.ParseUint(strings.ReplaceAll(p.tok.text, "_", ""), 10, 64)
	if err != nil {
		return 0, p.errAt(p.tok.pos, "a seed is below 2^64", "the number is too large")
	}
	return v, p.next()
}

// sample parses sample(p[, seed=s]) and sample(lo, hi, n[, seed=s]) after the word.
func (p *parser) sample(pos int) (node, error) {
	if err := p.punct("("); err != nil {
		return nil, err
	}
	first := p.tok
	if first.kind != tInt && first.kind != tFloat {
		return nil, p.errAt(first.pos, "write sample(0.5, seed=3) or sample(lo, hi, n, seed=3)",
			"expected a number, found %s", first.shown())
	}
	if err := p.next(); err != nil {
		return nil, err
	}
	// The next token distinguishes the two forms: ", seed" or ")" against ", NUMBER".
	if first.kind == tInt && p.is(tPunct, ",") {
		if t, _, err := lex(p.src, p.end); err == nil && t.kind == tInt {
			return p.drawn(pos, first)
		}
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(first.text, "_", ""), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return nil, p.errAt(first.pos, "", "%s is not a number", first.shown())
	}
	if !(f > 0 && f <= 1) {
		return nil, p.errAt(first.pos, "for a number of samples write sample(lo, hi, n, seed=3)",
			"the fraction must be above 0 and at most 1")
	}
	seed, err := p.seed()
	if err != nil {
		return nil, err
	}
	return &fraction{f, seed}, p.punct(")")
}

func (p *parser) drawn(pos int, first token) (node, error) {
	lo, err := strconv.ParseInt(strings.ReplaceAll(first.text, "_", ""), 10, 64)
	if err != nil {
		return nil, p.errAt(first.pos, "numbers go to 9223372036854775807", "the number is too large")
	}
	vals := [3]int64{lo}
	for i := 1; i < 3; i++ {
		if !p.is(tPunct, ",") {
			return nil, p.errAt(p.tok.pos, "write sample(lo, hi, n, seed=3)", `expected "," and a whole number, found %s`,
				p.tok.shown())
		}
		if err := p.next(); err != nil {
			return nil, err
		}
		if vals[i], err = p.integer(); err != nil {
			return nil, err
		}
	}
	if err := p.bounds(pos, vals[0], vals[1]); err != nil {
		return nil, err
	}
	if vals[2] < 1 || vals[2] > vals[1]-vals[0] {
		return nil, p.errAt(pos, "the third number is how many to draw", "cannot draw %d of the %d ids in [%d, %d)", vals[2],
			vals[1]-vals[0], vals[0], vals[1])
	}
	seed, err := p.seed()
	if err != nil {
		return nil, err
	}
	return &drawn{vals[0], vals[1], vals[2], seed}, p.punct(")")
}

func (p *parser) bounds(pos int, lo, hi int64) error {
	if lo < 0 || lo > hi {
		return p.errAt(pos, "as in range(100, 5000)", "[%d, %d) is not a range of ids: 0 <= lo <= hi", lo, hi)
	}
	return nil
}

func (p *parser) rangeCall(pos int) (node, error) {
	if err := p.punct("("); err != nil {
		return nil, err
	}
	lo, err := p.integer()
	if err != nil {
		return nil, err
	}
	if !p.is(tPunct, ",") {
		return nil, p.errAt(p.tok.pos, "as in range(100, 5000)", `expected ",", found %s`, p.tok.shown())
	}
	if err := p.next(); err != nil {
		return nil, err
	}
	hi, err := p.integer()
	if err != nil {
		return nil, err
	}
	if err := p.bounds(pos, lo, hi); err != nil {
		return nil, err
	}
	return &rangeNode{lo, hi}, p.punct(")")
}
