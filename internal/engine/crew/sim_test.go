package crew

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"larder/bench/coresim"
	"larder/internal/coordinator"
	"larder/internal/engine/ring"
	"larder/internal/engine/work"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/session"
	"larder/internal/source"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers"
)

// The simulation of workers of clients: the coordinator, the Crew, the rings and the tiers are the daemon's own. The
// time, the processes of the workers, the loop and the pool are models, so one seed gives one run.

// yard is the part of the daemon that carries out the work of jobs whose samples workers of clients make.
type yard struct {
	coresim.Desk
	t     testing.TB
	r     *xrand.Rand
	plan  *simPlan
	crew  *Crew
	store *tiers.Store
	rings *ring.Set
	data  *source.Dataset

	jobs     map[ident.JobID]*simJob
	recipes  map[ident.RecipeID]bool // of keys
	ended    map[ident.JobID]bool
	closed   map[ring.Key]bool
	into     map[coordinator.FlightID]*coordinator.Fill // of flights of these jobs; nil = it has no row
	asked    map[any]bool                               // what the Crew is to answer: flights and rows
	native   int                                        // ops that run for the Crew
	sending  int                                        // answers on their way
	fills    map[simRow]coordinator.Fill                // of batches that are not delivered
	copies   map[coordinator.FlightID][]byte            // of the pool
	agents   []*agent
	rounding bool // a round of the feeder is to come
	bad      map[uint64]bool
	makes    map[coordinator.FlightID]ident.Key // what is to be kept
	failed   map[*task]uint32                   // the worker that failed it last
	empty    map[ident.Key]bool                 // that failed: their places stay, so that no order changes
	lost     int                                // entries that a tier lost
	counts   map[any]*simCount                  // of asked: what workers did to each
	stacks   int                                // that workers sent
	stacked  int                                // tasks that they answered with them
	large    int                                // of the stacks: of 8 tasks and more
	parts    int                                // times that they answered in several parts
	rows     int                                // that were delivered, and looked at
}

// simJob is a job of the yard.
type simJob struct {
	work.Job
	kind    simKind
	client  *coresim.Client
	present bool // its client
}

type simRow struct {
	delivery coordinator.DeliveryID
	row      int
}

// simCatalog is the dataset of all simulations.
func simCatalog(t testing.TB) *source.Dataset {
	t.Helper()
	catalog, err := source.OpenCatalog(source.CatalogConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := catalog.Close(); err != nil {
			t.Error(err)
		}
	})
	d, _, err := catalog.AddMade(context.Background(), source.Made{Name: "sim", Length: simSamples})
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := d.Sample(simSamples - 1); !ok || s != simSamples-1 {
		t.Fatal("objects of the first dataset are not its samples")
	}
	return d
}

