package partition

// fRefillEncoded and fRefillDecoded are the forms of columns that serve nothing: the part of an item's samples that is
// served augmented, and whose next instance is made from what the encoded or the decoded tier holds.
const (
	fRefillEncoded = numForms + iota
	fRefillDecoded
)

// sources says where the next instances of augmented samples may be made from.
type sources uint8

const (
	fromStorage sources = iota
	fromEncoded         // what the encoded tier holds beyond what it serves, else storage
	fromDecoded         // the same of the decoded tier, else what the encoded one holds, which then serves nothing
)

// column is a variable of a memory program. It is the part of an item's samples that a form serves, or that a form is
// the source of; or (item -1) the part that is in memory of what several items need of a form.
type column struct {
	item, form int
	mem        int     // the form whose memory it takes
	bytes      float64 // it takes when it is 1; 0 = its memory is a column of its own
	out        *float64
}

// source returns the form that a column makes instances from; -1 = none, the column serves.
func (c column) source() int {
	switch c.form {
	case fRefillEncoded:
		return fEncoded
	case fRefillDecoded:
		return fDecoded
	}
	return -1
}

// memoryProgram is a program whose rows hold the budget, the fixed sizes and that no sample is served twice. Its
// variables are cols and one more, gain.
type memoryProgram struct {
	program
	cols []column
	gain int
	unit float64 // bytes that count as 1
	l    layout
}

// memory builds the program for some items and a part of the memory. It returns nil when there is no memory.
func (pr *problem) memory(items []int, part float64, src sources) *memoryProgram {
	fixed, free := pr.d.free()
	sizes := [numForms]float64{fEncoded: float64(fixed.Encoded), fDecoded: float64(fixed.Decoded),
		fAugmented: float64(fixed.Augmented)}
	unit := float64(free) + max(sizes[fEncoded], 0) + max(sizes[fDecoded], 0) + max(sizes[fAugmented], 0)
	if unit <= 0 || part <= 0 {
		return nil
	}
	m := &memoryProgram{unit: unit * part, l: pr.empty()}
	stored, served, refilled := pr.columns(m, items, src)
	m.gain = len(m.cols)
	m.vars = m.gain + 1
	for _, list := range served { // no sample is served twice
		r := m.row(1)
		for _, j := range list {
			r[j] = 1
		}
	}
	for _, s := range stored { // several items take at most what the tier holds
		r := m.row(0)
		for _, j := range s.takes {
			r[j] = 1
		}
		r[s.at] = -1
	}
	for _, list := range refilled { // sources are those of samples that are served augmented
		r := m.row(0)
		for _, j := range list[1:] {
			r[j] = 1
		}
		r[list[0]] = -1
	}
	budget := m.row(float64(free) * part / m.unit)
	for f := fEncoded; f <= fAugmented; f++ {
		r := budget
		if sizes[f] >= 0 {
			r = m.row(sizes[f] * part / m.unit)
		}
		for j, c := range m.cols {
			if c.mem == f {
				r[j] = c.bytes / m.unit
			}
		}
	}
	return m
}

// store is a column for memory that several items share, and the columns of one of them that take from it.
type store struct {
	at    int
	takes []int
}

// columns fills m.cols. It returns the stores, the columns that serve each item, and for each item whose jobs share
// augmented samples its augmented column followed by those of its sources.
func (pr *problem) columns(m *memoryProgram, items []int, src sources) (stored []store, served, refilled [][]int) {
	inData, inGroup := make([]int, len(pr.d.Datasets)), make([]int, len(pr.groups))
	for _, i := range items {
		inData[pr.items[i].data]++
		inGroup[pr.items[i].group]++
	}
	add := func(c column) int {
		m.cols = append(m.cols, c)
		return len(m.cols) - 1
	}
	stores := map[[2]int]int{} // (form, dataset or group) to the column that holds memory for several items
	for _, i := range items {
		it := &pr.items[i]
		g := &pr.groups[it.group]
		tiers := [...]column{
			{item: i, form: fEncoded, mem: fEncoded, bytes: pr.room * it.set.Encoded * pr.union[it.data],
				out: &m.l.enc[it.data]},
			{item: i, form: fDecoded, mem: fDecoded, bytes: g.bytes * g.samples, out: &m.l.dec[it.group]},
		}
		members, key := [...]int{inData[it.data], inGroup[it.group]}, [...]int{it.data, it.group}
		augmented := it.rec.Sharers > 1 // a job alone gains nothing: an instance serves a job once
		var serves, makes []int
		for x, c := range tiers {
			at := -1
			if members[x] > 1 {
				var ok bool
				if at, ok = stores[[2]int{c.form, key[x]}]; !ok {
					shared := c
					shared.item = -1
					at = add(shared)
					stores[[2]int{c.form, key[x]}] = at
				}
				c.bytes, c.out = 0, nil
			}
			var takes []int
			if !augmented || src != fromDecoded || c.form != fEncoded {
				serves = append(serves, add(c))
				takes = append(takes, len(m.cols)-1)
			}
			if augmented && (src == fromDecoded || src == fromEncoded && c.form == fEncoded) {
				c.form = [...]int{fRefillEncoded, fRefillDecoded}[x]
				makes = append(makes, add(c))
				takes = append(takes, len(m.cols)-1)
			}
			if at >= 0 {
				stored = append(stored, store{at, takes})
			}
		}
		if augmented {
			at := add(column{item: i, form: fAugmented, mem: fAugmented, bytes: it.rec.Augmented * it.wanted, out: &m.l.aug[i]})
			serves = append(serves, at)
			if len(makes) > 0 {
				refilled = append(refilled, append([]int{at}, makes...))
			}
		}
		served = append(served, serves)
	}
	return stored, served, refilled
}

// layout solves the program and returns its layout.
func (m *memoryProgram) layout() layout {
	x := m.solve()
	for j, c := range m.cols {
		if c.out != nil {
			*c.out += c.bytes * min(x[j], 1) // a tier may both serve and hold sources
		}
	}
	return m.l
}
