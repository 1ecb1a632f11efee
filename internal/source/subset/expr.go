package subset

import (
	"slices"
	"strconv"
	"strings"
)

// Expr is a parsed expression. It is immutable; the zero value is not valid, use Parse.
type Expr struct {
	root node
	src  string // for errors of Select
}

// String returns the canonical form: sets sorted, needless parentheses and underscores gone, seeds written out.
// Parse(e.String()) gives an equal expression, so jobs may store and compare the string.
func (e *Expr) String() string {
	var b strings.Builder
	e.root.write(&b)
	return b.String()
}

// node is one operation. prec orders by how tightly it binds: or 1, and 2, not 3, the rest 4.
type node interface {
	write(b *strings.Builder)
	prec() int
	// eval keeps the candidates for which the node holds, or those for which it does not.
	eval(ev *evaluation, cand mask, is bool) mask
}

type (
	allNode  struct{}
	boolNode struct { // and, or; at least two kids, none of the same kind (flattened)
		and  bool
		kids []node
	}
	notNode struct{ x node }
	// term is what an integer condition looks at: the label or id, modulo mod when that is not 0.
	term struct {
		id  bool
		mod int64
	}
	intCmp struct {
		term
		op  string
		val int64
	}
	intSet struct {
		term
		vals []int64 // sorted, distinct, not empty
	}
	interval struct {
		term
		lo, hi         int64
		loOpen, hiOpen bool
	}
	strSet struct { // == is a set of one, != its negation
		class bool // else key
		vals  []string
		form  strForm
	}
	globNode struct {
		class   bool
		pattern string
		segs    []string
	}
	fraction struct { // sample(p, seed)
		p    float64
		seed uint64
	}
	drawn struct { // sample(lo, hi, n, seed)
		lo, hi, n int64
		seed      uint64
	}
	rangeNode struct{ lo, hi int64 }
)

type strForm uint8

const (
	formIn strForm = iota
	formEq
	formNe
)

func (allNode) prec() int { return 4 }
func (n *boolNode) prec() int {
	if n.and {
		return 2
	}
	return 1
}
func (*notNode) prec() int   { return 3 }
func (*intCmp) prec() int    { return 4 }
func (*intSet) prec() int    { return 4 }
func (*interval) prec() int  { return 4 }
func (*strSet) prec() int    { return 4 }
func (*globNode) prec() int  { return 4 }
func (*fraction) prec() int  { return 4 }
func (*drawn) prec() int     { return 4 }
func (*rangeNode) prec() int { return 4 }

// child writes n in parentheses when it binds less tightly than its parent.
func child(b *strings.Builder, n node, parent int) {
	if n.prec() < parent {
		b.WriteByte('(')
		n.write(b)
		b.WriteByte(')')
		return
	}
	n.write(b)
}

func (allNode) write(b *strings.Builder) { b.WriteString("all") }

func (n *boolNode) write(b *strings.Builder) {
	word := " or "
	if n.and {
		word = " and "
	}
	for i, k := range n.kids {
		if i > 0 {
			b.WriteString(word)
		}
		child(b, k, n.prec())
	}
}

func (n *notNode) write(b *strings.Builder) {
	b.WriteString("not ")
	child(b, n.x, n.prec())
}

func (t term) write(b *strings.Builder) {
	if t.id {
		b.WriteString("id")
	} else {
		b.WriteString("label")
	}
	if t.mod != 0 {
		b.WriteString(" % ")
		b.WriteString(strconv.FormatInt(t.mod, 10))
	}
}

func (n *intCmp) write(b *strings.Builder) {
	n.term.write(b)
	b.WriteString(" " + n.op + " " + strconv.FormatInt(n.val, 10))
}

func (n *intSet) write(b *strings.Builder) {
	n.term.write(b)
	b.WriteString(" in (")
	for i, v := range n.vals {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.FormatInt(v, 10))
	}
	b.WriteByte(')')
}

func (n *interval) write(b *strings.Builder) {
	n.term.write(b)
	left, right := "[", "]"
	if n.loOpen {
		left = "("
	}
	if n.hiOpen {
		right = ")"
	}
	b.WriteString(" in " + left + strconv.FormatInt(n.lo, 10) + ", " + strconv.FormatInt(n.hi, 10) + right)
}

func strField(class bool) string {
	if class {
		return "class"
	}
	return "key"
}

// quote writes a string as the lexer reads it: only the quote and the backslash are escaped, any other byte stands
// for itself, because keys may hold bytes that are not UTF-8.
func quote(b *strings.Builder, s string) {
	b.WriteByte('"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	b.WriteByte('"')
}

func (n *strSet) write(b *strings.Builder) {
	b.WriteString(strField(n.class))
	switch n.form {
	case formEq:
		b.WriteString(" == ")
		quote(b, n.vals[0])
	case formNe:
		b.WriteString(" != ")
		quote(b, n.vals[0])
	default:
		b.WriteString(" in (")
		for i, v := range n.vals {
			if i > 0 {
				b.WriteString(", ")
			}
			quote(b, v)
		}
		b.WriteByte(')')
	}
}

func (n *globNode) write(b *strings.Builder) {
	b.WriteString(strField(n.class) + " ~ ")
	quote(b, n.pattern)
}

func (n *fraction) write(b *strings.Builder) {
	b.WriteString("sample(" + strconv.FormatFloat(n.p, 'g', -1, 64) + ", seed=" + strconv.FormatUint(n.seed, 10) + ")")
}

func (n *drawn) write(b *strings.Builder) {
	b.WriteString("sample(" + strconv.FormatInt(n.lo, 10) + ", " + strconv.FormatInt(n.hi, 10) + ", " +
		strconv.FormatInt(n.n, 10) + ", seed=" + strconv.FormatUint(n.seed, 10) + ")")
}

func (n *rangeNode) write(b *strings.Builder) {
	b.WriteString("range(" + strconv.FormatInt(n.lo, 10) + ", " + strconv.FormatInt(n.hi, 10) + ")")
}

// join makes an and/or of kids, lifting kids of the same kind: "(a and b) and c" is "a and b and c".
func join(and bool, kids []node) node {
	if len(kids) == 1 {
		return kids[0]
	}
	flat := make([]node, 0, len(kids))
	for _, k := range kids {
		if b, ok := k.(*boolNode); ok && b.and == and {
			flat = append(flat, b.kids...)
			continue
		}
		flat = append(flat, k)
	}
	return &boolNode{and: and, kids: flat}
}

func sortedDistinct[T int64 | string](vals []T) []T {
	slices.Sort(vals)
	return slices.Compact(vals)
}
