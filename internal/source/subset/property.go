package subset

import (
	"cmp"
	"errors"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"larder/internal/ident"
	"larder/internal/nearest"
)

// Properties is a View of samples that have values by name: columns of a table, keys of JSON.
type Properties interface {
	View
	// Property returns a column of Len() values. Errors that are ErrNoProperty say that there is none of that name.
	Property(name string) (*Column, error)
	// PropertyNames names the properties that there are, for messages.
	PropertyNames() []string
	// Labels gives the labels as values, where some are no class numbers: below 0, parts of numbers, words; nil = Label
	// has all of them.
	Labels() (*Column, error)
}

// ErrNoProperty says that a dataset has no property of a name.
var ErrNoProperty = errors.New("no such property")

// Kind is what the values of a property are.
type Kind uint8

// The kinds.
const (
	Int Kind = iota
	Float
	Bool
	Text
)

func (k Kind) String() string {
	return [...]string{"whole numbers", "numbers", "true or false", "text"}[k]
}

// Column is a property: a value for each id. Of the slices, that of its kind is as long as the dataset.
type Column struct {
	Kind   Kind
	Single bool      // of Float: the values are float32, and so numbers in expressions are rounded
	Ints   []int64   // of Int, and of Bool as 0 or 1
	Floats []float64 // NaN = no value
	Words  []string  // of Text: every word once
	Codes  []uint32  // of Text: a place in Words
	None   []uint64  // a bit for each id that has no value; nil = all have one
}

func (c *Column) none(id ident.SampleID) bool {
	return len(c.None) > 0 && c.None[id>>6]&(1<<(id&63)) != 0 || c.Kind == Float && math.IsNaN(c.Floats[id])
}

// literal is a value in an expression. A number that is whole is an int.
type literal struct {
	kind Kind
	i    int64 // of Int and Bool
	f    float64
	s    string
}

func (l literal) number() bool { return l.kind == Int || l.kind == Float }

func (l literal) float() float64 {
	if l.kind == Int {
		return float64(l.i)
	}
	return l.f
}

func (l literal) write(b *strings.Builder) {
	switch l.kind {
	case Int:
		b.WriteString(strconv.FormatInt(l.i, 10))
	case Float:
		b.WriteString(strconv.FormatFloat(l.f, 'g', -1, 64))
	case Bool:
		b.WriteString(strconv.FormatBool(l.i == 1))
	case Text:
		quote(b, l.s)
	}
}

// compareLiterals orders literals of one sort.
func compareLiterals(x, y literal) int {
	switch {
	case x.kind == Text && y.kind == Text:
		return cmp.Compare(x.s, y.s)
	case x.kind != Float && y.kind != Float:
		return cmp.Compare(x.i, y.i)
	}
	return cmp.Compare(x.float(), y.float())
}

// propNode is a condition on a property.
type propNode struct {
	name string
	pos  int // of the word in the expression; 0 in nodes that are equal otherwise
	mod  int64
	op   string // < <= > >= == != ~ in, and [] of an interval

	vals           []literal // of in: sorted, distinct; of an interval: both ends; else one
	loOpen, hiOpen bool
	segs           []string // of ~
}

func (*propNode) prec() int { return 4 }

// plainName reports whether a property can be written as a word.
func plainName(s string) bool {
	t, end, err := lex(s, 0)
	return err == nil && t.kind == tWord && end == len(s) && t.text == s && !slices.Contains(reserved, s)
}

// reserved are the words that are no properties.
var reserved = append(slices.Clone(words), "and", "or", "in", "true", "false", "seed", "property")

func (n *propNode) write(b *strings.Builder) {
	if plainName(n.name) {
		b.WriteString(n.name)
	} else {
		b.WriteString("property(")
		quote(b, n.name)
		b.WriteByte(')')
	}
	if n.mod != 0 {
		b.WriteString(" % " + strconv.FormatInt(n.mod, 10))
	}
	switch n.op {
	case "in":
		b.WriteString(" in (")
		for i, v := range n.vals {
			if i > 0 {
				b.WriteString(", ")
			}
			v.write(b)
		}
		b.WriteByte(')')
	case "[]":
		left, right := "[", "]"
		if n.loOpen {
			left = "("
		}
		if n.hiOpen {
			right = ")"
		}
		b.WriteString(" in " + left)
		n.vals[0].write(b)
		b.WriteString(", ")
		n.vals[1].write(b)
		b.WriteString(right)
	default:
		b.WriteString(" " + n.op + " ")
		n.vals[0].write(b)
	}
}

