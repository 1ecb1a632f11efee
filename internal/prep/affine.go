package prep

import (
	"math"
	"strconv"
)

// matrix maps a pixel of the result to the source, as Pillow's Image.transform takes it: x = m0 x' + m1 y' + m2 and
// y = m3 x' + m4 y' + m5.
type matrix [6]float64

// affineDraw is the parameters of torchvision's affine, angles in degrees.
type affineDraw struct {
	angle, tx, ty, scale, shearX, shearY float64
	cx, cy                               float64
}

// matrix is torchvision's _get_inverse_affine_matrix, operation by operation.
func (a affineDraw) matrix() matrix {
	rot, sx, sy := radians(a.angle), radians(a.shearX), radians(a.shearY)
	cosSY, tanSX := cosine(sy), tangent(sx)
	co, si := cosine(rot-sy), sine(rot-sy)
	m := matrix{
		0: float64(float64(-si*tanSX)/cosSY) + cosine(rot),
		1: -(float64(float64(-co*tanSX)/cosSY) - sine(rot)),
		3: -(si / cosSY),
		4: co / cosSY,
	}
	for i := range m {
		m[i] /= a.scale
	}
	m[2] += float64(m[0]*(-a.cx-a.tx)) + float64(m[1]*(-a.cy-a.ty))
	m[5] += float64(m[3]*(-a.cx-a.tx)) + float64(m[4]*(-a.cy-a.ty))
	m[2] += a.cx
	m[5] += a.cy
	return m
}

func (m *matrix) apply(x, y float64) (float64, float64) {
	return float64(m[0]*x) + float64(m[1]*y) + m[2], float64(m[3]*x) + float64(m[4]*y) + m[5]
}

func (m *matrix) identity() bool { return *m == matrix{1, 0, 0, 0, 1, 0} }

// round15 is Python's round(v, 15).
func round15(v float64) float64 {
	var buf [32]byte
	r, err := strconv.ParseFloat(string(strconv.AppendFloat(buf[:0], v, 'f', 15, 64)), 64)
	if err != nil {
		return v // not of a sine or cosine
	}
	return r
}

// rotation is what Pillow's Image.rotate does: quarter turns, which move pixels only, or a matrix and the size of the
// result.
type rotation struct {
	quarters int // counter-clockwise; the matrix is not set
	m        matrix
	w, h     int
}

// rotated gives the rotation of an image of width x height. center is nil for the middle of the image.
func rotated(angle float64, width, height int, expand bool, center *[2]float64) rotation {
	angle = math.Mod(angle, 360)
	if angle < 0 {
		angle += 360
	}
	if center == nil {
		switch {
		case angle == 0 || angle == 180:
			return rotation{quarters: int(angle) / 90, w: width, h: height}
		case (angle == 90 || angle == 270) && (expand || width == height):
			return rotation{quarters: int(angle) / 90, w: height, h: width}
		}
	}
	w, h := float64(width), float64(height)
	cx, cy := w/2, h/2
	if center != nil {
		cx, cy = center[0], center[1]
	}
	rad := -radians(angle)
	c, s := round15(cosine(rad)), round15(sine(rad))
	m := matrix{c, s, 0, round15(-sine(rad)), c, 0}
	m[2], m[5] = m.apply(-cx, -cy)
	m[2] += cx
	m[5] += cy
	if !expand {
		return rotation{m: m, w: width, h: height}
	}
	x0, y0 := m.apply(0, 0)
	x1, y1 := x0, y0
	for _, p := range [...][2]float64{{w, 0}, {w, h}, {0, h}} {
		x, y := m.apply(p[0], p[1])
		x0, x1, y0, y1 = min(x0, x), max(x1, x), min(y0, y), max(y1, y)
	}
	nw, nh := math.Ceil(x1)-math.Floor(x0), math.Ceil(y1)-math.Floor(y0)
	m[2], m[5] = m.apply(-(nw-w)/2, -(nh-h)/2)
	return rotation{m: m, w: int(nw), h: int(nh)}
}

