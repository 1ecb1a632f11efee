package prep

import "image"

// tiffWorking is what x/image/tiff takes beside the RGB: the image in a form of its own, and one block unpacked, whose
// buffer doubles as it grows. A block may unpack to 8 bytes a pixel, whatever its header says of bits.
func tiffWorking(h header, pixels int64) int64 {
	n := 4 * pixels
	if h.tiff.Bits == 16 {
		n = 8 * pixels
	}
	if h.tiff.Orientation > 1 {
		n += 3 * pixels
	}
	if h.tiff.Compression == 1 { // as many bytes as the file has
		return n
	}
	return n + 24*min(h.tiff.BlockPixels, pixels+1<<20)
}

// tiffToRGB converts, and turns the image as its orientation says, as Pillow does when it loads one.
func tiffToRGB(h header, img image.Image, dst []byte) error {
	t := h.tiff
	if b := img.Bounds(); b.Dx() != t.Width || b.Dy() != t.Height {
		return bad("the tiff image holds %d x %d pixels, its header says %d x %d", b.Dx(), b.Dy(), t.Width, t.Height)
	}
	if t.Premultiplied {
		divideAlpha(img)
	}
	// the decoder takes white runs for white, libtiff for zero
	if m, ok := img.(*image.Gray); ok && t.Fax() && t.Photometric == 1 {
		for i := range m.Pix {
			m.Pix[i] ^= 0xff
		}
	}
	if t.Orientation == 1 {
		return toRGB(h, img, dst)
	}
	stored := h
	stored.w, stored.h = t.Width, t.Height
	pix := make([]byte, len(dst))
	if err := toRGB(stored, img, pix); err != nil {
		return err
	}
	t.Orient(dst, pix)
	return nil
}

// divideAlpha undoes the multiplication by alpha with Pillow's rounding, on 8 bits: of 16 the upper ones count.
func divideAlpha(img image.Image) {
	switch m := img.(type) {
	case *image.RGBA:
		for i := 0; i+4 <= len(m.Pix); i += 4 {
			a := int(m.Pix[i+3])
			for c := range 3 {
				m.Pix[i+c] = divided(int(m.Pix[i+c]), a)
			}
		}
	case *image.RGBA64:
		for i := 0; i+8 <= len(m.Pix); i += 8 {
			a := int(m.Pix[i+6])
			for c := 0; c < 6; c += 2 {
				m.Pix[i+c] = divided(int(m.Pix[i+c]), a)
			}
		}
	}
}

func divided(v, a int) uint8 {
	switch a {
	case 0:
		return 0
	case 255:
		return uint8(v)
	}
	return uint8(min(255, v*255/a))
}
