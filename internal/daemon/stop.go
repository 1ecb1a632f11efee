package daemon

import (
	"context"
	"os"
	"sync"
	"time"

	"larder/internal/clock"
	"larder/internal/errs"
	"larder/internal/session"
	larderv1 "larder/proto/larder/v1"
)

// LongestDrain bounds `larder stop --drain` where the caller sets no timeout.
const LongestDrain = time.Hour

// stopRequest is a stop that a user asked for, on its way to Serve.
type stopRequest struct {
	mark       session.StopMark
	drain      time.Duration // how long running epochs may take to end; 0 = no time
	live       []string      // jobs of which clients held ranks when the request came
	unfinished chan []string // gets one answer: the jobs that had not finished when the time was over
}

// stops carries stop requests from gRPC to Serve. The zero value refuses them all.
type stops struct {
	requests chan stopRequest
	over     chan struct{} // closed when Serve takes no more requests
	end      func()        // closes over, once
	marking  *sync.Mutex   // held while the mark of a stop is written
}

func newStops() stops {
	over := make(chan struct{})
	return stops{
		requests: make(chan stopRequest), over: over, marking: new(sync.Mutex),
		end: sync.OnceFunc(func() { close(over) }),
	}
}

// finish makes that no more requests are taken. Requests that come later are answered, but nothing waits for them.
func (s stops) finish() {
	if s.end != nil {
		s.end()
	}
}

// askStop answers `larder stop`. It writes the mark beside the socket before any client hears of the stop, so that no
// client starts another daemon.
func (d *Daemon) askStop(ctx context.Context, req *larderv1.StopRequest) (*larderv1.StopResponse, error) {
	if d.stops.requests == nil {
		return nil, errs.New(errs.Unsupported, "daemon", "end the command that it was started for",
			"this daemon belongs to larder run, and ends with its command")
	}
	live, err := d.liveJobs(ctx)
	if err != nil {
		return nil, err
	}
	out := &larderv1.StopResponse{Pid: int32(os.Getpid()), Live: live, Durable: d.resources.state.durable()}
	if len(live) > 0 && !req.GetDrain() && !req.GetForce() {
		return out, nil
	}
	s := stopRequest{mark: session.NewStopMark(req.GetBy(), os.Getpid()), live: live, unfinished: make(chan []string, 1)}
	if req.GetDrain() {
		s.drain = LongestDrain
		if t := req.GetTimeout(); t != nil {
			if s.drain = t.AsDuration(); t.CheckValid() != nil || s.drain <= 0 {
				return nil, errs.New(errs.Invalid, "timeout", "e.g. --timeout 10m", "wait %v for jobs to finish", s.drain)
			}
		}
	}
	d.writeMark(s.mark)
	out.Stopping = true
	select {
	case d.stops.requests <- s:
	case <-d.stops.over: // it ends already, and waits for nothing any more
		return out, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.drain == 0 {
		return out, nil
	}
	select {
	case out.Unfinished = <-s.unfinished:
		return out, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// writeMark writes the mark of a stop beside the socket. A failure is logged only: clients that are not connected now
// may then start another daemon.
func (d *Daemon) writeMark(m session.StopMark) {
	d.stops.marking.Lock()
	defer d.stops.marking.Unlock()
	if err := d.doors.unix.Mark(m); err != nil {
		d.log.Error("the mark of this stop cannot be written", "error", err)
	}
}

// liveJobs names the jobs of which clients hold ranks.
func (d *Daemon) liveJobs(ctx context.Context) ([]string, error) {
	r, err := d.engine.ListJobs(ctx, &larderv1.ListJobsRequest{})
	if err != nil {
		return nil, err
	}
	var live []string
	for _, j := range r.GetJobs() {
		if attached(j) {
			live = append(live, j.GetSpec().GetName())
		}
	}
	return live, nil
}

// attached reports whether a client holds a rank of the job.
func attached(j *larderv1.Job) bool {
	for _, r := range j.GetRanks() {
		if r.GetAttached() {
			return true
		}
	}
	return false
}

// stop ends the service of clients as a stop request says.
func (d *Daemon) stop(ctx context.Context, s stopRequest, signals <-chan os.Signal) error {
	d.log.Info("stopping", "by", s.mark.By, "drain", s.drain, "live", len(s.live))
	last := &s
	if s.drain > 0 {
		d.servers.sessions.Because(s.mark.Fault(d.Socket()))
		last = d.drainFor(ctx, s.drain, last, signals)
	}
	return d.farewell(last)
}

// farewell notifies the clients of a requested stop and ends their sessions.
func (d *Daemon) farewell(s *stopRequest) error {
	if d.resources.state.durable() {
		d.leave()
	}
	return d.servers.sessions.Farewell(s.mark.Fault(d.Socket()))
}

// drainFor lets running epochs end for at most limit; a signal or a stop request that comes meanwhile may shorten that.
// It answers every request that waits, first among them, and returns the last one. A nil first means that a signal
// began the drain, and a nil result that no request came.
func (d *Daemon) drainFor(ctx context.Context, limit time.Duration, first *stopRequest,
	signals <-chan os.Signal) (last *stopRequest) {
	ctx, cancel := clock.WithTimeout(ctx, d.opt.Clock, limit)
	defer cancel()
	var waiting []stopRequest
	if first != nil {
		last, waiting = first, append(waiting, *first)
	}
	drained := make(chan error, 1)
	go func() { drained <- d.drain(ctx) }()
	for {
		select {
		case err := <-drained:
			if err != nil {
				d.log.Warn("clients were cut off", "why", ctx.Err())
			}
			for _, s := range waiting {
				s.unfinished <- d.unfinished(ctx, s, err)
			}
			return last
		case sig := <-signals:
			if ends(sig) {
				d.log.Info("stopping at once", "signal", sig.String())
				cancel()
			}
		case s := <-d.stops.requests:
			d.log.Info("stopping", "by", s.mark.By, "drain", s.drain, "live", len(s.live), "already", true)
			d.servers.sessions.Because(s.mark.Fault(d.Socket()))
			last, waiting = &s, append(waiting, s)
			if s.drain == 0 {
				cancel()
			} else {
				d.opt.Clock.AfterFunc(s.drain, cancel) // after the end of this drain it cancels nothing
			}
		}
	}
}

// unfinished names the jobs that had not finished when a drain ended with an error.
func (d *Daemon) unfinished(ctx context.Context, s stopRequest, drained error) []string {
	if drained == nil {
		return nil
	}
	live, err := d.liveJobs(context.WithoutCancel(ctx))
	if err != nil {
		return s.live
	}
	return live
}
