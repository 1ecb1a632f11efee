package coresim

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"larder/bench/measure"
	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/jobs"
)

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCore runs eight jobs on all samples, a quarter of them in memory decoded. What it prints is the whole
// simulation, the measuring included: events are picks and what the coordinator handled; beside them, picks and what
// the policies of the tiers were asked and notified of.
func BenchmarkCore(b *testing.B) {
	for _, n := range []int{20_000, 160_000, 1_281_167} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			const epochs = 2
			if n > 1_000_000 && testing.Short() {
				b.Skip("a million samples take minutes")
			}
			began, events, samples, calls := cpuTime(b), uint64(0), uint64(0), uint64(0)
			for b.Loop() {
				ids, raw := make([]ident.ObjectID, n), make([]uint32, n)
				for i := range ids {
					ids[i], raw[i] = ident.ObjectID(i), uint32(i)
				}
				m := Model{
					Seed: 1, Workers: 16, Ahead: 16, Storage: &Storage{Bandwidth: 500e6, Readers: 16, Latency: 100 * time.Microsecond},
					Decode:  func(ident.ObjectID) time.Duration { return 100 * time.Microsecond },
					Suffix:  func(ident.ObjectID) time.Duration { return 20 * time.Microsecond },
					Bytes:   func(ident.ObjectID) int64 { return 100_000 },
					Decoded: func(ident.ObjectID) int64 { return 150_000 }, Augment: 150_528,
					Tiers: coordinator.TierConfig{Total: int64(n) * 150_000 / 4,
						Sizes: [ident.NumForms]int64{ident.Decoded: int64(n) * 150_000 / 4}},
					Collect: measure.New(measure.Samples{Count: n}),
				}
				var clients []Client
				for i := range 8 {
					clients = append(clients, Client{
						Spec:   jobs.Spec{Name: fmt.Sprint("j", i), Subset: n, Batch: 256, World: 1, Slots: 4, Epochs: epochs},
						Sample: dsa.JobSpec{Mode: dsa.Stratified, Subset: ids}, Prefix: 1, Suffix: 2, Epochs: epochs,
						Step: time.Duration(20+2*i) * time.Millisecond, Measure: measure.Demand{Name: fmt.Sprint("j", i), Subset: raw,
							Batch: 256},
					})
				}
				res, err := Run(m, clients, 1000*time.Hour)
				if err != nil || len(res.Failures) > 0 || res.CutOff {
					b.Fatal(err, res)
				}
				events, samples, calls = events+res.Events, samples+res.Stats.Samples, calls+res.Picks+res.Stats.PolicyCalls
				b.ReportMetric(float64(res.Stats.SourceReads)/float64(n), "reads/sample")
			}
			// of the whole process, its collector included: the wall clock is other work's too
			spent := (cpuTime(b) - began).Seconds()
			b.ReportMetric(float64(events)/spent, "events/cpu-s")
			b.ReportMetric(float64(samples)/spent, "samples/cpu-s")
			b.ReportMetric(float64(calls)/spent, "picks+policy/cpu-s")
		})
	}
}
