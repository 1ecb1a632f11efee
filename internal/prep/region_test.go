package prep

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// regionFiles are images of every chroma sampling, drawn by testdata/make_region.py.
func regionFiles(tb testing.TB) map[string][]byte {
	tb.Helper()
	paths, err := filepath.Glob("testdata/region/*.jpg")
	if err != nil || len(paths) < 16 {
		tb.Fatalf("%d files, error %v", len(paths), err)
	}
	files := map[string][]byte{}
	for _, p := range paths {
		if files[filepath.Base(p)], err = os.ReadFile(p); err != nil {
			tb.Fatal(err)
		}
	}
	return files
}

// aBox draws a box inside of w x h; a quarter of them touch a side.
func aBox(rnd *xrand.Rand, w, h int) box {
	b := box{w: 1 + rnd.IntN(w), h: 1 + rnd.IntN(h)}
	if rnd.IntN(2) == 0 {
		b.w, b.h = min(b.w, 1+rnd.IntN(24)), min(b.h, 1+rnd.IntN(24))
	}
	b.x, b.y = rnd.IntN(w-b.w+1), rnd.IntN(h-b.h+1)
	switch rnd.IntN(16) {
	case 0:
		b.x = 0
	case 1:
		b.y = 0
	case 2:
		b.x = w - b.w
	case 3:
		b.y = h - b.h
	}
	return b
}

// sameRegion decodes a part of an image and compares what was asked for with the whole. It returns how much was
// decoded.
func sameRegion(t *testing.T, w *Worker, enc []byte, need box, whole Image) (got box) {
	t.Helper()
	h, err := w.header(enc)
	if err != nil {
		t.Fatal(err)
	}
	pix := make([]byte, w.jpeg.room(h, need))
	got, err = w.jpeg.region(h, enc, need, w.limits, pix)
	if err != nil || got.w == 0 {
		if err != nil {
			t.Errorf("%+v: %v", need, err)
		}
		return got
	}
	if got.x > need.x || got.y > need.y || got.x+got.w < need.x+need.w || got.y+got.h < need.y+need.h {
		t.Fatalf("%+v was asked for, %+v came", need, got)
	}
	for y := range need.h {
		a := pix[((need.y-got.y+y)*got.w+need.x-got.x)*3:][:need.w*3]
		b := whole.Pix[((need.y+y)*h.w+need.x)*3:][:need.w*3]
		if !bytes.Equal(a, b) {
			t.Errorf("%+v of %d x %d (%+v): row %d differs", need, h.w, h.h, got, y)
			return got
		}
	}
	return got
}

// TestRegionEqualsWhole: a part that is decoded by itself has the pixels of the whole, for every chroma sampling.
func TestRegionEqualsWhole(t *testing.T) {
	if !Parity() {
		t.Skip("this build decodes whole images only")
	}
	w := NewWorker(Limits{})
	defer w.Close()
	strict := NewWorker(Limits{RefuseCorrupt: true})
	defer strict.Close()
	n := kernelCases(t, 200)
	for name, enc := range regionFiles(t) {
		t.Run(name, func(t *testing.T) {
			h, err := w.header(enc)
			if err != nil {
				t.Fatal(err)
			}
			whole, err := w.Decode(parse(t), enc, heap)
			if err != nil {
				t.Fatal(err)
			}
			rnd := xrand.New(3, uint64(len(enc)))
			saved := 0
			for i := range n {
				need := aBox(rnd, h.w, h.h)
				use := w
				if i%4 == 0 {
					use = strict
				}
				if got := sameRegion(t, use, enc, need, whole); got.w > 0 {
					saved++
				}
				if t.Failed() {
					return
				}
			}
			// Several scans are decoded before the first pixel comes out, and arithmetic coding is rare: whole.
			several := strings.Contains(name, "progressive") || strings.Contains(name, "scans") ||
				strings.Contains(name, "arithmetic")
			if saved != n && !several || saved > 0 && several {
				t.Errorf("%d of %d regions were decoded by themselves", saved, n)
			}
		})
	}
}

// TestRegionPhotographs does the same on photographs.
func TestRegionPhotographs(t *testing.T) {
	if !Parity() {
		t.Skip("this build decodes whole images only")
	}
	most := 20
	if os.Getenv("LARDER_KERNEL_CASES") != "" {
		most = 700
	}
	paths := photographs(t, most)
	if len(paths) == 0 {
		t.Skip("no photographs (set LARDER_TESTDATA)")
	}
	w := NewWorker(Limits{})
	defer w.Close()
	rnd := xrand.New(4, 1)
	regions := 0
	for _, p := range paths {
		enc, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		h, err := w.header(enc)
		if err != nil || h.format != "jpeg" {
			continue
		}
		whole, err := w.Decode(parse(t), enc, heap)
		if err != nil {
			continue
		}
		for range 10 {
			if got := sameRegion(t, w, enc, aBox(rnd, h.w, h.h), whole); got.w > 0 {
				regions++
			}
		}
		if t.Failed() {
			t.Fatal(p)
		}
	}
	t.Logf("%d photographs, %d regions", len(paths), regions)
}

