package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"larder/internal/ident"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// orderOf is Order that must not fail.
func orderOf(t interface{ Fatal(args ...any) }, l Log, job ident.JobID, epoch uint32) [][]ident.ObjectID {
	o, err := l.Order(job, epoch)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func ids(n ...int) []ident.ObjectID {
	var out []ident.ObjectID
	for _, x := range n {
		out = append(out, ident.ObjectID(x))
	}
	return out
}

// Callbacks come in the order of the numbers, once each, from one goroutine, also under concurrent appends.
func TestCallbackOrder(t *testing.T) {
	m := OpenMemory(Limits{})
	var mu sync.Mutex
	var got []uint64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				var seq uint64
				mu.Lock() // so that seq is set before the callback reads it
				seq = m.Append(row{Kind: kindAssigned, Objects: ids(1)}, func(err error) {
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Error(err)
					}
					got = append(got, seq)
				})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := m.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) != 1600 || !slices.IsSorted(got) || got[0] != 1 || got[1599] != 1600 {
		t.Errorf("%d callbacks, sorted %v", len(got), slices.IsSorted(got))
	}
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
}

func TestAppendNeverWaitsAndCloseDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := OpenMemory(Limits{})
		hold, n := make(chan struct{}), 0
		m.Append(row{Kind: kindRegistered}, func(error) { <-hold; n++ })
		for range 10_000 { // while the first callback hangs
			m.Append(row{Kind: kindAssigned}, func(error) { n++ })
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := m.Sync(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Sync under a hanging callback: %v", err)
		}
		closed := make(chan struct{})
		go func() { m.Close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close did not wait")
		default:
		}
		if seq := m.Append(row{Kind: kindAssigned}, func(error) { t.Error("called after Close") }); seq != 0 {
			t.Errorf("Append after Close: %d", seq)
		}
		close(hold)
		<-closed
		if n != 10_001 {
			t.Errorf("%d callbacks before Close returned", n)
		}
		if err := m.Sync(t.Context()); err != nil {
			t.Errorf("Sync of a closed log, all durable: %v", err)
		}
	})
}

func TestCallbackMayAppend(t *testing.T) {
	m := OpenMemory(Limits{})
	defer m.Close()
	done := make(chan uint64)
	m.Append(row{Kind: kindRegistered}, func(error) {
		m.Append(row{Kind: kindAttached}, func(error) { done <- 2 })
	})
	if <-done != 2 {
		t.Error("no second callback")
	}
	if r := kept(m); len(r) != 2 || r[0].Seq != 1 || r[1].Kind != kindAttached {
		t.Errorf("records %v", r)
	}
}

func TestOrder(t *testing.T) {
	m := OpenMemory(Limits{})
	defer m.Close()
	buf := ids(9, 300, 70_000, 4_000_000_000)
	m.Append(row{Kind: kindEpochStarted, Job: 1, Epoch: 2}, nil)
	m.Append(row{Kind: kindAssigned, Job: 1, Epoch: 2, Rank: 0, Step: 0, Objects: buf}, nil)
	buf[0] = 1 // the log has its own copy
	m.Append(row{Kind: kindAssigned, Job: 1, Epoch: 2, Rank: 1, Step: 0, Objects: ids(5, 6)}, nil)
	m.Append(row{Kind: kindAssigned, Job: 7, Epoch: 2, Objects: ids(0)}, nil)
	m.Append(row{Kind: kindAssigned, Job: 1, Epoch: 2, Rank: 1, Step: 1, Objects: ids(8)}, nil)
	m.Append(row{Kind: kindReturned, Job: 1, Epoch: 2, Rank: 0, Step: 0, Objects: ids(300)}, nil)
	m.Append(row{Kind: kindReturned, Job: 1, Epoch: 2, Rank: 1, Step: 1}, nil)
	m.Append(row{Kind: kindReturned, Job: 3, Epoch: 0}, nil) // nothing is known of it
	want := [][]ident.ObjectID{ids(9, 70_000, 4_000_000_000), ids(5, 6)}
	if got := orderOf(t, m, 1, 2); !reflect.DeepEqual(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	m.Append(row{Kind: kindEpochStarted, Job: 1, Epoch: 2}, nil)
	if got := orderOf(t, m, 1, 2); !reflect.DeepEqual(got, want) { // until something is given of it again
		t.Errorf("after the epoch was started again: %v", got)
	}
	m.Append(row{Kind: kindAssigned, Job: 1, Epoch: 2, Objects: ids(4)}, nil)
	if got := orderOf(t, m, 1, 2); len(got) != 1 {
		t.Errorf("given again: %v", got)
	}
	if got := orderOf(t, m, 7, 2); len(got) != 1 {
		t.Errorf("another job's order: %v", got)
	}
}

// A step that no client received keeps its batches, also empty ones, and both logs and a snapshot know how many were
// decided.
func TestDealtSteps(t *testing.T) {
	m := OpenMemory(Limits{})
	defer m.Close()
	all := []row{
		{Kind: kindEpochStarted, Job: 1, Epoch: 2},
		{Kind: kindAssigned, Job: 1, Epoch: 2, Rank: Earlier, Step: 1, Objects: ids(7)},
		{Kind: kindAssigned, Job: 1, Epoch: 2, Rank: 0, Step: 0, Objects: ids(1, 2)},
		{Kind: kindAssigned, Job: 1, Epoch: 2, Rank: 0, Step: 1, Objects: ids(3, 4)},
		{Kind: kindAssigned, Job: 1, Epoch: 2, Rank: 1, Step: 1, Objects: ids(5)},
		{Kind: kindDealt, Job: 1, Epoch: 2, Step: 0, Text: "0"},
		{Kind: kindDealt, Job: 1, Epoch: 2, Step: 1, Objects: ids(3, 5, 7), Text: "3"},
	}
	for _, r := range all {
		m.Append(r, nil)
	}
	want := [][]ident.ObjectID{ids(7), ids(1, 2), ids(4), {}}
	if got := orderOf(t, m, 1, 2); len(got) != 4 || !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("order %v, want %v", got, want)
	}
	fs := NewMemFS()
	s := fold(all)
	h := header{kind: snapshotFile, id: 9, first: s.Seq, term: 3}
	if err := putFile(fs, snapshotName(s.Seq), encodeSnapshot(h, s)); err != nil {
		t.Fatal(err)
	}
	again, _, err := (&image{fs: fs}).readSnapshot(snapshotName(s.Seq))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*State{s, again} {
		o := s.Job(1).Epochs[0]
		var got [][]ident.ObjectID
		for i := range o.Batches {
			got = append(got, o.Batches[i].Objects())
		}
		if o.Dealt != 2 || o.GivenUp != 3 || !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%d steps, %d samples, %v", o.Dealt, o.GivenUp, got)
		}
	}
}

