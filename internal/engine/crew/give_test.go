package crew

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/coordinator"
	"larder/internal/engine/work"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	"larder/internal/shm"
	"larder/internal/testenv"
	"larder/internal/xrand"
	"larder/tiers"
)

// attachMarking makes a worker that takes many tasks and marks the one that it is at.
func (r *rig) attachMarking(n int64, window uint32) (*Worker, *hand, []byte) {
	r.t.Helper()
	h := &hand{came: make(chan struct{}, 1<<12)}
	w, mem := r.attachAs(&wire.WorkRequest{PID: 1, Client: "c", Window: window, Mark: new(uint64)}, n, h)
	return w, h, mem
}

// waitWaiting waits until the feeder has put so many tasks into queues.
func (r *rig) waitWaiting(n int) {
	r.t.Helper()
	testenv.Eventually(r.t, fmt.Sprintf("%d tasks wait", n), func() bool {
		_, waiting := r.Attached()
		return waiting == n
	})
}

// all takes the tasks that have come.
func (h *hand) all() []wire.TaskFrame {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.tasks
	h.tasks = nil
	return out
}

// A worker gets as many tasks as are quick, with one write, and few again as soon as one is slow or large.
func TestWindowsFollowTheTasks(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Room = 1 << 30 })
	for id := range coordinator.FlightID(1000) {
		r.prepare(id+1, false)
	}
	r.waitWaiting(1000)
	w, h, mem := r.attachMarking(1<<20, 64)
	defer w.Close(true)
	b := blobOf(t, 100)
	copy(mem[64:], b)
	var tasks []wire.TaskFrame
	round := func(took time.Duration, bytes int64) (given int) {
		testenv.Eventually(t, "a task comes", func() bool {
			tasks = append(tasks, h.all()...)
			return len(tasks) > 0
		})
		r.clock.pass(took * time.Duration(len(tasks)))
		w.pace.bytes = max(w.pace.bytes, bytes)
		for _, k := range tasks {
			if err := w.Done(wire.DoneFrame{Task: k.Task, Offset: 64, Bytes: uint64(len(b))}); err != nil {
				t.Fatal(err)
			}
		}
		gives := h.gives
		w.Settle()
		tasks = h.all()
		if h.gives-gives > 1 {
			t.Errorf("%d writes", h.gives-gives)
		}
		return len(tasks)
	}
	for _, x := range []struct {
		took  time.Duration
		bytes int64
		want  int
	}{
		{20 * time.Millisecond, 0, 2}, {time.Millisecond, 0, 2}, {0, 0, 2},
	} {
		if n := round(x.took, x.bytes); n != x.want {
			t.Errorf("%v: %d tasks, want %d", x.took, n, x.want)
		}
	}
	n := 0
	for range 40 {
		if n = round(10*time.Microsecond, 0); n == mostWindow {
			break
		}
	}
	if n != mostWindow {
		t.Errorf("%d quick tasks", n)
	}
	if n = round(time.Millisecond, 0); n != 4 {
		t.Errorf("%d tasks of 1 ms", n)
	}
	for range 20 {
		n = round(10*time.Microsecond, 1<<20)
	}
	if n > 6 {
		t.Errorf("%d tasks of 1 MiB", n)
	}
}

// Many tasks at once are for workers that say which one they are at; the mark lies in the memory.
func TestManyTasksNeedAMark(t *testing.T) {
	r := newRig(t)
	h := &hand{came: make(chan struct{}, 16)}
	w, _ := r.attachAs(&wire.WorkRequest{PID: 1, Window: 64}, 1<<12, h)
	if n := w.Info().Window; n != 2 {
		t.Errorf("window %d without a mark", n)
	}
	w.Close(true)
	if w, _, _ = r.attachMarking(1<<12, 64); w.Info().Window != 64 {
		t.Errorf("window %d", w.Info().Window)
	}
	w.Close(true)
	for _, at := range []uint64{4, 4096, 1 << 63} {
		fd, mem, err := workertest.NewMemory(1<<12, workertest.Seals)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Munmap(mem)
		seg, err := shm.MapForeign(fd, 1<<12, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Attach(&wire.WorkRequest{PID: 1, Mark: &at}, nil, shm.Peer{}, seg, h); err == nil {
			t.Errorf("a mark at %d is taken", at)
		}
	}
}

// The task that a worker is at counts when it ends or hangs, and no other: neither those before it, whose answers wait,
// nor those behind it.
func TestTheMarkedTaskIsBlamed(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		r := newRig(t)
		other, _, _ := r.attach(1<<12, "c") // the client outlives its workers
		other.c.mu.Lock()
		other.ready = false
		other.c.mu.Unlock()
		for id := range coordinator.FlightID(4) {
			r.prepare(id+1, false)
		}
		for range 2 {
			w, h, mem := r.attachMarking(1<<12, 4)
			w.c.mu.Lock()
			w.pace.window = 4
			w.c.mu.Unlock()
			w.pump()
			var third uint64
			for range 4 {
				if k := h.take(t); k.Sample == 3 {
					third = k.Task
				}
			}
			r.clock.pass(900 * time.Millisecond)
			binary.LittleEndian.PutUint64(mem, third)
			if hangs {
				r.clock.pass(100 * time.Millisecond) // the oldest one is late, and the worker is at another one
				if len(h.gone) != 0 {
					t.Fatal("the worker had no time for its third task")
				}
				r.clock.pass(time.Second)
				if len(h.gone) != 1 {
					t.Fatal("the worker hangs in its third task, and stays")
				}
			}
			w.Close(false)
			r.clock.pass(grace)
		}
		if p := r.waitFor(3); p.Err == "" {
			t.Errorf("%+v", p)
		}
		for _, id := range []coordinator.FlightID{1, 2, 4} {
			if p, ok := r.answer(id); ok {
				t.Errorf("flight %d: %+v", id, p)
			}
		}
		r.waitWaiting(3)
		other.Close(true)
	}
}

