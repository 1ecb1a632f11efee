package crew

import (
	"errors"
	"testing"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/work"
	"larder/internal/prep"
)

// stagedRig is a rig whose tasks have a built-in op between two steps of workers. It runs when the test says so.
func stagedRig(t *testing.T, change ...func(*Config)) (*rig, chan func(err error)) {
	t.Helper()
	natives := make(chan func(error), 16)
	r := newRig(t, append(change, func(c *Config) {
		c.Native = func(_ *work.Job, runs []work.Run, _ prep.RandKey, blob []byte, done func([]byte, error)) {
			if len(runs) != 1 || runs[0].First != 1 {
				t.Errorf("runs %+v", runs)
			}
			natives <- func(err error) {
				if err != nil {
					done(nil, err)
					return
				}
				done(append([]byte(nil), blob...), nil)
			}
		}
	})...)
	m := *r.job.Made
	m.Steps, m.Cut, m.Runs = 3, 3, []work.Run{{First: 1, Last: 2}}
	r.job.Made = &m
	return r, natives
}

// native is the next op that is to run.
func native(t *testing.T, natives chan func(error)) func(error) {
	t.Helper()
	select {
	case run := <-natives:
		return run
	case <-time.After(5 * time.Minute):
		t.Fatal("no built-in op is asked for")
		return nil
	}
}

// heldBytes is what records have that no tier holds.
func (r *rig) heldBytes() (n int64) {
	r.Crew.mu.Lock()
	defer r.Crew.mu.Unlock()
	for _, b := range r.Crew.mu.held { // order-free: a sum
		n += b
	}
	return n
}

// A task goes from a worker to a built-in op and on to a worker, and is answered once. A failure of the op is that of
// the sample.
func TestStagesFollowOneAnother(t *testing.T) {
	for _, bad := range []error{nil, errors.New("no image")} {
		r, natives := stagedRig(t)
		w, h, mem := r.attach(1<<16, "c")
		r.prepare(1, true)
		k := h.take(t)
		if k.First != 0 || k.Last != 1 {
			t.Errorf("%+v", k)
		}
		if err := w.put(mem, blobOf(t, 10), k.Task); err != nil {
			t.Fatal(err)
		}
		run := native(t, natives)
		if _, early := r.answer(1); early || r.heldBytes() == 0 {
			t.Error("a task is answered, or holds nothing, between two stages")
		}
		if run(bad); bad == nil {
			if k = h.take(t); k.First != 2 || k.Last != 3 || k.Bytes == 0 {
				t.Errorf("%+v", k)
			}
			if err := w.put(mem, blobOf(t, 10), k.Task); err != nil {
				t.Fatal(err)
			}
		}
		p := r.waitFor(1)
		if p.Kept != (bad == nil) || (p.Err == "") != (bad == nil) || r.heldBytes() != 0 {
			t.Errorf("%+v, %d bytes are held", p, r.heldBytes())
		}
		if st := r.Stats(); st.Retries != 0 {
			t.Errorf("stages count as retries: %+v", st)
		}
		w.Close(true)
	}
}

// What a job that ended waits for between two stages is answered, and holds nothing.
func TestEndedJobsLeaveNoStages(t *testing.T) {
	r, natives := stagedRig(t)
	w, h, mem := r.attach(1<<16, "c")
	defer w.Close(true)
	for id := range coordinator.FlightID(2) { // one is at a worker, one at an op
		r.prepare(id+1, false)
		k := h.take(t)
		if id == 1 {
			r.end(1)
		}
		if err := w.put(mem, blobOf(t, 10), k.Task); err != nil {
			t.Fatal(err)
		}
	}
	native(t, natives)(nil)
	for id := range coordinator.FlightID(2) {
		if p := r.waitFor(id + 1); !p.Lost {
			t.Errorf("%+v", p)
		}
	}
	if _, waiting := r.Attached(); waiting != 0 || r.heldBytes() != 0 || len(natives) != 0 {
		t.Errorf("%d tasks wait, %d bytes are held, %d ops run", waiting, r.heldBytes(), len(natives))
	}
}

// An inline worker from which a task was taken back answers its stage too late: that is not taken for the next stage.
func TestLateAnswersOfAnotherStage(t *testing.T) {
	r, natives := stagedRig(t, ownPID)
	r.prepareFor(1, 1)
	a, ha, ma := r.attachInline(1)
	ka := ha.take(t)
	b, hb, mb := r.attachInline(2)
	r.clock.pass(patience)
	kb := hb.take(t)
	if err := b.put(mb, blobOf(t, 10), kb.Task); err != nil {
		t.Fatal(err)
	}
	native(t, natives)(nil)
	k := hb.take(t)
	if k.First != 2 {
		t.Errorf("%+v", k)
	}
	if err := a.put(ma, blobOf(t, 10), ka.Task); err != nil {
		t.Fatal(err)
	}
	if p, early := r.answer(1); early {
		t.Errorf("a late answer of the stage before ends the task: %+v", p)
	}
	if err := b.put(mb, blobOf(t, 10), k.Task); err != nil {
		t.Fatal(err)
	}
	if p := r.waitFor(1); p.Err != "" || p.Lost {
		t.Errorf("%+v", p)
	}
	a.Close(true)
	b.Close(true)
}