func TestRetention(t *testing.T) {
	m := OpenMemory(Limits{OrderBytes: 10 * (batchOverhead + 10), Records: 100})
	defer m.Close()
	for e := range 50 {
		m.Append(row{Kind: kindAssigned, Job: 1, Epoch: uint32(e), Objects: ids(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)}, nil)
	}
	for e := range 50 {
		if got := len(orderOf(t, m, 1, uint32(e))); (got == 1) != (e >= 40) {
			t.Errorf("epoch %d has %d batches", e, got)
		}
	}
	// One epoch larger than the limit is kept whole, alone.
	for range 30 {
		m.Append(row{Kind: kindAssigned, Job: 2, Objects: ids(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)}, nil)
	}
	if n := len(orderOf(t, m, 2, 0)); n != 30 || len(orderOf(t, m, 1, 49)) != 0 {
		t.Errorf("the running epoch has %d batches", n)
	}
	for i := range 1000 {
		m.Append(row{Kind: kindQuarantined, Text: fmt.Sprint(i)}, nil)
	}
	r := kept(m)
	if len(r) < 100 || len(r) > 125 || r[len(r)-1].Text != "999" {
		t.Errorf("%d records, last %q", len(r), r[len(r)-1].Text)
	}
}

// Documents of jobs are bounded by their bytes: a sweep of short trials writes many.
func TestRecordsAreBoundedByTheirBytes(t *testing.T) {
	m := OpenMemory(Limits{RecordBytes: 100 << 10})
	defer m.Close()
	document := strings.Repeat("x", 6<<10)
	for i := range 10_000 {
		m.Append(Registered{Job: ident.JobID(i + 1), Document: document}, nil)
		m.Append(Ended{Job: ident.JobID(i + 1), Reason: "its client left"}, nil)
		if m.mu.records.bytes > 125<<10 {
			t.Fatalf("%d bytes after %d trials", m.mu.records.bytes, i+1)
		}
	}
	weight := 0
	r := kept(m)
	for i := range r {
		weight += r[i].weight()
	}
	if weight != m.mu.records.bytes || weight < 50<<10 || r[len(r)-1].Job != 10_000 {
		t.Errorf("%d records of %d bytes, %d are counted", len(r), weight, m.mu.records.bytes)
	}
	m.Append(Registered{Job: 20_000, Document: strings.Repeat("x", 1<<20)}, nil)
	if r = kept(m); len(r) != 1 || r[0].Job != 20_000 {
		t.Errorf("%d records with one larger than the limit", len(r))
	}
}

// twinSlot is where a batch was assigned, twinBatch what is left of it.
type (
	twinSlot  struct{ rank, step uint32 }
	twinBatch struct {
		twinSlot
		ids []ident.ObjectID
	}
)

// recordedTwin compares epochs that were started again since with what was recorded of them, and returns their bytes.
func recordedTwin(t *rapid.T, m *Memory, old map[epochKey][]twinBatch) (bytes int) {
	for k, want := range old {
		got, err := m.Recorded(k.job, k.epoch, int64(k.instance))
		if err != nil || got == nil || len(got.Batches) != len(want) {
			t.Fatalf("instance %d of job %d epoch %d: %v, %v", k.instance, k.job, k.epoch, got, err)
		}
		for i := range want {
			if !slices.Equal(got.Batches[i].Objects(), want[i].ids) {
				t.Fatalf("instance %d of job %d epoch %d, batch %d: %v, want %v", k.instance, k.job, k.epoch, i,
					got.Batches[i].Objects(), want[i].ids)
			}
			bytes += len(encode(want[i].ids)) + batchOverhead
		}
	}
	return bytes
}

