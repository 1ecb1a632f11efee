package work

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/source"
	"larder/internal/xrand"
	"larder/tiers"
)

// BenchmarkRows fills slots of 64 windows of 1,025 uint16 ids from 32 MiB of records in the decoded tier, through the
// pool, from the effects of the coordinator to what it is told. The metric is processor time of the whole for a row.
func BenchmarkRows(b *testing.B) {
	const rows, ids, entries = 64, 1025, 16_000
	s := record.Schema{Fields: []record.Field{{Name: "tokens", Kind: record.Array, DType: record.Uint16,
		Shape: []int64{ids}}}}
	store, err := tiers.Open(tiers.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	if err := store.SetBudget(ident.Decoded, 256<<20); err != nil {
		b.Fatal(err)
	}
	catalog, err := source.OpenCatalog(source.CatalogConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer catalog.Close()
	data, _, err := catalog.AddMade(b.Context(), source.Made{Name: "d", Length: entries})
	if err != nil {
		b.Fatal(err)
	}
	recipe, err := prep.ParseRecipe(nil)
	if err != nil {
		b.Fatal(err)
	}
	j := &Job{ID: 1, Data: data, Recipe: recipe, Made: &Made{Stored: true, Steps: 1, Cut: 1, Item: s, Out: s}}
	r, err := ring.New(ring.Config{Key: ring.Key{Job: 1, Inc: 1}, Layout: ring.NewRecordLayout(&s, rows, 4, 0),
		Sink: nobody{}, Budget: ring.NewBudget(func() int64 { return 1 << 30 })})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Release()
	sent := make(chan int, rows)
	p := New(Config{Workers: 2, Store: store, Tiers: NewSerial(), Meters: NewMeters(2, 2),
		Rings:   ring.NewSet(func(ring.Key) {}),
		SendAll: func(all []coordinator.Event) bool { sent <- len(all); return true },
		Worked:  func(Step, ident.ObjectID, time.Duration) {}})
	blob, err := record.Encode(&s, []record.Content{{Dims: []int64{ids}, Data: make([]byte, 2*ids)}})
	if err != nil {
		b.Fatal(err)
	}
	for i := range entries {
		if !(&worker{p: p}).keep(ident.Key{Object: ident.ObjectID(i), Form: ident.Decoded}, blob, tiers.Meta{}) {
			b.Fatal("the tier has no room")
		}
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	p.Start(ctx)
	defer p.Stop()
	random, delivery := xrand.New(1), coordinator.DeliveryID(0)
	begun := processorTime(b)
	for b.Loop() {
		delivery++
		fills := make([]coordinator.Fill, rows)
		for i := range fills {
			o := ident.ObjectID(random.IntN(entries))
			fills[i] = coordinator.Fill{Delivery: delivery, Row: i, Job: 1, Inc: 1, Slot: int(delivery) & 3, Object: o,
				From: coordinator.Source{Key: ident.Key{Object: o, Form: ident.Decoded}}}
			if !p.Join(&fills[i]) {
				r.Hold()
				p.Add(&fills[i], uint64(delivery)*rows+uint64(i), j, r)
			}
		}
		p.Flush()
		for n := 0; n < rows; {
			n += <-sent
		}
	}
	b.ReportMetric(float64(processorTime(b)-begun)/float64(b.N)/rows, "cpu-ns/row")
}

// processorTime of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
