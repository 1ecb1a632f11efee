//go:build cgo && turbo

package kernel

/*
#cgo CFLAGS: -O3 -std=c11
#cgo LDFLAGS: -lm
#cgo noescape larder_geo_run
#cgo nocallback larder_geo_run
#cgo noescape larder_color_run
#cgo nocallback larder_color_run
#cgo noescape larder_planes_run
#cgo nocallback larder_planes_run
#cgo noescape larder_finish_run
#cgo nocallback larder_finish_run
#cgo noescape larder_affine_run
#cgo nocallback larder_affine_run
#cgo noescape larder_blur_run
#cgo nocallback larder_blur_run
#cgo noescape larder_sharpen_run
#cgo nocallback larder_sharpen_run
#include "kernel.h"
*/
import "C"

import "unsafe"

// How rows are written.
const (
	U8HWC  int32 = C.LARDER_U8_HWC
	U8CHW  int32 = C.LARDER_U8_CHW
	F32CHW int32 = C.LARDER_F32_CHW
	F32HWC int32 = C.LARDER_F32_HWC
	U8One  int32 = C.LARDER_U8_ONE
	F32One int32 = C.LARDER_F32_ONE
)

// SSE4 is the level of the processors with SSE 4.1; levels above it have wider registers.
const SSE4 = C.LARDER_SSE4

// Kinds of colour steps.
const (
	Brightness int32 = C.LARDER_BRIGHTNESS
	Contrast   int32 = C.LARDER_CONTRAST
	Saturation int32 = C.LARDER_SATURATION
	Hue        int32 = C.LARDER_HUE
	Gray       int32 = C.LARDER_GRAY
)

// How a matrix takes its pixels.
const (
	Fixed  int32 = C.LARDER_FIXED
	Linear int32 = C.LARDER_LINEAR
	Cubic  int32 = C.LARDER_CUBIC
)

// Geo is one pass over an image: larder_geo of kernel.h, which explains the fields. Nothing in it points anywhere, so
// that a call pins and copies nothing. That holds for the structures below too.
type Geo struct {
	SrcLen, SrcStride, MidStride int64

	SrcW        int32
	Skip        [2]int32 // skip_x, skip_y
	Win         [4]int32 // win_x, win_y, win_w, win_h
	First, Rows int32
	Flip        [2]int32 // hflip, vflip
	Passes
	Output
}

// Passes is how Geo resizes.
type Passes struct{ HGroups, HReach, VTaps, Ring int32 }

// Output is how Geo writes.
type Output struct {
	Out, Affine, Level, Stream int32
	Correction                 float32
	Mean, Std, Inv             [3]float32
}

// Weights are those of one direction, nil where it keeps its size: pairs of the first pixel and the number of weights,
// and the weights.
type Weights struct{ Bounds, Values []int32 }

// Color is a colour step: larder_color.
type Color struct {
	Kind, Hue int32
	F         float32
}

// Planes is a part of a planar image: larder_planes.
type Planes struct {
	Kind             int32
	W, H             int32
	X, Y, Cols, Rows int32
	Level            int32
}

// Affine moves pixels by a matrix: larder_affine.
type Affine struct {
	M      [6]float64
	Fixed  [6]int32
	W, H   int32
	RW, RH int32
	Kind   int32
	Level  int32
	Fill   [4]uint8
}

// Blur is larder_blur.
type Blur struct {
	Stride  int64
	W, H    int32
	X, Cols int32
	KX, KY  int32
	Level   int32
}

// The size of each structure is that of its twin in C, or this does not compile. The tests of prep compare bits: they
// see fields that are exchanged.
var (
	_ = [1]byte{}[unsafe.Sizeof(Geo{})-C.sizeof_larder_geo]
	_ = [1]byte{}[unsafe.Sizeof(Color{})-C.sizeof_larder_color]
	_ = [1]byte{}[unsafe.Sizeof(Planes{})-C.sizeof_larder_planes]
	_ = [1]byte{}[unsafe.Sizeof(Affine{})-C.sizeof_larder_affine]
	_ = [1]byte{}[unsafe.Sizeof(Blur{})-C.sizeof_larder_blur]
)

func ints(s []int32) *C.int32_t   { return (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(s))) }
func octets(s []byte) *C.uint8_t  { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(s))) }
func floats(s []float32) *C.float { return (*C.float)(unsafe.Pointer(unsafe.SliceData(s))) }
func floatsIn(s []byte) *C.float  { return (*C.float)(unsafe.Pointer(unsafe.SliceData(s))) }

// BestLevel is the best instruction set of this processor that kernel.c knows, at least 1.
func BestLevel() int { return int(C.larder_cpu_level()) }

// Run is the pass from src to dst. lut is nil where the output is uint8, else it has 3 x 256 floats.
func (g *Geo) Run(src, scratch, dst []byte, by [2]Weights, lut []float32) {
	h, v := by[0], by[1]
	C.larder_geo_run((*C.larder_geo)(unsafe.Pointer(g)), octets(src), ints(h.Bounds), ints(h.Values), ints(v.Bounds),
		ints(v.Values), floats(lut), octets(scratch), octets(dst))
}

// RunColors applies colour steps in place to packed RGB pixels.
func RunColors(level int, pix []byte, steps []Color) {
	C.larder_color_run(C.int(level), octets(pix), C.int64_t(len(pix)/3),
		(*C.larder_color)(unsafe.Pointer(unsafe.SliceData(steps))), C.int(len(steps)))
}

// Finish writes packed RGB as U8HWC or U8CHW; stream goes past the caches, where the place allows it.
func Finish(level int, out int32, src, dst []byte, stream bool) {
	past := C.int(0)
	if stream {
		past = 1
	}
	C.larder_finish_run(C.int(level), C.int(out), octets(src), C.int64_t(len(src)/3), octets(dst), past)
}

// Run writes the part as packed RGB. scratch holds 2 * (Cols + 64) bytes; up to 64 bytes behind the part are written.
func (p *Planes) Run(src, scratch, dst []byte) {
	C.larder_planes_run((*C.larder_planes)(unsafe.Pointer(p)), octets(src), octets(scratch), octets(dst))
}

// Run moves the pixels of src.
func (a *Affine) Run(src, dst []byte) {
	C.larder_affine_run((*C.larder_affine)(unsafe.Pointer(a)), octets(src), octets(dst))
}

// Run blurs the columns that b names. from has the columns, then the rows, that padding takes; scratch holds
// 3 * Stride * (KY + 1) floats.
func (b *Blur) Run(weights []float32, from []int32, src, scratch, dst []byte) {
	C.larder_blur_run((*C.larder_blur)(unsafe.Pointer(b)), floats(weights), ints(from), octets(src), floatsIn(scratch),
		octets(dst))
}

// Sharpen moves W x H pixels away from the smoothed image, or towards it, by F.
type Sharpen struct {
	Level, W, H int
	F           float32
}

// Run sharpens; dst has the border already.
func (s Sharpen) Run(src, dst []byte) {
	C.larder_sharpen_run(C.int(s.Level), octets(src), C.int64_t(s.W), C.int64_t(s.H), C.float(s.F), octets(dst))
}
