package prep

import (
	"os"
	"path/filepath"
	"sort"
	"syscall"
	"testing"
	"unsafe"
)

// photographs returns the paths of real photographs, or nil. They are read where they lie and never copied.
func photographs(tb testing.TB, most int) []string {
	tb.Helper()
	dir := os.Getenv("LARDER_TESTDATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	paths, err := filepath.Glob(filepath.Join(dir, "imagenet-700", "*", "*"))
	if err != nil {
		tb.Fatal(err)
	}
	sort.Strings(paths)
	if len(paths) > most { // spread over all classes
		spread := make([]string, most)
		for i := range spread {
			spread[i] = paths[i*len(paths)/most]
		}
		paths = spread
	}
	return paths
}

func benchFiles(b *testing.B) [][]byte {
	var files [][]byte
	for _, p := range photographs(b, 200) {
		enc, err := os.ReadFile(p)
		if err != nil {
			b.Fatal(err)
		}
		files = append(files, enc)
	}
	if len(files) == 0 {
		b.Log("no photographs (set LARDER_TESTDATA); drawn images instead")
		for i := range 20 {
			files = append(files, drawnJPEG(b, 500, 375, uint64(i)))
		}
	}
	return files
}

func trainRecipe(tb testing.TB, tail ...OpSpec) *Recipe {
	return parse(tb, append([]OpSpec{
		{Name: "RandomResizedCrop", Args: map[string]any{"size": 224.0}}, {Name: "RandomHorizontalFlip"}}, tail...)...)
}

var imagenet = OpSpec{Name: "Normalize", Args: map[string]any{"mean": "imagenet"}}

// cpuSeconds is what this process has used of all cores. Rates per CPU-second are comparable on a busy machine too.
func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func perSecond(b *testing.B, cpu float64) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "img/s")
	b.ReportMetric(float64(b.N)/(cpuSeconds(b)-cpu), "img/cpu-s")
}

// slots are four batches of 64, as in a ring: what is written again and again in one place stays in the caches, and
// says nothing of that.
type slots struct {
	mem  []byte
	size int
}

func newSlots(r *Recipe) *slots {
	s := &slots{size: r.Output().SampleBytes}
	mem := make([]byte, 4*64*s.size+64)
	s.mem = mem[64-int(uintptr(unsafe.Pointer(&mem[0]))%64):]
	for i := range s.mem { // no first touch within the measurement
		s.mem[i] = 1
	}
	return s
}

func (s *slots) row(i int) []byte { return s.mem[i%256*s.size:][:s.size] }

func BenchmarkDecode(b *testing.B) {
	files := benchFiles(b)
	w := NewWorker(Limits{})
	defer w.Close()
	r := parse(b)
	buf := make([]byte, 64<<20)
	alloc := func(n int) ([]byte, error) { return buf[:n], nil }
	b.ReportAllocs()
	cpu := cpuSeconds(b)
	for i := 0; b.Loop(); i++ {
		if _, err := w.Decode(r, files[i%len(files)], alloc); err != nil {
			b.Fatal(err)
		}
	}
	perSecond(b, cpu)
}

func BenchmarkAugmentInto(b *testing.B) {
	for name, r := range map[string]*Recipe{
		"uint8":   trainRecipe(b),
		"float32": trainRecipe(b, imagenet),
		"bicubic": parse(b, OpSpec{Name: "RandomResizedCrop", Args: map[string]any{"size": 224.0,
			"interpolation": "bicubic"}}),
		"jitter": trainRecipe(b, OpSpec{Name: "ColorJitter",
			Args: map[string]any{"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}}),
	} {
		b.Run(name, func(b *testing.B) {
			w := NewWorker(Limits{})
			defer w.Close()
			var imgs []Image
			for _, enc := range benchFiles(b) {
				img, err := w.Decode(r, enc, func(n int) ([]byte, error) { return make([]byte, n), nil })
				if err != nil {
					b.Fatal(err)
				}
				imgs = append(imgs, img)
			}
			slots := newSlots(r)
			b.ReportAllocs()
			cpu := cpuSeconds(b)
			for i := 0; b.Loop(); i++ {
				if err := w.AugmentInto(r, imgs[i%len(imgs)], RandKey{Seed: 1, Sample: uint64(i)}, slots.row(i)); err != nil {
					b.Fatal(err)
				}
			}
			perSecond(b, cpu)
		})
	}
}

func BenchmarkDecodeInto(b *testing.B) {
	files := benchFiles(b)
	w := NewWorker(Limits{})
	defer w.Close()
	r := trainRecipe(b, imagenet)
	slots := newSlots(r)
	b.ReportAllocs()
	cpu := cpuSeconds(b)
	for i := 0; b.Loop(); i++ {
		if err := w.DecodeInto(r, files[i%len(files)], RandKey{Seed: 1, Sample: uint64(i)}, slots.row(i)); err != nil {
			b.Fatal(err)
		}
	}
	perSecond(b, cpu)
}
