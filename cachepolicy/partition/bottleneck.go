package partition

import (
	"fmt"
	"slices"
	"strings"

	"larder/internal/units"
)

// bottleneck is the default model: the law of the package comment.
//
// With one recipe, and whenever all jobs run at the rate of one bottleneck, the split is the exact optimum of a min-max
// linear program. With several, rates and memory multiply and the problem is not convex. Then the program is solved for
// the rates of the best split so far, and the lines to what each recipe would do with all the memory are searched for a
// better one. The result is never worse than the equal division.
type bottleneck struct{}

func (bottleneck) Name() string { return Bottleneck }

// Predict implements Model.
func (bottleneck) Predict(d Demand, s Split) (Candidate, error) {
	if err := d.check(); err != nil {
		return Candidate{}, err
	}
	pr := newProblem(&d)
	return pr.candidate(bottleneck{}, s, pr.evaluate(pr.even()).levels), nil
}

// Solve implements Model.
func (bottleneck) Solve(d Demand) (Plan, error) {
	if err := d.check(); err != nil {
		return Plan{}, err
	}
	pr := newProblem(&d)
	all := make([]int, len(pr.items))
	for i := range all {
		all[i] = i
	}
	s := newSearch(pr)
	if len(all) == 1 {
		s.tryPrograms(all)
	} else {
		s.run(all)
	}
	best, got := s.best, s.got
	if d.Machine.Waiting > 0 {
		best, got = pr.withRoom(all, best, got)
	}
	return pr.plan(Bottleneck, best, got, s.fair.levels, bottleneck{}), nil
}

// search looks for the best layout, beginning with the equal division.
type search struct {
	pr   *problem
	even layout // the equal division
	fair outcome
	best layout
	got  outcome // of best
}

func newSearch(pr *problem) *search {
	even := pr.even()
	fair := pr.evaluate(even)
	return &search{pr: pr, even: even, fair: fair, best: even, got: fair}
}

// try takes a layout if it is fair and better, or as good with less work, and reports whether it did.
func (s *search) try(l layout) bool {
	o := s.pr.evaluate(l)
	faster := o.total > s.got.total*(1+1e-9)
	better := faster || o.total >= s.got.total*(1-1e-9) && lighter(&o, &s.got)
	if !better || !o.fits(s.fair.levels, s.pr.d.fairness()) {
		return false
	}
	s.best, s.got = l, o
	return true
}

// tryPrograms tries what the programs give for the rates of the best layout so far. It returns the layout without
// sources.
func (s *search) tryPrograms(all []int) (balanced layout, better bool) {
	balanced = s.pr.solve(all, s.got.rates, 1, fromStorage)
	better = s.try(balanced)
	for _, src := range s.pr.sourcesOf(all...)[1:] {
		better = s.try(s.pr.solve(all, s.got.rates, 1, src)) || better
	}
	return balanced, better
}

// run searches for several recipes: turn by turn the programs, the lines to what each recipe would do with all the
// memory, and the layouts that hold one recipe wholly in one form, until none is better.
func (s *search) run(all []int) {
	pr := s.pr
	ends := []layout{s.even}
	many := len(all) > manyItems
	for _, i := range all {
		for _, src := range pr.sourcesOf(i) {
			if !many || src == fromEncoded || pr.items[i].rec.Sharers < 2 {
				ends = append(ends, pr.solve([]int{i}, nil, 1, src))
			}
		}
	}
	none := pr.empty()
	parts, rests, turns := []float64{1. / 32, 1. / 8, 1. / 4, 1. / 2, 3. / 4, 1}, []*layout{&s.best, &s.even, &none}, 4
	if many {
		parts, rests, turns = []float64{1. / 8, 1. / 2}, rests[:1], 2
	}
	for range turns {
		balanced, better := s.tryPrograms(all)
		for _, end := range append(ends, balanced) {
			from := s.best
			for _, part := range parts {
				better = s.try(pr.blend(from, end, part)) || better
			}
		}
		better = s.tryCovers(rests) || better
		if !better {
			break
		}
	}
}

