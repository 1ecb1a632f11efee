package fields

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// torch runs testdata/v2.py; without torchvision the test is skipped, or fails when LARDER_REQUIRE_TORCH is 1.
func torch(t *testing.T) (ask func(question any) map[string]verdict, kernels string) {
	t.Helper()
	py := os.Getenv("LARDER_PYTHON")
	if py == "" {
		py = "/usr/bin/python3"
	}
	if out, err := exec.Command(py, "-c", "import torchvision, PIL, numpy").CombinedOutput(); err != nil {
		if os.Getenv("LARDER_REQUIRE_TORCH") == "1" {
			t.Fatalf("%s cannot import torchvision, PIL and numpy: %v\n%s", py, err, out)
		}
		t.Skipf("%s cannot import torchvision", py)
	}
	cmd := exec.CommandContext(t.Context(), py, "-W", "ignore", filepath.Join("testdata", "v2.py"))
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	lines := bufio.NewReaderSize(out, 1<<20)
	answer := func(v any) {
		line, err := lines.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, v)
		}
		if err != nil {
			t.Fatalf("python: %v: %s", err, line)
		}
	}
	var hello struct{ Kernels string }
	answer(&hello)
	return func(question any) map[string]verdict {
		b, err := json.Marshal(question)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write(append(b, '\n')); err != nil {
			t.Fatal(err)
		}
		v := map[string]verdict{}
		answer(&v)
		return v
	}, hello.Kernels
}

// verdict is what torchvision says of one field.
type verdict struct {
	Shape     [][]int
	Values    int
	Differing int
	Max       float64
}

type blob struct {
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"`
	Data  []byte  `json:"data"`
}

var short = map[record.DType]string{record.Uint8: "u8", record.Float32: "f32", record.Float64: "f64",
	record.Int32: "i32", record.Int64: "i64"}

// draws are what the ops of a recipe do to an image of w x h, in the words of torchvision's functional interface.
func draws(r *prep.Recipe, key prep.RandKey, w, h int) []map[string]any {
	var out []map[string]any
	specs := r.Ops()
	for i := range specs {
		p := r.Params(i, key, w, h)
		out = append(out, map[string]any{"name": specs[i].Name, "args": specs[i].Args, "params": p})
		if i >= r.ImageOps() {
			continue
		}
		for _, m := range r.Moves(nil, prep.Part{From: i, To: i + 1}, key, w, h) {
			w, h = m.NewW, m.NewH
		}
	}
	return out
}

// jointCase is one recipe on drawn samples of given dtypes.
type jointCase struct {
	ops    []prep.OpSpec
	format Format
	boxes  record.DType
	points record.DType
}

// sum is the outcome of many samples.
type sum struct {
	samples, values, differing int
	max                        float64
}

// compare runs a recipe on n drawn samples on both sides, and sums up by field.
func (c *jointCase) compare(t *testing.T, ask func(any) map[string]verdict, n int, seed uint64) map[string]sum {
	t.Helper()
	in := record.Schema{Fields: []record.Field{array("image", record.Uint8, any1, any1, 3),
		array("mask", record.Uint8, any1, any1), array("boxes", c.boxes, any1, 4), array("points", c.points, any1, 2)}}
	named := op(OpName, "mask", "mask", "boxes", "boxes", "keypoints", "points", "box_format", string(c.format))
	o, err := Parse(append([]prep.OpSpec{named}, c.ops...), 1, &in)
	if err != nil {
		t.Fatal(err)
	}
	s, w, r, sums := o.Stage(o.Whole()), NewWorker(prep.NewWorker(prep.Limits{})), xrand.New(seed), map[string]sum{}
	out := s.Out()
	for i := range n {
		width, height := 2+r.IntN(59), 2+r.IntN(59) // torchvision fails where a side would become 0
		v := c.sample(t, &in, r, width, height)
		key := prep.RandKey{Seed: seed, Instance: uint32(i), Sample: 3}
		made, err := w.Run(s, v, key, heap)
		if err != nil {
			t.Fatal(err)
		}
		q := map[string]any{"format": string(c.format), "ops": draws(o.Recipe(), key, width, height)}
		after := values(t, &out, made)
		for k, x := range v.All {
			name := in.Fields[k].Name
			q[name] = blob{short[x.DType], x.Dims(), x.Data}
			q[name+"_out"] = blob{short[after[k].DType], after[k].Dims(), after[k].Data}
		}
		for name, a := range ask(q) {
			if a.Shape != nil {
				t.Fatalf("%v, %s: shapes %v", c.ops, name, a.Shape)
			}
			g := sums[name]
			g.samples, g.values, g.differing, g.max = g.samples+1, g.values+a.Values, g.differing+a.Differing,
				max(g.max, a.Max)
			sums[name] = g
		}
	}
	return sums
}

