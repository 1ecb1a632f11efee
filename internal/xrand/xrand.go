// Package xrand is larder's only source of randomness: a splittable, seeded generator (xoshiro256**, seeded
// through SplitMix64) and a hash that derives seeds for randomness that must not depend on who asks, or when.
//
// Nothing here reads a clock or the operating system. The same seed gives the same numbers on every machine.
package xrand

import (
	"math"
	"math/bits"
)

// Rand is a xoshiro256** generator (Blackman, Vigna 2018). Not safe for concurrent use.
type Rand struct{ s [4]uint64 }

// Mix is the finaliser of SplitMix64: a bijection on uint64 whose output bits all depend on all input bits.
func Mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

// Hash chains words into one seed. Hash(a, b) and Hash(b, a) differ.
func Hash(words ...uint64) uint64 {
	h := uint64(0x243f6a8885a308d3)
	for _, w := range words {
		h = Mix(h ^ Mix(w))
	}
	return h
}

// New returns a generator for the seed given by all words together.
func New(words ...uint64) *Rand {
	r := new(Rand)
	r.Seed(Hash(words...))
	return r
}

// Seed resets the generator.
func (r *Rand) Seed(seed uint64) {
	for i := range r.s {
		seed += 0x9e3779b97f4a7c15
		r.s[i] = Mix(seed)
	}
}

// Split returns a generator that is independent of what r gives afterwards.
func (r *Rand) Split() *Rand { return New(r.Uint64(), r.Uint64()) }

// Uint64 returns 64 uniform bits.
func (r *Rand) Uint64() uint64 {
	s := &r.s
	res := bits.RotateLeft64(s[1]*5, 7) * 9
	t := s[1] << 17
	s[2] ^= s[0]
	s[3] ^= s[1]
	s[1] ^= s[2]
	s[0] ^= s[3]
	s[2] ^= t
	s[3] = bits.RotateLeft64(s[3], 45)
	return res
}

// Uint64n returns a uniform number in [0, n), without bias (Lemire 2019). n must not be 0.
func (r *Rand) Uint64n(n uint64) uint64 {
	hi, lo := bits.Mul64(r.Uint64(), n)
	if lo < n {
		t := -n % n
		for lo < t {
			hi, lo = bits.Mul64(r.Uint64(), n)
		}
	}
	return hi
}

// IntN returns a uniform number in [0, n). n must be positive.
func (r *Rand) IntN(n int) int { return int(r.Uint64n(uint64(n))) }

// Float64 returns a uniform number in [0, 1) with 53 bits.
func (r *Rand) Float64() float64 { return float64(r.Uint64()>>11) * 0x1p-53 }

// Uniform returns a uniform number in [lo, hi); by rounding it can be hi. The product is rounded before the sum, on
// every machine: where processors have a fused multiply-add, compilers would use it and draw other numbers.
func (r *Rand) Uniform(lo, hi float64) float64 { return lo + float64((hi-lo)*r.Float64()) }

// LogUniform returns exp of a uniform number between the logarithms of lo and hi, which must be positive and finite;
// otherwise the result is what the logarithm of such a bound leads to (NaN, 0 or +Inf).
func (r *Rand) LogUniform(lo, hi float64) float64 { return exp(r.Uniform(log(lo), log(hi))) }

// Normal returns a number of the standard normal distribution (Marsaglia's polar method).
func (r *Rand) Normal() float64 {
	for {
		x, y := 2*r.Float64()-1, 2*r.Float64()-1
		if s := float64(x*x) + float64(y*y); s > 0 && s < 1 {
			return x * math.Sqrt(-2*log(s)/s)
		}
	}
}

// Shuffle permutes n things uniformly (Fisher, Yates).
func (r *Rand) Shuffle(n int, swap func(i, j int)) {
	for i := n - 1; i > 0; i-- {
		swap(i, r.IntN(i+1))
	}
}
