package audit

import (
	"strings"
	"testing"

	"larder/internal/xrand"
)

// TestRanksInStep: with on_error="substitute" and even="drop" a step has samples for all ranks or for none, and one of
// none may have cost fewer samples than there are ranks.
func TestRanksInStep(t *testing.T) {
	judge := func(onError string, steps [][2][]int64, bad []int64) (string, []Finding) {
		w := &world{t: t, r: xrand.New(1), gone: map[*Record]bool{}}
		start := Start{Job: "job", ID: 3, Registered: "2026-01-02T03:04:05Z", World: 2, Inc: 1, N: 10, Batch: 2, Even: "drop",
			OnError: onError,
			Dataset: "imagefolder:/d"}
		for rank := range 2 {
			f := w.file(int64(1000 + rank))
			s := start
			s.Rank = uint32(rank)
			w.put(f, &Record{Kind: KindEpoch, Run: 1, Start: &s})
			samples := 0
			for step, of := range steps {
				b := &Record{Kind: KindBatch, Run: 1, Step: uint32(step), IDs: of[rank], Rows: len(of[rank]),
					Hash: hashOf(of[rank], 0)}
				if step == 0 && rank == 0 {
					b.Bad = bad
				}
				samples += b.Rows
				w.put(f, b)
				w.put(f, &Record{Kind: KindDone, Run: 1, Step: b.Step, Hash: b.Hash})
			}
			w.put(f, &Record{Kind: KindEnd, Run: 1, Batches: uint64(len(steps)), Samples: uint64(samples)})
		}
		r := check(t, w.logs(), Options{})
		return r.Epochs[0].State, r.Findings
	}
	whole := [][2][]int64{{{1, 2}, {3, 4}}, {{5}, {6}}, {}}
	// 10 went with the last step
	if state, found := judge("substitute", whole, []int64{7, 8, 9}); state != Whole || len(found) > 0 {
		t.Errorf("%s: %+v", state, found)
	}
	for name, x := range map[string]struct {
		onError string
		steps   [][2][]int64
		bad     []int64
		text    string
	}{
		"of another job one is lost": {"skip", whole, []int64{7, 8, 9}, "lost"},
		"two are lost":               {"substitute", whole, []int64{7, 8}, "lost"},
		"one rank has a batch more": {"substitute", [][2][]int64{{{1, 2}, {3, 4}}, {{5}, {6}}, {{10}, {}}}, []int64{7, 8, 9},
			"step 2 has samples for some ranks"},
	} {
		state, found := judge(x.onError, x.steps, x.bad)
		if state != Violated || len(found) != 1 || found[0].Kind != Lost || !strings.Contains(found[0].Kind+found[0].Text,
			x.text) {
			t.Errorf("%s: %s: %+v", name, state, found)
		}
	}
}
