package prep

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/jpeg"
	"strings"
	"testing"

	"larder/internal/errs"
)

// TestBrokenImages wants SAMPLE_BAD with the reason, whatever is wrong, and no allocation before the header is good.
func TestBrokenImages(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	r := parse(t)
	jpg := drawnJPEG(t, 64, 48, 1)
	pngs := asPNG(t, draw(64, 48, 1).rgba())
	files := goldenFiles(t)
	cut := func(b []byte, n int) []byte { return append([]byte(nil), b[:n]...) }
	for _, c := range []struct {
		name string
		enc  []byte
		want string
	}{
		{"empty", nil, "empty (0 bytes)"},
		{"zero bytes", make([]byte, 5000), "begins with"},
		{"garbage", []byte("<html>404</html>"), `begins with "<html>40"`},
		{"one byte", []byte{0xff}, "begins with"},
		{"jpeg start only", jpg[:3], "ends in its header"},
		{"jpeg header only", jpg[:20], "ends in its header"},
		{"jpeg half", jpg[:len(jpg)/2], "truncated"},
		{"jpeg without its end", jpg[:len(jpg)-2], "truncated"},
		{"jpeg missing one byte of data", append(cut(jpg, len(jpg)-40), jpg[len(jpg)-2:]...), ""},
		{"png half", pngs[:len(pngs)/2], "truncated"},
		{"png header only", pngs[:33], "truncated"},
		{"png start only", pngs[:10], "no complete header"},
		{"png damaged", flipByte(pngs, len(pngs)/2), "cannot decode"},
		{"gif header only", files["plain.gif"][:13], "truncated"},
		{"gif half", files["plain.gif"][:900], "truncated"},
		{"gif start only", files["plain.gif"][:9], "ends in its header"},
		{"webp half", files["lossy.webp"][:200], "truncated"},
		{"webp start only", files["lossy.webp"][:14], "ends in its header"},
		{"bmp half", files["rgb24.bmp"][:1700], "truncated"},
		{"bmp start only", files["rgb24.bmp"][:20], "ends in its header"},
		{"webp animated", animatedWebP(), "animated"},
		{"tiff half", files["rgb8-raw.tif"][:1700], "truncated"},
		// its directory stands last
		{"tiff deflate half", files["rgb8-tiff_deflate.tif"][:len(files["rgb8-tiff_deflate.tif"])/2], "ends in its header"},
		{"tiff start only", files["rgb8-raw.tif"][:20], "ends in its header"},
		{"tiff of CMYK", bytes.Replace(files["rgb8-raw.tif"], []byte("\x06\x01\x03\x00\x01\x00\x00\x00\x02"),
			[]byte("\x06\x01\x03\x00\x01\x00\x00\x00\x05"), 1), "its colours are CMYK"},
		{"netpbm half", files["rgb8.ppm"][:1700], "truncated"},
		{"netpbm start only", files["rgb8.ppm"][:8], "ends in its header"},
		{"netpbm without numbers", []byte("P3 2 2 255 a b c"), "where a number is due"},
	} {
		_, err := w.Decode(r, c.enc, heap)
		if c.want == "" { // damaged inside, but complete: libjpeg warns, Pillow accepts
			if err != nil && !errs.Is(err, errs.SampleBad) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), c.want) || errs.From(err).Hint == "" {
			t.Errorf("%s: error %v does not say %q", c.name, err, c.want)
		}
	}
	if got, err := w.Decode(r, jpg, heap); err != nil || got.W != 64 {
		t.Errorf("after all that a good image gives %v", err)
	}
}

func flipByte(b []byte, at int) []byte {
	c := append([]byte(nil), b...)
	c[at] ^= 0xff
	return c
}

func animatedWebP() []byte {
	b := []byte("RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x02\x00\x00\x00\x0f\x00\x00\x0f\x00\x00ANIM")
	return b
}

