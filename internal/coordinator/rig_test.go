package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"larder/dsa"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/jobs"
)

const sampleBytes = 600 // of a decoded sample; its stored bytes are 100

// rig drives a Core by hand. step takes one event and returns what the core wants done, in words; run plays the
// executor until nothing is left to do.
type rig struct {
	t   *testing.T
	c   *Core
	now time.Time

	record   func(Persist) // sees what is durable
	todo     []Effect
	hold     func(Effect) bool // effects that run leaves undone
	bad      map[ident.ObjectID]bool
	badFill  map[ident.ObjectID]bool
	away     func(ident.ObjectID) bool // whose place does not answer; nil = all do
	got      []Deliver
	ends     []EndEpoch
	closed   []CloseRank
	replies  map[Token]Reply
	rows     map[DeliveryID]map[int]*Fill // what was filled
	prepares []Prepare
	augments []Augment
	solves   []Solve
	bytes    func(ident.ObjectID) int64 // of a decoded sample; nil = sampleBytes
	token    Token
	see      func(Effect)              // sees each effect before it is done
	told     func(Event, []Effect)     // sees each event, and the effects that it had
	inBlock  func(ident.ObjectID) bool // the object lies in a block in memory
	spoiled  bool                      // its state was broken on purpose: it is not checked at the end
}

func newRig(t *testing.T, sizes [ident.NumForms]int64, change ...func(*Config)) *rig {
	t.Helper()
	cfg := Config{
		Seed: 1, Lease: 10 * time.Second, InFlight: 4, Bytes: func(ident.ObjectID) int64 { return 100 },
		Tiers: TierConfig{Total: max(sizes[1], 0) + max(sizes[2], 0) + max(sizes[3], 0), Sizes: sizes},
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, c: c, now: time.Unix(1_700_000_000, 0), bad: map[ident.ObjectID]bool{},
		badFill: map[ident.ObjectID]bool{},
		replies: map[Token]Reply{}, rows: map[DeliveryID]map[int]*Fill{}}
	t.Cleanup(func() {
		if r.spoiled {
			return
		}
		if err := c.Check(); err != nil && !t.Failed() {
			t.Errorf("at the end: %v", err)
		}
	})
	return r
}

// decodedTier is a rig whose decoded tier holds n samples.
func decodedTier(t *testing.T, n int, change ...func(*Config)) *rig {
	t.Helper()
	return newRig(t, [ident.NumForms]int64{ident.Decoded: int64(n) * sampleBytes}, change...)
}

// step takes an event and says in words what must be done.
func (r *rig) step(ev Event) []string {
	r.t.Helper()
	out := r.c.Step(r.now, ev, nil)
	if r.told != nil {
		r.told(ev, out)
	}
	var words []string
	for _, e := range out {
		words = append(words, describe(e))
	}
	r.todo = append(r.todo, out...)
	return words
}

