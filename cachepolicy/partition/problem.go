package partition

import (
	"math"
	"slices"
)

// forms of a sample in the models' tables.
const (
	fStored = iota
	fEncoded
	fDecoded
	fAugmented
	numForms
)

// vector is seconds of each resource.
type vector [Training]float64

// problem is a Demand in the shape the models compute with: recipes in one list, and what they share.
type problem struct {
	d      *Demand
	items  []item
	groups []group   // prefixes: what shares decoded samples
	union  []float64 // samples of each dataset that any recipe wants
	jobs   int
	room   float64 // bytes of encoded that a program sets aside for each byte that is wanted, at least 1
}

// item is one recipe.
type item struct {
	data, recipe, group int
	set                 *Dataset
	rec                 *Recipe
	wanted              float64 // samples
	need                [numForms]vector
	refill              [numForms]vector // what changes for an augmented sample whose source is in memory, by the source's form
	ingest              []float64        // of its jobs, ascending
}

// group is the recipes of a dataset that share decoded samples.
type group struct {
	members []int
	samples float64 // that any of them wants
	bytes   float64 // of one decoded sample
}

// layout is a division of memory: bytes of encoded by dataset, of decoded by group, of augmented by item.
type layout struct{ enc, dec, aug []float64 }

func newProblem(d *Demand) *problem {
	w := &problem{d: d, room: 1, union: make([]float64, len(d.Datasets))}
	for i := range d.Datasets {
		s := &d.Datasets[i]
		first := len(w.items)
		for j := range s.Recipes {
			r := &s.Recipes[j]
			it := item{data: i, recipe: j, set: s, rec: r, wanted: r.wanted(s), need: needs(&d.Machine, s, r), refill: refills(&d.Machine, s, r)}
			for _, x := range r.Jobs {
				it.ingest = append(it.ingest, x.Ingest)
			}
			slices.Sort(it.ingest)
			w.jobs += len(it.ingest)
			w.union[i] = min(w.union[i]+it.wanted, float64(s.Samples))
			it.group = w.groupOf(first, r)
			g := &w.groups[it.group]
			g.members = append(g.members, len(w.items))
			g.samples = min(g.samples+it.wanted, float64(s.Samples))
			g.bytes = max(g.bytes, r.Decoded)
			w.items = append(w.items, it)
		}
	}
	return w
}

func (w *problem) groupOf(first int, r *Recipe) int {
	if r.Prefix != "" {
		for k := first; k < len(w.items); k++ {
			if w.items[k].rec.Prefix == r.Prefix {
				return w.items[k].group
			}
		}
	}
	w.groups = append(w.groups, group{})
	return len(w.groups) - 1
}

// needs is the table of seneca.md 1.6: seconds of each resource that a sample of each form takes.
//
// Four refinements. Of what falls together (Degree, DecodeDegree) only reading and decoding is done once. Jobs that share instances also
// augment once for what falls together (AugmentDegree); others augment for themselves. Finish is charged to a hit of augmented. And the
// refill of augmented is charged wherever a miss is, from storage; where its source is in memory, refills says what changes.
func needs(m *Machine, s *Dataset, r *Recipe) (v [numForms]vector) {
	n, g, share := float64(m.Nodes), r.Degree, float64(r.Sharers)
	whole, augment, finish := r.seconds(m)
	each := augment - float64(max(augment-finish, 0)*(1-1/r.augmentDegree()))
	decode := whole - augment
	pcie := (r.Augmented + m.GradientPCIe) / (n * m.PCIe)
	nic := func(bytes float64) float64 { return (bytes + m.GradientNIC) / (n * m.NIC) }
	v[fStored] = vector{Storage: s.Stored / m.Storage / g, CPU: each + decode/g, Network: nic(s.Stored / g), PCIe: pcie}
	if m.MissesFill {
		v[fStored][MemoryBandwidth] = s.Encoded / m.Cache / g
	}
	v[fEncoded] = vector{CPU: each + decode/r.decodeDegree(), MemoryBandwidth: s.Encoded / m.Cache, Network: nic(s.Encoded), PCIe: pcie}
	v[fDecoded] = vector{CPU: each, MemoryBandwidth: r.Decoded / m.Cache, Network: nic(r.Decoded), PCIe: pcie}
	v[fAugmented] = vector{Storage: s.Stored / m.Storage / share, CPU: finish + max(whole-finish, 0)/share,
		MemoryBandwidth: r.Augmented / m.Cache, Network: nic(r.Augmented + s.Stored/share), PCIe: pcie}
	if m.MissesFill {
		v[fAugmented][MemoryBandwidth] += s.Encoded / m.Cache / share
	}
	return v
}

