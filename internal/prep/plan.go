package prep

import (
	"larder/internal/errs"
	"larder/internal/raster"
	"larder/internal/xrand"
)

type stepKind uint8

const (
	stepGeo stepKind = iota // crop, resize, crop, flip in one pass
	stepPad                 // crop box that reaches beyond the image
	stepAffine
	stepTurn // a quarter turn
	stepBlur
	stepSharpness
	stepErase
	stepBrightness // from here on in place, and the same wherever a pixel is
	stepContrast
	stepSaturation
	stepHue
	stepGray
	stepAutocontrast // from here on by tables
	stepEqualize
	stepSolarize
	stepPosterize
	stepInvert
)

// step is what the kernels do; ops of a recipe become steps when the parameters of a sample are drawn.
//
// A stepGeo takes src, resizes it to rw x rh (equal to src's size: no resize), of which only win is computed, and
// writes that flipped. A stepPad copies src, which may reach beyond the image, with zeros outside. A stepAffine makes
// an image of rw x rh.
type step struct {
	kind         stepKind
	filter       filter
	hflip, vflip bool
	hue          uint8
	f            float32
	src          box
	rw, rh       int
	win          box
	// columns and rows of src that the image does not hold, because win needs none of them (region decoding)
	skipX, skipY int

	m        matrix   // stepAffine
	fill     [3]uint8 // stepAffine, stepErase
	quarters int      // stepTurn: 1 or 3, counter-clockwise
	taps     [2]int   // stepBlur
	sigma    float64  // stepBlur
	amount   float64  // stepSolarize, stepPosterize
}

// moveTo places a stepGeo in the part of its image that got is, which holds all that it looks at.
func (s *step) moveTo(got box) {
	s.skipX, s.skipY = max(got.x-s.src.x, 0), max(got.y-s.src.y, 0)
	s.src.x, s.src.y = max(s.src.x-got.x, 0), max(s.src.y-got.y, 0)
}

func (s *step) isColor() bool { return s.kind >= stepBrightness }
func (s *step) isTable() bool { return s.kind >= stepAutocontrast }

// opRange is the ops of a recipe from one index up to another.
type opRange struct{ from, to int }

// allOps is the ops that work on pixels; it is the prefix and the suffix.
func (r *Recipe) allOps() opRange { return opRange{0, r.imageOps} }

// prefixOps is the ops that do the same for every instance.
func (r *Recipe) prefixOps() opRange { return opRange{0, r.cut} }

// suffixOps is the ops behind them.
func (r *Recipe) suffixOps() opRange { return opRange{r.cut, r.imageOps} }

// plan turns ops into steps for an image of width x height. Ops that do nothing for this sample give no step. The steps
// are the worker's until its next plan.
func (w *Worker) plan(r *Recipe, ops opRange, key RandKey, width, height int) (planner, error) {
	p := planner{steps: w.steps[:0], w: width, h: height}
	for i := ops.from; i < ops.to; i++ {
		o := &r.ops[i]
		rnd := key.rand(r.first + i)
		switch o.kind {
		case opResize:
			rw, rh := o.resized(p.w, p.h)
			if err := w.checkSize(rw, rh, "the image after Resize"); err != nil {
				return planner{}, err
			}
			if err := w.checkBetween(o, rw, rh, &p); err != nil {
				return planner{}, err
			}
			p.resize(rw, rh, o.filter)
		case opCenterCrop:
			p.crop(o.centerBox(p.w, p.h))
		case opRandomResizedCrop:
			p.crop(o.cropBox(&rnd, p.w, p.h))
			if err := w.checkBetween(o, o.w, o.h, &p); err != nil {
				return planner{}, err
			}
			p.resize(o.w, o.h, o.filter)
		case opHFlip:
			if o.flips(&rnd) {
				s := p.flip()
				s.hflip = !s.hflip
			}
		case opVFlip:
			if o.flips(&rnd) {
				s := p.flip()
				s.vflip = !s.vflip
			}
		case opColorJitter:
			p.jitter(o, o.drawJitter(&rnd))
		case opGrayscale:
			p.steps = append(p.steps, step{kind: stepGray})
		default:
			p.more(o, &rnd)
			if o.expand && !w.allowed(p.w, p.h) {
				return planner{}, w.checkSize(p.w, p.h, "the image after "+o.spec.Name)
			}
		}
	}
	w.steps = p.steps[:0] // keep what append grew
	return p, nil
}

