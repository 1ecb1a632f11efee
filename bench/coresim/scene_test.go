package coresim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
)

func upTo(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// testWorld is n objects of 20 kB and 100 kB decoded, and jobs on all of them.
func testWorld(n, jobs, epochs int) *World {
	w := &World{Seed: 5, Objects: n, Workers: 4, Cores: 4, Memory: 8e9, InPlace: .8, Finish: 50 * time.Microsecond,
		Storage: Storage{Bandwidth: 200e6, Latency: 100 * time.Microsecond}}
	for i := range n {
		w.Sizes, w.Decoded = append(w.Sizes, uint32(15_000+i%10*1000)), append(w.Decoded, uint32(75_000+i%10*5000))
		w.Decode, w.Augment, w.Labels = append(w.Decode, time.Millisecond), append(w.Augment,
			300*time.Microsecond), append(w.Labels, int32(i*10/n))
	}
	all := upTo(n)
	for k := range jobs {
		w.Jobs = append(w.Jobs, Job{Name: fmt.Sprint("j", k), Order: "stratified", Subset: all, Batch: 32, Epochs: epochs,
			Step: 40 * time.Millisecond, Jitter: .1, Recipe: "r", Bytes: 150_528})
	}
	w.Tiers = coordinator.TierConfig{Total: 16 << 20, Sizes: [ident.NumForms]int64{ident.Decoded: 16 << 20}}
	return w
}

// One seed is one run, byte for byte; another seed is another one.
func TestDecisionsAreAFunctionOfTheSeed(t *testing.T) {
	run := func(seed uint64) (string, []byte, []byte) {
		w := testWorld(600, 3, 2)
		w.Seed = seed
		w.Tiers.Sizes = [ident.NumForms]int64{ident.Encoded: -1, ident.Decoded: -1, ident.Augmented: -1}
		w.Jobs[1].Start, w.Jobs[2].Leave, w.Jobs[2].Share = 700*time.Millisecond, 1500*time.Millisecond, true
		w.Jobs[0].Phases = []Phase{{3, 10 * time.Millisecond}, {1, 100 * time.Millisecond}}
		var decisions bytes.Buffer
		r, err := w.Run(Options{Decisions: &decisions})
		if err != nil || len(r.Failures) > 0 {
			t.Fatal(err, r)
		}
		figures, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return r.Trace, decisions.Bytes(), figures
	}
	hash, decisions, figures := run(5)
	for range 2 {
		h, d, f := run(5)
		if h != hash || !bytes.Equal(d, decisions) || !bytes.Equal(f, figures) {
			t.Fatal("the same seed gives another run")
		}
	}
	if len(decisions) < 100_000 {
		t.Errorf("only %d bytes of decisions are written down", len(decisions))
	}
	if h, _, _ := run(6); h == hash {
		t.Error("another seed gives the same run")
	}
}

// With memory for nothing one job reads, decodes and augments every sample in every epoch; with memory for all, once in
// all epochs.
func TestCountsOfOneJob(t *testing.T) {
	const n, epochs = 500, 3
	for _, tc := range []struct {
		memory         int64
		reads, decodes uint64
	}{{0, n * epochs, n * epochs}, {1 << 30, n, n}} {
		w := testWorld(n, 1, epochs)
		w.Tiers.Total, w.Tiers.Sizes[ident.Decoded] = tc.memory, tc.memory
		r, err := w.Run(Options{})
		if err != nil {
			t.Fatal(err)
		}
		c := r.Counts
		if c.SourceReads != tc.reads || c.Decodes != tc.decodes || c.Augments != n*epochs || c.Samples != n*epochs ||
			!r.ExactlyOnce || r.Unique != n || len(r.Failures) > 0 {
			t.Errorf("memory %d: %+v %v", tc.memory, c, r.Failures)
		}
		if c.SourceReads < uint64(r.LowerBound.Reads) || c.Decodes < uint64(r.LowerBound.Decodes) ||
			r.LowerBound.Augments != n*epochs {
			t.Errorf("memory %d: below the bound %+v: %+v", tc.memory, r.LowerBound, c)
		}
		j := r.Jobs[0]
		// 48 steps of 40 ms ± 4 in three epochs of 16 batches.
		if want := 48 * .04; math.Abs(j.Stepping-want) > 4.9*.04*.1/math.Sqrt(3)*math.Sqrt(48) || r.Makespan < j.Stepping {
			t.Errorf("%v s of steps, want about %v; makespan %v", j.Stepping, want, r.Makespan)
		}
	}
}

// The makespan is that of what limits: storage, cores, memory or training.
func TestTheSlowestPartLimits(t *testing.T) {
	const n = 640
	base := func() *World {
		w := testWorld(n, 1, 1)
		w.Tiers.Total, w.Tiers.Sizes = 0, [ident.NumForms]int64{}
		w.Jobs[0].Jitter, w.Jobs[0].Step = 0, time.Millisecond
		w.Storage, w.Memory, w.InPlace = Storage{}, 0, 1
		return w
	}
	bytes := 0.0
	for _, s := range base().Sizes {
		bytes += float64(s)
	}
	for _, tc := range []struct {
		name string
		set  func(w *World)
		want float64 // seconds
	}{
		{"bandwidth", func(w *World) { w.Storage.Bandwidth = 2e6 }, bytes/2e6 - .1}, // the bucket is full at first
		{"iops", func(w *World) { w.Storage.IOPS = 100 }, n/100. - .1},
		{"cores", func(w *World) { w.Workers, w.Cores = 2, 2 }, n * .0013 / 2},
		{"more workers than cores", func(w *World) { w.Workers, w.Cores = 4, 2 }, n * .0013 / 2},
		{"memory", func(w *World) { w.Memory = 20e6 }, n * 150_528 / 20e6},
		{"training", func(w *World) { w.Jobs[0].Step = 200 * time.Millisecond }, 20 * .2},
	} {
		w := base()
		tc.set(w)
		r, err := w.Run(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Makespan; got < tc.want*.97 || got > tc.want*1.12+.02 {
			t.Errorf("%s: makespan %.3f s, want %.3f", tc.name, got, tc.want)
		}
	}
}

func TestVirtualTimeIsBounded(t *testing.T) {
	w := testWorld(200, 3, 1_000_000)
	w.Jobs[2].Epochs = 1 // it is gone long before the end
	r, err := w.Run(Options{MaxTime: 5 * time.Second})
	if err != nil || !r.CutOff || len(r.Failures) > 0 || r.Counts.Samples == 0 || !r.ExactlyOnce || r.Makespan != 5 {
		t.Errorf("%v %+v", err, r)
	}
	for i, want := range []bool{true, true, false} { // until then they were there, also in their first epoch
		if j := r.Jobs[i]; (j.Ended == 5) != want || j.Ended == 0 || !(j.Throughput > 0) {
			t.Errorf("%+v", j)
		}
	}
	stop := errors.New("enough")
	if _, err := w.Run(Options{MaxTime: time.Hour, Progress: func(time.Duration, uint64, uint64) error {
		return stop
	}}); !errors.Is(err, stop) {
		t.Errorf("not stopped: %v", err)
	}
}

func TestWorldsThatCannotBe(t *testing.T) {
	for name, set := range map[string]func(*World){
		"no objects":  func(w *World) { w.Objects = 0 },
		"no jobs":     func(w *World) { w.Jobs = nil },
		"65 jobs":     func(w *World) { w.Jobs = append(w.Jobs, make([]Job, 64)...) },
		"no epochs":   func(w *World) { w.Jobs[0].Epochs = 0 },
		"order":       func(w *World) { w.Jobs[0].Order = "stratfied" },
		"tiles":       func(w *World) { w.Jobs[0].Order = "stratified(0)" },
		"foreign":     func(w *World) { w.Jobs[0].Subset = []uint32{5, 700} },
		"empty":       func(w *World) { w.Jobs[0].Subset = nil },
		"empty phase": func(w *World) { w.Jobs[0].Phases = []Phase{{0, time.Second}} },
		"policy":      func(w *World) { w.Tiers.Policy[ident.Decoded] = "ned" },
		"tiers":       func(w *World) { w.Tiers.Total = 5 },
	} {
		w := testWorld(100, 1, 1)
		set(w)
		_, err := w.Run(Options{})
		if f := errs.From(err); err == nil || f.Reason == errs.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := testWorld(10_000, 4, 2).Run(Options{MaxMemory: 1 << 20})
	if !errs.Is(err, errs.ResourceExceeded) || !strings.Contains(err.Error(), "needs about") {
		t.Error(err)
	}
}

// Tiles that would be too small are fewer, as in a daemon (internal/engine has the same cases), and the run says so.
func TestSmallTilesAreFewer(t *testing.T) {
	for _, x := range []struct {
		order    string
		n, tiles int
		said     bool
	}{
		{"stratified(5)", 10, 4, true}, {"stratified(4)", 10, 4, false}, {"stratified(2)", 10, 2, false}, {"stratified(200)",
			640, 10, true}, {"stratified(10)", 640, 10, false},
		{"stratified", 10, 0, false}, {"epoch", 10, 0, false},
	} {
		w := testWorld(x.n, 1, 1)
		w.Jobs[0].Order = x.order
		_, tiles, err := w.Jobs[0].mode()
		notes := w.Notes()
		if err != nil || tiles != x.tiles || len(notes) > 0 != x.said || x.said &&
			!strings.Contains(notes[0], fmt.Sprintf("%d tiles are used for order %s", x.tiles, x.order)) {
			t.Errorf("%s of %d: %d tiles, %q, %v", x.order, x.n, tiles, notes, err)
		}
	}
	a, b := testWorld(600, 2, 2), testWorld(600, 2, 2)
	a.Jobs[0].Order, b.Jobs[0].Order = "stratified(200)", "stratified(9)"
	ra, err := a.Run(Options{})
	rb, err2 := b.Run(Options{})
	if err != nil || err2 != nil || ra.Trace != rb.Trace {
		t.Errorf("200 tiles of 600 samples are not 9: %v, %v", err, err2)
	}
}

// What is refused for its memory is judged by an estimate that is not below what a run really takes, and not several
// times above.
func TestTheEstimateOfMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("half a million picks")
	}
	w := testWorld(40_000, 4, 2)
	w.Tiers.Total, w.Tiers.Sizes = 2<<30, [ident.NumForms]int64{ident.Encoded: 1 << 28, ident.Decoded: 1 << 30}
	for i := range w.Jobs {
		w.Jobs[i].Batch, w.Jobs[i].Step = 256, 100*time.Millisecond
	}
	w.Storage = Storage{}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before, most := m.HeapAlloc, uint64(0)
	if _, err := w.Run(Options{Progress: func(time.Duration, uint64, uint64) error {
		runtime.GC()
		runtime.ReadMemStats(&m)
		most = max(most, m.HeapAlloc-before)
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	if e := uint64(w.Estimate()); most == 0 || most > e || e > 6*most+64<<20 {
		t.Errorf("%d bytes were used, %d estimated", most, e)
	} else {
		t.Logf("%d MB were used, %d MB estimated", most>>20, e>>20)
	}
}
