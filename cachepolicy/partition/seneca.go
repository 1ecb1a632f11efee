package partition

// seneca is Eq. 1-9 of the Seneca paper (FAST'26) as published, for comparison. It averages the throughputs of the
// forms, and does not charge the refill of augmented samples (docs/measurements/tiers.md#the-splits has the error). Two
// things are larder's own. The paper has one dataset; here several are solved together, each weighted by its part of
// the jobs. And a recipe without sharing gets no augmented tier when a split is chosen, because larder never serves an
// instance to a job twice.
type seneca struct{}

func (seneca) Name() string { return Seneca }

// Predict implements Model by Eq. 9.
func (seneca) Predict(d Demand, s Split) (Candidate, error) {
	if err := d.check(); err != nil {
		return Candidate{}, err
	}
	return newProblem(&d).eq9(s), nil
}

// Solve implements Model. One recipe is solved at its vertices, several by a linear program; both are exact.
func (seneca) Solve(d Demand) (Plan, error) {
	if err := d.check(); err != nil {
		return Plan{}, err
	}
	pr := newProblem(&d)
	l := pr.vertexLayout()
	if len(pr.items) > 1 || d.Fixed != nil && *d.Fixed != Free {
		l = pr.eq9Layout()
	}
	return pr.plan(Seneca, l, pr.averaged(l), make([]float64, len(pr.items)), seneca{}), nil
}

// singleForm is Eq. 1, 3, 5 and 7: samples a second when all come from one form, and what limits that.
func (pr *problem) singleForm(i int) (rates [numForms]float64, limits [numForms]Resource) {
	m, it := &pr.d.Machine, &pr.items[i]
	s, r, n := it.set, it.rec, float64(pr.d.Machine.Nodes)
	gpu := 0.0
	for _, t := range it.ingest {
		gpu += t
	}
	pcie := n * m.PCIe / (r.Augmented + m.GradientPCIe)
	nic := func(bytes float64) float64 { return n * m.NIC / (bytes + m.GradientNIC) }
	least := func(f int, of [NumResources]float64) {
		rates[f] = maxLarge
		for k, x := range of {
			if x > 0 && x < rates[f] {
				rates[f], limits[f] = x, Resource(k)
			}
		}
	}
	least(fAugmented, [NumResources]float64{MemoryBandwidth: m.Cache / r.Augmented, Network: nic(r.Augmented), PCIe: pcie,
		Training: gpu})
	least(fDecoded, [NumResources]float64{MemoryBandwidth: m.Cache / r.Decoded, Network: nic(r.Decoded),
		CPU: n * r.Augment, PCIe: pcie, Training: gpu})
	encoded := [NumResources]float64{MemoryBandwidth: m.Cache / s.Encoded, Network: nic(s.Encoded),
		CPU: n * r.DecodeAugment, PCIe: pcie, Training: gpu}
	least(fEncoded, encoded)
	encoded[Storage] = m.Storage / s.Stored
	least(fStored, encoded)
	return rates, limits
}

// eq9 is Eq. 9 for a split.
func (pr *problem) eq9(s Split) Candidate {
	o := pr.averaged(pr.spread(s, true))
	return Candidate{Split: s, Rate: o.total, Binding: o.binding}
}

// averaged is Eq. 9 for a layout: the mean of the forms' rates over samples, and over jobs where there are several
// recipes. The binding resource is that of the form that takes most of the time.
func (pr *problem) averaged(l layout) outcome {
	n := len(pr.items)
	o := outcome{rates: make([]float64, n), levels: make([]float64, n), mixes: make([][numForms]float64, n)}
	longest := 0.0
	for i := range pr.items {
		o.mixes[i], _ = pr.mix(i, l)
		rates, limits := pr.singleForm(i)
		part := float64(len(pr.items[i].ingest)) / float64(pr.jobs)
		for f, p := range o.mixes[i] {
			o.rates[i] += float64(part * p * rates[f])
			if t := part * p / rates[f]; t > longest {
				longest, o.binding = t, limits[f]
			}
		}
		o.total += o.rates[i]
	}
	return o
}

// vertexLayout solves Eq. 9 for one recipe exactly. Eq. 9 is linear in counts under two constraints, memory and the
// number of samples. So an optimum has at most two forms, and two only when both constraints are tight.
func (pr *problem) vertexLayout() layout {
	it := &pr.items[0]
	rates, _ := pr.singleForm(0)
	// Sizes of the forms, in the order in which ties are broken: encoded is the cheapest to fill and never stale.
	z := [...]float64{it.set.Encoded, it.rec.Decoded, it.rec.Augmented}
	gain := [...]float64{
		rates[fEncoded] - rates[fStored], rates[fDecoded] - rates[fStored], rates[fAugmented] - rates[fStored],
	}
	if it.rec.Sharers < 2 {
		gain[2] = 0
	}
	n := vertex(it.wanted, float64(pr.d.Budget), z, gain)
	l := pr.empty()
	l.enc[0], l.dec[0], l.aug[0] = n[0]*z[0], n[1]*z[1], n[2]*z[2]
	return l
}

// vertex returns the counts n by form that maximise gain·n with z·n <= memory and Σn <= samples.
func vertex(samples, memory float64, z, gain [3]float64) (best [3]float64) {
	value := -1.0
	consider := func(n [3]float64) {
		v := 0.0
		for f := range n {
			v += float64(n[f] * gain[f])
		}
		if v > value+1e-12*max(value, 0) {
			best, value = n, v
		}
	}
	for f := range z {
		if gain[f] >= 0 {
			var n [3]float64
			n[f] = min(samples, memory/z[f])
			consider(n)
		}
	}
	for f := range z {
		for g := f + 1; g < len(z); g++ {
			if z[f] == z[g] {
				continue
			}
			var n [3]float64
			n[g] = (memory - z[f]*samples) / (z[g] - z[f])
			n[f] = samples - n[g]
			if n[f] > 0 && n[g] > 0 {
				consider(n)
			}
		}
	}
	return best
}

// eq9Layout solves Eq. 9 for several recipes, and under fixed sizes.
func (pr *problem) eq9Layout() layout {
	all := make([]int, len(pr.items))
	for i := range all {
		all[i] = i
	}
	m := pr.memory(all, 1, fromStorage)
	if m == nil {
		return pr.empty()
	}
	top := 0.0
	coef := make([]float64, len(m.cols))
	for j, c := range m.cols {
		if c.item < 0 {
			continue
		}
		rates, _ := pr.singleForm(c.item)
		coef[j] = (rates[c.form] - rates[fStored]) * float64(len(pr.items[c.item].ingest)) / float64(pr.jobs)
		top = max(top, coef[j])
	}
	value, bytes := m.objective(), m.objective()
	for j, c := range m.cols {
		if top > 0 {
			value[j] = coef[j] / top
		}
		bytes[j] = -c.bytes / m.unit
	}
	return m.layout()
}