// sample draws an image with a mask, and boxes and points in it and around it.
func (c *jointCase) sample(t *testing.T, s *record.Schema, r *xrand.Rand, w, h int) record.View {
	t.Helper()
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.IntN(256))
		}
		return b
	}
	numbers := func(d record.DType, n int) (b []byte) {
		for range n {
			b = append(b, number(d, float64(r.IntN(8*80))/8-10)...)
		}
		return b
	}
	n, k := r.IntN(5), r.IntN(5)
	b, err := record.Encode(s, []record.Content{
		{Dims: []int64{int64(h), int64(w), 3}, Data: noise(3 * w * h)},
		{Dims: []int64{int64(h), int64(w)}, Data: noise(w * h)},
		{Dims: []int64{int64(n), 4}, Data: numbers(c.boxes, 4*n)},
		{Dims: []int64{int64(k), 2}, Data: numbers(c.points, 2*k)}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := record.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestTorchvision: image, mask, boxes and keypoints behind each op are those of torchvision with the same parameters.
// LARDER_TORCHVISION_V2 names an unpacked wheel whose kernels are used; LARDER_CASES is how many samples each recipe
// gets.
func TestTorchvision(t *testing.T) {
	ask, kernels := torch(t)
	n := lane.Times(2, 6)
	if _, err := fmt.Sscan(os.Getenv("LARDER_CASES"), &n); err != nil && os.Getenv("LARDER_CASES") != "" {
		t.Fatal(err)
	}
	total := map[string]sum{}
	for i, recipe := range jointRecipes() {
		moved := recipe[len(recipe)-1].Name == "RandomRotation" || recipe[len(recipe)-1].Name == "RandomAffine"
		for k, f := range []Format{XYXY, XYWH, CXCYWH} {
			dtypes := []record.DType{record.Float32, record.Float64, record.Int64, record.Int32}
			c := jointCase{recipe, f, dtypes[(i+k)%4], dtypes[(i+2*k+1)%4]}
			sums := c.compare(t, ask, n, uint64(100*i+k))
			t.Logf("%v %s %s: %v", recipe[len(recipe)-1].Name, f, c.boxes, sums)
			for name, g := range sums {
				limit := 0.0
				if moved && (name == "boxes" || name == "points") {
					limit = 1e-3 // torch multiplies matrices in an order of its own
					if d := map[string]record.DType{"boxes": c.boxes, "points": c.points}[name]; d == record.Int32 ||
						d == record.Int64 {
						limit = 1 // where that moves a number across an integer
					}
				}
				if g.max > limit || g.max < 0 || limit == 0 && g.differing > 0 {
					t.Errorf("%v %s, boxes %s, points %s: of %d values of %s %d differ, by %g at most", recipe, f, c.boxes, c.points,
						g.values, name, g.differing, g.max)
				}
				key := recipe[len(recipe)-1].Name + " " + name
				all := total[key]
				all.samples, all.values, all.differing, all.max = all.samples+g.samples, all.values+g.values,
					all.differing+g.differing, max(all.max, g.max)
				total[key] = all
			}
		}
	}
	for key, g := range total {
		t.Logf("%s | %s | %d | %d | %d | %g", kernels, key, g.samples, g.values, g.differing, g.max)
	}
}

// jointRecipes are the recipes of TestTorchvision; what is new in one is its last op.
func jointRecipes() [][]prep.OpSpec {
	always := 1.0
	return [][]prep.OpSpec{
		{op("HFlip", "p", always)}, {op("VFlip", "p", always)}, {op("HFlip"), op("VFlip")},
		{op("CenterCrop", "size", []any{20.0, 31.0})}, {op("Resize", "size", []any{23.0, 40.0})},
		{op("Resize", "size", 17.0)}, {op("Resize", "size", 30.0, "max_size", 41.0)},
		{op("RandomResizedCrop", "size", []any{24.0, 19.0})},
		{op("HFlip"), op("RandomResizedCrop", "size", 32.0, "interpolation", "bicubic")},
		{op("Resize", "size", 40.0), op("ColorJitter", "brightness", 0.4, "hue", 0.1), op("VFlip"),
			op("CenterCrop", "size", 33.0)},
		{op("RandomRotation", "degrees", 180.0)}, {op("RandomRotation", "degrees", []any{90.0, 90.0}, "expand", true)},
		{op("RandomRotation", "degrees", 40.0, "center", []any{5.0, 9.5}, "fill", 7.0, "interpolation", "bilinear")},
		{op("RandomAffine", "degrees", 30.0, "translate", []any{0.2, 0.3}, "scale", []any{0.5, 1.5}, "shear",
			[]any{-10.0, 10.0, -5.0, 5.0})},
		{op("CenterCrop", "size", 33.0), op("RandomAffine", "degrees", 0.0, "translate", []any{0.3, 0.3}, "fill", 200.0)},
		{op("ColorJitter", "brightness", 0.4, "contrast", 0.4, "saturation", 0.4, "hue", 0.2)},
		{op("HFlip"), op("GaussianBlur", "kernel_size", 3.0)}, {op("VFlip"), op("RandomAutocontrast")},
		{op("RandomEqualize")}, {op("RandomInvert")}, {op("RandomSolarize", "threshold", 100.0)},
		{op("RandomPosterize", "bits", 3.0)}, {op("RandomAdjustSharpness", "sharpness_factor", 2.0)},
		{op("HFlip"), op("Grayscale")}, {op("VFlip"), op("RandomErasing", "p", always, "value", []any{7.0, 80.0, 255.0})},
		{op("RandomResizedCrop", "size", 24.0), op("ToTensor"), op("RandomErasing", "value", 0.25)},
		{op("Resize", "size", 20.0), op("HFlip"), op("Normalize", "mean", "imagenet")},
	}
}