// Inputs of many tasks lie beside each other; a task whose input has no room waits until another one is answered.
func TestInputsShareTheirMemory(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxRecord = 64 << 10 })
	r.job.Made.Steps = 2 // the second step starts from the record of the first
	w, h, mem := r.attachMarking(1<<20, 64)
	defer w.Close(true)
	w.c.mu.Lock()
	w.pace.window = 64
	w.c.mu.Unlock()
	rng := xrand.New(1)
	want := map[uint64][]byte{}
	for id := range uint64(100) {
		b := blobOf(t, rng.IntN(30<<10))
		b[len(b)-1] = byte(id)
		k := ident.Key{Object: ident.ObjectID(id + 1), Form: ident.Decoded, Recipe: 2}
		x, err := r.store.Alloc(k, int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		copy(x.Bytes, b)
		if err := x.Commit(tiers.Meta{}); err != nil {
			t.Fatal(err)
		}
		want[id+1] = b
		r.Add(coordinator.Augment{Flight: coordinator.FlightID(id + 1), Job: 1, Turn: id,
			Key:  ident.Key{Object: k.Object, Form: ident.Augmented, Recipe: 1},
			From: coordinator.Source{Key: k}}, r.job, nil)
	}
	most := 0
	for n := 0; n < 100; {
		var tasks []wire.TaskFrame
		testenv.Eventually(t, "a task comes", func() bool { tasks = h.all(); return len(tasks) > 0 })
		most = max(most, len(tasks))
		w.c.mu.Lock()
		if !slices.IsSortedFunc(w.inputs, func(a, b span) int { return int(a.at + a.n - b.at) }) {
			t.Fatalf("inputs overlap: %v", w.inputs)
		}
		w.c.mu.Unlock()
		for _, k := range tasks {
			got := w.input.Bytes()[k.Offset : k.Offset+k.Bytes]
			if !slices.Equal(got[:len(want[k.Sample])], want[k.Sample]) {
				t.Fatalf("sample %d has another input", k.Sample)
			}
		}
		for _, k := range tasks {
			b := blobOf(t, 10)
			copy(mem[64:], b)
			if err := w.Done(wire.DoneFrame{Task: k.Task, Offset: 64, Bytes: uint64(len(b))}); err != nil {
				t.Fatal(err)
			}
		}
		w.pace.bytes, w.pace.task = 0, 0
		w.Settle()
		n += len(tasks)
	}
	if st := r.Stats(); st.Tasks != 100 || most < 4 || len(w.inputs) != 0 {
		t.Errorf("%+v, %d at once, %v", st, most, w.inputs)
	}
}

// A worker that is given an older task, which no other can do, leaves the new one to an idle worker.
func TestOlderTasksLeaveNoneBehind(t *testing.T) {
	r := newRig(t)
	other := *r.job
	other.ID, other.Recipe = 2, prep.Foreign(11, 12, 11, false)
	attach := func(jobs ...*work.Job) (*Worker, *hand, []byte) {
		t.Helper()
		fd, mem, err := workertest.NewMemory(1<<16, workertest.Seals)
		if err != nil {
			t.Fatal(err)
		}
		seg, err := shm.MapForeign(fd, 1<<16, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(mem) })
		h := &hand{came: make(chan struct{}, 16)}
		w, err := r.Attach(&wire.WorkRequest{PID: 1, Window: 1}, jobs, shm.Peer{}, seg, h)
		if err != nil {
			t.Fatal(err)
		}
		w.Start()
		return w, h, mem
	}
	a, ha, mem := attach(r.job, &other)
	defer a.Close(true)
	r.prepare(1, false)
	k := ha.take(t)
	r.Add(coordinator.Prepare{Flight: 2, Job: 2, Turn: 2, Key: ident.Key{Object: 2, Form: ident.Decoded, Recipe: 12}},
		&other, nil)
	r.waitWaiting(1) // for a
	b, hb, _ := attach(r.job)
	defer b.Close(true)
	blob := blobOf(t, 10)
	copy(mem, blob)
	if err := a.Done(wire.DoneFrame{Task: k.Task, Bytes: uint64(len(blob))}); err != nil { // and is not settled
		t.Fatal(err)
	}
	r.prepare(3, false)
	if k := ha.take(t); k.Sample != 2 {
		t.Errorf("sample %d came to the one that alone can do sample 2", k.Sample)
	}
	if k := hb.take(t); k.Sample != 3 {
		t.Errorf("sample %d came to the other one", k.Sample)
	}
}
