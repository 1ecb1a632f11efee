package prep

import (
	"errors"
	"fmt"
	"image"
	"image/gif"
	"image/png"
	"io"
	"strings"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"
	"golang.org/x/image/webp"

	"larder/internal/errs"
)

// decode writes the image to dst, as RGB or, if h says that it is stored in these, as planes.
func (w *Worker) decode(h header, enc []byte, as Planes, dst []byte) error {
	dst = dst[:as.Bytes(h.w, h.h)]
	if w.outside != nil {
		_, err := w.outside.Pixels(enc, Want{W: h.w, H: h.h, As: as}, dst)
		return err
	}
	poison(enc)
	var err error
	switch h.format {
	case "jpeg":
		err = w.jpeg.decode(h, enc, as, dst, w.limits)
	case "netpbm": // bounded by its pixels and its bytes
		var at int64
		if at, err = h.netpbm.Decode(enc, dst); err != nil {
			err = locate(err, at)
		}
	default:
		err = decodeGo(h, enc, dst, w.limits)
	}
	if err == nil {
		return nil
	}
	return w.decodeError(h, enc, err)
}

// decodeError says of a decoder's error what was being decoded.
func (w *Worker) decodeError(h header, enc []byte, err error) error {
	if _, ok := errors.AsType[*errs.Error](err); ok {
		return err
	}
	if truncated(err) {
		return short(enc, "the %s image of %d x %d pixels is truncated after %d bytes", h.format, h.w, h.h, len(enc))
	}
	at, known := DamagedAt(err)
	if !known {
		at = -1
	}
	if l, ok := errors.AsType[*located](err); ok {
		err = l.error
	}
	return locate(errs.New(errs.SampleBad, "", hintBad, "cannot decode the %s image of %d x %d pixels", h.format,
		h.w, h.h).Because(err), at)
}

// corruptError is what libjpeg warned about.
type corruptError struct{ warning string }

func (e *corruptError) Error() string { return e.warning }

func corrupt(h header, warning string) error {
	return errs.New(errs.SampleBad, "", hintBad+`, or accept damaged images, as Pillow does`,
		"the %s image of %d x %d pixels is damaged", h.format, h.w, h.h).Because(&corruptError{warning})
}

// IsCorrupt reports whether an image was refused only because Limits.RefuseCorrupt asks for it.
func IsCorrupt(err error) bool {
	_, ok := errors.AsType[*corruptError](err)
	return ok
}

// truncated recognises how the decoders say that data is missing; not all of them wrap io.ErrUnexpectedEOF.
func truncated(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		strings.Contains(err.Error(), "unexpected EOF") || strings.Contains(err.Error(), "not enough")
}

// guard turns a panic of a decoder into an error: decoders written in Go answer some broken files that way.
func guard(format string, decode func() (image.Image, error)) (img image.Image, err error) {
	defer func() {
		if p := recover(); p != nil {
			img, err = nil, fmt.Errorf("the %s decoder gave up: %v", format, p)
		}
	}()
	return decode()
}

func decodeGo(h header, enc, dst []byte, limits Limits) error {
	var r timedReader
	img, err := guard(h.format, func() (image.Image, error) {
		r.begin(enc, limits.Timeout)
		defer r.end()
		switch h.format {
		case "png":
			return png.Decode(&r)
		case "gif":
			return gif.Decode(&r)
		case "webp":
			return webp.Decode(&r)
		case "bmp":
			return bmp.Decode(&r)
		case "tiff":
			return tiff.Decode(&r)
		}
		return nil, errors.New("unknown format")
	})
	if r.late {
		return tooLong(h, limits)
	}
	if err != nil {
		if h.format == "png" || h.format == "gif" { // they read as they decode; the others have the file before they begin
			return locate(err, int64(len(r.whole)-len(r.data)))
		}
		return err
	}
	if h.format == "tiff" {
		return tiffToRGB(h, img, dst)
	}
	if h.format == "gif" {
		return gifToRGB(h, enc, img, dst)
	}
	if b := img.Bounds(); b.Dx() != h.w || b.Dy() != h.h {
		return bad("the %s image holds %d x %d pixels, its header says %d x %d", h.format, b.Dx(), b.Dy(), h.w, h.h)
	}
	return toRGB(h, img, dst)
}

