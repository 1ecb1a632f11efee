package prep

import (
	"math"

	"larder/internal/xrand"
)

// MoveKind is what an op does with the places of pixels.
type MoveKind uint8

// The kinds of moves.
const (
	Crop  MoveKind = iota + 1 // a box of the image, which may reach beyond it
	Scale                     // to another size
	FlipX                     // left and right
	FlipY                     // top and bottom
	Warp                      // rotated, or any affine transformation
)

// Move is what one op of a recipe does with the places of pixels, for one sample. Ops that look at colours alone are
// none.
type Move struct {
	Kind       MoveKind
	W, H       int        // of the image before
	NewW, NewH int        // and after
	X, Y       int        // Crop: the corner of the box
	BoxX, BoxY int        // Crop: the corner by which torchvision moves boxes and points
	Points     [6]float64 // Warp: where a point goes: x' = p0 x + p1 y + p2, y' = p3 x + p4 y + p5
	Expand     bool       // Warp: the corners of the image go to the edges of the result, whatever Points says
	Fill       uint8      // Warp: of pixels outside

	quarters int    // Warp: of a turn, counter-clockwise; -1 = it is by the matrix
	inverse  matrix // Warp
}

// Moves appends what a part of a recipe does with the places of pixels of an image of w x h under key, op by op. They
// are those that FieldInto does with the image itself. Sizes are not checked: FieldSize does that.
func (r *Recipe) Moves(dst []Move, p Part, key RandKey, w, h int) []Move {
	for i := p.From; i < p.To; i++ {
		o := &r.ops[i]
		rnd := key.rand(r.first + i)
		n := len(dst)
		dst = o.moves(dst, &rnd, w, h)
		if len(dst) > n {
			w, h = dst[len(dst)-1].NewW, dst[len(dst)-1].NewH
		}
	}
	return dst
}

// moves appends the moves of one op.
func (o *op) moves(dst []Move, rnd *xrand.Rand, w, h int) []Move {
	m := Move{W: w, H: h, NewW: w, NewH: h}
	switch o.kind {
	case opResize:
		m.Kind = Scale
		m.NewW, m.NewH = o.resized(w, h)
	case opCenterCrop:
		b := o.centerBox(w, h)
		m.Kind, m.X, m.Y, m.NewW, m.NewH = Crop, b.x, b.y, b.w, b.h
		// torchvision pads an image that is too small before it crops, and does not do so with boxes
		m.BoxX = int(math.RoundToEven(float64(w-o.w) / 2))
		m.BoxY = int(math.RoundToEven(float64(h-o.h) / 2))
	case opRandomResizedCrop:
		b := o.cropBox(rnd, w, h)
		m.Kind, m.X, m.Y, m.BoxX, m.BoxY, m.NewW, m.NewH = Crop, b.x, b.y, b.x, b.y, b.w, b.h
		return append(dst, m, Move{Kind: Scale, W: b.w, H: b.h, NewW: o.w, NewH: o.h})
	case opHFlip, opVFlip:
		if !o.flips(rnd) {
			return dst
		}
		if m.Kind = FlipX; o.kind == opVFlip {
			m.Kind = FlipY
		}
	case opRandomRotation:
		angle := rnd.Uniform(o.degrees[0], o.degrees[1])
		t := rotated(angle, w, h, o.expand, o.center)
		m.Kind, m.Expand, m.Fill, m.NewW, m.NewH = Warp, o.expand, o.fill[0], t.w, t.h
		if m.quarters = t.quarters; t.m != (matrix{}) {
			m.quarters, m.inverse = -1, t.m
		}
		d := affineDraw{angle: -angle, scale: 1, cx: float64(w) * 0.5, cy: float64(h) * 0.5}
		if o.center != nil {
			d.cx, d.cy = o.center[0], o.center[1]
		}
		m.Points = d.forward()
	case opRandomAffine:
		d := o.drawAffine(rnd, w, h)
		m.Kind, m.Fill, m.Points = Warp, o.fill[0], d.forward()
		if m.inverse = d.matrix(); !m.inverse.identity() {
			m.quarters = -1
		}
	default:
		return dst
	}
	return append(dst, m)
}

