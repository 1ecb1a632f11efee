package fields

import (
	"encoding/binary"
	"math"

	"larder/internal/prep"
	"larder/internal/record"
)

// masks moves arrays [..., H, W] by the nearest pixel. Crops, resizes and flips of a whole recipe are one pass: two
// tables say from which column and row each one comes. It keeps its buffers.
type masks struct {
	xs, ys []int32 // -1 = outside, which is 0
	next   []int32
	bufs   [2][]byte
}

// plane is a stack of images of elements of some bytes.
type plane struct {
	pix        []byte
	n, w, h, e int
}

// move writes what moves make of a mask to dst.
func (m *masks) move(p *prep.Worker, moves []prep.Move, v *record.Value, dst []byte) {
	src := plane{pix: v.Data, n: 1, e: int(v.DType.Size())}
	for i := range v.NDim() - 2 {
		src.n *= int(v.Dim(i))
	}
	if src.n == 0 {
		return
	}
	src.w, src.h = moves[0].W, moves[0].H
	m.begin(src.w, src.h)
	turn := 0
	for i := range moves {
		t := &moves[i]
		if t.Kind != prep.Warp {
			m.step(t)
			continue
		}
		if i > 0 { // what was collected comes first
			src = m.through(src, t.W, t.H, m.buffer(&turn, src.n*t.W*t.H*src.e))
		}
		out := plane{pix: dst, n: src.n, w: t.NewW, h: t.NewH, e: src.e}
		if i < len(moves)-1 {
			out.pix = m.buffer(&turn, out.n*out.w*out.h*out.e)
		}
		warp(p, t, src, out, fillOf(v.DType, t.Fill))
		src = out
		m.begin(src.w, src.h)
	}
	if last := &moves[len(moves)-1]; last.Kind != prep.Warp {
		m.through(src, last.NewW, last.NewH, dst)
	}
}

// buffer is one of the two buffers, in turn.
func (m *masks) buffer(turn *int, n int) []byte {
	b := &m.bufs[*turn]
	*turn = 1 - *turn
	if cap(*b) < n {
		*b = make([]byte, n)
	}
	return (*b)[:n]
}

// begin makes tables that change nothing.
func (m *masks) begin(w, h int) { m.xs, m.ys = counted(m.xs, w), counted(m.ys, h) }

func counted(t []int32, n int) []int32 {
	t = t[:0]
	for i := range n {
		t = append(t, int32(i))
	}
	return t
}

// step puts a move behind the tables.
func (m *masks) step(t *prep.Move) {
	switch t.Kind {
	case prep.Crop:
		m.xs = m.table(m.xs, t.NewW, func(i int) int { return t.X + i })
		m.ys = m.table(m.ys, t.NewH, func(i int) int { return t.Y + i })
	case prep.Scale:
		if t.NewW != t.W || t.NewH != t.H {
			m.xs = m.table(m.xs, t.NewW, nearestFrom(t.W, t.NewW))
			m.ys = m.table(m.ys, t.NewH, nearestFrom(t.H, t.NewH))
		}
	case prep.FlipX:
		m.xs = m.table(m.xs, t.W, func(i int) int { return t.W - 1 - i })
	case prep.FlipY:
		m.ys = m.table(m.ys, t.H, func(i int) int { return t.H - 1 - i })
	default:
	}
}

// table is old behind a map of places.
func (m *masks) table(old []int32, n int, from func(int) int) []int32 {
	out := m.next[:0]
	for i := range n {
		if k := from(i); k >= 0 && k < len(old) {
			out = append(out, old[k])
		} else {
			out = append(out, -1)
		}
	}
	m.next = old
	return out
}

// nearestFrom is torch's interpolate(mode="nearest"): in float32, and not from the middle of pixels.
func nearestFrom(in, out int) func(int) int {
	scale := float32(in) / float32(out)
	return func(i int) int {
		return min(int(math.Floor(float64(float32(float32(i)*scale)))), in-1)
	}
}

// through writes src, as the tables say, to dst.
func (m *masks) through(src plane, w, h int, dst []byte) plane {
	out := plane{pix: dst[:src.n*w*h*src.e], n: src.n, w: w, h: h, e: src.e}
	for i := range src.n {
		for y, from := range m.ys {
			d := out.pix[(i*h+y)*w*src.e:][:w*src.e]
			if from < 0 {
				clear(d)
				continue
			}
			row(d, src.pix[(i*src.h+int(from))*src.w*src.e:][:src.w*src.e], m.xs, src.e)
		}
	}
	return out
}

// row gathers elements of e bytes; those outside are 0.
func row(dst, src []byte, from []int32, e int) {
	if e == 1 {
		for x, f := range from {
			if f < 0 {
				dst[x] = 0
			} else {
				dst[x] = src[f]
			}
		}
		return
	}
	for x, f := range from {
		if f < 0 {
			clear(dst[x*e : x*e+e])
		} else {
			copy(dst[x*e:x*e+e], src[int(f)*e:])
		}
	}
}

// warp writes a Warp of src to dst; what comes from outside is fill.
func warp(p *prep.Worker, t *prep.Move, src, dst plane, fill []byte) {
	in, e := src.w*src.h*src.e, src.e
	p.Sources(t, func(y int, from []int32) {
		for i := range src.n {
			d, s := dst.pix[(i*dst.h+y)*dst.w*e:][:dst.w*e], src.pix[i*in:][:in]
			for x, f := range from {
				if f < 0 {
					copy(d[x*e:x*e+e], fill)
				} else {
					copy(d[x*e:x*e+e], s[int(f)*e:])
				}
			}
		}
	})
}

// fillOf is a number from 0 to 255 as an element of a dtype.
func fillOf(d record.DType, v uint8) []byte {
	le := binary.LittleEndian
	f := float32(v)
	switch d {
	case record.Bool:
		return []byte{min(v, 1)}
	case record.Uint8, record.Int8:
		return []byte{v}
	case record.Uint16, record.Int16:
		return le.AppendUint16(nil, uint16(v))
	case record.Uint32, record.Int32:
		return le.AppendUint32(nil, uint32(v))
	case record.Uint64, record.Int64:
		return le.AppendUint64(nil, uint64(v))
	case record.Float16:
		if v == 0 {
			return []byte{0, 0}
		}
		b := math.Float32bits(f) // 1 to 255: normal in half precision too, and exact
		return le.AppendUint16(nil, uint16((b>>23-112)<<10|b>>13&0x3ff))
	case record.BFloat16:
		return le.AppendUint16(nil, uint16(math.Float32bits(f)>>16))
	case record.Float32:
		return le.AppendUint32(nil, math.Float32bits(f))
	case record.Float64:
		return le.AppendUint64(nil, math.Float64bits(float64(f)))
	default:
	}
	return make([]byte, d.Size())
}