// tryCovers tries layouts that hold one recipe wholly in one form: rates jump where a recipe stops needing a scarce
// resource at all.
func (s *search) tryCovers(rests []*layout) (better bool) {
	for i := range s.pr.items {
		for f := fEncoded; f <= fRefillDecoded; f++ {
			for _, rest := range rests {
				if l, ok := s.pr.cover(i, f, *rest); ok {
					better = s.try(l) || better
				}
			}
		}
	}
	return better
}

// A program gives the encoded tier, to the byte, what avoids the last read from storage. But sizes differ from their
// mean, and one read too many costs a hundred times what the same bytes gain elsewhere (1 job, 112 MiB, photographs, 10
// MB/s: two reads among an epoch's 700 samples take 5 % of its time). So encoded gets encodedRoom times what it needs,
// where that costs no job more than the part roomWorth of its rate.
const (
	encodedRoom = 1.1
	roomWorth   = 0.03
)

// manyItems is the number of items above which fewer splits are tried, so that the work stays within milliseconds.
const manyItems = 24

// withRoom returns best with more room in the encoded tier, where that helps: for a dataset that is served without a
// read, and without more reads of any other. Elsewhere encoded is short of bytes anyway, and charging more for it would
// only move them to other forms.
func (pr *problem) withRoom(all []int, best layout, got outcome) (layout, outcome) {
	if !slices.ContainsFunc(got.mixes, func(p [numForms]float64) bool { return p[fStored] < 1e-6 }) {
		return best, got // everything is read from storage
	}
	pr.room = encodedRoom
	defer func() { pr.room = 1 }()
	with, gives, found := best, got, false
	programs := pr.sourcesOf(all...)
	for _, src := range programs {
		if len(all) > manyItems && src != fromEncoded && len(programs) > 1 {
			continue
		}
		l := pr.solve(all, got.rates, 1, src)
		o := pr.evaluate(l)
		if (!found || o.total > gives.total) && o.fits(got.levels, 1-roomWorth) && pr.roomier(l, best) {
			with, gives, found = l, o, true
		}
	}
	return with, gives
}

// roomier reports whether a has more encoded bytes than b for an item that is not read from storage, and reads no item
// more often.
func (pr *problem) roomier(a, b layout) bool {
	more := false
	for i := range pr.items {
		it := &pr.items[i]
		x, mix := pr.sample(i, a)
		y, _ := pr.sample(i, b)
		if x[Storage] > y[Storage]+1e-6*it.need[fStored][Storage] {
			return false
		}
		more = more || mix[fStored] < 1e-6 && a.enc[it.data] > b.enc[it.data]
	}
	return more
}

// sourcesOf returns the programs that some items need: without sharing there are no instances to make.
func (pr *problem) sourcesOf(items ...int) []sources {
	if slices.ContainsFunc(items, func(i int) bool { return pr.items[i].rec.Sharers > 1 }) {
		return []sources{fromStorage, fromEncoded, fromDecoded}
	}
	return []sources{fromStorage}
}

// lighter reports whether a does the same with clearly less work.
func lighter(a, b *outcome) bool {
	sum := func(o *outcome) (s float64) {
		for _, x := range o.load[:Training] {
			s += x
		}
		return s
	}
	return sum(a) < sum(b)-1e-6
}

// even returns the equal division: every job owns an equal part of the memory, split best for its recipe alone.
func (pr *problem) even() layout {
	sum := pr.empty()
	for i := range pr.items {
		part := float64(len(pr.items[i].ingest)) / float64(pr.jobs)
		l := pr.solve([]int{i}, nil, part, fromStorage)
		for _, src := range pr.sourcesOf(i)[1:] {
			if x := pr.solve([]int{i}, nil, part, src); pr.alone(i, x) < pr.alone(i, l)*(1-1e-9) {
				l = x
			}
		}
		for k, x := range l.enc {
			sum.enc[k] += x
		}
		for k, x := range l.dec {
			sum.dec[k] += x
		}
		for k, x := range l.aug {
			sum.aug[k] += x
		}
	}
	return sum
}

// alone returns the seconds that a sample of an item takes when no other item is served.
func (pr *problem) alone(i int, l layout) float64 {
	need, _ := pr.sample(i, l)
	return pr.waited(&need)
}

