package partition

import "math"

// program is a linear program in the form: maximise objectives[0]·x, then among its optima objectives[1]·x, and so on,
// subject to rows·x <= rhs and x >= 0, where every rhs is at least 0, so that x = 0 is allowed. It is the whole of what
// the models need: they start from empty tiers.
//
// The simplex method on a dense tableau. Entering columns are chosen by the steepest reduced cost while that gains
// something, and by Bland's rule (first index) after stalls, so that it ends on every input and the same input takes the same way.
type program struct {
	vars       int
	rows       [][]float64
	rhs        []float64
	objectives [][]float64
}

// eps is what counts as zero. Callers scale coefficients to about 1.
const eps = 1e-11

func (p *program) row(rhs float64) []float64 {
	r := make([]float64, p.vars)
	p.rows = append(p.rows, r)
	p.rhs = append(p.rhs, max(rhs, 0))
	return r
}

func (p *program) objective() []float64 {
	o := make([]float64, p.vars)
	p.objectives = append(p.objectives, o)
	return o
}

// solve returns an optimal x. A program without bound (the models have none) ends at the last x that was bounded.
func (p *program) solve() []float64 {
	m, n := len(p.rows), p.vars
	width := n + m + 1
	t := make([][]float64, m+len(p.objectives)) // constraint rows, then objective rows with negated coefficients
	flat := make([]float64, len(t)*width)
	for i := range t {
		t[i] = flat[i*width : (i+1)*width]
	}
	basis := make([]int, m)
	for i, r := range p.rows {
		copy(t[i], r)
		t[i][n+i] = 1
		t[i][width-1] = p.rhs[i]
		basis[i] = n + i
	}
	for k, o := range p.objectives {
		for j, c := range o {
			t[m+k][j] = -c
		}
	}
	closed := make([]bool, n+m) // columns that would spoil an objective already reached
	limit := 50 * (m + n)
	nz := make([]int, 0, width)
	for k := range p.objectives {
		z := t[m+k]
		stalls := 0
		for range limit {
			in := -1
			for j := range n + m {
				if !closed[j] && z[j] < -eps && (in < 0 || stalls <= m && z[j] < z[in]) {
					in = j
					if stalls > m {
						break
					}
				}
			}
			if in < 0 {
				break
			}
			out, best := -1, math.Inf(1)
			for i := range m {
				if a := t[i][in]; a > eps {
					ratio := t[i][width-1] / a
					if ratio < best-eps || ratio < best+eps && out >= 0 && basis[i] < basis[out] {
						out, best = i, min(ratio, best)
					}
				}
			}
			if out < 0 {
				break
			}
			if best > eps {
				stalls = 0
			} else {
				stalls++
			}
			nz = pivot(t, out, in, nz)
			basis[out] = in
		}
		for j := range closed {
			closed[j] = closed[j] || z[j] > eps
		}
	}
	x := make([]float64, n)
	for i, b := range basis {
		if b < n {
			x[b] = max(t[i][width-1], 0)
		}
	}
	return x
}

// pivot makes column in basic in row out. nz is scratch.
func pivot(t [][]float64, out, in int, nz []int) []int {
	r := t[out]
	inv := 1 / r[in]
	nz = nz[:0]
	for j, v := range r {
		if v != 0 {
			r[j] = v * inv
			nz = append(nz, j)
		}
	}
	r[in] = 1
	last := len(r) - 1
	for i, row := range t {
		f := row[in]
		if i == out || f == 0 {
			continue
		}
		for _, j := range nz {
			row[j] -= float64(f * r[j])
		}
		row[in] = 0
		if row[last] < 0 && row[last] > -eps {
			row[last] = 0
		}
	}
	return nz
}

// fRefillEncoded and fRefillDecoded are the forms of columns that serve nothing: the part of an item's samples that are served augmented,
// and made anew from what the encoded or the decoded tier holds.
const (
	fRefillEncoded = int(numForms) + iota
	fRefillDecoded
)

// sources is where a program may have augmented samples made anew from.
type sources uint8

const (
	fromStorage sources = iota
	fromEncoded         // what the encoded tier holds beyond what it serves, else storage
	fromDecoded         // what the decoded tier holds beyond what it serves, else what the encoded one holds, which serves nothing then
)

// column is a variable of a memory program: the part of an item's samples that a form serves, or is made anew from, or the part of what
// several items want of a form that lies in memory (item -1).
type column struct {
	item, form int
	mem        int     // the form whose memory it takes
	bytes      float64 // it takes when it is 1; 0 = its memory is a column of its own
	out        *float64
}

// source is the form that a column has augmented samples made anew from; -1 = none, the column serves.
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

// memory builds the program for some items and a part of the memory; nil when there is no memory.
func (w *problem) memory(items []int, part float64, src sources) *memoryProgram {
	fixed, free := w.d.free()
	sizes := [numForms]float64{fEncoded: float64(fixed.Encoded), fDecoded: float64(fixed.Decoded), fAugmented: float64(fixed.Augmented)}
	unit := float64(free) + max(sizes[fEncoded], 0) + max(sizes[fDecoded], 0) + max(sizes[fAugmented], 0)
	if unit <= 0 || part <= 0 {
		return nil
	}
	m := &memoryProgram{unit: unit * part, l: w.empty()}
	stored, served, refilled := w.columns(m, items, src)
	m.gain = len(m.cols)
	m.vars = m.gain + 1
	for _, list := range served { // no sample is served twice
		r := m.row(1)
		for _, j := range list {
			r[j] = 1
		}
	}
	for _, s := range stored { // what several items take from a tier is at most what lies there
		r := m.row(0)
		for _, j := range s.takes {
			r[j] = 1
		}
		r[s.at] = -1
	}
	for _, list := range refilled { // what is made anew is served augmented
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

// store is a column for the memory of several items, and the columns of one of them that take from it.
type store struct {
	at    int
	takes []int
}

// columns fills m.cols. It returns the stores, the columns that serve each item, and for items that share augmented samples that column and
// those that it is made anew from.
func (w *problem) columns(m *memoryProgram, items []int, src sources) (stored []store, served, refilled [][]int) {
	inData, inGroup := make([]int, len(w.d.Datasets)), make([]int, len(w.groups))
	for _, i := range items {
		inData[w.items[i].data]++
		inGroup[w.items[i].group]++
	}
	add := func(c column) int {
		m.cols = append(m.cols, c)
		return len(m.cols) - 1
	}
	stores := map[[2]int]int{} // (form, dataset or group) to the column that holds memory for several items
	for _, i := range items {
		it := &w.items[i]
		g := &w.groups[it.group]
		tiers := [...]column{
			{item: i, form: fEncoded, mem: fEncoded, bytes: w.room * it.set.Encoded * w.union[it.data], out: &m.l.enc[it.data]},
			{item: i, form: fDecoded, mem: fDecoded, bytes: g.bytes * g.samples, out: &m.l.dec[it.group]},
		}
		members, key := [...]int{inData[it.data], inGroup[it.group]}, [...]int{it.data, it.group}
		augmented := it.rec.Sharers > 1 // alone nothing is gained: an instance serves a job once (design.md G3)
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

// layout solves the program.
func (m *memoryProgram) layout() layout {
	x := m.solve()
	for j, c := range m.cols {
		if c.out != nil {
			*c.out += c.bytes * min(x[j], 1) // what serves and what is made anew from may be of one tier
		}
	}
	return m.l
}
