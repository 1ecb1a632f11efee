package main

import (
	"context"
	"strings"
	"time"

	"larder/internal/config"
	"larder/internal/telemetry"
	larderv1 "larder/proto/larder/v1"
)

// reload reads the configuration again and applies what changed: all of it, or nothing with a line in the log that says
// why. The running configuration stays what it is until everything was accepted.
func (d *daemon) reload(ctx context.Context, flags *configFlags, g *globals) {
	next, err := flags.load(g)
	if err == nil {
		_, err = next.Resolve(config.DetectMachine())
	}
	if err != nil {
		d.log.Error("the configuration was not changed", "error", err)
		return
	}
	changes := config.Diff(d.cfg, next)
	if len(changes) == 0 {
		d.log.Info("the configuration has not changed")
		return
	}
	req := &larderv1.SetTiersRequest{}
	var restart []string
	for _, c := range changes {
		switch c.Key {
		case "tiers.total":
			if next.Tiers.Total.IsAuto() { // a total the model may move is decided at the start
				restart = append(restart, c.Key)
			}
			req.Total = c.New
		case "tiers.encoded":
			req.Encoded = c.New
		case "tiers.decoded":
			req.Decoded = c.New
		case "tiers.augmented":
			req.Augmented = c.New
		case "log.level":
		default:
			restart = append(restart, c.Key)
		}
	}
	if len(restart) > 0 {
		d.log.Error("the configuration was not changed", "needs_restart", strings.Join(restart, ", "), "fix", "restart the daemon, or take these changes back")
		return
	}
	if req.Total != "" || req.Encoded != "" || req.Decoded != "" || req.Augmented != "" {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if _, err := d.engine.SetTiers(ctx, req); err != nil {
			d.log.Error("the configuration was not changed", "error", err)
			return
		}
	}
	if err := telemetry.SetLevel(d.level, next.Log.Level); err != nil { // validated by Load
		d.log.Error("log level", "error", err)
	}
	d.cfg = next
	for _, c := range changes {
		d.log.Info("configuration changed", "key", c.Key, "old", c.Old, "new", c.New)
	}
}
