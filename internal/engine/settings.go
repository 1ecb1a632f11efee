package engine

import (
	"context"
	"fmt"
	"time"

	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

// Settings is what can change in a running engine, as a whole.
type Settings struct {
	Tiers       coordinator.TierConfig
	TierSetting map[ident.Form]string // as configured, for people
	// OutageTimeout is how long next() waits for storage that fails; 0 = for ever.
	OutageTimeout time.Duration
	MaxRing       int64 // bytes of all rings together; 0 = what tiers leave
	// Strata says what the samples of a dataset are to be kept mixed by, by its names: off, size or label. nil = off
	// for all.
	Strata func(names ...string) string
}

// Apply changes settings, all of them or none, and returns when the tiers have their sizes.
func (e *Engine) Apply(ctx context.Context, s Settings) error {
	e.registering.Lock() // one change at a time
	defer e.registering.Unlock()
	return e.apply(ctx, s)
}

// apply is Apply for who holds e.registering.
func (e *Engine) apply(ctx context.Context, s Settings) error {
	if rings := e.memory.rings.Used(); s.Tiers.Total+rings+e.cfg.Memory.Own > e.cfg.Memory.Limit {
		what := fmt.Sprintf("tiers.total %s exceeds", units.Size(s.Tiers.Total))
		switch own := units.Size(e.cfg.Memory.Own); {
		case rings > 0 && e.cfg.Memory.Own > 0:
			what = fmt.Sprintf("tiers.total %s, rings of %s and %s for the daemon itself exceed", units.Size(s.Tiers.Total),
				units.Size(rings), own)
		case rings > 0:
			what = fmt.Sprintf("tiers.total %s and rings of %s exceed", units.Size(s.Tiers.Total), units.Size(rings))
		case e.cfg.Memory.Own > 0:
			what = fmt.Sprintf("tiers.total %s and %s for the daemon itself exceed", units.Size(s.Tiers.Total), own)
		}
		return errs.New(errs.ResourceExceeded, "tiers.total", "lower tiers.total, or raise memory.limit and restart",
			"%s memory.limit %s", what, units.Size(e.cfg.Memory.Limit))
	}
	e.memory.reserve(s.Tiers.Total) // no ring may be promised what the tiers are about to take
	// The caller may be gone meanwhile: what the coordinator has taken must be known here too.
	_, err := e.loop.ask(context.WithoutCancel(ctx),
		func(t coordinator.Token) coordinator.Event { return coordinator.Reconfigure{Token: t, Tiers: s.Tiers} })
	if err != nil {
		e.memory.restore()
		return err
	}
	e.memory.set(s)
	return nil
}

// Settings are those in force.
func (e *Engine) Settings() Settings {
	e.registering.Lock()
	defer e.registering.Unlock()
	return e.memory.get()
}

// ApplyConfig changes the configuration to that of a whole file.
func (e *Engine) ApplyConfig(
	ctx context.Context, req *larderv1.ApplyConfigRequest,
) (*larderv1.ApplyConfigResponse, error) {
	if err := mayRun(ctx, "change the configuration"); err != nil {
		return nil, err
	}
	if e.cfg.Daemon.ApplyConfig == nil {
		return nil, errs.New(errs.Unsupported, "config", "restart the program that it is part of",
			"this daemon was not started from a configuration")
	}
	return e.cfg.Daemon.ApplyConfig(ctx, req)
}

// Stop ends the daemon that this engine is of.
func (e *Engine) Stop(ctx context.Context, req *larderv1.StopRequest) (*larderv1.StopResponse, error) {
	if err := mayRun(ctx, "stop the daemon"); err != nil {
		return nil, err
	}
	if e.cfg.Daemon.Stop == nil {
		return nil, errs.New(errs.Unsupported, "daemon", "end that program",
			"this daemon is part of another program and ends with it")
	}
	return e.cfg.Daemon.Stop(ctx, req)
}

// Status describes the daemon that this engine is of. To other users it leaves out where its files are, and its
// last error.
func (e *Engine) Status(ctx context.Context, req *larderv1.StatusRequest) (*larderv1.StatusResponse, error) {
	if e.cfg.Daemon.Status == nil {
		return nil, errs.New(errs.Unsupported, "daemon", "ask that program", "this daemon is part of another program")
	}
	out, err := e.cfg.Daemon.Status(ctx, req)
	if err == nil {
		out.Indexing = e.library.indexing(asker(ctx))
	}
	if err == nil && asker(ctx) != nil { // names and paths of others are in them, and they could not be read anyway
		out.Log, out.StateDir, out.LastError, out.LastErrorAt = "", "", "", nil
		out.Withheld = true
	}
	return out, err
}
