package reproductions

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"larder/bench/policysim"
	"larder/bench/trace"
	"larder/internal/errs"
)

// What each reproduction printed is what it prints now. The slow ones run with LARDER_REPRODUCTIONS=all; go run
// larder/bench/reproductions/run -write makes the files again.
func TestExpected(t *testing.T) {
	slow := map[string]bool{"joader-tables": true, "closed-forms": true, "seneca-hits": true, "seneca-makespan": true,
		"seneca-table6": true, "joader-late": true}
	for _, r := range All() {
		t.Run(r.Name, func(t *testing.T) {
			if slow[r.Name] && os.Getenv("LARDER_REPRODUCTIONS") != "all" {
				t.Skip("slow: LARDER_REPRODUCTIONS=all runs it")
			}
			t.Parallel()
			got, err := Run(r.Name)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := got.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join(r.Name, "expected.json"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(raw, want) {
				t.Errorf("it prints\n%s\nand not what expected.json has", raw)
			}
		})
	}
}

// The page is made of what is expected, every row has a verdict that says why, and every folder has its script.
func TestPage(t *testing.T) {
	results, err := Expected(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range All() {
		res := results[r.Name]
		for _, row := range res.Rows {
			because := strings.HasPrefix(row.Verdict, differs) && len(row.Verdict) > len(differs)+9 ||
				strings.HasPrefix(row.Verdict, unknown) && len(row.Verdict) > len(unknown)+10
			if row.Verdict != reproduced && row.Verdict != none && !because {
				t.Errorf("%s: %s: verdict %q", r.Name, row.What, row.Verdict)
			}
			if strings.Contains(row.Verdict, "an error here") {
				t.Errorf("%s: %s: %+v", r.Name, row.What, row)
			}
		}
		if info, err := os.Stat(filepath.Join(r.Name, "run.sh")); err != nil || info.Mode()&0o100 == 0 {
			t.Errorf("%s has no script that runs", r.Name)
		}
	}
	page, err := os.ReadFile("../../docs/reproductions.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != Page(results) {
		t.Error("docs/reproductions.md is not made of expected.json: go run larder/bench/reproductions/run -write")
	}
	if _, err := Run("joader-table"); !errs.Is(err, errs.Invalid) ||
		!strings.Contains(err.Error(), "did you mean joader-tables") {
		t.Errorf("%v", err)
	}
}

// Miss ratios are libCacheSim's, which compare.py wrote down, to 4 digits.
func TestLibCacheSim(t *testing.T) {
	if testing.Short() {
		t.Skip("a few seconds of replay")
	}
	raw, err := os.ReadFile("libcachesim/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		Rows []struct {
			Scenario, Policy string
			Cache            int64
			LibCacheSim      float64
		}
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	specs := map[string]trace.Spec{ // as in compare.py
		"one job":   {Family: "aligned", Samples: 20000, Jobs: 1, Epochs: 6, Seed: 1},
		"four jobs": {Family: "aligned", Samples: 20000, Jobs: 4, Epochs: 4, Seed: 1},
		"staggered": {Family: "staggered", Samples: 20000, Jobs: 4, Epochs: 3, Seed: 1},
		"zipf":      {Family: "zipf", Samples: 20000, Jobs: 2, Epochs: 10, Seed: 1, Skew: 1},
	}
	policies := []string{"lru", "fifo", "sieve", "s3-fifo"}
	compared := 0
	for name, spec := range specs {
		tr, err := trace.Generate(spec, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := policysim.Config{Policies: policies, UnitSize: true}
		for _, r := range want.Rows {
			if r.Scenario == name && r.Policy == "lru" {
				c.Caches = append(c.Caches, r.Cache)
			}
		}
		got, err := policysim.Run(tr, c, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range want.Rows {
			if r.Scenario != name || !slices.Contains(policies, r.Policy) {
				continue
			}
			compared++
			if row := got.Find(r.Policy, r.Cache); row == nil || math.Abs(row.MissRatio-r.LibCacheSim) >= 0.00005 {
				t.Errorf("%s, %s, cache %d: %+v, libCacheSim misses %.6f", name, r.Policy, r.Cache, row, r.LibCacheSim)
			}
		}
	}
	if compared != 64 {
		t.Errorf("%d cases compared, want 64", compared)
	}
}
