//go:build !(cgo && turbo)

package prep

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"io"

	"github.com/gen2brain/jpegn"
)

// DecoderName says which JPEG decoder this build has.
func DecoderName() string { return "go" }

// Parity reports whether this build gives torchvision's bits for JPEG files too.
func Parity() bool { return false }

// jpegDecoder decodes with jpegn, and with the standard library what jpegn does not read.
type jpegDecoder struct{}

// jpegWorking is what the decoders in Go take beside the result: the image in another form, and coefficients of a
// progressive one, four bytes each.
func jpegWorking(h header) int64 {
	n := int64(4 + h.channels)
	if h.waves {
		n += 4 * int64(h.channels)
	}
	return n * int64(h.w) * int64(h.h)
}

func (d *jpegDecoder) close() {}

// room is 0: these decoders decode whole images.
func (d *jpegDecoder) room(header, box) int { return 0 }

// region is not offered by these decoders.
func (d *jpegDecoder) region(header, []byte, box, Limits, []byte) (got box, err error) {
	return box{}, nil
}

// decode writes the whole image to dst. Images are Packed in this build.
func (d *jpegDecoder) decode(h header, enc []byte, _ Planes, dst []byte, limits Limits) error {
	// jpegn decodes a truncated file as far as it goes. Inside entropy-coded data the bytes of the end marker cannot
	// occur, so a file without one behind its first scan was cut.
	scan := bytes.Index(enc, []byte{0xff, 0xda})
	if scan < 0 || bytes.LastIndex(enc[scan:], []byte{0xff, 0xd9}) < 0 {
		return io.ErrUnexpectedEOF
	}
	if n := limits.scans(h); bytes.Count(enc[scan:], []byte{0xff, 0xda}) > n {
		return fmt.Errorf("more than %d scans", n)
	}
	if limits.RefuseCorrupt {
		// jpegn accepts damage silently; the standard library does not.
		if _, err := guard("jpeg", func() (image.Image, error) { return jpeg.Decode(bytes.NewReader(enc)) }); err != nil {
			return corrupt(h, err.Error())
		}
	}
	img, err := guard("jpeg", func() (image.Image, error) {
		if h.channels == 4 {
			return jpeg.Decode(bytes.NewReader(enc))
		}
		return jpegn.Decode(bytes.NewReader(enc), &jpegn.Options{ToRGBA: true, UpsampleMethod: jpegn.CatmullRom})
	})
	if err != nil && h.channels != 4 {
		img, err = guard("jpeg", func() (image.Image, error) { return jpeg.Decode(bytes.NewReader(enc)) })
	}
	if err != nil {
		return err
	}
	if b := img.Bounds(); b.Dx() != h.w || b.Dy() != h.h {
		return bad("the jpeg image holds %d x %d pixels, its header says %d x %d", b.Dx(), b.Dy(), h.w, h.h)
	}
	switch m := img.(type) {
	case *image.CMYK:
		for y := range h.h {
			s, t := m.Pix[y*m.Stride:][:4*h.w], dst[y*h.w*3:][:3*h.w]
			for i, j := 0, 0; i+4 <= len(s); i, j = i+4, j+3 {
				k := 255 - int(s[i+3])
				for c := range 3 {
					v := int(s[i+c])*k + 128
					t[j+c] = uint8(max(k-(v>>8+v)>>8, 0))
				}
			}
		}
		return nil
	case *image.YCbCr:
		for y := range h.h {
			for x := range h.w {
				c := m.YCbCrAt(x, y)
				p := dst[(y*h.w+x)*3:][:3]
				p[0], p[1], p[2] = color.YCbCrToRGB(c.Y, c.Cb, c.Cr)
			}
		}
		return nil
	case *image.RGBA, *image.Gray:
		return toRGB(h, img, dst)
	}
	return fmt.Errorf("the decoder returned a %T", img)
}
