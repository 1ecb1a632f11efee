package prep

import "math"

// Steps that look at the neighbours of a pixel: GaussianBlur, which torchvision computes with torch's convolution, and
// sharpness, which is a filter of Pillow's.

// maxTaps bounds the sides of GaussianBlur's kernel.
const maxTaps = 255

// expf32 is the exponential function of torch's vectors on x86 (Sleef's expf, error below 1 ulp), which makes the
// weights.
func expf32(d float32) float32 {
	if d < -104 {
		return 0
	}
	q := math.RoundToEven(float64(float32(d * 1.442695040888963407359924681001892137426645954152985934135449406931)))
	s := fma32(float32(q), -0.693145751953125, d)
	s = fma32(float32(q), -1.428606765330187045e-06, s)
	u := float32(0.000198527617612853646278381)
	for _, c := range [...]float32{0.00139304355252534151077271, 0.00833336077630519866943359,
		0.0416664853692054748535156, 0.166666671633720397949219, 0.5} {
		u = fma32(u, s, c)
	}
	u = 1 + fma32(float32(s*s), u, s)
	return float32(math.Ldexp(float64(u), int(q)))
}

// sum32 adds up as torch does: eight columns of four rows in turn where there are so many values, else four values in
// turn.
func sum32(v []float32) float32 {
	lanes := 8
	if len(v) < 8 {
		lanes = 1
	}
	rows := len(v) / lanes
	var sums [4][8]float32
	for i := range rows {
		to := i % 4
		if i >= rows&^3 {
			to = 0
		}
		for k := range lanes {
			sums[to][k] += v[i*lanes+k]
		}
	}
	total := float32(0)
	for _, x := range v[rows*lanes:] {
		total += x
	}
	for k := range lanes {
		total += sums[0][k] + sums[1][k] + sums[2][k] + sums[3][k]
	}
	return total
}

// gaussWeights is torchvision's _get_gaussian_kernel1d.
func gaussWeights(dst []float32, sigma float64) {
	half := len(dst) / 2
	for i := range dst {
		x := float32(i-half) / float32(sigma)
		dst[i] = expf32(-0.5 * float32(x*x))
	}
	sum := sum32(dst)
	for i := range dst {
		dst[i] /= sum
	}
}

// reflected is the pixel that padding by reflection puts at i, the edge not repeated.
func reflected(i, n int) int {
	if n == 1 {
		return 0
	}
	period := 2 * (n - 1)
	i %= period
	if i < 0 {
		i += period
	}
	return min(i, period-i)
}

// weights returns the two-dimensional kernel of a stepBlur, row by row.
func (w *Worker) weights(s *step) []float32 {
	kx, ky := s.taps[0], s.taps[1]
	w.floats = grow(w.floats, kx*ky+kx+ky)
	k, x, y := w.floats[:kx*ky], w.floats[kx*ky:][:kx], w.floats[kx*ky+kx:]
	gaussWeights(x, s.sigma)
	gaussWeights(y, s.sigma)
	for i, a := range y {
		for j, b := range x {
			k[i*kx+j] = a * b
		}
	}
	return k
}

// blur runs a stepBlur: a sum of fused products in the order of the kernel, rounded half to even.
func (w *Worker) blur(s *step, img Image, dst []byte) {
	k := w.weights(s)
	if w.blurC(s, k, img, dst) {
		return
	}
	kx, ky := s.taps[0], s.taps[1]
	for y := range img.H {
		for x := range img.W {
			var acc [3]float32
			for i := range ky {
				row := img.Pix[3*img.W*reflected(y+i-ky/2, img.H):]
				for j, f := range k[i*kx : (i+1)*kx] {
					p := row[3*reflected(x+j-kx/2, img.W):][:3:3]
					for c := range acc {
						acc[c] = fma32(float32(p[c]), f, acc[c])
					}
				}
			}
			for c, v := range acc {
				dst[3*(y*img.W+x)+c] = uint8(min(math.RoundToEven(float64(v)), 255))
			}
		}
	}
}

// smoothWeights are those of Pillow's ImageFilter.SMOOTH: ones around a five, divided by thirteen.
const smoothSide, smoothMiddle = float32(1) / 13, float32(5) / 13

// sharpen runs a stepSharpness: away from the smoothed image, or towards it. The border is not smoothed.
func (w *Worker) sharpen(s *step, img Image, dst []byte) {
	copy(dst, img.Pix[:len(dst)])
	if img.W < 3 || img.H < 3 || w.sharpenC(s, img, dst) {
		return
	}
	row := 3 * img.W
	for y := 1; y < img.H-1; y++ {
		up, mid, down := img.Pix[(y-1)*row:][:row], img.Pix[y*row:][:row], img.Pix[(y+1)*row:][:row]
		d := dst[y*row:][:row]
		for i := 3; i < row-3; i++ {
			v := 0.5 + three(down, i, smoothSide)
			v += three(mid, i, smoothMiddle)
			v += three(up, i, smoothSide)
			d[i] = blend(uint8(min(v, 255)), mid[i], s.f)
		}
	}
}

// three sums up a row of the filter.
func three(row []byte, i int, middle float32) float32 {
	a, b, c := float32(row[i-3]), float32(row[i]), float32(row[i+3])
	return float32(a*smoothSide) + float32(b*middle) + float32(c*smoothSide)
}
