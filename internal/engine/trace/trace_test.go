package trace

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"larder/internal/coordinator"
	"larder/internal/engine/work"
	"larder/internal/ident"
	"larder/jobs"
)

// happened is what a test did to a recorder, in order: a batch, or a move.
type happened struct {
	batch []uint32
	move  uint64
}

// Whatever comes, in whatever portions it is fetched: all of it arrives once, in order, unless it is counted as lost,
// and what waits is bounded.
func TestRecorderKeepsOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRecording(coordinator.Stats{})
		var want, got []happened
		step := 0
		fetch := func() {
			out := r.take()
			k := 0
			for i := 0; ; i++ {
				for ; k < len(out.Moves) && int(out.MoveAfter[k]) <= i; k++ {
					got = append(got, happened{move: out.Moves[k]})
				}
				if i == len(out.Batches) {
					break
				}
				got = append(got, happened{batch: out.Batches[i].Objects})
			}
		}
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0, 1: // a batch; one of its samples may be bad
				n := rapid.SampledFrom([]int{1, 3, 30_000}).Draw(rt, "size")
				objects := make([]ident.ObjectID, n)
				b := happened{}
				for i := range objects {
					objects[i] = ident.ObjectID(i + step)
					if i > 0 || n > 3 {
						b.batch = append(b.batch, uint32(i+step))
					}
				}
				d := coordinator.Deliver{Job: 1, Epoch: 2, Step: step}
				if n <= 3 {
					d.Bad = []jobs.Bad{{Object: objects[0]}}
				}
				r.effect(coordinator.Persist{Record: coordinator.RecordAssigned{Job: 1, Epoch: 2, Step: step, Objects: objects}})
				r.effect(d)
				if b.batch == nil {
					b.batch = []uint32{}
				}
				want = append(want, b)
			case 2: // planned, and taken back
				r.effect(coordinator.Persist{Record: coordinator.RecordAssigned{Job: 1, Epoch: 2, Step: step,
					Objects: []ident.ObjectID{1, 2}}})
				r.effect(coordinator.Persist{Record: coordinator.RecordReturned{Job: 1, Epoch: 2, Step: step}})
			case 3:
				r.effect(coordinator.FreeKey{Key: ident.Key{Object: ident.ObjectID(step), Form: ident.Decoded}})
				want = append(want, happened{move: uint64(step)<<3 | uint64(ident.Decoded)<<1})
			case 4:
				fetch()
			}
			step++
			if r.queued < 0 || r.queued > maxRecorded {
				rt.Fatalf("%d wait to be fetched", r.queued)
			}
		}
		for range 200 {
			fetch()
		}
		if r.queued != 0 || len(r.planned) != 0 {
			rt.Fatalf("%d are counted as waiting, nothing does", r.queued)
		}
		if r.lost == 0 && !slices.EqualFunc(want, got, func(a, b happened) bool {
			return a.move == b.move &&
				slices.Equal(a.batch, b.batch)
		}) {
			rt.Fatalf("%d things happened, %d were fetched, or in another order", len(want), len(got))
		}
		notMoreLost(rt, want, got, int(r.lost))
	})
}

// notMoreLost checks that what was lost is counted.
func notMoreLost(rt *rapid.T, want, got []happened, lost int) {
	if lost > 0 {
		all, had := 0, 0
		for _, h := range want {
			all += max(1, len(h.batch))
		}
		for _, h := range got {
			had += max(1, len(h.batch))
		}
		if had+lost < all {
			rt.Fatalf("%d things happened, %d were fetched, %d are lost", all, had, lost)
		}
	}
}

// No client fetches: what waits is bounded, the rest is counted, and after a while the recording ends by itself.
func TestRecorderIsBounded(t *testing.T) {
	r, rec := newRecording(coordinator.Stats{}), NewRecorder(Config{})
	rec.now.Store(r)
	objects := make([]ident.ObjectID, 1000)
	const batches = 3000
	for i := range batches {
		rec.Effect(coordinator.Persist{Record: coordinator.RecordAssigned{Job: 1, Step: i, Objects: objects}})
		rec.Effect(coordinator.Deliver{Job: 1, Step: i})
	}
	if r.queued > maxRecorded || r.lost < batches*1000-maxRecorded-1000 || r.lost > batches*1000 {
		t.Errorf("%d wait, %d are lost of %d", r.queued, r.lost, batches*1000)
	}
	if rec.now.Load() != r {
		t.Error("the recording ended too early")
	}
	r.asked = time.Now().Add(-recordFor - time.Second)
	for i := range 1024 {
		rec.Effect(coordinator.FreeKey{Key: ident.Key{Object: ident.ObjectID(i)}})
	}
	if rec.now.Load() != nil {
		t.Error("a recording without a reader continues")
	}
}

