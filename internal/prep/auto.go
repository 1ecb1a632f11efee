package prep

import (
	"math"

	"larder/internal/xrand"
)

// The learned augmentations RandAugment, TrivialAugmentWide and AutoAugment: each sample gets a few simple ops out of a
// list, with a magnitude.

type autoKind uint8

const (
	autoIdentity autoKind = iota
	autoShearX
	autoShearY
	autoTranslateX
	autoTranslateY
	autoRotate
	autoBrightness
	autoColor
	autoContrast
	autoSharpness
	autoPosterize
	autoSolarize
	autoAutoContrast
	autoEqualize
	autoInvert
)

var autoNames = [...]string{
	"Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness",
	"Posterize", "Solarize", "AutoContrast", "Equalize", "Invert",
}

// drawnFrom is how many of them RandAugment and TrivialAugmentWide draw from: all but Invert.
const drawnFrom = int(autoInvert)

func (k autoKind) signed() bool   { return k >= autoShearX && k <= autoSharpness }
func (k autoKind) strength() bool { return k >= autoShearX && k <= autoSolarize }

// maxAuto bounds the ops that one draw may give.
const maxAuto = 16

// autoOp is one of the ops that were drawn, with its magnitude.
type autoOp struct {
	kind      autoKind
	magnitude float64
}

// autoDraw is what one sample gets.
type autoDraw struct {
	ops [maxAuto]autoOp
	n   int
}

// magnitude is entry i of the table of n magnitudes of an op, for an image of width x height.
func (o *op) magnitude(k autoKind, i, n, width, height int) float64 {
	wide := o.kind == opTrivialAugmentWide
	pick := func(usual, trivial float64) float64 {
		if wide {
			return trivial
		}
		return usual
	}
	top := 0.0
	switch k {
	case autoShearX, autoShearY:
		top = pick(0.3, 0.99)
	case autoTranslateX:
		top = pick(150.0/331.0*float64(width), 32)
	case autoTranslateY:
		top = pick(150.0/331.0*float64(height), 32)
	case autoRotate:
		top = pick(30, 135)
	case autoBrightness, autoColor, autoContrast, autoSharpness:
		top = pick(0.9, 0.99)
	case autoPosterize:
		each := float32(float64(n-1) / pick(4, 6))
		return 8 - math.RoundToEven(float64(float32(i)/each))
	case autoSolarize:
		return float64(linspace(255, 0, i, n))
	default:
		return 0
	}
	return float64(linspace(0, float32(top), i, n))
}

// linspace is value i of torch.linspace(from, to, n), whose rounding differs between what it computes in vectors of
// eight, two at a time, and the rest.
func linspace(from, to float32, i, n int) float32 {
	step := (to - from) / float32(n-1)
	at := func(i int) float32 {
		if i < n/2 {
			return fma32(step, float32(i), from)
		}
		return fma32(-step, float32(n-1-i), to)
	}
	if i < n&^15 {
		return at(i&^7) + float32(float32(i&7)*step)
	}
	return at(i)
}

// drawAuto draws the ops for an image of width x height.
func (o *op) drawAuto(r *xrand.Rand, width, height int) (d autoDraw) {
	if o.kind == opAutoAugment {
		return o.drawPolicy(r, width, height)
	}
	for d.n = range o.count {
		k := autoKind(r.IntN(drawnFrom))
		m := 0.0
		if k.strength() {
			level := o.level
			if o.kind == opTrivialAugmentWide {
				level = r.IntN(o.bins)
			}
			m = o.magnitude(k, level, o.bins, width, height)
		}
		if k.signed() && r.IntN(2) == 1 {
			m = -m
		}
		d.ops[d.n] = autoOp{k, m}
	}
	d.n = o.count
	return d
}

// drawPolicy draws one of AutoAugment's pairs, and which of the two are done.
func (o *op) drawPolicy(r *xrand.Rand, width, height int) (d autoDraw) {
	pair := autoPolicies[o.policy][r.IntN(len(autoPolicies[o.policy]))]
	probs := [2]float64{r.Float64(), r.Float64()}
	signs := [2]int{r.IntN(2), r.IntN(2)}
	for i, e := range pair {
		if probs[i] > e.p {
			continue
		}
		m := o.magnitude(e.kind, e.level, 10, width, height)
		if e.kind.signed() && signs[i] == 0 {
			m = -m
		}
		d.ops[d.n] = autoOp{e.kind, m}
		d.n++
	}
	return d
}

// auto adds the steps of what was drawn.
func (p *planner) auto(o *op, d *autoDraw) {
	for _, a := range d.ops[:d.n] {
		m := a.magnitude
		switch a.kind {
		case autoIdentity:
		case autoShearX:
			p.affine(affineDraw{scale: 1, shearX: degrees(arctangent(m))}.matrix(), o)
		case autoShearY:
			p.affine(affineDraw{scale: 1, shearY: degrees(arctangent(m))}.matrix(), o)
		case autoTranslateX, autoTranslateY:
			t := affineDraw{scale: 1, cx: float64(p.w) * 0.5, cy: float64(p.h) * 0.5}
			if a.kind == autoTranslateX {
				t.tx = math.Trunc(m)
			} else {
				t.ty = math.Trunc(m)
			}
			p.affine(t.matrix(), o)
		case autoRotate:
			p.rotate(m, o)
		case autoBrightness:
			p.blend(stepBrightness, 1+m)
		case autoColor:
			p.blend(stepSaturation, 1+m)
		case autoContrast:
			p.blend(stepContrast, 1+m)
		case autoSharpness:
			p.blend(stepSharpness, 1+m)
		case autoPosterize:
			p.steps = append(p.steps, step{kind: stepPosterize, amount: m})
		case autoSolarize:
			p.steps = append(p.steps, step{kind: stepSolarize, amount: m})
		case autoAutoContrast:
			p.steps = append(p.steps, step{kind: stepAutocontrast})
		case autoEqualize:
			p.steps = append(p.steps, step{kind: stepEqualize})
		case autoInvert:
			p.steps = append(p.steps, step{kind: stepInvert})
		}
	}
}

// policyOp is one op of a learned pair: the probability that it is done, and its magnitude out of ten.
type policyOp struct {
	kind  autoKind
	p     float64
	level int
}