// affine runs a stepAffine: what Image.transform does, in its three ways for the nearest pixel, which round unlike.
func (w *Worker) affine(s *step, img Image, dst []byte) {
	if w.affineC(s, img, dst) {
		return
	}
	fillWith(dst, s.fill)
	switch {
	case s.filter != nearestSample:
		smoothAffine(s, img, dst)
	case s.m[1] == 0 && s.m[3] == 0:
		w.scaleAffine(s, img, dst)
	case fitsFixed(&s.m, s.rw, s.rh):
		fixedAffine(s, img, dst)
	default:
		floatAffine(s, img, dst)
	}
}

func fillWith(dst []byte, c [3]uint8) {
	if c == [3]uint8{} {
		clear(dst)
		return
	}
	for i := 0; i+3 <= len(dst); i += 3 {
		dst[i], dst[i+1], dst[i+2] = c[0], c[1], c[2]
	}
}

// fitsFixed is Pillow's check that all coordinates fit 16.16 bits.
func fitsFixed(m *matrix, w, h int) bool {
	for _, p := range [...][2]int{{0, 0}, {w, h}, {0, h}, {w, 0}} {
		x := float64(float64(p[0])*m[0]) + float64(float64(p[1])*m[1]) + m[2]
		y := float64(float64(p[0])*m[3]) + float64(float64(p[1])*m[4]) + m[5]
		if !(math.Abs(x) < 32768 && math.Abs(y) < 32768) {
			return false
		}
	}
	return true
}

// fixed is Pillow's FIX: 16.16 bits, and what an x86 processor gives for what does not fit.
func fixed(v float64) uint32 {
	f := math.Floor(float64(v*65536) + 0.5)
	if !(f >= math.MinInt32 && f <= math.MaxInt32) {
		return 1 << 31
	}
	return uint32(int32(f))
}

func copyPixel(dst []byte, to int, src []byte, from int) {
	d, s := dst[to:to+3:to+3], src[from:from+3:from+3]
	d[0], d[1], d[2] = s[0], s[1], s[2]
}

// fixedSteps is a matrix in 16.16 bits, with the middle of the first pixel in the shifts.
func fixedSteps(m *matrix) (f [6]uint32) {
	for i := range f {
		f[i] = fixed(m[i])
	}
	f[2] = fixed(m[2] + float64(m[0]*0.5) + float64(m[1]*0.5))
	f[5] = fixed(m[5] + float64(m[3]*0.5) + float64(m[4]*0.5))
	return f
}

// fixedAffine sums up coordinates in 32 bits, which wrap.
func fixedAffine(s *step, img Image, dst []byte) {
	f := fixedSteps(&s.m)
	for y := range s.rh {
		xx, yy := f[2], f[5]
		for x := range s.rw {
			xin, yin := int(int32(xx)>>16), int(int32(yy)>>16)
			if xin >= 0 && xin < img.W && yin >= 0 && yin < img.H {
				copyPixel(dst, 3*(y*s.rw+x), img.Pix, 3*(yin*img.W+xin))
			}
			xx += f[0]
			yy += f[3]
		}
		f[2] += f[1]
		f[5] += f[4]
	}
}

// floatAffine is for images too large for 16.16 bits.
func floatAffine(s *step, img Image, dst []byte) {
	xo := s.m[2] + float64(s.m[1]*0.5) + float64(s.m[0]*0.5)
	yo := s.m[5] + float64(s.m[4]*0.5) + float64(s.m[3]*0.5)
	fw, fh := float64(img.W), float64(img.H)
	for y := range s.rh {
		xx, yy := xo, yo
		for x := range s.rw {
			if xx >= 0 && xx < fw && yy >= 0 && yy < fh {
				copyPixel(dst, 3*(y*s.rw+x), img.Pix, 3*(int(yy)*img.W+int(xx)))
			}
			xx += s.m[0]
			yy += s.m[3]
		}
		xo += s.m[1]
		yo += s.m[4]
	}
}

