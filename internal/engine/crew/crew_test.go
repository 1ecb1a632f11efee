package crew

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/session"
	"larder/internal/session/wire"
	"larder/internal/session/workertest"
	"larder/internal/shm"
	"larder/internal/source"
	"larder/internal/testenv"
	"larder/tiers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is the time of a rig: it passes when a test says so.
type clock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[int]timer
	next   int
}

type timer struct {
	at time.Time
	f  func()
}

func (k *clock) after(d time.Duration, f func()) func() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next++
	id := k.next
	k.timers[id] = timer{k.now.Add(d), f}
	return func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		_, there := k.timers[id]
		delete(k.timers, id)
		return there
	}
}

func (k *clock) time() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

// pass lets time pass, and what is due happen.
func (k *clock) pass(d time.Duration) {
	k.mu.Lock()
	k.now = k.now.Add(d)
	var due []func()
	for id, t := range k.timers { // order-free: what is due at once happens in any order
		if !t.at.After(k.now) {
			due = append(due, t.f)
			delete(k.timers, id)
		}
	}
	k.mu.Unlock()
	for _, f := range due {
		f()
	}
}

// hand notes what a worker is told.
type hand struct {
	mu    sync.Mutex
	tasks []wire.TaskFrame
	freed []uint64
	gone  []error
	gives int // calls of Give
	came  chan struct{}
}

func (h *hand) Give(freed []uint64, tasks []wire.TaskFrame) {
	h.mu.Lock()
	h.freed = append(h.freed, freed...)
	h.tasks = append(h.tasks, tasks...)
	h.gives++
	h.mu.Unlock()
	for range tasks {
		h.came <- struct{}{}
	}
}

func (h *hand) Gone(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = append(h.gone, err)
}

