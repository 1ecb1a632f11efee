package bench

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/tiers/tinylfu"
)

func TestScenarioExample(t *testing.T) {
	sc := scenarioOf(t, `
samples: 13334
seed: 1
repeats: 5
cache: {samples: 133, policy: need}
jobs:
  - {name: a, subset: "sample(0, 13333, 10000, seed=11)", speed: 1.0, start: 0, epochs: 1, order: stratified}
  - {name: b, subset: "range(3000, 9000)", speed: 0.5, start: 2500, leave: 20000, epochs: 4, order: strict, batch: 64,
      window: 2, shuffle: true}
sizes: {quartiles: [1, 2, 4, 8]}
`)
	a, b := sc.Jobs[0], sc.Jobs[1]
	if sc.Samples != 13334 || sc.Repeats != 5 || sc.Cache != 133 || len(sc.Quartiles) != 4 || len(a.samples) != 10000 ||
		len(b.samples) != 6000 ||
		a.Batch != 32 || a.Window != 2 || b.Batch != 64 || b.Speed != .5 || b.Leave != 20000 || b.Epochs != 4 ||
		b.Order != "strict" || b.NoShuf {
		t.Errorf("%+v", sc)
	}
}

// wrongScenarios is scenarios that cannot be, and what their errors say.
var wrongScenarios = []struct {
	text   string
	reason errs.Reason
	want   []string
}{
	{"", errs.Invalid, []string{"there is no scenario"}},
	{"- 1", errs.Invalid, []string{"f:1:1: the scenario must hold keys"}},
	{"samples: 10\njobs: [{name: a}]\n---\nsamples: 10\n", errs.Invalid, []string{"more than one YAML document"}},
	{"samples: [\n", errs.Invalid, []string{"f:1: did not find", "check indentation and quotes"}},
	{"samples: 10\njobs:\n\t- {name: a}\n", errs.Invalid, []string{"f:3: ", "YAML takes no tabs"}},
	{"samples: 10\nseed: [1, 2]\njobs: [{name: a}]", errs.Invalid, []string{"f:2:7: seed: a list cannot be its value"}},
	{"samples: {a: 1}\ncache: {samples: 1, policy: [need]}\njobs: [{name: [a]}]", errs.Invalid,
		[]string{"samples: a list of keys cannot", "cache.policy: a list cannot"}},
	{"samples: 10\nsample: 10\njobs: [{name: a}]", errs.Invalid, []string{`f:2:1: unknown key "sample" in the scenario`,
		"did you mean samples?"}},
	{"samples: 10\njobs:\n  - {name: a, sped: 2}", errs.Invalid, []string{`f:3:15: unknown key "sped" in job 1`,
		"did you mean speed?"}},
	{"samples: 10\njobs:\n  - {name: a, order: stratfied}", errs.Invalid, []string{`f:3:22: unknown order "stratfied"`,
		"did you mean stratified?"}},
	{"samples: 10\njobs:\n  - {name: a, order: joader-released}", errs.Invalid,
		[]string{"did you mean joader-as-released?"}},
	{"samples: 10\njobs:\n  - {name: a, order: stratified(300)}", errs.Invalid, []string{"f:3:22: order: 300 tiles",
		"choose 1 to 256"}},
	{"samples: 10\njobs:\n  - {name: a, order: epoch(3)}", errs.Invalid, []string{"unknown order"}},
	{"samples: 10\njobs:\n  - {name: a, order: ods, shuffle: false}", errs.Invalid, []string{"order ods shuffles"}},
	{"samples: 10\ncache: {samples: 3, policy: ned}\njobs: [{name: a}]", errs.Invalid,
		[]string{`f:2:29: unknown cache policy "ned"`, "did you mean need?"}},
	{"samples: 10\ncache: {samples: -1}\njobs: [{name: a}]", errs.Invalid, []string{`f:2:18: cache.samples: "-1"`,
		"from 0 to"}},
	{"samples: 10\ncache: {samples: 3, policy: tinylfy}\njobs: [{name: a}]", errs.Invalid,
		[]string{"did you mean tinylfu?"}},
	{"samples: 10\ncache: {samples: 3, policy: clairvoyant-x}\njobs: [{name: a}]", errs.Invalid,
		[]string{"did you mean clairvoyant-k?"}},
	{"samples: 10\njobs:\n  - {name: a}\n  - {name: a}", errs.Invalid, []string{`f:4:12: job "a" is there twice`}},
	{"samples: 10\njobs:\n  - {epochs: 1}", errs.Invalid, []string{"f:3:5: job 1 has no name"}},
	{"samples: 10\njobs:\n  - {name: a, subset: 'range(3, 3)'}", errs.SubsetEmpty, []string{"f:3:23: subset"}},
	{"samples: 10\njobs:\n  - {name: a, subset: 'id > 50'}", errs.SubsetEmpty,
		[]string{"f:3:23: subset: job \"a\" selects nothing", "ids are 0 to 9"}},
	{"samples: 10\njobs:\n  - {name: a, subset: 'range(5, 50)'}", errs.Invalid,
		[]string{"f:3:23: subset", "beyond the dataset"}},
	{"samples: 10\njobs:\n  - {name: a, subset: 'label < 5'}", errs.Invalid,
		[]string{"f:3:23: subset: the samples of a scenario have no labels"}},
	{"samples: 10\njobs:\n  - {name: a, subset: 'id <'}", errs.SubsetSyntax, []string{"f:3:23: subset"}},
	{"samples: 10\njobs:\n  - {name: a, speed: 0}\n  - {name: b, speed: .nan}\n", errs.Invalid,
		[]string{`f:3:22: speed: "0"`, `f:4:22: speed: ".nan"`}},
	{"samples: 10\njobs:\n  - {name: a, start: 5, leave: 4}", errs.Invalid,
		[]string{"f:3:32: job \"a\" leaves at 4 and starts at 5"}},
	{"samples: 10\njobs:\n  - {name: a, batch: 0, window: 99}", errs.Invalid,
		[]string{"from 1 to 65536", "from 1 to 64"}},
	{"samples: 10\njobs:\n  - {name: a, epochs: 1, epochs: 2}", errs.Invalid, []string{"epochs"}},
	{"samples: 10\njobs:\n" + strings.Repeat("  - {name: x}\n", 65), errs.Invalid,
		[]string{"f:3:3: 65 jobs draw from the dataset, the limit is 64",
			"leave out 1"}},
	{"samples: 10\njobs: []", errs.Invalid, []string{"jobs is missing"}},
	{"jobs: [{name: a}]", errs.Invalid, []string{"samples is missing"}},
	{"samples: 10\njobs: {name: a}", errs.Invalid, []string{"jobs must be a list"}},
	{"samples: 10\njobs: [&a {name: a}, *a]", errs.Invalid, []string{"aliases are not supported"}},
	{"samples: 16000000\njobs:\n" + strings.Repeat("  - {name: x}\n", 60), errs.Invalid,
		[]string{"the limit of their product"}},
	{"samples: 1000000\nrepeats: 10000\njobs: [{name: a, epochs: 1000000}]", errs.Invalid,
		[]string{"picks are asked for"}},
	{"samples: 1000000\njobs: [{name: a, epochs: 1000, batch: 1}]", errs.Invalid,
		[]string{"f:2:7: 1e+09 batches are asked for in a run"}},
	{"samples: 10\nsizes: {quartiles: [1, 2]}\njobs: [{name: a}]", errs.Invalid,
		[]string{"f:2:20: quartiles are four sizes"}},
	{"samples: 10\nsizes: {quartiles: [1, 2, 0, 4]}\njobs: [{name: a}]", errs.Invalid,
		[]string{`f:2:27: sizes.quartiles: "0"`}},
	{"samples: 10\njobs:\n  - {name: a, shuffle: maybe}", errs.Invalid, []string{"write true or false"}},
	{strings.Repeat(" ", MaxScenario+1), errs.Invalid, []string{"a scenario is smaller"}},
}