// resizeHeader writes other sides into the header of a JPEG or PNG.
func resizeHeader(t *testing.T, enc []byte, w, h int) []byte {
	t.Helper()
	enc = append([]byte(nil), enc...)
	if enc[0] == 0x89 {
		binary.BigEndian.PutUint32(enc[16:], uint32(w))
		binary.BigEndian.PutUint32(enc[20:], uint32(h))
		binary.BigEndian.PutUint32(enc[29:], crc32.ChecksumIEEE(enc[12:29]))
		return enc
	}
	at := bytes.Index(enc, []byte{0xff, 0xc0, 0x00})
	if at < 0 {
		t.Fatal("no frame header")
	}
	binary.BigEndian.PutUint16(enc[at+5:], uint16(h))
	binary.BigEndian.PutUint16(enc[at+7:], uint16(w))
	return enc
}

// webpBomb puts a small canvas before a frame that says it is large.
func webpBomb(enc []byte) []byte {
	b := append([]byte(nil), enc[:12]...)
	b = append(b, "VP8X\x0a\x00\x00\x00\x00\x00\x00\x00\x24\x00\x00\x1c\x00\x00"...)
	frame := append([]byte(nil), enc[12:]...)
	copy(frame[14:], []byte{0xff, 0x3f, 0xff, 0x3f})
	return append(b, frame...)
}

// TestBombs: small files that claim to be huge are refused by their header, before any memory is taken.
func TestBombs(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	r := parse(t)
	var taken int
	alloc := func(n int) ([]byte, error) { taken += n; return make([]byte, n), nil }
	gif := append([]byte(nil), goldenFiles(t)["plain.gif"]...)
	copy(gif[6:], []byte{0xff, 0xff, 0xff, 0xff})
	for name, enc := range map[string][]byte{
		"jpeg": resizeHeader(t, drawnJPEG(t, 8, 8, 1), 65500, 65500),
		"png":  resizeHeader(t, asPNG(t, draw(8, 8, 1).rgba()), 1<<31-1, 1<<31-1),
		"gif":  gif,
		"webp": webpBomb(goldenFiles(t)["lossy.webp"]),
	} {
		_, err := w.Decode(r, enc, alloc)
		if !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), "89478485") && name != "webp" {
			t.Errorf("%s: %v", name, err)
		}
		if name == "webp" && !strings.Contains(err.Error(), "holds 16383 x 16383 pixels, its header says 37 x 29") {
			t.Errorf("%v", err)
		}
		if name == "jpeg" && !strings.Contains(err.Error(), "65500 x 65500 = 4290250000") {
			t.Errorf("the error does not name both numbers: %v", err)
		}
	}
	for name, enc := range map[string][]byte{
		"jpeg of no height": resizeHeader(t, drawnJPEG(t, 8, 8, 1), 8, 0),
		"png of no width":   resizeHeader(t, asPNG(t, draw(8, 8, 1).rgba()), 0, 8),
	} {
		if _, err := w.Decode(r, enc, alloc); !errs.Is(err, errs.SampleBad) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Small image, but the recipe makes it huge: 1 x 20000 to a shorter side of 256.
	thin := bmp24(draw(1, 20000, 1))
	if _, err := w.Decode(parse(t, spec("Resize", "size", 256.0)), thin, alloc); !errs.Is(err, errs.SampleBad) ||
		!strings.Contains(err.Error(), "Resize") {
		t.Errorf("thin: %v", err)
	}
	if taken != 0 {
		t.Errorf("%d bytes were taken", taken)
	}
	// The limit is the limit of the configuration.
	small := NewWorker(Limits{MaxPixels: 100})
	defer small.Close()
	if _, _, _, err := small.Header(drawnJPEG(t, 11, 10, 1)); !strings.Contains(err.Error(), "more than the 100") {
		t.Errorf("%v", err)
	}
	if f, gw, gh, err := small.Header(drawnJPEG(t, 10, 10, 1)); err != nil || f != "jpeg" || gw != 10 || gh != 10 {
		t.Errorf("%s %d %d %v", f, gw, gh, err)
	}
}

