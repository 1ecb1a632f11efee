package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"larder/internal/clock"
	"larder/internal/config"
	"larder/internal/coordinator"
	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/telemetry"
	larderv1 "larder/proto/larder/v1"
)

// reloadTime bounds a reload that a signal began.
const reloadTime = 10 * time.Second

// settings is the part of a configuration that can change in a running engine.
func settings(cfg *config.Config, r config.Resolved) engine.Settings {
	size := func(bytes int64, auto bool) int64 {
		if auto {
			return -1
		}
		return bytes
	}
	t := cfg.Tiers
	fairness := t.Fairness
	s := engine.Settings{
		Tiers: coordinator.TierConfig{
			Total: r.Total, Model: t.Model, Fairness: &fairness,
			Sizes: [ident.NumForms]int64{
				ident.Encoded: size(r.Encoded, r.EncodedAuto), ident.Decoded: size(r.Decoded, r.DecodedAuto),
				ident.Augmented: size(r.Augmented, r.AugmentedAuto),
			},
			Policy: [ident.NumForms]string{
				ident.Encoded: t.Policy.Encoded, ident.Decoded: t.Policy.Decoded, ident.Augmented: t.Policy.Augmented,
			},
		},
		TierSetting: map[ident.Form]string{
			ident.Encoded: t.Encoded.String(), ident.Decoded: t.Decoded.String(), ident.Augmented: t.Augmented.String(),
		},
		MaxRing: r.MaxRing, OutageTimeout: cfg.Source.OutageTimeout,
		Strata: func(names ...string) string { return cfg.Dataset(names...).Strata },
	}
	for _, q := range r.Quotas {
		s.Tiers.Quotas = append(s.Tiers.Quotas, coordinator.Quota(q))
	}
	return s
}

// reload reads the configuration again and applies what changed: all of it, or nothing with a line in the log that
// says why.
func (d *Daemon) reload(ctx context.Context) {
	ctx, cancel := clock.WithTimeout(ctx, d.opt.Clock, reloadTime)
	defer cancel()
	changes, err := d.change(ctx, "", nil)
	switch {
	case err != nil:
		d.log.Error("the configuration was not changed", "error", err)
	case len(changes) == 0:
		d.log.Info("the configuration has not changed")
	}
}

// applyConfig answers `larder config apply`.
func (d *Daemon) applyConfig(ctx context.Context, req *larderv1.ApplyConfigRequest) (*larderv1.ApplyConfigResponse,
	error) {
	changes, err := d.change(ctx, req.GetName(), req.GetContent())
	if err != nil {
		return nil, err
	}
	out := &larderv1.ApplyConfigResponse{}
	for _, c := range changes {
		out.Changes = append(out.Changes, &larderv1.ConfigChange{Key: c.Key, Old: c.Old, New: c.New,
			Applies: string(c.Apply)})
	}
	return out, nil
}

// change replaces the configuration, all of it or nothing, and returns what changed. The running configuration stays
// in force until everything was accepted.
func (d *Daemon) change(ctx context.Context, name string, content []byte) ([]config.Change, error) {
	d.config.Lock()
	defer d.config.Unlock()
	if d.opt.Reload == nil {
		return nil, errs.New(errs.Unsupported, "config", "start larder serve for it",
			"this daemon runs inside another command and keeps its configuration")
	}
	next, err := d.opt.Reload(name, content)
	if err != nil {
		return nil, joined(err)
	}
	r, err := next.Resolve(config.DetectMachine())
	if err != nil {
		return nil, err
	}
	changes := config.Diff(d.running(), next)
	if len(changes) == 0 {
		return nil, nil
	}
	if err := d.needRestart(changes, next); err != nil {
		return nil, err
	}
	if err := d.engine.Apply(ctx, settings(next, r)); err != nil {
		return nil, err
	}
	if err := telemetry.SetLevel(d.opt.Level, next.Log.Level); err != nil { // Reload has validated it
		d.log.Error("log level", "error", err)
	}
	if tier := d.resources.disks.tier; tier != nil {
		tier.Resize(r.DiskSize)
	}
	d.resources.catalog.SetStorageLimit(next.Source.StorageLimit, int64(next.Source.StorageIOPS))
	d.config.now = next
	for _, c := range changes {
		d.log.Info("configuration changed", "key", c.Key, "old", c.Old, "new", c.New)
	}
	return changes, nil
}

// needRestart returns an error that names the changes that only a new daemon can make; nil when there are none.
func (d *Daemon) needRestart(changes []config.Change, next *config.Config) error {
	var restart []string
	for _, c := range changes {
		if c.Apply == config.Restart {
			restart = append(restart, c.Key)
		}
	}
	if next.Quotas() && !d.config.now.Quotas() && len(d.config.resolved.Quotas) == 0 {
		restart = append(restart, "the first floor or cap of a dataset")
	}
	if len(restart) == 0 {
		return nil
	}
	return errs.New(errs.Unsupported, restart[0], "restart the daemon, or take these changes back",
		"a restart is needed for %s", strings.Join(restart, ", "))
}

// running is the configuration with the sizes that `larder tiers resize` has set since.
func (d *Daemon) running() *config.Config {
	cfg := d.config.now.Clone()
	now := d.engine.Settings()
	set := func(key, value string) {
		if old, _ := cfg.Get(key); old != value {
			if err := cfg.Set(key, value, config.Origin{Kind: "resize"}); err != nil {
				d.log.Error("a size that was accepted cannot be read again", "key", key, "value", value, "error", err)
			}
		}
	}
	if r, err := d.config.now.Resolve(config.DetectMachine()); err == nil && r.Total != now.Tiers.Total {
		set("tiers.total", config.FormatBytes(now.Tiers.Total))
	}
	for f, s := range now.TierSetting {
		if v, err := config.ParseSize(s); err == nil {
			set(fmt.Sprintf("tiers.%s", f), v.String())
		}
	}
	if tier := d.resources.disks.tier; tier != nil {
		set("tiers.disk.size", config.Bytes(tier.Stats().Size).String())
	}
	return cfg
}

// joined makes one error of several, for an answer that has room for one.
func joined(err error) error {
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	list := many.Unwrap()
	if len(list) == 1 {
		return joined(list[0])
	}
	parts := make([]string, len(list))
	for i, e := range list {
		parts[i] = joined(e).Error()
	}
	return errs.New(errs.ConfigInvalid, "", "correct all of them: larder config check FILE", "%s",
		strings.Join(parts, "; "))
}
