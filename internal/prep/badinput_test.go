package prep

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"strings"
	"testing"

	"larder/internal/fault"
)

// TestWidestImages: what JPEG and PNG can just hold goes through decoding, parts of it and kernels.
func TestWidestImages(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	recipes := []*Recipe{
		trainRecipe(t, imagenet), parse(t, spec("Resize", "size", []any{3.0, 5.0}), imagenet), parse(t, spec("CenterCrop", "size", 7.0)),
		parse(t, spec("Resize", "size", []any{1.0, 65500.0}, "interpolation", "bicubic"), spec("HFlip"), spec("ColorJitter", "contrast", 0.5, "hue", 0.1)),
	}
	for _, s := range [][2]int{{65500, 1}, {1, 65500}, {65500, 9}, {9, 65500}} {
		pic := draw(s[0], s[1], 8)
		for _, enc := range [][]byte{drawnJPEG(t, s[0], s[1], 8), bmp24(pic)} {
			for i, r := range recipes {
				got, want := make([]byte, r.Output().SampleBytes), make([]byte, r.Output().SampleBytes)
				key := RandKey{Seed: 3, Sample: uint64(i)}
				img, err := w.Decode(r, enc, heap)
				if err == nil {
					err = w.AugmentInto(r, img, key, want)
				}
				if err == nil {
					err = w.DecodeInto(r, enc, key, got)
				}
				if i == 3 && s[1] == 65500 { // to 65500 columns before the rows become one
					if !fault.Is(err, fault.SampleBad) || !strings.Contains(err.Error(), "between the passes of Resize") {
						t.Errorf("%v: %v", s, err)
					}
					continue
				}
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%v, recipe %d: error %v, equal %v", s, i, err, bytes.Equal(got, want))
				}
			}
		}
	}
}

// TestCropsOfNoArea: a scale of 0 asks for crops without pixels; torchvision rejects ten of them and takes the centre.
func TestCropsOfNoArea(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	r := parse(t, spec("RandomResizedCrop", "size", 8.0, "scale", []any{0.0, 0.0}))
	for _, s := range [][2]int{{1, 1}, {64, 48}, {48, 64}, {500, 3}} {
		p := r.Params(0, RandKey{Sample: 1}, s[0], s[1])
		b := box{p["left"].(int), p["top"].(int), p["width"].(int), p["height"].(int)}
		if b.w < 1 || b.h < 1 || b.x != (s[0]-b.w)/2 || b.y != (s[1]-b.h)/2 {
			t.Errorf("%v: box %+v", s, b)
		}
		if err := w.DecodeInto(r, drawnJPEG(t, s[0], s[1], 2), RandKey{Sample: 1}, make([]byte, 3*8*8)); err != nil {
			t.Errorf("%v: %v", s, err)
		}
	}
}

// TestAnimatedGIF: the first frame counts, as in Pillow.
func TestAnimatedGIF(t *testing.T) {
	pal := color.Palette{color.RGBA{10, 20, 30, 255}, color.RGBA{200, 100, 50, 255}}
	g := &gif.GIF{}
	for i := range 3 {
		m := image.NewPaletted(image.Rect(0, 0, 12, 9), pal)
		for k := range m.Pix {
			m.Pix[k] = uint8((k + i) % 2)
		}
		g.Image, g.Delay = append(g.Image, m), append(g.Delay, 1)
	}
	var b bytes.Buffer
	if err := gif.EncodeAll(&b, g); err != nil {
		t.Fatal(err)
	}
	w := NewWorker(Limits{})
	defer w.Close()
	img, err := w.Decode(parse(t), b.Bytes(), heap)
	if err != nil || img.W != 12 || img.H != 9 || !bytes.Equal(img.Pix[:6], []byte{10, 20, 30, 200, 100, 50}) {
		t.Errorf("error %v, pixels %v", err, img.Pix[:min(6, len(img.Pix))])
	}
}

// TestRefuseCorrupt: damage inside the data is accepted as Pillow accepts it, unless it is to be refused; then the error says
// what libjpeg warned about and is told from others. What is truncated or no image at all is refused by both, as bad.
func TestRefuseCorrupt(t *testing.T) {
	lax, strict := NewWorker(Limits{}), NewWorker(Limits{RefuseCorrupt: true})
	defer lax.Close()
	defer strict.Close()
	good := regionFiles(t)["444.jpg"]
	// The end marker comes early: the decoder fills up, and warns.
	early := append(bytes.Clone(good[:len(good)*3/4]), 0xff, 0xd9)
	for _, r := range []*Recipe{parse(t, spec("CenterCrop", "size", []any{149.0, 211.0})), parse(t, spec("CenterCrop", "size", 20.0))} {
		dst := make([]byte, r.Output().SampleBytes)
		if err := strict.DecodeInto(r, good, RandKey{}, dst); err != nil {
			t.Errorf("a good image: %v", err)
		}
		if err := lax.DecodeInto(r, early, RandKey{}, dst); err != nil && Parity() {
			t.Errorf("accepted by Pillow: %v", err)
		}
		err := strict.DecodeInto(r, early, RandKey{}, dst)
		if !IsCorrupt(err) || !fault.Is(err, fault.SampleBad) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("a corrupt image: %v", err)
		}
		for _, w := range []*Worker{lax, strict} {
			for what, enc := range map[string][]byte{"truncated": good[:len(good)/2], "no image": []byte("GIF")} {
				if err := w.DecodeInto(r, enc, RandKey{}, dst); err == nil || IsCorrupt(err) {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
	}
	if IsCorrupt(nil) || IsCorrupt(fmt.Errorf("other")) {
		t.Error("IsCorrupt of other errors")
	}
}

// TestGuardedDecode: what a small file can make the decoder do is bounded: pixels by its header (TestBombs), scans by their
// number, memory for coefficients by MaxBytes. The worker is as good as before afterwards.
func TestGuardedDecode(t *testing.T) {
	enc := regionFiles(t)["420-progressive.jpg"]
	last := bytes.LastIndex(enc, []byte{0xff, 0xda})
	if last < 0 {
		t.Fatal("no scan")
	}
	scan := enc[last : len(enc)-2]
	many := append(bytes.Clone(enc[:len(enc)-2]), bytes.Repeat(scan, 600)...)
	many = append(many, 0xff, 0xd9)
	r := parse(t, spec("RandomResizedCrop", "size", 20.0))
	dst := make([]byte, r.Output().SampleBytes)
	for _, c := range []struct {
		name, want string
		limits     Limits
		enc        []byte
		inGo       bool // bounded in the portable build too
	}{
		{"600 scans too many", "scans", Limits{}, many, true},
		{"three scans too many", "more than 3 scans", Limits{MaxScans: 3}, enc, true},
		{"too little for the image", "to decode, and 16KiB are allowed", Limits{MaxBytes: 1 << 14}, enc, true},
		{"too long", "more than 1ns of processor time", Limits{Timeout: 1}, many, false},
		{"too many pixels", "more than the 1000", Limits{MaxPixels: 1000}, enc, true},
	} {
		if !Parity() && !c.inGo {
			continue
		}
		w := NewWorker(c.limits)
		for range 3 {
			if err := w.DecodeInto(r, c.enc, RandKey{}, dst); !fault.Is(err, fault.SampleBad) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if c.limits.MaxPixels+c.limits.MaxBytes+int64(c.limits.Timeout) == 0 {
			if err := w.DecodeInto(r, regionFiles(t)["420.jpg"], RandKey{}, dst); err != nil {
				t.Errorf("%s: afterwards a good image gives %v", c.name, err)
			}
		}
		w.Close()
	}
}
