package prep

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"

	"larder/internal/testenv"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// fence is memory that ends at a page without access rights: what is read or written behind its end kills the test.
type fence struct{ mem []byte }

func newFence(t *testing.T, size int) *fence {
	t.Helper()
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	mem, err := syscall.Mmap(-1, 0, size+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mprotect(mem[size:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	return &fence{mem: mem[:size]}
}

func (f *fence) last(n int) []byte { return f.mem[len(f.mem)-n:] }

// kernelCases is how many random cases are run: LARDER_KERNEL_CASES, or def in make nightly. make test runs a third of
// def, -short an eighth of that.
func kernelCases(t *testing.T, def int) int {
	def = lane.Times((def+2)/3, def)
	if testing.Short() {
		def = max(def/8, 1)
	}
	return testenv.Count(t, "LARDER_KERNEL_CASES", def)
}

// outputs are recipes that end in every kind of output, for images of w x h.
func outputs(tb testing.TB, w, h int) []*Recipe {
	size := spec("Resize", "size", []any{float64(h), float64(w)})
	cast := func(kv ...any) OpSpec { return spec("ToDtype", kv...) }
	return []*Recipe{
		parse(tb, size), parse(tb, size, cast("dtype", "uint8", "layout", "HWC")), parse(tb, size, imagenet),
		parse(tb, size, cast("layout", "HWC"), imagenet), parse(tb, size, spec("Grayscale", "num_output_channels", 1.0)),
		parse(tb, size, spec("Grayscale", "num_output_channels", 1.0), spec("ToTensor")), parse(tb, size, spec("ToTensor")),
		parse(tb, size, imagenet, imagenet), parse(tb, size, cast("by", "mul")), parse(tb, size, cast("by", "mul"), imagenet),
	}
}

// drawGeo draws a crop, a resize and a flip of an image.
func drawGeo(rnd *xrand.Rand, side func(most int) int, img Image) step {
	s := step{kind: stepGeo, filter: filter(rnd.IntN(2)), hflip: rnd.IntN(2) == 0, vflip: rnd.IntN(2) == 0}
	s.src = box{w: 1 + rnd.IntN(img.W), h: 1 + rnd.IntN(img.H)}
	s.src.x, s.src.y = rnd.IntN(img.W-s.src.w+1), rnd.IntN(img.H-s.src.h+1)
	s.rw, s.rh = side(300), side(300)
	if rnd.IntN(8) == 0 {
		s.rw = s.src.w
	}
	if rnd.IntN(8) == 0 {
		s.rh = s.src.h
	}
	if rnd.IntN(4) == 0 { // whole lines of 64 bytes: floats may go past the caches
		s.rw = 16 * (1 + rnd.IntN(18))
	}
	s.win = box{w: 1 + rnd.IntN(s.rw), h: 1 + rnd.IntN(s.rh)}
	s.win.x, s.win.y = rnd.IntN(s.rw-s.win.w+1), rnd.IntN(s.rh-s.win.h+1)
	if rnd.IntN(2) == 0 {
		s.win = box{w: s.rw, h: s.rh}
	}
	return s
}

// TestKernelsEqualTwin: every instruction set gives the bits of the Go twin, on random sizes, boxes, strides, windows,
// flips and outputs, and touches no byte outside of what it was given.
func TestKernelsEqualTwin(t *testing.T) {
	if bestLevel == 0 {
		t.Skip("this build has no kernels in C")
	}
	const most = 1 << 20
	src, out := newFence(t, most), newFence(t, 4*most)
	twin, fast := NewWorker(Limits{}), NewWorker(Limits{})
	twin.level = 0
	rnd := xrand.New(1, 0x6b65726e)
	for i := range src.mem {
		src.mem[i] = byte(rnd.IntN(256))
	}
	want := make([]byte, 4*most)
	side := func(most int) int { // small sides are likely, and so are those around the width of vectors
		switch rnd.IntN(6) {
		case 0:
			return 1 + rnd.IntN(min(4, most))
		case 1:
			return 1 + rnd.IntN(most)
		default:
			return 1 + rnd.IntN(min(40, most))
		}
	}
	kinds := outputs(t, 1, 1)
	n := kernelCases(t, 3000)
	for i := range n {
		img := Image{W: side(300), H: side(300), C: 3}
		img.Pix = src.last(img.W * img.H * 3)
		if rnd.IntN(8) == 0 { // extremes, where rounding and overshoot show
			img.Pix[rnd.IntN(len(img.Pix))] = byte(255 * rnd.IntN(2))
		}
		s := drawGeo(rnd, side, img)
		r := *kinds[rnd.IntN(len(kinds))]
		r.outW, r.outH = s.win.w, s.win.h
		r.out.SampleBytes *= s.win.w * s.win.h
		mid := newImage(want[2*most:], s.win.w, s.win.h)
		twin.geo(&s, img, mid.Pix)
		if err := twin.Finish(&r, mid, RandKey{}, want); err != nil {
			t.Fatal(err)
		}
		for level := 1; level <= bestLevel; level++ {
			fast.level = level
			where := func() string {
				return fmt.Sprintf("case %d, level %d: %d x %d, %+v, %+v", i, level, img.W, img.H, s, r.out)
			}
			got := out.last(r.out.SampleBytes)
			if !fast.geoC(&s, img, got, &r) {
				t.Fatalf("%s: not done", where())
			}
			if !bytes.Equal(got, want[:len(got)]) {
				t.Fatalf("%s: one pass with the output differs", where())
			}
			clear(got)
			got = out.last(s.win.w * s.win.h * 3)
			fast.geo(&s, img, got)
			if !bytes.Equal(got, mid.Pix) {
				t.Fatalf("%s: the pass differs", where())
			}
			packed := newImage(got, s.win.w, s.win.h)
			got = make([]byte, r.out.SampleBytes)
			if err := fast.Finish(&r, packed, RandKey{}, got); err != nil || !bytes.Equal(got, want[:len(got)]) {
				t.Fatalf("%s: the output alone differs, error %v", where(), err)
			}
		}
	}
	t.Logf("%d cases at %d levels (%s)", n, bestLevel, KernelName())
}

// TestColorKernelsEqualTwin does the same for chains of colour steps.
func TestColorKernelsEqualTwin(t *testing.T) {
	if bestLevel == 0 {
		t.Skip("this build has no kernels in C")
	}
	mem := newFence(t, 3*5000)
	twin, fast := NewWorker(Limits{}), NewWorker(Limits{})
	twin.level = 0
	rnd := xrand.New(2, 0x636f6c6f)
	n := kernelCases(t, 2000)
	for i := range n {
		steps := make([]step, 1+rnd.IntN(6))
		for k := range steps {
			steps[k] = step{kind: stepBrightness + stepKind(rnd.IntN(5)), hue: uint8(rnd.IntN(256)),
				f: float32(rnd.Uniform(0, 2.2))}
			if rnd.IntN(16) == 0 {
				steps[k].f = float32(rnd.Uniform(0, 1e6))
			}
		}
		pixels := 1 + rnd.IntN(100)
		if rnd.IntN(4) == 0 {
			pixels = 1 + rnd.IntN(5000)
		}
		want := make([]byte, 3*pixels)
		for k := range want {
			want[k] = byte(rnd.IntN(256))
		}
		if rnd.IntN(4) == 0 {
			for k := range want {
				want[k] = want[k%3]
			}
		}
		before := bytes.Clone(want)
		twin.color(steps, want)
		for level := 1; level <= bestLevel; level++ {
			fast.level = level
			got := mem.last(len(before))
			copy(got, before)
			fast.color(steps, got)
			if !bytes.Equal(got, want) {
				t.Fatalf("case %d, level %d: %d pixels, %+v differ", i, level, pixels, steps)
			}
		}
	}
	t.Logf("%d cases at %d levels (%s)", n, bestLevel, KernelName())
}

// TestEveryColor runs all 16.7 million colours through the steps that mix channels.
func TestEveryColor(t *testing.T) {
	if bestLevel == 0 || testing.Short() && os.Getenv("LARDER_KERNEL_CASES") == "" {
		t.Skip("needs kernels in C, and a few seconds")
	}
	twin, fast := NewWorker(Limits{}), NewWorker(Limits{})
	twin.level = 0
	stride := 7 // of red and green; all of them when LARDER_KERNEL_CASES is set
	if os.Getenv("LARDER_KERNEL_CASES") != "" {
		stride = 1
	}
	want, got := make([]byte, 3*256), make([]byte, 3*256)
	pix := make([]byte, 3*256)
	for r := 0; r < 256; r += stride {
		for g := r % stride; g < 256; g += stride {
			for b := range 256 {
				pix[3*b], pix[3*b+1], pix[3*b+2] = byte(r), byte(g), byte(b)
			}
			for _, s := range []step{{kind: stepHue, hue: uint8(r*7 + g)}, {kind: stepSaturation, f: 1.37}, {kind: stepGray}} {
				copy(want, pix)
				twin.color([]step{s}, want)
				for level := 1; level <= bestLevel; level++ {
					fast.level = level
					copy(got, pix)
					fast.color([]step{s}, got)
					if !bytes.Equal(got, want) {
						t.Fatalf("level %d, red %d, green %d, %+v: differ", level, r, g, s)
					}
				}
			}
		}
	}
}