// property parses a condition on a property, behind its name.
func (p *parser) property(name string, pos int) (node, error) {
	n := &propNode{name: name, pos: pos}
	if p.is(tPunct, "%") {
		t, err := p.modulus()
		if err != nil {
			return nil, err
		}
		n.mod = t
	}
	compares, err := p.comparison()
	if err != nil {
		return nil, err
	}
	switch {
	case compares:
		n.op = p.tok.text
		if err := p.next(); err != nil {
			return nil, err
		}
		at := p.tok.pos
		v, err := p.literal()
		if err != nil {
			return nil, err
		}
		if !v.number() && n.op != "==" && n.op != "!=" {
			return nil, p.errAt(at, "compare text and true or false with ==, != or in", "%q needs a number", n.op)
		}
		n.vals = []literal{v}
		if p.tok.kind == tPunct && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">=", "="}, p.tok.text) {
			return nil, p.errAt(p.tok.pos, `join two comparisons with "and"`, "comparisons do not chain")
		}
		return n, nil
	case p.is(tPunct, "~"):
		s, segs, err := p.pattern(name)
		n.op, n.vals, n.segs = "~", []literal{{kind: Text, s: s}}, segs
		return n, err
	}
	return p.membership(func() (node, error) { return p.propMembers(n) })
}

// modulus parses "%" and a positive number.
func (p *parser) modulus() (int64, error) {
	if err := p.next(); err != nil {
		return 0, err
	}
	pos := p.tok.pos
	m, err := p.integer()
	if err == nil && m <= 0 {
		err = p.errAt(pos, "as in id % 2 == 0", "the number after %% must be positive")
	}
	return m, err
}

// pattern parses "~" and a pattern.
func (p *parser) pattern(field string) (s string, segs []string, err error) {
	if err := p.next(); err != nil {
		return "", nil, err
	}
	pos := p.tok.pos
	if s, err = p.str(field); err != nil {
		return "", nil, err
	}
	if len(s) > maxPattern {
		return "", nil, p.errAt(pos, "write a shorter one, or join several by or",
			"the pattern has %d bytes, the limit is %d", len(s), maxPattern)
	}
	segs = strings.Split(s, "/")
	for _, seg := range segs {
		if _, err := path.Match(seg, "x"); err != nil {
			return "", nil, p.errAt(pos, `[ starts a set such as [a-z]; write [[] for a plain one`,
				"the pattern %q is malformed", clip(s))
		}
	}
	return s, segs, nil
}

// propMembers parses a set or an interval.
func (p *parser) propMembers(n *propNode) (node, error) {
	open, closing, vals, err := bracketed(p, p.literal)
	if err != nil {
		return nil, err
	}
	for _, v := range vals {
		if v.number() != vals[0].number() || !v.number() && v.kind != vals[0].kind {
			return nil, p.errAt(open.pos, "write numbers, or text in quotes, or true and false",
				"the values of a set are of one kind")
		}
	}
	n.vals = vals
	if open.text == "(" && closing.text == ")" {
		n.op = "in"
		slices.SortFunc(n.vals, compareLiterals)
		n.vals = slices.CompactFunc(n.vals, func(x, y literal) bool { return compareLiterals(x, y) == 0 })
		return n, nil
	}
	n.op, n.loOpen, n.hiOpen = "[]", open.text == "(", closing.text == ")"
	switch {
	case len(vals) != 2:
		return nil, p.errAt(open.pos, "write a set with round brackets: (3, 7, 9)", "an interval has two ends, this has %d",
			len(vals))
	case !vals[0].number():
		return nil, p.errAt(open.pos, "write a set with round brackets", "an interval has numbers as its ends")
	case compareLiterals(vals[0], vals[1]) > 0:
		return nil, p.errAt(open.pos, "swap them", "the lower end of the interval is above the upper end")
	}
	return n, nil
}

// literal parses a number, text in quotes, true or false.
func (p *parser) literal() (literal, error) {
	switch {
	case p.tok.kind == tString:
		l := literal{kind: Text, s: p.tok.text}
		return l, p.next()
	case p.is(tWord, "true"), p.is(tWord, "false"):
		l := literal{kind: Bool}
		if p.tok.text == "true" {
			l.i = 1
		}
		return l, p.next()
	case p.tok.kind == tWord:
		return literal{}, p.errAt(p.tok.pos, "put text in quotes", "expected a value, found %s", p.tok.shown())
	}
	pos, sign := p.tok.pos, ""
	if p.is(tPunct, "-") {
		sign = "-"
		if err := p.next(); err != nil {
			return literal{}, err
		}
	}
	text := sign + strings.ReplaceAll(p.tok.text, "_", "")
	switch p.tok.kind {
	case tInt:
		if v, err := strconv.ParseInt(text, 10, 64); err == nil {
			return literal{kind: Int, i: v}, p.next()
		}
	case tFloat:
	case tEOF, tWord, tString, tPunct:
		return literal{}, p.errAt(p.tok.pos, "", "expected a number, text in quotes, true or false, found %s", p.tok.shown())
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return literal{}, p.errAt(pos, "numbers go to 1.8e308", "the number is too large")
	}
	const exact = 1 << 53
	if f == math.Trunc(f) && math.Abs(f) < exact {
		return literal{kind: Int, i: int64(f)}, p.next()
	}
	return literal{kind: Float, f: f}, p.next()
}

