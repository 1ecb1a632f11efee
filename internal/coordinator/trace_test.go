package coordinator

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"larder/dsa"
	"larder/internal/ident"
	"larder/jobs"
)

// trace plays a world of testdata. Each command of the file is something that a client, a user or a daemon does. Its
// output is what the Core decides, in words: lines with ">" are events that follow from the command, other lines are
// effects of the event above them. After each command the records of the journal become durable, unless they are held;
// samples are prepared by the commands work and train alone.
//
//	world [encoded=N] [decoded=N] [augmented=N] [lease=D] [idle=D] [in-flight=N] [places=(A-B, C-D)]
//	    a daemon whose tiers hold so many samples; samples of one place fail together
//	register JOB samples=A-B batch=N [slots=N] [ranks=N] [order=MODE] [epochs=N] [on-error=skip] [drop-last] [even]
//	    [ragged] [share] [given] [window=N] [seed=N] [recipe=N] [on-request]
//	    ragged: rows of unequal size; on-request: an epoch begins when it is asked for, not before
//	    [resumes=OLD epoch=N step=N]    it begins with what job OLD left of an epoch after so many steps of each rank
//	attach JOB[/RANK]    start JOB[/RANK] [epoch=N]    join JOB ...    the last is all three, for every rank
//	work [first=N]                   the workers do what was handed out, or the first N tasks of it
//	hold records|prepares|fills, unhold    such effects are left undone
//	lose samples=A-B                 the tiers have lost what held fills are to take of these samples
//	release JOB[/RANK]               the client returns the oldest batch that it has
//	train JOB[/RANK] [batches=N]     it returns batch after batch, while the workers work
//	cut JOB[/RANK], die JOB[/RANK], leave JOB[/RANK]    its connection or process ends, or it leaves in order
//	reconnect JOB[/RANK] step=N      the client of a cut connection comes back and needs this step next
//	restart                          the daemon dies; the next one restores the jobs from the journal
//	give JOB [first=N]               lines of input are the batches that a job with a given order wants; "end" ends it
//	spoil samples=A-B                these samples cannot be decoded from now on
//	away samples=A-B, back           reads of these samples are not answered, and are again
//	pause JOB, unpause JOB, drain JOB, kill JOB, subset JOB samples=A-B, resize decoded=N ..., wait D, show
type trace struct {
	*rig
	sizes  [ident.NumForms]int64
	config []func(*Config)
	jobs   map[string]*tracedJob
	order  []string // names of jobs, as they came
	names  map[ident.JobID]string
	asked  map[Token]string // what a reply answers
	flies  map[FlightID]ident.ObjectID
	held   func(Effect) bool
	lines  []line
	begun  time.Time
}

// tracedJob is what the driver knows of a job: what its client was given, and what the journal has of it.
type tracedJob struct {
	id     ident.JobID
	reg    Register
	peers  []*peer
	epochs []uint32 // of each rank: the one that it asked for
	log    *journaled
	paused bool
	ended  bool
}

func newTrace() *trace {
	return &trace{jobs: map[string]*tracedJob{}, names: map[ident.JobID]string{}, asked: map[Token]string{},
		flies: map[FlightID]ident.ObjectID{}, held: func(Effect) bool { return false }}
}

// commands are those of the files, by name.
var commands = map[string]func(*trace, *args){
	"world": (*trace).world, "register": (*trace).register, "attach": (*trace).attach, "start": (*trace).start,
	"join": (*trace).join, "work": (*trace).work, "hold": (*trace).keep, "unhold": (*trace).unhold,
	"lose":    (*trace).lose,
	"release": (*trace).releases, "train": (*trace).train, "cut": (*trace).cut, "die": (*trace).die,
	"leave": (*trace).leave, "reconnect": (*trace).reconnect, "restart": (*trace).restart, "give": (*trace).give,
	"spoil": (*trace).spoil, "away": (*trace).goesAway, "back": (*trace).back, "pause": (*trace).pause,
	"unpause": (*trace).unpause, "drain": (*trace).drain, "kill": (*trace).kill, "subset": (*trace).subset,
	"resize": (*trace).resize, "wait": (*trace).wait, "show": (*trace).show,
}