// Costs are means of what was measured; what is prepared in place gives no cost of a half.
func TestRecorderCosts(t *testing.T) {
	r := newRecording(coordinator.Stats{})
	for _, d := range []time.Duration{2, 4, 6} {
		r.worked(work.Decode, 7, d*time.Millisecond)
	}
	r.worked(work.Augment, 7, time.Millisecond)
	r.worked(work.InPlace, 2000, 3*time.Millisecond)
	r.worked(work.Finish, 7, time.Microsecond)
	c := r.costs[7]
	if d := c.decode - 4e-3; d > 1e-6 || d < -1e-6 || c.augment != 1e-3 || r.costs[2000].decode != 0 ||
		r.inOne.mean() != 3e-3 || r.done.mean() != 1e-6 {
		t.Errorf("%+v %+v", c, r)
	}
}

// A subset of any shape comes as ascending ranges, in parts that an answer holds.
func TestRecordedSubset(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		picked := rapid.SliceOfDistinct(rapid.Uint32Range(0, 500), func(x uint32) uint32 { return x }).Draw(rt, "subset")
		var objects []ident.ObjectID
		for _, x := range picked {
			objects = append(objects, ident.ObjectID(x))
		}
		var got []uint32
		at := uint32(0)
		for _, s := range subsetParts(objects, rapid.IntRange(1, 50).Draw(rt, "ranges")) {
			for ; len(s) > 0; s = s[2:] {
				at += s[0]
				for x := at; x < at+s[1]; x++ {
					got = append(got, x)
				}
				at += s[1]
			}
		}
		slices.Sort(picked)
		if !slices.Equal(got, picked) {
			rt.Fatalf("%v came as %v", picked, got)
		}
	})
	if parts := subsetParts(nil, 5); len(parts) != 1 || len(parts[0]) != 0 {
		t.Errorf("an empty subset: %v", parts)
	}
}

// A batch that was planned before the recording began is counted as lost, and no batch without samples is recorded in
// its place; one whose plan did not fit is lost once.
func TestRecorderDoesNotKnowWhatWasPlannedBefore(t *testing.T) {
	r := newRecording(coordinator.Stats{})
	r.effect(coordinator.Deliver{Job: 1, Step: 0, Rows: []int{0, 1, 2}})
	if r.lost != 3 || len(r.batches) != 0 {
		t.Errorf("%d are lost, %d batches were recorded", r.lost, len(r.batches))
	}
	r.queued = maxRecorded
	r.effect(coordinator.Persist{Record: coordinator.RecordAssigned{Job: 1, Step: 1, Objects: []ident.ObjectID{4, 5}}})
	r.effect(coordinator.Deliver{Job: 1, Step: 1, Rows: []int{0, 1}})
	if r.lost != 5 || len(r.batches) != 0 || len(r.planned) != 0 {
		t.Errorf("%d are lost, %d batches were recorded, %d plans are kept", r.lost, len(r.batches), len(r.planned))
	}
}

// What went from one rank's batch to another's is recorded where it was delivered, and what went back to the epoch is
// not.
func TestRecorderFollowsWhatIsMoved(t *testing.T) {
	r := newRecording(coordinator.Stats{})
	persist := func(rec coordinator.Record) { r.effect(coordinator.Persist{Record: rec}) }
	assign := func(rank int, objects ...ident.ObjectID) {
		persist(coordinator.RecordAssigned{Job: 1, Rank: rank, Step: 1, Objects: objects})
	}
	assign(0, 4, 5, 6)
	assign(1, 6)
	persist(coordinator.RecordReturned{Job: 1, Rank: 0, Step: 1, Objects: []ident.ObjectID{6}})
	persist(coordinator.RecordDealt{Job: 1, Step: 1})
	persist(coordinator.RecordDealt{Job: 1, Step: 1, Objects: []ident.ObjectID{5}})
	r.effect(coordinator.Deliver{Job: 1, Rank: 0, Step: 1, Rows: []int{0}})
	r.effect(coordinator.Deliver{Job: 1, Rank: 1, Step: 1, Rows: []int{0}})
	if len(r.batches) != 2 || !slices.Equal(r.batches[0].Objects, []uint32{4}) ||
		!slices.Equal(r.batches[1].Objects, []uint32{6}) || r.queued != 2 || r.lost != 0 {
		t.Errorf("%v, %d are queued, %d lost", r.batches, r.queued, r.lost)
	}
}
