package daemon

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"larder/internal/clock"
)

// ServeOptions says when Serve ends and how.
type ServeOptions struct {
	// Signals are those of the process: SIGHUP reloads the configuration, any other signal ends Serve.
	Signals <-chan os.Signal
	// IdleExit ends Serve when no client has been connected for this time; 0 = never.
	IdleExit time.Duration
	// DrainTimeout is how long clients may take to finish their epochs after the first signal, where nothing survives
	// the daemon. A second signal ends that time.
	DrainTimeout time.Duration
	// AlwaysDrain drains also where a state directory keeps the jobs. Without it such a daemon ends at once, and its
	// jobs continue with the next daemon on that directory.
	AlwaysDrain bool
}

// Serve returns when the daemon should be closed: after a signal, a `larder stop`, an idle time, or the end of ctx,
// with what these ask for already done. It returns an error when a part of the daemon failed. Close follows.
func (d *Daemon) Serve(ctx context.Context, o ServeOptions) error {
	defer d.stops.finish()
	var look clock.Timer // for sessions; it is not set where the daemon has no idle time
	var idle <-chan time.Time
	every := min(max(o.IdleExit/8, 10*time.Millisecond), time.Second)
	if o.IdleExit > 0 {
		look = d.opt.Clock.NewTimer(every)
		defer look.Stop()
		idle = look.Chan()
	}
	at := d.opt.Clock.NewTimer(lookAtSocket)
	defer at.Stop()
	var said string
	for {
		select {
		case <-at.Chan():
			said = d.doors.restore(said, d.log)
			at.Reset(lookAtSocket)
		case sig := <-o.Signals:
			if ends(sig) {
				d.log.Info("stopping", "signal", sig.String())
				return d.stopBySignal(ctx, o)
			}
			d.reload(ctx)
		case s := <-d.stops.requests:
			return d.stop(ctx, s, o.Signals)
		case <-ctx.Done():
			return nil
		case <-d.parts.broken:
			return errors.New("a part of the daemon failed; the log says which")
		case <-idle:
			if n, since := d.servers.sessions.Sessions(); n == 0 && d.opt.Clock.Now().Sub(since) >= o.IdleExit {
				d.log.Info("stopping", "idle", o.IdleExit)
				return nil
			}
			look.Reset(every)
		}
	}
}

// lookAtSocket is how often a daemon looks whether its socket can be found.
const lookAtSocket = 2 * time.Second

func (d *Daemon) stopBySignal(ctx context.Context, o ServeOptions) error {
	if d.resources.state.durable() && !o.AlwaysDrain {
		d.log.Info("jobs continue with the next daemon on this state directory", "jobs", "larder jobs ls")
		d.leave()
		return nil
	}
	if s := d.drainFor(ctx, o.DrainTimeout, nil, o.Signals); s != nil {
		return d.farewell(s)
	}
	return nil
}

// ends reports whether a signal ends the daemon; SIGHUP has it read its configuration again.
func ends(sig os.Signal) bool { return sig != syscall.SIGHUP }
