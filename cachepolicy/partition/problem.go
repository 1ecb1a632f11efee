package partition

import (
	"slices"

	"larder/internal/ident"
)

// The forms of a sample, as indices of the models' tables.
const (
	fStored    = int(ident.Stored)
	fEncoded   = int(ident.Encoded)
	fDecoded   = int(ident.Decoded)
	fAugmented = int(ident.Augmented)
	numForms   = int(ident.NumForms)
)

// vector is seconds of each resource.
type vector [Training]float64

// problem is a Demand in the shape that the models compute with: all recipes in one list, and what they share.
type problem struct {
	d      *Demand
	items  []item
	groups []group   // prefixes: what shares decoded samples
	union  []float64 // samples of each dataset that any recipe wants
	jobs   int
	room   float64 // bytes of the encoded tier that a program reserves for each byte needed, at least 1
}

// item is one recipe.
type item struct {
	data, recipe, group int
	set                 *Dataset
	rec                 *Recipe
	wanted              float64 // samples
	need                [numForms]vector
	// what changes for an augmented sample whose source is in memory, by the source's form
	refill [numForms]vector
	ingest []float64 // of its jobs, ascending
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
	pr := &problem{d: d, room: 1, union: make([]float64, len(d.Datasets))}
	for i := range d.Datasets {
		s := &d.Datasets[i]
		first := len(pr.items)
		for j := range s.Recipes {
			r := &s.Recipes[j]
			it := item{data: i, recipe: j, set: s, rec: r, wanted: r.wanted(s), need: needs(&d.Machine, s, r),
				refill: refills(&d.Machine, s, r)}
			for _, x := range r.Jobs {
				it.ingest = append(it.ingest, x.Ingest)
			}
			slices.Sort(it.ingest)
			pr.jobs += len(it.ingest)
			pr.union[i] = min(pr.union[i]+it.wanted, float64(s.Samples))
			it.group = pr.groupOf(first, r)
			g := &pr.groups[it.group]
			g.members = append(g.members, len(pr.items))
			g.samples = min(g.samples+it.wanted, float64(s.Samples))
			g.bytes = max(g.bytes, r.Decoded)
			pr.items = append(pr.items, it)
		}
	}
	return pr
}

func (pr *problem) groupOf(first int, r *Recipe) int {
	if r.Prefix != "" {
		for k := first; k < len(pr.items); k++ {
			if pr.items[k].rec.Prefix == r.Prefix {
				return pr.items[k].group
			}
		}
	}
	pr.groups = append(pr.groups, group{})
	return len(pr.groups) - 1
}

// needs is the table d(f, k) of the package comment: seconds of each resource that a sample of each form takes.
//
//   - Jobs whose picks coincide read and decode once (Degree, DecodeDegree). Jobs that share instances also augment
//     once (AugmentDegree); others augment for themselves.
//   - A hit in the augmented tier costs Finish.
//   - The next instance of an augmented sample is charged as read from storage. Where its source is in memory, refills
//     holds the difference.
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
	v[fEncoded] = vector{CPU: each + decode/r.decodeDegree(), MemoryBandwidth: s.Encoded / m.Cache,
		Network: nic(s.Encoded), PCIe: pcie}
	v[fDecoded] = vector{CPU: each, MemoryBandwidth: r.Decoded / m.Cache, Network: nic(r.Decoded), PCIe: pcie}
	v[fAugmented] = vector{Storage: s.Stored / m.Storage / share, CPU: finish + max(whole-finish, 0)/share,
		MemoryBandwidth: r.Augmented / m.Cache, Network: nic(r.Augmented + s.Stored/share), PCIe: pcie}
	if m.MissesFill {
		v[fAugmented][MemoryBandwidth] += s.Encoded / m.Cache / share
	}
	return v
}

