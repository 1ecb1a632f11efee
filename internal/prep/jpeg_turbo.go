//go:build cgo && turbo

package prep

/*
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

// DecoderName says which JPEG decoder this build has.
func DecoderName() string { return "libjpeg-turbo" }

// Parity tells whether this build gives torchvision's bits for JPEG files too.
func Parity() bool { return true }

// jpegDecoder is a decompressor that is reused from image to image. A finalizer frees it when Close was forgotten.
type jpegDecoder struct{ c *turboHandle }

type turboHandle struct{ j *C.larder_jpeg }

func (d *jpegDecoder) close() {
	if d.c != nil {
		runtime.SetFinalizer(d.c, nil)
		d.c.free()
		d.c = nil
	}
}

func (t *turboHandle) free() { C.larder_jpeg_free(t.j) }

func (d *jpegDecoder) decode(h header, enc, dst []byte, limits Limits) error {
	if d.c == nil {
		j := C.larder_jpeg_new()
		if j == nil {
			return errors.New("no memory for a decoder")
		}
		d.c = &turboHandle{j: j}
		runtime.SetFinalizer(d.c, (*turboHandle).free)
	}
	// Neither slice is empty: a header was found in enc, and its sides are at least 1.
	rc := C.larder_jpeg_decode(d.c.j, (*C.uint8_t)(unsafe.Pointer(&enc[0])), C.size_t(len(enc)),
		(*C.uint8_t)(unsafe.Pointer(&dst[0])), C.uint32_t(h.w), C.uint32_t(h.h),
		C.int64_t(limits.MaxBytes), C.int(maxScans(h)))
	runtime.KeepAlive(d.c)
	switch rc {
	case 0:
		return nil
	case 2:
		return bad("the jpeg image of %d x %d pixels is truncated after %d bytes", h.w, h.h, len(enc))
	}
	return errors.New(C.GoString(&d.c.j.message[0]))
}
