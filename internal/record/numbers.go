package record

import (
	"math"
	"strconv"
)

// Len counts the elements of a value: of bytes and text their bytes.
func (v *Value) Len() int {
	n := v.DType.Size()
	if n == 0 {
		return 0
	}
	return len(v.Data) / int(n)
}

// Number is one element, as near as a float64 comes to it.
func (v *Value) Number(i int) float64 {
	n := int(v.DType.Size())
	b := v.Data[n*i : n*(i+1)]
	switch v.DType {
	case Bool, Uint8:
		return float64(b[0])
	case Int8:
		return float64(int8(b[0]))
	case Uint16:
		return float64(le.Uint16(b))
	case Int16:
		return float64(int16(le.Uint16(b)))
	case Uint32:
		return float64(le.Uint32(b))
	case Int32:
		return float64(int32(le.Uint32(b)))
	case Uint64:
		return float64(le.Uint64(b))
	case Int64:
		return float64(int64(le.Uint64(b)))
	case Float16:
		return half(le.Uint16(b))
	case BFloat16:
		return float64(math.Float32frombits(uint32(le.Uint16(b)) << 16))
	case Float32:
		return float64(math.Float32frombits(le.Uint32(b)))
	default:
		return math.Float64frombits(le.Uint64(b))
	}
}

// half is a float of 16 bits.
func half(b uint16) float64 {
	sign, exp, frac := 1.0, int(b>>10&31), float64(b&1023)
	if b>>15 == 1 {
		sign = -1
	}
	switch exp {
	case 0:
		return sign * math.Ldexp(frac, -24)
	case 31:
		if frac != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

// NumberText is one element for people: whole numbers exactly, others in six digits.
func (v *Value) NumberText(i int) string {
	switch v.DType {
	case Bool:
		return strconv.FormatBool(v.Data[i] != 0)
	case Uint64:
		return strconv.FormatUint(le.Uint64(v.Data[8*i:]), 10)
	case Int64:
		return strconv.FormatInt(int64(le.Uint64(v.Data[8*i:])), 10)
	case Float16, BFloat16, Float32, Float64:
		return strconv.FormatFloat(v.Number(i), 'g', 6, 64)
	default:
		return strconv.FormatInt(int64(v.Number(i)), 10)
	}
}

// Range is what the elements of a value lie between; NaN counts apart.
type Range struct {
	Min, Max, Sum float64
	Numbers, NaN  int64
}

// Add takes one number in.
func (r *Range) Add(x float64) {
	if math.IsNaN(x) {
		r.NaN++
		return
	}
	if r.Numbers == 0 {
		r.Min, r.Max = x, x
	}
	r.Min, r.Max, r.Sum, r.Numbers = min(r.Min, x), max(r.Max, x), r.Sum+x, r.Numbers+1
}

// Join takes in what another Range has.
func (r *Range) Join(o Range) {
	if o.Numbers > 0 {
		if r.Numbers == 0 {
			r.Min, r.Max = o.Min, o.Max
		}
		r.Min, r.Max = min(r.Min, o.Min), max(r.Max, o.Max)
	}
	r.Sum, r.Numbers, r.NaN = r.Sum+o.Sum, r.Numbers+o.Numbers, r.NaN+o.NaN
}

// Mean is NaN where there are no numbers.
func (r *Range) Mean() float64 { return r.Sum / float64(r.Numbers) }

// Range looks at every element of a scalar or an array.
func (v *Value) Range() (r Range) {
	for i := range v.Len() {
		r.Add(v.Number(i))
	}
	return r
}