// seconds are what a node takes to make the row of a batch: from encoded bytes, from a decoded sample, from an augmented one. Noise
// may say that less work takes longer; then it takes as long.
func (r *Recipe) seconds(m *Machine) (whole, augment, finish float64) {
	n := float64(m.Nodes)
	augment = 1 / (n * r.Augment)
	return max(1/(n*r.DecodeAugment), augment), augment, 1 / (n * r.Finish)
}

// decodeDegree is DecodeDegree, Degree where it is not given.
func (r *Recipe) decodeDegree() float64 {
	if r.DecodeDegree == 0 {
		return r.Degree
	}
	return r.DecodeDegree
}

// augmentDegree is AugmentDegree, 1 where it is not given.
func (r *Recipe) augmentDegree() float64 { return max(r.AugmentDegree, 1) }

// refills is what changes for a sample of the augmented form when that from which its next instance is made lies in memory, by the
// form in which it does: encoded bytes are not read from storage, and a decoded sample is not decoded either. Forms do not exclude
// each other: a tier that holds more of a dataset than it serves holds sources of what another form serves.
func refills(m *Machine, s *Dataset, r *Recipe) (v [numForms]vector) {
	share := float64(r.Sharers)
	whole, augment, finish := r.seconds(m)
	read, written := -s.Stored/m.Storage/share, s.Encoded/m.Cache/share
	v[fEncoded][Storage] = read
	v[fDecoded] = vector{Storage: read, CPU: -max(whole-max(augment, finish), 0) / share, MemoryBandwidth: r.Decoded / m.Cache / share,
		Network: (r.Decoded - s.Stored) / share / (float64(m.Nodes) * m.NIC)}
	if m.MissesFill {
		v[fDecoded][MemoryBandwidth] -= written
	} else {
		v[fEncoded][MemoryBandwidth] = written
	}
	return v
}

func (w *problem) empty() layout {
	return layout{make([]float64, len(w.d.Datasets)), make([]float64, len(w.groups)), make([]float64, len(w.items))}
}

// mix is how the samples of an item are served: augmented before decoded before encoded (Eq. 2, 4, 6). kept is the part that is served
// augmented and whose source is in memory, by the form of the source: a tier holds sources with what it has beyond what it serves.
func (w *problem) mix(i int, l layout) (p, kept [numForms]float64) {
	it := &w.items[i]
	g := &w.groups[it.group]
	decoded := min(1, l.dec[it.group]/(g.bytes*g.samples))
	encoded := min(1, l.enc[it.data]/(it.set.Encoded*w.union[it.data]))
	p[fAugmented] = min(1, l.aug[i]/(it.rec.Augmented*it.wanted))
	p[fDecoded] = min(1-p[fAugmented], decoded)
	p[fEncoded] = min(1-p[fAugmented]-p[fDecoded], encoded)
	p[fStored] = max(1-p[fAugmented]-p[fDecoded]-p[fEncoded], 0)
	kept[fDecoded] = min(p[fAugmented], decoded-p[fDecoded])
	kept[fEncoded] = min(p[fAugmented]-kept[fDecoded], encoded-p[fEncoded])
	return p, kept
}

// sample is seconds of each resource that a sample of an item takes in the mean, and how the item is served.
func (w *problem) sample(i int, l layout) (need vector, p [numForms]float64) {
	p, kept := w.mix(i, l)
	it := &w.items[i]
	for f, part := range p {
		if part > 0 {
			v := &it.need[f]
			for k := range need {
				need[k] += float64(part * v[k])
			}
		}
	}
	for f, part := range kept {
		if part > 0 {
			for k := range need {
				need[k] = max(need[k]+float64(part*it.refill[f][k]), 0) // below 0 by rounding alone
			}
		}
	}
	return need, p
}

// spread divides the bytes of each form in proportion to what is wanted of it, never more than that. Augmented goes to
// those who share it, unless lone jobs are to be offered it too.
func (w *problem) spread(s Split, lone bool) layout {
	l := w.empty()
	portion := func(bytes int64, out []float64, want func(i int) float64) {
		sum := 0.0
		for i := range out {
			out[i] = want(i)
			sum += out[i]
		}
		if part := float64(max(bytes, 0)) / sum; part < 1 {
			for i := range out {
				out[i] *= part
			}
		}
	}
	portion(s.Encoded, l.enc, func(i int) float64 { return w.d.Datasets[i].Encoded * w.union[i] })
	portion(s.Decoded, l.dec, func(i int) float64 { return w.groups[i].bytes * w.groups[i].samples })
	portion(s.Augmented, l.aug, func(i int) float64 {
		if w.items[i].rec.Sharers < 2 && !lone {
			return 0
		}
		return w.items[i].rec.Augmented * w.items[i].wanted
	})
	return l
}

