package prep

import (
	"bytes"
	"testing"
)

// pictured is an image of gradients; grey ones have three equal channels.
func pictured(w, h int, grey bool) Image {
	pix := make([]byte, 3*w*h)
	for i := range w * h {
		x, y := i%w, i/w
		for c := range 3 {
			v := (5*x + 3*y + 60*c) / 2
			if grey {
				v = 5*x + 3*y
			}
			pix[3*i+c] = byte(min(v, 255))
		}
	}
	return newImage(pix, w, h)
}

func decoded(t *testing.T, enc []byte) Image {
	t.Helper()
	w := NewWorker(Limits{RefuseCorrupt: true})
	defer w.Close()
	r, err := ParseRecipe(nil)
	if err != nil {
		t.Fatal(err)
	}
	img, err := w.Decode(r, enc, func(n int) ([]byte, error) { return make([]byte, n), nil })
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestEncodedImagesDecode: PNG files have the same pixels, JPEG files nearly.
func TestEncodedImagesDecode(t *testing.T) {
	for _, size := range [][2]int{{1, 1}, {1, 17}, {16, 16}, {33, 20}} {
		for _, grey := range []bool{false, true} {
			img := pictured(size[0], size[1], grey)
			png, err := EncodePNG(img)
			if err != nil {
				t.Fatal(err)
			}
			if got := decoded(t, png); got.W != img.W || got.H != img.H || !bytes.Equal(got.Pix, img.Pix) {
				t.Errorf("%v grey %v: a PNG file has other pixels", size, grey)
			}
			jpeg, err := EncodeJPEG(img, 95)
			if err != nil {
				t.Fatal(err)
			}
			got, sum := decoded(t, jpeg), 0
			if got.W != img.W || got.H != img.H {
				t.Fatalf("%v: a JPEG file has %d x %d pixels", size, got.W, got.H)
			}
			for i := range img.Pix {
				sum += max(int(img.Pix[i])-int(got.Pix[i]), int(got.Pix[i])-int(img.Pix[i]))
			}
			if mean := float64(sum) / float64(len(img.Pix)); mean > 6 {
				t.Errorf("%v grey %v: JPEG of quality 95 is off by %.1f levels", size, grey, mean)
			}
			if h, err := sniff(jpeg); err != nil || grey && h.channels != 1 {
				t.Errorf("%v: a grey image became %+v, %v", size, h, err)
			}
		}
	}
}

func TestEncodersRefuseWhatIsNoImage(t *testing.T) {
	for name, img := range map[string]Image{
		"short": {Pix: make([]byte, 5), W: 2, H: 1, C: 3}, "empty": {C: 3},
		"planes": {Pix: make([]byte, 100), W: 2, H: 2, C: 3, Planes: Planes422},
	} {
		if _, err := EncodeJPEG(img, 90); err == nil {
			t.Errorf("%s: encoded as JPEG", name)
		}
		if _, err := EncodePNG(img); err == nil {
			t.Errorf("%s: encoded as PNG", name)
		}
	}
}
