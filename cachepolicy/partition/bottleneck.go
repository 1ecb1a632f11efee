package partition

import (
	"fmt"
	"slices"
	"strings"

	"larder/internal/units"
)

// bottleneck is the default model: X = 1 / max_k Σ_f p_f·d(f,k), time adds up by resource and not by form (seneca.md 1.6). Where
// Machine.Waiting says so, a part of what the other resources do is added to the most loaded one's.
//
// With one recipe, and whenever all jobs run at the rate of one bottleneck, the split is the exact optimum: a min-max
// linear program. With several, rates and memory multiply and the problem is not convex; then the program is solved for
// the rates of the best split so far, and the best is searched on the lines to what each recipe would do with all the
// memory. The result is never worse than the equal division.
type bottleneck struct{}

func (bottleneck) Name() string { return Bottleneck }

// Predict implements Model.
func (bottleneck) Predict(d Demand, s Split) (Candidate, error) {
	if err := d.check(); err != nil {
		return Candidate{}, err
	}
	w := newProblem(&d)
	return w.candidate(bottleneck{}, s, w.evaluate(w.even()).levels), nil
}

// Partition implements Model.
func (bottleneck) Solve(d Demand) (Plan, error) {
	if err := d.check(); err != nil {
		return Plan{}, err
	}
	w := newProblem(&d)
	even := w.even()
	fair := w.evaluate(even)
	best, got := even, fair
	try := func(l layout) bool {
		o := w.evaluate(l)
		if o.total <= got.total*(1+1e-9) && !(o.total >= got.total*(1-1e-9) && lighter(&o, &got)) || !o.fits(fair.levels, d.fairness()) {
			return false
		}
		best, got = l, o
		return true
	}
	none := w.empty()
	ends := []layout{even}
	many := len(w.items) > manyItems
	for i := range w.items {
		if len(w.items) == 1 {
			break
		}
		for _, src := range w.sourcesOf(i) {
			if !many || src == fromEncoded || w.items[i].rec.Sharers < 2 {
				ends = append(ends, w.solve([]int{i}, nil, 1, src))
			}
		}
	}
	all := make([]int, len(w.items))
	for i := range all {
		all[i] = i
	}
	parts, rests, turns := []float64{1. / 32, 1. / 8, 1. / 4, 1. / 2, 3. / 4, 1}, []*layout{&best, &even, &none}, 4
	if many {
		parts, rests, turns = []float64{1. / 8, 1. / 2}, rests[:1], 2
	}
	for range turns {
		balanced := w.solve(all, got.rates, 1, fromStorage)
		better := try(balanced)
		for _, src := range w.sourcesOf(all...)[1:] {
			better = try(w.solve(all, got.rates, 1, src)) || better
		}
		if len(w.items) == 1 {
			break
		}
		for _, end := range append(ends, balanced) {
			from := best
			for _, part := range parts {
				better = try(w.blend(from, end, part)) || better
			}
		}
		// Rates jump where a recipe stops needing a scarce resource at all.
		for i := range w.items {
			for f := fEncoded; f <= fRefillDecoded; f++ {
				for _, rest := range rests {
					if l, ok := w.cover(i, f, *rest); ok {
						better = try(l) || better
					}
				}
			}
		}
		if !better {
			break
		}
	}
	if d.Machine.Waiting > 0 {
		best, got = w.withRoom(all, best, got)
	}
	return w.plan(Bottleneck, best, got, fair.levels, bottleneck{}), nil
}

// A program gives encoded to the byte what makes the last read from storage unnecessary, and a read too many costs a hundred times what the same
// bytes gain elsewhere: 1 job, 112 MiB, photographs, 10 MB/s: two reads of an epoch's 700 samples are 5 % of its time. Therefore encoded gets encodedRoom times what
// it wants, where the rest can spare that for less than the part roomWorth of any job's rate.
const (
	encodedRoom = 1.1
	roomWorth   = 0.03
)

// manyItems is from where on less is tried: the work must stay within milliseconds.
const manyItems = 24

