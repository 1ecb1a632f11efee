package fields

import (
	"encoding/binary"
	"math"
	"slices"

	"larder/internal/prep"
	"larder/internal/record"
)

// keypoints is the format of points; the others are of boxes.
const keypoints Format = ""

type float interface{ float32 | float64 }
type integer interface{ int32 | int64 }

// points moves boxes or keypoints, element by element in their own dtype, as torch does: integers by way of float32
// where torchvision takes that way.
func (w *Worker) points(d record.DType, src, dst []byte, f Format) {
	switch d {
	case record.Float32:
		w.f32 = moved(w.f32, src, dst, func(v []float32) { moveFloats(w.moves, v, f) })
	case record.Float64:
		w.f64 = moved(w.f64, src, dst, func(v []float64) { moveFloats(w.moves, v, f) })
	case record.Int32:
		w.i32 = moved(w.i32, src, dst, func(v []int32) { w.ints = moveIntegers(w.moves, v, f, w.ints) })
	case record.Int64:
		w.i64 = moved(w.i64, src, dst, func(v []int64) { w.ints = moveIntegers(w.moves, v, f, w.ints) })
	default: // bind refuses others
		copy(dst, src)
	}
}

// moved has move change the elements of src, and writes them to dst, which is as long. It uses scratch, and returns
// it.
func moved[T float | integer](scratch []T, src, dst []byte, move func([]T)) []T {
	n := len(src) / binary.Size(T(0))
	scratch = slices.Grow(scratch[:0], n)[:n]
	_, _ = binary.Decode(src, binary.LittleEndian, scratch) // it fails only where there are fewer bytes
	move(scratch)
	_, _ = binary.Encode(dst, binary.LittleEndian, scratch)
	return scratch
}

func moveFloats[T float](moves []prep.Move, v []T, f Format) {
	for i := range moves {
		m := &moves[i]
		switch m.Kind {
		case prep.FlipX:
			flip(v, 0, m.W, f)
		case prep.FlipY:
			flip(v, 1, m.H, f)
		case prep.Crop:
			shift(v, m, f)
			clamp(v, m.NewW, m.NewH, f)
		case prep.Scale:
			scale(v, m, f)
		case prep.Warp:
			transform(v, m, f)
		}
	}
}

// moveIntegers needs scratch, and returns it.
func moveIntegers[T integer](moves []prep.Move, v []T, f Format, scratch []float32) []float32 {
	for i := range moves {
		m := &moves[i]
		switch m.Kind {
		case prep.FlipX:
			flip(v, 0, m.W, f)
			continue
		case prep.FlipY:
			flip(v, 1, m.H, f)
			continue
		case prep.Crop:
			shift(v, m, f)
			if f == keypoints {
				continue
			}
		default:
		}
		scratch = scratch[:0]
		for _, x := range v {
			scratch = append(scratch, float32(x))
		}
		switch m.Kind {
		case prep.Crop:
			clamp(scratch, m.NewW, m.NewH, f)
		case prep.Scale:
			if m.NewW == m.W && m.NewH == m.H {
				continue
			}
			scale(scratch, m, f)
		default:
			transform(scratch, m, f)
		}
		for k, x := range scratch {
			v[k] = truncated[T](x)
		}
	}
	return scratch
}

// truncated is a number as an integer, towards zero; what has no place in one is the nearest that does, and NaN is 0.
func truncated[T integer](x float32) T {
	lo, hi := float64(math.MinInt64), float64(math.MaxInt64)
	least, most := int64(math.MinInt64), int64(math.MaxInt64)
	if _, short := any(T(0)).(int32); short {
		lo, hi, least, most = math.MinInt32, math.MaxInt32, math.MinInt32, math.MaxInt32
	}
	switch f := float64(x); {
	case f != f:
		return 0
	case f <= lo:
		return T(least)
	case f >= hi:
		return T(most)
	default:
		return T(f)
	}
}

// flip mirrors along an axis of side pixels: boxes at their edges, points at the middle of pixels.
func flip[T float | integer](v []T, axis, side int, f Format) {
	s := T(side)
	switch f {
	case XYXY:
		for i := axis; i+2 < len(v); i += 4 {
			v[i], v[i+2] = -(v[i+2] - s), -(v[i] - s)
		}
	case XYWH:
		for i := axis; i+2 < len(v); i += 4 {
			sum := v[i] + v[i+2]
			v[i] = -(sum - s)
		}
	case CXCYWH:
		for i := axis; i+2 < len(v); i += 4 {
			v[i] = -(v[i] - s)
		}
	default:
		for i := axis; i < len(v); i += 2 {
			v[i] = -(v[i] - (s - 1))
		}
	}
}