// blend is (1-part)*a + part*b.
func (w *problem) blend(a, b layout, part float64) layout {
	l := w.empty()
	for _, x := range [][3][]float64{{l.enc, a.enc, b.enc}, {l.dec, a.dec, b.dec}, {l.aug, a.aug, b.aug}} {
		for i := range x[0] {
			x[0][i] = float64((1-part)*x[1][i]) + float64(part*x[2][i])
		}
	}
	return l
}

// cover is x changed so that one item is served wholly from one form, for fRefillEncoded and fRefillDecoded from augmented with all sources
// in that tier; what x gave the item goes, and the rest of x shrinks to the memory that is left. False when the form cannot hold the item.
func (w *problem) cover(i, form int, x layout) (layout, bool) {
	it := &w.items[i]
	g := &w.groups[it.group]
	l := w.blend(x, x, 0)
	if len(it.set.Recipes) == 1 {
		l.enc[it.data] = 0
	}
	if len(g.members) == 1 {
		l.dec[it.group] = 0
	}
	l.aug[i] = 0
	at := [3]*float64{&l.enc[it.data], &l.dec[it.group], &l.aug[i]}
	var whole [3]float64
	switch form {
	case fEncoded:
		whole[0] = it.set.Encoded * w.union[it.data]
	case fDecoded:
		whole[1] = g.bytes * g.samples
	default:
		whole[2] = it.rec.Augmented * it.wanted
		if it.rec.Sharers < 2 {
			return l, false
		}
		switch form {
		case fRefillEncoded:
			whole[0] = it.set.Encoded * w.union[it.data]
		case fRefillDecoded:
			whole[1] = g.bytes * g.samples
		}
	}
	for k, n := range whole {
		if n > 0 {
			*at[k] = 0
		}
	}
	fixed, free := w.d.free()
	sizes := [3]int64{fixed.Encoded, fixed.Decoded, fixed.Augmented}
	tiers := [3][]float64{l.enc, l.dec, l.aug}
	shrink := func(room float64, which func(k int) bool) bool {
		sum := 0.0
		for k, t := range tiers {
			if which(k) {
				for _, b := range t {
					sum += b
				}
				room -= whole[k]
			}
		}
		if room < 0 {
			return false
		}
		if sum > room {
			for k, t := range tiers {
				for j := range t {
					if which(k) {
						t[j] *= room / sum
					}
				}
			}
		}
		return true
	}
	ok := shrink(float64(free), func(k int) bool { return sizes[k] < 0 })
	for f, size := range sizes {
		if size >= 0 {
			ok = shrink(float64(size), func(k int) bool { return k == f }) && ok
		}
	}
	for k, n := range whole {
		if n > 0 {
			*at[k] = n
		}
	}
	return l, ok
}

// topUp gives memory that a layout leaves to what is still wanted in one form.
func (w *problem) topUp(l layout, form int, spare float64) layout {
	out := w.blend(l, l, 0)
	tier, want := out.enc, func(i int) float64 { return w.d.Datasets[i].Encoded * w.union[i] }
	if form == fDecoded {
		tier, want = out.dec, func(i int) float64 { return w.groups[i].bytes * w.groups[i].samples }
	}
	missing := 0.0
	for i, b := range tier {
		missing += max(want(i)-b, 0)
	}
	if missing > 0 {
		part := min(spare/missing, 1)
		for i, b := range tier {
			tier[i] += part * max(want(i)-b, 0)
		}
	}
	return out
}

// split rounds a layout down to whole bytes and sums it; the sum obeys the budget and the fixed sizes although
// floating point may have overdrawn them by a few bytes.
func (w *problem) split(l layout) (Split, []DatasetPlan) {
	plans := make([]DatasetPlan, len(w.d.Datasets))
	var s Split
	fixed, free := w.d.free()
	left := [3]int64{free, free, free}
	limit := func(form int, size int64, x float64) int64 {
		room := &left[form]
		n := min(int64(x), *room)
		*room -= n
		if size < 0 { // the free forms draw on one account
			for k, other := range [3]int64{fixed.Encoded, fixed.Decoded, fixed.Augmented} {
				if k != form && other < 0 {
					left[k] -= n
				}
			}
		}
		return n
	}
	for k, size := range [3]int64{fixed.Encoded, fixed.Decoded, fixed.Augmented} {
		if size >= 0 {
			left[k] = size
		}
	}
	for i := range plans {
		plans[i] = DatasetPlan{Name: w.d.Datasets[i].Name, Encoded: limit(0, fixed.Encoded, l.enc[i])}
		s.Encoded += plans[i].Encoded
	}
	for i := range w.items {
		it := &w.items[i]
		p := RecipePlan{Name: it.rec.Name}
		if w.groups[it.group].members[0] == i {
			p.Decoded = limit(1, fixed.Decoded, l.dec[it.group])
		}
		p.Augmented = limit(2, fixed.Augmented, l.aug[i])
		s.Decoded += p.Decoded
		s.Augmented += p.Augmented
		plans[it.data].Recipes = append(plans[it.data].Recipes, p)
	}
	return s, plans
}