func newYard(t testing.TB, desk coresim.Desk, plan *simPlan, data *source.Dataset) *yard {
	t.Helper()
	store, err := tiers.Open(tiers.Config{VerifyEvery: 1, ChunkBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	y := &yard{Desk: desk, t: t, r: xrand.New(plan.seed, 31), plan: plan, store: store, data: data,
		rings: ring.NewSet(func(ring.Key) {}), jobs: map[ident.JobID]*simJob{}, recipes: map[ident.RecipeID]bool{},
		ended: map[ident.JobID]bool{}, closed: map[ring.Key]bool{},
		into: map[coordinator.FlightID]*coordinator.Fill{}, asked: map[any]bool{},
		fills: map[simRow]coordinator.Fill{}, copies: map[coordinator.FlightID][]byte{}, bad: map[uint64]bool{},
		makes: map[coordinator.FlightID]ident.Key{}, empty: map[ident.Key]bool{},
		failed: map[*task]uint32{}, counts: map[any]*simCount{}}
	y.crew = New(Config{
		Window: plan.window, MaxRecord: plan.maxRecord, Room: plan.room, Store: store, Tiers: work.NewSerial(),
		Rings: y.rings, Meters: work.NewMeters(2, 2), Send: y.send, Native: y.runNative,
		Owns:  func(pid int32, id ident.JobID) bool { return y.jobs[id] != nil && y.jobs[id].pid() == pid },
		Ended: func(id ident.JobID) bool { return y.ended[id] },
		Note:  func(slog.Level, string, ...any) {},
		Now:   func() time.Time { return time.Unix(1_700_000_000, 0).Add(desk.Now()) },
		After: func(d time.Duration, f func()) func() bool {
			waits := true
			desk.After(d, func() {
				if waits {
					waits = false
					f()
					y.kick()
				}
			})
			return func() bool { was := waits; waits = false; return was }
		},
	})
	y.rescue()
	return y
}

func (j *simJob) pid() int32 { return 1000 + int32(j.ID) }

// some is a time from 0 to d.
func (y *yard) some(d time.Duration) time.Duration { return time.Duration(y.r.IntN(int(d) + 1)) }

// kick has the feeder of the Crew look, as its goroutine would, if it has something to do.
func (y *yard) kick() {
	c := y.crew
	c.Flush()
	c.mu.Lock()
	work := len(c.mu.added)+len(c.mu.fresh)+len(c.mu.dropped) > 0
	c.mu.Unlock()
	if !work || y.rounding {
		return
	}
	y.rounding = true
	y.After(y.some(300*time.Microsecond), func() {
		y.rounding = false
		y.crew.round()
		y.kick()
	})
}

// Joined implements coresim.Outside.
func (y *yard) Joined(id ident.JobID, c *coresim.Client) {
	if !c.Making.Workers {
		return
	}
	k := y.plan.kinds[c.Spec.Name]
	j := &simJob{kind: k, client: c, present: true, Job: work.Job{ID: id, Data: y.data, Recipe: k.recipe(),
		Made: &work.Made{Steps: k.steps, Cut: k.cut, Item: simSchemas[k.formAt(1)], Out: simSchemas[k.form],
			Timeout: y.plan.timeout, Runs: k.runs()}}}
	y.jobs[id] = j
	y.recipes[j.Recipe.Prefix()], y.recipes[j.Recipe.SuffixID()] = true, true
	y.staff(j)
}

// Do implements coresim.Outside as Engine.Do does.
func (y *yard) Do(eff coordinator.Effect) bool {
	defer y.kick()
	switch x := eff.(type) {
	case coordinator.Prepare:
		if y.jobs[x.Job] == nil {
			return false
		}
		if y.into[x.Flight] = nil; x.Keep {
			y.makes[x.Flight] = x.Key
		}
		if x.Into != nil {
			f := y.note(x.Into)
			y.into[x.Flight] = &f
		}
		y.hand(eff, x.Flight, y.jobs[x.Job])
		return true
	case coordinator.Augment:
		if y.jobs[x.Job] == nil {
			return false
		}
		if y.into[x.Flight] = nil; x.Keep {
			y.makes[x.Flight] = x.Key
		}
		y.augment(x)
		return true
	case *coordinator.Fill:
		if y.jobs[x.Job] == nil {
			return false
		}
		y.fill(x)
		return true
	case coordinator.Discard:
		if _, ours := y.into[x.Flight]; !ours {
			return false
		}
		delete(y.copies, x.Flight)
		y.crew.Discard(x.Flight)
		return true
	case coordinator.FreeKey:
		if y.recipes[x.Key.Recipe] {
			y.store.Free(x.Key)
			return true
		}
	default:
		y.watch(eff)
	}
	return false
}

// watch sees what others do too.
func (y *yard) watch(eff coordinator.Effect) {
	switch x := eff.(type) {
	case coordinator.SetBudget:
		if err := y.store.SetBudget(x.Form, x.Bytes); err != nil {
			y.Fail("%v", err)
		}
	case coordinator.Deliver:
		y.delivered(x)
	case coordinator.CloseRank:
		k := ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc}
		y.closed[k] = true
		r := y.rings.Take(k)
		y.crew.Closed(k)
		if r != nil {
			r.Close(nil)
			r.Release()
		}
		if j := y.jobs[x.Job]; j != nil && x.Rank == 0 {
			y.leaves(j)
		}
	case coordinator.JobEnded:
		y.ended[x.Job] = true
		if y.jobs[x.Job] != nil {
			y.crew.Ended(x.Job)
		}
	}
}

// hand passes work to the Crew.
func (y *yard) hand(eff coordinator.Effect, what any, j *simJob) {
	if y.asked[what] {
		y.Fail("%v is asked for twice", what)
	}
	y.asked[what] = true
	y.expect(what, objectOf(eff))
	f, _ := eff.(*coordinator.Fill)
	if f == nil {
		y.crew.Add(eff, &j.Job, nil)
		return
	}
	y.crew.Add(eff, &j.Job, y.rings.Hold(ring.Key{Job: f.Job, Rank: f.Rank, Inc: f.Inc}))
}

// note remembers what a row is to be, and sees that its ring is there, unless its client is gone.
func (y *yard) note(x *coordinator.Fill) coordinator.Fill {
	y.fills[simRow{x.Delivery, x.Row}] = *x
	k := ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc}
	if y.closed[k] || y.rings.Get(k) != nil {
		return *x
	}
	j := y.jobs[x.Job]
	r, err := ring.New(ring.Config{Key: k, Name: "sim", Sink: simSink{},
		Layout: ring.NewRecordLayout(&simSchemas[j.kind.form], j.client.Spec.Batch, j.client.Spec.Slots, 0),
		Budget: ring.NewBudget(func() int64 { return 1 << 30 }), Failed: func(ring.Key, error) {}})
	if err != nil {
		y.t.Fatal(err)
	}
	y.rings.Add(r)
	if x.Inc > 1 && !j.present { // another client took the rank
		j.present = true
		y.staff(j)
	}
	return *x
}

