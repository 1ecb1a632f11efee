package prep

import "math"

// Colour ops work in place on tightly packed RGB, as Pillow's ImageEnhance and Convert do on "RGB" images.

// luma is Pillow's conversion of RGB to L: ITU-R 601-2 in 16-bit fixed point.
func luma(r, g, b uint8) uint8 {
	return uint8((uint32(r)*19595 + uint32(g)*38470 + uint32(b)*7471 + 0x8000) >> 16)
}

// blend is ImagingBlend for one value: from a (the degenerate image) towards b, in float32; inside 0..1 the result is
// truncated, outside clipped too.
func blend(a, b uint8, f float32) uint8 {
	v := float32(a) + float32(f*float32(int(b)-int(a)))
	if v <= 0 {
		return 0
	}
	if v >= 255 {
		return 255
	}
	return uint8(v)
}

// applyTable replaces every value.
func applyTable(pix []byte, t *[256]uint8) {
	for i, v := range pix {
		pix[i] = t[v]
	}
}

// blendTowards blends between one grey value and the image: brightness (0) and contrast (the mean).
func blendTowards(pix []byte, from uint8, f float32) {
	var t [256]uint8
	for v := range t {
		t[v] = blend(from, uint8(v), f)
	}
	applyTable(pix, &t)
}

// meanLuma is int(mean of L + 0.5), the grey that ImageEnhance.Contrast blends with.
func meanLuma(pix []byte) uint8 {
	var sum uint64
	for i := 0; i+3 <= len(pix); i += 3 {
		p := pix[i : i+3 : i+3]
		sum += uint64(luma(p[0], p[1], p[2]))
	}
	return uint8(float64(sum)/float64(len(pix)/3) + 0.5)
}

func saturate(pix []byte, f float32) {
	for i := 0; i+3 <= len(pix); i += 3 {
		p := pix[i : i+3 : i+3]
		l := luma(p[0], p[1], p[2])
		p[0], p[1], p[2] = blend(l, p[0], f), blend(l, p[1], f), blend(l, p[2], f)
	}
}

func gray(pix []byte) {
	for i := 0; i+3 <= len(pix); i += 3 {
		p := pix[i : i+3 : i+3]
		l := luma(p[0], p[1], p[2])
		p[0], p[1], p[2] = l, l, l
	}
}

// shiftHue goes through Pillow's uint8 HSV and back, adding shift to the hue with wrap-around.
func shiftHue(pix []byte, shift uint8) {
	for i := 0; i+3 <= len(pix); i += 3 {
		p := pix[i : i+3 : i+3]
		h, s, v := rgbToHSV(p[0], p[1], p[2])
		p[0], p[1], p[2] = hsvToRGB(h+shift, s, v)
	}
}

// rgbToHSV is rgb2hsv_row of Pillow's Convert.c, with its mixture of float32 and float64.
func rgbToHSV(r, g, b uint8) (h, s, v uint8) {
	maxc, minc := max(r, g, b), min(r, g, b)
	if maxc == minc {
		return 0, 0, maxc
	}
	cr := float32(maxc - minc)
	sat := cr / float32(maxc)
	rc, gc, bc := float32(maxc-r)/cr, float32(maxc-g)/cr, float32(maxc-b)/cr
	var hue float32
	switch maxc {
	case r:
		hue = bc - gc
	case g:
		hue = float32(2.0 + float64(rc) - float64(bc))
	default:
		hue = float32(4.0 + float64(gc) - float64(rc))
	}
	// hue/6+1 lies in 0.8..1.9, where fmod(x, 1) is a subtraction without rounding.
	x := float64(hue)/6.0 + 1.0
	if x >= 1 {
		x--
	}
	hue = float32(x)
	return clipFloat(float64(hue) * 255), clipFloat(float64(sat) * 255), maxc
}

// hsvToRGB is hsv2rgb of Pillow's Convert.c.
func hsvToRGB(h, s, v uint8) (r, g, b uint8) {
	if s == 0 {
		return v, v, v
	}
	at := float64(float64(h)*6.0) / 255.0
	i := math.Floor(at)
	f := float32(at - float64(float32(i)))
	fs := float32(float64(s) / 255.0)
	val := float64(v)
	p := round8(val * (1.0 - float64(fs)))
	q := round8(val * (1.0 - float64(float32(fs*f))))
	t := round8(val * (1.0 - float64(float64(fs)*(1.0-float64(f)))))
	switch int(i) % 6 {
	case 0:
		return v, t, p
	case 1:
		return q, v, p
	case 2:
		return p, v, t
	case 3:
		return p, q, v
	case 4:
		return t, p, v
	default:
		return v, p, q
	}
}

func clipFloat(f float64) uint8 { return uint8(min(max(int(f), 0), 255)) }

// round8 is C's round (halves away from zero) of a value that is never negative here. The conversion keeps f, a
// product, unfused.
func round8(f float64) uint8 { return uint8(min(int(float64(f)+0.5), 255)) }
