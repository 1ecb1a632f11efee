package bench

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"larder/bench/coresim"
	"larder/internal/config"
	"larder/internal/errs"
	"larder/internal/ident"
)

func liveOf(t testing.TB, text string) *Live {
	t.Helper()
	l, err := ParseLive("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const everyKey = `# What it is for.
samples: 100
seed: 7
repeats: 2
shrink: 4
classes: 5
bytes: 50_000
decoded: 6
machine:
  {workers: 3, cores: 2, storage: {bandwidth: 20MB/s, iops: 500, latency: 2ms},
      memory: 8GB, decode: {mean: 1ms, spread: 3, by: bytes}, augment: 200us, finish: 10us, in_place: 0.7}
tiers: {total: 64MiB, encoded: 8MiB, decoded: auto, augmented: 0, policy: {encoded: minio, decoded: lru,
    augmented: need}, model: seneca}
kill: {at: 1500ms}
jobs:
  - {name: a, subset: "range(0, 50)", order: stratified(8), shuffle: true, seed: 3, batch: 8, prefetch: 4, ranks: 2,
      epochs: 5, drop_last: true, step: 3ms, jitter: 0.5, start: 1s, leave: 2s, crop: 96, share: augmented}
  - {name: b, shuffle: false, phases: [{batches: 3, step: 10ms}, {batches: 1, step: 100ms}]}
`

func TestLiveScenario(t *testing.T) {
	l := liveOf(t, everyKey)
	m, a, b := l.Machine, l.Jobs[0], l.Jobs[1]
	if l.Purpose != "What it is for." || m.Workers != 3 || m.Cores != 2 || m.Bandwidth != 20e6 || m.IOPS != 500 ||
		m.Latency != 2*time.Millisecond || m.Memory != 8e9 ||
		m.Decode != (Cost{time.Millisecond, 3, true}) || m.Augment != (Cost{Mean: 200 * time.Microsecond}) ||
		m.Finish != 10*time.Microsecond || m.InPlace != .7 {
		t.Errorf("%+v", l)
	}
	if l.Tiers.Total != 64<<20 || l.Tiers.Sizes != [ident.NumForms]int64{ident.Encoded: 8 << 20, ident.Decoded: -1} ||
		l.Tiers.Policy[ident.Decoded] != "lru" || l.Tiers.Model != "seneca" || l.Kill != 1500*time.Millisecond ||
		len(l.Notes()) != 1 {
		t.Errorf("%+v", l.Tiers)
	}
	if a.Order != "stratified(8)" || a.Seed != 3 || a.Batch != 8 || a.Prefetch != 4 || a.Ranks != 2 || a.Epochs != 5 ||
		!a.DropLast || !a.Even || a.Step != 3*time.Millisecond || a.Jitter != .5 ||
		a.Start != time.Second || a.Leave != 2*time.Second || a.Crop != 96 || a.Bytes != 3*96*96 || !a.Share ||
		b.Order != "" || len(b.Phases) != 2 || b.Share {
		t.Errorf("%+v %+v", a, b)
	}
	w, err := l.World(nil, nil, DefaultMachine)
	if err != nil {
		t.Fatal(err)
	}
	sum, cost := 0.0, 0.0
	for i := range w.Objects {
		sum, cost = sum+float64(w.Sizes[i]), cost+float64(w.Decode[i])
		if w.Labels[i] != int32(i/20) || w.Decoded[i] != w.Sizes[i]*6 {
			t.Fatalf("sample %d: label %d, %d bytes decoded of %d", i, w.Labels[i], w.Decoded[i], w.Sizes[i])
		}
	}
	if sum < 100*49_900 || sum > 100*50_000 || cost < 99.9e6 || cost > 100e6 || len(w.Jobs[0].Subset) != 50 ||
		len(w.Jobs[1].Subset) != 100 {
		t.Errorf("%v bytes, %v of decoding", sum, time.Duration(cost))
	}
	steps := time.Duration(0)
	for n := range 8 {
		steps += w.Jobs[1].StepAt(1, 0, n)
	}
	if steps != 260*time.Millisecond {
		t.Errorf("two rounds of phases take %v", steps)
	}
}

// Every mistake names its place and the way out; none panics.
func TestLiveMistakes(t *testing.T) {
	for _, c := range []struct {
		text   string
		reason errs.Reason
		want   []string
	}{
		{"", errs.Invalid, []string{"there is no scenario"}},
		{"- 1", errs.Invalid, []string{"f:1:1: the scenario must hold keys"}},
		{"samples: 3\njobs: [{name: a}]\n---\nx: 1", errs.Invalid, []string{"more than one YAML document"}},
		{"jobs: [{name: a}]", errs.Invalid, []string{"either samples"}},
		{"samples: 3\ndataset: imagefolder:/x\njobs: [{name: a}]", errs.Invalid, []string{"either samples"}},
		{"samples: 3\nmachin: {}\njobs: [{name: a}]", errs.Invalid, []string{`f:2:1: unknown key "machin"`,
			"did you mean machine?"}},
		{"samples: 3\nmachine: {worker: 2}\njobs: [{name: a}]", errs.Invalid,
			[]string{`f:2:11: unknown key "worker" in machine`, "did you mean workers?"}},
		{"samples: 3\nmachine: {storage: {bandwith: 2}}\njobs: [{name: a}]", errs.Invalid,
			[]string{"f:2:21", "did you mean bandwidth?"}},
		{"samples: 3\nmachine: {storage: {bandwidth: 50%}}\njobs: [{name: a}]", errs.Invalid, []string{"f:2:32", "64MiB"}},
		{"samples: 3\nmachine: {decode: {spread: 2}}\njobs: [{name: a}]", errs.Invalid,
			[]string{"machine.decode has no mean"}},
		{"samples: 3\nmachine: {decode: {mean: 1ms, by: byte}}\njobs: [{name: a}]", errs.Invalid,
			[]string{"did you mean bytes?"}},
		{"samples: 3\nmachine: {decode: 0s}\njobs: [{name: a}]", errs.Invalid, []string{"f:2:19: machine.decode"}},
		{"samples: 3\ntiers: {total: 1MiB, decoded: 2MiB}\njobs: [{name: a}]", errs.Invalid,
			[]string{"f:2:8: the tiers have 2MiB together", "raise tiers.total"}},
		{"samples: 3\ntiers: {total: auto}\njobs: [{name: a}]", errs.Invalid, []string{"f:2:16: tiers.total"}},
		{"samples: 3\ntiers: {policy: {decoded: belady}}\njobs: [{name: a}]", errs.Invalid,
			[]string{`unknown cache policy "belady"`}},
		{"samples: 3\ntiers: {model: senca}\njobs: [{name: a}]", errs.Invalid, []string{"did you mean seneca?"}},
		{"samples: 3\nkill: 5s\njobs: [{name: a}]", errs.Invalid, []string{"f:2:7: kill must hold keys"}},
		{"samples: 3\nkill:\njobs: [{name: a}]", errs.Invalid, []string{"kill does not say when", "or leave it out"}},
		{"samples: 3\nkill: {}\njobs: [{name: a}]", errs.Invalid, []string{"f:2:7: kill does not say when",
			"e.g. kill: {at: 5s}"}},
		{"samples: 3\nkill: {att: 5s}\njobs: [{name: a}]", errs.Invalid, []string{`f:2:8: unknown key "att" in kill`,
			"did you mean at?"}},
		{"samples: 3\nkill: {at: soon}\njobs: [{name: a}]", errs.Invalid, []string{"f:2:12: kill.at", "e.g. 20ms"}},
		{"samples: 3\nkill: {at: 0s}\njobs: [{name: a}]", errs.Invalid, []string{"f:2:12: kill.at"}},
		{"samples: 3\nkill: {at: 1s}\njobs: [{name: a, start: 1s}]", errs.Invalid, []string{"f:2:7: no job trains yet",
			"kill it later"}},
		{"samples: 3\njobs: []", errs.Invalid, []string{"jobs is missing"}},
		{"samples: 3\njobs: [{name: a, stp: 2ms}]", errs.Invalid, []string{`unknown key "stp" in job 1`,
			"did you mean step?"}},
		{"samples: 3\njobs: [{name: a, step: 2}]", errs.Invalid, []string{"f:2:24: step", "e.g. 20ms"}},
		{"samples: 3\njobs: [{name: a, order: joader}]", errs.Invalid, []string{"order joader is no order of a daemon"}},
		{"samples: 3\njobs: [{name: a, order: startified}]", errs.Invalid, []string{"did you mean stratified?"}},
		{"samples: 3\njobs: [{name: a, share: augment}]", errs.Invalid, []string{"did you mean augmented?"}},
		{"samples: 3\njobs: [{name: a, start: 2s, leave: 1s}]", errs.Invalid, []string{"f:2:36", "leaves at 1s"}},
		{"samples: 3\njobs: [{name: a, phases: [{batches: 2}]}]", errs.Invalid, []string{"a phase has batches and a step"}},
		{"samples: 3\njobs: [{name: a, subset: 'id <'}]", errs.SubsetSyntax, []string{"f:2:26: "}},
		{"samples: 3\njobs: [{name: a}, {name: a}]", errs.Invalid, []string{"is there twice"}},
		{"samples: 3\njobs: [&a {name: a}, *a]", errs.Invalid, []string{"aliases are not supported"}},
	} {
		_, err := ParseLive("f", []byte(c.text))
		if err == nil || !errs.Is(err, c.reason) {
			t.Errorf("%.80q: %v, want %s", c.text, err, c.reason)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error()+errs.From(err).Hint, w) {
				t.Errorf("%.80q: %v (%s) does not say %q", c.text, err, errs.From(err).Hint, w)
			}
		}
	}
	if _, err := liveOf(t, "dataset: imagefolder:/data\njobs: [{name: a}]").World(nil, nil, DefaultMachine); !errs.Is(err,
		errs.Invalid) {
		t.Errorf("a dataset without files: %v", err)
	}
	if _, err := liveOf(t, "samples: 3\njobs: [{name: a, subset: 'id > 5'}]").World(nil, nil,
		DefaultMachine); !errs.Is(err, errs.SubsetEmpty) {
		t.Errorf("an empty subset: %v", err)
	}
}

// The schema and the parser know the same keys and the same words.
func TestLiveSchemaIsWhatIsParsed(t *testing.T) {
	raw, err := os.ReadFile("scenarios/schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type object struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Enum       []string                   `json:"enum"`
	}
	var schema struct {
		Defs map[string]object `json:"$defs"`
	}
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	sub := func(o object, key string) (out object) {
		if err := json.Unmarshal(o.Properties[key], &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	live := schema.Defs["live"]
	if got := sub(sub(live, "tiers"), "model").Enum; !slices.Equal(got, config.Models) {
		t.Errorf("models of the schema: %v", got)
	}
	for _, c := range []struct {
		in   object
		text string // a scenario with the unknown key zzqq in that place
	}{
		{live, "samples: 3\njobs: [{name: a}]\nzzqq: 1"},
		{sub(live, "machine"), "samples: 3\njobs: [{name: a}]\nmachine: {zzqq: 1}"},
		{sub(sub(live, "machine"), "storage"), "samples: 3\njobs: [{name: a}]\nmachine: {storage: {zzqq: 1}}"},
		{schema.Defs["distribution"], "samples: 3\njobs: [{name: a}]\nmachine: {decode: {mean: 1ms, zzqq: 1}}"},
		{sub(live, "tiers"), "samples: 3\njobs: [{name: a}]\ntiers: {zzqq: 1}"},
		{sub(sub(live, "tiers"), "policy"), "samples: 3\njobs: [{name: a}]\ntiers: {policy: {zzqq: 1}}"},
		{sub(live, "kill"), "samples: 3\njobs: [{name: a}]\nkill: {at: 1s, zzqq: 1}"},
		{schema.Defs["livejob"], "samples: 3\njobs: [{name: a, zzqq: 1}]"},
		{schema.Defs["phase"], "samples: 3\njobs: [{name: a, phases: [{batches: 1, step: 1ms, zzqq: 1}]}]"},
	} {
		_, err := ParseLive("s", []byte(c.text))
		if err == nil {
			t.Fatalf("%s is accepted", c.text)
		}
		// nothing is near zzqq, so all are listed
		known := strings.FieldsFunc(errs.From(err).Hint, func(r rune) bool { return r == ' ' || r == ',' || r == ':' })
		n := 0
		for _, w := range known {
			if _, ok := c.in.Properties[w]; ok {
				n++
			}
		}
		if len(c.in.Properties) == 0 || n != len(c.in.Properties) || len(known)-n > 4 {
			t.Errorf("%s: the parser knows %v, the schema %v", c.text, known, slices.Sorted(maps.Keys(c.in.Properties)))
		}
	}
}

// What ships is read, says in its first line what it is for, and says it once; what is small also runs to its end.
func TestShippedLiveScenarios(t *testing.T) {
	files, err := filepath.Glob("scenarios/live/*.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	said := map[string]bool{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		l, err := ParseLive(f, raw)
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Purpose) < 20 || said[l.Purpose] {
			t.Errorf("%s: its purpose is %q", f, l.Purpose)
		}
		said[l.Purpose] = true
		if l.Samples > 10_000 {
			continue
		}
		w, err := l.World(nil, nil, DefaultMachine)
		if err != nil {
			t.Fatal(err)
		}
		r, err := w.Run(coresim.Options{MaxTime: time.Hour})
		if err != nil || r.CutOff || len(r.Failures) > 0 || !r.ExactlyOnce ||
			r.Counts.SourceReads < uint64(r.LowerBound.Reads) || r.Counts.Decodes < uint64(r.LowerBound.Decodes) {
			t.Errorf("%s: %v %+v", f, err, r)
		}
		for _, j := range r.Jobs {
			if q := j.Quality; q.PositionKS != nil && j.Order != "epoch" && *q.PositionKS > q.PositionKSLimit ||
				q.LabelChi2 != nil && *q.LabelChi2 > q.LabelChi2Limit {
				t.Errorf("%s: job %s: %+v", f, j.Name, q)
			}
		}
	}
}

func FuzzLive(f *testing.F) {
	f.Add(everyKey)
	f.Add("samples: 5\njobs: [{name: a}]")
	f.Add("dataset: x\njobs: &a [*a]")
	f.Add("samples: 5\nmachine: {decode: [1]}\ntiers: 3\njobs: {}")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLive("f", []byte(text))
		if err != nil || l.Samples == 0 || l.Samples > 500 {
			return
		}
		for _, j := range l.Jobs {
			if j.Epochs > 3 {
				return
			}
		}
		w, err := l.World(nil, nil, DefaultMachine)
		if err != nil {
			return
		}
		r, err := w.Run(coresim.Options{MaxTime: time.Minute, MaxMemory: 1 << 28})
		if err == nil && (len(r.Failures) > 0 || !r.ExactlyOnce) {
			t.Fatalf("%+v", r)
		}
	})
}
