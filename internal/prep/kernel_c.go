//go:build cgo && turbo

package prep

import (
	"math"

	"larder/internal/prep/kernel"
)

// bestLevel is the best instruction set of this processor that kernel.c knows; 0 would be the Go twin.
var bestLevel = kernel.BestLevel()

// planesLevel is the least level at which images may be planar. From there on augmenting one takes 0.9 to 1.03 of the
// time that it takes from RGB. The portable code takes 1.35, more than the memory is worth.
const planesLevel = kernel.SSE4

// KernelName says which code resizes and adjusts colours: the same bits come from all of them.
func KernelName() string {
	return [...]string{"go", "c", "c (sse4.1)", "c (avx2)", "c (avx512)"}[bestLevel]
}

// kernels is what a worker hands to C.
type kernels struct {
	geo    kernel.Geo
	planes kernel.Planes
	color  [4 * maxOps]kernel.Color
	affine kernel.Affine
	blur   kernel.Blur
}

// pack lays out the weights for the horizontal pass in C: groups of four a column, zeros behind the last weight.
func (c *coeffs) pack() {
	if c.groups > 0 {
		return
	}
	most, reach := int32(1), 0
	for x := range c.out {
		most = max(most, c.bounds[2*x+1])
	}
	c.groups = int(most+3) / 4
	c.packed = grow(c.packed, c.out*c.groups*4)
	for x := range c.out {
		n := int(c.bounds[2*x+1])
		k := c.k[x*c.ksize:][:n]
		p := c.packed[x*c.groups*4:][:c.groups*4]
		clear(p)
		for i, w := range k {
			// 15 low bits and the rest, so that both fit products of int16.
			at, shift := i/4*4+i%4/2, 16*(i%2)
			p[at] |= (w & 0x7fff) << shift
			p[at+2] |= int32(uint32(uint16(w>>15)) << shift)
		}
		reach = max(reach, 3*int(c.bounds[2*x]))
	}
	c.reach = reach + 12*(c.groups-1) + 16
}

// geoC runs a stepGeo in C and, if r is not nil, finishes for it. It returns false, and has done nothing, for what Go
// does (nearest) or does as fast (a plain crop).
func (w *Worker) geoC(s *step, img Image, dst []byte, r *Recipe) bool {
	same := s.rw == s.src.w && s.rh == s.src.h
	if w.level == 0 || s.filter == nearestSample && !same || r == nil && same && !s.hflip {
		return false
	}
	src := img.view(s.src)
	g := &w.kernels.geo
	*g = kernel.Geo{
		SrcLen: int64(len(src.pix)), SrcStride: int64(src.stride), SrcW: int32(src.w),
		Skip:  [2]int32{int32(s.skipX), int32(s.skipY)},
		Win:   [4]int32{int32(s.win.x), int32(s.win.y), int32(s.win.w), int32(s.win.h)},
		First: int32(s.win.y), Rows: int32(s.win.h),
		Output: kernel.Output{Level: int32(w.level), Out: kernel.U8HWC},
	}
	g.MidStride = int64(4*s.win.w + 64)
	var h, v *coeffs
	ring, reach := 4, 3*(s.win.x+s.win.w-s.skipX)+16
	if s.rw != src.w {
		h = w.horiz.get(src.w, s.rw, s.filter)
		h.pack()
		reach = h.reach - 3*s.skipX
		g.HGroups, g.HReach = int32(h.groups), int32(reach)
	}
	if s.rh != src.h {
		v = w.vert.get(src.h, s.rh, s.filter)
		first, end := v.span(s.win.y, s.win.h)
		g.First, g.Rows, g.VTaps = int32(first), int32(end-first), int32(v.ksize)
		ring = min(v.ksize+3, end-first)
	}
	g.Ring = int32(ring)
	if s.hflip {
		g.Flip[0] = 1
	}
	if s.vflip {
		g.Flip[1] = 1
	}
	var lut []float32
	if r != nil {
		lut = r.outputC(g)
		if len(dst) >= streamBytes {
			g.Stream = 1
		}
	}
	scratch := w.buffer(bufRows, (ring+1)*int(g.MidStride)+4*reach)
	var by [2]kernel.Weights
	if h != nil {
		by[0] = kernel.Weights{Bounds: h.bounds, Values: h.packed}
	}
	if v != nil {
		by[1] = kernel.Weights{Bounds: v.bounds, Values: v.k}
	}
	g.Run(src.pix, scratch, dst, by, lut)
	return true
}

