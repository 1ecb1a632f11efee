package prep

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/xrand"
)

func needPlanes(tb testing.TB) {
	tb.Helper()
	if bestLevel < planesLevel {
		tb.Skip("images are packed in this build, or on this processor")
	}
}

// cutFrame says in the frame header of a JPEG file that it is smaller. What is decoded then is no picture any more, but
// exercises the borders of every size.
func cutFrame(tb testing.TB, enc []byte, w, h int) []byte {
	tb.Helper()
	b := bytes.Clone(enc)
	for p := 2; ; {
		marker, at, size, ok := segment(b, p)
		if !ok {
			tb.Fatal("no frame header")
		}
		if marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xcc {
			b[at+3], b[at+4], b[at+5], b[at+6] = byte(h>>8), byte(h), byte(w>>8), byte(w)
			return b
		}
		p = at + size
	}
}

// evenBox makes b one that a planar image can be read by.
func evenBox(b box) box {
	b.w += b.x & 1
	b.x &^= 1
	return b
}

// samePlanes decodes enc as RGB and compactly and compares parts of both, by all instruction sets. It reports whether
// the compact form is planar.
func samePlanes(tb testing.TB, w *Worker, enc []byte, rnd *xrand.Rand, parts int) bool {
	tb.Helper()
	r := parse(tb)
	want, err := w.Decode(r, enc, heap)
	got, cerr := w.DecodeCompact(r, enc, heap)
	if (err == nil) != (cerr == nil) || IsCorrupt(err) != IsCorrupt(cerr) ||
		err != nil && !errs.Is(cerr, errs.SampleBad) {
		tb.Fatalf("as RGB %v, compact %v", err, cerr)
	}
	if err != nil {
		return false
	}
	if n := got.Planes.Bytes(want.W, want.H); got.W != want.W || got.H != want.H || len(got.Pix) != n {
		tb.Fatalf("%d x %d, compact %d x %d of kind %d in %d bytes", want.W, want.H, got.W, got.H, got.Planes, len(got.Pix))
	}
	if got.Planes == Packed {
		if !bytes.Equal(got.Pix, want.Pix) {
			tb.Fatal("other pixels")
		}
		return false
	}
	defer func(level int) { w.level = level }(w.level)
	for i := range parts {
		b := box{w: want.W, h: want.H}
		if i > 0 {
			b = evenBox(aBox(rnd, want.W, want.H))
		}
		for level := 1; level <= bestLevel; level++ {
			w.level = level
			out := make([]byte, b.w*b.h*3+planesSlack)
			w.planesC(got, b, out)
			for y := range b.h {
				row := want.Pix[((b.y+y)*want.W+b.x)*3:][:b.w*3]
				if !bytes.Equal(out[y*b.w*3:][:b.w*3], row) {
					tb.Fatalf("level %d, %+v of %d x %d, kind %d: row %d differs", level, b, want.W, want.H, got.Planes, y)
				}
			}
		}
	}
	return true
}

// TestCompactEqualsDecode: the pixels of the compact form are libjpeg's, for every chroma sampling, in many sizes and
// parts of an image.
func TestCompactEqualsDecode(t *testing.T) {
	needPlanes(t)
	w := NewWorker(Limits{})
	defer w.Close()
	rnd := xrand.New(11, 1)
	planar := map[string]bool{"420": true, "422": true, "420-restart": true, "420-progressive": true, "420-scans": true,
		"420-arithmetic": true, "grey": true}
	for name, enc := range regionFiles(t) {
		if got := samePlanes(t, w, enc, rnd, kernelCases(t, 200)); got != planar[name[:len(name)-4]] {
			t.Errorf("%s: planar %v", name, got)
		}
		for range kernelCases(t, 200) {
			samePlanes(t, w, cutFrame(t, enc, 1+rnd.IntN(90), 1+rnd.IntN(40)), rnd, 3)
		}
	}
	for _, enc := range goldenFiles(t) {
		samePlanes(t, w, enc, rnd, 10)
	}
}

// TestCompactPhotographs does the same on photographs.
func TestCompactPhotographs(t *testing.T) {
	needPlanes(t)
	most := 40
	if os.Getenv("LARDER_KERNEL_CASES") != "" {
		most = 700
	}
	paths := photographs(t, most)
	if len(paths) == 0 {
		t.Skip("no photographs (set LARDER_TESTDATA)")
	}
	w := NewWorker(Limits{})
	defer w.Close()
	rnd := xrand.New(11, 2)
	planar := 0
	for _, p := range paths {
		enc, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if samePlanes(t, w, enc, rnd, 8) {
			planar++
		}
	}
	t.Logf("%d photographs, %d of them planar", len(paths), planar)
}

