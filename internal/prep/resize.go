package prep

import (
	"encoding/binary"
	"math"
)

type filter uint8

const (
	bilinear filter = iota
	bicubic
	nearestSample
)

// precisionBits of the fixed-point coefficients: 32 less 8 for the pixel less 2 for the overshoot of bicubic (Pillow,
// libImaging/Resample.c).
const precisionBits = 32 - 8 - 2

// coeffs are the weights that make out pixels of in pixels along one axis.
type coeffs struct {
	in, out int
	filter  filter
	ksize   int
	bounds  []int32 // first source pixel and number of them, per output pixel
	k       []int32 // ksize weights per output pixel
	clip    bool    // sums may leave 0..255: negative weights, or so many that their rounding adds up

	// for the kernels in C, made when they first want it (pack); groups is 0 before
	packed        []int32
	groups, reach int
}

// support of the filter at scale 1, in source pixels.
func (f filter) support() float64 {
	if f == bicubic {
		return 2
	}
	return 1
}

// weight is the filter at distance x. Products are converted so that no compiler fuses them into sums.
func (f filter) weight(x float64) float64 {
	x = math.Abs(x)
	if f == bilinear {
		return max(1-x, 0)
	}
	const a = -0.5
	switch {
	case x < 1:
		return float64(float64((float64((a+2)*x)-(a+3))*x)*x) + 1
	case x < 2:
		return float64((float64((float64((x-5)*x)+8)*x) - 4) * a)
	}
	return 0
}

// compute fills c as Pillow's precompute_coeffs and normalize_coeffs_8bpc do, operation for operation. weights is
// scratch.
func (c *coeffs) compute(in, out int, f filter, weights []float64) []float64 {
	scale := float64(in) / float64(out)
	filterScale := max(scale, 1)
	support := float64(f.support() * filterScale)
	c.in, c.out, c.filter, c.groups = in, out, f, 0
	c.ksize = int(math.Ceil(support))*2 + 1
	c.bounds = grow(c.bounds, 2*out)
	c.k = grow(c.k, out*c.ksize)
	if cap(weights) < c.ksize {
		weights = make([]float64, c.ksize)
	}
	weights = weights[:c.ksize]
	inv := 1 / filterScale
	c.clip = f != bilinear || c.ksize > 4096
	for x := range out {
		center := float64((float64(x) + 0.5) * scale)
		first := max(int(center-support+0.5), 0)
		n := min(int(center+support+0.5), in) - first
		sum := 0.0
		for j := range n {
			w := f.weight((float64(j+first) - center + 0.5) * inv)
			weights[j] = w
			sum += w
		}
		k := c.k[x*c.ksize : x*c.ksize+n]
		for j := range k {
			w := weights[j]
			if sum != 0 {
				w /= sum
			}
			w = float64(w * (1 << precisionBits))
			if w < 0 {
				k[j] = int32(w - 0.5)
			} else {
				k[j] = int32(w + 0.5)
			}
		}
		c.bounds[2*x], c.bounds[2*x+1] = int32(first), int32(n)
	}
	return weights
}

