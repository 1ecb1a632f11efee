package subset

import (
	"math"
	"slices"

	"larder/internal/ident"
)

// Conditions on labels and ids. A sample without a label fits none of them, "!=", "not in" and "not" included: nothing
// is known of it, so neither a condition nor its opposite is.

// wholes are literals of whole numbers.
func wholes(numbers ...int64) []literal {
	out := make([]literal, len(numbers))
	for i, x := range numbers {
		out[i] = literal{kind: Int, i: x}
	}
	return out
}

// term keeps the candidates whose id or label fits p, or does not. n is the node, for messages.
func (ev *evaluation) term(n node, p *propNode, byID bool, cand mask, is bool) mask {
	if byID {
		return ev.decide(cand, is, func(id ident.SampleID) bool {
			return p.holds(literal{kind: Int, i: p.remainder(int64(id))})
		})
	}
	c := ev.askLabels(n, p)
	switch {
	case ev.err != nil:
		return cand
	case c == nil:
		return ev.filter(cand, func(id ident.SampleID) bool {
			x := ev.view.Label(id)
			return x >= 0 && p.holds(literal{kind: Int, i: p.remainder(x)}) == is
		})
	case c.Kind == Float && p.mod != 0:
		return ev.ofFloats(n, p, c, cand, is)
	}
	fits := p.test(c)
	return ev.filter(cand, func(id ident.SampleID) bool { return !c.none(id) && fits(id) == is })
}

// askLabels gives the values of the labels; nil = View.Label has them, or ev.err says what is wrong.
func (ev *evaluation) askLabels(n node, p *propNode) *Column {
	if !ev.asked {
		ev.asked = true
		ev.live.each(func(i uint32) {
			is := ev.view.Label(ident.SampleID(i)) >= 0
			ev.some, ev.missing = ev.some || is, ev.missing || !is
		})
		if v, ok := ev.view.(Properties); ok {
			var err error
			if ev.labels, err = v.Labels(); err != nil && ev.err == nil {
				ev.err = err
			}
		}
	}
	switch {
	case ev.labels == nil && !ev.some && ev.liveCount > 0:
		ev.failHint(n, "select by id, key or a property; `larder dataset inspect` shows what the samples have",
			"compares labels, and no sample of the dataset has one that is a number")
	case ev.labels == nil && ev.missing && slices.ContainsFunc(p.vals, func(l literal) bool { return l.i < 0 }):
		ev.failHint(n, `class == "" selects the samples without a label`,
			"compares labels with a number below 0; numbers of classes begin with 0, and a sample without a label fits no "+
				"condition on it")
	case ev.labels != nil && (ev.labels.Kind == Text || ev.labels.Kind == Bool):
		ev.failHint(n, `write property("NAME") with the name of that field, as in property("label") == "dog"`,
			"compares labels with a number, and the labels of the dataset are %s", ev.labels.Kind)
	}
	return ev.labels
}

// ofFloats is term for remainders of labels that are read as floats: they have to be whole.
func (ev *evaluation) ofFloats(n node, p *propNode, c *Column, cand mask, is bool) mask {
	const exact = 1 << 53
	return ev.filter(cand, func(id ident.SampleID) bool {
		if c.none(id) {
			return false
		}
		f := c.Floats[id]
		if f != math.Trunc(f) || math.Abs(f) > exact {
			ev.failHint(n, "compare the labels themselves", "is for whole numbers, and sample %d has the label %v", id, f)
			return false
		}
		return p.holds(literal{kind: Int, i: p.remainder(int64(f))}) == is
	})
}
