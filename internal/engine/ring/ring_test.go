package ring

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/session"
	"larder/internal/shm"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// sink notes what a session would hear.
type sink struct {
	mu    sync.Mutex
	steps []uint32 // of batches; the end of an epoch is 1000 + its number
	rows  []uint32
	bad   []int
	segs  int
	gone  []error
	heard chan struct{}
}

func newSink() *sink { return &sink{heard: make(chan struct{}, 100)} }

func (s *sink) Batch(b session.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps, s.rows = append(s.steps, b.Step), append(s.rows, b.Rows)
	s.bad = append(s.bad, len(b.Report.GetQuarantined()))
	if b.NewSegment != nil {
		s.segs++
	}
	s.heard <- struct{}{}
}

func (s *sink) EpochEnd(e *larderv1.EpochEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, 1000+e.GetEpoch())
	s.heard <- struct{}{}
}

func (s *sink) Gone(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = append(s.gone, err)
	s.heard <- struct{}{}
}

func (s *sink) wait(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-s.heard:
		case <-time.After(5 * time.Minute):
			t.Fatal("nothing is heard")
		}
	}
}

func recipeOf(t *testing.T, fixed bool) *prep.Recipe {
	t.Helper()
	var ops []prep.OpSpec
	if fixed {
		ops = []prep.OpSpec{{Name: "Resize", Args: map[string]any{"size": []any{4.0, 4.0}}}}
	}
	r, err := prep.ParseRecipe(ops)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func config(t *testing.T, fixed bool, s *sink, b *Budget) Config {
	return Config{
		Key: Key{Job: 1, Inc: 1}, Name: "a", Layout: NewLayout(recipeOf(t, fixed), 4, 3, 100), Sink: s, Budget: b,
		Report: func(bad []jobs.Bad) *larderv1.BatchReport {
			return &larderv1.BatchReport{Quarantined: make([]*larderv1.QuarantinedSample, len(bad))}
		},
		Failed: func(Key, error) {},
	}
}

func fixedBudget(n int64) *Budget { return NewBudget(func() int64 { return n }) }

// Batches and ends come in the order in which they were pushed; holes are closed; the memory is freed with the last
// user.
func TestRingKeepsOrder(t *testing.T) {
	b, s := fixedBudget(1<<20), newSink()
	set := NewSet(func(Key) {})
	r, err := New(config(t, true, s, b))
	if err != nil || !set.Add(r) {
		t.Fatal(err)
	}
	if b.Used() != r.Bytes() || set.Len() != 1 {
		t.Errorf("%d bytes are used, of %d", b.Used(), r.Bytes())
	}
	for row := range 4 {
		r.Image(1, row)[0] = byte(10 + row)
		r.Put(1, row, int64(row), int64(100+row))
	}
	r.Push(coordinator.Deliver{Step: 0, Slot: 0, Rows: []int{0, 1, 2, 3}})
	r.Push(coordinator.Deliver{Step: 1, Slot: 1, Rows: []int{1, 3}, Bad: make([]jobs.Bad, 2)})
	r.PushEnd(&larderv1.EpochEnd{Epoch: 7})
	r.Push(coordinator.Deliver{Step: 2, Slot: 2, Rows: []int{0}})
	s.wait(t, 4)
	if !slices.Equal(s.steps, []uint32{0, 1, 1007, 2}) || !slices.Equal(s.rows, []uint32{4, 2, 1}) {
		t.Errorf("steps %v with %v rows", s.steps, s.rows)
	}
	if !slices.Equal(s.bad, []int{0, 2, 0}) {
		t.Errorf("%v bad samples are reported", s.bad)
	}
	index := func(row int64) uint64 { return binary.LittleEndian.Uint64(r.slot(1)[r.index+8*row:]) }
	if r.Image(1, 0)[0] != 11 || r.Image(1, 1)[0] != 13 || index(0) != 101 || index(1) != 103 {
		t.Error("the holes are not closed")
	}
	set.Stop(func(string) error { return errs.New(errs.Unavailable, "", "", "over") })
	set.Wait()
	if len(s.gone) != 1 || b.Used() == 0 {
		t.Errorf("gone: %v, %d bytes used while a user is left", s.gone, b.Used())
	}
	r.Release()
	if b.Used() != 0 || set.Add(r) {
		t.Errorf("%d bytes are still used", b.Used())
	}
}

// A ragged batch that does not fit gets a segment of its own, as far as the budget allows.
func TestRaggedBatchGrows(t *testing.T) {
	b, s := fixedBudget(200<<10), newSink()
	set := NewSet(func(Key) {})
	failed := make(chan error, 1)
	cfg := config(t, false, s, b)
	cfg.Failed = func(_ Key, err error) { failed <- err }
	r, err := New(cfg)
	if err != nil || !set.Add(r) {
		t.Fatal(err)
	}
	fill := func(d coordinator.DeliveryID, h, w int) error {
		for row := range 4 {
			x := &coordinator.Fill{Delivery: d, Row: row}
			pix, err := r.Room(x, h*w*3)
			if err != nil {
				return err
			}
			pix[0] = byte(int(d)*10 + row)
			r.Shape(x, h, w, 3)
			r.Put(0, row, 0, int64(row))
		}
		return nil
	}
	for d, side := range []int{4, 50, 50} {
		if err := fill(coordinator.DeliveryID(d+1), side, side); err != nil {
			t.Fatal(err)
		}
		r.Push(coordinator.Deliver{Delivery: coordinator.DeliveryID(d + 1), Step: d, Rows: []int{0, 1, 2, 3}})
		s.wait(t, 1)
	}
	if s.segs != 1 || !slices.Equal(s.rows, []uint32{4, 4, 4}) {
		t.Errorf("%d segments for batches of %v", s.segs, s.rows)
	}
	if err := fill(9, 200, 200); !errs.Is(err, errs.RingMemory) {
		t.Fatalf("beyond the budget: %v", err)
	}
	r.Fail(errors.New("planned"))
	r.Fail(errors.New("again"))
	if err := <-failed; err.Error() != "planned" || len(failed) > 0 || len(s.gone) != 1 {
		t.Errorf("%v, %v", err, s.gone)
	}
	set.Stop(func(string) error { return nil })
	set.Wait()
	r.Release()
	if b.Used() != 0 {
		t.Errorf("%d bytes are still used", b.Used())
	}
}

// The Set knows who holds a rank, and a client by its name.
func TestSetKnowsHolders(t *testing.T) {
	b := fixedBudget(1 << 20)
	set := NewSet(func(Key) {})
	cfg := config(t, true, newSink(), b)
	cfg.Client, cfg.Peer = "c", shm.Peer{PID: 77}
	r, err := New(cfg)
	if err != nil || !set.Add(r) {
		t.Fatal(err)
	}
	if inc := set.HeldBy(1, 0, "c"); inc != 1 {
		t.Errorf("incarnation %d", inc)
	}
	if set.HeldBy(1, 0, "d") != 0 || set.HeldBy(1, 0, "") != 0 || set.HeldBy(1, 1, "c") != 0 {
		t.Error("another client, or rank, is held")
	}
	if p, held := set.Holder(1, 0); !held || p.PID != 77 {
		t.Errorf("%v, %v", p, held)
	}
	if _, held := set.Holder(2, 0); held {
		t.Error("a rank without a ring is held")
	}
	if got := set.Hold(cfg.Key); got != r || set.Get(Key{Job: 9}) != nil {
		t.Error("another ring")
	} else {
		got.Release()
	}
	if set.Take(cfg.Key) != r || set.Take(cfg.Key) != nil {
		t.Error("it is taken twice")
	}
	r.Close(nil)
	set.Wait()
	r.Release()
	if b.Used() != 0 {
		t.Errorf("%d bytes are still used", b.Used())
	}
}