// seconds returns how long a node takes to make the row of a batch: from encoded bytes, from a decoded sample, from an
// augmented one. Where noise in the measurements makes less work take longer, it counts as equally long.
func (r *Recipe) seconds(m *Machine) (whole, augment, finish float64) {
	n := float64(m.Nodes)
	augment = 1 / (n * r.Augment)
	return max(1/(n*r.DecodeAugment), augment), augment, 1 / (n * r.Finish)
}

// decodeDegree returns DecodeDegree, or its default.
func (r *Recipe) decodeDegree() float64 {
	if r.DecodeDegree == 0 {
		return r.Degree
	}
	return r.DecodeDegree
}

// augmentDegree returns AugmentDegree, or its default.
func (r *Recipe) augmentDegree() float64 { return max(r.AugmentDegree, 1) }

// refills returns what changes for an augmented sample when the source of its next instance is in memory, by the form
// of the source: encoded bytes are not read from storage, and a decoded sample is not decoded either. Forms do not
// exclude each other: a tier that holds more of a dataset than it serves holds sources of what the augmented tier
// serves.
func refills(m *Machine, s *Dataset, r *Recipe) (v [numForms]vector) {
	share := float64(r.Sharers)
	whole, augment, finish := r.seconds(m)
	read, written := -s.Stored/m.Storage/share, s.Encoded/m.Cache/share
	v[fEncoded][Storage] = read
	v[fDecoded] = vector{
		Storage:         read,
		CPU:             -max(whole-max(augment, finish), 0) / share,
		MemoryBandwidth: r.Decoded / m.Cache / share,
		Network:         (r.Decoded - s.Stored) / share / (float64(m.Nodes) * m.NIC),
	}
	if m.MissesFill {
		v[fDecoded][MemoryBandwidth] -= written
	} else {
		v[fEncoded][MemoryBandwidth] = written
	}
	return v
}

func (pr *problem) empty() layout {
	return layout{make([]float64, len(pr.d.Datasets)), make([]float64, len(pr.groups)), make([]float64, len(pr.items))}
}

// mix returns how the samples of an item are served: augmented before decoded before encoded (Eq. 2, 4 and 6 of the
// paper). kept is the part that is served augmented and whose source is in memory, by the form of the source.
func (pr *problem) mix(i int, l layout) (p, kept [numForms]float64) {
	it := &pr.items[i]
	g := &pr.groups[it.group]
	decoded := min(1, l.dec[it.group]/(g.bytes*g.samples))
	encoded := min(1, l.enc[it.data]/(it.set.Encoded*pr.union[it.data]))
	p[fAugmented] = min(1, l.aug[i]/(it.rec.Augmented*it.wanted))
	p[fDecoded] = min(1-p[fAugmented], decoded)
	p[fEncoded] = min(1-p[fAugmented]-p[fDecoded], encoded)
	p[fStored] = max(1-p[fAugmented]-p[fDecoded]-p[fEncoded], 0)
	kept[fDecoded] = min(p[fAugmented], decoded-p[fDecoded])
	kept[fEncoded] = min(p[fAugmented]-kept[fDecoded], encoded-p[fEncoded])
	return p, kept
}