func TestTinyAndThinImages(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	recipes := []*Recipe{parse(t), trainRecipe(t, imagenet), parse(t, spec("Resize", "size", 9.0),
		spec("CenterCrop", "size", 8.0)),
		parse(t, spec("CenterCrop", "size", 120.0), spec("ColorJitter", "brightness", 0.5, "contrast", 0.5, "saturation", 0.5,
			"hue", 0.5))}
	for _, s := range [][2]int{{1, 1}, {1, 7}, {7, 1}, {2, 1}, {1, 700}, {2000, 1}, {3, 3}} {
		for _, enc := range [][]byte{drawnJPEG(t, s[0], s[1], 4), asPNG(t, draw(s[0], s[1], 4).rgba())} {
			for _, r := range recipes {
				n := r.Output().SampleBytes
				if r.Output().Ragged {
					n = s[0] * s[1] * 3
				}
				for sample := range uint64(3) {
					if err := w.DecodeInto(r, enc, RandKey{Sample: sample}, make([]byte, n)); err != nil {
						t.Errorf("%v: %v", s, err)
					}
				}
			}
		}
	}
}

// TestAlloc: memory is asked for once, exactly, and the caller's error comes back as it is.
func TestAlloc(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	r := parse(t, spec("Resize", "size", []any{20.0, 30.0}), spec("HFlip"))
	full := errors.New("no room")
	jpg := drawnJPEG(t, 64, 48, 1)
	if _, err := w.Decode(r, jpg, func(int) ([]byte, error) { return nil, full }); !errors.Is(err, full) ||
		errs.Is(err, errs.SampleBad) {
		t.Errorf("%v", err)
	}
	calls := 0
	mem := make([]byte, 20*30*3+100)
	img, err := w.Decode(r, jpg, func(n int) ([]byte, error) {
		if calls++; n != 20*30*3 {
			t.Errorf("asked for %d bytes", n)
		}
		return mem, nil
	})
	if err != nil || calls != 1 || &img.Pix[0] != &mem[0] || len(img.Pix) != 1800 || img.C != 3 {
		t.Errorf("%d calls, %d bytes, error %v", calls, len(img.Pix), err)
	}
	if !bytes.Equal(mem[1800:], make([]byte, 100)) {
		t.Error("written beyond the image")
	}
	short := func(n int) ([]byte, error) { return make([]byte, n-1), nil }
	if _, err := w.Decode(r, jpg, short); !errs.Is(err, errs.Internal) {
		t.Errorf("%v", err)
	}
	if _, err := w.Augment(r, img, RandKey{}, short); !errs.Is(err, errs.Internal) {
		t.Errorf("%v", err)
	}
	for _, bad := range []Image{{}, {Pix: img.Pix, W: 30, H: 21, C: 3}, {Pix: img.Pix, W: 30, H: 20, C: 1}} {
		if err := w.AugmentInto(r, bad, RandKey{}, make([]byte, 1800)); !errs.Is(err, errs.Internal) {
			t.Errorf("%v", err)
		}
	}
	if err := w.AugmentInto(r, img, RandKey{}, make([]byte, 1799)); !errs.Is(err, errs.Internal) {
		t.Errorf("%v", err)
	}
	if err := w.Finish(r, newImage(mem, 20, 30), RandKey{}, make([]byte, 1800)); !errs.Is(err, errs.Internal) {
		t.Errorf("an image of another size: %v", err)
	}
}