// play does a command and returns what was decided.
func (tr *trace) play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	do, known := commands[d.Cmd]
	if !known {
		d.Fatalf(t, "there is no command %q", d.Cmd)
	}
	a := &args{t: t, d: d, read: map[string]bool{}}
	if tr.rig == nil && d.Cmd != "world" {
		d.Fatalf(t, "a file begins with the command world")
	}
	tr.lines = nil
	do(tr, a)
	a.done()
	tr.settle()
	tr.check()
	if len(tr.lines) == 0 {
		return "nothing to do\n"
	}
	return written(tr.lines)
}

// settle makes records durable and takes replies; what workers do stays.
func (tr *trace) settle() {
	tr.hold = func(e Effect) bool { return isWork(e) || tr.held(e) }
	tr.run()
	for tr.c.Deadline().Equal(tr.now) { // work that the Core does in slices, as its loop has it done
		tr.step(Tick{})
		tr.run()
	}
	tr.hold = tr.held
}

func isWork(e Effect) bool {
	return is[Prepare](e) || is[Augment](e) || is[*Fill](e) || is[Solve](e)
}

func (tr *trace) world(a *args) {
	tr.sizes = a.tiers()
	lease, idle, most := a.duration("lease", 10*time.Second), a.duration("idle", 0), a.number("in-flight", 16)
	places := a.each("places")
	tr.config = []func(*Config){func(c *Config) {
		c.Lease, c.IdleTimeout, c.InFlight = lease, idle, most
		if len(places) > 0 {
			c.Place = func(x ident.ObjectID) ident.Place {
				at := slices.IndexFunc(places, func(of []ident.ObjectID) bool { return slices.Contains(of, x) })
				return ident.Place{Device: uint64(at + 1)}
			}
		}
	}}
	tr.begin(newRig(a.t, tr.sizes, tr.config...))
	tr.begun = tr.now
	for _, v := range tr.c.Tiers() {
		if v.Budget > 0 {
			tr.add(line{before: fmt.Sprintf("tier %s: %d bytes", v.Form, v.Budget)})
		}
	}
	if len(tr.lines) == 0 {
		tr.add(line{before: "no tiers"})
	}
}

// begin has a daemon run.
func (tr *trace) begin(r *rig) {
	tr.rig = r
	r.told = tr.tell
	r.record = func(p Persist) {
		switch x := p.Record.(type) {
		case RecordRegistered:
			tr.names[x.Job] = x.Name
			tr.jobs[x.Name].id = x.Job
		case RecordEnded:
			tr.jobs[tr.names[x.Job]].ended = true
		}
		j := tr.jobs[tr.names[p.Record.JobID()]]
		j.log.add(p, j.reg)
	}
}

// request steps an event that is answered.
func (tr *trace) request(what string, build func(Token) Event) {
	tr.token++
	tr.asked[tr.token] = what
	tr.step(build(tr.token))
}

func (tr *trace) register(a *args) {
	name := a.name()
	from, to := a.span("samples")
	reg := registration(tr.token+1, name, from, to, a.number("batch", 2), func(e *Register) {
		e.Spec.Slots, e.Spec.World = a.number("slots", 2), a.number("ranks", 1)
		e.Spec.Epochs = uint32(a.number("epochs", 0))
		e.Spec.DropLast, e.Spec.Even = a.flag("drop-last"), a.flag("even")
		e.Spec.Given = a.flag("given")
		e.Sample.Mode = a.mode()
		e.Sample.Seed, e.Sample.Window = uint64(a.number("seed", 1)), a.number("window", 2)
		e.AugmentedBytes = 150
		if a.flag("ragged") {
			e.AugmentedBytes = 0
		}
		e.Share = a.flag("share")
		e.Spec.OnError = a.onError()
		e.Prefix = ident.RecipeID(a.number("recipe", 1))
		if e.Spec.Given || a.flag("on-request") {
			e.Spec.Advance = jobs.OnRequest
		}
	})
	if old := a.word("resumes", ""); old != "" {
		log, epoch := tr.jobs[old].log, uint32(a.number("epoch", 0))
		e, previous := log.epochs[log.at(epoch)], []ident.ObjectID(nil)
		if epoch > 0 {
			previous = log.given(epoch-1, 1_000)
		}
		reg.Rest = lefts(reg.Sample, epoch, e.Instance, log.given(epoch, a.number("step", 0)), previous)
	}
	if tr.jobs[name] != nil {
		tr.request("register", func(t Token) Event { return withToken(reg, t) })
		return
	}
	tr.jobs[name] = &tracedJob{reg: reg, peers: make([]*peer, reg.Spec.World), epochs: make([]uint32, reg.Spec.World),
		log: &journaled{incs: map[int]ident.Incarnation{}, before: map[uint32][]ident.ObjectID{}}}
	tr.order = append(tr.order, name)
	tr.request("register", func(t Token) Event { return withToken(reg, t) })
}