// Every mistake names its place and the way out; none panics.
func TestScenarioMistakes(t *testing.T) {
	for _, c := range wrongScenarios {
		_, err := ParseScenario("f", []byte(c.text))
		if err == nil || !errs.Is(err, c.reason) {
			t.Errorf("%.80q: %v, want %s", c.text, err, c.reason)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%.80q: %v does not say %q", c.text, err, w)
			}
		}
	}
	sc := scenarioOf(t, "samples: 10\njobs: [{name: a, shuffle: false}, {name: b}]")
	for what, err := range map[string]error{"order": sc.SetOrder("nothing"), "cache": sc.SetCache(-1, ""),
		"policy": sc.SetCache(1, "lur"), "repeats": sc.SetRepeats(0)} {
		if !errs.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Whatever parses and is small runs to its end, exactly once, and at or above the bound.
func FuzzScenario(f *testing.F) {
	for _, s := range []string{
		"samples: 20\nrepeats: 2\ncache: {samples: 3}\njobs: [{name: a, epochs: 2}, {name: b, subset: 'id % 2 == 0', " +
			"speed: .3, start: 4, leave: 9}]\n",
		"samples: 9\njobs: [{name: a, order: joader, batch: 1}, {name: b, order: strict, window: 3}, {name: c, order: " +
			"ods}]\nsizes: {quartiles: [1, 2, 4, 8]}",
		"samples: 5\ncache: {samples: 9, policy: lru}\njobs: [{name: a, shuffle: false}, {name: b, order: shared-order}, " +
			"{name: c, order: fixed, seed: 3}]",
		"samples: 30\ncache: {samples: 4, policy: minio}\njobs: [{name: a, order: stratified(256), batch: 3}, {name: b, " +
			"order: joader-as-released, epochs: 2}, {name: c, order: stratified(0)}]",
		"jobs: &a [*a]", "samples: 1e3\n", "{{{", "a: !!binary x", "samples: 9\njobs: [{name: a, start: 1e12, speed: 1e-6}]",
		"<<: {samples: 3}",
	} {
		f.Add(s)
	}
	files, err := filepath.Glob("scenarios/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, name := range files { // their words, on fewer samples
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		lines := strings.Split(string(data), "\n")
		f.Add(strings.Join(lines[:min(len(lines), 9)], "\n"))
	}
	large := regexp.MustCompile(`[0-9_]{6,}`) // of millions of samples even a subset takes seconds
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 || large.MatchString(text) {
			return
		}
		sc, err := ParseScenario("f", []byte(text))
		if err != nil {
			return
		}
		if sc.Samples > 2000 {
			return
		}
		picks := 0.0
		for _, j := range sc.Jobs {
			picks += float64(len(j.samples)) * float64(j.Epochs) * float64(sc.Repeats)
		}
		if picks > 20_000 {
			return
		}
		r, err := RunSampler(sc, nil, nil)
		if err != nil || !r.ExactlyOnce || r.Loads < r.LowerBound || math.IsNaN(r.Ratio) {
			t.Fatalf("%v, %+v", err, r)
		}
	})
}