// sample returns the mean seconds of each resource that a sample of an item takes, and how the item is served.
func (pr *problem) sample(i int, l layout) (need vector, p [numForms]float64) {
	p, kept := pr.mix(i, l)
	it := &pr.items[i]
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

// spread divides the bytes of each form in proportion to what items need of it, never more than that. Augmented goes to
// items whose jobs share it, with lone to the others too.
func (pr *problem) spread(s Split, lone bool) layout {
	l := pr.empty()
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
	portion(s.Encoded, l.enc, func(i int) float64 { return pr.d.Datasets[i].Encoded * pr.union[i] })
	portion(s.Decoded, l.dec, func(i int) float64 { return pr.groups[i].bytes * pr.groups[i].samples })
	portion(s.Augmented, l.aug, func(i int) float64 {
		if pr.items[i].rec.Sharers < 2 && !lone {
			return 0
		}
		return pr.items[i].rec.Augmented * pr.items[i].wanted
	})
	return l
}

// blend returns (1-part)*a + part*b.
func (pr *problem) blend(a, b layout, part float64) layout {
	l := pr.empty()
	for _, x := range [][3][]float64{{l.enc, a.enc, b.enc}, {l.dec, a.dec, b.dec}, {l.aug, a.aug, b.aug}} {
		for i := range x[0] {
			x[0][i] = float64((1-part)*x[1][i]) + float64(part*x[2][i])
		}
	}
	return l
}

// cover returns x changed so that one item is served wholly from one form. For fRefillEncoded and fRefillDecoded that
// is the augmented form, with all sources in the named tier. What x gave the item is dropped, and the rest of x shrinks
// to the memory that is left. It returns false when the form cannot hold the item.
func (pr *problem) cover(i, form int, x layout) (layout, bool) {
	it := &pr.items[i]
	g := &pr.groups[it.group]
	l := pr.blend(x, x, 0)
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
		whole[0] = it.set.Encoded * pr.union[it.data]
	case fDecoded:
		whole[1] = g.bytes * g.samples
	default:
		whole[2] = it.rec.Augmented * it.wanted
		if it.rec.Sharers < 2 {
			return l, false
		}
		switch form {
		case fRefillEncoded:
			whole[0] = it.set.Encoded * pr.union[it.data]
		case fRefillDecoded:
			whole[1] = g.bytes * g.samples
		}
	}
	for k, n := range whole {
		if n > 0 {
			*at[k] = 0
		}
	}
	fixed, free := pr.d.free()
	sizes := [3]int64{fixed.Encoded, fixed.Decoded, fixed.Augmented}
	ok := l.shrink(float64(free), whole, func(k int) bool { return sizes[k] < 0 })
	for f, size := range sizes {
		if size >= 0 {
			ok = l.shrink(float64(size), whole, func(k int) bool { return k == f }) && ok
		}
	}
	for k, n := range whole {
		if n > 0 {
			*at[k] = n
		}
	}
	return l, ok
}

// shrink scales the tiers that which names down to room, less what whole takes of them. It returns false when whole
// alone exceeds the room.
func (l *layout) shrink(room float64, whole [3]float64, which func(k int) bool) bool {
	tiers := [3][]float64{l.enc, l.dec, l.aug}
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

// topUp gives spare bytes to the samples that one form does not hold yet.
func (pr *problem) topUp(l layout, form int, spare float64) layout {
	out := pr.blend(l, l, 0)
	tier, want := out.enc, func(i int) float64 { return pr.d.Datasets[i].Encoded * pr.union[i] }
	if form == fDecoded {
		tier, want = out.dec, func(i int) float64 { return pr.groups[i].bytes * pr.groups[i].samples }
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

// split rounds a layout down to whole bytes and sums it. The sum obeys the budget and the fixed sizes, although
// floating point may have exceeded them by a few bytes.
func (pr *problem) split(l layout) (Split, []DatasetPlan) {
	plans := make([]DatasetPlan, len(pr.d.Datasets))
	var s Split
	fixed, free := pr.d.free()
	left := [3]int64{free, free, free}
	limit := func(form int, size int64, x float64) int64 {
		room := &left[form]
		n := min(int64(x), *room)
		*room -= n
		if size < 0 { // the free forms share one account
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
		plans[i] = DatasetPlan{Name: pr.d.Datasets[i].Name, Encoded: limit(0, fixed.Encoded, l.enc[i])}
		s.Encoded += plans[i].Encoded
	}
	for i := range pr.items {
		it := &pr.items[i]
		p := RecipePlan{Name: it.rec.Name}
		if pr.groups[it.group].members[0] == i {
			p.Decoded = limit(1, fixed.Decoded, l.dec[it.group])
		}
		p.Augmented = limit(2, fixed.Augmented, l.aug[i])
		s.Decoded += p.Decoded
		s.Augmented += p.Augmented
		plans[it.data].Recipes = append(plans[it.data].Recipes, p)
	}
	return s, plans
}