// withRoom is best with more room in encoded, where that is of use: for a dataset that is served without a read, and no other is read more
// for it. Everywhere else encoded is short of bytes anyhow, and to charge it more would only move them to other forms.
func (w *problem) withRoom(all []int, best layout, got outcome) (layout, outcome) {
	if !slices.ContainsFunc(got.mixes, func(p [numForms]float64) bool { return p[fStored] < 1e-6 }) {
		return best, got // everything is read from storage
	}
	w.room = encodedRoom
	defer func() { w.room = 1 }()
	with, gives, found := best, got, false
	programs := w.sourcesOf(all...)
	for _, src := range programs {
		if len(all) > manyItems && src != fromEncoded && len(programs) > 1 {
			continue
		}
		l := w.solve(all, got.rates, 1, src)
		o := w.evaluate(l)
		if (!found || o.total > gives.total) && o.fits(got.levels, 1-roomWorth) && w.roomier(l, best) {
			with, gives, found = l, o, true
		}
	}
	return with, gives
}

// roomier tells whether a has more encoded bytes than b for something that is not read from storage, and reads nothing more often.
func (w *problem) roomier(a, b layout) bool {
	more := false
	for i := range w.items {
		it := &w.items[i]
		x, mix := w.sample(i, a)
		y, _ := w.sample(i, b)
		if x[Storage] > y[Storage]+1e-6*it.need[fStored][Storage] {
			return false
		}
		more = more || mix[fStored] < 1e-6 && a.enc[it.data] > b.enc[it.data]
	}
	return more
}

// sourcesOf are the programs that some items need: where nobody shares augmented samples, none is made anew.
func (w *problem) sourcesOf(items ...int) []sources {
	if slices.ContainsFunc(items, func(i int) bool { return w.items[i].rec.Sharers > 1 }) {
		return []sources{fromStorage, fromEncoded, fromDecoded}
	}
	return []sources{fromStorage}
}

// lighter tells whether a does the same with clearly less work.
func lighter(a, b *outcome) bool {
	sum := func(o *outcome) (s float64) {
		for _, x := range o.load[:Training] {
			s += x
		}
		return s
	}
	return sum(a) < sum(b)-1e-6
}

