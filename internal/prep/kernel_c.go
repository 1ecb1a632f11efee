//go:build cgo && turbo

package prep

/*
#cgo CFLAGS: -O3 -std=c11
#cgo noescape larder_geo_run
#cgo nocallback larder_geo_run
#cgo noescape larder_color_run
#cgo nocallback larder_color_run
#cgo noescape larder_planes_run
#cgo nocallback larder_planes_run
#cgo noescape larder_finish_run
#cgo nocallback larder_finish_run
#include "kernel.h"
*/
import "C"

import (
	"math"
	"unsafe"
)

// bestLevel is the best instruction set of this processor that kernel.c knows; 0 would be the Go twin.
var bestLevel = int(C.larder_cpu_level())

// planesLevel is the least level at which images may be planar. From there on augmenting one takes 0.9 to 1.03 of the
// time that it takes from RGB. The portable code takes 1.35, more than the memory is worth.
const planesLevel = C.LARDER_SSE4

// KernelName says which code resizes and adjusts colours: the same bits come from all of them.
func KernelName() string {
	return [...]string{"go", "c", "c (sse4.1)", "c (avx2)", "c (avx512)"}[bestLevel]
}

// kernel is what a worker hands to C. Nothing in it points anywhere, so that a call pins and copies nothing.
type kernel struct {
	geo    C.larder_geo
	planes C.larder_planes
	color  [4 * maxOps]C.larder_color
	more   kernelMore
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

func ints(s []int32) *C.int32_t  { return (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(s))) }
func octets(s []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(s))) }

// geoC runs a stepGeo in C and, if r is not nil, finishes for it. It returns false, and has done nothing, for what Go
// does (nearest) or does as fast (a plain crop).
func (w *Worker) geoC(s *step, img Image, dst []byte, r *Recipe) bool {
	same := s.rw == s.src.w && s.rh == s.src.h
	if w.level == 0 || s.filter == nearestSample && !same || r == nil && same && !s.hflip {
		return false
	}
	src := img.view(s.src)
	g := &w.kernel.geo
	*g = C.larder_geo{
		src_len: C.int64_t(len(src.pix)), src_stride: C.int64_t(src.stride), src_w: C.int32_t(src.w),
		skip_x: C.int32_t(s.skipX), skip_y: C.int32_t(s.skipY), win_x: C.int32_t(s.win.x), win_y: C.int32_t(s.win.y),
		win_w: C.int32_t(s.win.w), win_h: C.int32_t(s.win.h),
		first: C.int32_t(s.win.y), rows: C.int32_t(s.win.h), level: C.int32_t(w.level), out: C.LARDER_U8_HWC,
	}
	g.mid_stride = C.int64_t(4*s.win.w + 64)
	var h, v *coeffs
	ring, reach := 4, 3*(s.win.x+s.win.w-s.skipX)+16
	if s.rw != src.w {
		h = w.horiz.get(src.w, s.rw, s.filter)
		h.pack()
		reach = h.reach - 3*s.skipX
		g.h_groups, g.h_reach = C.int32_t(h.groups), C.int32_t(reach)
	}
	if s.rh != src.h {
		v = w.vert.get(src.h, s.rh, s.filter)
		first, end := v.span(s.win.y, s.win.h)
		g.first, g.rows, g.v_taps = C.int32_t(first), C.int32_t(end-first), C.int32_t(v.ksize)
		ring = min(v.ksize+3, end-first)
	}
	g.ring = C.int32_t(ring)
	if s.hflip {
		g.hflip = 1
	}
	if s.vflip {
		g.vflip = 1
	}
	var lut *C.float
	if r != nil {
		lut = r.outputC(g)
		if len(dst) >= streamBytes {
			g.stream = 1
		}
	}
	scratch := w.buffer(bufRows, (ring+1)*int(g.mid_stride)+4*reach)
	var hb, hk, vb, vk *C.int32_t
	if h != nil {
		hb, hk = ints(h.bounds), ints(h.packed)
	}
	if v != nil {
		vb, vk = ints(v.bounds), ints(v.k)
	}
	C.larder_geo_run(g, octets(src.pix), hb, hk, vb, vk, lut, octets(scratch), octets(dst))
	return true
}

// outputC says in g how r's output is written.
func (r *Recipe) outputC(g *C.larder_geo) *C.float {
	floats, hwc := r.lut != nil, r.out.Layout == HWC
	switch {
	case !floats && r.channels == 1:
		g.out = C.LARDER_U8_ONE
	case r.out.Ragged || !floats && hwc:
		g.out = C.LARDER_U8_HWC
	case !floats:
		g.out = C.LARDER_U8_CHW
	case r.channels == 1:
		g.out = C.LARDER_F32_ONE
	case hwc:
		g.out = C.LARDER_F32_HWC
	default:
		g.out = C.LARDER_F32_CHW
	}
	if !floats {
		return nil
	}
	if r.affine.ok {
		g.affine = 1
		for c := range 3 {
			g.mean[c], g.std[c], g.inv[c] = C.float(r.affine.mean[c]), C.float(r.affine.std[c]), C.float(1/r.affine.std[c])
		}
		if !r.affine.product {
			g.correction = 1.0 / 255
		}
	}
	return (*C.float)(unsafe.Pointer(&r.lut[0][0]))
}

// finishC is finish in C.
func (w *Worker) finishC(r *Recipe, img Image, dst []byte) bool {
	if w.level > 0 && r.lut == nil && r.channels == 3 && !r.out.Ragged {
		stream, out := C.int(0), C.int(C.LARDER_U8_CHW)
		if len(dst) >= streamBytes {
			stream = 1
		}
		if r.out.Layout == HWC {
			out = C.LARDER_U8_HWC
		}
		C.larder_finish_run(C.int(w.level), out, octets(img.Pix), C.int64_t(img.W*img.H), octets(dst), stream)
		return true
	}
	all := box{w: img.W, h: img.H}
	s := step{kind: stepGeo, src: all, rw: img.W, rh: img.H, win: all}
	return w.geoC(&s, img, dst, r)
}

// colorC runs colour steps in C, in place.
func (w *Worker) colorC(steps []step, pix []byte) bool {
	if w.level == 0 || len(steps) > len(w.kernel.color) {
		return false
	}
	for i := range steps {
		c := C.larder_color{f: C.float(steps[i].f), hue: C.int32_t(steps[i].hue)}
		switch steps[i].kind {
		case stepBrightness:
			c.kind = C.LARDER_BRIGHTNESS
		case stepContrast:
			c.kind = C.LARDER_CONTRAST
		case stepSaturation:
			c.kind = C.LARDER_SATURATION
		case stepHue:
			c.kind = C.LARDER_HUE
		case stepGray:
			c.kind = C.LARDER_GRAY
		default:
			return false
		}
		w.kernel.color[i] = c
	}
	C.larder_color_run(C.int(w.level), octets(pix), C.int64_t(len(pix)/3), &w.kernel.color[0], C.int(len(steps)))
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
	p := &w.kernel.planes
	*p = C.larder_planes{
		kind: C.int32_t(img.Planes), w: C.int32_t(img.W), h: C.int32_t(img.H), level: C.int32_t(max(w.level, 1)),
		x: C.int32_t(part.x), y: C.int32_t(part.y), cols: C.int32_t(part.w), rows: C.int32_t(part.h),
	}
	scratch := w.buffer(bufRows, 2*(part.w+planesSlack))
	C.larder_planes_run(p, octets(img.Pix), octets(scratch), octets(dst))
}