func (tr *trace) attach(a *args) { tr.attaches(a.rank(tr)) }

func (tr *trace) attaches(j *tracedJob, rank int) {
	tr.request("attach", func(t Token) Event { return Attach{Token: t, Job: j.id, Rank: rank} })
	tr.settle()
	tr.attached(j, rank)
}

// attached has the client of a rank be the one that the last request attached, unless it was refused.
func (tr *trace) attached(j *tracedJob, rank int) bool {
	r := tr.replies[tr.token]
	if r.Err == nil {
		j.peers[rank] = &peer{r: tr.rig, job: j.id, rank: rank, inc: r.Inc, seen: len(tr.got)}
	}
	return r.Err == nil
}

func (tr *trace) start(a *args) {
	j, rank := a.rank(tr)
	tr.starts(j, rank, uint32(a.number("epoch", 0)), 0)
}

// starts asks for an epoch: from its beginning, or from 1 + a step.
func (tr *trace) starts(j *tracedJob, rank int, epoch uint32, from int) {
	j.epochs[rank] = epoch
	tr.request("start", func(t Token) Event {
		return StartEpoch{Token: t, Job: j.id, Rank: rank, Inc: j.peers[rank].inc, Epoch: epoch, From: from}
	})
}

func (tr *trace) join(a *args) {
	tr.register(a)
	tr.settle()
	j := tr.jobs[a.name()]
	for rank := range j.peers {
		tr.attaches(j, rank)
	}
	for rank := range j.peers {
		tr.starts(j, rank, uint32(a.number("epoch", 0)), 0)
	}
}

func (tr *trace) work(a *args) {
	tr.hold = tr.held
	first := a.number("first", 0)
	if first == 0 {
		tr.run()
	}
	for range first {
		tr.settle()
		i := slices.IndexFunc(tr.todo, func(e Effect) bool { return !tr.held(e) })
		if i < 0 {
			a.t.Fatal("there is not so much to do")
		}
		e := tr.todo[i]
		tr.todo = slices.Delete(tr.todo, i, i+1)
		tr.do(e)
	}
}

// keep has effects of a kind wait.
func (tr *trace) keep(a *args) {
	kinds := map[string]func(Effect) bool{"records": is[Persist], "prepares": is[Prepare], "fills": is[*Fill]}
	kind, before := kinds[a.name()], tr.held
	if kind == nil {
		a.t.Fatalf("nothing is called %q", a.name())
	}
	tr.held = func(e Effect) bool { return before(e) || kind(e) }
	tr.add(line{before: "they wait"})
}

// lose answers held fills: their source is gone.
func (tr *trace) lose(a *args) {
	of := a.samples("samples")
	var lost []Filled
	tr.todo = slices.DeleteFunc(tr.todo, func(e Effect) bool {
		x, fills := e.(*Fill)
		if !fills || !slices.Contains(of, x.Object) {
			return false
		}
		tr.fill(x) // so that the event has words
		lost = append(lost, Filled{Delivery: x.Delivery, Row: x.Row, Lost: true})
		return true
	})
	for _, ev := range lost {
		tr.step(ev)
	}
}

func (tr *trace) unhold(*args) { tr.held = func(Effect) bool { return false } }

func (tr *trace) releases(a *args) {
	j, rank := a.rank(tr)
	d := j.peers[rank].next()
	if d == nil {
		a.t.Fatal("the client has no batch")
	}
	j.peers[rank].release(d)
}

func (tr *trace) train(a *args) {
	j, rank := a.rank(tr)
	tr.hold = tr.held
	tr.run()
	for n := a.number("batches", 1_000); n > 0; n-- {
		d := j.peers[rank].next()
		if d == nil {
			break
		}
		j.peers[rank].release(d)
		tr.run()
	}
}

func (tr *trace) detached(a *args, lives, clean bool) {
	j, rank := a.rank(tr)
	tr.step(Detached{Job: j.id, Rank: rank, Inc: j.peers[rank].inc, Lives: lives, Clean: clean})
}

func (tr *trace) cut(a *args)   { tr.detached(a, true, false) }
func (tr *trace) die(a *args)   { tr.detached(a, false, false) }
func (tr *trace) leave(a *args) { tr.detached(a, false, true) }

