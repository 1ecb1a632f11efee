package bench

import (
	"slices"
	"strings"
	"testing"
	"time"

	"larder/bench/coresim"
	"larder/bench/trace"
	"larder/internal/errs"
	"larder/internal/ident"
)

// recorded is a trace as a daemon records one: two jobs on parts of 200 samples.
func recorded(t testing.TB) *trace.Trace {
	t.Helper()
	tr, err := trace.Generate(trace.Spec{Family: "aligned", Samples: 200, Jobs: 2, Epochs: 2, Seed: 3, Bytes: 20_000,
		Batch: 8, Step: time.Millisecond}, 0)
	if err != nil {
		t.Fatal(err)
	}
	tr.Jobs[0].Name, tr.Jobs[1].Name = "run.1/photos", "b"
	tr.World = &trace.World{Workers: 4, Cores: 4, StorageLimit: 20e6, Latency: 100 * time.Microsecond, Memory: 8e9,
		Finish: 20 * time.Microsecond, InPlace: .8, Lost: 7, Unknown: 3,
		Tiers: trace.Tiers{Total: 4 << 20, Decoded: 4 << 20, Policy: []string{"need", "lru", "need"}, Model: "bottleneck"}}
	for i := range tr.Jobs {
		tr.Jobs[i].Order = "stratified"
		tr.World.Jobs = append(tr.World.Jobs, trace.JobWorld{Ranks: 1, Prefetch: 3, Recipe: "r", Augmented: 3 * 64 * 64,
			Seed: uint64(i), Partial: i == 1})
	}
	if err := tr.Check(); err != nil {
		t.Fatal(err)
	}
	return tr
}

func worldOf(t testing.TB, tr *trace.Trace) (*coresim.World, []string) {
	t.Helper()
	w, limits, err := FromTrace(tr, DefaultMachine)
	if err != nil {
		t.Fatal(err)
	}
	return w, limits
}

// What was recorded is what is simulated, and what is not known is said.
func TestFromTrace(t *testing.T) {
	w, limits := worldOf(t, recorded(t))
	j := w.Jobs[0]
	if w.Workers != 4 || w.Storage.Bandwidth != 20e6 || w.InPlace != .8 || w.Tiers.Total != 4<<20 ||
		w.Tiers.Policy[ident.Decoded] != "lru" || j.Order != "stratified" || j.Step != 8*time.Millisecond ||
		j.Prefetch != 3 || j.Bytes != 3*64*64 || len(j.Subset) != 200 || w.Jobs[1].Seed != 1 {
		t.Errorf("%+v", w)
	}
	all := strings.Join(limits, "\n")
	for _, s := range []string{"7 picks and moves are missing", "3 of 200 samples were never seen",
		"Job b was recorded in part", "no costs of decoding", "drawn again"} {
		if !strings.Contains(all, s) {
			t.Errorf("the limits do not say %q: %s", s, all)
		}
	}
	bare := recorded(t)
	bare.World, bare.Sizes = nil, nil
	bare.Jobs[0].Order, bare.Jobs[1].Order = "shared-order", "sequential"
	if w, limits := worldOf(t, bare); w.Jobs[0].Order != "fixed" || w.Jobs[1].Order != "" ||
		!strings.Contains(strings.Join(limits, "\n"), "says nothing of the machine") {
		t.Errorf("%+v %q", w.Jobs, limits)
	}
	bare.Jobs[0].Order = "joader"
	if _, _, err := FromTrace(bare, DefaultMachine); !errs.Is(err, errs.Unsupported) {
		t.Errorf("an order that no daemon has: %v", err)
	}
}

