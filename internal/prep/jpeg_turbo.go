//go:build cgo && turbo

package prep

/*
#cgo CFLAGS: -O3 -std=c11
#cgo noescape larder_jpeg_decode
#cgo nocallback larder_jpeg_decode
#include "turbo.h"
*/
import "C"

import (
	"errors"
	"runtime"
	"unsafe"
)

func octets(s []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(s))) }

// DecoderName says which JPEG decoder this build has.
func DecoderName() string { return "libjpeg-turbo" }

// Parity reports whether this build gives torchvision's bits for JPEG files too.
func Parity() bool { return true }

// jpegDecoder is a decompressor that is reused from image to image. A finalizer frees it when Close was forgotten.
type jpegDecoder struct{ c *turboHandle }

type turboHandle struct {
	j       *C.larder_jpeg
	picture C.larder_picture // what a call passes, here so that it does not escape
}

func (d *jpegDecoder) close() {
	if d.c != nil {
		runtime.SetFinalizer(d.c, nil)
		d.c.free()
		d.c = nil
	}
}

// jpegWorking is what libjpeg takes beside the image: coefficients of a progressive one, two bytes each. Those of an
// image of several scans that is not progressive are found out, and bounded, by libjpeg itself.
func jpegWorking(h header) int64 {
	if !h.waves {
		return 0
	}
	return 2 * int64(h.channels) * int64(h.w) * int64(h.h)
}

func (t *turboHandle) free() { C.larder_jpeg_free(t.j) }

// decode writes the whole image to dst. as is Packed, or what header found.
func (d *jpegDecoder) decode(h header, enc []byte, as Planes, dst []byte, limits Limits) error {
	_, err := d.run(h, enc, dst, limits, C.larder_picture{planes: C.int32_t(as)})
	return err
}

// regionSlack is what a region may grow on each side: the margin of turbo.c, and up to the largest MCU.
const regionSlack = 4 + 32

// room is how many bytes region needs; 0 = it is not offered.
func (d *jpegDecoder) room(h header, need box) int {
	return min(need.w+2*regionSlack, h.w) * min(need.h+2*regionSlack, h.h) * 3
}

// region decodes the part of an image that holds need into pix, of room bytes. got is that part; nothing is left out of
// it that would make its pixels other ones than those of the whole image. It is empty when this image must be decoded
// whole.
func (d *jpegDecoder) region(h header, enc []byte, need box, limits Limits, pix []byte) (got box, err error) {
	return d.run(h, enc, pix, limits, C.larder_picture{
		x: C.uint32_t(need.x), y: C.uint32_t(need.y), cols: C.uint32_t(need.w), rows: C.uint32_t(need.h),
	})
}

// run decodes what is asked for in picture, whose other fields it sets, and returns which part lies in dst.
func (d *jpegDecoder) run(h header, enc, dst []byte, limits Limits, picture C.larder_picture) (got box, err error) {
	if d.c == nil {
		j := C.larder_jpeg_new()
		if j == nil {
			return box{}, errors.New("no memory for a decoder")
		}
		d.c = &turboHandle{j: j}
		runtime.SetFinalizer(d.c, (*turboHandle).free)
	}
	p := &d.c.picture
	*p = picture
	p.w, p.h = C.uint32_t(h.w), C.uint32_t(h.h)
	p.max_bytes = C.int64_t(max(limits.MaxBytes-3*int64(h.w)*int64(h.h), 1))
	p.max_scans = C.int32_t(limits.scans(h))
	p.max_cpu = C.int64_t(limits.Timeout)
	if limits.RefuseCorrupt {
		p.strict = 1
	}
	// Neither slice is empty: a header was found in enc, and its sides are at least 1.
	rc := C.larder_jpeg_decode(d.c.j, octets(enc), C.size_t(len(enc)), p, octets(dst), C.size_t(len(dst)))
	runtime.KeepAlive(d.c)
	switch rc {
	case C.LARDER_DONE:
		return box{x: int(p.x), y: int(p.y), w: int(p.cols), h: int(p.rows)}, nil
	case C.LARDER_NO_REGION:
		return box{}, nil
	case C.LARDER_TRUNCATED:
		return box{}, locate(bad("the jpeg image of %d x %d pixels is truncated after %d bytes", h.w, h.h, len(enc)),
			int64(len(enc)))
	case C.LARDER_TIMEOUT:
		return box{}, tooLong(h, limits)
	case C.LARDER_CORRUPT:
		return box{}, locate(corrupt(h, C.GoString(&d.c.j.message[0])), int64(d.c.j.at))
	}
	return box{}, locate(errors.New(C.GoString(&d.c.j.message[0])), int64(d.c.j.at))
}