// span returns the source pixels that n output pixels from at on are made of: from first up to, not including, end.
func (c *coeffs) span(at, n int) (first, end int) {
	first = int(c.bounds[2*at])
	last := 2 * (at + n - 1)
	return first, int(c.bounds[last] + c.bounds[last+1])
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// Weights of lately used sizes are kept: random crops come back to the same few hundred sides.
const (
	coeffSlots    = 128
	maxSlotCoeffs = 1 << 14 // longer lists are computed each time, so that a worker stays small
)

type coeffCache struct {
	slots   [coeffSlots]coeffs
	long    coeffs
	weights []float64
}

func (cc *coeffCache) get(in, out int, f filter) *coeffs {
	c := &cc.slots[(uint32(in)*0x9e3779b1^uint32(out)*0x85ebca6b^uint32(f)*0xc2b2ae35)>>25%coeffSlots]
	if c.in == in && c.out == out && c.filter == f {
		return c
	}
	if out*(int(math.Ceil(f.support()*max(float64(in)/float64(out), 1)))*2+1) > maxSlotCoeffs {
		c = &cc.long
		if c.in == in && c.out == out && c.filter == f {
			return c
		}
	}
	cc.weights = c.compute(in, out, f, cc.weights)
	return c
}

// view is an image inside a larger one.
type view struct {
	pix    []byte // from the first pixel; may reach beyond the last one
	stride int    // bytes from row to row
	w, h   int
}

func (img Image) view(b box) view {
	off := (b.y*img.W + b.x) * 3
	return view{pix: img.Pix[off:], stride: img.W * 3, w: b.w, h: b.h}
}

// geo runs a stepGeo on img into dst, which holds win.w x win.h pixels.
func (w *Worker) geo(s *step, img Image, dst []byte) {
	if w.geoC(s, img, dst, nil) {
		return
	}
	src := img.view(s.src)
	switch {
	case s.rw == src.w && s.rh == src.h:
		copyView(img.view(box{x: s.src.x + s.win.x, y: s.src.y + s.win.y, w: s.win.w, h: s.win.h}), dst, s.hflip, s.vflip)
	case s.filter == nearestSample:
		w.nearest(s, src, dst)
	default:
		w.resample(s, src, dst)
	}
}

// resample is ImagingResample: horizontal pass over the rows that are needed, then the vertical pass.
func (w *Worker) resample(s *step, src view, dst []byte) {
	row := s.win.w * 3
	var v *coeffs
	first, rows := s.win.y, s.win.h // rows of src that the vertical pass needs
	if s.rh != src.h {
		v = w.vert.get(src.h, s.rh, s.filter)
		end := 0
		first, end = v.span(s.win.y, s.win.h)
		rows = end - first
	}
	var mid view
	flipped := false
	if s.rw == src.w {
		mid = view{pix: src.pix[first*src.stride+s.win.x*3:], stride: src.stride, w: s.win.w, h: rows}
	} else {
		h := w.horiz.get(src.w, s.rw, s.filter)
		out := dst
		if v != nil {
			out = w.buffer(bufRows, rows*row)
		}
		in := view{pix: src.pix[first*src.stride:], stride: src.stride, w: src.w, h: rows}
		w.horizontal(h, in, out, s, v == nil && s.vflip)
		if v == nil {
			return
		}
		mid, flipped = view{pix: out, stride: row, w: s.win.w, h: rows}, true
	}
	for y := range s.win.h {
		at := 2 * (s.win.y + y)
		n := int(v.bounds[at+1])
		k := v.k[(s.win.y+y)*v.ksize:][:n]
		to := y
		if s.vflip {
			to = s.win.h - 1 - y
		}
		vertical(k, mid.pix[(int(v.bounds[at])-first)*mid.stride:], mid.stride, dst[to*row:][:row], v.clip)
	}
	if s.hflip && !flipped {
		for y := range s.win.h {
			reverseRow(dst[y*row:][:row])
		}
	}
}

// Two or more pixels share a 64-bit word, 32 bits each, and are weighted by one multiplication: weights have 22 bits,
// pixels 8, and sums of weights stay below 2 x 2^22, so lanes do not run over. With negative weights a lane may be
// negative and borrow from the one above, which unpack corrects; the sums are exact either way.
const (
	laneMask = 0x000000ff000000ff
	laneHalf = 1<<(precisionBits-1) | 1<<(precisionBits-1+32) // rounds to nearest
)

// unpack returns both lanes as pixels.
func unpack(acc uint64) (lo, hi uint8) {
	l := int32(uint32(acc))
	h := int32((int64(acc) - int64(l)) >> 32)
	return clip8(l >> precisionBits), clip8(h >> precisionBits)
}

func clip8(v int32) uint8 {
	if uint32(v) > 255 {
		if v < 0 {
			return 0
		}
		return 255
	}
	return uint8(v)
}

// vertical makes one row of n bytes from len(k) rows, stride bytes apart.
func vertical(k []int32, src []byte, stride int, dst []byte, clip bool) {
	i, n := 0, len(dst)
	for ; i+8 <= n; i += 8 {
		var a0, a1, a2, a3 uint64 = laneHalf, laneHalf, laneHalf, laneHalf
		off := i
		for _, c := range k {
			v := binary.LittleEndian.Uint64(src[off : off+8])
			c := uint64(int64(c))
			a0 += (v & laneMask) * c
			a1 += (v >> 8 & laneMask) * c
			a2 += (v >> 16 & laneMask) * c
			a3 += (v >> 24 & laneMask) * c
			off += stride
		}
		if clip {
			d := dst[i : i+8 : i+8]
			d[0], d[4] = unpack(a0)
			d[1], d[5] = unpack(a1)
			d[2], d[6] = unpack(a2)
			d[3], d[7] = unpack(a3)
			continue
		}
		v := a0>>precisionBits&laneMask | a1>>precisionBits&laneMask<<8 |
			a2>>precisionBits&laneMask<<16 | a3>>precisionBits&laneMask<<24
		binary.LittleEndian.PutUint64(dst[i:i+8], v)
	}
	for ; i < n; i++ {
		acc := int32(1 << (precisionBits - 1))
		off := i
		for _, c := range k {
			acc += int32(src[off]) * c
			off += stride
		}
		dst[i] = clip8(acc >> precisionBits)
	}
}

// horizontal resamples the rows of src into out, which holds src.h rows of the columns of the step's window. They are
// flipped from left to right as the step says, and from top to bottom if vflip is set.
func (w *Worker) horizontal(c *coeffs, src view, out []byte, s *step, vflip bool) {
	row := s.win.w * 3
	for y := 0; y < src.h; y += 2 {
		a := src.pix[y*src.stride:]
		b := a // the last row of an odd number is computed twice
		if y+1 < src.h {
			b = src.pix[(y+1)*src.stride:]
		}
		if len(b) <= src.w*3 {
			// The kernel reads four bytes a pixel; behind the last pixel of the image there may be none.
			pad := w.buffer(bufPad, 2*(src.w*3+1))
			copy(pad, a[:src.w*3])
			copy(pad[src.w*3+1:], b[:src.w*3])
			a, b = pad, pad[src.w*3+1:]
		}
		to := y
		next := row
		if vflip {
			to, next = src.h-1-y, -row
		}
		d0 := out[to*row:][:row]
		d1 := d0
		if y+1 < src.h {
			d1 = out[to*row+next:][:row]
		}
		horizontalPair(c, rowPair{a[:src.w*3+1], b[:src.w*3+1]}, rowPair{d0, d1}, s)
	}
}

// rowPair is two rows, one below the other.
type rowPair struct{ upper, lower []byte }

// horizontalPair resamples two rows at once: one lane is a pixel of the upper, the other the pixel of the lower below
// it.
func horizontalPair(c *coeffs, src, dst rowPair, s *step) {
	a, b, d0, d1 := src.upper, src.lower, dst.upper, dst.lower
	to, next := 0, 3
	if s.hflip {
		to, next = len(d0)-3, -3
	}
	for x := s.win.x; x < s.win.x+s.win.w; x++ {
		var r, g, bl uint64 = laneHalf, laneHalf, laneHalf
		off := int(c.bounds[2*x]) * 3
		n := int(c.bounds[2*x+1])
		for _, k := range c.k[x*c.ksize:][:n] {
			v := uint64(binary.LittleEndian.Uint32(a[off:off+4])) | uint64(binary.LittleEndian.Uint32(b[off:off+4]))<<32
			k := uint64(int64(k))
			r += (v & laneMask) * k
			g += (v >> 8 & laneMask) * k
			bl += (v >> 16 & laneMask) * k
			off += 3
		}
		p, q := d0[to:to+3:to+3], d1[to:to+3:to+3]
		if c.clip {
			p[0], q[0] = unpack(r)
			p[1], q[1] = unpack(g)
			p[2], q[2] = unpack(bl)
		} else {
			p[0], q[0] = uint8(r>>precisionBits), uint8(r>>(precisionBits+32))
			p[1], q[1] = uint8(g>>precisionBits), uint8(g>>(precisionBits+32))
			p[2], q[2] = uint8(bl>>precisionBits), uint8(bl>>(precisionBits+32))
		}
		to += next
	}
}

// nearest is ImagingScaleAffine: positions are summed up in steps, as there, because the sums decide ties.
func (w *Worker) nearest(s *step, src view, dst []byte) {
	w.tabX = nearestTable(w.tabX, src.w, s.rw)
	w.tabY = nearestTable(w.tabY, src.h, s.rh)
	row := s.win.w * 3
	for y := range s.win.h {
		to := y
		if s.vflip {
			to = s.win.h - 1 - y
		}
		d := dst[to*row:][:row]
		sy := int(w.tabY[s.win.y+y])
		if sy < 0 {
			clear(d)
			continue
		}
		line := src.pix[sy*src.stride:]
		for x := range s.win.w {
			sx := int(w.tabX[s.win.x+x])
			at := 3 * x
			if s.hflip {
				at = row - 3 - 3*x
			}
			p := d[at : at+3 : at+3]
			if sx < 0 {
				p[0], p[1], p[2] = 0, 0, 0
				continue
			}
			q := line[3*sx : 3*sx+3 : 3*sx+3]
			p[0], p[1], p[2] = q[0], q[1], q[2]
		}
	}
}

// nearestTable gives the source position of every output position, -1 when rounding carries it out of the image.
func nearestTable(t []int32, in, out int) []int32 {
	t = grow(t, out)
	scale := float64(in) / float64(out)
	at := float64(scale * 0.5)
	for i := range t {
		t[i] = int32(at)
		if t[i] >= int32(in) {
			t[i] = -1
		}
		at += scale
	}
	return t
}

// copyView writes v tightly packed, flipped as asked.
func copyView(v view, dst []byte, hflip, vflip bool) {
	row := v.w * 3
	for y := range v.h {
		to := y
		if vflip {
			to = v.h - 1 - y
		}
		d := dst[to*row:][:row]
		s := v.pix[y*v.stride:][:row]
		if !hflip {
			copy(d, s)
			continue
		}
		for i, j := 0, row-3; j >= 0; i, j = i+3, j-3 {
			p, q := d[i:i+3:i+3], s[j:j+3:j+3]
			p[0], p[1], p[2] = q[0], q[1], q[2]
		}
	}
}

func reverseRow(d []byte) {
	for i, j := 0, len(d)-3; i < j; i, j = i+3, j-3 {
		p, q := d[i:i+3:i+3], d[j:j+3:j+3]
		p[0], q[0] = q[0], p[0]
		p[1], q[1] = q[1], p[1]
		p[2], q[2] = q[2], p[2]
	}
}

// pad runs a stepPad: b lies over img and beyond it; what is beyond becomes 0.
func pad(b box, img Image, dst []byte) {
	row := b.w * 3
	x0, x1 := max(b.x, 0), min(b.x+b.w, img.W)
	for y := range b.h {
		d := dst[y*row:][:row]
		clear(d)
		if sy := b.y + y; sy >= 0 && sy < img.H && x0 < x1 {
			copy(d[(x0-b.x)*3:], img.Pix[(sy*img.W+x0)*3:(sy*img.W+x1)*3])
		}
	}
}