// simSink is a session that is not looked at: batches are read where they lie.
type simSink struct{}

func (simSink) Batch(session.Batch)         {}
func (simSink) EpochEnd(*larderv1.EpochEnd) {}
func (simSink) Gone(error)                  {}

// send is the loop: events come to the coordinator in order.
func (y *yard) send(ev coordinator.Event) bool {
	y.sending++
	y.After(0, func() {
		y.sending--
		y.answered(ev)
	})
	return true
}

// answered hands an answer of the Crew over. There is one for each task.
func (y *yard) answered(ev coordinator.Event) {
	var what any
	var row *coordinator.Fill
	ok, why := false, ""
	switch e := ev.(type) {
	case coordinator.Prepared:
		what, row, ok, why = e.Flight, y.into[e.Flight], e.Err == "" && !e.Lost, e.Err
		y.made(e)
	case coordinator.Filled:
		r := simRow{e.Delivery, e.Row}
		f := y.fills[r]
		what, row, ok, why = r, &f, e.Err == "" && !e.Lost, e.Err
	}
	if !y.asked[what] {
		y.Fail("%#v answers nothing, or twice", ev)
		return
	}
	delete(y.asked, what)
	y.settled(what, why)
	if ok && row != nil {
		y.Wrote(row)
	}
	y.Report(ev)
	y.kick()
}

// made notes what became of what was to be kept. A tier may lose it later, as it does what its checksum does not fit.
func (y *yard) made(e coordinator.Prepared) {
	k, ok := y.makes[e.Flight]
	if !ok || e.Lost {
		return
	}
	delete(y.makes, e.Flight)
	y.empty[k] = e.Err != ""
	if e.Kept && y.plan.lose > 0 && y.r.IntN(8) == 0 {
		y.plan.lose--
		y.lost++
		y.After(y.some(80*time.Millisecond), func() { y.store.Free(k) })
	}
}