// The compressed order agrees with a plain list, and so does the count of its bytes.
func TestOrderTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := OpenMemory(Limits{})
		defer m.Close()
		twin := map[epochKey][]twinBatch{}
		old := map[epochKey][]twinBatch{} // started again since
		at := map[epochKey]uint32{}
		for n := range rapid.IntRange(1, 60).Draw(t, "ops") {
			k := epochKey{job: ident.JobID(rapid.IntRange(0, 2).Draw(t, "job")),
				epoch: uint32(rapid.IntRange(0, 2).Draw(t, "epoch"))}
			s := twinSlot{uint32(rapid.IntRange(0, 2).Draw(t, "rank")), uint32(rapid.IntRange(0, 3).Draw(t, "step"))}
			rec := row{Job: k.job, Epoch: k.epoch, Rank: s.rank, Step: s.step}
			rec.Objects = rapid.SliceOfN(rapid.Map(rapid.Uint32(),
				func(x uint32) ident.ObjectID { return ident.ObjectID(x >> (x % 32)) }), 0, 6).Draw(t, "ids")
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			default:
				rec.Kind = kindAssigned
				twin[k] = append(twin[k], twinBatch{s, slices.Clone(rec.Objects)})
			case 0, 1:
				rec.Kind = kindReturned
				if i := slices.IndexFunc(twin[k], func(a twinBatch) bool { return a.twinSlot == s && len(a.ids) > 0 }); i >= 0 &&
					rapid.Bool().Draw(t, "own") {
					own := twin[k][i].ids
					rec.Objects = slices.Clone(own[:rapid.IntRange(1, len(own)).Draw(t, "n")])
				}
				var left []twinBatch
				for _, a := range twin[k] {
					if a.twinSlot == s {
						a.ids = slices.DeleteFunc(slices.Clone(a.ids), func(x ident.ObjectID) bool {
							return len(rec.Objects) == 0 || slices.Contains(rec.Objects, x)
						})
						if len(a.ids) == 0 {
							continue
						}
					}
					left = append(left, a)
				}
				twin[k] = left
			case 2:
				rec.Kind = kindEpochStarted
				rec.Step = uint32(n + 1) // its instance
				if len(twin[k]) > 0 {
					old[epochKey{k.job, k.epoch, true, at[k]}] = twin[k]
				}
				delete(twin, k)
				at[k] = rec.Step
			}
			m.Append(rec, nil)
		}
		bytes := 0
		for job := range ident.JobID(3) {
			for epoch := range uint32(3) {
				want := twin[epochKey{job: job, epoch: epoch}]
				got := orderOf(t, m, job, epoch)
				if len(want) == 0 {
					continue // then it is the one before it that is kept
				}
				if len(got) != len(want) {
					t.Fatalf("job %d epoch %d: %d batches, want %d", job, epoch, len(got), len(want))
				}
				for i := range want {
					if !slices.Equal(got[i], want[i].ids) {
						t.Fatalf("job %d epoch %d batch %d: %v, want %v", job, epoch, i, got[i], want[i].ids)
					}
					bytes += len(encode(want[i].ids)) + batchOverhead
				}
			}
		}
		bytes += recordedTwin(t, m, old)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.mu.orderBytes != bytes {
			t.Fatalf("counted %d bytes, hold %d", m.mu.orderBytes, bytes)
		}
		if len(m.mu.ages) != len(m.mu.orders) || len(slices.Compact(slices.Sorted(maps.Values(agesByKey(m.mu.ages))))) != len(
			m.mu.ages) {
			t.Fatalf("%d ages of %d orders", len(m.mu.ages), len(m.mu.orders))
		}
	})
}

func agesByKey(ages []epochKey) map[epochKey]int {
	out := map[epochKey]int{}
	for i, k := range ages {
		out[k] = i
	}
	return out
}

func TestKindNames(t *testing.T) {
	seen := map[string]bool{}
	for k := kind(1); k < numKinds; k++ {
		if s := k.String(); s == "" || s == "unknown" || seen[s] {
			t.Errorf("kind %d is %q", k, s)
		} else {
			seen[s] = true
		}
	}
	if kind(0).String() != "unknown" || numKinds.String() != "unknown" {
		t.Error("a kind that does not exist has a name")
	}
}

func BenchmarkAppend256(b *testing.B) {
	m := OpenMemory(Limits{})
	defer m.Close()
	objects := make([]ident.ObjectID, 256)
	for i := range objects {
		objects[i] = ident.ObjectID(i * 5000)
	}
	for i := 0; b.Loop(); i++ {
		m.Append(row{Kind: kindAssigned, Epoch: uint32(i >> 12), Step: uint32(i), Objects: objects}, nil)
	}
}