func (tr *trace) reconnect(a *args) {
	j, rank := a.rank(tr)
	held := ident.Incarnation(a.number("as", int(j.peers[rank].inc)))
	tr.request("attach", func(t Token) Event { return Attach{Token: t, Job: j.id, Rank: rank, Held: held} })
	tr.settle()
	step := a.number("step", 0)
	if tr.attached(j, rank) {
		tr.starts(j, rank, j.epochs[rank], 1+step)
	}
}

// restart has the daemon die: what was not durable is lost. The next one gets what the journal has.
func (tr *trace) restart(a *args) {
	old := tr.rig
	old.spoiled = true // it stopped in the middle of its work
	r := newRig(a.t, tr.sizes, tr.config...)
	r.bad, r.badFill, r.away, r.token, r.now = old.bad, old.badFill, old.away, old.token, old.now
	clear(tr.flies)
	tr.begin(r)
	for _, name := range tr.order {
		j := tr.jobs[name]
		if j.ended {
			continue
		}
		ev := Restore{Register: withToken(j.reg, 0), ID: j.id, Seed: j.log.seed, Bad: slices.Clone(j.log.bad),
			Paused: j.paused, Lives: make([]bool, len(j.peers))}
		for rank := range j.peers {
			ev.Ranks, ev.Lives[rank] = append(ev.Ranks, j.log.incs[rank]), true
		}
		for _, e := range j.log.epochs {
			e.Batches = slices.Clone(e.Batches)
			ev.Epochs = append(ev.Epochs, e)
		}
		tr.request("restore", func(t Token) Event { ev.Token = t; return ev })
	}
}

func (tr *trace) give(a *args) {
	j, rank := a.rank(tr)
	ev := Picks{Job: j.id, Rank: rank, Inc: j.peers[rank].inc, Epoch: j.epochs[rank], First: a.number("first", 0)}
	for l := range strings.Lines(a.d.Input) {
		if l = strings.TrimSpace(l); l == "end" {
			ev.End = true
			continue
		}
		var batch []ident.ObjectID
		for x := range strings.FieldsSeq(l) {
			batch = append(batch, ident.ObjectID(a.parse(x)))
		}
		ev.Batches = append(ev.Batches, batch)
	}
	tr.request("give", func(t Token) Event { ev.Token = t; return ev })
}

func (tr *trace) spoil(a *args) {
	for _, x := range a.samples("samples") {
		tr.bad[x] = true
	}
	tr.add(line{before: "they cannot be decoded"})
}

func (tr *trace) goesAway(a *args) {
	of := a.samples("samples")
	tr.away = func(x ident.ObjectID) bool { return slices.Contains(of, x) }
	tr.add(line{before: "reads are not answered"})
}

func (tr *trace) back(*args) {
	tr.away = nil
	tr.add(line{before: "reads are answered again"})
}

func (tr *trace) pauses(a *args, on bool) {
	j, _ := a.rank(tr)
	j.paused = on
	tr.request("pause", func(t Token) Event { return Pause{Token: t, Job: j.id, On: on} })
}

func (tr *trace) pause(a *args)   { tr.pauses(a, true) }
func (tr *trace) unpause(a *args) { tr.pauses(a, false) }

func (tr *trace) drain(a *args) {
	j, _ := a.rank(tr)
	tr.request("drain", func(t Token) Event { return Drain{Token: t, Job: j.id} })
}

func (tr *trace) kill(a *args) {
	j, _ := a.rank(tr)
	tr.request("kill", func(t Token) Event { return Kill{Token: t, Job: j.id, Reason: "killed by request"} })
}

func (tr *trace) subset(a *args) {
	j, rank := a.rank(tr)
	tr.request("subset", func(t Token) Event {
		return ChangeSubset{Token: t, Job: j.id, Rank: rank, Mark: 1, Subset: a.samples("samples")}
	})
}

func (tr *trace) resize(a *args) {
	sizes := a.tiers()
	cfg := TierConfig{Sizes: sizes}
	for _, n := range sizes {
		cfg.Total += n
	}
	tr.request("resize", func(t Token) Event { return Reconfigure{Token: t, Tiers: cfg} })
}

// wait lets time pass, with the ticks that the Core asks for.
func (tr *trace) wait(a *args) {
	d, err := time.ParseDuration(a.name())
	if err != nil {
		a.t.Fatal(err)
	}
	tr.hold = tr.held
	tr.rig.wait(d)
}

