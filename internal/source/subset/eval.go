package subset

import (
	"fmt"
	"math"
	"math/bits"
	"path"
	"slices"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// Select returns the selected live samples, ascending and distinct; an empty result is not an error here. Errors are
// *errs.Error with reason INVALID_ARGUMENT (a range or a draw that the dataset is too small for, a property that is
// compared with what it cannot be), SUBSET_SYNTAX (an unknown property), or those of Properties.Property.
func (e *Expr) Select(v View) ([]ident.SampleID, error) {
	n := v.Len()
	ev := &evaluation{view: v, live: newMask(n), n: n, src: e.src}
	for i := range n {
		if v.Live(ident.SampleID(i)) {
			ev.live.add(uint32(i))
		}
	}
	ev.liveCount = ev.live.count()
	got := e.root.eval(ev, ev.live.clone(), true)
	if ev.err != nil {
		return nil, ev.err
	}
	ids := make([]ident.SampleID, 0, got.count())
	got.each(func(i uint32) { ids = append(ids, ident.SampleID(i)) })
	return ids, nil
}

// evaluation is one Select. Every node returns the part of its candidates for which it is known to hold (is), or known
// not to hold, and owns the mask it is given: a condition on a value that is missing is neither, so "not" selects what
// is known not to hold. Restricting the right side of "and" to what the left side left saves work only: each condition
// is a function of the id alone (or of the whole dataset, for the draws), so the result does not depend on the order.
type evaluation struct {
	view      View
	n         int
	live      mask // not to be changed
	liveCount int
	src       string
	err       error // the first one; nodes evaluate on, so that it does not depend on the data

	asked   bool    // what follows is what the view says
	labels  *Column // the values of labels; nil = View.Label has all of them
	some    bool    // a live sample has a label
	missing bool    // a live sample has none
}

func (ev *evaluation) fail(n node, format string, args ...any) {
	ev.failHint(n, "`id in [a, b)` takes what there is, `larder dataset inspect` shows how much that is", format, args...)
}

func (ev *evaluation) failHint(n node, hint, format string, args ...any) {
	if ev.err == nil {
		ev.err = errs.New(errs.Invalid, "subset", hint, "subset: %s %s", (&Expr{root: n}).String(),
			fmt.Sprintf(format, args...))
	}
}

// filter keeps the candidates for which f holds.
func (ev *evaluation) filter(cand mask, f func(id ident.SampleID) bool) mask {
	for w, x := range cand {
		for x != 0 {
			b := bits.TrailingZeros64(x)
			x &= x - 1
			if !f(ident.SampleID(w<<6 + b)) {
				cand[w] &^= 1 << b
			}
		}
	}
	return cand
}

// decide keeps the candidates for which f holds, or does not.
func (ev *evaluation) decide(cand mask, is bool, f func(id ident.SampleID) bool) mask {
	return ev.filter(cand, func(id ident.SampleID) bool { return f(id) == is })
}

// part keeps the candidates that are in got, or the others.
func (m mask) part(got mask, is bool) mask {
	if is {
		m.and(got)
	} else {
		m.andNot(got)
	}
	return m
}

func (allNode) eval(_ *evaluation, cand mask, is bool) mask {
	if !is {
		clear(cand)
	}
	return cand
}

// eval: "a and b" is false where one of them is, as "a or b" is true where one of them is.
func (n *boolNode) eval(ev *evaluation, cand mask, is bool) mask {
	if n.and == is {
		for _, k := range n.kids {
			cand = k.eval(ev, cand, is)
		}
		return cand
	}
	got := make(mask, len(cand))
	for _, k := range n.kids {
		part := k.eval(ev, cand.clone(), is)
		got.or(part)
		cand.andNot(part)
	}
	return got
}

func (n *notNode) eval(ev *evaluation, cand mask, is bool) mask { return n.x.eval(ev, cand, !is) }

func (n *intCmp) eval(ev *evaluation, cand mask, is bool) mask {
	return ev.term(n, &propNode{mod: n.mod, op: n.op, vals: wholes(n.val)}, n.id, cand, is)
}

func (n *intSet) eval(ev *evaluation, cand mask, is bool) mask {
	return ev.term(n, &propNode{mod: n.mod, op: "in", vals: wholes(n.vals...)}, n.id, cand, is)
}

func (n *interval) eval(ev *evaluation, cand mask, is bool) mask {
	p := &propNode{mod: n.mod, op: "[]", vals: wholes(n.lo, n.hi), loOpen: n.loOpen, hiOpen: n.hiOpen}
	return ev.term(n, p, n.id, cand, is)
}

// text runs f on the key or class of the candidates; a sample without a label has no class. Neighbours often have one
// class: its answer is kept.
func (ev *evaluation) text(class bool, cand mask, is bool, f func(s string) bool) mask {
	if !class {
		return ev.decide(cand, is, func(id ident.SampleID) bool { return f(ev.view.Key(id)) })
	}
	last, answer, known := "", false, false
	return ev.filter(cand, func(id ident.SampleID) bool {
		if c := ev.view.Class(id); !known || c != last {
			last, answer, known = c, c != "" && f(c) == is, true
		}
		return answer
	})
}

func (n *strSet) eval(ev *evaluation, cand mask, is bool) mask {
	if n.class && slices.Contains(n.vals, "") { // asks for those that have none
		return ev.decide(cand, is, func(id ident.SampleID) bool { return n.has(ev.view.Class(id)) })
	}
	return ev.text(n.class, cand, is, n.has)
}

func (n *strSet) has(s string) bool {
	_, ok := slices.BinarySearch(n.vals, s)
	return ok != (n.form == formNe)
}

func (n *globNode) eval(ev *evaluation, cand mask, is bool) mask {
	return ev.text(n.class, cand, is, func(s string) bool { return matchGlob(n.segs, s) })
}

func (n *rangeNode) eval(ev *evaluation, cand mask, is bool) mask {
	if n.hi > int64(ev.n) {
		ev.fail(n, "goes beyond the dataset, whose ids are 0 to %d", ev.n-1)
	}
	return ev.decide(cand, is, func(id ident.SampleID) bool { return int64(id) >= n.lo && int64(id) < n.hi })
}

func (n *fraction) eval(ev *evaluation, cand mask, is bool) mask {
	k := int(math.Round(n.p * float64(ev.liveCount)))
	return cand.part(smallest(ev.live, k, n.seed), is)
}

func (n *drawn) eval(ev *evaluation, cand mask, is bool) mask {
	if n.hi > int64(ev.n) {
		ev.fail(n, "goes beyond the dataset, whose ids are 0 to %d", ev.n-1)
		return cand
	}
	among := ev.filter(ev.live.clone(), func(id ident.SampleID) bool { return int64(id) >= n.lo && int64(id) < n.hi })
	if have := among.count(); n.n > int64(have) {
		ev.fail(n, "draws %d samples, but only %d of that range are there (the others were removed)", n.n, have)
		return cand
	}
	return cand.part(smallest(among, int(n.n), n.seed), is)
}

// smallest returns the k members of m with the smallest hash of (seed, id). Hashes are as good as independent uniform
// numbers, so this is a uniformly random k-subset; and since the hash of an id depends on nothing else, draws with one
// seed are nested (10 % within 50 %), and a sample that is removed is replaced by one other and moves no sample.
func smallest(m mask, k int, seed uint64) mask {
	const buckets = 1 << 12 // by the leading bits; only the bucket that k falls into has to be sorted
	const shift = 64 - 12
	const domain = 0x73756273_65740001
	hash := func(id uint32) uint64 { return xrand.Hash(domain, seed, uint64(id)) }
	var hist [buckets]int
	m.each(func(id uint32) { hist[hash(id)>>shift]++ })
	b := uint64(0)
	for b < buckets && k >= hist[b] {
		k -= hist[b]
		b++
	}
	got := make(mask, len(m))
	type ranked struct {
		h  uint64
		id uint32
	}
	var border []ranked
	m.each(func(id uint32) {
		switch h := hash(id); {
		case h>>shift < b:
			got.add(id)
		case h>>shift == b:
			border = append(border, ranked{h, id})
		}
	})
	slices.SortFunc(border, func(x, y ranked) int {
		switch {
		case x.h < y.h || x.h == y.h && x.id < y.id:
			return -1
		default:
			return 1
		}
	})
	for _, r := range border[:min(k, len(border))] {
		got.add(r.id)
	}
	return got
}

// matchGlob matches a key against the segments of a pattern: path.Match in every segment, and a segment "**" stands for
// any number of segments. It is a row of a table per pattern segment, so its time is bounded by their product.
func matchGlob(segs []string, key string) bool {
	names := splitSegments(key)
	row, nextRow := make([]bool, len(names)+1), make([]bool, len(names)+1)
	row[0] = true // row[i]: the pattern so far matches the first i names
	for _, seg := range segs {
		clear(nextRow)
		if seg == "**" {
			reached := false
			for i := range row {
				reached = reached || row[i]
				nextRow[i] = reached
			}
		} else {
			for i, name := range names {
				if row[i] {
					nextRow[i+1], _ = path.Match(seg, name) // the pattern was checked by Parse
				}
			}
		}
		row, nextRow = nextRow, row
	}
	return row[len(names)]
}

func splitSegments(key string) []string {
	var buf [8]string
	out, from := buf[:0], 0
	for i := range len(key) {
		if key[i] == '/' {
			out = append(out, key[from:i])
			from = i + 1
		}
	}
	return append(out, key[from:])
}

// mask is a bit per id of the dataset; all masks of an evaluation have the same length.
type mask []uint64

func newMask(n int) mask    { return make(mask, (n+63)/64) }
func (m mask) add(i uint32) { m[i>>6] |= 1 << (i & 63) }
func (m mask) clone() mask  { return slices.Clone(m) }
func (m mask) or(o mask) {
	for i := range m {
		m[i] |= o[i]
	}
}
func (m mask) and(o mask) {
	for i := range m {
		m[i] &= o[i]
	}
}
func (m mask) andNot(o mask) {
	for i := range m {
		m[i] &^= o[i]
	}
}

func (m mask) count() int {
	n := 0
	for _, x := range m {
		n += bits.OnesCount64(x)
	}
	return n
}

func (m mask) each(f func(i uint32)) {
	for w, x := range m {
		for x != 0 {
			f(uint32(w<<6 + bits.TrailingZeros64(x)))
			x &= x - 1
		}
	}
}