// outcome is what a layout gives.
type outcome struct {
	total   float64
	rates   []float64 // samples a second by item, all its jobs
	levels  []float64 // samples a second of the item's fastest job
	mixes   [][numForms]float64
	load    [NumResources]float64
	binding Resource
}

// evaluate predicts what a layout gives by the bottleneck law: jobs rise together, each stops at what its training
// takes, and all that need a resource stop when it is used up.
func (w *problem) evaluate(l layout) outcome {
	n := len(w.items)
	o := outcome{rates: make([]float64, n), levels: make([]float64, n), mixes: make([][numForms]float64, n)}
	need := make([]vector, n)
	for i := range w.items {
		need[i], o.mixes[i] = w.sample(i, l)
	}
	next := make([]int, n) // jobs before it are at the speed of their training
	frozen := make([]bool, n)
	var used vector
	trained, active, top := 0, w.jobs, 0.0
	reach := make([]float64, n)
	for active > 0 {
		var slope vector
		level := float64(maxLarge)
		for i := range w.items {
			if frozen[i] {
				continue
			}
			it := &w.items[i]
			level = min(level, it.ingest[next[i]])
			v, rising := &need[i], float64(len(it.ingest)-next[i])
			for k := range v {
				slope[k] += float64(rising * v[k])
			}
		}
		tight := -1
		for k, s := range slope {
			if s > 0 && max(1-used[k], 0)/s < level {
				tight, level = k, max(1-used[k], 0)/s
			}
		}
		top = max(top, level)
		for i := range w.items {
			it := &w.items[i]
			if tight >= 0 && need[i][tight] > 0 && reach[i] == 0 {
				reach[i] = level
			}
			if frozen[i] {
				continue
			}
			stop := 0
			switch {
			case tight >= 0 && need[i][tight] > 0 || level == maxLarge:
				stop = len(it.ingest) - next[i]
			case tight < 0:
				for next[i]+stop < len(it.ingest) && it.ingest[next[i]+stop] <= level {
					stop++
					trained++
				}
			}
			if stop == 0 {
				continue
			}
			next[i] += stop
			active -= stop
			frozen[i] = next[i] == len(it.ingest)
			o.levels[i] = level
			rate := float64(stop) * level
			o.rates[i] += rate
			for k, x := range need[i] {
				used[k] += float64(rate * x)
			}
		}
	}
	o.binding = Training
	most := 0.0
	for k, u := range used {
		o.load[k] = u
		if u > most+1e-6 && u > 1-1e-6 { // of equals the first, whatever whole bytes leave
			o.binding, most = Resource(k), u
		}
	}
	for _, r := range o.rates {
		o.total += r
	}
	if trained > 0 {
		o.load[Training] = float64(trained) / float64(w.jobs)
	}
	if w.d.Machine.Waiting > 0 && w.waited((*vector)(o.load[:Training])) > 1 {
		for i := range reach {
			if reach[i] == 0 {
				reach[i] = top
			}
		}
		o.wait(w, need, reach)
	}
	return o
}

// fits tells whether no job falls below factor times its fair share.
func (o *outcome) fits(fair []float64, factor float64) bool {
	for i, l := range o.levels {
		if l < factor*fair[i]*(1-1e-9) {
			return false
		}
	}
	return true
}

func (o *outcome) describe(plans []DatasetPlan, w *problem, fair []float64) {
	for i := range w.items {
		it := &w.items[i]
		p := &plans[it.data].Recipes[it.recipe]
		m := o.mixes[i]
		p.Mix = Mix{Stored: m[fStored], Encoded: m[fEncoded], Decoded: m[fDecoded], Augmented: m[fAugmented]}
		p.Rate = o.rates[i]
		for _, t := range it.ingest {
			p.FairShare += math.Min(t, fair[i])
		}
	}
}