func kernelSamples() int {
	if testing.Short() {
		return 1
	}
	return lane.Times(2, 4)
}

// TestDecodeIntoEqualsDecode: the short way from file to sample gives the bytes of the long one, for recipes that look
// at a part of the image in all ways.
func TestDecodeIntoEqualsDecode(t *testing.T) {
	w, long := NewWorker(Limits{}), NewWorker(Limits{})
	defer w.Close()
	defer long.Close()
	small := spec("RandomResizedCrop", "size", 40.0, "scale", []any{0.02, 0.5})
	recipes := []*Recipe{
		parse(t, small, spec("HFlip"), imagenet), parse(t, small, spec("VFlip")), parse(t, small,
			spec("ColorJitter", "contrast", 0.4, "hue", 0.1), imagenet),
		parse(t, spec("Resize", "size", 60.0), spec("CenterCrop", "size", 30.0), imagenet), parse(t,
			spec("CenterCrop", "size", 31.0), spec("HFlip")),
		parse(t, spec("RandomResizedCrop", "size", 40.0, "scale", []any{0.02, 0.5}, "interpolation", "nearest")),
		parse(t, spec("RandomResizedCrop", "size", []any{149.0, 33.0}, "scale", []any{0.02, 0.5}, "interpolation", "bicubic"),
			spec("HFlip")),
		parse(t, spec("CenterCrop", "size", 50.0), spec("Resize", "size", 70.0), spec("HFlip"),
			spec("CenterCrop", "size", 20.0), imagenet),
		parse(t, spec("Resize", "size", []any{149.0, 60.0}), spec("CenterCrop", "size", 30.0),
			spec("ToDtype", "layout", "HWC")),
		parse(t, spec("Resize", "size", []any{50.0, 211.0}), spec("CenterCrop", "size", 30.0),
			spec("Grayscale", "num_output_channels", 1.0)),
	}
	for name, enc := range regionFiles(t) {
		for i, r := range recipes {
			for sample := range uint64(kernelSamples()) {
				key := RandKey{Seed: 5, Sample: sample}
				got, want := make([]byte, r.Output().SampleBytes), make([]byte, r.Output().SampleBytes)
				img, err := long.Decode(r, enc, heap)
				if name == "420-arithmetic.jpg" && !Parity() {
					continue
				}
				if err == nil {
					err = long.AugmentInto(r, img, key, want)
				}
				if err != nil {
					t.Fatal(name, err)
				}
				for level := range bestLevel + 1 {
					w.level = level
					if err := w.DecodeInto(r, enc, key, got); err != nil || !bytes.Equal(got, want) {
						t.Fatalf("%s, recipe %d, sample %d, level %d: differs, error %v", name, i, sample, level, err)
					}
				}
			}
		}
	}
}

// TestRegionOfDamagedFiles: whether a file is good must not depend on the crop. Damaged files fail, or give the same
// pixels, by both ways, whatever part is looked at.
func TestRegionOfDamagedFiles(t *testing.T) {
	w, long := NewWorker(Limits{}), NewWorker(Limits{})
	defer w.Close()
	defer long.Close()
	r := parse(t, spec("RandomResizedCrop", "size", 24.0, "scale", []any{0.01, 0.3}))
	got, want := make([]byte, r.Output().SampleBytes), make([]byte, r.Output().SampleBytes)
	good, refused := 0, 0
	n := kernelCases(t, 100)
	rnd := xrand.New(6, 1)
	for name, enc := range regionFiles(t) {
		for i := range n {
			b := bytes.Clone(enc)
			for range 1 + rnd.IntN(3) {
				at := rnd.IntN(len(b))
				if rnd.IntN(8) > 0 { // most damage behind the header
					at = len(b)/8 + rnd.IntN(len(b)-len(b)/8)
				}
				b[at] = byte(rnd.IntN(256))
				if rnd.IntN(4) == 0 && at+1 < len(b) { // a marker where none belongs
					b[at], b[at+1] = 0xff, byte(0xc0+rnd.IntN(64))
				}
			}
			if i%5 == 0 {
				b = b[:rnd.IntN(len(b)+1)]
			}
			strict := i%3 == 0
			w.limits.RefuseCorrupt, long.limits.RefuseCorrupt = strict, strict
			key := RandKey{Seed: 7, Sample: uint64(i)}
			img, lerr := long.Decode(r, b, heap)
			if lerr == nil {
				lerr = long.AugmentInto(r, img, key, want)
			}
			err := w.DecodeInto(r, b, key, got)
			if (err == nil) != (lerr == nil) || IsCorrupt(err) != IsCorrupt(lerr) {
				t.Fatalf("%s, damage %d: by parts %v, whole %v", name, i, err, lerr)
			}
			if err != nil {
				refused++
				if !errs.Is(err, errs.SampleBad) {
					t.Fatalf("%s, damage %d: %v", name, i, err)
				}
				continue
			}
			good++
			if !bytes.Equal(got, want) {
				t.Fatalf("%s, damage %d: other pixels", name, i)
			}
		}
	}
	t.Logf("%d damaged files decoded, %d refused", good, refused)
}