// TestDeterminism: deterministic recipes give the same bytes for every key; random ones are flagged, give the same
// bytes for the same key, from any worker after any history, and others for others.
func TestDeterminism(t *testing.T) {
	enc := drawnJPEG(t, 90, 70, 2)
	other := NewWorker(Limits{})
	defer other.Close()
	for i, ops := range [][]OpSpec{
		{spec("Resize", "size", 40.0)}, {spec("CenterCrop", "size", 50.0)}, {spec("HFlip", "p", 1.0)}, {
			spec("VFlip", "p", 0.0)},
		{spec("Grayscale", "num_output_channels", 3.0)}, {spec("CenterCrop", "size", 30.0), imagenet}, {},
		{spec("RandomResizedCrop", "size", 40.0)}, {spec("HFlip")}, {spec("VFlip")}, {spec("ColorJitter", "brightness", 0.5)},
		{spec("ColorJitter", "contrast", 0.5)}, {spec("ColorJitter", "saturation", 0.5)}, {spec("ColorJitter", "hue", 0.5)},
		{spec("Resize", "size", []any{60.0, 60.0}), spec("RandomResizedCrop", "size", 30.0), spec("HFlip"), imagenet},
	} {
		r := parse(t, ops...)
		w := NewWorker(Limits{})
		run := func(w *Worker, key RandKey) string {
			img, err := w.Decode(r, enc, heap)
			if err != nil {
				t.Fatal(err)
			}
			if img, err = w.Augment(r, img, key, heap); err != nil {
				t.Fatal(err)
			}
			return string(img.Pix)
		}
		seen := map[string]bool{}
		for _, key := range []RandKey{{1, 0, 0}, {2, 0, 0}, {1, 1, 0}, {1, 0, 1}, {3, 1, 4}, {1, 5, 9}, {2, 6, 5},
			{3, 5, 8}} {
			a := run(w, key)
			if b := run(other, key); a != b {
				t.Errorf("%v: the same key gave other bytes", ops)
			}
			seen[a] = true
		}
		w.Close()
		if random := i >= 7; r.Random() != random || (len(seen) > 1) != random {
			t.Errorf("%v: random %v, %d results for 8 keys", ops, r.Random(), len(seen))
		}
	}
}

// TestKnownDraws pins the parameters: they are part of what replay promises, so a change must raise an op's version.
func TestKnownDraws(t *testing.T) {
	r := parse(t, spec("RandomResizedCrop", "size", 224.0), spec("HFlip"), spec("ColorJitter", "brightness", 0.4, "hue",
		0.1))
	key := RandKey{Seed: 7, Instance: 3, Sample: 1234}
	p := r.Params(0, key, 500, 375)
	if got := [4]int{p["top"].(int), p["left"].(int), p["height"].(int), p["width"].(int)}; got != [4]int{17, 19, 354,
		353} {
		t.Errorf("box %v", got)
	}
	if got := r.Params(1, key, 224, 224)["flip"]; got != true {
		t.Errorf("flip %v", got)
	}
	j := r.Params(2, key, 224, 224)
	if j["brightness"] != 1.015801192503474 || j["hue"] != -0.032356960919161445 || j["contrast"] != nil {
		t.Errorf("jitter %v", j)
	}
	if len(r.Params(9, key, 1, 1)) != 0 || len(r.Params(0, key, 0, 5)) != 0 {
		t.Error("parameters of nothing")
	}
}

