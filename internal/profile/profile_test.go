package profile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"larder/cachepolicy/partition"
	"larder/internal/errs"
	"larder/internal/prep"
	"larder/tiers/arena"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// folder draws n JPEGs of unlike sizes and returns the folder, their bytes, the pixels of all, and what they take when
// they are decoded and kept.
func folder(t *testing.T, n int) (dir string, bytes, pixels, decoded int64) {
	t.Helper()
	dir = t.TempDir()
	worker := prep.NewWorker(prep.Limits{})
	defer worker.Close()
	for i := range n {
		w, h := 40+3*i, 30+2*i
		img := image.NewRGBA(image.Rect(0, 0, w, h))
		for y := range h {
			for x := range w {
				img.Set(x, y, color.RGBA{uint8(x * 5), uint8(y * 7), uint8(i * 30), 255})
			}
		}
		class := filepath.Join(dir, fmt.Sprint("c", i%2))
		if err := os.MkdirAll(class, 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(class, fmt.Sprintf("%d.jpg", i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(jpeg.Encode(f, img, nil), f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		enc, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		_, _, kept, err := worker.DecodedShape(recipe(t), enc)
		if err != nil {
			t.Fatal(err)
		}
		bytes += fi.Size()
		pixels += int64(w * h)
		decoded += int64(kept)
	}
	return dir, bytes, pixels, decoded
}

func recipe(t *testing.T, ops ...prep.OpSpec) *prep.Recipe {
	t.Helper()
	r, err := prep.ParseRecipe(ops)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func crop(size int) prep.OpSpec {
	return prep.OpSpec{Name: "RandomResizedCrop", Args: map[string]any{"size": size}}
}

func TestRunMeasuresWhatIsThere(t *testing.T) {
	const n = 10
	dir, bytes, pixels, decoded := folder(t, n)
	rgb := float64(pixels*3) / n
	float := prep.OpSpec{Name: "Normalize", Args: map[string]any{"mean": "imagenet"}}
	for _, c := range []struct {
		name                 string
		r                    *prep.Recipe
		decoded              float64
		augmented, delivered float64
		random               bool
		workers              int
	}{
		{"crop", recipe(t, crop(32), float), float64(decoded) / n, 32 * 32 * 3, 32 * 32 * 3 * 4, true, 2},
		{"resized", recipe(t, prep.OpSpec{Name: "Resize", Args: map[string]any{"size": []any{20, 20}}}), 20 * 20 * 3,
			20 * 20 * 3, 20 * 20 * 3, false, 1},
		{"ragged, more workers than samples", recipe(t, prep.OpSpec{Name: "RandomHorizontalFlip"}), float64(decoded) / n, rgb,
			rgb, true, 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Run(t.Context(), Config{URI: "imagefolder:" + dir, Recipe: c.r, Seconds: 1, Workers: c.workers})
			if err != nil {
				t.Fatal(err)
			}
			if p.Dataset.Samples != n || p.Dataset.Bytes != bytes || p.Looked != n || p.Bad != 0 ||
				p.Recipe.Random != c.random || p.Workers != c.workers {
				t.Errorf("%+v", p)
			}
			within := func(what string, got, want, tolerance float64) {
				if !(math.Abs(got/want-1) <= tolerance) {
					t.Errorf("%s: %g bytes, want %g", what, got, want)
				}
			}
			within("stored", p.Bytes.Stored, float64(bytes)/n, 1e-9)
			within("decoded", p.Bytes.Decoded, c.decoded, 1e-9)
			within("augmented", p.Bytes.Augmented, c.augmented, 1e-9)
			// A ragged row's mean is over what was done in the time, which need not be whole rounds.
			within("delivered", p.Bytes.Delivered, c.delivered, map[bool]float64{true: .7, false: 1e-9}[c.r.Output().Ragged])
			if p.Storage.Passes < 1 || p.Storage.Cold > 1 || !strings.Contains(p.Storage.Method, "fadvise") {
				t.Errorf("storage: %+v", p.Storage)
			}
			for what, x := range map[string]float64{"decode": p.CPU.Decode, "decode and augment": p.CPU.DecodeAugment,
				"augment": p.CPU.Augment, "finish": p.CPU.Finish} {
				if !(x > 0) || math.IsInf(x, 0) {
					t.Errorf("%s: %v samples a second of processor time", what, x)
				}
			}
			// What was measured is a profile that can be read again and solved.
			file := filepath.Join(t.TempDir(), "sub", "p.json")
			if err := p.Save(file); err != nil {
				t.Fatal(err)
			}
			q, err := Load(file)
			if err != nil {
				t.Fatal(err)
			}
			a, _ := json.Marshal(p)
			b, _ := json.Marshal(q)
			if string(a) != string(b) {
				t.Errorf("saved %s, read %s", a, b)
			}
			m, _ := partition.New("")
			plan, err := m.Solve(Demand(bytes, Use{Jobs: 2, Share: true, Fairness: 1}, q))
			if err != nil || plan.Split.Total() > bytes || !(plan.Rate > 0) {
				t.Errorf("%+v, %v", plan, err)
			}
			if !c.random && plan.Split.Augmented > 0 {
				t.Errorf("a recipe without randomness has no augmented form of its own: %+v", plan.Split)
			}
			if left, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*.tmp")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// A storage limit is what reading is said to reach, although the bucket lets the first reads pass at once.
func TestRunUnderStorageLimit(t *testing.T) {
	dir, bytes, _, _ := folder(t, 6)
	limit := bytes * 2
	p, err := Run(t.Context(), Config{URI: "imagefolder:" + dir, Recipe: recipe(t, crop(16)), Seconds: 1, Workers: 2,
		StorageLimit: limit})
	if err != nil || p.Storage.Limit != limit || !(p.Storage.BytesPerSecond <= float64(limit)) {
		t.Fatalf("%+v, %v", p, err)
	}
	if mean := p.Storage.BytesPerSecond / p.Storage.SamplesPerSecond; mean < float64(bytes)/100 || mean > float64(bytes) {
		t.Errorf("%v bytes a sample of %d in all", mean, bytes)
	}
}

func TestWarnsOfBusyCores(t *testing.T) {
	p := good()
	p.Workers, p.Machine.Cores, p.Rates.DecodeAugment = 4, 2, 100
	for perCPU, warned := range map[float64]bool{0: false, 60: false, 70: true} { // 0 = an older profile
		p.CPU.DecodeAugment = perCPU
		if got := strings.Contains(strings.Join(p.Warnings(), "\n"), "other work took the cores"); got != warned {
			t.Errorf("%v samples a second of processor time: %v", perCPU, p.Warnings())
		}
	}
}

func TestRunWithBadSamples(t *testing.T) {
	dir, _, _, _ := folder(t, 6)
	if err := os.WriteFile(filepath.Join(dir, "c0", "bad.jpg"), []byte("\xff\xd8\xff\xe0 no image"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Run(t.Context(), Config{URI: "imagefolder:" + dir, Recipe: recipe(t, crop(16)), Seconds: 1, Workers: 2})
	if err != nil || p.Bad != 1 || p.FirstFail == "" || !strings.Contains(strings.Join(p.Warnings(), "\n"), p.FirstFail) {
		t.Errorf("%+v, %v", p, err)
	}
	only := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(only, "c"), 0o700), os.WriteFile(filepath.Join(only, "c", "x.jpg"),
		[]byte("nothing"), 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err = Run(t.Context(), Config{URI: "imagefolder:" + only, Recipe: recipe(t, crop(16)), Seconds: 1})
	if !errs.Is(err, errs.SampleBad) || errs.From(err).Hint == "" {
		t.Errorf("no sample is good: %v", err)
	}
}

func TestRunRefuses(t *testing.T) {
	dir, _, _, _ := folder(t, 2)
	r := recipe(t, crop(16))
	for _, c := range []struct {
		cfg    Config
		reason errs.Reason
	}{
		{Config{URI: "imagefolder:" + dir, Recipe: r, Seconds: .5}, errs.Invalid},
		{Config{URI: "imagefolder:" + dir, Recipe: r, Seconds: math.NaN()}, errs.Invalid},
		{Config{URI: "imagefolder:" + dir, Recipe: r, Seconds: math.Inf(1)}, errs.Invalid},
		{Config{URI: "imagefolder:" + dir + "/none", Recipe: r, Seconds: 1}, errs.DatasetUnread},
		{Config{URI: dir, Recipe: r, Seconds: 1}, errs.Invalid},
		{Config{URI: "imagefolder:" + dir, Recipe: r, Seconds: 1, StorageLimit: -1}, errs.ConfigInvalid},
	} {
		if _, err := Run(t.Context(), c.cfg); !errs.Is(err, c.reason) {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Config{URI: "imagefolder:" + dir, Recipe: r, Seconds: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// good is a profile as Run could have made it.
func good() *Profile {
	return &Profile{Version: Version, Machine: ThisMachine(), Workers: 2, Seconds: 14, Dataset: Dataset{"imagefolder:/d",
		1000, 1e8},
		Recipe: Recipe{Ops: []string{"RandomResizedCrop"}, ID: "1", Prefix: "p", Random: true},
		Rates:  Rates{400, 250, 800, 9000}, Bytes: Bytes{1e5, 1e5, 5e5, 1.5e5, 6e5},
		Storage: Storage{BytesPerSecond: 2e7, SamplesPerSecond: 200, Method: "fadvise", Cold: 1,
			Passes: 2}, Memory: 1e10, Looked: 700}
}

func TestParseRefuses(t *testing.T) {
	raw := func(change func(m map[string]any)) []byte {
		b, err := json.Marshal(good())
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		if b, err = json.Marshal(m); err != nil {
			t.Fatal(err)
		}
		return b
	}
	rates := func(m map[string]any) map[string]any { return m["rates"].(map[string]any) }
	if _, err := Parse("p", raw(func(map[string]any) {})); err != nil {
		t.Fatal(err)
	}
	for want, data := range map[string][]byte{
		"is no profile:":           []byte("{"),
		"no profile of version":    []byte("{}"),
		"of version 1":             raw(func(m map[string]any) { m["version"] = 2 }),
		"unknown field":            raw(func(m map[string]any) { m["speed"] = 2 }),
		"rates.augment is 0":       raw(func(m map[string]any) { rates(m)["augment"] = 0 }),
		"rates.finish is -1":       raw(func(m map[string]any) { rates(m)["finish"] = -1 }),
		"rates.decode is 0":        raw(func(m map[string]any) { delete(rates(m), "decode") }),
		"second is 1e+30":          raw(func(m map[string]any) { m["memory_bytes_per_second"] = 1e30 }),
		"cannot unmarshal":         raw(func(m map[string]any) { rates(m)["decode_augment"] = "NaN" }),
		"invalid character 'N'":    []byte(strings.Replace(string(raw(func(map[string]any) {})), "250", "NaN", 1)),
		"dataset.samples is 0":     raw(func(m map[string]any) { m["dataset"].(map[string]any)["samples"] = 0 }),
		"cannot unmarshal array":   []byte("[]"),
		"cannot unmarshal number ": raw(func(m map[string]any) { m["recipe"] = 3 }),
	} {
		_, err := Parse("p", data)
		if f := errs.From(err); err == nil || f.Reason != errs.Invalid || f.Hint == "" ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errs.Is(err, errs.NotFound) {
		t.Error(err)
	}
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(big); !errs.Is(err, errs.Invalid) {
		t.Error(err)
	}
	if err := good().Save(filepath.Join(big, "below a file")); !errs.Is(err, errs.Invalid) {
		t.Error(err)
	}
}

// FuzzParse: whatever parses can be solved without a panic; a refusal is a fault.
func FuzzParse(f *testing.F) {
	b, err := json.Marshal(good())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(strings.Replace(string(b), "250", "1e-300", 1)))
	f.Add([]byte("{\"version\":1}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("p", data)
		if err != nil {
			if errs.From(err).Reason != errs.Invalid {
				t.Fatal(err)
			}
			return
		}
		_ = p.Warnings()
		_ = p.Machine.Differs(ThisMachine())
		for _, name := range partition.Models() {
			m, _ := partition.New(name)
			if plan, err := m.Solve(Demand(1<<30, Use{Jobs: 3, Share: true, Fairness: 1}, p)); err == nil &&
				plan.Split.Total() > 1<<30 {
				t.Fatalf("%+v", plan.Split)
			}
		}
	})
}

func TestDemand(t *testing.T) {
	a, b, c := good(), good(), good()
	b.Recipe.ID, b.Rates.Augment = "2", 500
	c.Dataset.URI, c.Storage.BytesPerSecond, c.Memory = "imagefolder:/e", 1e7, 5e9
	d := Demand(1e9, Use{Jobs: 5, Share: true, Fairness: .5, Ingest: 300}, a, b, c)
	if len(d.Datasets) != 2 || len(d.Datasets[0].Recipes) != 2 || d.Machine.Storage != 2e7 || d.Machine.Cache != 5e9 ||
		*d.Fairness != .5 {
		t.Fatalf("%+v", d)
	}
	if s := d.Datasets[1].Stored / d.Machine.Storage; math.Abs(s-1e5/1e7) > 1e-12 {
		t.Errorf("a sample of the slow dataset takes %g s of storage, want %g", s, 1e5/1e7)
	}
	r := d.Datasets[0].Recipes[1]
	if r.Sharers != 5 || len(r.Jobs) != 5 || r.Jobs[4].Ingest != 300 || math.Abs(r.Degree-4) > 1e-12 || r.Prefix != "p" {
		t.Errorf("%+v", r)
	}
	// Several jobs: a decode that serves them is of the whole image, and is work apart from what is done with it.
	for what, x := range map[string][2]float64{"augment": {r.Augment, 500}, "decode and augment": {r.DecodeAugment,
		1 / (1/b.Rates.Decode + 1./500)}} {
		if want := sharedWork * x[1]; math.Abs(x[0]-want) > 1e-9*want {
			t.Errorf("%s: %g samples/s, want %g", what, x[0], want)
		}
	}
	// What a tier holds of a sample is its pages, and a sixteenth of every tier stays free.
	for _, x := range [][2]float64{{d.Datasets[0].Encoded, a.Bytes.Encoded}, {r.Decoded, b.Bytes.Decoded},
		{r.Augmented, b.Bytes.Augmented}} {
		if want := (x[1] + float64(arena.Granule)/2) * 16 / 15; math.Abs(x[0]-want) > 1e-6*want {
			t.Errorf("a sample of %g bytes takes %g of its tier, want %g", x[1], x[0], want)
		}
	}
	if alone := Demand(1e9, Use{Jobs: 1, Fairness: 1}, a).Datasets[0].Recipes[0]; alone.Degree != 1 ||
		alone.Sharers != 1 || !math.IsInf(alone.Jobs[0].Ingest, 1) ||
		alone.DecodeAugment != a.Rates.DecodeAugment || alone.Augment != a.Rates.Augment {
		t.Errorf("%+v", alone)
	}
}

func TestMachine(t *testing.T) {
	here := ThisMachine()
	if here.Cores < 1 || len(here.Fingerprint) != 16 || here.Differs(ThisMachine()) != "" {
		t.Errorf("%+v", here)
	}
	other := here
	other.Cores++
	// edited, or another machine: either way warned
	if d := other.Differs(here); !strings.Contains(d, fmt.Sprintf("%d cores", here.Cores+1)) {
		t.Errorf("%q", d)
	}
	forged := here
	forged.Fingerprint = "0"
	if forged.Differs(here) == "" {
		t.Error("another fingerprint is the same machine")
	}
}

func TestWarnings(t *testing.T) {
	p := good()
	if w := p.Warnings(); len(w) > 0 {
		t.Error(w)
	}
	p.Storage.Cold = .1
	if w := p.Warnings(); len(w) != 1 || !strings.Contains(w[0], "page cache") {
		t.Error(w)
	}
	p.Storage.Cold = -1
	if w := p.Warnings(); len(w) != 1 || !strings.Contains(w[0], "cannot be determined") {
		t.Error(w)
	}
	p.Storage.Limit = 1e6 // reading was held back by larder: the cache does not matter
	if w := p.Warnings(); len(w) > 0 {
		t.Error(w)
	}
}

// TestDisk measures a disk tier, which leaves nothing behind, and counts with it.
func TestDisk(t *testing.T) {
	dir, _, _, _ := folder(t, 12)
	tier := t.TempDir()
	p, err := Run(context.Background(), Config{URI: "imagefolder:" + dir, Recipe: recipe(t), Seconds: 1, Workers: 2,
		Disk: tier})
	if err != nil {
		t.Fatal(err)
	}
	if d := p.Disk; d == nil || d.Dir != tier || !(d.BytesPerSecond > 0) || !(d.Latency > 0) || d.Method == "" {
		t.Fatalf("the disk tier is %+v", d)
	}
	if left, err := os.ReadDir(tier); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	p.Storage.BytesPerSecond, p.Disk.BytesPerSecond, p.Dataset.Bytes = 100, 1000, 1<<30
	for _, c := range []struct {
		bytes int64
		want  float64
	}{{0, 100}, {1 << 29, 1 / (.5/100 + .5/1000)}, {1 << 30, 1000}, {1 << 40, 1000}} {
		if got := Demand(1<<30, Use{Jobs: 1, Disk: c.bytes}, p).Machine.Storage; math.Abs(got-c.want) > 1e-9 {
			t.Errorf("with %d bytes of 1 GiB on disk, storage gives %v bytes a second, want %v", c.bytes, got, c.want)
		}
	}
	if _, err := Run(context.Background(), Config{URI: "imagefolder:" + dir, Recipe: recipe(t), Seconds: 1,
		Disk: filepath.Join(dir, "c0", "0.jpg")}); err == nil {
		t.Error("a file was taken for a directory")
	}
}