// docs/sampler.md names every key, every order, and every field of the report.
func TestSamplerDocs(t *testing.T) {
	data, err := os.ReadFile("../docs/sampler.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	words := append(Orders(), "samples", "seed", "repeats", "cache", "policy", "sizes", "quartiles", "name", "subset",
		"speed", "start", "leave",
		"epochs", "order", "batch", "window", "shuffle", "requests", "loads", "loads_lower_bound",
		"loads_lower_bound_windows", "ratio",
		"exactly_once", "policy_breaks", "picks_per_second", "cells", "mean_position", "sd_of_mean", "epoch_overlap_q1",
		"spearman_rho", "hits", "sd_of_mean_positions", "sd_by_chance", "lag_correlations")
	for _, w := range words {
		if !strings.Contains(page, w) {
			t.Errorf("docs/sampler.md does not name %s", w)
		}
	}
	policies, err := os.ReadFile("../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tinylfu.Names() {
		if !strings.Contains(string(policies), "| `"+name+"` |") {
			t.Errorf("docs/policies.md does not explain %s", name)
		}
	}
	_, text, _ := strings.Cut(page, "```yaml\n")
	text, _, ok := strings.Cut(text, "```")
	if sc, err := ParseScenario("docs/sampler.md", []byte(text)); !ok || err != nil || len(sc.Jobs) != 2 {
		t.Errorf("its example: %v", err)
	}
}
