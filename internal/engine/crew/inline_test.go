package crew

import (
	"testing"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/ident"
	"larder/internal/session"
	"larder/internal/session/wire"
	"larder/internal/testenv"
	larderv1 "larder/proto/larder/v1"
)

// attachInline makes an inline worker of a process.
func (r *rig) attachInline(pid int32) (*Worker, *hand, []byte) {
	r.t.Helper()
	h := &hand{came: make(chan struct{}, 1<<10)}
	w, mem := r.attachAs(&wire.WorkRequest{PID: pid, Inline: true, Window: 1}, 1<<16, h)
	return w, h, mem
}

// prepareFor is prepare for a job of its own with the recipe of the rig.
func (r *rig) prepareFor(job ident.JobID, id coordinator.FlightID) {
	j := *r.job
	j.ID = job
	r.Add(coordinator.Prepare{Flight: id, Job: job, Turn: uint64(id),
		Key: ident.Key{Object: ident.ObjectID(id), Form: ident.Decoded, Recipe: 2}}, &j, nil)
}

// ownPID has process n hold the ranks of job n.
func ownPID(c *Config) {
	c.Owns = func(pid int32, job ident.JobID) bool { return uint32(pid) == uint32(job) }
}

func has(h *hand) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.tasks)
}

// An inline worker does the tasks of its own job first, then those of a job that has no worker; worker processes have
// what is not its own, and it takes that when they leave.
func TestInlineWorkersHelpOut(t *testing.T) {
	r := newRig(t, ownPID)
	r.prepareFor(1, 1)
	r.prepareFor(2, 2)
	process := &hand{came: make(chan struct{}, 16)}
	p, _ := r.attachAs(&wire.WorkRequest{PID: 9, Window: 1}, 1<<12, process)
	process.take(t) // sample 1
	w, h, mem := r.attachInline(2)
	defer w.Close(true)
	k := h.take(t)
	if k.Sample != 2 {
		t.Errorf("sample %d comes before the own one", k.Sample)
	}
	if err := w.put(mem, blobOf(t, 10), k.Task); err != nil {
		t.Fatal(err)
	}
	if has(h) != 0 {
		t.Error("an inline worker got what a worker process can do")
	}
	p.Close(true)
	if k = h.take(t); k.Sample != 1 {
		t.Errorf("sample %d, want 1", k.Sample)
	}
	if err := w.put(mem, blobOf(t, 10), k.Task); err != nil {
		t.Fatal(err)
	}
	r.waitFor(1)
	r.waitFor(2)
}

// A script that trains keeps no task that another one waits for; whoever answers first answers it, the other answer is
// freed. sample_timeout does not count while a script trains.
func TestInlineWorkersKeepNothing(t *testing.T) {
	for _, first := range []int{0, 1} {
		r := newRig(t, ownPID)
		r.prepareFor(1, 1)
		a, ha, ma := r.attachInline(1)
		ka := ha.take(t)
		r.clock.pass(time.Hour)
		if len(ha.gone) != 0 || r.Stats().Late != 0 {
			t.Fatal("an inline worker has a deadline")
		}
		b, hb, mb := r.attachInline(2)
		r.clock.pass(patience)
		kb := hb.take(t)
		if kb.Sample != 1 {
			t.Errorf("%+v", kb)
		}
		workers, hands := []*Worker{a, b}, []*hand{ha, hb}
		memory, tasks := [][]byte{ma, mb}, []uint64{ka.Task, kb.Task}
		for i := range 2 {
			k := (first + i) % 2
			if err := workers[k].put(memory[k], blobOf(t, 10), tasks[k]); err != nil {
				t.Errorf("answer %d: %v", i, err)
			}
			if len(hands[k].freed) != 1 {
				t.Errorf("answer %d: freed %v", i, hands[k].freed)
			}
		}
		if p := r.waitFor(1); p.Err != "" {
			t.Errorf("%+v", p)
		}
		if err := workers[0].put(ma, blobOf(t, 10), ka.Task); err == nil {
			t.Error("a third answer is taken")
		}
		if st := r.Stats(); st.Tasks != 1 {
			t.Errorf("%+v", st)
		}
		r.prepareFor(1, 2) // both have room again
		ha.take(t)
		a.Close(true)
		hb.take(t)
		b.Close(true)
	}
}