// take waits for the next task.
func (h *hand) take(t testing.TB) wire.TaskFrame {
	t.Helper()
	select {
	case <-h.came:
	case <-time.After(5 * time.Minute):
		t.Fatal("no task came")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.tasks[0]
	h.tasks = h.tasks[1:]
	return k
}

// rig is a Crew with a tier of decoded samples, whose answers are noted.
type rig struct {
	*Crew
	t     testing.TB
	clock *clock
	job   *work.Job
	store *tiers.Store

	mu      sync.Mutex
	answers map[coordinator.FlightID]coordinator.Prepared
	filled  []coordinator.Filled
	ended   map[ident.JobID]bool
}

func (r *rig) end(id ident.JobID) {
	r.mu.Lock()
	r.ended[id] = true
	r.mu.Unlock()
	r.Ended(id)
}

var schema = record.Schema{Fields: []record.Field{
	{Name: "x", Kind: record.Array, DType: record.Uint8, Shape: []int64{-1}},
	{Name: "t", Kind: record.Text, DType: record.Uint8, Shape: []int64{-1}},
}}

func newRig(t testing.TB, change ...func(*Config)) *rig {
	t.Helper()
	catalog, err := source.OpenCatalog(source.CatalogConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d, _, err := catalog.AddMade(context.Background(), source.Made{Name: "d", Length: 1000})
	if err != nil {
		t.Fatal(err)
	}
	store, err := tiers.Open(tiers.Config{VerifyEvery: 1})
	if err == nil {
		err = store.SetBudget(ident.Decoded, 32<<20)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, store: store, clock: &clock{timers: map[int]timer{}},
		answers: map[coordinator.FlightID]coordinator.Prepared{}, ended: map[ident.JobID]bool{}}
	r.job = &work.Job{ID: 1, Data: d, Recipe: prep.Foreign(1, 2, 1, false), Made: &work.Made{Steps: 1, Cut: 1,
		Item: schema, Out: schema, Timeout: time.Second}}
	serial := work.NewSerial()
	cfg := Config{
		Window: 2, MaxRecord: 1 << 20, Room: 4 << 20, Store: store, Tiers: serial, Rings: ring.NewSet(func(ring.Key) {}),
		Meters: work.NewMeters(2, 2), Owns: func(int32, ident.JobID) bool { return true },
		Ended: func(id ident.JobID) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.ended[id]
		},
		Note: func(slog.Level, string, ...any) {}, After: r.clock.after, Now: r.clock.time,
		Send: func(ev coordinator.Event) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			if f, ok := ev.(coordinator.Filled); ok {
				r.filled = append(r.filled, f)
				return true
			}
			p := ev.(coordinator.Prepared)
			if _, twice := r.answers[p.Flight]; twice {
				t.Errorf("flight %d is answered twice", p.Flight)
			}
			r.answers[p.Flight] = p
			return true
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	r.Crew = New(cfg)
	r.Start()
	t.Cleanup(func() {
		r.Stop()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		if err := catalog.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// Add is Crew.Add, as the effect of a step of its own.
func (r *rig) Add(what coordinator.Effect, j *work.Job, x *ring.Ring) {
	r.Crew.Add(what, j, x)
	r.Flush()
}

func (r *rig) prepare(id coordinator.FlightID, keep bool) {
	r.Add(coordinator.Prepare{Flight: id, Job: 1, Turn: uint64(id), Keep: keep,
		Key: ident.Key{Object: ident.ObjectID(id), Form: ident.Decoded, Recipe: 2}}, r.job, nil)
}

func (r *rig) answer(id coordinator.FlightID) (coordinator.Prepared, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.answers[id]
	return p, ok
}

func (r *rig) waitFor(id coordinator.FlightID) coordinator.Prepared {
	r.t.Helper()
	var p coordinator.Prepared
	testenv.Eventually(r.t, fmt.Sprintf("flight %d is answered", id), func() (ok bool) {
		p, ok = r.answer(id)
		return ok
	})
	return p
}

// attach makes a worker with n bytes of memory.
func (r *rig) attach(n int64, client string) (*Worker, *hand, []byte) {
	r.t.Helper()
	h := &hand{came: make(chan struct{}, 1<<16)}
	w, mem := r.attachAs(&wire.WorkRequest{Client: client, PID: 1}, n, h)
	return w, h, mem
}

func (r *rig) attachAs(req *wire.WorkRequest, n int64, out session.Hand) (*Worker, []byte) {
	r.t.Helper()
	fd, mem, err := workertest.NewMemory(n, workertest.Seals)
	if err != nil {
		r.t.Fatal(err)
	}
	seg, err := shm.MapForeign(fd, n, 1<<30)
	if err != nil {
		r.t.Fatal(err)
	}
	w, err := r.Attach(req, []*work.Job{r.job}, shm.Peer{}, seg, out)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = unix.Munmap(mem) })
	w.Start()
	return w, mem
}

func blobOf(t testing.TB, n int) []byte {
	b, err := record.Encode(&schema, []record.Content{{Dims: []int64{int64(n)}, Data: make([]byte, n)},
		{Data: []byte("text")}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (w *Worker) put(mem, b []byte, task uint64) error {
	copy(mem, b)
	defer w.Settle()
	return w.Done(wire.DoneFrame{Task: task, Bytes: uint64(len(b))})
}

// A record goes into its tier, or becomes a working copy; both have its bytes.
func TestRecordsAreTakenOver(t *testing.T) {
	r := newRig(t)
	w, h, mem := r.attach(1<<16, "c")
	defer w.Close(true)
	b := blobOf(t, 5000)
	for id := range coordinator.FlightID(2) {
		id++
		r.prepare(id, id == 1)
		if err := w.put(mem, b, h.take(t).Task); err != nil {
			t.Fatal(err)
		}
		p := r.waitFor(id)
		if p.Err != "" || p.Kept != (id == 1) || p.Bytes != int64(len(b)) {
			t.Errorf("%+v", p)
		}
	}
	v, err := r.store.Open(ident.Key{Object: 1, Form: ident.Decoded, Recipe: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	c, ok := r.Copy(2)
	for _, got := range [][]byte{v.Bytes, c} {
		if !ok || !bytes.Equal(got[:len(b)], b) {
			t.Errorf("another record, or none: %v", ok)
		}
	}
	if st := r.Stats(); st.Tasks != 2 || len(h.freed) != 2 {
		t.Errorf("%+v, freed %v", st, h.freed)
	}
	r.Discard(2)
	if _, ok := r.Copy(2); ok {
		t.Error("it was not discarded")
	}
}

// A worker that does not answer in time loses its tasks: the oldest counts, and a second time its sample is bad. The
// other one goes on without blame.
func TestLateWorkersLoseTheirTasks(t *testing.T) {
	r := newRig(t)
	r.prepare(1, false)
	r.prepare(2, false)
	for i := range 2 {
		w, h, _ := r.attach(1<<12, "c")
		if k := h.take(t); k.Sample != 1 || k.Timeout != time.Second {
			t.Errorf("task %+v", k)
		}
		h.take(t)
		r.clock.pass(999 * time.Millisecond)
		if len(h.gone) != 0 {
			t.Errorf("worker %d went early", i)
		}
		r.clock.pass(time.Millisecond)
		if len(h.gone) != 1 {
			t.Errorf("worker %d stays", i)
		}
		if err := w.Done(wire.DoneFrame{Task: 1, Bytes: 64}); err != nil { // on its way when it was given up
			t.Error(err)
		}
		w.Close(false)
	}
	if p := r.waitFor(1); !p.Tried || p.Err == "" {
		t.Errorf("%+v", p)
	}
	w, h, mem := r.attach(1<<16, "c")
	defer w.Close(true)
	if err := w.put(mem, blobOf(t, 10), h.take(t).Task); err != nil {
		t.Fatal(err)
	}
	if p := r.waitFor(2); p.Err != "" {
		t.Errorf("%+v", p)
	}
	if st := r.Stats(); st.Late != 2 || st.Failed != 1 || st.Deaths != 0 {
		t.Errorf("%+v", st)
	}
}

// A death counts only when the client outlives its worker.
func TestDeathsCountWhenTheClientLives(t *testing.T) {
	for _, lives := range []bool{false, true} {
		r := newRig(t)
		var other *Worker
		if lives {
			other, _, _ = r.attach(1<<12, "c")
			other.c.mu.Lock()
			other.ready = false // it is there, and takes nothing
			other.c.mu.Unlock()
		}
		r.prepare(1, false)
		for range 3 {
			if _, failed := r.answer(1); failed {
				break
			}
			w, h, _ := r.attach(1<<12, "c")
			h.take(t)
			w.Close(false)
			r.clock.pass(grace)
		}
		if lives {
			if p := r.waitFor(1); p.Err == "" {
				t.Errorf("%+v", p)
			}
			other.Close(true)
			continue
		}
		w, h, mem := r.attach(1<<16, "c")
		if err := w.put(mem, blobOf(t, 10), h.take(t).Task); err != nil {
			t.Fatal(err)
		}
		if p := r.waitFor(1); p.Err != "" {
			t.Errorf("%+v", p)
		}
		w.Close(true)
	}
}

// A client that says how its workers ended is waited for, as long as it lives; what it says is in the reason, whether
// it comes before or after the end of the worker's session.
func TestWhatAClientSaysOfAWorkerCounts(t *testing.T) {
	r := newRig(t)
	attach := func(pid int32, ended *wire.EndedWorker) (*Worker, *hand) {
		h := &hand{came: make(chan struct{}, 1<<16)}
		w, _ := r.attachAs(&wire.WorkRequest{Client: "c", PID: pid, Tells: true, Ended: ended}, 1<<12, h)
		return w, h
	}
	other, _ := attach(1, nil)
	other.c.mu.Lock()
	other.ready = false // it is there, and takes nothing
	other.c.mu.Unlock()
	defer other.Close(true)
	r.prepare(1, false)
	w, h := attach(2, nil)
	h.take(t)
	w.Close(false)
	for range mostLooks - 1 {
		r.clock.pass(grace)
	}
	second, h := attach(3, &wire.EndedWorker{PID: 2, How: "killed by SIGBUS"})
	h.take(t)
	third, _ := attach(4, &wire.EndedWorker{PID: 3, How: "killed by SIGSEGV"})
	defer third.Close(true)
	if _, failed := r.answer(1); failed {
		t.Fatal("it was given up while its worker's session lives")
	}
	second.Close(false)
	p := r.waitFor(1)
	if !strings.HasSuffix(p.Err, "(pid 3) ended while it worked on it: killed by SIGSEGV; it was tried 2 times") {
		t.Errorf("%+v", p)
	}
	if v := r.Crew.mu.judged; len(v.tasks)+len(v.told) != 0 {
		t.Errorf("%+v is left", v)
	}
}

// One that lives and says nothing is waited for a while.
func TestAClientThatSaysNothingIsWaitedForAWhile(t *testing.T) {
	r := newRig(t)
	ends := make([]*Worker, 2)
	for i := range ends {
		h := &hand{came: make(chan struct{}, 1<<16)}
		if i == 0 {
			r.prepare(1, false)
		}
		ends[i], _ = r.attachAs(&wire.WorkRequest{Client: "c", PID: int32(i + 1), Tells: true}, 1<<12, h)
		h.take(t)
		idle := &hand{came: make(chan struct{}, 1<<16)}
		other, _ := r.attachAs(&wire.WorkRequest{Client: "c", PID: 9, Tells: true}, 1<<12, idle)
		other.c.mu.Lock()
		other.ready = false
		other.c.mu.Unlock()
		defer other.Close(true)
		ends[i].Close(false)
		for range mostLooks {
			r.clock.pass(grace)
		}
	}
	if p := r.waitFor(1); !strings.HasSuffix(p.Err, "ended while it worked on it; it was tried 2 times") {
		t.Errorf("%+v", p)
	}
}

// Tasks of an ended job are answered though no worker ever came.
func TestEndedJobsLeaveNothing(t *testing.T) {
	r := newRig(t)
	for id := range coordinator.FlightID(50) {
		r.prepare(id+1, true)
	}
	r.end(1)
	for id := range coordinator.FlightID(50) {
		if p := r.waitFor(id + 1); !p.Lost {
			t.Errorf("%+v", p)
		}
	}
	if _, waiting := r.Attached(); waiting != 0 {
		t.Errorf("%d tasks wait", waiting)
	}
}

// taken waits until the feeder has taken what was added.
func (r *rig) taken() {
	r.t.Helper()
	testenv.Eventually(r.t, "the feeder takes what was added", func() bool {
		r.Crew.mu.Lock()
		defer r.Crew.mu.Unlock()
		return len(r.Crew.mu.coming)+len(r.Crew.mu.added) == 0
	})
}

// What is made and kept in no tier is bounded: the next one waits until there is room, or nothing of its kind is there.
func TestWorkingCopiesAreBounded(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Room = 64 << 10 })
	w, h, mem := r.attach(1<<20, "c")
	defer w.Close(true)
	for id := range coordinator.FlightID(8) {
		r.prepare(id+1, false)
	}
	b := blobOf(t, 60<<10)
	given := []wire.TaskFrame{h.take(t), h.take(t)} // both are at the worker before the first is there
	for _, k := range given {
		if err := w.put(mem, b, k.Task); err != nil {
			t.Fatal(err)
		}
	}
	r.waitFor(1)
	r.waitFor(2)
	r.taken()
	if _, waiting := r.Attached(); waiting != 6 || len(h.came) != 0 {
		t.Errorf("%d wait, %d tasks are given", waiting, len(h.came))
	}
	r.Discard(1)
	r.Discard(2)
	h.take(t)
}

// What the daemon does for one record of 150 KB: the copy out of the worker's memory, the check, the checksum, the
// answer.
func BenchmarkTakeOver(b *testing.B) {
	for _, keep := range []bool{false, true} {
		name := "copy"
		if keep {
			name = "tier"
		}
		b.Run(name, func(b *testing.B) {
			r := newRig(b)
			w, h, mem := r.attach(1<<20, "c")
			blob := blobOf(b, 150_000)
			copy(mem, blob)
			b.SetBytes(int64(len(blob)))
			id := coordinator.FlightID(0)
			for b.Loop() {
				id++
				b.StopTimer()
				r.prepare(id, keep)
				k := h.take(b)
				b.StartTimer()
				if err := w.Done(wire.DoneFrame{Task: k.Task, Bytes: uint64(len(blob))}); err != nil {
					b.Fatal(err)
				}
				w.Settle()
				b.StopTimer()
				r.Discard(id)
				r.store.Free(ident.Key{Object: ident.ObjectID(id), Form: ident.Decoded, Recipe: 2})
				b.StartTimer()
			}
			w.Close(true)
		})
	}
}