// propertyCall parses property("NAME") after the word.
func (p *parser) propertyCall() (node, error) {
	if err := p.punct("("); err != nil {
		return nil, err
	}
	pos := p.tok.pos
	name, err := p.str("property")
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, p.errAt(pos, `as in property("image/width") >= 256`, "a property has a name")
	}
	if err := p.punct(")"); err != nil {
		return nil, err
	}
	return p.property(name, pos)
}

// column finds the values of a property; nil = there are none, and the evaluation has failed.
func (ev *evaluation) column(n *propNode) *Column {
	v, ok := ev.view.(Properties)
	if !ok {
		return ev.unknown(n, nil)
	}
	c, err := v.Property(n.name)
	switch {
	case errors.Is(err, ErrNoProperty):
		return ev.unknown(n, v.PropertyNames())
	case err != nil:
		if ev.err == nil {
			ev.err = err
		}
		return nil
	}
	number := c.Kind == Int || c.Kind == Float
	for _, l := range n.vals {
		if number != l.number() || !number && c.Kind != l.kind || n.mod != 0 && c.Kind != Int {
			what := "what it is compared with is not"
			if n.mod != 0 {
				what = "% is for whole numbers"
			}
			ev.failHint(n, "compare numbers with numbers, text with text in quotes", "cannot be: %q holds %s, and %s", n.name,
				c.Kind, what)
			return nil
		}
	}
	return c
}

// unknown says that there is no property of a name; names are those that there are.
func (ev *evaluation) unknown(n *propNode, names []string) *Column {
	hint := "the words are " + strings.Join(words, ", ")
	if len(names) > 0 {
		const most = 30
		shown := names
		if len(shown) > most {
			shown = append(slices.Clone(shown[:most]), "…")
		}
		hint += "; the dataset has the properties " + strings.Join(shown, ", ")
	} else {
		hint += "; the dataset has no properties"
	}
	if near := nearest.Word(n.name, slices.Concat(words, names)); near != "" {
		hint = "did you mean " + strconv.Quote(near) + "? " + hint
	}
	if ev.err == nil {
		ev.err = syntax(ev.src, min(n.pos, len(ev.src)), hint, "unknown word %q", clip(n.name))
	}
	return nil
}

func (n *propNode) eval(ev *evaluation, cand mask, is bool) mask {
	c := ev.column(n)
	if c == nil {
		return cand
	}
	fits := n.test(c)
	return ev.decide(cand, is, func(id ident.SampleID) bool {
		if c.none(id) {
			return n.op == "!="
		}
		return fits(id)
	})
}

// test returns whether the value of a sample, which has one, fits.
func (n *propNode) test(c *Column) func(id ident.SampleID) bool {
	switch c.Kind {
	case Text:
		fits := make([]bool, len(c.Words))
		for i, w := range c.Words {
			if n.op == "~" {
				fits[i] = matchGlob(n.segs, w)
			} else {
				fits[i] = n.holds(literal{kind: Text, s: w})
			}
		}
		return func(id ident.SampleID) bool { return fits[c.Codes[id]] }
	case Float:
		if c.Single {
			n = n.rounded()
		}
		return func(id ident.SampleID) bool { return n.holds(literal{kind: Float, f: c.Floats[id]}) }
	case Int, Bool:
	}
	return func(id ident.SampleID) bool { return n.holds(literal{kind: Int, i: n.remainder(c.Ints[id])}) }
}

// remainder of a value, where the condition asks for one: never negative, as in Python.
func (n *propNode) remainder(x int64) int64 {
	if n.mod != 0 {
		if x %= n.mod; x < 0 {
			x += n.mod
		}
	}
	return x
}

// rounded is the condition with numbers that a float32 can be.
func (n *propNode) rounded() *propNode {
	m := *n
	m.vals = slices.Clone(n.vals)
	for i := range m.vals {
		m.vals[i] = literal{kind: Float, f: float64(float32(m.vals[i].float()))}
	}
	return &m
}

// holds compares a value.
func (n *propNode) holds(x literal) bool {
	switch n.op {
	case "in":
		_, ok := slices.BinarySearchFunc(n.vals, x, compareLiterals)
		return ok
	case "[]":
		lo, hi := compareLiterals(x, n.vals[0]), compareLiterals(x, n.vals[1])
		return (lo > 0 || lo == 0 && !n.loOpen) && (hi < 0 || hi == 0 && !n.hiOpen)
	}
	d := compareLiterals(x, n.vals[0])
	switch n.op {
	case "<":
		return d < 0
	case "<=":
		return d <= 0
	case ">":
		return d > 0
	case ">=":
		return d >= 0
	case "!=":
		return d != 0
	}
	return d == 0
}
