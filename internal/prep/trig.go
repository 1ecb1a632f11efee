package prep

import "math"

// Angles become matrices as in Python, whose math module has the last bit of the C library nearly always right. So has
// this: sums and products of twice the precision, rounded once at the end, with the same bits on every machine.

// pair64 is an unevaluated sum of two numbers, of which the second is below the last bit of the first.
type pair64 struct{ hi, lo float64 }

func fastSum(a, b float64) pair64 {
	s := a + b
	return pair64{s, b - (s - a)}
}

func exactSum(a, b float64) pair64 {
	s := a + b
	t := s - a
	return pair64{s, (a - (s - t)) + (b - t)}
}

func exactProduct(a, b float64) pair64 {
	p := float64(a * b)
	return pair64{p, math.FMA(a, b, -p)}
}

func (a pair64) plus(b pair64) pair64 {
	s := exactSum(a.hi, b.hi)
	t := exactSum(a.lo, b.lo)
	s = fastSum(s.hi, s.lo+t.hi)
	return fastSum(s.hi, s.lo+t.lo)
}

func (a pair64) times(b pair64) pair64 {
	p := exactProduct(a.hi, b.hi)
	return fastSum(p.hi, p.lo+(float64(a.hi*b.lo)+float64(a.lo*b.hi)))
}

func (a pair64) over(b pair64) pair64 {
	q := a.hi / b.hi
	r := a.plus(b.times(pair64{-q, 0}))
	return fastSum(q, r.hi/b.hi)
}

func (a pair64) minus() pair64 { return pair64{-a.hi, -a.lo} }

// sincos returns the sine and the cosine of x, which is at most a few turns.
func sincos(x float64) (sin, cos pair64) {
	// pi/2 in three parts
	const p1, p2, p3 = 1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33
	k := math.RoundToEven(x * (2 / math.Pi))
	r := pair64{x, 0}
	for _, p := range [...]float64{p1, p2, p3} {
		r = r.plus(exactProduct(-k, p))
	}
	square := r.times(r)
	series := func(term pair64, n float64) pair64 { // term - term r²/((n+1)(n+2)) + …
		sum := term
		for ; n < 24; n += 2 {
			term = term.times(square).over(pair64{-(n + 1) * (n + 2), 0})
			sum = sum.plus(term)
		}
		return sum
	}
	s, c := series(r, 1), series(pair64{1, 0}, 0)
	switch int64(k) & 3 {
	case 1:
		return c, s.minus()
	case 2:
		return s.minus(), c.minus()
	case 3:
		return c.minus(), s
	}
	return s, c
}

func sine(x float64) float64 {
	s, _ := sincos(x)
	return s.hi
}

func cosine(x float64) float64 {
	_, c := sincos(x)
	return c.hi
}

func tangent(x float64) float64 {
	s, c := sincos(x)
	return s.over(c).hi
}

// arctangent improves on math.Atan by one step of Newton's.
func arctangent(x float64) float64 {
	y := math.Atan(x)
	s, c := sincos(y)
	v := pair64{x, 0}
	return y + v.times(c).plus(s.minus()).over(c.plus(v.times(s))).hi
}

func radians(degrees float64) float64 { return degrees * (math.Pi / 180) }
func degrees(radians float64) float64 { return radians * (180 / math.Pi) }

// fma32 is x*y + z rounded once to float32, as the processor's instruction does.
func fma32(x, y, z float32) float32 {
	p := float64(x) * float64(y) // exact
	s := exactSum(p, float64(z))
	if bits := math.Float64bits(s.hi); s.lo != 0 && bits&1 == 0 {
		// Rounded to odd, so that the second rounding, to float32, sees which side the rest is on.
		if (s.lo > 0) == (s.hi > 0) {
			bits++
		} else {
			bits--
		}
		return float32(math.Float64frombits(bits))
	}
	return float32(s.hi)
}