// fill is Engine.handFill: what is a copy of a record, or what built-in ops make of one, is done by the pool.
func (y *yard) fill(x *coordinator.Fill) {
	f := y.note(x)
	j := y.jobs[x.Job]
	ready := j.Made.Ready(x.From.Key.Form)
	if !ready && j.Made.Suffix() == nil {
		y.hand(x, simRow{x.Delivery, x.Row}, j)
		return
	}
	r := y.rings.Hold(ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc})
	y.After(y.some(200*time.Microsecond), func() {
		ev := coordinator.Filled{Delivery: f.Delivery, Row: f.Row}
		blob, ok := y.open(f.From)
		if ev.Lost = !ok; ok && !ready {
			blob, ev.Augments = y.suffix(j, blob, f.Object, f.Seed, f.Instance), 1
		}
		if r != nil {
			if v, err := record.Open(blob); ok && (err != nil || work.PutRecord(r, x, &j.Job, v) != nil) {
				y.Fail("a row cannot be written")
			}
			r.Release()
		}
		if ok {
			y.Wrote(&f)
		}
		y.Report(ev)
		y.kick()
	})
}

// augment is Engine.handAugment.
func (y *yard) augment(x coordinator.Augment) {
	j := y.jobs[x.Job]
	if j.Made.Suffix() == nil {
		y.hand(x, x.Flight, j)
		return
	}
	y.After(y.some(200*time.Microsecond), func() {
		ev := coordinator.Prepared{Flight: x.Flight}
		if blob, ok := y.open(x.From); !ok {
			ev.Lost = true
		} else {
			blob = y.suffix(j, blob, x.Key.Object, x.Seed, x.Instance)
			ev.Bytes = int64(len(blob))
			if ev.Kept = x.Keep && y.keep(x.Key, blob); !ev.Kept {
				y.copies[x.Flight] = blob
			}
		}
		y.Report(ev)
		y.kick()
	})
}

func (y *yard) suffix(j *simJob, blob []byte, x ident.ObjectID, seed uint64, instance uint32) []byte {
	key := prep.RandKey{Sample: uint64(x), Seed: seed, Instance: instance}
	return simBlob(j.kind.run(simOpen(blob), j.kind.cut, j.kind.steps, key), j.kind.form)
}

// keep stores a record; false = there is no room.
func (y *yard) keep(k ident.Key, blob []byte) bool {
	b, err := y.store.Alloc(k, int64(len(blob)))
	if err != nil {
		if !errors.Is(err, tiers.ErrFull) {
			y.Fail("%v", err)
		}
		return false
	}
	copy(b.Bytes, blob)
	return b.Commit(tiers.Meta{}) == nil
}

// open copies a record; false = it is gone, which only a tier may lose.
func (y *yard) open(from coordinator.Source) ([]byte, bool) {
	if from.Flight == 0 {
		v, err := y.store.Open(from.Key)
		if err != nil {
			if y.lost == 0 && (from.Key.Form != ident.Augmented || !y.empty[from.Key]) {
				y.Fail("%s is read but not stored", from.Key)
			}
			return nil, false
		}
		defer v.Close()
		return append([]byte(nil), v.Bytes...), true
	}
	b, ok := y.copies[from.Flight]
	if !ok {
		b, ok = y.crew.Copy(from.Flight)
	}
	if !ok {
		y.Fail("working copy %d is read but does not exist", from.Flight)
	}
	return append([]byte(nil), b...), ok
}

// runNative is Pool.Native.
func (y *yard) runNative(j *work.Job, runs []work.Run, key prep.RandKey, blob []byte, done func([]byte, error)) {
	y.native++
	y.After(y.some(500*time.Microsecond), func() {
		y.native--
		k := y.jobs[j.ID].kind
		first, last := runs[0].First, runs[len(runs)-1].Last
		if y.plan.poison[key.Sample] == fateOp {
			done(nil, errors.New("the op cannot take it"))
		} else {
			done(simBlob(k.run(simOpen(blob), first, last, key), k.formAt(last)), nil)
		}
		y.kick()
	})
}

