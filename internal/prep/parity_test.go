package prep

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"larder/internal/invariant"
)

// parityScript applies the same ops with the same parameters through Pillow and torchvision and compares. It prints one
// JSON object per case.
const parityScript = `
import json, sys
import numpy as np
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import functional as F
from torchvision.transforms.functional import InterpolationMode as M

def jitter(img, p):
    for k in p["order"]:
        name = ("brightness", "contrast", "saturation", "hue")[k]
        if name in p:
            img = getattr(F, "adjust_" + name)(img, p[name])
    return img

def apply(img, name, a, p):
    if name == "Resize":
        size = a["size"]
        size = [int(v) for v in size] if isinstance(size, list) else int(size)
        return T.Resize(size, M(a["interpolation"]), max_size=a["max_size"] and int(a["max_size"]))(img)
    if name == "CenterCrop":
        return T.CenterCrop([int(v) for v in a["size"]])(img)
    if name == "RandomResizedCrop":
        return F.resized_crop(img, p["top"], p["left"], p["height"], p["width"], [int(v) for v in a["size"]], M(a["interpolation"]))
    if name == "RandomHorizontalFlip":
        return F.hflip(img) if p["flip"] else img
    if name == "RandomVerticalFlip":
        return F.vflip(img) if p["flip"] else img
    if name == "ColorJitter":
        return jitter(img, p)
    if name == "Grayscale":
        return T.Grayscale(int(a["num_output_channels"]))(img)
    if name == "ToDtype":
        if a["dtype"] == "uint8":
            return F.pil_to_tensor(img)
        t = F.to_tensor(img)
        return t if a["scale"] else F.pil_to_tensor(img).float()
    if name == "Normalize":
        return T.Normalize(a["mean"], a["std"])(img)
    raise ValueError(name)

for line in open(sys.argv[1]):
    c = json.loads(line)
    img = Image.open(c["file"]).convert("RGB")
    for op in c["ops"]:
        img = apply(img, op["name"], op["args"], op["params"])
    want = np.asarray(img)
    if want.ndim == 3 and c["layout"] == "HWC" and not isinstance(img, Image.Image):
        want = want.transpose(1, 2, 0)
    got = np.fromfile(c["out"], dtype=c["dtype"])
    shape = list(want.shape)
    if got.size != want.size or (c["shape"] and c["shape"] != shape):
        print(json.dumps({"error": "%s: shape %s against %s of torchvision" % (c["file"], c["shape"] or got.size, shape)}))
        continue
    d = np.abs(got.reshape(shape).astype(np.float64) - want.astype(np.float64))
    print(json.dumps({"group": c["group"], "values": int(d.size), "differ": int((d != 0).sum()), "max": float(d.max()), "sum": float(d.sum())}))
`