// rgbOf is the naive twin of the kernels: a pixel of a planar image.
func rgbOf(img Image, x, y int) [3]uint8 {
	luma := int(img.Pix[y*img.W+x])
	if img.Planes == PlaneGrey {
		return [3]uint8{uint8(luma), uint8(luma), uint8(luma)}
	}
	across := (img.W + 1) / 2
	cx, cy := x/2, y
	nx, ny := min(max(cx-1+x%2*2, 0), across-1), y
	if img.Planes == Planes420 {
		cy = y / 2
		ny = min(max(cy-1+y%2*2, 0), (img.H+1)/2-1)
	}
	at := func(x, y, c int) int { return int(img.Pix[img.W*img.H+2*(y*across+x)+c]) }
	var chroma [2]int
	for c := range chroma {
		if img.Planes == Planes420 {
			here, there := 3*at(cx, cy, c)+at(cx, ny, c), 3*at(nx, cy, c)+at(nx, ny, c)
			chroma[c] = (3*here+there+8-x%2)>>4 - 128
		} else {
			chroma[c] = (3*at(cx, cy, c)+at(nx, cy, c)+1+x%2)>>2 - 128
		}
	}
	cr, cb := chroma[0], chroma[1]
	clip := func(v int) uint8 { return uint8(min(max(v, 0), 255)) }
	return [3]uint8{clip(luma + (91881*cr+32768)>>16), clip(luma + (-46802*cr-22554*cb+32768)>>16),
		clip(luma + (116130*cb+32768)>>16)}
}

// TestPlanesKernels: every instruction set gives the bits of the naive twin, on bytes that no camera writes, reads
// nothing outside of the image and writes little behind the part.
func TestPlanesKernels(t *testing.T) {
	needPlanes(t)
	src, dst := newFence(t, 1<<16), newFence(t, 1<<18)
	w := NewWorker(Limits{})
	defer w.Close()
	rnd := xrand.New(11, 3)
	for i := range kernelCases(t, 3000) {
		img := Image{W: 1 + rnd.IntN(150), H: 1 + rnd.IntN(30), C: 3, Planes: PlaneGrey + Planes(rnd.IntN(3))}
		img.Pix = src.last(img.Planes.Bytes(img.W, img.H))
		for k := range img.Pix {
			img.Pix[k] = byte(rnd.IntN(256))
			if i%4 == 0 {
				img.Pix[k] = byte(255 * rnd.IntN(2))
			}
		}
		b := evenBox(aBox(rnd, img.W, img.H))
		for level := 1; level <= bestLevel; level++ {
			w.level = level
			out := dst.last(b.w*b.h*3 + planesSlack)
			w.planesC(img, b, out)
			for k := range b.w * b.h {
				want := rgbOf(img, b.x+k%b.w, b.y+k/b.w)
				if [3]uint8(out[3*k:]) != want {
					t.Fatalf("case %d, level %d, %+v of %d x %d, kind %d: pixel %d is %v, want %v", i, level, b, img.W, img.H,
						img.Planes, k, out[3*k:][:3], want)
				}
			}
		}
	}
}

// TestEveryChroma runs all pairs of Cr and Cb through the kernels: their products of 16 bits are chosen to be exact.
func TestEveryChroma(t *testing.T) {
	needPlanes(t)
	w := NewWorker(Limits{})
	defer w.Close()
	img := Image{W: 512, H: 256, C: 3, Planes: Planes422}
	img.Pix = make([]byte, img.Planes.Bytes(img.W, img.H))
	for luma := range 256 {
		if luma%51 != 0 {
			continue
		}
		for i := range img.W * img.H {
			img.Pix[i] = byte(luma)
		}
		for y := range 256 {
			for x := range 256 { // neighbours differ by one at most, so that every value comes out of the filter
				img.Pix[img.W*img.H+2*(y*256+x)], img.Pix[img.W*img.H+2*(y*256+x)+1] = byte(y), byte(x)
			}
		}
		for level := 1; level <= bestLevel; level++ {
			w.level = level
			out := make([]byte, img.W*img.H*3+planesSlack)
			w.planesC(img, box{w: img.W, h: img.H}, out)
			for k := range img.W * img.H {
				if want := rgbOf(img, k%img.W, k/img.W); [3]uint8(out[3*k:]) != want {
					t.Fatalf("level %d, luma %d: %v, want %v", level, luma, out[3*k:][:3], want)
				}
			}
		}
	}
}

