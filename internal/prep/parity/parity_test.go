package parity_test

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"larder/internal/invariant"
	"larder/internal/prep"
	"larder/internal/prep/parity"
	"larder/internal/testenv/lane"
)

// python finds an interpreter with torchvision; without one the test is skipped, or fails when LARDER_REQUIRE_TORCH is
// 1.
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

func spec(name string, kv ...any) prep.OpSpec {
	s := prep.OpSpec{Name: name, Args: map[string]any{}}
	for i := 0; i < len(kv); i += 2 {
		s.Args[kv[i].(string)] = kv[i+1]
	}
	return s
}

var imagenet = spec("Normalize", "mean", "imagenet")

func parse(t *testing.T, ops []prep.OpSpec) *prep.Recipe {
	t.Helper()
	r, err := prep.ParseRecipe(ops)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// photographs returns the paths of at most that many real photographs, spread over all classes, or none.
func photographs(t *testing.T, most int) []string {
	t.Helper()
	dir := os.Getenv("LARDER_TESTDATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared", "data")
	}
	paths, err := filepath.Glob(filepath.Join(dir, "imagenet-700", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(paths)
	if len(paths) <= most {
		return paths
	}
	spread := make([]string, most)
	for i := range spread {
		spread[i] = paths[i*len(paths)/most]
	}
	return spread
}

// drawn makes a picture of gradients, edges and noise.
func drawn(w, h, seed int) image.Image {
	m := image.NewRGBA(image.Rect(0, 0, w, h))
	noise := uint32(seed)*2654435761 + 1
	for y := range h {
		for x := range w {
			noise = noise*1664525 + 1013904223
			v := 120 + 70*math.Sin(float64(x)*0.07+float64(seed)) + 50*math.Cos(float64(y)*0.05)
			if (x-w/2)*(x-w/2)+(y-h/2)*(y-h/2) < w*h/9 {
				v = 255 - v
			}
			at := func(d float64) uint8 { return uint8(min(max(v+d+float64(noise>>28)-8, 0), 255)) }
			m.SetRGBA(x, y, color.RGBA{at(0), at(30 * math.Sin(float64(x+y)*0.03)), at(-20), 255})
		}
	}
	return m
}

func asPNG(t *testing.T, m image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func asJPEG(t *testing.T, m image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, m, &jpeg.Options{Quality: 90}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

var parityRecipes = []struct {
	group string
	ops   []prep.OpSpec
}{
	{"Resize(256)", []prep.OpSpec{spec("Resize", "size", 256.0)}},
	{"Resize(40) max_size 60", []prep.OpSpec{spec("Resize", "size", 40.0, "max_size", 60.0)}},
	{"Resize([97, 131])", []prep.OpSpec{spec("Resize", "size", []any{97.0, 131.0})}},
	{"Resize([300, 17]) bicubic", []prep.OpSpec{spec("Resize", "size", []any{300.0, 17.0}, "interpolation", "bicubic")}},
	{"Resize(112) bicubic", []prep.OpSpec{spec("Resize", "size", 112.0, "interpolation", "bicubic")}},
	{"Resize([133, 77]) nearest", []prep.OpSpec{spec("Resize", "size", []any{133.0, 77.0}, "interpolation", "nearest")}},
	{"CenterCrop(224)", []prep.OpSpec{spec("CenterCrop", "size", 224.0)}},
	{"CenterCrop([701, 33])", []prep.OpSpec{spec("CenterCrop", "size", []any{701.0, 33.0})}},
	{"RandomResizedCrop(224)", []prep.OpSpec{spec("RandomResizedCrop", "size", 224.0)}},
	{"RandomResizedCrop(96) bicubic", []prep.OpSpec{spec("RandomResizedCrop", "size", 96.0, "interpolation", "bicubic")}},
	{"RandomResizedCrop(96) nearest", []prep.OpSpec{spec("RandomResizedCrop", "size", 96.0, "interpolation", "nearest")}},
	{"RandomHorizontalFlip", []prep.OpSpec{spec("HFlip", "p", 0.7)}},
	{"RandomVerticalFlip", []prep.OpSpec{spec("RandomVerticalFlip", "p", 0.7)}},
	{"RRC + both flips", []prep.OpSpec{spec("RandomResizedCrop", "size", 64.0), spec("HFlip"), spec("VFlip")}},
	{"flip + Resize", []prep.OpSpec{spec("HFlip"), spec("Resize", "size", 50.0)}},
	{"ToTensor", []prep.OpSpec{spec("CenterCrop", "size", 80.0), spec("ToTensor")}},
	{"ToDtype(float32) unscaled", []prep.OpSpec{spec("CenterCrop", "size", 80.0), spec("ToDtype", "dtype", "float32",
		"scale", false)}},
	{"ToDtype by mul", []prep.OpSpec{spec("CenterCrop", "size", 80.0), spec("ToDtype", "by", "mul")}},
	{"ToDtype by mul, Normalize", []prep.OpSpec{spec("CenterCrop", "size", 80.0), spec("ToDtype", "by", "mul"), imagenet}},
	{"Normalize", []prep.OpSpec{spec("CenterCrop", "size", 80.0), imagenet}},
	{"Normalize HWC", []prep.OpSpec{spec("CenterCrop", "size", 80.0), spec("ToDtype", "scale", true, "layout", "HWC"),
		imagenet}},
	{"Normalize twice", []prep.OpSpec{spec("CenterCrop", "size", 80.0), imagenet,
		spec("Normalize", "mean", []any{0.1, 0.2, 0.3}, "std", []any{0.7, 0.8, 0.9})}},
	{"brightness", []prep.OpSpec{spec("ColorJitter", "brightness", 0.8)}},
	{"contrast", []prep.OpSpec{spec("ColorJitter", "contrast", 0.8)}},
	{"saturation", []prep.OpSpec{spec("ColorJitter", "saturation", []any{0.0, 3.0})}},
	{"hue", []prep.OpSpec{spec("ColorJitter", "hue", 0.5)}},
	{"ColorJitter of all", []prep.OpSpec{spec("ColorJitter", "brightness", 0.4, "contrast", 0.4, "saturation", 0.4, "hue",
		0.1), spec("HFlip")}},
	{"Grayscale(3)", []prep.OpSpec{spec("Grayscale", "num_output_channels", 3.0)}},
	{"Grayscale(1) + jitter", []prep.OpSpec{spec("CenterCrop", "size", 80.0), spec("Grayscale", "num_output_channels",
		1.0),
		spec("ColorJitter", "brightness", 0.4, "contrast", 0.4), spec("Normalize", "mean", 0.5, "std", 0.25)}},
	{"eval: Resize 256, CenterCrop 224, Normalize", []prep.OpSpec{spec("Resize", "size", 256.0),
		spec("CenterCrop", "size", 224.0), imagenet}},
	{"train: RRC 224, HFlip, Normalize", []prep.OpSpec{spec("RandomResizedCrop", "size", 224.0), spec("HFlip"),
		spec("ToTensor"), imagenet}},
}

// scriptRecipes have the other ops of torchvision's training scripts.
var scriptRecipes = []struct {
	group string
	ops   []prep.OpSpec
}{
	{"GaussianBlur(5)", []prep.OpSpec{spec("Resize", "size", 60.0), spec("GaussianBlur", "kernel_size", 5.0)}},
	{"GaussianBlur([23, 9])", []prep.OpSpec{spec("Resize", "size", []any{60.0, 70.0}), spec("GaussianBlur", "kernel_size",
		[]any{23.0, 9.0}, "sigma", []any{0.1, 4.0})}},
	{"RandomRotation nearest", []prep.OpSpec{spec("RandomRotation", "degrees", 180.0)}},
	{"RandomRotation bilinear", []prep.OpSpec{spec("RandomRotation", "degrees", 30.0, "interpolation", "bilinear",
		"fill", []any{1.0, 200.0, 77.0})}},
	{"RandomRotation bicubic, expand", []prep.OpSpec{spec("RandomRotation", "degrees", []any{-70.0, 100.0},
		"interpolation", "bicubic", "expand", true, "center", []any{10.0, 20.5})}},
	{"RandomRotation 90, expand", []prep.OpSpec{spec("RandomRotation", "degrees", []any{90.0, 90.0}, "expand", true)}},
	{"RandomRotation 270, expand", []prep.OpSpec{spec("RandomRotation", "degrees", []any{-90.0, -90.0}, "expand", true)}},
	{"RandomRotation 180", []prep.OpSpec{spec("RandomRotation", "degrees", []any{180.0, 180.0}), spec("HFlip")}},
	{"RandomRotation 90", []prep.OpSpec{spec("RandomRotation", "degrees", []any{90.0, 90.0}), spec("VFlip")}},
	{"RandomAffine nearest", []prep.OpSpec{spec("RandomAffine", "degrees", 40.0, "translate", []any{0.2, 0.3}, "scale",
		[]any{0.5, 1.6}, "shear", []any{-30.0, 30.0, -10.0, 20.0}, "fill", 9.0)}},
	{"RandomAffine bilinear", []prep.OpSpec{spec("RandomAffine", "degrees", 10.0, "translate", []any{0.1, 0.1}, "shear",
		15.0, "interpolation", "bilinear")}},
	{"RandomAffine bicubic", []prep.OpSpec{spec("RandomAffine", "degrees", 0.0, "scale", []any{0.3, 3.0}, "interpolation",
		"bicubic", "center", []any{3.0, 4.0})}},
	{"RandomAffine shift and scale", []prep.OpSpec{spec("RandomAffine", "degrees", 0.0, "translate", []any{0.5, 0.5},
		"scale", []any{0.2, 4.0})}},
	{"RandomAutocontrast", []prep.OpSpec{spec("RandomAutocontrast", "p", 0.9)}},
	{"RandomEqualize", []prep.OpSpec{spec("RandomEqualize", "p", 0.9), spec("HFlip")}},
	{"RandomInvert", []prep.OpSpec{spec("RandomInvert", "p", 0.9)}},
	{"RandomSolarize", []prep.OpSpec{spec("RandomSolarize", "threshold", 127.5, "p", 0.9)}},
	{"RandomPosterize", []prep.OpSpec{spec("RandomPosterize", "bits", 3.0, "p", 0.9)}},
	{"RandomAdjustSharpness(2)", []prep.OpSpec{spec("RandomAdjustSharpness", "sharpness_factor", 2.0, "p", 0.9)}},
	{"RandomAdjustSharpness(0.3)", []prep.OpSpec{spec("RandomAdjustSharpness", "sharpness_factor", 0.3, "p", 1.0)}},
	{"RandAugment", []prep.OpSpec{spec("RandAugment"), spec("HFlip")}},
	{"RandAugment of all", []prep.OpSpec{spec("RandAugment", "num_ops", 6.0, "magnitude", 28.0, "interpolation",
		"bilinear", "fill", 124.0)}},
	{"TrivialAugmentWide", []prep.OpSpec{spec("TrivialAugmentWide"), spec("TrivialAugmentWide", "interpolation",
		"bicubic"), spec("TrivialAugmentWide", "num_magnitude_bins", 14.0)}},
	{"AutoAugment imagenet", []prep.OpSpec{spec("AutoAugment"), spec("AutoAugment", "fill", 3.0)}},
	{"AutoAugment cifar10", []prep.OpSpec{spec("AutoAugment", "policy", "cifar10")}},
	{"AutoAugment svhn", []prep.OpSpec{spec("AutoAugment", "policy", "svhn", "interpolation", "bilinear")}},
	{"RandomErasing", []prep.OpSpec{spec("CenterCrop", "size", 80.0), imagenet, spec("RandomErasing", "p", 0.9)}},
	{"RandomErasing of uint8", []prep.OpSpec{spec("RandomErasing", "p", 1.0, "value", []any{1.0, 2.0, 250.0})}},
	{"RandomErasing before Normalize, HWC", []prep.OpSpec{spec("CenterCrop", "size", []any{50.0, 80.0}),
		spec("ToDtype", "layout", "HWC"), spec("RandomErasing", "p", 1.0, "value", []any{0.1, 0.2, 0.7}), imagenet,
		spec("RandomErasing", "p", 1.0, "value", "random")}},
	{"RandomErasing of one channel", []prep.OpSpec{spec("CenterCrop", "size", 80.0), spec("Grayscale",
		"num_output_channels", 1.0), spec("RandAugment", "fill", 7.0), spec("ToTensor"), spec("RandomErasing", "value",
		0.5, "p", 1.0), spec("Normalize", "mean", 0.5, "std", 0.25)}},
}

// drawnRecipes end in the ops whose parameters are compared with those torchvision draws.
var drawnRecipes = [][]prep.OpSpec{
	{spec("GaussianBlur", "kernel_size", 3.0)},
	{spec("RandomRotation", "degrees", []any{-20.0, 70.0})},
	{spec("RandomAffine", "degrees", 40.0, "translate", []any{0.2, 0.3}, "scale", []any{0.5, 1.6}, "shear",
		[]any{-30.0, 30.0, -10.0, 20.0})},
	{spec("RandomAutocontrast", "p", 0.3)}, {spec("RandomEqualize")}, {spec("RandomInvert", "p", 0.8)},
	{spec("RandomSolarize", "threshold", 1.0)}, {spec("RandomPosterize", "bits", 1.0)},
	{spec("RandomAdjustSharpness", "sharpness_factor", 2.0)},
	{spec("RandAugment")}, {spec("RandAugment", "num_ops", 3.0, "magnitude", 3.0, "num_magnitude_bins", 12.0)},
	{spec("TrivialAugmentWide")},
	{spec("AutoAugment")}, {spec("AutoAugment", "policy", "cifar10")}, {spec("AutoAugment", "policy", "svhn")},
	{spec("CenterCrop", "size", 64.0), imagenet, spec("RandomErasing", "p", 0.6, "scale", []any{0.1, 0.8})},
}

// parityFile is an encoded image.
type parityFile struct {
	name string
	enc  []byte
}

// comparer compares recipes with torchvision.
type comparer struct {
	t     *testing.T
	torch *parity.Torch
}

// compare runs a recipe on files, and compares how it draws, too.
func (c comparer) compare(group string, ops []prep.OpSpec, files []parityFile, seed uint64, draws bool) {
	r := parse(c.t, ops)
	rep := c.torch.Report(r)
	for i, f := range files {
		if err := c.torch.Compare(rep, r, f.name, f.enc, prep.RandKey{Seed: seed, Instance: 3,
			Sample: uint64(i)}); err != nil {
			c.t.Fatalf("%s: %s: %v", group, f.name, err)
		}
	}
	if draws {
		if err := c.torch.CompareDraws(rep, r, lane.Times(parity.DrawCount/8, parity.DrawCount)); err != nil {
			c.t.Fatal(err)
		}
	}
	if len(rep.Rows) == 0 || len(rep.Disagree) > 0 {
		c.t.Errorf("%s: %d rows, %v", group, len(rep.Rows), rep.Disagree)
		return
	}
	whole := rep.Rows[len(rep.Rows)-1]
	c.t.Logf("%-45s %4d images %10d values, %d differ, max %.3g, mean %.3g", group, whole.Images, whole.Values,
		whole.Differ, whole.Max, whole.Mean)
	inGo := !prep.Parity() && strings.Contains(group, "JPEG")
	for _, row := range rep.Rows {
		byDecoder := inGo && (row.Op == "decode" || row.Op == "whole recipe")
		if row.Differ > 0 && !byDecoder || row.Mean > 1 {
			c.t.Errorf("%s: %s: %d of %d values differ, by up to %g, %g on average", group, row.Op, row.Differ, row.Values,
				row.Max, row.Mean)
		}
	}
	for _, d := range rep.Draws {
		if d.Distance > d.Limit {
			c.t.Errorf("%s: %s %s: distance %.4f exceeds %.4f", group, d.Op, d.Parameter, d.Distance, d.Limit)
		}
	}
}

// TestParity compares every op, alone and in its recipe, with the installed torchvision on PIL images, and the random
// parameters with those torchvision draws. Not one byte may differ, but for JPEG in builds that decode it in Go.
func TestParity(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Python")
	}
	py := python(t)
	most := lane.Times(3, 24)
	if invariant.Enabled { // kernels are ten times slower under the race detector, and have no goroutines
		most = 4
	}
	if os.Getenv("LARDER_PARITY_ALL") == "1" {
		most = 1 << 20
	}
	var jpegs, plain []parityFile
	for _, path := range photographs(t, most) {
		enc, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		jpegs = append(jpegs, parityFile{path, enc})
	}
	for i, s := range [][2]int{{64, 48}, {500, 375}, {33, 470}, {701, 40}, {7, 5}, {1, 9}, {1, 1}, {80, 80}} {
		m := drawn(s[0], s[1], i)
		name := fmt.Sprintf("drawn %d x %d", s[0], s[1])
		jpegs = append(jpegs, parityFile{name + " JPEG", asJPEG(t, m)})
		if lane.Nightly() || s[0]*s[1] < 20_000 {
			plain = append(plain, parityFile{name, asPNG(t, m)})
		}
	}
	for i := 0; lane.Nightly() && i < len(jpegs)-8; i += 10 { // some photographs without their JPEG
		m, err := jpeg.Decode(bytes.NewReader(jpegs[i].enc))
		if err == nil {
			plain = append(plain, parityFile{jpegs[i].name + " as PNG", asPNG(t, m)})
		}
	}
	torch, err := parity.Start(t.Context(), py)
	if err != nil {
		t.Fatal(err)
	}
	defer torch.Close()
	by := comparer{t, torch}
	train := parityRecipes[len(parityRecipes)-1].ops
	by.compare("train on JPEG", train, jpegs, 5, true)
	by.compare("nothing on JPEG", nil, jpegs, 5, false)
	by.compare("jitter", []prep.OpSpec{spec("ColorJitter", "brightness", 0.4, "contrast", []any{0.2, 1.1},
		"saturation", 0.4, "hue", 0.1)}, plain[:1], 6, true)
	for _, ops := range drawnRecipes {
		by.compare("draws of "+ops[len(ops)-1].Name, ops, plain[:1], 7, true)
	}
	for i, c := range parityRecipes {
		by.compare(c.group, c.ops, plain, uint64(i), false)
	}
	for i, c := range scriptRecipes {
		by.compare(c.group, c.ops, plain[:min(len(plain), 9)], uint64(100+i), false)
	}
	// The report names what both refuse and what only one refuses.
	r := parse(t, train)
	rep := torch.Report(r)
	for _, enc := range [][]byte{[]byte("no image"), jpegs[0].enc[:len(jpegs[0].enc)/2]} {
		if err := torch.Compare(rep, r, "bad", enc, prep.RandKey{}); err != nil {
			t.Fatal(err)
		}
	}
	if rep.Refused != 2 || !rep.Equal() {
		t.Errorf("%d files refused by both, %v", rep.Refused, rep.Disagree)
	}
}

// TestStartErrors: a Python without torchvision, or none, is named with what to do.
func TestStartErrors(t *testing.T) {
	for _, py := range []string{"/nonexistent/python", "/bin/false"} {
		_, err := parity.Start(t.Context(), py)
		if err == nil || !strings.Contains(err.Error(), py) {
			t.Errorf("%s: %v", py, err)
		}
	}
}
