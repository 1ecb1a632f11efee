package prep

import (
	"math"

	"larder/internal/xrand"
)

// RandKey says which augmentation of which sample is wanted. Op i of the recipe draws from xrand.New(Seed, Instance,
// Sample, i), so neither the other ops nor who asks, nor what was cached, can change what it draws.
type RandKey struct {
	Seed     uint64
	Instance uint32
	Sample   uint64
}

func (k RandKey) rand(op int) xrand.Rand {
	var r xrand.Rand
	r.Seed(xrand.Hash(k.Seed, uint64(k.Instance), k.Sample, uint64(op)))
	return r
}

// box is a rectangle of pixels.
type box struct{ x, y, w, h int }

// cropBox draws RandomResizedCrop's box as torchvision's get_params does: up to ten tries with an area uniform
// in scale and a ratio log-uniform in ratio, then the largest centred box of an allowed ratio.
func (o *op) cropBox(r *xrand.Rand, width, height int) box {
	area := float64(width) * float64(height)
	for range 10 {
		target := area * r.Uniform(o.scale[0], o.scale[1])
		ratio := r.LogUniform(o.ratio[0], o.ratio[1])
		fw := math.RoundToEven(math.Sqrt(target * ratio))
		fh := math.RoundToEven(math.Sqrt(target / ratio))
		if fw >= 1 && fw <= float64(width) && fh >= 1 && fh <= float64(height) {
			b := box{w: int(fw), h: int(fh)}
			b.y = r.IntN(height - b.h + 1)
			b.x = r.IntN(width - b.w + 1)
			return b
		}
	}
	b := box{w: width, h: height}
	switch in := float64(width) / float64(height); {
	case in < o.ratio[0]:
		b.h = clampSide(math.RoundToEven(float64(width)/o.ratio[0]), height)
	case in > o.ratio[1]:
		b.w = clampSide(math.RoundToEven(float64(height)*o.ratio[1]), width)
	}
	b.x, b.y = (width-b.w)/2, (height-b.h)/2
	return b
}

// clampSide keeps a side from 1 to limit: with ratios far from 1 torchvision's fallback would ask for 0 pixels.
func clampSide(f float64, limit int) int { return int(min(max(f, 1), float64(limit))) }

// jitterDraw is one draw of ColorJitter: the order of the four adjustments and their factors.
type jitterDraw struct {
	order [4]int
	f     [4]float64
}

func (o *op) drawJitter(r *xrand.Rand) jitterDraw {
	d := jitterDraw{order: [4]int{0, 1, 2, 3}}
	for i := 3; i > 0; i-- {
		j := r.IntN(i + 1)
		d.order[i], d.order[j] = d.order[j], d.order[i]
	}
	for k, f := range o.jitter {
		if f.on {
			d.f[k] = r.Uniform(f.lo, f.hi)
		}
	}
	return d
}

// drawAffine draws RandomAffine's parameters for an image of w x h.
func (o *op) drawAffine(r *xrand.Rand, w, h int) affineDraw {
	a := affineDraw{cx: float64(w) * 0.5, cy: float64(h) * 0.5}
	if o.center != nil {
		a.cx, a.cy = o.center[0], o.center[1]
	}
	a.angle = r.Uniform(o.degrees[0], o.degrees[1])
	dx, dy := o.translate[0]*float64(w), o.translate[1]*float64(h)
	a.tx, a.ty = math.RoundToEven(r.Uniform(-dx, dx)), math.RoundToEven(r.Uniform(-dy, dy))
	a.scale = r.Uniform(o.scale[0], o.scale[1])
	a.shearX, a.shearY = r.Uniform(o.shear[0], o.shear[1]), r.Uniform(o.shear[2], o.shear[3])
	return a
}

// hueShift is what torchvision adds to a uint8 hue: numpy's uint8(factor * 255), truncated, then wrapped.
func hueShift(factor float64) uint8 { return uint8(int(factor * 255)) }