// python finds an interpreter with torchvision; without one the test is skipped, or fails when LARDER_REQUIRE_TORCH is 1.
func python(t *testing.T) string {
	t.Helper()
	py := os.Getenv("LARDER_PYTHON")
	if py == "" {
		py = "/usr/bin/python3"
	}
	if out, err := exec.Command(py, "-c", "import torchvision, PIL, numpy").CombinedOutput(); err != nil {
		msg := fmt.Sprintf("%s cannot import torchvision, PIL and numpy: %v\n%s", py, err, out)
		if os.Getenv("LARDER_REQUIRE_TORCH") == "1" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	return py
}

type parityOp struct {
	Name   string         `json:"name"`
	Args   map[string]any `json:"args"`
	Params map[string]any `json:"params"`
}

type parityCase struct {
	Group  string     `json:"group"`
	File   string     `json:"file"`
	Out    string     `json:"out"`
	DType  string     `json:"dtype"`
	Layout string     `json:"layout"`
	Shape  []int      `json:"shape"`
	Ops    []parityOp `json:"ops"`
}

type parity struct {
	t     *testing.T
	dir   string
	w     *Worker
	cases []parityCase
}

// add runs r on a file and notes what Python has to do to compare.
func (p *parity) add(group, file string, r *Recipe, key RandKey) {
	p.t.Helper()
	enc, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	h, err := p.w.header(enc)
	if err != nil {
		p.t.Fatalf("%s: %v", file, err)
	}
	_, w, ht, err := p.w.plan(r, 0, r.imageOps, key, h.w, h.h)
	if err != nil {
		p.t.Fatalf("%s: %v", file, err)
	}
	o := r.Output()
	n := o.SampleBytes
	if o.Ragged {
		n = w * ht * 3
	}
	dst := make([]byte, n)
	if err := p.w.DecodeInto(r, enc, key, dst); err != nil {
		p.t.Fatalf("%s: %v", file, err)
	}
	c := parityCase{Group: group, File: file, DType: o.DType, Layout: o.Layout, Shape: o.Shape,
		Out: filepath.Join(p.dir, fmt.Sprintf("%d.raw", len(p.cases))), Ops: []parityOp{}}
	for i, s := range r.Ops() {
		if o.Ragged && i == len(r.ops)-1 {
			break // the cast of ragged images says uint8 HWC, which is what a PIL image is
		}
		_, iw, ih, err := p.w.plan(r, 0, min(i, r.imageOps), key, h.w, h.h)
		if err != nil {
			p.t.Fatal(err)
		}
		c.Ops = append(c.Ops, parityOp{s.Name, s.Args, r.Params(i, key, iw, ih)})
	}
	if err := os.WriteFile(c.Out, dst, 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.cases = append(p.cases, c)
}

type parityRow struct {
	Group          string
	Error          string
	Values, Differ int64
	Max, Sum       float64
	cases          int
}

// compare runs the script and sums up its lines by group.
func (p *parity) compare(py string) map[string]*parityRow {
	p.t.Helper()
	manifest := filepath.Join(p.dir, "cases.json")
	f, err := os.Create(manifest)
	if err != nil {
		p.t.Fatal(err)
	}
	enc := json.NewEncoder(f)
	for _, c := range p.cases {
		if err := enc.Encode(c); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(py, "-c", parityScript, manifest)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatalf("%v\n%s", err, stderr.String())
	}
	rows := map[string]*parityRow{}
	n := 0
	for sc := bufio.NewScanner(strings.NewReader(string(out))); sc.Scan(); n++ {
		var r parityRow
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			p.t.Fatal(err)
		}
		if r.Error != "" {
			p.t.Error(r.Error)
			continue
		}
		if rows[r.Group] == nil {
			rows[r.Group] = &parityRow{Group: r.Group}
		}
		s := rows[r.Group]
		s.cases++
		s.Values, s.Differ, s.Sum, s.Max = s.Values+r.Values, s.Differ+r.Differ, s.Sum+r.Sum, max(s.Max, r.Max)
	}
	if n != len(p.cases) {
		p.t.Errorf("%d of %d cases were compared", n, len(p.cases))
	}
	return rows
}

var parityRecipes = []struct {
	group string
	ops   []OpSpec
}{
	{"Resize(256)", []OpSpec{spec("Resize", "size", 256.0)}},
	{"Resize(40) max_size 60", []OpSpec{spec("Resize", "size", 40.0, "max_size", 60.0)}},
	{"Resize([97, 131])", []OpSpec{spec("Resize", "size", []any{97.0, 131.0})}},
	{"Resize([300, 17]) bicubic", []OpSpec{spec("Resize", "size", []any{300.0, 17.0}, "interpolation", "bicubic")}},
	{"Resize(112) bicubic", []OpSpec{spec("Resize", "size", 112.0, "interpolation", "bicubic")}},
	{"Resize([133, 77]) nearest", []OpSpec{spec("Resize", "size", []any{133.0, 77.0}, "interpolation", "nearest")}},
	{"CenterCrop(224)", []OpSpec{spec("CenterCrop", "size", 224.0)}},
	{"CenterCrop([701, 33])", []OpSpec{spec("CenterCrop", "size", []any{701.0, 33.0})}},
	{"RandomResizedCrop(224)", []OpSpec{spec("RandomResizedCrop", "size", 224.0)}},
	{"RandomResizedCrop(96) bicubic", []OpSpec{spec("RandomResizedCrop", "size", 96.0, "interpolation", "bicubic")}},
	{"RandomResizedCrop(96) nearest", []OpSpec{spec("RandomResizedCrop", "size", 96.0, "interpolation", "nearest")}},
	{"RandomHorizontalFlip", []OpSpec{spec("HFlip", "p", 0.7)}},
	{"RandomVerticalFlip", []OpSpec{spec("RandomVerticalFlip", "p", 0.7)}},
	{"RRC + both flips", []OpSpec{spec("RandomResizedCrop", "size", 64.0), spec("HFlip"), spec("VFlip")}},
	{"flip + Resize", []OpSpec{spec("HFlip"), spec("Resize", "size", 50.0)}},
	{"ToTensor", []OpSpec{spec("CenterCrop", "size", 80.0), spec("ToTensor")}},
	{"ToDtype(float32) unscaled", []OpSpec{spec("CenterCrop", "size", 80.0), spec("ToDtype", "dtype", "float32", "scale", false)}},
	{"Normalize", []OpSpec{spec("CenterCrop", "size", 80.0), imagenet}},
	{"Normalize HWC", []OpSpec{spec("CenterCrop", "size", 80.0), spec("ToDtype", "scale", true, "layout", "HWC"), imagenet}},
	{"Normalize twice", []OpSpec{spec("CenterCrop", "size", 80.0), imagenet,
		spec("Normalize", "mean", []any{0.1, 0.2, 0.3}, "std", []any{0.7, 0.8, 0.9})}},
	{"brightness", []OpSpec{spec("ColorJitter", "brightness", 0.8)}},
	{"contrast", []OpSpec{spec("ColorJitter", "contrast", 0.8)}},
	{"saturation", []OpSpec{spec("ColorJitter", "saturation", []any{0.0, 3.0})}},
	{"hue", []OpSpec{spec("ColorJitter", "hue", 0.5)}},
	{"ColorJitter of all", []OpSpec{spec("ColorJitter", "brightness", 0.4, "contrast", 0.4, "saturation", 0.4, "hue", 0.1), spec("HFlip")}},
	{"Grayscale(3)", []OpSpec{spec("Grayscale", "num_output_channels", 3.0)}},
	{"Grayscale(1) + jitter", []OpSpec{spec("CenterCrop", "size", 80.0), spec("Grayscale", "num_output_channels", 1.0),
		spec("ColorJitter", "brightness", 0.4, "contrast", 0.4), spec("Normalize", "mean", 0.5, "std", 0.25)}},
	{"eval: Resize 256, CenterCrop 224, Normalize", []OpSpec{spec("Resize", "size", 256.0), spec("CenterCrop", "size", 224.0), imagenet}},
	{"train: RRC 224, HFlip, Normalize", []OpSpec{spec("RandomResizedCrop", "size", 224.0), spec("HFlip"), spec("ToTensor"), imagenet}},
}

// TestParity compares every op with the installed torchvision on PIL images. Ops are compared on BMP files, so that the JPEG
// decoder has no part in it, and must be equal to the last bit; the decoder is compared by itself.
func TestParity(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Python")
	}
	py := python(t)
	p := &parity{t: t, dir: t.TempDir(), w: NewWorker(Limits{})}
	defer p.w.Close()
	most := 60
	if invariant.Enabled { // kernels are ten times slower under the race detector, and have no goroutines
		most = 6
	}
	if os.Getenv("LARDER_PARITY_ALL") == "1" {
		most = 1 << 20
	}
	jpegs := photographs(t, most)
	t.Logf("%d photographs, decoder %s", len(jpegs), DecoderName())
	var pictures []Image
	for i, path := range jpegs {
		p.add("decode JPEG", path, parse(t), RandKey{})
		p.add("JPEG to train tensor", path, parse(t, parityRecipes[len(parityRecipes)-1].ops...), RandKey{Seed: 5, Sample: uint64(i)})
		if i%10 == 0 {
			enc, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			img, err := p.w.Decode(parse(t), enc, heap)
			if err != nil {
				t.Fatal(err)
			}
			pictures = append(pictures, img)
		}
	}
	for i, s := range [][2]int{{64, 48}, {500, 375}, {33, 470}, {701, 40}, {7, 5}, {1, 9}, {1, 1}, {80, 80}} {
		pictures = append(pictures, draw(s[0], s[1], uint64(i)))
		path := filepath.Join(p.dir, fmt.Sprintf("drawn%d.jpg", i))
		if err := os.WriteFile(path, drawnJPEG(t, s[0], s[1], uint64(i)), 0o600); err != nil {
			t.Fatal(err)
		}
		p.add("decode JPEG", path, parse(t), RandKey{})
	}
	for i, img := range pictures {
		path := filepath.Join(p.dir, fmt.Sprintf("%d.bmp", i))
		if err := os.WriteFile(path, bmp24(img), 0o600); err != nil {
			t.Fatal(err)
		}
		for g, c := range parityRecipes {
			p.add(c.group, path, parse(t, c.ops...), RandKey{Seed: uint64(g), Instance: 3, Sample: uint64(i)})
		}
	}
	rows := p.compare(py)
	groups := make([]string, 0, len(rows))
	for g := range rows {
		groups = append(groups, g)
	}
	sort.Strings(groups)
	t.Logf("%-45s %6s %10s %10s %8s %10s", "op", "images", "values", "differ", "max", "mean")
	for _, g := range groups {
		r := rows[g]
		mean := r.Sum / float64(r.Values)
		t.Logf("%-45s %6d %10d %10d %8.3g %10.3g", g, r.cases, r.Values, r.Differ, r.Max, mean)
		if mean > 1 {
			t.Errorf("%s differs by %g grey levels on average", g, mean)
		}
		if jpeg := strings.Contains(g, "JPEG"); r.Differ > 0 && (!jpeg || Parity()) {
			t.Errorf("%s: %d of %d values differ from torchvision's, by up to %g", g, r.Differ, r.Values, r.Max)
		}
	}
	if len(rows) < len(parityRecipes)+1 {
		t.Errorf("%d groups were compared", len(rows))
	}
}

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
