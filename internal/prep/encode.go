package prep

import (
	"bytes"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
)

// EncoderName says what EncodeJPEG encodes with.
func EncoderName() string { return "image/jpeg" }

// EncodeJPEG returns img, packed RGB, as a JPEG file of a quality of 1 to 100, with colour at half of both sides; a
// grey image becomes a grey file. The same image and quality give the same bytes with the same version of Go.
func EncodeJPEG(img Image, quality int) ([]byte, error) {
	m, err := goImage(img)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := jpeg.Encode(&b, m, &jpeg.Options{Quality: quality}); err != nil {
		return nil, fmt.Errorf("encode an image of %d x %d pixels as JPEG: %w", img.W, img.H, err)
	}
	return b.Bytes(), nil
}

// EncodePNG returns img, packed RGB, as a PNG file with the same pixels; a grey image becomes a grey file.
func EncodePNG(img Image) ([]byte, error) {
	m, err := goImage(img)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		return nil, fmt.Errorf("encode an image of %d x %d pixels as PNG: %w", img.W, img.H, err)
	}
	return b.Bytes(), nil
}

// goImage is img in the form that Go's encoders take fastest.
func goImage(img Image) (image.Image, error) {
	if img.Planes != Packed {
		return nil, badDst(len(img.Pix), img.W*img.H*3)
	}
	if err := checkImage(img); err != nil {
		return nil, err
	}
	pix := img.Pix[:3*img.W*img.H]
	all := image.Rect(0, 0, img.W, img.H)
	if isGrey(pix) {
		m := image.NewGray(all)
		for i := range m.Pix {
			m.Pix[i] = pix[3*i]
		}
		return m, nil
	}
	m := image.NewRGBA(all)
	for i, j := 0, 0; i+3 <= len(pix); i, j = i+3, j+4 {
		p, q := m.Pix[j:j+4:j+4], pix[i:i+3:i+3]
		p[0], p[1], p[2], p[3] = q[0], q[1], q[2], 255
	}
	return m, nil
}

func isGrey(pix []byte) bool {
	for i := 0; i+3 <= len(pix); i += 3 {
		if pix[i] != pix[i+1] || pix[i] != pix[i+2] {
			return false
		}
	}
	return true
}