// scaleAffine is for matrices without rotation and shear. Positions are summed up, as in Pillow.
func (w *Worker) scaleAffine(s *step, img Image, dst []byte) {
	w.tabX = shiftTable(w.tabX, s.m[2]+float64(s.m[0]*0.5), s.m[0], img.W, s.rw)
	w.tabY = shiftTable(w.tabY, s.m[5]+float64(s.m[4]*0.5), s.m[4], img.H, s.rh)
	first, end := 0, s.rw
	for first < end && w.tabX[first] < 0 {
		first++
	}
	for end > first && w.tabX[end-1] < 0 {
		end--
	}
	for y := range s.rh {
		sy := int(w.tabY[y])
		if sy < 0 || first == end {
			continue
		}
		row := img.Pix[3*sy*img.W:][:3*img.W]
		if from := int(w.tabX[first]); s.m[0] == 1 { // a shift, whose rounding does not jump
			if int(w.tabX[end-1])-from == end-1-first {
				copy(dst[3*(y*s.rw+first):3*(y*s.rw+end)], row[3*from:])
				continue
			}
		}
		for x := first; x < end; x++ {
			if from := int(w.tabX[x]); from >= 0 {
				copyPixel(dst, 3*(y*s.rw+x), row, 3*from)
			}
		}
	}
}

// shiftTable gives the source position of every output position, -1 outside of the image.
func shiftTable(t []int32, at, next float64, in, out int) []int32 {
	t = grow(t, out)
	for i := range t {
		t[i] = -1
		if at >= 0 && at < float64(in) {
			t[i] = int32(at)
		}
		at += next
	}
	return t
}

// smoothAffine interpolates, in float64.
func smoothAffine(s *step, img Image, dst []byte) {
	fw, fh := float64(img.W), float64(img.H)
	for y := range s.rh {
		for x := range s.rw {
			xin, yin := s.m.apply(float64(x)+0.5, float64(y)+0.5)
			if !(xin >= 0 && xin < fw && yin >= 0 && yin < fh) {
				continue
			}
			d := dst[3*(y*s.rw+x):][:3:3]
			if s.filter == bicubic {
				cubicAt(img, xin-0.5, yin-0.5, d)
			} else {
				linearAt(img, xin-0.5, yin-0.5, d)
			}
		}
	}
}

func clampTo(i, n int) int { return min(max(i, 0), n-1) }

func linearAt(img Image, xin, yin float64, d []byte) {
	x, y := math.Floor(xin), math.Floor(yin)
	dx, dy := xin-x, yin-y
	x0, x1 := 3*clampTo(int(x), img.W), 3*clampTo(int(x)+1, img.W)
	// Behind the last row Pillow takes the row before, and in front of the first one the first: both are clamping.
	up, down := img.Pix[3*img.W*clampTo(int(y), img.H):], img.Pix[3*img.W*clampTo(int(y)+1, img.H):]
	mix := func(a, b, t float64) float64 { return a + float64((b-a)*t) }
	for c := range d {
		v1 := mix(float64(up[x0+c]), float64(up[x1+c]), dx)
		v2 := mix(float64(down[x0+c]), float64(down[x1+c]), dx)
		d[c] = uint8(mix(v1, v2, dy))
	}
}

func cubicAt(img Image, xin, yin float64, d []byte) {
	x, y := math.Floor(xin), math.Floor(yin)
	dx, dy := xin-x, yin-y
	var at [4]int
	for i := range at {
		at[i] = 3 * clampTo(int(x)-1+i, img.W)
	}
	for c := range d {
		var v [4]float64
		for i := range v {
			row := img.Pix[3*img.W*clampTo(int(y)-1+i, img.H):]
			v[i] = cubic(float64(row[at[0]+c]), float64(row[at[1]+c]), float64(row[at[2]+c]), float64(row[at[3]+c]), dx)
		}
		d[c] = uint8(min(max(cubic(v[0], v[1], v[2], v[3], dy), 0), 255))
	}
}

// cubic is Pillow's BICUBIC of four values.
func cubic(v1, v2, v3, v4, d float64) float64 {
	p2 := -v1 + v3
	p3 := float64(2*(v1-v2)) + v3 - v4
	p4 := -v1 + v2 - v3 + v4
	return v2 + float64(d*(p2+float64(d*(p3+float64(d*p4)))))
}

// quarterTurn runs a stepTurn: a quarter turn counter-clockwise, or clockwise for three.
func quarterTurn(quarters int, img Image, dst []byte) {
	for y := range img.H {
		for x := range img.W {
			to := (img.W-1-x)*img.H + y
			if quarters == 3 {
				to = x*img.H + img.H - 1 - y
			}
			copyPixel(dst, 3*to, img.Pix, 3*(y*img.W+x))
		}
	}
}
