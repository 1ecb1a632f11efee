package live

import (
	"context"
	"os"
	"slices"
	"time"

	"larder/bench/measure"
	"larder/client"
	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// A scenario may have the daemon killed (bench.Live.Kill). Its successor is started at once on the same state, and
// clients continue with the very batch that is next, by the rules of the Python client: they take the rank again under
// the incarnation that they held, and say which step they need.

// How long clients look for a daemon that went away, and how long they rest between two looks; each rest is twice the
// one before.
const (
	patience     = time.Minute
	firstPause   = 5 * time.Millisecond
	longestPause = 500 * time.Millisecond
)

// Slices of time in which samples are counted; so many of them are kept at most.
const (
	sliceTime  = 100 * time.Millisecond
	mostSlices = 400
)

// death is that of the daemon of a run, and what clients saw of it. What clients write is guarded by running.mu; the
// rest belongs to watch until that has ended, and then to who reports.
type death struct {
	jobs   []string
	start  func(context.Context) (Daemon, error)
	daemon Daemon // nil while none runs
	used   Usage  // by the one that was killed
	before *larderv1.Stats

	killed, ready time.Duration // of the run

	ranks  [][]taken // by job and rank
	slices [][]int   // by job: samples that came in each slice of the run
}

// taken is when a client had its last batch of the daemon that was killed, and its first one of the other; 0 = none.
type taken struct{ last, first time.Duration }

func newDeath(s *Setup, d Daemon, start func(context.Context) (Daemon, error)) *death {
	out := &death{start: start, daemon: d, slices: make([][]int, len(s.World.Jobs))}
	for i := range s.World.Jobs {
		out.jobs = append(out.jobs, s.World.Jobs[i].Name)
		out.ranks = append(out.ranks, make([]taken, max(1, s.World.Jobs[i].Ranks)))
	}
	return out
}

// saw notes a batch of n samples; again: of the daemon that came after the death.
func (d *death) saw(job, rank int, at time.Duration, n int, again bool) {
	if d == nil {
		return
	}
	k := int(at / sliceTime)
	if more := k + 1 - len(d.slices[job]); more > 0 {
		d.slices[job] = append(d.slices[job], make([]int, more)...)
	}
	d.slices[job][k] += n
	switch t := &d.ranks[job][rank]; {
	case !again:
		t.last = at
	case t.first == 0:
		t.first = at
	}
}

// watch has the daemon killed when it is time. The function that it returns ends that, when all jobs are done, and
// returns what went wrong, and whether it came too late.
func (r *running) watch(ctx context.Context, cancel func()) func() (failed, late error) {
	if r.death == nil {
		return func() (failed, late error) { return nil, nil }
	}
	waiting, enough := context.WithCancel(ctx)
	done := make(chan struct{})
	var failed, late error
	go func() {
		defer close(done)
		at := r.s.Live.Kill
		if r.wait(waiting, at) != nil {
			late = errs.New(errs.Invalid, "kill", "kill it earlier, or let jobs train for more epochs",
				"all jobs were done before %v, when the daemon was to be killed", at)
		} else if failed = r.death.kill(ctx, r); failed != nil {
			cancel()
		}
	}()
	return func() (error, error) {
		enough()
		<-done
		return failed, late
	}
}

// kill kills the daemon and starts another one.
func (d *death) kill(ctx context.Context, r *running) error {
	var err error
	if d.before, err = statsOf(ctx, r.socket); err != nil {
		return err
	}
	r.record(func(_ *measure.Collector, at time.Duration) { d.killed = at })
	dead := d.daemon
	d.daemon = nil
	if d.used, err = dead.Kill(); err != nil {
		return err
	}
	if d.daemon, err = d.start(ctx); err != nil {
		d.daemon = nil
		return err
	}
	r.record(func(_ *measure.Collector, at time.Duration) { d.ready = at })
	return nil
}

// stop ends the daemon that runs last.
func (r *running) stop(d Daemon) (Usage, error) {
	if r.death == nil {
		return d.Stop()
	}
	if r.death.daemon == nil {
		return r.death.used, nil
	}
	use, err := r.death.daemon.Stop()
	return r.death.used.and(use), err
}

func statsOf(ctx context.Context, socket string) (*larderv1.Stats, error) {
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var res larderv1.GetStatsResponse
	if err := c.Call(ctx, "GetStats", new(larderv1.GetStatsRequest), &res); err != nil {
		return nil, err
	}
	return res.GetStats(), nil
}

// addTo adds what the dead daemon had counted, just before, to what its successor did.
func (d *death) addTo(s *larderv1.Stats) {
	if d == nil {
		return
	}
	addCounters(s.GetTotals(), d.before.GetTotals())
	for _, t := range s.GetTiers() {
		k := slices.IndexFunc(d.before.GetTiers(), func(o *larderv1.Tier) bool { return o.GetForm() == t.GetForm() })
		if k >= 0 {
			o := d.before.GetTiers()[k]
			t.Hits, t.Evictions = t.GetHits()+o.GetHits(), t.GetEvictions()+o.GetEvictions()
		}
	}
	for _, j := range s.GetJobs() {
		k := slices.IndexFunc(d.before.GetJobs(), func(o *larderv1.Job) bool { return o.GetId() == j.GetId() })
		if k >= 0 {
			addCounters(j.GetCounters(), d.before.GetJobs()[k].GetCounters())
		}
	}
}

func addCounters(to, more *larderv1.Counters) {
	if to == nil {
		return
	}
	to.SourceReads, to.SourceBytes = to.GetSourceReads()+more.GetSourceReads(), to.GetSourceBytes()+more.GetSourceBytes()
	to.Decodes, to.Augments = to.GetDecodes()+more.GetDecodes(), to.GetAugments()+more.GetAugments()
	for form, n := range more.GetHits() { // order-free: each has its own sum
		if to.Hits == nil {
			to.Hits = map[string]uint64{}
		}
		to.Hits[form] += n
	}
}

// report fills in what the death did; s is what the last daemon says.
func (d *death) report(out *measure.Run, s *larderv1.Stats) error {
	if d == nil {
		return nil
	}
	v := &measure.Recovery{Killed: d.killed.Seconds(), Ready: d.ready.Seconds(), Down: (d.ready - d.killed).Seconds(),
		Slice: sliceTime.Seconds()}
	for i, ranks := range d.ranks {
		j := measure.Recovered{Name: d.jobs[i], Samples: d.slices[i]}
		for _, t := range ranks {
			if t.first == 0 {
				continue
			}
			after := max(t.first-d.ready, time.Microsecond).Seconds() // who listens says so a moment later
			if v.All == 0 || after < v.First {
				v.First = after
			}
			v.All, j.First = max(v.All, after), max(j.First, after)
			if t.last > 0 {
				j.Still = max(j.Still, (t.first - t.last).Seconds())
			}
		}
		v.Jobs = append(v.Jobs, j)
	}
	if v.All == 0 {
		return errs.New(errs.Invalid, "kill", "kill it while jobs train",
			"no job continued after the daemon was killed at %v", d.killed.Round(time.Millisecond))
	}
	v.FindBack()
	v.Merge(mostSlices)
	// The successor gives again what its predecessor had sent and clients had not used: deliveries are those that clients
	// had.
	out.Counts.Samples, out.Counts.Batches = 0, 0
	for i := range out.Jobs {
		j := &out.Jobs[i]
		v.Lost, v.Repeated = v.Lost+j.Lost, v.Repeated+j.Repeated
		out.Counts.Samples, out.Counts.Batches = out.Counts.Samples+j.Samples, out.Counts.Batches+j.Batches
	}
	for _, j := range s.GetJobs() {
		for _, e := range j.GetEpochs() {
			switch e.GetState() {
			case "complete":
				v.LedgerEpochs++
				v.LedgerLost += int(e.GetSubset()) - int(e.GetDelivered()+e.GetQuarantined()+e.GetDropped())
			case "violated":
				v.LedgerLost += max(1, int(e.GetSubset())-int(e.GetDelivered()+e.GetQuarantined()+e.GetDropped()))
			}
		}
	}
	out.Recovery = v
	return nil
}

// outlives reports whether a client continues with another daemon after an error: the one that it had was killed.
func (r *running) outlives(ctx context.Context, err error) bool {
	return r.death != nil && errs.Is(err, errs.Unavailable) && ctx.Err() == nil
}

// retry does something that may be done again until no daemon dies meanwhile.
func (r *running) retry(ctx context.Context, act func() error) error {
	give := time.Now().Add(patience)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := act()
		if !r.outlives(ctx, err) || time.Now().After(give) {
			return err
		}
		if err := r.wait(ctx, r.now()+pause); err != nil {
			return err
		}
	}
}