// A task that was taken back is answered by its first worker while no other one has it.
func TestAnswersAfterTakingBack(t *testing.T) {
	for _, fails := range []bool{false, true} {
		r := newRig(t, ownPID)
		r.prepareFor(1, 1)
		a, ha, mem := r.attachInline(1)
		k := ha.take(t)
		b, hb, _ := r.attachInline(2)
		r.clock.pass(patience)
		hb.take(t)
		b.Close(true) // the task waits: its first worker may not have it again before it answers
		var err error
		if fails {
			err = a.Failed(k.Task, wire.Failure{Type: "E"})
			a.Settle()
		} else {
			err = a.put(mem, blobOf(t, 10), k.Task)
		}
		if err != nil {
			t.Fatal(err)
		}
		if p := r.waitFor(1); (p.Err != "") != fails {
			t.Errorf("%+v", p)
		}
		a.Close(true)
	}
}

// sink is deaf.
type sink struct{}

func (sink) Batch(session.Batch)         {}
func (sink) EpochEnd(*larderv1.EpochEnd) {}
func (sink) Gone(error)                  {}

// A task for a row of a ring that closed while a worker had it does not come back, nor does one of a job that ended:
// neither waits, and the memory of the ring is free.
func TestTasksOfTheDeadDoNotComeBack(t *testing.T) {
	for _, clean := range []bool{false, true} {
		var rings *ring.Set
		r := newRig(t, func(c *Config) { rings = c.Rings })
		key := ring.Key{Job: 1, Rank: 0, Inc: 1}
		budget := ring.NewBudget(func() int64 { return 1 << 30 })
		x, err := ring.New(ring.Config{Key: key, Layout: ring.NewRecordLayout(&schema, 2, 2, 1<<10), Sink: sink{},
			Budget: budget})
		if err != nil {
			t.Fatal(err)
		}
		rings.Add(x)
		x.Release()
		fill := func(row int) *coordinator.Fill {
			return &coordinator.Fill{Delivery: 1, Row: row, Job: 1, Rank: 0, Inc: 1, Object: ident.ObjectID(row),
				From: coordinator.Source{Key: ident.Key{Object: ident.ObjectID(row), Form: ident.Decoded}}}
		}
		made := *r.job
		made.Made = &work.Made{Steps: 1, Item: schema, Out: schema, Timeout: time.Second} // the item is made for the row
		w, h, _ := r.attach(1<<12, "c")
		other, _, _ := r.attach(1<<12, "c") // the death counts
		other.Close(true)
		for row := range 2 {
			r.Add(fill(row), &made, rings.Hold(key))
			h.take(t)
		}
		rings.Take(key)
		r.Closed(key)
		x.Close(nil)
		w.Close(clean)
		r.clock.pass(time.Second)
		testenv.Eventually(t, "the ring gives its memory back", func() bool { return budget.Used() == 0 })
		if _, waiting := r.Attached(); waiting != 0 || budget.Used() != 0 {
			t.Errorf("%d tasks wait, rings have %d bytes", waiting, budget.Used())
		}
		r.mu.Lock()
		if len(r.filled) != 2 || !r.filled[0].Lost || !r.filled[1].Lost {
			t.Errorf("%+v", r.filled)
		}
		r.mu.Unlock()
	}
}

// A task of a job that ended comes back as lost, once; what others wait for is tried until it counts as failed.
func TestFollowersOutliveTheirJob(t *testing.T) {
	r := newRig(t)
	w, h, _ := r.attach(1<<12, "c")
	r.prepare(1, false)
	h.take(t)
	r.end(1)
	w.Close(true)
	if p := r.waitFor(1); !p.Lost {
		t.Errorf("%+v", p)
	}
	r.prepare(2, false) // by a follower
	for range maxTries {
		w, h, _ = r.attach(1<<12, "c")
		h.take(t)
		w.Close(true)
	}
	if p := r.waitFor(2); p.Err == "" {
		t.Errorf("%+v", p)
	}
	r.prepare(3, false)
	r.end(2) // the follower ends
	if p := r.waitFor(3); !p.Lost {
		t.Errorf("%+v", p)
	}
}