// solve returns the layout of part of the memory under which the items run fastest when their rates have the ratio of
// weights (nil = 1 each). It minimises the load of the most loaded resource plus the waiting part of the others, then
// the sum of loads, then bytes.
//
// A tier serves before it holds sources of augmented samples (mix), so sources help only where nothing is served from
// storage. That is no convex condition. Therefore there are three programs, by src: one without sources, one with
// encoded sources, and one with decoded sources too, in which the encoded tier serves nothing. The latter two first
// serve all they can from memory.
func (pr *problem) solve(items []int, weights []float64, part float64, src sources) layout {
	weight := func(i int) float64 {
		if weights == nil {
			return 1
		}
		return weights[i]
	}
	var base vector
	for _, i := range items {
		for k, x := range pr.items[i].need[fStored] {
			base[k] += float64(weight(i) * x)
		}
	}
	top := 0.0
	for _, x := range base {
		top = max(top, x)
	}
	m := pr.memory(items, part, src)
	if m == nil || top == 0 {
		return pr.empty()
	}
	load := make([]float64, len(m.cols))
	for k := range base {
		coef := make([]float64, len(m.cols))
		for j, c := range m.cols {
			if c.item >= 0 {
				it := &pr.items[c.item]
				saves := 0.0
				if from := c.source(); from >= 0 {
					saves = it.refill[from][k]
				} else {
					saves = it.need[c.form][k] - it.need[fStored][k]
				}
				coef[j] = weight(c.item) * saves / top
				load[j] += coef[j]
			}
		}
		r := m.row((top - base[k]) / top)
		copy(r, coef)
		r[m.gain] = 1
	}
	if src != fromStorage {
		served := m.objective()
		for j, c := range m.cols {
			if c.item >= 0 && c.source() < 0 {
				served[j] = 1
			}
		}
	}
	wait := pr.d.Machine.Waiting
	rate, work, bytes := m.objective(), m.objective(), m.objective()
	rate[m.gain] = 1 - wait
	for j, c := range m.cols {
		rate[j], work[j], bytes[j] = -wait*load[j], -load[j], -c.bytes/m.unit
	}
	return m.layout()
}

// plan turns a layout into the answer. Memory that the model has no use for goes to encoded, the form that every recipe
// can use, so that entries outlive the job that loaded them, unless that memory is slower than storage.
func (pr *problem) plan(model string, l layout, o outcome, fair []float64, m Model) Plan {
	measure := pr.evaluate
	if model == Seneca {
		measure = pr.averaged
	}
	fixed, free := pr.d.free()
	sizes := [3]int64{fixed.Encoded, fixed.Decoded, fixed.Augmented}
	s, plans := pr.split(l)
	crumbs := min(int64(4*(len(pr.items)+1)), free/2) // what rounding to whole bytes leaves, at most
	sink := -1                                        // the tier that gets the bytes that no job needs yet
	for _, f := range [...]int{fEncoded, fDecoded} {
		spare := pr.spare(s)
		if sizes[f-1] >= 0 || spare <= crumbs {
			continue
		}
		more := pr.topUp(l, f, float64(spare))
		if x := measure(more); x.total >= o.total*(1-1e-9) && x.fits(o.levels, 1) {
			l, o, sink = more, x, f-1
			s, plans = pr.split(l)
		}
	}
	o.describe(plans, pr, fair)
	tiers := [...]*int64{&s.Encoded, &s.Decoded, &s.Augmented}
	spare := pr.spare(s)
	for k := range sizes { // crumbs go to a tier that is not empty
		if sink < 0 && sizes[k] < 0 && *tiers[k] > crumbs && spare <= crumbs {
			sink = k
		}
	}
	for k, size := range sizes {
		switch {
		case size >= 0:
			*tiers[k] = size
		case k == sink:
			*tiers[k] += spare
		}
	}
	p := Plan{Model: model, Split: s, Datasets: plans, Rate: o.total, Binding: o.binding, Load: o.load}
	p.Candidates = append([]Candidate{{Name: "chosen", Split: s, Rate: o.total, Binding: o.binding, Load: o.load}},
		pr.candidates(m, fair)...)
	p.Why = why(&p)
	return p
}

