package coordinator

import "testing"

// TestACanceledBatchOwesNoRow: a row that waits for a substitute leaves with its batch.
func TestACanceledBatchOwesNoRow(t *testing.T) {
	r, p := failsLate(t)
	s := r.c.roster.streams[p.job]
	for i := 0; len(r.todo) > 0 && i < 100 && len(s.deferred) < 2; i++ {
		e := r.todo[0]
		r.todo = r.todo[1:]
		r.do(e)
	}
	for i := 0; len(r.todo) > 0 && i < 8; i++ { // nothing may be written into its slot any more
		e := r.todo[0]
		r.todo = r.todo[1:]
		r.do(e)
	}
	if len(s.deferred) == 0 {
		t.Fatal("no row had to wait")
	}
	p.detach(false)
	gone := map[DeliveryID]bool{}
	for _, o := range s.deferred {
		gone[o.d.id] = true
	}
	committed := s.job.Ledger().Committed()
	for i := 0; len(r.todo) > 0 || r.c.needs.sampler.Work(0) && i < 5000; i++ {
		if len(r.todo) == 0 {
			r.step(Tick{})
			continue
		}
		e := r.todo[0]
		r.todo = r.todo[1:]
		switch x := e.(type) {
		case Persist:
			if a, ok := x.Record.(RecordAssigned); ok && a.Job == p.job {
				t.Errorf("assigned to a batch that was taken back: %+v", a)
			}
		case *Fill:
			if gone[x.Delivery] {
				t.Errorf("a row is written into slot %d, which is free: %+v", x.Slot, x)
			}
		case Prepare:
			if x.Into != nil && gone[x.Into.Delivery] {
				t.Errorf("a row is written into slot %d, which is free: %+v", x.Into.Slot, x.Into)
			}
		}
		r.do(e)
	}
	if now := s.job.Ledger().Committed(); now != committed {
		t.Errorf("%d samples are committed, before %d", now, committed)
	}
	if err := r.c.Check(); err != nil {
		t.Error(err)
	}
}

// TestWholeEpoch: only what an earlier daemon gave out counts as had when a client asks for a later epoch. What a
// client of this daemon left behind is not in that account; it could end the daemon with a division by zero.
func TestWholeEpoch(t *testing.T) {
	list := func(origin origin, steps ...int) (out []resend) {
		for _, s := range steps {
			out = append(out, resend{step: s, last: s == 2, origin: origin})
		}
		return out
	}
	for what, x := range map[string]struct {
		list []resend
		want bool
	}{
		"all steps":           {list(fromJournal, 0, 1, 2), true},
		"the last is absent":  {list(fromJournal, 0, 1), false},
		"the first is absent": {list(fromJournal, 1, 2), false},
		"nothing":             {nil, false},
		"sent by this one":    {list(fromClient, 0, 1, 2), false},
		"planned by this one": {append(list(fromJournal, 0, 1), list(fromPlan, 2)...), false},
	} {
		if got := wholeEpoch(x.list); got != x.want {
			t.Errorf("%s: %v, want %v", what, got, x.want)
		}
	}
}
