package prep

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math"
	"testing"

	"larder/internal/xrand"
)

// draw makes a picture with what photographs have: slow gradients, edges, texture, noise.
func draw(w, h int, seed uint64) Image {
	rnd := xrand.New(seed, 0xd7a3)
	pix := make([]byte, w*h*3)
	fx, fy := rnd.Uniform(0.005, 0.08), rnd.Uniform(0.005, 0.08)
	cx, cy, rad := rnd.IntN(w), rnd.IntN(h), 1+rnd.IntN(max(w, h))/3
	for y := range h {
		for x := range w {
			base := 110 + 70*math.Sin(float64(x)*fx+float64(seed)) + 50*math.Cos(float64(y)*fy)
			for c := range 3 {
				v := base + 40*math.Sin(float64(c+1)*float64(x+y)*0.03) + float64(rnd.IntN(17)) - 8
				if (x-cx)*(x-cx)+(y-cy)*(y-cy) < rad*rad {
					v = 255 - v + float64(30*c)
				}
				pix[(y*w+x)*3+c] = uint8(min(max(v, 0), 255))
			}
		}
	}
	return newImage(pix, w, h)
}

func (img Image) rgba() *image.RGBA {
	m := image.NewRGBA(image.Rect(0, 0, img.W, img.H))
	for i := range img.W * img.H {
		m.SetRGBA(i%img.W, i/img.W, color.RGBA{img.Pix[3*i], img.Pix[3*i+1], img.Pix[3*i+2], 255})
	}
	return m
}

func drawnJPEG(tb testing.TB, w, h int, seed uint64) []byte {
	tb.Helper()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, draw(w, h, seed).rgba(), &jpeg.Options{Quality: 90}); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func asPNG(tb testing.TB, img image.Image) []byte {
	tb.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func parse(tb testing.TB, ops ...OpSpec) *Recipe {
	tb.Helper()
	r, err := ParseRecipe(ops)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func spec(name string, kv ...any) OpSpec {
	s := OpSpec{Name: name, Args: map[string]any{}}
	for i := 0; i < len(kv); i += 2 {
		s.Args[kv[i].(string)] = kv[i+1]
	}
	return s
}

func heap(n int) ([]byte, error) { return make([]byte, n), nil }

// bmp24 writes an uncompressed 24-bit BMP, which every reader reads alike.
func bmp24(img Image) []byte {
	row := (img.W*3 + 3) &^ 3
	b := make([]byte, 54+row*img.H)
	copy(b, "BM")
	put := func(at, v int) { b[at], b[at+1], b[at+2], b[at+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24) }
	put(2, len(b))
	put(10, 54)
	put(14, 40)
	put(18, img.W)
	put(22, img.H)
	b[26], b[28] = 1, 24
	for y := range img.H {
		for x := range img.W {
			s, d := img.Pix[(y*img.W+x)*3:], b[54+(img.H-1-y)*row+3*x:]
			d[0], d[1], d[2] = s[2], s[1], s[0]
		}
	}
	return b
}