// Every change does what it says to what it names, and leaves the world that it was made from alone.
func TestChanges(t *testing.T) {
	base, _ := worldOf(t, recorded(t))
	for _, c := range []struct {
		text string
		ok   func(w *coresim.World) bool
	}{
		{"tiers.total=16GiB", func(w *coresim.World) bool { return w.Tiers.Total == 16<<30 }},
		{"tiers.decoded=auto", func(w *coresim.World) bool { return w.Tiers.Sizes[ident.Decoded] == -1 }},
		{"tiers.encoded = 1MB", func(w *coresim.World) bool { return w.Tiers.Sizes[ident.Encoded] == 1e6 }},
		{"tiers.augmented=0", func(w *coresim.World) bool { return w.Tiers.Sizes[ident.Augmented] == 0 }},
		{"tiers.policy.decoded=minio", func(w *coresim.World) bool { return w.Tiers.Policy[ident.Decoded] == "minio" }},
		{"tiers.model=seneca", func(w *coresim.World) bool { return w.Tiers.Model == "seneca" }},
		{"machine.workers=9", func(w *coresim.World) bool { return w.Workers == 9 && w.Cores == 4 }},
		{"machine.cores=2", func(w *coresim.World) bool { return w.Cores == 2 }},
		{"machine.memory=1GB/s", func(w *coresim.World) bool { return w.Memory == 1e9 }},
		{"machine.storage.bandwidth=5MB/s", func(w *coresim.World) bool { return w.Storage.Bandwidth == 5e6 }},
		{"machine.storage.iops=100", func(w *coresim.World) bool { return w.Storage.IOPS == 100 }},
		{"machine.storage.latency=2ms", func(w *coresim.World) bool { return w.Storage.Latency == 2*time.Millisecond }},
		{"seed=77", func(w *coresim.World) bool { return w.Seed == 77 }},
		{"jobs.b=absent", func(w *coresim.World) bool { return len(w.Jobs) == 1 && w.Jobs[0].Name == "run.1/photos" }},
		{"jobs.run.1/photos=absent", func(w *coresim.World) bool { return len(w.Jobs) == 1 && w.Jobs[0].Name == "b" }},
		{"jobs.run.1/photos.speed=2x", func(w *coresim.World) bool {
			return w.Jobs[0].Step == 4*time.Millisecond && w.Jobs[1].Step == 8*time.Millisecond
		}},
		{"jobs.b.step=3ms", func(w *coresim.World) bool { return w.Jobs[1].Step == 3*time.Millisecond }},
		{"jobs.b.batch=16", func(w *coresim.World) bool {
			return w.Jobs[1].Batch == 16 &&
				w.Jobs[1].Step == 16*time.Millisecond
		}},
		{"jobs.b.epochs=5", func(w *coresim.World) bool { return w.Jobs[1].Epochs == 5 }},
		{"jobs.b.start=1s", func(w *coresim.World) bool { return w.Jobs[1].Start == time.Second }},
		{"jobs.b.leave=1s", func(w *coresim.World) bool { return w.Jobs[1].Leave == time.Second }},
		{"jobs.b.order=epoch", func(w *coresim.World) bool { return w.Jobs[1].Order == "epoch" }},
		{"jobs.b.prefetch=9", func(w *coresim.World) bool { return w.Jobs[1].Prefetch == 9 }},
		{"jobs.b.share=augmented", func(w *coresim.World) bool { return w.Jobs[1].Share && !w.Jobs[0].Share }},
	} {
		w := *base
		if err := Change(&w, c.text); err != nil || !c.ok(&w) {
			t.Errorf("%s: %v, %+v", c.text, err, w.Jobs)
		}
	}
	if base.Jobs[0].Step != 8*time.Millisecond || base.Jobs[1].Order != "stratified" || len(base.Jobs) != 2 {
		t.Errorf("a change reached back: %+v", base.Jobs)
	}
	for text, hint := range map[string]string{
		"tiers.total": "e.g. tiers.total=16GiB", "=3": "e.g.", "tiers.totl=3": "did you mean tiers.total?",
		"tiers.total=lots": "16GiB", "tiers.total=auto": "16GiB", "tiers.total=30%": "16GiB",
		"tiers.policy.decoded=ned": "did you mean need?", "tiers.model=senca": "did you mean seneca?",
		"machine.cores=0": "from 1", "machine.storage.iops=-1": "from 0", "machine.storage.latency=2": "2ms",
		"seed=x":        "whole",
		"jobs.c=absent": "b", "jobs.b=present": "write absent", "jobs.b.sped=2x": "did you mean speed?",
		"jobs.b.speed=0x": "2x", "jobs.b.speed=NaN": "2x", "jobs.b.epochs=0": "from 1", "jobs.b.order=joader": "stratified",
		"jobs.b.share=all": "none or augmented", "jobs.b.leave=0s": "time", "jobs.bb.speed=2x": "did you mean b?",
	} {
		w := *base
		err := Change(&w, text)
		if err == nil || !errs.Is(err, errs.Invalid) || !strings.Contains(errs.From(err).Hint, hint) {
			t.Errorf("%s: %v (%s), want a hint with %q", text, err, errs.From(err).Hint, hint)
		}
	}
	alone := *base
	if err := Change(&alone, "jobs.b=absent"); err != nil {
		t.Fatal(err)
	}
	if err := Change(&alone, "jobs.run.1/photos=absent"); !errs.Is(err, errs.Invalid) {
		t.Errorf("no job is left: %v", err)
	}
}

// More memory reads less, a job less takes its samples away, a faster job waits instead of stepping, and the same world
// twice is the same run.
func TestWhatChangesDo(t *testing.T) {
	base, _ := worldOf(t, recorded(t))
	run := func(changes ...string) (reads, samples uint64, stepping float64, hash string) {
		w := *base
		for _, c := range changes {
			if err := Change(&w, c); err != nil {
				t.Fatal(err)
			}
		}
		r, err := w.Run(coresim.Options{})
		if err != nil || len(r.Failures) > 0 || !r.ExactlyOnce {
			t.Fatal(err, r)
		}
		return r.Counts.SourceReads, r.Counts.Samples, r.Jobs[0].Stepping, r.Trace
	}
	reads, samples, stepping, hash := run()
	if _, _, _, again := run(); again != hash {
		t.Error("the same world is another run")
	}
	if less, _, _, _ := run("tiers.total=64MiB", "tiers.decoded=64MiB"); less != 200 || reads <= less {
		t.Errorf("%d reads, %d when everything fits", reads, less)
	}
	if more, _, _, _ := run("tiers.decoded=0"); more <= reads {
		t.Errorf("%d reads, %d without memory", reads, more)
	}
	if _, n, _, _ := run("jobs.b=absent"); samples != 800 || n != 400 {
		t.Errorf("%d samples, %d without the second job", samples, n)
	}
	if _, _, s, _ := run("jobs.run.1/photos.speed=2x"); s < stepping*.499 || s > stepping*.501 {
		t.Errorf("%v s of steps, %v at twice the speed", stepping, s)
	}
	if !slices.Contains(changeKeys, "seed") {
		t.Error("seed is no key")
	}
}

// Demand whose epochs are no sets is simulated as if they were, and that is said.
func TestUnlikeEpochsAreTold(t *testing.T) {
	for family, noted := range map[string]bool{"aligned": false, "crossed": false, "staggered": false, "zipf": true,
		"curriculum": true} {
		tr, err := trace.Generate(trace.Spec{Family: family, Samples: 300, Jobs: 2, Epochs: 3, Seed: 1}, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, limits, err := FromTrace(tr, DefaultMachine)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(limits, "\n"),
			"did not take each sample of its subset once an epoch"); got != noted {
			t.Errorf("%s: %q", family, limits)
		}
	}
}