// TestSteadyStateAllocations: after warming up, preparing an image allocates nothing on Go's heap.
func TestSteadyStateAllocations(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	img, enc := draw(200, 150, 1), drawnJPEG(t, 200, 150, 1)
	for name, r := range map[string]*Recipe{
		"train": trainRecipe(t, imagenet), "uint8": trainRecipe(t), "jitter": trainRecipe(t,
			spec("ColorJitter", "contrast", 0.4, "hue", 0.1)),
		"eval": parse(t, spec("Resize", "size", 256.0), spec("CenterCrop", "size", 224.0), imagenet),
	} {
		dst := make([]byte, r.Output().SampleBytes)
		mem := make([]byte, 1<<20)
		alloc := func(n int) ([]byte, error) { return mem[:n], nil }
		sample := uint64(0)
		augment := func() {
			sample++
			if r.Random() {
				if err := w.AugmentInto(r, img, RandKey{Seed: 3, Sample: sample % 16}, dst); err != nil {
					t.Fatal(err)
				}
			}
			if DecoderName() != "go" {
				if _, err := w.Decode(r, enc, alloc); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 32 {
			augment()
		}
		if n := testing.AllocsPerRun(64, augment); n > 0 {
			t.Errorf("%s: %g allocations per image", name, n)
		}
	}
}

// TestTrim: one giant image must not stay in a worker's memory.
func TestTrim(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	// The flip of a large image goes through the worker's own memory, because the resize behind it cannot be joined to it.
	big := newImage(make([]byte, 60000*300*3), 60000, 300)
	r := parse(t, spec("HFlip", "p", 0.5), spec("VFlip", "p", 1.0), spec("Resize", "size", []any{8.0, 8.0}))
	if err := w.AugmentInto(r, big, RandKey{}, make([]byte, 8*8*3)); err != nil {
		t.Fatal(err)
	}
	if w.bufs[bufA] != nil {
		t.Errorf("%d bytes are kept", cap(w.bufs[bufA]))
	}
	for i, b := range w.bufs {
		if cap(b) > keepBytes {
			t.Errorf("buffer %d keeps %d bytes", i, cap(b))
		}
	}
}

// TestCloseTwice also uses the worker in between.
func TestCloseTwice(t *testing.T) {
	w := NewWorker(Limits{MaxPixels: 64 * 64})
	enc := drawnJPEG(t, 64, 64, 1)
	for range 2 {
		if _, err := w.Decode(parse(t), enc, heap); err != nil {
			t.Fatal(err)
		}
		w.Close()
		w.Close()
	}
	if _, err := w.Decode(parse(t), drawnJPEG(t, 65, 64, 1), heap); !errs.Is(err, errs.SampleBad) {
		t.Error("Close forgot the limits")
	}
	w.Close()
}

// FuzzDecode: whatever the bytes, no panic, no hang, nothing but SAMPLE_BAD, and the size that the header promised.
func FuzzDecode(f *testing.F) {
	for _, enc := range goldenFiles(f) {
		f.Add(enc)
	}
	w := NewWorker(Limits{MaxPixels: 1 << 16, MaxBytes: 1 << 24})
	f.Cleanup(w.Close)
	r, err := ParseRecipe(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, enc []byte) {
		_, hw, hh, herr := w.Header(enc)
		img, err := w.Decode(r, enc, heap)
		if err != nil {
			if !errs.Is(err, errs.SampleBad) {
				t.Fatal(err)
			}
			return
		}
		if herr != nil || img.W != hw || img.H != hh || len(img.Pix) != hw*hh*3 {
			t.Fatalf("header %d x %d (%v), image %d x %d", hw, hh, herr, img.W, img.H)
		}
	})
}

// TestDamagedFiles flips bytes and cuts files of all formats: the everyday part of FuzzDecode.
func TestDamagedFiles(t *testing.T) {
	w := NewWorker(Limits{MaxPixels: 1 << 16, MaxBytes: 1 << 24})
	defer w.Close()
	r := parse(t)
	good := 0
	for name, enc := range goldenFiles(t) {
		for k := range 60 {
			b := flipByte(enc, (k*7919+13)%len(enc))
			if k%3 == 0 {
				b = b[:len(b)*(k+1)/60]
			}
			_, err := w.Decode(r, b, heap)
			if err != nil && !errs.Is(err, errs.SampleBad) {
				t.Errorf("%s, damage %d: %v", name, k, err)
			}
			if err == nil {
				good++
			}
		}
		if got, err := w.Decode(r, enc, heap); err != nil || Parity() && !bytes.Equal(got.Pix, goldenWant(t, name).Pix) {
			t.Errorf("%s: other pixels after damaged files (%v)", name, err)
		}
	}
	t.Logf("%d damaged files still decoded", good)
}

// TestGreyJPEG: one component becomes three equal ones.
func TestGreyJPEG(t *testing.T) {
	m := image.NewGray(image.Rect(0, 0, 30, 20))
	for i := range m.Pix {
		m.Pix[i] = uint8(i)
	}
	var b bytes.Buffer
	if err := jpeg.Encode(&b, m, &jpeg.Options{Quality: 100}); err != nil {
		t.Fatal(err)
	}
	w := NewWorker(Limits{})
	defer w.Close()
	img, err := w.Decode(parse(t), b.Bytes(), heap)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(img.Pix); i += 3 {
		if d := int(img.Pix[i]) - i/3%256; img.Pix[i] != img.Pix[i+1] || img.Pix[i] != img.Pix[i+2] || d < -6 || d > 6 {
			t.Fatalf("pixel %d is %v", i/3, img.Pix[i:i+3])
		}
	}
}
