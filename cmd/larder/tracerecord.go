package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"larder/bench/trace"
	"larder/internal/errs"
	"larder/internal/ident"
	larderv1 "larder/proto/larder/v1"
)

// Pace of a recording. What jobs ask for, sizes and costs are asked for again and again, so that a recording is of use
// whenever the daemon dies; of very many samples less often, so that it costs little.
const (
	recordEvery    = 200 * time.Millisecond
	recordReport   = 10 * time.Second
	recordDescribe = 10 * time.Second
	recordNewJob   = time.Second
	recordPart     = 50          // of the time, at most, that descriptions take
	recordWait     = time.Minute // for a daemon to come back, as long as clients wait for it
	// recordCall bounds an answer; then the call is repeated. A recording ends when no call comes for 30 s.
	recordCall = 5 * time.Second
)

// traceRecording fetches a recording from the daemon, and from its successors.
type traceRecording struct {
	c   larderv1.LarderServiceClient
	a   *trace.Assembler
	err io.Writer
	// reaches a successor; nil = none is waited for
	dial func(context.Context) (larderv1.LarderServiceClient, io.Closer, error)

	closer io.Closer // of c, when that is a successor

	recording uint64 // number at the daemon; 0 = the next call begins one
	answers   uint64 // of that recording that arrived

	began    time.Time
	offset   time.Duration // of the daemon's recording in this one
	before   uint64        // lost by daemons that went away
	lost     uint64
	breaks   int
	away     time.Time // when the daemon went away; zero = it has not
	machine  *larderv1.RecordedMachine
	subsetAt map[uint32]uint32         // by job: where its last range ended
	jobs     map[uint32]trace.Recorded // as they were described last
	// by job: when it was registered, by the daemon's clock, which distinguishes it from others of its number
	known  map[uint32]time.Time
	newJob bool // delivered to, and not described yet
}

// run records until stop is closed. With an error there may be a trace, of what was recorded before it.
func (r *traceRecording) run(ctx context.Context, stop <-chan struct{}) (*trace.Trace, error) {
	r.began, r.subsetAt, r.jobs, r.known = time.Now(), map[uint32]uint32{}, map[uint32]trace.Recorded{},
		map[uint32]time.Time{}
	defer r.hangUp()
	var why string
	for why == "" {
		err := r.part(ctx, stop)
		if err == nil {
			break
		}
		if r.machine == nil {
			return nil, err // nothing was recorded
		}
		if r.away.IsZero() {
			r.away = time.Now()
			r.breaks++
			fmt.Fprintf(r.err, "the daemon went away (%v); %s samples are kept\n", err, count(r.a.Len()))
		}
		why = r.successor(ctx, stop)
	}
	if r.machine == nil {
		return nil, errNoAnswer
	}
	t, err := r.a.Finish(r.world())
	if why == "" {
		return t, err
	}
	hint := "what was recorded until then is in the file; the log of the daemon says why it ended"
	if err != nil {
		t, hint = nil, "nothing had been recorded, and no file was written; the log of the daemon says why it ended"
	}
	return t, errs.New(errs.Unavailable, "daemon", hint, "the daemon went away %v after the recording began; %s",
		r.away.Sub(r.began).Round(100*time.Millisecond), why)
}

// part records one daemon: until stop is closed, or it goes away.
func (r *traceRecording) part(ctx context.Context, stop <-chan struct{}) error {
	ended := false
	lastReport, described, every := time.Now(), time.Time{}, recordDescribe
	for {
		since := time.Since(described)
		due := !ended && (since > every || r.newJob && since > recordNewJob)
		if due {
			described, r.newJob = time.Now(), false
			if err := r.identify(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
		}
		res, err := r.fetch(ctx, &larderv1.RecordTraceRequest{Recording: r.recording, Stop: ended, Describe: due})
		if err != nil {
			return err
		}
		if r.recording == 0 {
			r.recording = res.GetRecording()
			if r.breaks == 0 {
				fmt.Fprintln(r.err, "recording; Ctrl-C ends it and writes the file")
			} else {
				r.resumed()
			}
		}
		r.answers++
		if r.take(res); res.GetMachine() != nil {
			every = max(recordDescribe, recordPart*time.Since(described))
		}
		if res.GetMore() {
			continue
		}
		if ended {
			return nil
		}
		if time.Since(lastReport) > recordReport {
			lastReport = time.Now()
			fmt.Fprintf(r.err, "%s samples recorded, %s lost\n", count(r.a.Len()), count(r.lost))
		}
		select {
		case <-stop:
			ended = true
		case <-time.After(recordEvery):
		}
	}
}

// identify notes which jobs there are.
func (r *traceRecording) identify(ctx context.Context) error {
	jobs, err := jobsOf(ctx, r.c)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		r.known[j.GetId()] = j.GetRegisteredAt().AsTime()
	}
	return nil
}