// TestCompactAugments: samples of the compact form have the bytes of those of RGB, for recipes that look at an image in
// all ways.
func TestCompactAugments(t *testing.T) {
	needPlanes(t)
	w := NewWorker(Limits{})
	defer w.Close()
	small := spec("RandomResizedCrop", "size", 40.0, "scale", []any{0.02, 0.5})
	recipes := []*Recipe{
		parse(t), parse(t, spec("HFlip")),
		parse(t, small, spec("HFlip"), imagenet), parse(t, spec("HFlip"), small), trainRecipe(t, imagenet), trainRecipe(t),
		parse(t, spec("ColorJitter", "contrast", 0.4, "hue", 0.1), small, imagenet), parse(t, small,
			spec("ColorJitter", "contrast", 0.4, "hue", 0.1)),
		parse(t, spec("RandomResizedCrop", "size", 40.0, "interpolation", "nearest")), parse(t, spec("RandomResizedCrop",
			"size", []any{149.0, 33.0}, "interpolation", "bicubic"), spec("VFlip")),
		parse(t, spec("HFlip"), spec("CenterCrop", "size", 50.0)), parse(t, spec("VFlip"), spec("CenterCrop", "size", 51.0)),
		parse(t, spec("HFlip"), spec("CenterCrop", "size", 400.0), imagenet), parse(t, spec("CenterCrop", "size", 50.0),
			spec("HFlip")),
		parse(t, spec("Resize", "size", 60.0), spec("HFlip")),
	}
	for name, enc := range regionFiles(t) {
		for i, r := range recipes {
			img, err := w.Decode(r, enc, heap)
			if err != nil {
				t.Fatal(err)
			}
			compact, err := w.DecodeCompact(r, enc, heap)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, n, err := w.DecodedShape(r, enc); err != nil || n != len(compact.Pix) {
				t.Fatalf("%s, recipe %d: %d bytes, %d were promised (%v)", name, i, len(compact.Pix), n, err)
			}
			before := bytes.Clone(compact.Pix)
			for sample := range uint64(3 * kernelSamples()) {
				key := RandKey{Seed: 5, Sample: sample}
				want, err := w.Augment(r, img, key, heap)
				if err != nil {
					t.Fatal(err)
				}
				got, err := w.Augment(r, compact, key, heap)
				if err != nil || got.Planes != Packed || !bytes.Equal(got.Pix, want.Pix) {
					t.Fatalf("%s, recipe %d, sample %d: Augment differs, error %v", name, i, sample, err)
				}
				a, b := make([]byte, r.out.SampleBytes), make([]byte, r.out.SampleBytes)
				if r.out.Ragged {
					a, b = make([]byte, len(want.Pix)), make([]byte, len(want.Pix))
				}
				if err := w.AugmentInto(r, img, key, a); err != nil {
					t.Fatal(err)
				}
				for level := range bestLevel + 1 {
					w.level = level
					clear(b)
					if err := w.AugmentInto(r, compact, key, b); err != nil || !bytes.Equal(a, b) {
						t.Fatalf("%s, recipe %d, sample %d, level %d: AugmentInto differs, error %v", name, i, sample, level, err)
					}
				}
				w.level = bestLevel
			}
			if !bytes.Equal(compact.Pix, before) {
				t.Fatalf("%s, recipe %d: the compact form was written to", name, i)
			}
		}
	}
}

