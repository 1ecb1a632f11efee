package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

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
	MaxRing     int64                 // bytes of all rings together; 0 = what tiers leave
	// Strata tells what the samples of a dataset are to be kept mixed by, by its names: off, size or label. nil = off for all.
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
	if rings := e.ringBudget.Used(); s.Tiers.Total+rings+e.cfg.Own > e.cfg.MemoryLimit {
		what := fmt.Sprintf("tiers.total %s exceeds", units.Size(s.Tiers.Total))
		switch own := units.Size(e.cfg.Own); {
		case rings > 0 && e.cfg.Own > 0:
			what = fmt.Sprintf("tiers.total %s, rings of %s and %s for the daemon itself exceed", units.Size(s.Tiers.Total), units.Size(rings), own)
		case rings > 0:
			what = fmt.Sprintf("tiers.total %s and rings of %s exceed", units.Size(s.Tiers.Total), units.Size(rings))
		case e.cfg.Own > 0:
			what = fmt.Sprintf("tiers.total %s and %s for the daemon itself exceed", units.Size(s.Tiers.Total), own)
		}
		return errs.New(errs.ResourceExceeded, "tiers.total", "lower tiers.total, or raise memory.limit and restart",
			"%s memory.limit %s", what, units.Size(e.cfg.MemoryLimit))
	}
	if s.Tiers.Total > e.total() { // nobody may promise a ring what the tiers are about to take
		e.setTotal(s.Tiers.Total)
	}
	// Whoever asked may be gone meanwhile: what the coordinator has taken must be known here too.
	_, err := e.ask(context.WithoutCancel(ctx), func(t coordinator.Token) coordinator.Event { return coordinator.Reconfigure{Token: t, Tiers: s.Tiers} })
	if err != nil {
		e.setTotal(e.cfg.Tiers.Total)
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cfg.Tiers, e.mu.settings, e.mu.total, e.mu.maxRing, e.mu.strata = s.Tiers, s.TierSetting, s.Tiers.Total, s.MaxRing, s.Strata
	return nil
}

func (e *Engine) total() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.total
}

func (e *Engine) setTotal(n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.total = n
}

// Settings are those in force.
func (e *Engine) Settings() Settings {
	e.registering.Lock()
	defer e.registering.Unlock()
	return e.settings()
}

// settings is Settings for who holds e.registering.
func (e *Engine) settings() Settings {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Settings{Tiers: e.cfg.Tiers, TierSetting: e.mu.settings, MaxRing: e.mu.maxRing, Strata: e.mu.strata}
}

// ApplyConfig changes the configuration to that of a whole file.
func (e *Engine) ApplyConfig(ctx context.Context, req *larderv1.ApplyConfigRequest) (*larderv1.ApplyConfigResponse, error) {
	if err := mayRun(ctx, "change the configuration"); err != nil {
		return nil, err
	}
	if e.cfg.ApplyConfig == nil {
		return nil, errs.New(errs.Unsupported, "config", "restart the program that it is part of", "this daemon was not started from a configuration")
	}
	return e.cfg.ApplyConfig(ctx, req)
}

// Stop ends the daemon that this engine is of.
func (e *Engine) Stop(ctx context.Context, req *larderv1.StopRequest) (*larderv1.StopResponse, error) {
	if err := mayRun(ctx, "stop the daemon"); err != nil {
		return nil, err
	}
	if e.cfg.Stop == nil {
		return nil, errs.New(errs.Unsupported, "daemon", "end that program", "this daemon is part of another program and ends with it")
	}
	return e.cfg.Stop(ctx, req)
}

// Status tells about the daemon that this engine is of. To other users it leaves out where its files are, and its last error.
func (e *Engine) Status(ctx context.Context, req *larderv1.StatusRequest) (*larderv1.StatusResponse, error) {
	if e.cfg.Status == nil {
		return nil, errs.New(errs.Unsupported, "daemon", "ask that program", "this daemon is part of another program")
	}
	out, err := e.cfg.Status(ctx, req)
	if err == nil && asker(ctx) != nil { // names and paths of others are in them, and they could not be read anyway
		out.Log, out.StateDir, out.LastError, out.LastErrorAt = "", "", "", nil
		out.Withheld = true
	}
	return out, err
}

// maxLabelGroups bounds the strata of a dataset with classes: each cell is split by them.
const maxLabelGroups = 16

// strata are the sets that the samples of a job's dataset are to be kept mixed by: quartiles of stored bytes, or groups of classes in label
// order. The last one is left out: it is what is in none of the others. They are made for the first job of a dataset, and hold for good.
// e.registering is held.
func (e *Engine) strata(j *job) [][]ident.ObjectID {
	e.mu.Lock()
	kind := "off"
	if e.mu.strata != nil {
		kind = e.mu.strata(j.Data.Name(), j.Data.URI())
	}
	done := e.mu.stratified[j.Data.ID()]
	e.mu.Unlock()
	if done || kind == "off" {
		return nil
	}
	var all []strataItem
	seen := map[ident.ObjectID]bool{} // a file may be there twice
	for s := range ident.SampleID(j.Data.Len()) {
		if x := j.Data.Object(s); j.Data.Live(s) && !seen[x] {
			seen[x] = true
			v := strataItem{x, j.Data.Label(s)}
			if kind == "size" {
				v.key = j.Data.Bytes(s)
			}
			all = append(all, v)
		}
	}
	if kind == "size" {
		return quartiles(all)
	}
	return labelGroups(all, len(j.Data.Classes()))
}

type strataItem struct {
	x   ident.ObjectID
	key int64
}

// quartiles cuts by key into four equal parts.
func quartiles(all []strataItem) [][]ident.ObjectID {
	slices.SortFunc(all, func(a, b strataItem) int { // ids break ties, so that a restart gives the same sets
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.x, b.x))
	})
	var sets [4][]ident.ObjectID
	for i, v := range all {
		q := i * len(sets) / len(all)
		sets[q] = append(sets[q], v.x)
	}
	return butLast(sets[:])
}

// labelGroups cuts classes in label order into groups of nearly equally many classes.
func labelGroups(all []strataItem, classes int) [][]ident.ObjectID {
	groups := max(1, min(classes, maxLabelGroups))
	sets := make([][]ident.ObjectID, groups)
	for _, v := range all {
		label := max(0, min(v.key, int64(classes)-1))
		g := label * int64(groups) / int64(max(1, classes))
		sets[g] = append(sets[g], v.x)
	}
	return butLast(sets)
}

func butLast(sets [][]ident.ObjectID) [][]ident.ObjectID {
	sets = slices.DeleteFunc(sets, func(s []ident.ObjectID) bool { return len(s) == 0 })
	return sets[:max(len(sets)-1, 0)]
}

// stratified notes that a dataset has its strata, or is to have none.
func (e *Engine) stratified(d ident.DatasetID) {
	e.mu.Lock()
	e.mu.stratified[d] = true
	e.mu.Unlock()
}

// split is the division of memory in its public form.
func (e *Engine) split(st coordinator.Stats, quotas []coordinator.QuotaView) *larderv1.Split {
	out := &larderv1.Split{Model: st.Model, Why: st.Why, Binding: st.Binding, Predicted: st.Predicted}
	for _, q := range quotas {
		d := &larderv1.DatasetShare{Dataset: q.Dataset, Floor: uint64(q.Floor), Used: uint64(q.Used), Known: q.Known}
		if q.Cap >= 0 {
			n := uint64(q.Cap)
			d.Cap = &n
		}
		out.Datasets = append(out.Datasets, d)
	}
	return out
}