// hold is a client's hold on a rank, of one daemon after the other.
type hold struct {
	r     *running
	job   string
	rank  int
	c     *client.Conn
	st    *client.Stream
	inc   uint64
	asked uint64 // ATTACHes without an answer since: each may have made an incarnation, which is this client's own
	again bool   // st is of a daemon that came after the death
}

func (h *hold) close() {
	if h.c != nil {
		_ = h.c.Close() // the daemon takes it for the end of this client, which it is
		h.c = nil
	}
}

// attach takes the rank.
func (h *hold) attach(ctx context.Context) error {
	h.close()
	c, err := client.Dial(ctx, h.r.socket)
	if err != nil {
		return err
	}
	h.c = c
	inc := h.inc
	for {
		h.st, err = c.Attach(ctx, &larderv1.AttachRequest{Job: h.job, Rank: uint32(h.rank), Pid: int32(os.Getpid()),
			Incarnation: inc})
		if err == nil {
			h.inc, h.asked = h.st.Info().GetIncarnation(), 0
			return nil
		}
		if !errs.Is(err, errs.Stale) || inc == 0 || inc == h.inc+h.asked {
			if errs.Is(err, errs.Unavailable) {
				h.asked++
			}
			return err
		}
		inc++
	}
}

// outlive does something with the stream, and again with that of the next daemon.
func (h *hold) outlive(ctx context.Context, act, after func(*client.Stream) error) error {
	err := act(h.st)
	if !h.r.outlives(ctx, err) {
		return err
	}
	return h.r.retry(ctx, func() error {
		if err := h.attach(ctx); err != nil {
			return err
		}
		h.again = true
		return after(h.st)
	})
}

// begin begins an epoch.
func (h *hold) begin(ctx context.Context, epoch uint32) error {
	act := func(st *client.Stream) error { return st.StartEpoch(ctx, epoch) }
	return h.outlive(ctx, act, act)
}

// next is the batch of a step.
func (h *hold) next(ctx context.Context, epoch, step uint32) (b *client.Batch, err error) {
	err = h.outlive(ctx, func(st *client.Stream) (err error) {
		b, err = st.Next(ctx)
		return err
	}, func(st *client.Stream) (err error) {
		if err = st.Continue(ctx, epoch, step); err == nil {
			b, err = st.Next(ctx)
		}
		return err
	})
	return b, err
}

// detach leaves in order.
func (h *hold) detach(ctx context.Context) error {
	act := func(st *client.Stream) error { return st.Detach(ctx) }
	err := h.outlive(ctx, act, act)
	if h.again && (errs.Is(err, errs.NotFound) || errs.Is(err, errs.JobEnded)) {
		return nil // it had been heard, and the answer was not
	}
	return err
}