// delivered looks at the rows of a batch where they lie: what each holds is what its sample, its seed and its instance
// give, whoever made it and how often it was tried.
func (y *yard) delivered(x coordinator.Deliver) {
	j := y.jobs[x.Job]
	if j == nil {
		return
	}
	r := y.rings.Get(ring.Key{Job: x.Job, Rank: x.Rank, Inc: x.Inc})
	for _, b := range x.Bad {
		y.bad[uint64(b.Object)] = true
	}
	for _, row := range x.Rows {
		f, ok := y.fills[simRow{x.Delivery, row}]
		if !ok || r == nil {
			y.Fail("row %d of batch %d of job %d has no ring, or was not asked for", row, x.Delivery, x.Job)
			return
		}
		at := int64(x.Slot)*r.SlotBytes + int64(r.Fields[0].GetOffset()) + 32*int64(row)
		got := simValue(r.Segment().Bytes()[at:])
		seed := f.Seed
		if j.client.Share {
			seed = got[1] // of the group
		}
		want := j.kind.whole(uint64(f.Object), seed, f.Instance)
		if odd := int64(r.Fields[1].GetOffset()) + int64(row); j.kind.form == formFlagged &&
			r.Segment().Bytes()[int64(x.Slot)*r.SlotBytes+odd] != byte(want[3]&1) || got != want {
			y.Fail("sample %d of job %d, instance %d: %x, want %x", f.Object, x.Job, f.Instance, got, want)
			return
		}
		delete(y.fills, simRow{x.Delivery, row})
		y.rows++
	}
}

// Check implements coresim.Outside: nothing is lost, nothing held twice, and nobody waits for what a worker could do.
func (y *yard) Check(core *coordinator.Core, over bool) error {
	c := y.crew
	c.mu.Lock()
	defer c.mu.Unlock()
	tasks := len(c.mu.coming) + len(c.mu.added) + len(c.mu.dropped) + len(c.mu.judged.tasks) + y.native
	held, kept := int64(0), int64(0)
	for _, f := range c.mu.order {
		tasks += c.mu.queues[f].len()
	}
	for _, w := range c.mu.workers {
		tasks += len(w.held)
		inputs := 0
		for _, h := range slices.Concat(w.held, w.lent) {
			if h.in.n > 0 {
				inputs++
			}
		}
		if n := len(w.held) + len(w.lent); n > w.most || w.taking != 0 || inputs != len(w.inputs) {
			return fmt.Errorf("worker %d has %d tasks, and may have %d; %d are copied; %d inputs of %d are used", w.id, n,
				w.most, w.taking, inputs, len(w.inputs))
		}
	}
	for _, n := range c.mu.held { // order-free: a sum
		held += n
	}
	for _, x := range c.mu.copies { // order-free: a sum
		kept += int64(cap(x.blob))
	}
	if held < kept || tasks == 0 && held > kept {
		return fmt.Errorf("%d bytes are held, %d of them by working copies, for %d tasks", held, kept, tasks)
	}
	answers := y.sending
	for _, a := range y.agents {
		answers += len(a.w.answers)
	}
	if len(y.asked) != tasks+answers {
		return fmt.Errorf("%d tasks are to be answered; %d are there, and %d answers", len(y.asked), tasks, answers)
	}
	if err := y.lent(); err != nil {
		return err
	}
	if err := y.idle(); err != nil {
		return err
	}
	if !over {
		return nil
	}
	if tasks != 0 || held != 0 || len(c.mu.copies) != 0 || len(y.copies) != 0 || len(y.asked) != 0 || y.rings.Len() != 0 {
		return fmt.Errorf("at the end %d tasks, %d bytes held, %d and %d working copies, %d unanswered, %d rings", tasks,
			held, len(c.mu.copies), len(y.copies), len(y.asked), y.rings.Len())
	}
	for _, v := range core.Tiers() {
		if n := y.store.Stats(v.Form).Entries; n > v.Entries {
			return fmt.Errorf("%d entries of form %s are stored, %d are known", n, v.Form, v.Entries)
		}
		if u := y.store.Used(v.Form); u > v.Budget {
			return fmt.Errorf("form %s has %d bytes of %d", v.Form, u, v.Budget)
		}
	}
	return nil
}
