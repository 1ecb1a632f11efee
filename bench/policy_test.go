package bench

import (
	"encoding/json"
	"fmt"
	"maps"
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

func demand(t testing.TB, text string) *Demand {
	t.Helper()
	d, err := ParseDemand("s", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// The schema and the parser know the same keys: each key of one is accepted by the other.
func TestSchemaIsWhatIsParsed(t *testing.T) {
	raw, err := os.ReadFile("scenarios/schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type object struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	var schema struct {
		Defs map[string]object `json:"$defs"`
	}
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	sub := func(o object, key string) object {
		var out object
		if err := json.Unmarshal(o.Properties[key], &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	var family struct {
		Enum []string `json:"enum"`
	}
	gen := sub(schema.Defs["demand"], "generate")
	if err := json.Unmarshal(gen.Properties["family"], &family); err != nil ||
		!slices.Equal(family.Enum, trace.Families()) {
		t.Errorf("families of the schema: %v, %v", family.Enum, err)
	}
	for _, c := range []struct {
		in   object
		text string // a scenario with the unknown key zzqq in that place
	}{
		{schema.Defs["scenario"], "samples: 3\njobs: [{name: a}]\nzzqq: 1"},
		{sub(schema.Defs["scenario"], "cache"), "samples: 3\njobs: [{name: a}]\ncache: {zzqq: 1}"},
		{sub(schema.Defs["scenario"], "sizes"), "samples: 3\njobs: [{name: a}]\nsizes: {zzqq: 1}"},
		{schema.Defs["job"], "samples: 3\njobs: [{name: a, zzqq: 1}]"},
		{schema.Defs["demand"], "generate: {samples: 3}\nzzqq: 1"},
		{gen, "generate: {samples: 3, zzqq: 1}"},
	} {
		_, err := ParseDemand("s", []byte(c.text))
		if err == nil {
			t.Fatalf("%s is accepted", c.text)
		}
		// The hint lists all keys that are known there, for nothing is near zzqq.
		var known []string
		known = append(known, strings.FieldsFunc(errs.From(err).Hint, func(r rune) bool {
			return r == ' ' || r == ',' ||
				r == ':'
		})...)
		for key := range maps.Keys(c.in.Properties) {
			if !slices.Contains(known, key) {
				t.Errorf("%s: the schema has %s, the parser knows %v", c.text, key, known)
			}
		}
		n := 0
		for _, w := range known {
			if _, ok := c.in.Properties[w]; ok {
				n++
			}
		}
		if n != len(c.in.Properties) || len(known)-n > 4 {
			t.Errorf("%s: the parser knows %v, the schema %v", c.text, known, slices.Sorted(maps.Keys(c.in.Properties)))
		}
	}
}

// What ships is read, says in its first line what it is for, and says it once.
func TestShippedDemands(t *testing.T) {
	files, err := filepath.Glob("scenarios/demand/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	families := map[string]bool{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		d, err := ParseDemand(f, raw)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if !strings.HasPrefix(string(raw), "# ") || d.Spec == nil {
			t.Errorf("%s does not say what it is for", f)
		}
		families[d.Spec.Family] = true
		if again := demand(t, "generate: "+d.Spec.String()); *again.Spec != *d.Spec {
			t.Errorf("%s: %+v written out is %+v", f, d.Spec, again.Spec)
		}
	}
	if len(families) != len(trace.Families()) {
		t.Errorf("there are scenarios of %v only", families)
	}
}

func TestDemandMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"generate: 3":                                       "s:1:11: generate must hold keys",
		"generate:":                                         "s:1:1: generate is empty",
		"generate: {jobs: 3}":                               "samples is missing",
		"generate: {samples: 3, jobs: 65}":                  `jobs: "65" cannot be its value`,
		"generate: {samples: 3, samples: 3}":                "is there twice",
		"generate: {samples: 3, family: disjoint, jobs: 4}": "s:1:11: 3 samples cannot be parted among 4 jobs",
		"generate: {samples: 3}\n---\na: 1":                 "more than one YAML document",
		"samples: 3\njobs: [{name: a, ordr: fixed}]":        `s:2:18: unknown key "ordr" in job 1`,
	} {
		if _, err := ParseDemand("s", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// A trace of a scenario replays to the same figures as the sampler has them, for orders that look at nothing: one job,
// one cache, no sharing within a step.
func TestTraceOfAScenario(t *testing.T) {
	text := "samples: 500\nseed: 4\ncache: {samples: 100, policy: %s}\njobs: [{name: a, epochs: 3, order: fixed, " +
		"batch: 1, window: 1}, {name: b, epochs: 2, start: 0.5, order: independent, subset: \"range(100, 400)\", batch: " +
		"1, window: 1}]"
	for _, p := range []string{"minio", "lru", "fifo"} {
		d := demand(t, fmt.Sprintf(text, p))
		tr, err := d.Scenario.Trace(0, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.Check(); err != nil {
			t.Fatal(err)
		}
		if job, ok := tr.Prescribed(); !ok || tr.Pick.Len() != 2100 || tr.Jobs[1].Epochs != 2 {
			t.Errorf("%s %d picks", job, tr.Pick.Len())
		}
		s, err := RunSampler(d.Scenario, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := policysim.Run(tr, policysim.Config{Policies: []string{p}, Caches: []int64{100}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		// The sampler lets jobs of one step share what is loaded in it, which the cache alone cannot: a few hits more.
		got := r.Find(p, 100).Loads
		if got < s.Loads || got > s.Loads+12 {
			t.Errorf("%s: %d loads, the sampler has %d", p, got, s.Loads)
		}
	}
	if _, err := demand(t, fmt.Sprintf(text, "lru")).Scenario.Trace(1000, nil); !errs.Is(err, errs.ResourceExceeded) {
		t.Errorf("no memory: %v", err)
	}
}

// Orders that look into the cache get a sampler for each policy, and the figures of larder bench sampler.
func TestPoliciesOnOrdersThatLook(t *testing.T) {
	d := demand(t, "samples: 800\nseed: 4\njobs: [{name: a, epochs: 2}, {name: b, epochs: 2, start: 200}]")
	if job, ok := d.Scenario.Looks(); ok || job != "a" {
		t.Fatalf("%q %v", job, ok)
	}
	r, left, err := RunPolicies(d.Scenario, policysim.Config{Caches: []int64{40, 160}}, nil)
	if err != nil || fmt.Sprint(left) != "[belady clairvoyant-k]" {
		t.Fatalf("%v %v", left, err)
	}
	always := map[string]int{}
	for _, row := range r.Rows {
		if row.Policy == policysim.Independent || row.Policy == policysim.Unbounded || row.Policy == policysim.LowerBound {
			always[row.Policy]++
			want := map[string]int{policysim.Independent: r.Requests, policysim.Unbounded: r.Unique,
				policysim.LowerBound: row.Bound}[row.Policy]
			if row.Loads != want || row.Hits+row.Loads != r.Requests || row.OverBound < 1 {
				t.Errorf("%+v", row)
			}
			for _, o := range r.Rows {
				if row.Policy == policysim.LowerBound && o.Cache == row.Cache && o.Policy != policysim.Unbounded &&
					o.Loads < row.Loads {
					t.Errorf("%s loads less than the lower bound: %+v", o.Policy, o)
				}
			}
			continue
		}
		own := demand(t, "samples: 800\nseed: 4\njobs: [{name: a, epochs: 2}, {name: b, epochs: 2, start: 200}]").Scenario
		if err := own.SetCache(int(row.Cache), row.Policy); err != nil {
			t.Fatal(err)
		}
		s, err := RunSampler(own, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if row.Loads != s.Loads || row.Bound != s.LowerBound || row.Hits+row.Loads != s.Requests {
			t.Errorf("%+v, the sampler has %d of %d", row, s.Loads, s.LowerBound)
		}
	}
	if fmt.Sprint(always) != "map[independent:2 lower-bound:2 unbounded:2]" {
		t.Errorf("rows that are always there: %v", always)
	}
	// Missed bytes are counted where sizes differ, and no row is below the lower bound of them; samples of one size miss
	// as many bytes as requests.
	for _, sizes := range []string{"", "sizes: {quartiles: [1, 2, 4, 32]}\n"} {
		text := "samples: 800\nseed: 4\n" + sizes + "jobs: [{name: a, epochs: 2}, {name: b, epochs: 2, start: 200}]"
		r, _, err := RunPolicies(demand(t, text).Scenario, policysim.Config{Caches: []int64{160},
			Policies: []string{"need", "minio"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		low := r.Find(policysim.LowerBound, 160).ByteMiss
		for _, row := range r.Rows {
			if row.ByteMiss < low && row.Policy != policysim.Unbounded || row.ByteMiss <= 0 || row.ByteMiss > 1 || sizes == "" &&
				math.Abs(row.ByteMiss-row.MissRatio) > 1e-12 {
				t.Errorf("%s: %+v, at least %v of the bytes are missed", sizes, row, low)
			}
		}
		if need := r.Find("need", 160); sizes != "" && math.Abs(need.ByteMiss-need.MissRatio) < 1e-6 {
			t.Errorf("bytes are counted as requests: %+v", need)
		}
	}
	if _, _, err := RunPolicies(d.Scenario, policysim.Config{Caches: []int64{4}, Policies: []string{"belady"}},
		nil); !errs.Is(err, errs.Invalid) {
		t.Errorf("only belady: %v", err)
	}
}
