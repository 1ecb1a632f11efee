package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"larder/internal/errs"
	"larder/internal/session"
	larderv1 "larder/proto/larder/v1"
)

// longDrain bounds larder stop --drain where nobody says how long it may take.
const longDrain = time.Hour

// ending is a stop that somebody asked for, on its way to the loop of serve.
type ending struct {
	mark       session.StopMark
	drain      time.Duration // how long it waits; 0 = at once
	live       []string
	unfinished chan []string // what had not finished when the time was over; one answer
}

// askStop answers larder stop. What it leaves beside the socket is there before any client hears of it, so that none starts another daemon.
func (d *daemon) askStop(ctx context.Context, req *larderv1.StopRequest) (*larderv1.StopResponse, error) {
	if d.ending == nil {
		return nil, errs.New(errs.Unsupported, "daemon", "end the command that it was started for", "this daemon belongs to larder run, and ends with its command")
	}
	live, err := d.liveJobs(ctx)
	if err != nil {
		return nil, err
	}
	out := &larderv1.StopResponse{Pid: int32(os.Getpid()), Live: live, Durable: d.durable()}
	if len(live) > 0 && !req.GetDrain() && !req.GetForce() {
		return out, nil
	}
	e := ending{mark: session.NewStopMark(req.GetBy(), os.Getpid()), live: live, unfinished: make(chan []string, 1)}
	if req.GetDrain() {
		e.drain = longDrain
		if t := req.GetTimeout(); t != nil {
			if e.drain = t.AsDuration(); t.CheckValid() != nil || e.drain <= 0 {
				return nil, errs.New(errs.Invalid, "timeout", "e.g. --timeout 10m", "wait %v for jobs to finish", e.drain)
			}
		}
	}
	d.leaveMark(e.mark)
	out.Stopping = true
	select {
	case d.ending <- e:
	case <-d.over: // it ends already, and nothing is waited for any more
		return out, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if e.drain == 0 {
		return out, nil
	}
	select {
	case out.Unfinished = <-e.unfinished:
		return out, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// leaveMark leaves the mark of a stop beside the socket: clients that are not connected now may start another daemon.
func (d *daemon) leaveMark(m session.StopMark) {
	d.marking.Lock()
	defer d.marking.Unlock()
	if err := d.listener.Mark(m); err != nil {
		d.log.Error("the mark of this stop cannot be left", "error", err)
	}
}

// liveJobs names the jobs of which clients hold ranks.
func (d *daemon) liveJobs(ctx context.Context) ([]string, error) {
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

func attached(j *larderv1.Job) bool {
	for _, r := range j.GetRanks() {
		if r.GetAttached() {
			return true
		}
	}
	return false
}

// end is what serve does for larder stop.
func (d *daemon) end(ctx context.Context, e ending, signals <-chan os.Signal) error {
	d.log.Info("stopping", "by", e.mark.By, "drain", e.drain, "live", len(e.live))
	last := &e
	if e.drain > 0 {
		d.sessions.Because(e.mark.Fault(d.listener.Path()))
		last = d.finish(ctx, e.drain, last, signals)
	}
	return d.farewell(last)
}

// farewell tells the clients of the stop that somebody asked for, and ends their sessions.
func (d *daemon) farewell(e *ending) error {
	if d.durable() {
		d.leave()
	}
	return d.sessions.Farewell(e.mark.Fault(d.listener.Path()))
}

// finish lets the running epochs end for at most limit, less where a stop or a signal that comes meanwhile says so. It answers every stop
// that waits, first among them (nil = a signal began this), and returns the last one that came; nil = none.
func (d *daemon) finish(ctx context.Context, limit time.Duration, first *ending, signals <-chan os.Signal) (last *ending) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var wait []ending
	if first != nil {
		last, wait = first, append(wait, *first)
	}
	drained := make(chan error, 1)
	go func() { drained <- d.drain(ctx) }()
	for {
		select {
		case err := <-drained:
			if err != nil {
				d.log.Warn("clients were cut off", "why", ctx.Err())
			}
			for _, e := range wait {
				e.unfinished <- d.late(ctx, e, err)
			}
			return last
		case sig := <-signals:
			if stops(sig) {
				d.log.Info("stopping at once", "signal", sig.String())
				cancel()
			}
		case e := <-d.ending:
			d.log.Info("stopping", "by", e.mark.By, "drain", e.drain, "live", len(e.live), "already", true)
			d.sessions.Because(e.mark.Fault(d.listener.Path()))
			last, wait = &e, append(wait, e)
			if e.drain == 0 {
				cancel()
			} else {
				time.AfterFunc(e.drain, cancel) // late, it cancels what is over
			}
		}
	}
}

// late names the jobs that had not finished when a drain was over.
func (d *daemon) late(ctx context.Context, e ending, drained error) []string {
	if drained == nil {
		return nil
	}
	live, err := d.liveJobs(context.WithoutCancel(ctx))
	if err != nil {
		return e.live
	}
	return live
}

// status answers larder status.
func (d *daemon) status(ctx context.Context, _ *larderv1.StatusRequest) (*larderv1.StatusResponse, error) {
	r, err := d.engine.GetStats(ctx, &larderv1.GetStatsRequest{})
	if err != nil {
		return nil, err
	}
	s := r.GetStats()
	up := s.GetUptime().AsDuration()
	out := &larderv1.StatusResponse{
		Pid: int32(os.Getpid()), Version: version, Socket: d.listener.Path(), Http: d.httpAddr(), Log: d.logFile(), StateDir: d.stateDir,
		StartedAt: timestamppb.New(time.Now().Add(-up)), Uptime: durationpb.New(up), Stopping: d.draining.Load(),
		MemoryLimit: s.GetMemoryLimit(), RssBytes: s.GetRssBytes(),
	}
	if d.tcp != nil {
		out.Grpc = d.tcp.Addr().String()
	}
	n, _ := d.sessions.Sessions()
	out.Sessions = uint32(n)
	for _, j := range s.GetJobs() {
		switch st := j.GetState(); {
		case st == larderv1.JobState_JOB_STATE_DEAD || st == larderv1.JobState_JOB_STATE_DONE:
			out.JobsEnded++
			continue
		case attached(j):
			out.JobsLive++
		default:
			out.JobsWaiting++
		}
		if j.GetPaused() {
			out.JobsPaused++
		}
		for _, k := range j.GetRanks() {
			out.RingsUsed += k.GetRingBytes()
		}
	}
	for _, t := range s.GetTiers() {
		out.TiersUsed += t.GetUsed()
	}
	out.TiersTotal = uint64(max(d.engine.Settings().Tiers.Total, 0))
	if e := d.lastError.Load(); e != nil {
		out.LastError, out.LastErrorAt = e.text, timestamppb.New(e.at)
	}
	return out, nil
}

// logFile is where the log goes, when that is a file.
func (d *daemon) logFile() string {
	if d.logPath != "" {
		return d.logPath
	}
	if st, err := os.Stderr.Stat(); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	name, err := os.Readlink("/proc/self/fd/2")
	if err != nil || !filepath.IsAbs(name) {
		return ""
	}
	return name
}

// loggedError is the last line of level error.
type loggedError struct {
	at   time.Time
	text string
}

// remember is a log that keeps its last error for larder status.
type remember struct {
	slog.Handler
	last *atomic.Pointer[loggedError]
}

func remembering(log *slog.Logger) (*slog.Logger, *atomic.Pointer[loggedError]) {
	last := new(atomic.Pointer[loggedError])
	return slog.New(remember{log.Handler(), last}), last
}

// Handle implements slog.Handler.
func (r remember) Handle(ctx context.Context, rec slog.Record) error {
	if rec.Level >= slog.LevelError {
		text := rec.Message
		rec.Attrs(func(a slog.Attr) bool {
			if a.Key != "stack" {
				text += " " + a.Key + "=" + a.Value.String()
			}
			return len(text) < 1000
		})
		r.last.Store(&loggedError{rec.Time, text})
	}
	return r.Handler.Handle(ctx, rec)
}

// WithAttrs implements slog.Handler.
func (r remember) WithAttrs(attrs []slog.Attr) slog.Handler {
	return remember{r.Handler.WithAttrs(attrs), r.last}
}

// WithGroup implements slog.Handler.
func (r remember) WithGroup(name string) slog.Handler {
	return remember{r.Handler.WithGroup(name), r.last}
}