func jobsOf(ctx context.Context, c larderv1.LarderServiceClient) ([]*larderv1.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, recordCall)
	defer cancel()
	res, err := c.ListJobs(ctx, &larderv1.ListJobsRequest{IncludeEnded: true})
	return res.GetJobs(), err
}

// successor waits for a daemon that has the jobs of the one that went away; it returns why there is none, or nothing.
func (r *traceRecording) successor(ctx context.Context, stop <-chan struct{}) string {
	for {
		select {
		case <-stop:
			return "it was not back when the recording was ended"
		case <-time.After(recordEvery):
		}
		if r.dial == nil || time.Since(r.away) > recordWait {
			return fmt.Sprintf("it did not come back within %v", recordWait)
		}
		c, closer, err := r.dial(ctx)
		if err != nil {
			continue
		}
		jobs, err := jobsOf(ctx, c)
		if err != nil {
			_ = closer.Close() // of a connection that is of no use
			continue
		}
		same := len(r.known) == 0 && r.a.Len() == 0
		for _, j := range jobs {
			at, ok := r.known[j.GetId()]
			same = same || ok && at.Equal(j.GetRegisteredAt().AsTime())
		}
		if !same {
			_ = closer.Close() // as above
			return "the one that came knows none of its jobs"
		}
		r.hangUp()
		r.c, r.closer = c, closer
		r.recording, r.answers = 0, 0
		return ""
	}
}

// hangUp ends the connection to a successor.
func (r *traceRecording) hangUp() {
	if r.closer != nil {
		_ = r.closer.Close() // nothing more is asked of it
		r.closer = nil
	}
}

// resumed notes that a successor is recorded.
func (r *traceRecording) resumed() {
	r.a.Interrupted()
	r.offset, r.before, r.away = time.Since(r.began), r.lost, time.Time{}
	fmt.Fprintln(r.err, "it is back: the recording continues")
}

// fetch asks for what came. A call that takes too long is no daemon that went away: it is made again, for the same
// answer, as long as clients wait for one.
func (r *traceRecording) fetch(ctx context.Context, req *larderv1.RecordTraceRequest) (*larderv1.RecordTraceResponse,
	error) {
	req.Answers = r.answers
	for began := time.Now(); ; {
		res, err := func() (*larderv1.RecordTraceResponse, error) {
			ctx, cancel := context.WithTimeout(ctx, recordCall)
			defer cancel()
			return r.c.RecordTrace(ctx, req)
		}()
		slow := errors.Is(err, context.DeadlineExceeded)
		if !slow || time.Since(began) > recordWait || req.GetRecording() == 0 {
			return res, err
		}
		fmt.Fprintf(r.err, "the daemon has not answered for %v; it is asked again\n", time.Since(began).Round(time.Second))
	}
}

func (r *traceRecording) take(res *larderv1.RecordTraceResponse) {
	r.lost = r.before + res.GetLost()
	moves, after := res.GetMoves(), res.GetMoveAfter()
	k := 0
	for i := 0; ; i++ {
		for ; k < len(moves) && k < len(after) && int(after[k]) <= i; k++ {
			if f := ident.Form(moves[k] >> 1 & 3); f != ident.Stored {
				r.a.Move(uint32(moves[k]>>3), f, moves[k]&1 == 1)
			}
		}
		if i == len(res.GetBatches()) {
			break
		}
		b := res.GetBatches()[i]
		r.a.Batch(b.GetJob(), b.GetEpoch(), b.GetObjects())
		if _, ok := r.jobs[b.GetJob()]; !ok {
			r.newJob = true
		}
	}
	for _, j := range res.GetJobs() {
		if j.GetSpec() != nil {
			r.job(j)
		}
		var ranges []trace.Range
		at := r.subsetAt[j.GetJob()]
		for s := j.GetSubset(); len(s) >= 2; s = s[2:] {
			at += s[0]
			ranges = append(ranges, trace.Range{Lo: at, Hi: at + s[1]})
			at += s[1]
		}
		r.subsetAt[j.GetJob()] = at
		r.a.Subset(j.GetJob(), ranges)
	}
	for _, o := range res.GetObjects() {
		for i, stored := range o.GetStored() {
			r.a.Object(o.GetFirst()+uint32(i), trace.Object{Stored: stored, Decoded: at(o.GetDecoded(), i),
				Decode: time.Duration(at(o.GetDecodeNs(), i)), Augment: time.Duration(at(o.GetAugmentNs(), i))})
		}
	}
	if m := res.GetMachine(); m != nil {
		r.machine = m
	}
}