// planner is the steps of some ops, and the size of the image after them.
type planner struct {
	steps []step
	w, h  int
}

// geo returns the last step if it is a stepGeo, or adds one that takes the whole image.
func (p *planner) geo() *step {
	if n := len(p.steps); n > 0 && p.steps[n-1].kind == stepGeo {
		return &p.steps[n-1]
	}
	return p.insertGeo(len(p.steps))
}

func (p *planner) insertGeo(at int) *step {
	all := box{w: p.w, h: p.h}
	p.steps = append(p.steps, step{})
	copy(p.steps[at+1:], p.steps[at:])
	p.steps[at] = step{kind: stepGeo, src: all, rw: p.w, rh: p.h, win: all}
	return &p.steps[at]
}

// flip returns the step to flip in. Colour steps treat all pixels alike, so a flip behind them is done before them,
// where it costs nothing when a resize is there.
func (p *planner) flip() *step {
	at := len(p.steps)
	for at > 0 && p.steps[at-1].isColor() {
		at--
	}
	if at > 0 && p.steps[at-1].kind == stepGeo {
		return &p.steps[at-1]
	}
	return p.insertGeo(at)
}

func (p *planner) crop(b box) {
	if b.x == 0 && b.y == 0 && b.w == p.w && b.h == p.h {
		return
	}
	if b.x < 0 || b.y < 0 || b.x+b.w > p.w || b.y+b.h > p.h {
		p.steps = append(p.steps, step{kind: stepPad, src: b})
	} else {
		s := p.geo()
		if s.hflip {
			b.x = s.win.w - b.x - b.w
		}
		if s.vflip {
			b.y = s.win.h - b.y - b.h
		}
		s.win = box{x: s.win.x + b.x, y: s.win.y + b.y, w: b.w, h: b.h}
	}
	p.w, p.h = b.w, b.h
}

func (p *planner) resize(rw, rh int, f filter) {
	if rw == p.w && rh == p.h {
		return // Pillow copies, whatever the filter
	}
	s := p.geo()
	if s.rw != s.src.w || s.rh != s.src.h || s.hflip || s.vflip {
		// Pixels are rounded between two resizes, and resizing a flipped image does not give exactly the flipped resize.
		s = p.insertGeo(len(p.steps))
	}
	s.src = box{x: s.src.x + s.win.x, y: s.src.y + s.win.y, w: s.win.w, h: s.win.h}
	s.rw, s.rh, s.filter = rw, rh, f
	s.win = box{w: rw, h: rh}
	p.w, p.h = rw, rh
}

var tableSteps = [numOpKinds]stepKind{opAutocontrast: stepAutocontrast, opEqualize: stepEqualize, opInvert: stepInvert,
	opSolarize: stepSolarize, opPosterize: stepPosterize}

