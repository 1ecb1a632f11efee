package work

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"image"
	"image/jpeg"
	"log/slog"
	"strings"
	"testing"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/session"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers"
)

// alone is a Pool without an Engine: objects are images of their number in pixels, and events come out of the channel.
func alone(t *testing.T, change ...func(*Config)) (*Pool, *tiers.Store, chan coordinator.Event) {
	t.Helper()
	store, err := tiers.Open(tiers.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if err := store.SetBudget(ident.Decoded, 16<<20); err != nil {
		t.Fatal(err)
	}
	events := make(chan coordinator.Event, 100)
	serial := NewSerial()
	cfg := Config{
		Workers: 2, ReadAhead: 1 << 20, Store: store, Tiers: serial, Meters: NewMeters(2, 2),
		Rings: ring.NewSet(func(ring.Key) {}),
		Bytes: func(o ident.ObjectID) int64 { return int64(len(stored(o))) },
		Read: func(_ context.Context, o ident.ObjectID, buf []byte) ([]byte, error) {
			if o == 0 {
				return nil, errors.New("planned: no such file")
			}
			return append(buf, stored(o)...), nil
		},
		Verdict: func(_ context.Context, _ *prep.Recipe, o ident.ObjectID, _ []byte) (string, bool) {
			if o == 13 {
				return "planned: refused", false
			}
			return "", false
		},
		Send:   func(ev coordinator.Event) bool { events <- ev; return true },
		Worked: func(Step, ident.ObjectID, time.Duration) {},
		Note:   func(_ slog.Level, msg string, args ...any) { t.Log(append([]any{msg}, args...)...) },
	}
	for _, f := range change {
		f(&cfg)
	}
	p := New(cfg)
	go serial.Run()
	t.Cleanup(serial.Stop)
	return p, store, events
}

func stored(o ident.ObjectID) []byte {
	var b bytes.Buffer
	_ = jpeg.Encode(&b, image.NewRGBA(image.Rect(0, 0, int(o), 8)), nil) // a buffer never fails
	return b.Bytes()
}

func plain(t *testing.T) *Job {
	t.Helper()
	r, err := prep.ParseRecipe(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Job{ID: 1, Data: new(source.Dataset), Recipe: r}
}

// decodedBytes is what stored(o) takes decoded: three bytes a pixel, or one and a half in builds that keep its planes.
func decodedBytes(t *testing.T, j *Job, o ident.ObjectID) int64 {
	t.Helper()
	w := prep.NewWorker(prep.Limits{})
	defer w.Close()
	width, height, n, err := w.DecodedShape(j.Recipe, stored(o))
	if err != nil || width != int(o) || height != 8 || n != 3*width*height && 2*n != 3*width*height {
		t.Fatalf("%d x %d in %d bytes, error %v", width, height, n, err)
	}
	return int64(n)
}

// Every preparation is answered: kept in its tier, as a working copy, refused, or with the reason why it could not be
// read.
func TestPoolAnswersEveryPreparation(t *testing.T) {
	p, store, events := alone(t)
	j := plain(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	key := func(o ident.ObjectID) ident.Key {
		return ident.Key{Object: o, Form: ident.Decoded, Recipe: j.Recipe.Prefix()}
	}
	for i, x := range []coordinator.Prepare{
		{Key: key(0)}, {Key: key(13)}, {Key: key(20), Keep: true}, {Key: key(30)},
	} {
		x.Flight, x.From, x.Job = coordinator.FlightID(i+1), ident.Stored, 1
		p.Add(x, uint64(i), j, nil)
	}
	p.Start(ctx)
	got := map[coordinator.FlightID]coordinator.Prepared{}
	for range 4 {
		ev := (<-events).(coordinator.Prepared)
		got[ev.Flight] = ev
	}
	if !strings.Contains(got[1].Err, "no such file") || got[2].Err != "planned: refused" {
		t.Errorf("%q, %q", got[1].Err, got[2].Err)
	}
	if !got[3].Kept || got[3].Bytes != decodedBytes(t, j, 20) || got[4].Kept || got[4].Bytes != decodedBytes(t, j, 30) ||
		got[4].Read == 0 {
		t.Errorf("%+v, %+v", got[3], got[4])
	}
	if v, err := store.Open(key(20)); err != nil || v.Meta.Width != 20 {
		t.Errorf("the tier has %v, %v", v.Meta, err)
	} else {
		v.Close()
	}
	if p.mu.copied == 0 {
		t.Error("there is no working copy")
	}
	p.Discard(4)
	if p.mu.copied != 0 {
		t.Errorf("%d bytes of copies are left", p.mu.copied)
	}
	p.Stop()
}

// A decoder that panics when its sample already has a place in the tier leaves that place empty.
func TestAPanicLeavesNothingInATier(t *testing.T) {
	p, store, _ := alone(t)
	key := ident.Key{Form: ident.Decoded, Recipe: plain(t).Recipe.Prefix()}
	for range 3 {
		w := &worker{p: p, prep: prep.NewWorker(prep.Limits{})}
		ev := w.guard(1, func() coordinator.Prepared {
			_, _, err := w.make(task{}, key, true, func(alloc allocator) (prep.Image, error) {
				if _, err := alloc(1 << 20); err != nil {
					return prep.Image{}, err
				}
				panic("planned")
			})
			return coordinator.Prepared{Err: err.Error()}
		})
		w.prep.Close()
		if !strings.Contains(ev.Err, "panicked") || ev.Flight != 1 {
			t.Errorf("%+v", ev)
		}
	}
	if used := store.Used(ident.Decoded); used != 0 {
		t.Errorf("%d bytes are still taken", used)
	}
}

// Rows of a batch of records wait for Flush, and are reported many at once.
func TestRowsOfRecordsTravelTogether(t *testing.T) {
	sent := make(chan []coordinator.Event, 10)
	p, _, _ := alone(t, func(c *Config) {
		c.Workers = 1
		c.SendAll = func(all []coordinator.Event) bool { sent <- all; return true }
	})
	j := plain(t)
	j.Made = &Made{Steps: 1}
	rows := func(from, to int) {
		for i := from; i < to; i++ {
			p.Add(&coordinator.Fill{Delivery: 1, Row: i, Job: 1}, uint64(i), j, nil)
		}
		p.Flush()
		if n := p.quick.Load(); n != 0 {
			t.Errorf("%d rows still wait for Flush", n)
		}
	}
	rows(0, manyUnreported+8)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.Start(ctx)
	defer p.Stop()
	for i, want := range []int{manyUnreported, 8} {
		all := <-sent
		if len(all) != want {
			t.Fatalf("report %d has %d rows, not %d", i, len(all), want)
		}
		for k, ev := range all {
			if f, ok := ev.(*coordinator.Filled); !ok || f.Row != i*manyUnreported+k {
				t.Errorf("row %d of report %d is %+v", k, i, ev)
			}
		}
	}
	rows(50, 51) // while the worker waits
	if all := <-sent; len(all) != 1 || all[0].(*coordinator.Filled).Row != 50 {
		t.Errorf("%+v", all)
	}
}

// rowsRig is a Pool of one worker whose rows are records of one uint64, a ring for them, and records of the objects 1
// to n in the decoded tier: object i holds i.
func rowsRig(t *testing.T, n int) (p *Pool, j *Job, r *ring.Ring, used func() int64, sent chan []coordinator.Event) {
	t.Helper()
	sent = make(chan []coordinator.Event, 10)
	p, _, _ = alone(t, func(c *Config) {
		c.Workers = 1
		c.SendAll = func(all []coordinator.Event) bool { sent <- all; return true }
	})
	s := &record.Schema{Fields: []record.Field{{Name: "x", Kind: record.Scalar, DType: record.Uint64}}}
	catalog, err := source.OpenCatalog(source.CatalogConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = catalog.Close() })
	j = plain(t)
	if j.Data, _, err = catalog.AddMade(t.Context(), source.Made{Name: "d", Length: 10}); err != nil {
		t.Fatal(err)
	}
	j.Made = &Made{Stored: true, Steps: 1, Cut: 1, Item: *s, Out: *s}
	budget := ring.NewBudget(func() int64 { return 1 << 20 })
	r, err = ring.New(ring.Config{Key: ring.Key{Job: 1, Inc: 1}, Layout: ring.NewRecordLayout(s, 8, 2, 0),
		Sink: nobody{}, Budget: budget})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		b, err := record.Encode(s, []record.Content{{Data: binary.LittleEndian.AppendUint64(nil, uint64(i+1))}})
		if err != nil {
			t.Fatal(err)
		}
		if !(&worker{p: p}).keep(rowKey(i+1), b, tiers.Meta{}) {
			t.Fatalf("object %d is not kept", i+1)
		}
	}
	return p, j, r, budget.Used, sent
}

func rowKey(o int) ident.Key {
	return ident.Key{Object: ident.ObjectID(o), Form: ident.Decoded, Recipe: 7}
}

// nobody is a session that is not looked at.
type nobody struct{}

func (nobody) Batch(session.Batch)         {}
func (nobody) EpochEnd(*larderv1.EpochEnd) {}
func (nobody) Gone(error)                  {}

// Rows of a batch that are copies of records are one task: each is answered for itself, by its own bytes, also beside
// one that is gone, one whose record does not fit the batch, and one that another flight made. The ring is held once.
func TestRowsOfABatchAreCopiedTogether(t *testing.T) {
	p, j, r, memory, sent := rowsRig(t, 4)
	if !(&worker{p: p}).keep(rowKey(5), []byte("no record"), tiers.Meta{}) {
		t.Fatal("object 5 is not kept")
	}
	v, err := p.cfg.Store.Open(rowKey(4))
	if err != nil {
		t.Fatal(err)
	}
	p.cfg.Made = func(id coordinator.FlightID) ([]byte, bool) { return v.Bytes, id == 9 }
	fills := []*coordinator.Fill{}
	for i, o := range []int{3, 1, 6, 5, 2} { // 6 is in no tier
		fills = append(fills, &coordinator.Fill{Delivery: 1, Row: i, Job: 1, Inc: 1, Slot: 1, Object: ident.ObjectID(o),
			From: coordinator.Source{Key: rowKey(o)}})
	}
	for i, flight := range []coordinator.FlightID{9, 10} { // 10 is not known any more
		fills = append(fills, &coordinator.Fill{Delivery: 1, Row: 5 + i, Job: 1, Inc: 1, Slot: 1, Object: 4,
			From: coordinator.Source{Key: rowKey(4), Flight: flight}})
	}
	r.Hold()
	p.Add(fills[0], 1, j, r)
	for _, x := range fills[1:] {
		if !p.Join(x) {
			t.Fatalf("row %d is not joined", x.Row)
		}
	}
	for _, other := range []coordinator.Fill{{Delivery: 2, Inc: 1}, {Delivery: 1, Inc: 2},
		{Delivery: 1, Inc: 1, From: coordinator.Source{Key: ident.Key{Form: ident.Augmented}}}} {
		if other.From.Key.Form == 0 {
			other.From.Key.Form = ident.Decoded
		}
		if p.Join(&other) {
			t.Errorf("%+v is joined to rows of another batch, client or form", other)
		}
	}
	p.Flush()
	if p.Join(fills[0]) {
		t.Error("a row is joined after Flush")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.Start(ctx)
	all := <-sent
	p.Stop()
	if len(all) != len(fills) {
		t.Fatalf("%d answers at once, want %d", len(all), len(fills))
	}
	for i, want := range []uint64{3, 1, 0, 0, 2, 4, 0} {
		ev := all[i].(*coordinator.Filled)
		lost, bad := i == 2 || i == 6, i == 3
		if ev.Row != i || ev.Delivery != 1 || ev.Lost != lost || ev.Err != "" != bad {
			t.Errorf("row %d: %+v", i, ev)
		}
		slot := r.Segment().Bytes()[r.SlotBytes:]
		if got := binary.LittleEndian.Uint64(slot[8*i:]); got != want {
			t.Errorf("row %d holds %d, want %d", i, got, want)
		}
	}
	v.Close()
	p.cfg.Store.Free(rowKey(1))
	if used := p.cfg.Store.Used(ident.Decoded); used != 4*p.cfg.Store.Granule(ident.Decoded) {
		t.Errorf("%d bytes are used by four entries: a view is open", used)
	}
	if seen := p.cfg.Meters.mu.recipes[j.RecipeKey()].finish; seen.n != 4 || seen.seen != 1 {
		t.Errorf("%+v is measured of four rows", seen)
	}
	r.Release()
	if memory() != 0 {
		t.Error("the ring is still held")
	}
}

// Rows that wait for more when the Pool stops give their ring back; a row alone in its bytes is joined by none.
func TestRowsThatAreNotWritten(t *testing.T) {
	p, j, r, memory, _ := rowsRig(t, 1)
	r.Hold()
	p.Add(&coordinator.Fill{Delivery: 1, Job: 1, Inc: 1, From: coordinator.Source{Key: rowKey(1)}}, 1, j, r)
	p.Stop()
	r.Release()
	if memory() != 0 {
		t.Error("the ring is still held")
	}
	for _, c := range []struct{ rows, bytes, want int }{
		{64, 2 << 10, 64}, {1000, 100, mostRows}, {64, 8 << 10, 32}, {8, 1 << 20, 1}, {0, 0, 1},
	} {
		l := ring.Layout{Rows: c.rows, SlotBytes: int64(c.rows * c.bytes)}
		if got := rowsTogether(&ring.Ring{Layout: l}); got != c.want {
			t.Errorf("%d rows of %d bytes: %d together, want %d", c.rows, c.bytes, got, c.want)
		}
	}
	text := &record.Schema{Fields: []record.Field{{Name: "t", Kind: record.Text, Shape: []int64{record.Ragged}}}}
	unlike := &ring.Ring{Layout: ring.NewRecordLayout(text, 64, 2, 0)}
	if got := rowsTogether(unlike); got != raggedRows || !unlike.Ragged() {
		t.Errorf("%d rows of unlike sizes together, want %d", got, raggedRows)
	}
}

// Whoever reads for workers of clients says for how many jobs: the disk tier keeps by that.
func TestReadsForOthersSayForWhom(t *testing.T) {
	asked := make(chan int, 1)
	p, _, _ := alone(t, func(c *Config) {
		c.Read = func(ctx context.Context, _ ident.ObjectID, _ []byte) ([]byte, error) {
			asked <- source.Readers(ctx)
			return nil, errors.New("planned")
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.Start(ctx)
	defer p.Stop()
	done := make(chan coordinator.Prepared, 1)
	for _, n := range []int{3, 0} {
		p.Read(plain(t), Item{Object: 1, Readers: n}, nil, prep.RandKey{},
			func(_ []byte, ev coordinator.Prepared) { done <- ev })
		if got, ev := <-asked, <-done; got != n || ev.Err != "planned" {
			t.Errorf("read for %d jobs, want %d; %+v", got, n, ev)
		}
	}
}