// job notes what is known of a job; a successor does not know when it came, nor, at first, how fast it is.
func (r *traceRecording) job(j *larderv1.RecordedJob) {
	now := recordedJob(j)
	if was, ok := r.jobs[j.GetJob()]; ok && r.offset > 0 {
		now.Arrive, now.Step = was.Arrive, cmp.Or(now.Step, was.Step)
	} else {
		now.Arrive += r.offset
	}
	if now.Ended {
		now.Leave += r.offset
	}
	r.jobs[j.GetJob()], r.subsetAt[j.GetJob()] = now, 0
	r.a.Job(j.GetJob(), now)
}

func at[T uint32 | uint64](list []T, i int) T {
	if i < len(list) {
		return list[i]
	}
	return 0
}

func recordedJob(j *larderv1.RecordedJob) trace.Recorded {
	s := j.GetSpec()
	batch := max(1, int(s.GetBatchSize()))
	order := s.GetOrder()
	if !s.GetShuffle() && order == "" { // "given" stays, and no simulation takes it: its picks are its client's
		order = "sequential"
	}
	looks := s.GetShuffle() && order != "fixed"
	out := trace.Recorded{
		Job: trace.Job{Name: s.GetName(), Order: order, Arrive: max(0, j.GetRegistered().AsDuration()),
			Step: max(0, j.GetStep().AsDuration()) / time.Duration(batch), Batch: batch, Looks: looks},
		World: trace.JobWorld{Ranks: max(1, int(s.GetWorldSize())), Prefetch: max(1, int(s.GetPrefetch())),
			DropLast: s.GetDropLast(), Even: s.GetEven() == "drop", Seed: s.GetSeed(),
			Recipe: j.GetRecipe(), Share: s.GetShare() == "augmented", Augmented: int64(j.GetAugmentedBytes())},
		Dropped: int(j.GetDropped()), Asked: int(s.GetEpochs()), Ended: j.GetEnded() != nil,
	}
	if out.Ended {
		out.Leave = max(0, j.GetEnded().AsDuration())
	}
	return out
}

// world is what was recorded of the machine. A read that waits for the configured limit is no latency of the storage.
func (r *traceRecording) world() trace.World {
	m := r.machine
	w := trace.World{Workers: max(1, int(m.GetWorkers())), Cores: max(1, int(m.GetCores())),
		StorageLimit: int64(m.GetStorageLimit()), StorageIOPS: int64(m.GetStorageIops()), Bandwidth: m.GetStorageBandwidth(),
		Latency: m.GetStorageLatency().AsDuration(), Memory: m.GetMemoryBandwidth(), Finish: time.Duration(m.GetFinishNs()),
		InPlace: m.GetInPlace(), Lost: r.lost, Breaks: r.breaks,
		Tiers: trace.Tiers{Total: int64(m.GetTotal()), Encoded: -1, Decoded: -1, Augmented: -1, Policy: make([]string, 3),
			Model: m.GetModel()},
		Counted: trace.Counted{Reads: m.GetCounted().GetSourceReads(), Decodes: m.GetCounted().GetDecodes(),
			Augments: m.GetCounted().GetAugments(), Samples: m.GetCounted().GetSamplesDelivered()}}
	if r.breaks > 0 {
		w.Counted = trace.Counted{} // what a daemon that went away had counted is not known
	}
	if w.StorageLimit > 0 || w.StorageIOPS > 0 {
		w.Latency = 100 * time.Microsecond
	}
	for _, t := range m.GetTiers() {
		size, k := &w.Tiers.Encoded, 0
		switch t.GetForm() {
		case ident.Decoded.String():
			size, k = &w.Tiers.Decoded, 1
		case ident.Augmented.String():
			size, k = &w.Tiers.Augmented, 2
		}
		if t.Bytes != nil {
			*size = int64(t.GetBytes())
		}
		w.Tiers.Policy[k] = t.GetPolicy()
	}
	return w
}
