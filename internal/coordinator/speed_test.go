package coordinator

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/ident"
	"larder/jobs"
)

// BenchmarkLone is one job whose samples are all in memory: what is left of a sample's cost is its decisions. Each
// answer is a step of its own, as in the daemon. It reports processor time of the whole process.
func BenchmarkLone(b *testing.B) {
	for _, n := range []int{16_384, 262_144, 1_281_167} {
		for _, mode := range []dsa.Mode{dsa.Stratified, dsa.Strict} {
			b.Run(fmt.Sprint(mode, "/", n), func(b *testing.B) {
				w := newWarm(b, n, mode)
				w.epoch(b) // loads all of them
				b.ResetTimer()
				began, samples := processTime(b), 0
				for b.Loop() {
					samples += w.epoch(b)
				}
				b.ReportMetric(float64((processTime(b)-began).Nanoseconds())/float64(samples), "cpu-ns/sample")
				if reads := w.c.Stats().SourceReads; reads != uint64(n) {
					b.Fatalf("%d reads of %d samples", reads, n)
				}
			})
		}
	}
}

func processTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// warm is a Core with one job, driven without a record of what it does.
type warm struct {
	c       *Core
	now     time.Time
	out     []Effect
	todo    []Effect
	spare   []Effect
	job     ident.JobID
	inc     ident.Incarnation
	next    uint32
	samples int
	ended   bool
	filled  Filled
}

func newWarm(b *testing.B, n int, mode dsa.Mode) *warm {
	c, err := New(Config{Seed: 1, Bytes: func(ident.ObjectID) int64 { return 2048 }, Tiers: TierConfig{
		Total: int64(n) * 4096, Sizes: [ident.NumForms]int64{ident.Decoded: int64(n) * 4096}}})
	if err != nil {
		b.Fatal(err)
	}
	w := &warm{c: c, now: time.Unix(1_700_000_000, 0)}
	all := make([]ident.ObjectID, n)
	for i := range all {
		all[i] = ident.ObjectID(i)
	}
	w.step(Register{Token: 1, Spec: jobs.Spec{Name: "lone", Subset: n, Batch: 64, World: 1, Slots: 8},
		Sample: dsa.JobSpec{Mode: mode, Subset: all}, Member: Members(all), Prefix: 1, Suffix: 2})
	w.settle(b)
	w.step(Attach{Token: 2, Job: w.job})
	w.settle(b)
	return w
}

func (w *warm) step(ev Event) {
	w.out = w.c.Step(w.now, ev, w.out[:0])
	w.todo = append(w.todo, w.out...)
}

// epoch runs one epoch, and returns its samples.
func (w *warm) epoch(b *testing.B) int {
	w.samples, w.ended = 0, false
	w.step(StartEpoch{Token: 3, Job: w.job, Inc: w.inc, Epoch: w.next})
	w.next++
	for !w.ended {
		w.settle(b)
		if d := w.c.Deadline(); !w.ended && !d.After(w.now) {
			w.step(Tick{})
		}
	}
	return w.samples
}

// settle does what is to be done until nothing is.
func (w *warm) settle(b *testing.B) {
	for len(w.todo) > 0 {
		do := w.todo
		w.todo = w.spare[:0]
		for _, e := range do {
			w.do(b, e)
		}
		w.spare = do
	}
}

func (w *warm) do(b *testing.B, e Effect) {
	switch x := e.(type) {
	case *Fill:
		w.filled = Filled{Delivery: x.Delivery, Row: x.Row, Augments: 1}
		w.step(&w.filled)
	case Prepare:
		w.step(Prepared{Flight: x.Flight, Kept: x.Keep, Bytes: 4096, Read: 2048})
	case Persist:
		w.step(Persisted{Seq: x.Seq})
	case Deliver:
		w.samples += len(x.Rows)
		w.now = w.now.Add(time.Millisecond)
		w.step(Released{Job: x.Job, Rank: x.Rank, Inc: x.Inc, Slot: x.Slot, Gen: x.Gen})
	case EndEpoch:
		w.ended = true
	case Reply:
		if x.Err != nil {
			b.Fatal(x.Err)
		}
		if x.Job != 0 {
			w.job = x.Job
		}
		if x.Inc != 0 {
			w.inc = x.Inc
		}
	case Complain:
		b.Fatal(x.Text)
	default:
	}
}
