//go:build cgo && turbo

package prep

import "larder/internal/prep/kernel"

// affineC runs a stepAffine in C. It returns false, and has done nothing, where rows are copied, which Go does as fast,
// and for images too large for 16.16 bits.
func (w *Worker) affineC(s *step, img Image, dst []byte) bool {
	if w.level == 0 {
		return false
	}
	a := &w.kernels.affine
	*a = kernel.Affine{W: int32(img.W), H: int32(img.H), RW: int32(s.rw), RH: int32(s.rh), Level: int32(w.level)}
	switch s.filter {
	case bilinear:
		a.Kind = kernel.Linear
	case bicubic:
		a.Kind = kernel.Cubic
	case nearestSample:
		if s.m[1] == 0 && s.m[3] == 0 || !fitsFixed(&s.m, s.rw, s.rh) {
			return false
		}
		a.Kind = kernel.Fixed
		for i, v := range fixedSteps(&s.m) {
			a.Fixed[i] = int32(v)
		}
	}
	a.M = s.m
	copy(a.Fill[:], s.fill[:])
	a.Run(img.Pix, dst)
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
	b := &w.kernels.blur
	*b = kernel.Blur{Stride: int64(stride), W: int32(img.W), H: int32(img.H), KX: int32(kx), KY: int32(ky),
		Level: int32(w.level)}
	w.tabX = grow(w.tabX, img.W+kx+img.H+ky-2)
	columns, rows := w.tabX[:img.W+kx-1], w.tabX[img.W+kx-1:]
	for i := range columns {
		columns[i] = int32(reflected(i-kx/2, img.W))
	}
	for i := range rows {
		rows[i] = int32(reflected(i-ky/2, img.H))
	}
	scratch := w.buffer(bufRows, 3*stride*(ky+1)*4)
	for x := 0; x < img.W; x += blurColumns {
		b.X, b.Cols = int32(x), int32(min(blurColumns, img.W-x))
		b.Run(k, w.tabX, img.Pix, scratch, dst)
	}
	return true
}

// sharpenC runs a stepSharpness in C.
func (w *Worker) sharpenC(s *step, img Image, dst []byte) bool {
	if w.level == 0 {
		return false
	}
	kernel.Sharpen{Level: w.level, W: img.W, H: img.H, F: s.f}.Run(img.Pix, dst)
	return true
}
