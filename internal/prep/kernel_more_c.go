//go:build cgo && turbo

package prep

/*
#cgo LDFLAGS: -lm
#cgo noescape larder_affine_run
#cgo nocallback larder_affine_run
#cgo noescape larder_blur_run
#cgo nocallback larder_blur_run
#cgo noescape larder_sharpen_run
#cgo nocallback larder_sharpen_run
#include "kernel.h"
*/
import "C"

import "unsafe"

// kernelMore is what a worker hands to C for the steps below.
type kernelMore struct {
	affine C.larder_affine
	blur   C.larder_blur
}

func floats(s []float32) *C.float { return (*C.float)(unsafe.Pointer(unsafe.SliceData(s))) }

// affineC runs a stepAffine in C. It returns false, and has done nothing, where rows are copied, which Go does as fast,
// and for images too large for 16.16 bits.
func (w *Worker) affineC(s *step, img Image, dst []byte) bool {
	if w.level == 0 {
		return false
	}
	a := &w.kernel.more.affine
	*a = C.larder_affine{
		w: C.int32_t(img.W), h: C.int32_t(img.H), rw: C.int32_t(s.rw), rh: C.int32_t(s.rh), level: C.int32_t(w.level),
	}
	switch s.filter {
	case bilinear:
		a.kind = C.LARDER_LINEAR
	case bicubic:
		a.kind = C.LARDER_CUBIC
	case nearestSample:
		if s.m[1] == 0 && s.m[3] == 0 || !fitsFixed(&s.m, s.rw, s.rh) {
			return false
		}
		a.kind = C.LARDER_FIXED
		for i, v := range fixedSteps(&s.m) {
			a.fixed[i] = C.int32_t(v)
		}
	}
	for i, v := range s.m {
		a.m[i] = C.double(v)
	}
	for i, v := range s.fill {
		a.fill[i] = C.uint8_t(v)
	}
	C.larder_affine_run(a, octets(img.Pix), octets(dst))
	return true
}

// blurColumns is how many columns are blurred in one go, so that the rows of floats stay small.
const blurColumns = 1024

// blurC runs a stepBlur in C.
func (w *Worker) blurC(s *step, k []float32, img Image, dst []byte) bool {
	if w.level == 0 {
		return false
	}
	kx, ky := s.taps[0], s.taps[1]
	stride := (min(img.W, blurColumns) + kx + 64 + 15) &^ 15
	b := &w.kernel.more.blur
	*b = C.larder_blur{stride: C.int64_t(stride), w: C.int32_t(img.W), h: C.int32_t(img.H), kx: C.int32_t(kx),
		ky: C.int32_t(ky), level: C.int32_t(w.level)}
	w.tabX = grow(w.tabX, img.W+kx+img.H+ky-2)
	columns, rows := w.tabX[:img.W+kx-1], w.tabX[img.W+kx-1:]
	for i := range columns {
		columns[i] = int32(reflected(i-kx/2, img.W))
	}
	for i := range rows {
		rows[i] = int32(reflected(i-ky/2, img.H))
	}
	scratch := w.buffer(bufRows, 3*stride*(ky+1)*4)
	rowsOfFloats := (*C.float)(unsafe.Pointer(octets(scratch)))
	for x := 0; x < img.W; x += blurColumns {
		b.x, b.cols = C.int32_t(x), C.int32_t(min(blurColumns, img.W-x))
		C.larder_blur_run(b, floats(k), ints(w.tabX), octets(img.Pix), rowsOfFloats, octets(dst))
	}
	return true
}

// sharpenC runs a stepSharpness in C.
func (w *Worker) sharpenC(s *step, img Image, dst []byte) bool {
	if w.level == 0 {
		return false
	}
	C.larder_sharpen_run(C.int(w.level), octets(img.Pix), C.int64_t(img.W), C.int64_t(img.H), C.float(s.f), octets(dst))
	return true
}
