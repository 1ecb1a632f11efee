package partition

import "math"

// program is a linear program: maximise objectives[0]·x, then among its optima objectives[1]·x, and so on, subject to
// rows·x <= rhs and x >= 0. Every rhs is at least 0, so x = 0 is allowed. The models need no more: they start from
// empty tiers.
//
// It is solved by the simplex method on a dense tableau. Entering columns are chosen by the steepest reduced cost while
// that gains something, and by Bland's rule (first index) after stalls. So it ends on every input, and the same input
// takes the same path.
type program struct {
	vars       int
	rows       [][]float64
	rhs        []float64
	objectives [][]float64
}

// eps is what counts as zero. Callers scale coefficients to about 1.
const eps = 1e-11

// row adds a constraint and returns its coefficients, all zero.
func (p *program) row(rhs float64) []float64 {
	r := make([]float64, p.vars)
	p.rows = append(p.rows, r)
	p.rhs = append(p.rhs, max(rhs, 0))
	return r
}

// objective adds an objective and returns its coefficients, all zero.
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
			in := entering(z[:n+m], closed, stalls > m)
			if in < 0 {
				break
			}
			out, best := leaving(t[:m], basis, in)
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

// entering returns the column of the steepest reduced cost, or the first that gains anything; -1 = none gains.
func entering(z []float64, closed []bool, first bool) int {
	in := -1
	for j, cost := range z {
		if !closed[j] && cost < -eps && (in < 0 || cost < z[in]) {
			if in = j; first {
				break
			}
		}
	}
	return in
}

// leaving returns the row that bounds the entering column, and the bound; -1 = no row does.
func leaving(rows [][]float64, basis []int, in int) (out int, bound float64) {
	out, bound = -1, math.Inf(1)
	for i, r := range rows {
		if a := r[in]; a > eps {
			ratio := r[len(r)-1] / a
			if ratio < bound-eps || ratio < bound+eps && out >= 0 && basis[i] < basis[out] {
				out, bound = i, min(ratio, bound)
			}
		}
	}
	return out, bound
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