// more adds the steps of the ops of parseMore.
func (p *planner) more(o *op, rnd *xrand.Rand) {
	switch o.kind {
	case opGaussianBlur:
		p.steps = append(p.steps, step{kind: stepBlur, taps: o.taps, sigma: rnd.Uniform(o.sigma[0], o.sigma[1])})
	case opRandomRotation:
		p.rotate(rnd.Uniform(o.degrees[0], o.degrees[1]), o)
	case opRandomAffine:
		p.affine(o.drawAffine(rnd, p.w, p.h).matrix(), o)
	case opRandAugment, opTrivialAugmentWide, opAutoAugment:
		d := o.drawAuto(rnd, p.w, p.h)
		p.auto(o, &d)
	case opErasePixels:
		if b, ok := o.eraseBox(rnd, p.w, p.h); ok {
			p.steps = append(p.steps, step{kind: stepErase, src: b, fill: o.fill})
		}
	case opAutocontrast, opEqualize, opInvert, opSolarize, opPosterize, opSharpness:
		if !o.flips(rnd) {
			return
		}
		if o.kind == opSharpness {
			p.blend(stepSharpness, o.amount)
			return
		}
		p.steps = append(p.steps, step{kind: tableSteps[o.kind], amount: o.amount})
	default:
	}
}

// blend adds a step between a degenerate image and this one. At 1 Pillow's blend returns the image itself.
func (p *planner) blend(kind stepKind, f float64) {
	if float32(f) != 1 {
		p.steps = append(p.steps, step{kind: kind, f: float32(f)})
	}
}

func (p *planner) affine(m matrix, o *op) {
	if !m.identity() {
		p.steps = append(p.steps, step{kind: stepAffine, m: m, rw: p.w, rh: p.h, filter: o.filter, fill: o.fill})
	}
}

func (p *planner) rotate(angle float64, o *op) {
	r := rotated(angle, p.w, p.h, o.expand, o.center)
	switch {
	case r.m != matrix{}:
		p.steps = append(p.steps, step{kind: stepAffine, m: r.m, rw: r.w, rh: r.h, filter: o.filter, fill: o.fill})
	case r.quarters == 2:
		s := p.geo()
		s.hflip, s.vflip = !s.hflip, !s.vflip
	case r.quarters != 0:
		p.steps = append(p.steps, step{kind: stepTurn, quarters: r.quarters})
	}
	p.w, p.h = r.w, r.h
}

func (p *planner) jitter(o *op, d jitterDraw) {
	for _, k := range d.order {
		if !o.jitter[k].on {
			continue
		}
		s := step{f: float32(d.f[k])}
		switch k {
		case 0:
			s.kind = stepBrightness
		case 1:
			s.kind = stepContrast
		case 2:
			s.kind = stepSaturation
		case 3:
			// Also for a shift of 0: the way through HSV changes pixels, in torchvision too.
			s.kind, s.hue = stepHue, hueShift(d.f[k])
		}
		if k != 3 && s.f == 1 {
			continue // Pillow's blend returns the image itself
		}
		p.steps = append(p.steps, s)
	}
}

// checkBetween bounds what lies between the passes of a resize: a high, thin image that becomes a flat, wide one is
// large there, though neither end is.
func (w *Worker) checkBetween(o *op, rw, rh int, p *planner) error {
	if rw == p.w || rh == p.h || o.filter == nearestSample || w.allowed(rw, p.h) {
		return nil
	}
	return w.checkSize(rw, p.h, "the image between the passes of "+o.spec.Name)
}

// checkSize bounds what is allocated for an image.
func (w *Worker) checkSize(width, height int, what string) error {
	if width < 1 || height < 1 {
		return errs.New(errs.SampleBad, "", hintBad, "%s: %d x %d pixels", what, width, height)
	}
	if w.allowed(width, height) {
		return nil
	}
	if width > raster.MaxSide || height > raster.MaxSide { // their product may not fit
		return errs.New(errs.SampleBad, "", hintBad, "%s: %d x %d pixels are more than the %d that are allowed",
			what, width, height, w.limits.MaxPixels)
	}
	return errs.New(errs.SampleBad, "", hintBad, "%s: %d x %d = %d pixels are more than the %d that are allowed",
		what, width, height, int64(width)*int64(height), w.limits.MaxPixels)
}

// allowed compares without a product, which sides from a file may overflow. Both sides are 1 at least.
func (w *Worker) allowed(width, height int) bool {
	return int64(height) <= w.limits.MaxPixels/int64(width)
}
