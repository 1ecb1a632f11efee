package work

import (
	"bytes"
	"context"
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
	"larder/internal/source"
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