// expect compares, with a readable difference.
func (r *rig) expect(got []string, want ...string) {
	r.t.Helper()
	if !slices.Equal(got, want) {
		r.t.Errorf("got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// run does all effects that are not held.
func (r *rig) run() {
	r.t.Helper()
	for n := 0; ; n++ {
		i := slices.IndexFunc(r.todo, func(e Effect) bool { return r.hold == nil || !r.hold(e) })
		if i < 0 {
			return
		}
		if n > 1_000_000 {
			r.t.Fatal("it never ends")
		}
		e := r.todo[i]
		r.todo = slices.Delete(r.todo, i, i+1)
		r.do(e)
		if r.t.Failed() {
			r.t.FailNow()
		}
	}
}

func (r *rig) do(e Effect) {
	r.t.Helper()
	if r.see != nil {
		r.see(e)
	}
	switch x := e.(type) {
	case Prepare:
		r.prepares = append(r.prepares, x)
		ev := Prepared{Flight: x.Flight, Kept: x.Keep, Bytes: sampleBytes, Encoded: x.KeepEncoded}
		if r.bytes != nil {
			ev.Bytes = r.bytes(x.Key.Object)
		}
		if x.From == ident.Stored {
			ev.Read = 100
			if r.inBlock != nil && r.inBlock(x.Key.Object) {
				ev.Read, ev.Held = 0, true
			}
		}
		if r.away != nil && r.away(x.Key.Object) && x.From == ident.Stored {
			r.step(Prepared{Flight: x.Flight, Err: "the network is down", Away: true})
			return
		}
		if r.bad[x.Key.Object] {
			ev.Err, ev.Kept, ev.At = "it is broken", false, 8
		}
		if x.Into != nil {
			if r.badFill[x.Key.Object] {
				ev.Err = "it cannot be augmented"
			}
			if ev.Err == "" {
				r.fill(x.Into)
				ev.Augments = 1
			}
		}
		r.step(ev)
	case Augment:
		r.augments = append(r.augments, x)
		r.step(Prepared{Flight: x.Flight, Kept: x.Keep, Bytes: 150})
	case *Fill:
		r.fill(x)
		ev := Filled{Delivery: x.Delivery, Row: x.Row, Augments: 1}
		if x.From.Key.Form == ident.Augmented {
			ev.Augments = 0
		}
		if r.badFill[x.Object] {
			ev.Err = "it cannot be augmented"
		}
		r.step(ev)
	case Solve:
		r.solves = append(r.solves, x)
		r.step(x.Do())
	case Persist:
		if r.record != nil {
			r.record(x)
		}
		r.step(Persisted{Seq: x.Seq})
	case Deliver:
		r.got = append(r.got, x)
	case EndEpoch:
		r.ends = append(r.ends, x)
	case CloseRank:
		r.closed = append(r.closed, x)
	case Reply:
		r.replies[x.Token] = x
	case Complain:
		r.t.Errorf("complaint: %s", x.Text)
	}
}

func (r *rig) fill(x *Fill) {
	if r.rows[x.Delivery] == nil {
		r.rows[x.Delivery] = map[int]*Fill{}
	}
	written := *x // it is good until it is answered
	r.rows[x.Delivery][x.Row] = &written
}

// ask steps an event with a token, runs, and returns the reply.
func (r *rig) ask(build func(Token) Event) Reply {
	r.t.Helper()
	r.token++
	r.step(build(r.token))
	r.run()
	rep, ok := r.replies[r.token]
	if !ok {
		r.t.Fatal("no reply")
	}
	return rep
}

func (r *rig) ok(rep Reply) Reply {
	r.t.Helper()
	if rep.Err != nil {
		r.t.Fatal(rep.Err)
	}
	return rep
}

// blockSize is how many objects lie together for a job of mode Blocks.
const blockSize = 8

func blockOf(x ident.ObjectID) uint32 { return uint32(x / blockSize) }

// peer is one client: a job's rank.
type peer struct {
	r    *rig
	job  ident.JobID
	rank int
	inc  ident.Incarnation
	seen int // of r.got
}

// register makes a job over objects with ids from..to-1, in their order, unless change says otherwise.
func (r *rig) register(name string, from, to, batch int, change ...func(*Register)) ident.JobID {
	r.t.Helper()
	return r.ok(r.ask(func(t Token) Event { return registration(t, name, from, to, batch, change...) })).Job
}

func registration(t Token, name string, from, to, batch int, change ...func(*Register)) Register {
	var sub []ident.ObjectID
	for x := from; x < to; x++ {
		sub = append(sub, ident.ObjectID(x))
	}
	e := Register{
		Token: t, Spec: jobs.Spec{Name: name, Subset: len(sub), Batch: batch, World: 1, Slots: 3},
		Sample: dsa.JobSpec{Mode: dsa.Sequential, Subset: sub, Block: blockOf, Window: 2}, Prefix: 1, Suffix: 2,
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

func (r *rig) attach(job ident.JobID, rank int) *peer {
	r.t.Helper()
	rep := r.ok(r.ask(func(t Token) Event { return Attach{Token: t, Job: job, Rank: rank} }))
	return &peer{r: r, job: job, rank: rank, inc: rep.Inc}
}

// join registers, attaches and begins epoch 0.
func (r *rig) join(name string, from, to, batch int, change ...func(*Register)) *peer {
	r.t.Helper()
	p := r.attach(r.register(name, from, to, batch, change...), 0)
	p.epoch(0)
	return p
}

func (p *peer) epoch(e uint32) {
	p.r.t.Helper()
	p.r.ok(p.tryEpoch(e))
}

func (p *peer) tryEpoch(e uint32) Reply {
	p.r.t.Helper()
	return p.r.ask(func(t Token) Event { return StartEpoch{Token: t, Job: p.job, Rank: p.rank, Inc: p.inc, Epoch: e} })
}

// next returns the batch the client would see next, nil when none is there.
func (p *peer) next() *Deliver {
	for ; p.seen < len(p.r.got); p.seen++ {
		if d := p.r.got[p.seen]; d.Job == p.job && d.Rank == p.rank && d.Inc == p.inc {
			p.seen++
			return &d
		}
	}
	return nil
}

// must is next that has to be there.
func (p *peer) must() *Deliver {
	p.r.t.Helper()
	d := p.next()
	if d == nil {
		p.r.t.Fatalf("no batch for job %d rank %d", p.job, p.rank)
	}
	return d
}

func (p *peer) release(d *Deliver) []string { return p.releaseAfter(d, 0) }

// releaseAfter releases a batch for which the client waited so long.
func (p *peer) releaseAfter(d *Deliver, waited time.Duration) []string {
	p.r.t.Helper()
	return p.r.step(Released{Job: p.job, Rank: p.rank, Inc: p.inc, Slot: d.Slot, Gen: d.Gen, Waited: waited})
}

// objects are what lies in a batch.
func (r *rig) objects(d *Deliver) []ident.ObjectID {
	out := []ident.ObjectID{}
	for _, i := range d.Rows {
		out = append(out, r.rows[d.Delivery][i].Object)
	}
	return out
}

// drain takes and releases batches of an epoch until none comes; it returns the objects in order.
func (p *peer) drain() []ident.ObjectID {
	p.r.t.Helper()
	var out []ident.ObjectID
	for {
		d := p.next()
		if d == nil {
			return out
		}
		out = append(out, p.r.objects(d)...)
		p.release(d)
		p.r.run()
	}
}

func (p *peer) detach(clean bool) []string {
	p.r.t.Helper()
	return p.r.step(Detached{Job: p.job, Rank: p.rank, Inc: p.inc, Clean: clean})
}

func (r *rig) job(id ident.JobID) *jobs.Job {
	j, ok := r.c.JobByID(id)
	if !ok {
		r.t.Fatalf("no job %d", id)
	}
	return &j
}

func (r *rig) check() {
	r.t.Helper()
	if err := r.c.Check(); err != nil {
		r.t.Error(err)
	}
}

// after lets time pass and gives the core its tick.
func (r *rig) after(d time.Duration) []string {
	r.t.Helper()
	r.now = r.now.Add(d)
	w := r.step(Tick{})
	r.run()
	return w
}

func hasPrefix(words []string, prefix string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, prefix) })
}

func refused(t *testing.T, rep Reply, reason errs.Reason, words ...string) {
	t.Helper()
	f, ok := errors.AsType[*errs.Error](rep.Err)
	if !ok || f.Reason != reason || f.Hint == "" {
		t.Errorf("reply %v, want %s", rep.Err, reason)
		return
	}
	for _, w := range words {
		if !strings.Contains(f.Error(), w) {
			t.Errorf("%q does not say %q", f, w)
		}
	}
}

func recordName(r Record) string {
	switch r.(type) {
	case RecordRegistered:
		return "register"
	case RecordAttached:
		return "attach"
	case RecordEpochStarted:
		return "epoch"
	case RecordAssigned, RecordGivenEarlier:
		return "assign"
	case RecordReturned:
		return "return"
	case RecordEpochEnded:
		return "epoch-end"
	case RecordQuarantined:
		return "quarantine"
	case RecordEnded:
		return "end"
	case RecordSubsetChanged:
		return "subset"
	case RecordPaused:
		return "pause"
	case RecordUnpaused:
		return "resume"
	case RecordDealt:
		return "dealt"
	}
	return fmt.Sprintf("%T", r)
}

// describe puts an effect into a few words.
func describe(e Effect) string {
	form := func(s Source) string {
		if s.Flight != 0 {
			return "the working copy"
		}
		return s.Key.Form.String()
	}
	switch x := e.(type) {
	case Prepare:
		s := fmt.Sprintf("prepare %d from %s", x.Key.Object, x.From)
		if x.Keep {
			s += ", keep"
		}
		if x.KeepEncoded {
			s += ", keep encoded"
		}
		if x.Into != nil {
			s += fmt.Sprintf(", in place for job %d", x.Into.Job)
		}
		return s
	case Augment:
		return fmt.Sprintf("augment %d as instance %d from %s", x.Key.Object, x.Instance, form(x.From))
	case *Fill:
		return fmt.Sprintf("fill %d for job %d from %s", x.Object, x.Job, form(x.From))
	case Discard:
		return "discard"
	case FreeKey:
		return fmt.Sprintf("free %s %d", x.Key.Form, x.Key.Object)
	case SetBudget:
		return fmt.Sprintf("budget %s %d", x.Form, x.Bytes)
	case Solve:
		return "solve"
	case Deliver:
		s := fmt.Sprintf("deliver job %d rank %d epoch %d step %d: %d rows", x.Job, x.Rank, x.Epoch, x.Step, len(x.Rows))
		if len(x.Bad) > 0 {
			s += fmt.Sprintf(", %d bad", len(x.Bad))
		}
		return s
	case EndEpoch:
		s := fmt.Sprintf("epoch %d of job %d rank %d is over", x.Epoch, x.Job, x.Rank)
		if x.Account != nil {
			s += ": " + x.Account.State.String()
		}
		if x.Final {
			s += ", final"
		}
		return s
	case CloseRank:
		return strings.TrimSuffix(fmt.Sprintf("close job %d rank %d: %s", x.Job, x.Rank, x.Reason), ": ")
	case JobEnded:
		return fmt.Sprintf("job %d ended", x.Job)
	case Persist:
		return fmt.Sprintf("persist %s of job %d", recordName(x.Record), x.Record.JobID())
	case Reply:
		if x.Err != nil {
			return "refuse: " + string(errs.From(x.Err).Reason)
		}
		return "reply"
	case Complain:
		return "complain: " + x.Text
	}
	return fmt.Sprintf("%T", e)
}