// resized gives Resize's target for an image of w x h, as torchvision computes it. A side never falls below 1, where
// torchvision would fail.
func (o *op) resized(w, h int) (int, int) {
	if o.short == 0 {
		return o.w, o.h
	}
	shorter, longer := min(w, h), max(w, h)
	s, l := o.short, int(float64(o.short)*float64(longer)/float64(shorter))
	if o.maxSide > 0 && l > o.maxSide {
		s, l = max(int(float64(o.maxSide)*float64(s)/float64(l)), 1), o.maxSide
	}
	if w <= h {
		return s, l
	}
	return l, s
}

// centerBox places CenterCrop's box; x and y are negative where the image is padded. torchvision pads first
// ((want-have)/2 before, the odd pixel behind), then rounds half to even.
func (o *op) centerBox(w, h int) box {
	place := func(have, want int) int {
		if have < want {
			return -((want - have) / 2)
		}
		return int(math.RoundToEven(float64(have-want) / 2))
	}
	return box{x: place(w, o.w), y: place(h, o.h), w: o.w, h: o.h}
}

// Params returns what op i of the canonical recipe does to an image of w x h that reaches it, drawn for that key. Names
// are those of torchvision's functional interface: top, left, height, width (RandomResizedCrop, CenterCrop, Resize),
// flip, and for ColorJitter order (0 brightness, 1 contrast, 2 saturation, 3 hue) with the factors that are on; sigma,
// angle, translate_x, translate_y, scale, shear_x, shear_y; apply for ops with a probability, and for RandomErasing
// apply with the box; for RandAugment and its kin ops and magnitudes.
func (r *Recipe) Params(i int, key RandKey, w, h int) map[string]any {
	if i < 0 || i >= len(r.ops) || w < 1 || h < 1 {
		return map[string]any{}
	}
	o := &r.ops[i]
	rnd := key.rand(r.first + i)
	switch o.kind {
	case opResize:
		rw, rh := o.resized(w, h)
		return map[string]any{"height": rh, "width": rw}
	case opCenterCrop:
		b := o.centerBox(w, h)
		return map[string]any{"top": b.y, "left": b.x, "height": b.h, "width": b.w}
	case opRandomResizedCrop:
		b := o.cropBox(&rnd, w, h)
		return map[string]any{"top": b.y, "left": b.x, "height": b.h, "width": b.w}
	case opHFlip, opVFlip:
		return map[string]any{"flip": o.flips(&rnd)}
	case opColorJitter:
		d := o.drawJitter(&rnd)
		m := map[string]any{"order": d.order[:]}
		for k, name := range [...]string{"brightness", "contrast", "saturation", "hue"} {
			if o.jitter[k].on {
				m[name] = d.f[k]
			}
		}
		return m
	case opGaussianBlur:
		return map[string]any{"sigma": rnd.Uniform(o.sigma[0], o.sigma[1])}
	case opRandomRotation:
		return map[string]any{"angle": rnd.Uniform(o.degrees[0], o.degrees[1])}
	case opRandomAffine:
		a := o.drawAffine(&rnd, w, h)
		return map[string]any{"angle": a.angle, "translate_x": int(a.tx), "translate_y": int(a.ty), "scale": a.scale,
			"shear_x": a.shearX, "shear_y": a.shearY}
	case opAutocontrast, opEqualize, opInvert, opSolarize, opPosterize, opSharpness:
		return map[string]any{"apply": o.flips(&rnd)}
	case opErasePixels, opRandomErasing:
		b, ok := o.eraseBox(&rnd, w, h)
		return map[string]any{"apply": ok, "top": b.y, "left": b.x, "height": b.h, "width": b.w}
	case opRandAugment, opTrivialAugmentWide, opAutoAugment:
		d := o.drawAuto(&rnd, w, h)
		names, magnitudes := make([]string, d.n), make([]float64, d.n)
		for k, a := range d.ops[:d.n] {
			names[k], magnitudes[k] = autoNames[a.kind], a.magnitude
		}
		return map[string]any{"ops": names, "magnitudes": magnitudes}
	default:
	}
	return map[string]any{}
}

func (o *op) flips(r *xrand.Rand) bool { return r.Float64() < o.p }