// shift moves the origin to the corner of a crop.
func shift[T float | integer](v []T, m *prep.Move, f Format) {
	x, y := T(m.BoxX), T(m.BoxY)
	step := 4
	if f == XYXY || f == keypoints {
		step = 2
	}
	for i := 0; i+1 < len(v); i += step {
		v[i] -= x
		v[i+1] -= y
	}
}

// scale multiplies by the ratios of the sides, which torchvision rounds to float32.
func scale[T float](v []T, m *prep.Move, _ Format) {
	if m.NewW == m.W && m.NewH == m.H {
		return
	}
	rx, ry := T(float32(float64(m.NewW)/float64(m.W))), T(float32(float64(m.NewH)/float64(m.H)))
	for i := 0; i+1 < len(v); i += 2 {
		v[i] *= rx
		v[i+1] *= ry
	}
}

// clamp keeps boxes inside an image; points are not clamped.
func clamp[T float](v []T, w, h int, f Format) {
	if f == keypoints {
		return
	}
	toCorners(v, f)
	for i := 0; i+1 < len(v); i += 2 {
		v[i], v[i+1] = within(v[i], T(w)), within(v[i+1], T(h))
	}
	fromCorners(v, f)
}

// within is x in [0, most]; NaN stays.
func within[T float](x, most T) T {
	if x < 0 {
		return 0
	}
	if x > most {
		return most
	}
	return x
}

// toCorners makes boxes XYXY.
func toCorners[T float](v []T, f Format) {
	switch f {
	case XYWH:
		for i := 0; i+3 < len(v); i += 4 {
			v[i+2] += v[i]
			v[i+3] += v[i+1]
		}
	case CXCYWH:
		for i := 0; i+3 < len(v); i += 4 {
			for k := i; k < i+2; k++ {
				v[k] -= v[k+2] / 2
				v[k+2] += v[k]
			}
		}
	default:
	}
}

// fromCorners is the reverse of toCorners.
func fromCorners[T float](v []T, f Format) {
	switch f {
	case XYWH:
		for i := 0; i+3 < len(v); i += 4 {
			v[i+2] -= v[i]
			v[i+3] -= v[i+1]
		}
	case CXCYWH:
		for i := 0; i+3 < len(v); i += 4 {
			for k := i; k < i+2; k++ {
				v[k+2] -= v[k]
				v[k] = (v[k]*2 + v[k+2]) / 2 // twice is exact: nothing differs where the sum is fused
			}
		}
	default:
	}
}

// transform is torchvision's affine and rotate of boxes and points: the box around the four corners, clamped.
func transform[T float](v []T, m *prep.Move, f Format) {
	if len(v) == 0 {
		return
	}
	var p [6]T
	for i := range p {
		p[i] = T(m.Points[i])
	}
	// products are exact in float64 for float32, so what torch's matrix product rounds differently is the last bit
	at := func(x, y T) (T, T) {
		return T(float64(float64(p[0])*float64(x)) + float64(float64(p[1])*float64(y)) + float64(p[2])),
			T(float64(float64(p[3])*float64(x)) + float64(float64(p[4])*float64(y)) + float64(p[5]))
	}
	var x0, y0 T
	if m.Expand {
		w, h := T(m.W), T(m.H)
		x0, y0 = at(0, 0)
		for _, c := range [...][2]T{{0, h}, {w, h}, {w, 0}} {
			x, y := at(c[0], c[1])
			x0, y0 = min(x0, x), min(y0, y)
		}
	}
	if f == keypoints {
		for i := 0; i+1 < len(v); i += 2 {
			x, y := at(v[i], v[i+1])
			v[i], v[i+1] = x-x0, y-y0
		}
		return
	}
	toCorners(v, f)
	for i := 0; i+3 < len(v); i += 4 {
		b := v[i : i+4 : i+4]
		left, top := at(b[0], b[1])
		right, bottom := left, top
		for _, c := range [...][2]T{{b[2], b[1]}, {b[2], b[3]}, {b[0], b[3]}} {
			x, y := at(c[0], c[1])
			left, right, top, bottom = min(left, x), max(right, x), min(top, y), max(bottom, y)
		}
		b[0], b[1], b[2], b[3] = within(left-x0, T(m.NewW)), within(top-y0, T(m.NewH)), within(right-x0, T(m.NewW)),
			within(bottom-y0, T(m.NewH))
	}
	fromCorners(v, f)
}
