package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/source"
	"larder/internal/testenv"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers"
)

// BenchmarkRestart is what a killed daemon needs until it can give its first batch: it opens its folder, and
// restores 8 jobs that are in the middle of their second epoch. The dataset is known (its index is for another
// benchmark). LARDER_RESTART_SAMPLES sets the size, 1280000 is the one that the bar is for; the files are empty, as
// nothing is read.
func BenchmarkRestart(b *testing.B) {
	const batch, jobs = 256, 8
	n := testenv.Count(b, "LARDER_RESTART_SAMPLES", 20_000)
	dir := b.TempDir()
	for i := range n {
		sub := filepath.Join(dir, fmt.Sprintf("c%03d", i/1300))
		if i%1300 == 0 {
			if err := os.Mkdir(sub, 0o750); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("%07d.jpg", i)), nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	catalog, err := source.OpenCatalog(source.CatalogConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer catalog.Close()
	store, err := tiers.Open(tiers.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	fs, err := journal.OpenDir(b.TempDir(), true)
	if err != nil {
		b.Fatal(err)
	}
	engine := func() (*engine.Engine, *journal.Disk) {
		d, err := journal.OpenDisk(fs, journal.Options{})
		if err != nil {
			b.Fatal(err)
		}
		e, err := engine.New(engine.Config{
			Version: "test", Seed: 1, Data: engine.DataConfig{Catalog: catalog, Store: store},
			Journal: engine.JournalConfig{Log: d, Found: d.Found()}, Work: engine.WorkConfig{Workers: 2},
			Memory: engine.MemoryConfig{Limit: 8 << 30, Settings: engine.Settings{
				Tiers: coordinator.TierConfig{Total: 1 << 30, Sizes: [ident.NumForms]int64{0, -1, -1, -1}}}},
		})
		if err != nil {
			b.Fatal(err)
		}
		return e, d
	}
	e, d := engine()
	done := make(chan error, 1)
	ctx := b.Context()
	go func() { done <- e.Run(ctx) }()
	for j := range jobs {
		s := spec(fmt.Sprint("job", j), dir, batch, recipe(crops...))
		if _, err := e.RegisterJob(b.Context(), &larderv1.RegisterJobRequest{Spec: s}); err != nil {
			b.Fatal(err)
		}
	}
	order := make([]ident.ObjectID, n)
	for i := range order {
		order[i] = ident.ObjectID(i)
	}
	for epoch, upto := range []int{n / batch, n / batch / 2} {
		for j := range jobs {
			xrand.New(uint64(j), uint64(epoch)).Shuffle(n, func(i, k int) { order[i], order[k] = order[k], order[i] })
			id := ident.JobID(j + 1)
			if epoch == 0 {
				d.Append(journal.Attached{Job: id, Incarnation: 1}, nil)
			}
			d.Append(journal.EpochStarted{Job: id, Epoch: uint32(epoch), Instance: uint32(epoch)}, nil)
			for step := range upto {
				d.Append(journal.Assigned{Job: id, Epoch: uint32(epoch), Step: uint32(step), Incarnation: 1,
					Samples: order[step*batch : (step+1)*batch]}, nil)
			}
		}
	}
	if err := d.Close(); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	var spent time.Duration
	for b.Loop() {
		began := processorTime(b)
		e, d := engine()
		spent += processorTime(b) - began
		b.StopTimer()
		l, err := e.Restored(b.Context())
		if err != nil || l != jobs {
			b.Fatalf("%d jobs are back: %v", l, err)
		}
		if err := d.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(spent.Seconds()*1e3/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(n), "samples")
}