// toRGB converts as Pillow's convert("RGB"): alpha is dropped, not blended; of 16 bits the upper 8 are taken, but
// 16-bit grey is clipped at 255 (Pillow opens it as 32-bit integers).
func toRGB(h header, img image.Image, dst []byte) error {
	b := img.Bounds()
	switch m := img.(type) {
	case *image.RGBA:
		from4(dst, view{m.Pix[m.PixOffset(b.Min.X, b.Min.Y):], m.Stride, h.w, h.h})
	case *image.NRGBA:
		from4(dst, view{m.Pix[m.PixOffset(b.Min.X, b.Min.Y):], m.Stride, h.w, h.h})
	case *image.RGBA64:
		from8(dst, view{m.Pix, m.Stride, h.w, h.h}, false)
	case *image.NRGBA64:
		from8(dst, view{m.Pix, m.Stride, h.w, h.h}, h.format == "png" && h.color == 0)
	case *image.Gray:
		for y := range h.h {
			for x, v := range m.Pix[y*m.Stride:][:h.w] {
				p := dst[(y*h.w+x)*3:][:3]
				p[0], p[1], p[2] = v, v, v
			}
		}
	case *image.Gray16:
		for y := range h.h {
			for x := range h.w {
				s := m.Pix[y*m.Stride+2*x:][:2]
				v := clip16(s[0], s[1])
				p := dst[(y*h.w+x)*3:][:3]
				p[0], p[1], p[2] = v, v, v
			}
		}
	case *image.Paletted:
		t := paletteRGB(m)
		for y := range h.h {
			for x, v := range m.Pix[y*m.Stride:][:h.w] {
				copy(dst[(y*h.w+x)*3:][:3], t[v][:])
			}
		}
	case *image.YCbCr:
		return webpToRGB(m, h, dst)
	case *image.NYCbCrA:
		return webpToRGB(&m.YCbCr, h, dst)
	default:
		return fmt.Errorf("the decoder returned a %T", img)
	}
	return nil
}

func clip16(hi, lo uint8) uint8 {
	if hi != 0 {
		return 255
	}
	return lo
}

func from4(dst []byte, src view) {
	w := src.w
	for y := range src.h {
		s, d := src.pix[y*src.stride:][:4*w], dst[y*w*3:][:3*w]
		for i, j := 0, 0; i+4 <= len(s); i, j = i+4, j+3 {
			p, q := d[j:j+3:j+3], s[i:i+4:i+4]
			p[0], p[1], p[2] = q[0], q[1], q[2]
		}
	}
}

// from8 does the same for 16 bits a channel, big-endian: the upper 8 are taken, or clip puts what is above 255 at 255.
func from8(dst []byte, src view, clip bool) {
	w := src.w
	for y := range src.h {
		s, d := src.pix[y*src.stride:][:8*w], dst[y*w*3:][:3*w]
		for i, j := 0, 0; i+8 <= len(s); i, j = i+8, j+3 {
			p, q := d[j:j+3:j+3], s[i:i+8:i+8]
			if clip {
				p[0], p[1], p[2] = clip16(q[0], q[1]), clip16(q[2], q[3]), clip16(q[4], q[5])
			} else {
				p[0], p[1], p[2] = q[0], q[2], q[4]
			}
		}
	}
}

// paletteRGB tabulates the palette without alpha. color.Color is premultiplied, so the concrete types are read.
func paletteRGB(m *image.Paletted) *[256][3]uint8 {
	t := new([256][3]uint8)
	for i, c := range m.Palette {
		if i < len(t) {
			t[i] = opaque(c)
		}
	}
	return t
}

// gifToRGB puts the first frame on the logical screen. Pillow fills the rest with the transparent index, else index 0,
// and keeps the colour of the transparent index, which Go's decoder overwrites.
func gifToRGB(h header, enc []byte, img image.Image, dst []byte) error {
	m, ok := img.(*image.Paletted)
	if !ok {
		return fmt.Errorf("the decoder returned a %T", img)
	}
	t, back := gifPalette(enc)
	b := m.Bounds()
	if !b.In(image.Rect(0, 0, h.w, h.h)) {
		return bad("the gif image's first frame lies outside of its %d x %d pixels", h.w, h.h)
	}
	if b.Dx() != h.w || b.Dy() != h.h {
		for i := 0; i+3 <= len(dst); i += 3 {
			copy(dst[i:i+3], t[back][:])
		}
	}
	for y := range b.Dy() {
		for x, v := range m.Pix[y*m.Stride:][:b.Dx()] {
			copy(dst[((b.Min.Y+y)*h.w+b.Min.X+x)*3:][:3], t[v][:])
		}
	}
	return nil
}

// gifPalette reads the colour table of the first frame and its transparent index (0 without one). The decoder has
// accepted the file before, so what does not parse here is left black.
func gifPalette(enc []byte) (t [256][3]uint8, transparent uint8) {
	table := func(p int, flags byte) int {
		n := 2 << (flags & 7)
		for i := 0; i < n && p+3*i+3 <= len(enc); i++ {
			copy(t[i][:], enc[p+3*i:])
		}
		return p + 3*n
	}
	p := 13
	if enc[10]&0x80 != 0 {
		p = table(p, enc[10])
	}
	for p+10 <= len(enc) {
		switch enc[p] {
		case 0x21: // extension: a label, then blocks
			if enc[p+1] == 0xf9 && enc[p+3]&1 != 0 {
				transparent = enc[p+6]
			}
			for p += 2; p < len(enc) && enc[p] != 0; {
				p += 1 + int(enc[p])
			}
			p++
		case 0x2c: // image descriptor
			if enc[p+9]&0x80 != 0 {
				table(p+10, enc[p+9])
			}
			return t, transparent
		default:
			return t, transparent
		}
	}
	return t, transparent
}
