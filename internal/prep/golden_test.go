package prep

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const goldenDir = "testdata/golden"

// goldenFiles are images of every format, drawn by testdata/make_golden.py.
func goldenFiles(tb testing.TB) map[string][]byte {
	tb.Helper()
	files := map[string][]byte{}
	entries, err := os.ReadDir(goldenDir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".want.png") || strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		if files[e.Name()], err = os.ReadFile(filepath.Join(goldenDir, e.Name())); err != nil {
			tb.Fatal(err)
		}
	}
	return files
}

func goldenWant(tb testing.TB, name string) Image {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(goldenDir, name+".want.png"))
	if err != nil {
		tb.Fatal(err)
	}
	m, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		tb.Fatal(err)
	}
	s := m.Bounds().Size()
	img := newImage(make([]byte, s.X*s.Y*3), s.X, s.Y)
	for y := range s.Y {
		for x := range s.X {
			r, g, bl, _ := m.At(x, y).RGBA()
			copy(img.Pix[(y*s.X+x)*3:], []byte{uint8(r >> 8), uint8(g >> 8), uint8(bl >> 8)})
		}
	}
	return img
}

// TestGoldenDecode holds every format against what Pillow's convert("RGB") made of it. JPEG without libjpeg-turbo may
// differ by its chroma filter, within the grey level that is promised.
func TestGoldenDecode(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	r := parse(t)
	files := goldenFiles(t)
	if len(files) < 35 {
		t.Fatalf("%d files", len(files))
	}
	for name, enc := range files {
		t.Run(name, func(t *testing.T) {
			want := goldenWant(t, name)
			gw, gh, _, err := w.DecodedShape(r, enc)
			if err != nil || gw != want.W || gh != want.H {
				t.Fatalf("shape %d x %d, error %v; want %d x %d", gw, gh, err, want.W, want.H)
			}
			got, err := w.Decode(r, enc, heap)
			if err != nil {
				t.Fatal(err)
			}
			differ, sum := 0, 0
			for i := range want.Pix {
				d := int(got.Pix[i]) - int(want.Pix[i])
				sum += max(d, -d)
				if d != 0 {
					differ++
				}
			}
			if differ == 0 {
				return
			}
			// A small image with hard edges is the worst case for another chroma filter: 4 grey levels on average, not 1, and
			// YCCK is left to the standard library, which repeats chroma.
			limit := 4.0
			if name == "ycck.jpg" {
				limit = 8
			}
			if mean := float64(sum) / float64(len(want.Pix)); Parity() || !strings.HasSuffix(name, ".jpg") || mean > limit {
				t.Errorf("%d of %d values differ, by %.3g on average", differ, len(want.Pix), mean)
			}
		})
	}
}

type goldenOp struct {
	Op     string
	Box    []int
	W, H   int
	F      float64
	SHA256 string
}

func goldenOps(tb testing.TB) []goldenOp {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(goldenDir, "ops.json"))
	if err != nil {
		tb.Fatal(err)
	}
	var cases []goldenOp
	if err := json.Unmarshal(b, &cases); err != nil {
		tb.Fatal(err)
	}
	return cases
}

// TestGoldenOps holds the kernels against digests of Pillow's results, so that a build without Python is held to them
// too.
func TestGoldenOps(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	src := goldenWant(t, "rgb8.png")
	cases := goldenOps(t)
	if len(cases) < 100 {
		t.Fatalf("%d cases", len(cases))
	}
	filters := map[string]filter{"bilinear": bilinear, "bicubic": bicubic, "nearest": nearestSample}
	for _, c := range cases {
		var s step
		ow, oh := src.W, src.H
		switch c.Op {
		case "brightness":
			s = step{kind: stepBrightness, f: float32(c.F)}
		case "contrast":
			s = step{kind: stepContrast, f: float32(c.F)}
		case "saturation":
			s = step{kind: stepSaturation, f: float32(c.F)}
		case "hue":
			s = step{kind: stepHue, hue: uint8(c.F)}
		case "gray":
			s = step{kind: stepGray}
		default:
			ow, oh = c.W, c.H
			s = step{kind: stepGeo, filter: filters[c.Op], src: box{c.Box[0], c.Box[1], c.Box[2], c.Box[3]},
				rw: c.W, rh: c.H, win: box{w: c.W, h: c.H}}
		}
		got := w.run([]step{s}, src, nil, ow, oh)
		sum := sha256.Sum256(got.Pix)
		if got.W != ow || got.H != oh || hex.EncodeToString(sum[:]) != c.SHA256 {
			t.Errorf("%+v: other pixels than Pillow's", c)
		}
	}
}