// forward is torchvision's _get_inverse_affine_matrix with inverted=False: where a point of the source goes.
func (a affineDraw) forward() [6]float64 {
	rot, sx, sy := radians(a.angle), radians(a.shearX), radians(a.shearY)
	cosSY, tanSX := cosine(sy), tangent(sx)
	p0 := cosine(rot-sy) / cosSY
	p1 := -(float64(p0*tanSX) + sine(rot))
	p3 := sine(rot-sy) / cosSY
	p4 := cosine(rot) - float64(p3*tanSX)
	m := [6]float64{p0 * a.scale, p1 * a.scale, 0, p3 * a.scale, p4 * a.scale, 0}
	m[2] += a.cx + a.tx - float64(m[0]*a.cx) - float64(m[1]*a.cy)
	m[5] += a.cy + a.ty - float64(m[3]*a.cx) - float64(m[4]*a.cy)
	return m
}

// Sources tells a Warp, row by row, from which pixel of the source each pixel of the result comes: its index, or -1 for
// one outside. They are the nearest ones, as Pillow finds them. row must not be kept.
func (w *Worker) Sources(m *Move, each func(y int, row []int32)) {
	w.tabX = grow(w.tabX, m.NewW)
	row := w.tabX[:m.NewW]
	switch inv := &m.inverse; {
	case m.quarters >= 0:
		for y := range m.NewH {
			for x := range row {
				row[x] = turnedFrom(m, x, y)
			}
			each(y, row)
		}
	case inv[1] == 0 && inv[3] == 0:
		xs := shiftTable(nil, inv[2]+float64(inv[0]*0.5), inv[0], m.W, m.NewW)
		ys := shiftTable(nil, inv[5]+float64(inv[4]*0.5), inv[4], m.H, m.NewH)
		for y := range m.NewH {
			for x := range row {
				if row[x] = -1; ys[y] >= 0 && xs[x] >= 0 {
					row[x] = ys[y]*int32(m.W) + xs[x]
				}
			}
			each(y, row)
		}
	case fitsFixed(inv, m.NewW, m.NewH):
		m.fixedSources(row, each)
	default:
		m.floatSources(row, each)
	}
}

// turnedFrom is the source of a pixel after quarter turns counter-clockwise.
func turnedFrom(m *Move, x, y int) int32 {
	switch m.quarters {
	case 1:
		return int32(x*m.W + m.W - 1 - y)
	case 2:
		return int32((m.H-1-y)*m.W + m.W - 1 - x)
	case 3:
		return int32((m.H-1-x)*m.W + y)
	}
	return int32(y*m.W + x)
}

// fixedSources is fixedAffine's.
func (m *Move) fixedSources(row []int32, each func(int, []int32)) {
	f := fixedSteps(&m.inverse)
	for y := range m.NewH {
		xx, yy := f[2], f[5]
		for x := range row {
			xin, yin := int(int32(xx)>>16), int(int32(yy)>>16)
			if row[x] = -1; xin >= 0 && xin < m.W && yin >= 0 && yin < m.H {
				row[x] = int32(yin*m.W + xin)
			}
			xx += f[0]
			yy += f[3]
		}
		each(y, row)
		f[2] += f[1]
		f[5] += f[4]
	}
}

// floatSources is floatAffine's.
func (m *Move) floatSources(row []int32, each func(int, []int32)) {
	t := &m.inverse
	xo := t[2] + float64(t[1]*0.5) + float64(t[0]*0.5)
	yo := t[5] + float64(t[4]*0.5) + float64(t[3]*0.5)
	fw, fh := float64(m.W), float64(m.H)
	for y := range m.NewH {
		xx, yy := xo, yo
		for x := range row {
			if row[x] = -1; xx >= 0 && xx < fw && yy >= 0 && yy < fh {
				row[x] = int32(int(yy)*m.W + int(xx))
			}
			xx += t[0]
			yy += t[3]
		}
		each(y, row)
		xo += t[1]
		yo += t[4]
	}
}