// TestCompactColors: what three components mean follows from markers, and libjpeg and the header must agree on it.
func TestCompactColors(t *testing.T) {
	needPlanes(t)
	w := NewWorker(Limits{})
	defer w.Close()
	rnd := xrand.New(11, 4)
	whole := regionFiles(t)["420.jpg"]
	_, at, size, _ := segment(whole, 2)
	bare := slices.Concat(whole[:2], whole[at+size:]) // without JFIF
	ids := func(enc []byte, a, b, c byte) []byte {
		enc = bytes.Clone(enc)
		for _, marker := range []byte{0xc0, 0xda} {
			p := bytes.Index(enc, []byte{0xff, marker, 0})
			p, step := p+10, 3
			if marker == 0xda {
				p, step = p-5, 2
			}
			enc[p], enc[p+step], enc[p+2*step] = a, b, c
		}
		return enc
	}
	adobe := func(enc []byte, transform byte) []byte {
		return slices.Concat(enc[:2], []byte("\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"), []byte{transform}, enc[2:])
	}
	late := func(enc []byte, transform byte) []byte { // behind the frame header
		p := bytes.Index(enc, []byte{0xff, 0xda, 0})
		return slices.Concat(enc[:p], []byte("\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"), []byte{transform}, enc[p:])
	}
	for name, c := range map[string]struct {
		enc    []byte
		planar bool
	}{
		"JFIF": {whole, true}, "no marker": {bare, true}, "RGB": {ids(bare, 'R', 'G', 'B'), false},
		"JFIF and RGB": {ids(whole, 'R', 'G', 'B'), true}, "other ids": {ids(bare, 7, 8, 9), false},
		"Adobe RGB": {adobe(bare, 0), false}, "Adobe YCbCr": {adobe(bare, 1), true},
		"Adobe, unknown":     {adobe(bare, 2), false},
		"Adobe RGB and JFIF": {adobe(whole, 0), true}, "Adobe RGB, late": {late(bare, 0), false},
		"Adobe YCbCr, late": {late(bare, 1), true}, "two of Adobe": {late(adobe(bare, 1), 0), false},
	} {
		if got := samePlanes(t, w, c.enc, rnd, 3); got != c.planar {
			t.Errorf("%s: planar %v", name, got)
		}
		if _, err := w.Decode(parse(t), c.enc, heap); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCompactOfDamagedFiles: whether a file is good does not depend on the form, nor do the pixels that are left of it.
func TestCompactOfDamagedFiles(t *testing.T) {
	needPlanes(t)
	w := NewWorker(Limits{})
	defer w.Close()
	rnd := xrand.New(11, 5)
	for name, enc := range regionFiles(t) {
		for i := range kernelCases(t, 150) {
			b := bytes.Clone(enc)
			for range 1 + rnd.IntN(3) {
				b[rnd.IntN(len(b))] = byte(rnd.IntN(256))
			}
			if i%3 == 0 {
				b[rnd.IntN(min(len(b), 700))] ^= 1 << rnd.IntN(8) // in the header
			}
			if i%5 == 0 {
				b = b[:rnd.IntN(len(b)+1)]
			}
			w.limits.RefuseCorrupt = i%4 == 0
			samePlanes(t, w, b, rnd, 2)
			if t.Failed() {
				t.Fatalf("%s, damage %d", name, i)
			}
		}
	}
}

// FuzzCompact: whatever the bytes, both forms are good or bad together and hold the same pixels.
func FuzzCompact(f *testing.F) {
	needPlanes(f)
	for _, enc := range regionFiles(f) {
		f.Add(enc)
	}
	w := NewWorker(Limits{MaxPixels: 1 << 16, MaxBytes: 1 << 24})
	f.Cleanup(w.Close)
	rnd := xrand.New(11, 6)
	f.Fuzz(func(t *testing.T, enc []byte) { samePlanes(t, w, enc, rnd, 2) })
}

// BenchmarkCompact augments the same photographs from RGB and from planes, in turn, because a busy machine changes from
// second to second: processor time of an image, medians over passes of all of them, and the median of their ratios.
func BenchmarkCompact(b *testing.B) {
	needPlanes(b)
	w := NewWorker(Limits{})
	defer w.Close()
	var forms [2][]Image
	var sizes [2]int
	for _, p := range photographs(b, 700) {
		enc, err := os.ReadFile(p)
		if err != nil {
			b.Fatal(err)
		}
		if h, err := w.header(enc); err != nil || h.planes == Packed || h.planes == PlaneGrey {
			continue
		}
		for i, compact := range []bool{false, true} {
			img, err := w.decodePrefix(parse(b), enc, heap, compact)
			if err != nil {
				b.Fatal(err)
			}
			forms[i], sizes[i] = append(forms[i], img), sizes[i]+len(img.Pix)
		}
	}
	if len(forms[0]) == 0 {
		b.Skip("no photographs (set LARDER_TESTDATA)")
	}
	for _, c := range []struct {
		name string
		r    *Recipe
	}{
		{"uint8", trainRecipe(b)},
		{"float32", trainRecipe(b, imagenet)},
		{"jitter", trainRecipe(b, spec("ColorJitter", "brightness", 0.4, "contrast", 0.4, "saturation", 0.4, "hue", 0.1))},
	} {
		for level := 1; level <= bestLevel; level++ {
			b.Run(fmt.Sprintf("%s/%d", c.name, level), func(b *testing.B) {
				w.level = level
				out := newSlots(c.r)
				var took [2][]float64
				var ratios []float64
				for pass := 0; b.Loop(); pass++ {
					for form, images := range forms {
						from := processTime()
						for i, img := range images {
							key := RandKey{Seed: uint64(pass), Sample: uint64(i)}
							if err := w.AugmentInto(c.r, img, key, out.row(i)); err != nil {
								b.Fatal(err)
							}
						}
						took[form] = append(took[form], float64((processTime()-from).Microseconds())/float64(len(images)))
					}
					ratios = append(ratios, took[1][pass]/took[0][pass])
				}
				for _, s := range [][]float64{took[0], took[1], ratios} {
					slices.Sort(s)
				}
				b.ReportMetric(took[0][len(ratios)/2], "rgb-us")
				b.ReportMetric(took[1][len(ratios)/2], "planes-us")
				b.ReportMetric(ratios[len(ratios)/2], "ratio")
				b.ReportMetric(float64(sizes[1])/float64(sizes[0]), "bytes-ratio")
			})
		}
	}
}

func processTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}
