package prep

import (
	"errors"
	"image"
	"image/png"

	"larder/internal/errs"
)

const hintMask = "save masks as PNG with a palette, or in grey of at most 8 bits"

// decodeMask writes the numbers of a mask's pixels to dst, as NumPy has them of an image that Pillow opened: the
// indices of a palette, grey values, 0 and 1 of 1 bit. Of colours, only those are taken whose channels are equal.
func (w *Worker) decodeMask(h header, enc, dst []byte) error {
	poison(enc)
	switch {
	case h.format != "png":
		return errs.New(errs.SampleBad, "", hintMask, "a mask is a %s image, and only PNG keeps its numbers", h.format)
	case h.depth > 8:
		return errs.New(errs.SampleBad, "", hintMask, "the mask has %d bits a pixel", h.depth)
	}
	var r timedReader
	img, err := guard(h.format, func() (image.Image, error) {
		r.begin(enc, w.limits.Timeout)
		defer r.end()
		return png.Decode(&r)
	})
	switch {
	case r.late:
		return tooLong(h, w.limits)
	case err != nil:
		return w.decodeError(h, enc, locate(err, int64(len(r.whole)-len(r.data))))
	case img.Bounds().Dx() != h.w || img.Bounds().Dy() != h.h:
		return bad("the mask holds %d x %d pixels, its header says %d x %d", img.Bounds().Dx(), img.Bounds().Dy(), h.w, h.h)
	}
	if err := numbersOf(h, img, dst); err != nil {
		return errs.New(errs.SampleBad, "", hintMask, "%v", err)
	}
	return nil
}

func numbersOf(h header, img image.Image, dst []byte) error {
	switch m := img.(type) {
	case *image.Paletted:
		for y := range h.h {
			copy(dst[y*h.w:][:h.w], m.Pix[y*m.Stride:][:h.w])
		}
		return nil
	case *image.Gray:
		for y := range h.h {
			copy(dst[y*h.w:][:h.w], m.Pix[y*m.Stride:][:h.w])
		}
		h.bits(dst)
		return nil
	}
	rgb := make([]byte, 3*h.w*h.h)
	if err := toRGB(h, img, rgb); err != nil {
		return err
	}
	for i := range dst[:h.w*h.h] {
		p := rgb[3*i:][:3]
		if p[0] != p[1] || p[1] != p[2] {
			return errors.New("the mask has colours, which are no numbers of classes")
		}
		dst[i] = p[0]
	}
	h.bits(dst)
	return nil
}

// bits makes 0 and 255 of a mask of 1 bit 0 and 1.
func (h *header) bits(mask []byte) {
	if h.depth > 1 {
		return
	}
	for i := range mask[:h.w*h.h] {
		mask[i] &= 1
	}
}