// outputC says in g how r's output is written.
func (r *Recipe) outputC(g *kernel.Geo) []float32 {
	floats, hwc := r.lut != nil, r.out.Layout == HWC
	switch {
	case !floats && r.channels == 1:
		g.Out = kernel.U8One
	case r.out.Ragged || !floats && hwc:
		g.Out = kernel.U8HWC
	case !floats:
		g.Out = kernel.U8CHW
	case r.channels == 1:
		g.Out = kernel.F32One
	case hwc:
		g.Out = kernel.F32HWC
	default:
		g.Out = kernel.F32CHW
	}
	if !floats {
		return nil
	}
	if r.affine.ok {
		g.Affine = 1
		for c := range 3 {
			g.Mean[c], g.Std[c], g.Inv[c] = r.affine.mean[c], r.affine.std[c], 1/r.affine.std[c]
		}
		if !r.affine.product {
			g.Correction = 1.0 / 255
		}
	}
	return r.lut[0][:] // the first of 3 x 256
}

// finishC is finish in C.
func (w *Worker) finishC(r *Recipe, img Image, dst []byte) bool {
	if w.level > 0 && r.lut == nil && r.channels == 3 && !r.out.Ragged {
		out := kernel.U8CHW
		if r.out.Layout == HWC {
			out = kernel.U8HWC
		}
		kernel.Finish(w.level, out, img.Pix[:3*img.W*img.H], dst, len(dst) >= streamBytes)
		return true
	}
	all := box{w: img.W, h: img.H}
	s := step{kind: stepGeo, src: all, rw: img.W, rh: img.H, win: all}
	return w.geoC(&s, img, dst, r)
}

// colorC runs colour steps in C, in place.
func (w *Worker) colorC(steps []step, pix []byte) bool {
	if w.level == 0 || len(steps) > len(w.kernels.color) {
		return false
	}
	for i := range steps {
		c := kernel.Color{F: steps[i].f, Hue: int32(steps[i].hue)}
		switch steps[i].kind {
		case stepBrightness:
			c.Kind = kernel.Brightness
		case stepContrast:
			c.Kind = kernel.Contrast
		case stepSaturation:
			c.Kind = kernel.Saturation
		case stepHue:
			c.Kind = kernel.Hue
		case stepGray:
			c.Kind = kernel.Gray
		default:
			return false
		}
		w.kernels.color[i] = c
	}
	kernel.RunColors(w.level, pix, w.kernels.color[:len(steps)])
	return true
}

// tryAffine decides whether this processor may normalise by arithmetic: only if every value comes out as in the table.
func (r *Recipe) tryAffine(by affine) {
	by.ok = true
	r.affine = by
	var pix [256 * 3]byte
	for v := range 256 {
		pix[3*v], pix[3*v+1], pix[3*v+2] = byte(v), byte(v), byte(v)
	}
	var out [3 * 256 * 4]byte
	all := Recipe{lut: r.lut, channels: 3, out: Output{DType: Float32, Layout: CHW}, affine: r.affine}
	w := NewWorker(Limits{})
	w.finishC(&all, newImage(pix[:], 256, 1), out[:])
	for c := range 3 {
		for v := range 256 {
			if floatAt(out[4*(256*c+v):]) != math.Float32bits(r.lut[c][v]) {
				r.affine.ok = false
				return
			}
		}
	}
}

// planesC converts a part of a planar image; x of part is even where chroma has half of the width. dst has room for
// planesSlack bytes more than the part.
func (w *Worker) planesC(img Image, part box, dst []byte) {
	p := &w.kernels.planes
	*p = kernel.Planes{
		Kind: int32(img.Planes), W: int32(img.W), H: int32(img.H), Level: int32(max(w.level, 1)),
		X: int32(part.x), Y: int32(part.y), Cols: int32(part.w), Rows: int32(part.h),
	}
	p.Run(img.Pix, w.buffer(bufRows, 2*(part.w+planesSlack)), dst)
}
