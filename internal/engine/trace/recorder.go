package trace

import (
	"context"
	"sync/atomic"
	"time"

	"larder/internal/coordinator"
	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/jobs"
	larderv1 "larder/proto/larder/v1"
)

// Config says what a recording describes beside what it has noted.
type Config struct {
	// Moment is what the coordinator knows now. It waits for the coordinator.
	Moment func(context.Context) (Moment, error)
	// Job finds a job; nil = it is not known any more.
	Job func(ident.JobID) *Job
	// Tiers are the sizes in force, as configured.
	Tiers func() coordinator.TierConfig
	// Machine is what was measured of the machine.
	Machine func() Machine
	// Bytes is the stored size of an object.
	Bytes func(ident.ObjectID) int64
}

// Moment is what the coordinator knows at one moment.
type Moment struct {
	Jobs  []jobs.Job // also those that ended
	Stats coordinator.Stats
	Tiers []coordinator.TierView
}

// Job describes a job of a recording.
type Job struct {
	Spec       *larderv1.JobSpec // with its last subset
	Registered time.Time
	Recipe     *prep.Recipe
	Objects    []ident.ObjectID // of its last subset; not to be changed
}

// Machine is what a recording says about the machine.
type Machine struct {
	Workers, Cores           int
	Storage, Memory          float64       // bytes a second
	ReadTime                 time.Duration // before the first byte of a read
	StorageLimit, StorageOps int64         // as configured; 0 = none
}

// Recorder records at most one recording at a time.
type Recorder struct {
	cfg  Config
	now  atomic.Pointer[recording] // nil while nothing is recorded
	last atomic.Pointer[recording] // the newest: a client that did not get its last answer asks again
}

// NewRecorder returns a Recorder that records nothing before a client asks for it.
func NewRecorder(c Config) *Recorder { return &Recorder{cfg: c} }

// Effect notes what the coordinator asked for. It runs in the loop.
func (t *Recorder) Effect(eff coordinator.Effect) {
	if r := t.now.Load(); r != nil && !r.effect(eff) {
		t.now.CompareAndSwap(r, nil)
	}
}

// Event notes an event on its way to the coordinator.
func (t *Recorder) Event(ev coordinator.Event) {
	if r := t.now.Load(); r != nil {
		r.event(ev)
	}
}

// Worked notes what a step of preparing an object took of a core.
func (t *Recorder) Worked(s work.Step, o ident.ObjectID, took time.Duration) {
	if r := t.now.Load(); r != nil {
		r.worked(s, o, took)
	}
}

// Answer begins, continues or ends a recording, as the request says, and returns what waits to be fetched.
func (t *Recorder) Answer(
	ctx context.Context, req *larderv1.RecordTraceRequest,
) (*larderv1.RecordTraceResponse, error) {
	r, err := t.recording(ctx, req)
	if err != nil {
		return nil, err
	}
	r.Lock()
	r.asked = time.Now()
	r.Unlock()
	r.turn.Lock()
	defer r.turn.Unlock()
	r.Lock()
	switch got := req.GetAnswers(); {
	case got == r.answers:
	case got+1 == r.answers: // the last one did not arrive
		defer r.Unlock()
		return r.last, nil
	default:
		defer r.Unlock()
		return nil, errs.New(errs.Invalid, "recording", "count the answers that arrive; only the last one is kept",
			"%d answers of the recording were given, and %d are said to have arrived", r.answers, got)
	}
	if req.GetStop() && r.phase == running {
		r.become(stopped)
		r.ended = time.Since(r.began)
		t.now.CompareAndSwap(r, nil)
	}
	end := r.phase == stopped
	describe := req.GetDescribe() && r.phase == running && len(r.rest) == 0
	r.Unlock()
	if end || describe {
		if err := t.describe(ctx, r); err != nil {
			return nil, err
		}
	}
	r.Lock()
	defer r.Unlock()
	if end {
		r.become(described)
	}
	return r.answer(), nil
}

// answer is the next answer; the lock is held.
func (r *recording) answer() *larderv1.RecordTraceResponse {
	out := r.take()
	r.answers, r.last = r.answers+1, out
	if !out.More && len(r.rest) > 0 {
		page := r.rest[0]
		r.rest = r.rest[1:]
		out.Jobs, out.Objects, out.Machine, out.More = page.Jobs, page.Objects, page.Machine, len(r.rest) > 0
	}
	if r.phase == described && !out.More {
		// the last answer is kept, for a client that did not get it
		r.costs, r.planned, r.flights = nil, map[batchKey][]ident.ObjectID{}, map[coordinator.FlightID]flying{}
	}
	return out
}

// recording finds the recording that is asked for, or begins one.
func (t *Recorder) recording(ctx context.Context, req *larderv1.RecordTraceRequest) (*recording, error) {
	if id := req.GetRecording(); id != 0 {
		r := t.last.Load()
		if r == nil || r.id != id || !r.over() && t.now.Load() != r {
			return nil, errs.New(errs.NotFound, "recording",
				"begin a new one; a recording ends when no client fetches it for 30 s", "there is no recording %d", id)
		}
		return r, nil
	}
	if req.GetStop() {
		return nil, errs.New(errs.Invalid, "recording", "name the recording to stop", "no recording was named")
	}
	base, err := t.cfg.Moment(ctx)
	if err != nil {
		return nil, err
	}
	r := newRecording(base.Stats)
	if old := t.now.Load(); old != nil && old.stale() {
		t.now.CompareAndSwap(old, nil)
	}
	if !t.now.CompareAndSwap(nil, r) {
		return nil, errs.New(errs.AlreadyExists, "recording",
			"end the other larder trace record first, or wait half a minute", "a recording is under way")
	}
	t.last.Store(r)
	return r, nil
}
