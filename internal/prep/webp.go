package prep

import (
	"fmt"
	"image"
	"image/color"
)

// opaque reads a palette colour without its alpha.
func opaque(c color.Color) [3]uint8 {
	switch c := c.(type) {
	case color.RGBA: // premultiplied, but the decoders use it for opaque colours and for fully transparent black only
		return [3]uint8{c.R, c.G, c.B}
	case color.NRGBA:
		return [3]uint8{c.R, c.G, c.B}
	}
	n, _ := color.NRGBAModel.Convert(c).(color.NRGBA)
	return [3]uint8{n.R, n.G, n.B}
}

// webpToRGB converts what x/image/vp8 decoded as libwebp does: "fancy" chroma upsampling (weights 9, 3, 3, 1 of 16) and
// 14-bit fixed-point conversion. Planes of VP8 are bit-exact by its specification, so the result equals Pillow's.
func webpToRGB(m *image.YCbCr, h header, dst []byte) error {
	if m.SubsampleRatio != image.YCbCrSubsampleRatio420 || !m.Rect.Eq(image.Rect(0, 0, h.w, h.h)) {
		return fmt.Errorf("the decoder returned chroma %v for %v", m.SubsampleRatio, m.Rect)
	}
	ch := (h.h + 1) / 2
	for y := range h.h {
		// A row lies between its own chroma row and the nearer neighbour, which at the borders is itself.
		own := y / 2
		near := own + 1
		if y%2 == 0 {
			near = own - 1
		}
		near = min(max(near, 0), ch-1)
		webpRow(dst[y*h.w*3:][:h.w*3], m.Y[y*m.YStride:][:h.w],
			chroma{m.Cb[own*m.CStride:], m.Cr[own*m.CStride:]}, chroma{m.Cb[near*m.CStride:], m.Cr[near*m.CStride:]})
	}
	return nil
}

// chroma is a row of both chroma planes.
type chroma struct{ u, v []byte }

// webpRow upsamples one row from its chroma row and the neighbour's. The order of roundings is libwebp's.
func webpRow(dst, luma []byte, own, near chroma) {
	u, v, nu, nv := own.u, own.v, near.u, near.v
	w := len(luma)
	edge := func(x, at int) {
		webpPixel(dst[3*x:], luma[x], (3*int(u[at])+int(nu[at])+2)>>2, (3*int(v[at])+int(nv[at])+2)>>2)
	}
	edge(0, 0)
	for k := 1; k <= (w-1)/2; k++ {
		lu, ru := webpDiag(u[k-1], u[k], nu[k-1], nu[k])
		lv, rv := webpDiag(v[k-1], v[k], nv[k-1], nv[k])
		webpPixel(dst[3*(2*k-1):], luma[2*k-1], lu, lv)
		webpPixel(dst[3*(2*k):], luma[2*k], ru, rv)
	}
	if w%2 == 0 {
		edge(w-1, w/2-1)
	}
}

// webpDiag gives the two values between a and b of a row; c and d are below or above them in the neighbouring row.
func webpDiag(a, b, c, d uint8) (left, right int) {
	ia, ib, ic, id := int(a), int(b), int(c), int(d)
	avg := ia + ib + ic + id + 8
	bc := (avg + 2*(ib+ic)) >> 3
	ad := (avg + 2*(ia+id)) >> 3
	return (bc + ia) >> 1, (ad + ib) >> 1
}

func webpPixel(dst []byte, y uint8, u, v int) {
	l := int(y) * 19077 >> 8
	d := dst[:3:3]
	d[0] = webpClip(l + v*26149>>8 - 14234)
	d[1] = webpClip(l - u*6419>>8 - v*13320>>8 + 8708)
	d[2] = webpClip(l + u*33050>>8 - 17685)
}

func webpClip(v int) uint8 { return uint8(min(max(v>>6, 0), 255)) }
