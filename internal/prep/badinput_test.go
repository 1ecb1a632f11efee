package prep

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"os"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/xrand"
)

// TestWidestImages: what JPEG and PNG can just hold goes through decoding, parts of it and kernels.
func TestWidestImages(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	recipes := []*Recipe{
		trainRecipe(t, imagenet), parse(t, spec("Resize", "size", []any{3.0, 5.0}), imagenet), parse(t,
			spec("CenterCrop", "size", 7.0)),
		parse(t, spec("Resize", "size", []any{1.0, 65500.0}, "interpolation", "bicubic"), spec("HFlip"),
			spec("ColorJitter", "contrast", 0.5, "hue", 0.1)),
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
					if !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), "between the passes of Resize") {
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

// TestRefuseCorrupt: damage inside the data is accepted as Pillow accepts it, unless it is to be refused; then the
// error says what libjpeg warned about and differs from others. What is truncated or no image at all is refused by
// both, as bad.
func TestRefuseCorrupt(t *testing.T) {
	lax, strict := NewWorker(Limits{}), NewWorker(Limits{RefuseCorrupt: true})
	defer lax.Close()
	defer strict.Close()
	good := regionFiles(t)["444.jpg"]
	// The end marker comes early: the decoder fills up, and warns.
	early := append(bytes.Clone(good[:len(good)*3/4]), 0xff, 0xd9)
	for _, r := range []*Recipe{parse(t, spec("CenterCrop", "size", []any{149.0, 211.0})),
		parse(t, spec("CenterCrop", "size", 20.0))} {
		dst := make([]byte, r.Output().SampleBytes)
		if err := strict.DecodeInto(r, good, RandKey{}, dst); err != nil {
			t.Errorf("a good image: %v", err)
		}
		if err := lax.DecodeInto(r, early, RandKey{}, dst); err != nil && Parity() {
			t.Errorf("accepted by Pillow: %v", err)
		}
		err := strict.DecodeInto(r, early, RandKey{}, dst)
		if !IsCorrupt(err) || !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), "damaged") {
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

// TestGuardedDecode: what a small file can make the decoder do is bounded: pixels by its header (TestBombs), scans by
// their number, memory for coefficients by MaxBytes. The worker is as good as before afterwards.
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
			if err := w.DecodeInto(r, c.enc, RandKey{}, dst); !errs.Is(err, errs.SampleBad) ||
				!strings.Contains(err.Error(), c.want) {
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

// TestLongSides: a header of a few bytes may state any sides, and no product of them is taken for a size. A good image
// has pixels within the limits, and all else is a bad sample to every reader. The first cases are those whose product
// is small mod 2^64.
func TestLongSides(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	sides := [][2]uint64{{1 << 32, 1 << 32}, {1<<32 + 1, 1<<32 - 1}, {2147418113, 8590196740}, {9999999999, 9999999999},
		{1<<31 - 1, 1<<31 - 1}, {1 << 31, 1}, {0, 5}, {5, 0}}
	rnd := xrand.New(7)
	for range 2000 { // of 1 to 34 bits, mostly about a power of 2
		var s [2]uint64
		for i := range s {
			if s[i] = 1 << (1 + rnd.IntN(33)); rnd.IntN(3) == 0 {
				s[i] += uint64(rnd.IntN(int(s[i])))
			} else {
				s[i] += uint64(rnd.IntN(5)) - 2
			}
		}
		sides = append(sides, s)
	}
	recipes := []*Recipe{parse(t), parse(t, spec("CenterCrop", "size", 2.0)), parse(t, spec("Resize", "size", 2.0)),
		parse(t, spec("Resize", "size", []any{2.0, 3.0}))}
	for _, s := range sides {
		for what, enc := range longSided(s[0], s[1]) {
			_, iw, ih, err := w.Header(enc)
			if err == nil && (uint64(iw) != s[0] || uint64(ih) != s[1] || s[0] < 1 || s[1] < 1 || s[0] > defaultMaxPixels/s[1]) {
				t.Fatalf("%s of %d x %d: taken for %d x %d", what, s[0], s[1], iw, ih)
			}
			if err != nil && !errs.Is(err, errs.SampleBad) {
				t.Fatalf("%s of %d x %d: %v", what, s[0], s[1], err)
			}
			if n := w.Memory(enc); (n == 0) != (err != nil) || n < 0 {
				t.Fatalf("%s of %d x %d: %d bytes, error %v", what, s[0], s[1], n, err)
			}
			if err == nil { // few have pixels that are worth decoding
				continue
			}
			for i, r := range recipes {
				if img, err := w.Decode(r, enc, heap); !errs.Is(err, errs.SampleBad) {
					t.Fatalf("%s of %d x %d, recipe %d: an image of %d x %d, error %v", what, s[0], s[1], i, img.W, img.H, err)
				}
				if err := w.DecodeInto(r, enc, RandKey{}, make([]byte, 64)); !errs.Is(err, errs.SampleBad) {
					t.Fatalf("%s of %d x %d, recipe %d, in one: %v", what, s[0], s[1], i, err)
				}
			}
		}
	}
}

// longSided are files of a header that states such sides, as far as the format can.
func longSided(w, h uint64) map[string][]byte {
	out := map[string][]byte{}
	for kind := range 6 {
		out[fmt.Sprintf("P%d", kind+1)] = fmt.Appendf(nil, "P%d %d %d 255 xxxxxxxxxxxx", kind+1, w, h)
	}
	if w >= 1<<32 || h >= 1<<32 {
		return out
	}
	le, be := binary.LittleEndian, binary.BigEndian
	png := append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR"), be.AppendUint32(be.AppendUint32(nil, uint32(w)),
		uint32(h))...)
	out["png"] = append(png, 16, 6, 0, 0, 1, 0, 0, 0, 0)
	tiff := []byte("II*\x00\x08\x00\x00\x00\x05\x00")
	for _, e := range [][2]uint32{{256, uint32(w)}, {257, uint32(h)}, {258, 16}, {259, 5}, {262, 1}} {
		tiff = le.AppendUint32(le.AppendUint16(le.AppendUint16(tiff, uint16(e[0])), 4), 1)
		tiff = le.AppendUint32(tiff, e[1])
	}
	out["tiff"] = append(tiff, 0, 0, 0, 0)
	if w < 1<<31 && h < 1<<31 { // beyond they are negative
		bmp := append([]byte("BM"), make([]byte, 52)...)
		le.PutUint32(bmp[14:], 40)
		le.PutUint32(bmp[18:], uint32(w))
		le.PutUint32(bmp[22:], uint32(h))
		out["bmp"] = bmp
	}
	return out
}

// TestTIFFMemory: what docs/parity.md says that large scans count.
func TestTIFFMemory(t *testing.T) {
	page, err := os.ReadFile("../../docs/parity.md")
	if err != nil {
		t.Fatal(err)
	}
	w := NewWorker(Limits{MaxBytes: 1 << 40})
	defer w.Close()
	usual := NewWorker(Limits{})
	defer usual.Close()
	for _, c := range []struct {
		name                                   string
		side, bits, channels, compression, row uint32
		bytes                                  int64
		says                                   string
	}{
		{"fax", 9000, 1, 1, 4, 9000, 9000 * 9000 * (7 + 24), "counts 2.34 GiB in one strip"},
		{"fax in strips", 9000, 1, 1, 4, 64, 9000*9000*7 + 9000*64*24, "554 MiB in strips of 64 rows"},
		{"one strip", 9400, 16, 4, 5, 9400, 9400 * 9400 * (11 + 24), "LZW, 2.88 GiB"},
		{"strips", 9400, 16, 4, 5, 64, 9400*9400*11 + 9400*64*24, "2.88 GiB and 941 MiB"},
	} {
		enc := []byte("II*\x00\x08\x00\x00\x00\x09\x00")
		le := binary.LittleEndian
		kind := uint32(1)
		if c.channels > 1 {
			kind = 2
		}
		at := uint32(8 + 2 + 9*12 + 4)
		for _, e := range [][3]uint32{{256, 1, c.side}, {257, 1, c.side}, {258, c.channels, c.bits}, {259, 1, c.compression},
			{262, 1, kind}, {277, 1, c.channels},
			{278, 1, c.row}, {338, 1, 2}, {274, 1, 1}} {
			if e[1] > 1 {
				e[2] = at
			}
			enc = le.AppendUint32(le.AppendUint32(le.AppendUint16(le.AppendUint16(enc, uint16(e[0])), 4), e[1]), e[2])
		}
		enc = append(enc, 0, 0, 0, 0)
		for range c.channels {
			enc = le.AppendUint32(enc, c.bits)
		}
		n := w.Memory(enc)
		text := fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
		if n > 1<<30 {
			text = fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
		}
		if n != c.bytes || !strings.Contains(c.says, text) || !bytes.Contains(page, []byte(c.says)) {
			t.Errorf("%s: %d bytes (%s), want %d, and the page to say %q", c.name, n, text, c.bytes, c.says)
		}
		_, _, _, err := usual.Header(enc)
		if n <= 1<<30 && err != nil || n > 1<<30 && (!errs.Is(err, errs.SampleBad) ||
			!strings.Contains(err.Error(), "raise prep.max_memory")) {
			t.Errorf("%s of %d bytes: %v", c.name, n, err)
		}
	}
}

// A pointer of Git LFS in the place of an image is told as one.
func TestPointersOfGitLFS(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	_, _, _, err := w.Header([]byte("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n"))
	if !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), "`git lfs pull`") {
		t.Error(err)
	}
}
