package crew

import (
	"bytes"
	"sync"
	"testing"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/testenv"
)

// What one step of the coordinator asks for travels in one frame, and what became of one stack in one event.
func TestWhatBelongsTogetherTravelsTogether(t *testing.T) {
	var mu sync.Mutex
	var sent [][]coordinator.Event
	r, w, h, mem := denseRig(t, 64, func(c *Config) {
		c.SendAll = func(all []coordinator.Event) bool {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, all)
			return true
		}
	})
	defer w.Close(true)
	const n = 48
	var views []record.View
	for i := range n {
		r.Crew.Add(coordinator.Prepare{Flight: coordinator.FlightID(1 + i), Job: 1, Turn: uint64(i),
			Key: ident.Key{Object: ident.ObjectID(1 + i), Form: ident.Decoded, Recipe: 2}}, r.job, nil)
		views = append(views, denseOf(t, i, 0))
	}
	h.mu.Lock()
	if h.gives != 0 {
		t.Errorf("%d frames before Flush", h.gives)
	}
	h.mu.Unlock()
	r.Flush()
	first := h.take(t).Task
	for range n - 1 {
		h.take(t)
	}
	h.mu.Lock()
	if h.gives != 1 {
		t.Errorf("%d frames for the tasks of one step", h.gives)
	}
	h.mu.Unlock()
	if err := w.stack(t, mem, first, views); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(sent) != 1 || len(sent[0]) != n {
		t.Fatalf("the answers of one stack came in %d parts", len(sent))
	}
	for i, ev := range sent[0] {
		if p, ok := ev.(coordinator.Prepared); !ok || p.Flight != coordinator.FlightID(1+i) || p.Err != "" {
			t.Errorf("answer %d is %+v", i, ev)
		}
	}
}

// Rows of several rings that one stack answers hold each ring once, and none when it is taken over.
func TestAStackGoesToTheRowsOfItsRings(t *testing.T) {
	var rings *ring.Set
	r, w, h, mem := denseRig(t, 8, func(c *Config) { rings = c.Rings })
	defer w.Close(true)
	budget := ring.NewBudget(func() int64 { return 1 << 30 })
	made := *r.job.Made
	made.Cut = 0
	r.job.Made = &made
	keys := [2]ring.Key{{Job: 1, Rank: 0, Inc: 1}, {Job: 1, Rank: 1, Inc: 2}}
	var xs [2]*ring.Ring
	for i, k := range keys {
		layout := ring.NewRecordLayout(&wide, 4, 1, 1<<10)
		x, err := ring.New(ring.Config{Key: k, Layout: layout, Sink: sink{}, Budget: budget})
		if err != nil {
			t.Fatal(err)
		}
		rings.Add(x)
		xs[i] = x
	}
	made.Item, made.Out = wide, wide
	var views []record.View
	for i := range 8 {
		k := keys[i%2]
		r.Crew.Add(coordinator.Prepare{Flight: coordinator.FlightID(1 + i), Job: 1, Turn: uint64(i),
			Key:  ident.Key{Object: ident.ObjectID(1 + i), Form: ident.Decoded, Recipe: 2},
			Into: &coordinator.Fill{Delivery: 1, Row: i / 2, Job: 1, Rank: k.Rank, Inc: k.Inc}}, r.job, nil)
		data := []byte{byte(40 + i), 0, 0, 0, 0, 0, 0, 0}
		blob, err := record.Encode(&wide, []record.Content{{Dims: []int64{1}, Data: data}})
		if err != nil {
			t.Fatal(err)
		}
		v, err := record.Open(blob)
		if err != nil {
			t.Fatal(err)
		}
		views = append(views, v)
	}
	r.Flush()
	first := h.take(t).Task
	for range 7 {
		h.take(t)
	}
	if err := w.stack(t, mem, first, views); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		if p := r.waitFor(coordinator.FlightID(1 + i)); p.Err != "" || p.Kept {
			t.Errorf("%+v", p)
		}
		slot := xs[i%2].Segment().Bytes()
		if !bytes.Contains(slot, []byte{byte(40 + i), 0, 0, 0, 0, 0, 0, 0}) {
			t.Errorf("sample %d is in no row", i)
		}
	}
	for i, k := range keys {
		rings.Take(k)
		xs[i].Close(nil)
		xs[i].Release()
	}
	testenv.Eventually(t, "rings have no bytes", func() bool { return budget.Used() == 0 })
}

var wide = record.Schema{Fields: []record.Field{
	{Name: "x", Kind: record.Array, DType: record.Int64, Shape: []int64{1}},
}}