// spare returns what is left of the free budget.
func (pr *problem) spare(s Split) int64 {
	fixed, spare := pr.d.free()
	for _, x := range [3][2]int64{{fixed.Encoded, s.Encoded}, {fixed.Decoded, s.Decoded}, {fixed.Augmented, s.Augmented}} {
		if x[0] < 0 {
			spare -= x[1]
		}
	}
	return spare
}

// candidates returns splits that people ask about, predicted by the model, without those that would move a fixed tier.
func (pr *problem) candidates(m Model, fair []float64) []Candidate {
	var list []Candidate
	fixed, free := pr.d.free()
	for _, x := range []struct {
		name    string
		e, d, a float64
	}{
		{"nothing cached", 0, 0, 0}, {"all encoded", 1, 0, 0}, {"all decoded", 0, 1, 0}, {"all augmented", 0, 0, 1},
		{"half encoded, half decoded", .5, .5, 0}, {"half encoded, half augmented", .5, 0, .5},
		{"half decoded, half augmented", 0, .5, .5},
	} {
		s := Split{int64(x.e * float64(free)), int64(x.d * float64(free)), int64(x.a * float64(free))}
		moved := false
		for _, t := range []struct {
			size int64
			at   *int64
		}{{fixed.Encoded, &s.Encoded}, {fixed.Decoded, &s.Decoded}, {fixed.Augmented, &s.Augmented}} {
			if t.size >= 0 {
				moved = moved || *t.at > 0
				*t.at = t.size
			}
		}
		if moved || s == (Split{}) && x.name != "nothing cached" {
			continue
		}
		c := pr.candidate(m, s, fair)
		c.Name = x.name
		if pr.d.Fixed != nil && c.Name == "nothing cached" {
			c.Name = "fixed tiers alone"
		}
		list = append(list, c)
	}
	ruled, _ := SimpleSplit(pr.wanted(free))
	if pr.d.Fixed == nil || *pr.d.Fixed == Free {
		c := pr.candidate(m, ruled, fair)
		c.Name = "rule of thumb"
		list = append(list, c)
	}
	return list
}

func (pr *problem) candidate(m Model, s Split, fair []float64) Candidate {
	if m.Name() == Seneca {
		return pr.eq9(s)
	}
	o := pr.evaluate(pr.spread(s, false))
	return Candidate{Split: s, Rate: o.total, Binding: o.binding,
		Unfair: len(pr.items) > 1 && !o.fits(fair, pr.d.fairness()), Load: o.load}
}

// wanted returns the problem in the words of SimpleSplit.
func (pr *problem) wanted(total int64) Wanted {
	in := Wanted{Total: total}
	for i := range pr.d.Datasets {
		in.EncodedBytes += int64(min(pr.d.Datasets[i].Encoded*pr.union[i], maxBudget/256))
	}
	for i := range pr.groups {
		in.DecodedBytes += int64(min(pr.groups[i].bytes*pr.groups[i].samples, maxBudget/256))
	}
	for i := range pr.items {
		if r := pr.items[i].rec; r.Sharers > 1 {
			in.ShareGroups++
			in.AugmentedBytes += int64(min(r.Augmented*pr.items[i].wanted, maxBudget/256))
		}
	}
	return in
}

// why returns one sentence: what was decided, what limits it, and what the simple splits would give.
func why(p *Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "encoded %s, decoded %s, augmented %s: %s samples/s predicted by %s, limited by %s",
		units.Size(p.Split.Encoded), units.Size(p.Split.Decoded), units.Size(p.Split.Augmented),
		rate(p.Rate), p.Model, p.Binding)
	switch busy := p.Load[p.Binding]; {
	case p.Binding == Training:
		b.WriteString(" (no resource of the machine is used up)")
	case busy > 0 && busy < .95:
		fmt.Fprintf(&b, " (%.0f %% of the time: jobs also wait for other work)", 100*busy)
	}
	var rest []string
	for _, c := range p.Candidates {
		switch c.Name {
		case "all encoded", "all decoded", "all augmented":
			rest = append(rest, fmt.Sprintf("%s %s", c.Name, rate(c.Rate)))
		}
	}
	if len(rest) > 0 {
		b.WriteString("; " + strings.Join(rest, ", ") + " samples/s")
	}
	return b.String()
}

// rate writes samples a second with three digits or all before the point.
func rate(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	default:
		return fmt.Sprintf("%.3g", x)
	}
}