// even gives every job an equal part of the memory, and divides each recipe's part for that recipe alone.
func (w *problem) even() layout {
	sum := w.empty()
	for i := range w.items {
		part := float64(len(w.items[i].ingest)) / float64(w.jobs)
		l := w.solve([]int{i}, nil, part, fromStorage)
		for _, src := range w.sourcesOf(i)[1:] {
			if x := w.solve([]int{i}, nil, part, src); w.alone(i, x) < w.alone(i, l)*(1-1e-9) {
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

// alone is the seconds that a sample of an item takes where no other is served.
func (w *problem) alone(i int, l layout) float64 {
	need, _ := w.sample(i, l)
	return w.waited(&need)
}

// solve finds the layout of part of the memory under which the items can run fastest when their rates have the ratio of
// weights (nil = 1 each): it minimises the load of the most loaded resource and what is waited for of the others, then the sum of loads,
// then bytes.
//
// A tier serves before it holds sources of augmented samples (mix), so sources are of use only where nothing is served from storage. That is
// no convex condition, therefore there are three programs, by src: one without sources, one with encoded ones, and one with decoded ones too,
// where encoded serves nothing. The latter two first serve all they can from memory.
func (w *problem) solve(items []int, weights []float64, part float64, src sources) layout {
	weight := func(i int) float64 {
		if weights == nil {
			return 1
		}
		return weights[i]
	}
	var base vector
	for _, i := range items {
		for k, x := range w.items[i].need[fStored] {
			base[k] += float64(weight(i) * x)
		}
	}
	top := 0.0
	for _, x := range base {
		top = max(top, x)
	}
	m := w.memory(items, part, src)
	if m == nil || top == 0 {
		return w.empty()
	}
	load := make([]float64, len(m.cols))
	for k := range base {
		coef := make([]float64, len(m.cols))
		for j, c := range m.cols {
			if c.item >= 0 {
				it := &w.items[c.item]
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
	wait := w.d.Machine.Waiting
	rate, work, bytes := m.objective(), m.objective(), m.objective()
	rate[m.gain] = 1 - wait
	for j, c := range m.cols {
		rate[j], work[j], bytes[j] = -wait*load[j], -load[j], -c.bytes/m.unit
	}
	return m.layout()
}

// plan turns a layout into the answer. Memory that the model has no use for goes to encoded, the form that every recipe
// can use, so that entries outlive the job that brought them, unless reading it there were slower than from storage.
func (w *problem) plan(model string, l layout, o outcome, fair []float64, m Model) Plan {
	measure := w.evaluate
	if model == Seneca {
		measure = w.averaged
	}
	fixed, free := w.d.free()
	sizes := [3]int64{fixed.Encoded, fixed.Decoded, fixed.Augmented}
	s, plans := w.split(l)
	crumbs := min(int64(4*(len(w.items)+1)), free/2) // what rounding to whole bytes leaves, at most
	sink := -1                                       // the tier that holds what nobody wants yet
	for _, f := range [...]int{fEncoded, fDecoded} {
		spare := w.spare(s)
		if sizes[f-1] >= 0 || spare <= crumbs {
			continue
		}
		more := w.topUp(l, f, float64(spare))
		if x := measure(more); x.total >= o.total*(1-1e-9) && x.fits(o.levels, 1) {
			l, o, sink = more, x, f-1
			s, plans = w.split(l)
		}
	}
	o.describe(plans, w, fair)
	tiers := [...]*int64{&s.Encoded, &s.Decoded, &s.Augmented}
	spare := w.spare(s)
	for k := range sizes { // crumbs go where something lies
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
	p.Candidates = append([]Candidate{{Name: "chosen", Split: s, Rate: o.total, Binding: o.binding, Load: o.load}}, w.candidates(m, fair)...)
	p.Why = why(&p)
	return p
}

// spare is what is left of the free budget.
func (w *problem) spare(s Split) int64 {
	fixed, spare := w.d.free()
	for _, x := range [3][2]int64{{fixed.Encoded, s.Encoded}, {fixed.Decoded, s.Decoded}, {fixed.Augmented, s.Augmented}} {
		if x[0] < 0 {
			spare -= x[1]
		}
	}
	return spare
}

// candidates are splits that people ask about, predicted by the model; those that would move a fixed tier are left out.
func (w *problem) candidates(m Model, fair []float64) []Candidate {
	var list []Candidate
	fixed, free := w.d.free()
	for _, x := range []struct {
		name    string
		e, d, a float64
	}{
		{"nothing cached", 0, 0, 0}, {"all encoded", 1, 0, 0}, {"all decoded", 0, 1, 0}, {"all augmented", 0, 0, 1},
		{"half encoded, half decoded", .5, .5, 0}, {"half encoded, half augmented", .5, 0, .5}, {"half decoded, half augmented", 0, .5, .5},
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
		c := w.candidate(m, s, fair)
		c.Name = x.name
		if w.d.Fixed != nil && c.Name == "nothing cached" {
			c.Name = "fixed tiers alone"
		}
		list = append(list, c)
	}
	ruled, _ := SimpleSplit(w.wanted(free))
	if w.d.Fixed == nil || *w.d.Fixed == Free {
		c := w.candidate(m, ruled, fair)
		c.Name = "rule of thumb"
		list = append(list, c)
	}
	return list
}

func (w *problem) candidate(m Model, s Split, fair []float64) Candidate {
	if m.Name() == Seneca {
		return w.eq9(s)
	}
	o := w.evaluate(w.spread(s, false))
	return Candidate{Split: s, Rate: o.total, Binding: o.binding, Unfair: len(w.items) > 1 && !o.fits(fair, w.d.fairness()), Load: o.load}
}

// wanted is the problem in the words of SimpleSplit.
func (w *problem) wanted(total int64) Wanted {
	in := Wanted{Total: total}
	for i := range w.d.Datasets {
		in.EncodedBytes += int64(min(w.d.Datasets[i].Encoded*w.union[i], maxBudget/256))
	}
	for i := range w.groups {
		in.DecodedBytes += int64(min(w.groups[i].bytes*w.groups[i].samples, maxBudget/256))
	}
	for i := range w.items {
		if r := w.items[i].rec; r.Sharers > 1 {
			in.ShareGroups++
			in.AugmentedBytes += int64(min(r.Augmented*w.items[i].wanted, maxBudget/256))
		}
	}
	return in
}

// why says in one sentence what was decided, what limits it, and what the simple splits would give.
func why(p *Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "encoded %s, decoded %s, augmented %s: %s samples/s predicted by %s, limited by %s",
		units.Size(p.Split.Encoded), units.Size(p.Split.Decoded), units.Size(p.Split.Augmented), rate(p.Rate), p.Model, p.Binding)
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
		b.WriteString("; " + strings.Join(rest, ", "))
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