// show says what the tiers hold and in which state the jobs are.
func (tr *trace) show(*args) {
	for _, v := range tr.c.Tiers() {
		if v.Budget > 0 || v.Entries > 0 {
			tr.add(line{before: fmt.Sprintf("tier %s: %d entries, %d of %d bytes", v.Form, v.Entries, v.Used, v.Budget)})
		}
	}
	for _, name := range tr.order {
		j := tr.job(tr.jobs[name].id)
		state := fmt.Sprintf("%s: %s", name, j.State)
		if j.Paused() {
			state += ", paused"
		}
		if !j.State.Ended() {
			state += fmt.Sprintf(", %d samples of its epoch not picked yet", tr.c.needs.sampler.Remaining(j.ID))
		}
		tr.add(line{before: state})
	}
}

// args are the arguments of a command. One that its command does not read is a mistake.
type args struct {
	t    *testing.T
	d    *datadriven.TestData
	read map[string]bool
}

func (a *args) done() {
	for i, x := range a.d.CmdArgs {
		if !a.read[x.Key] && (i > 0 || x.Key != a.name()) {
			a.d.Fatalf(a.t, "%s has no argument %q", a.d.Cmd, x.Key)
		}
	}
}

// name is the first argument.
func (a *args) name() string {
	if len(a.d.CmdArgs) == 0 {
		a.d.Fatalf(a.t, "%s of what?", a.d.Cmd)
	}
	return a.d.CmdArgs[0].Key
}

// rank is the first argument, as JOB or JOB/RANK.
func (a *args) rank(tr *trace) (*tracedJob, int) {
	name, rank, _ := strings.Cut(a.name(), "/")
	j := tr.jobs[name]
	if j == nil {
		a.d.Fatalf(a.t, "there is no job %q", name)
	}
	if rank == "" {
		return j, 0
	}
	return j, a.parse(rank)
}

func (a *args) flag(key string) bool {
	a.read[key] = true
	return a.d.HasArg(key)
}

func (a *args) word(key, otherwise string) string {
	a.read[key] = true
	if x, ok := a.d.Arg(key); ok {
		return strings.Join(x.Vals, ",")
	}
	return otherwise
}

func (a *args) parse(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		a.d.Fatalf(a.t, "%v", err)
	}
	return n
}

func (a *args) number(key string, otherwise int) int {
	if w := a.word(key, ""); w != "" {
		return a.parse(w)
	}
	return otherwise
}

func (a *args) duration(key string, otherwise time.Duration) time.Duration {
	w := a.word(key, otherwise.String())
	d, err := time.ParseDuration(w)
	if err != nil {
		a.d.Fatalf(a.t, "%v", err)
	}
	return d
}

// each reads lists of samples: A-B or A, and several of them in brackets.
func (a *args) each(key string) (out [][]ident.ObjectID) {
	w := a.word(key, "")
	if w == "" {
		return nil
	}
	for part := range strings.SplitSeq(w, ",") {
		from, to, isSpan := strings.Cut(strings.TrimSpace(part), "-")
		if !isSpan {
			to = from
		}
		out = append(out, objectsFrom(a.parse(from), a.parse(to)+1))
	}
	return out
}

func (a *args) samples(key string) []ident.ObjectID { return slices.Concat(a.each(key)...) }

func (a *args) span(key string) (from, to int) {
	all := a.samples(key)
	if len(all) == 0 {
		a.d.Fatalf(a.t, "%s needs %s=A-B", a.d.Cmd, key)
	}
	return int(all[0]), int(all[len(all)-1]) + 1
}

func (a *args) mode() dsa.Mode {
	w := a.word("order", "sequential")
	at := slices.IndexFunc(allModes, func(m dsa.Mode) bool { return m.String() == w })
	if at < 0 {
		a.d.Fatalf(a.t, "there is no order %q", w)
	}
	return allModes[at]
}

func (a *args) onError() jobs.OnError {
	switch w := a.word("on-error", "raise"); w {
	case "raise":
		return jobs.Raise
	case "skip":
		return jobs.Skip
	case "substitute":
		return jobs.Substitute
	default:
		a.d.Fatalf(a.t, "there is no answer %q to a bad sample", w)
		return 0
	}
}

// tiers are sizes in samples.
func (a *args) tiers() (out [ident.NumForms]int64) {
	out[ident.Encoded] = int64(a.number("encoded", 0)) * 100
	out[ident.Decoded] = int64(a.number("decoded", 0)) * sampleBytes
	out[ident.Augmented] = int64(a.number("augmented", 0)) * 150
	return out
}
