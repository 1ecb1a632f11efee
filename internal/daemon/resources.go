package daemon

import (
	"fmt"
	"log/slog"

	"larder/cachepolicy"
	"larder/internal/clock"
	"larder/internal/config"
	"larder/internal/gpu"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/prep/sandbox"
	"larder/internal/source"
	"larder/internal/store"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers"
	"larder/tiers/arena"
	"larder/tiers/tinylfu"
)

// resources are what the engine uses and does not close.
type resources struct {
	stores   *store.Stores // what datasets are read from over a network
	disks    disks
	catalog  *source.Catalog
	store    *tiers.Store
	state    state
	gpu      gpu.Probe
	decoders *sandbox.Pool // of prep.isolation process; nil = the workers decode
	evictors []func()      // end the policies that have something to end
}

// resourceOptions is what resources are opened with.
type resourceOptions struct {
	config   *config.Config
	resolved config.Resolved
	socket   string
	decode   []string // the command of a process that decodes
	log      *slog.Logger
	clock    clock.Clock
}

// open opens them all. After an error, close closes those that are open.
func (u *resources) open(o resourceOptions) (err error) {
	r := o.resolved
	u.stores = store.New(store.Config{Settings: StoreSettings(o.config), Log: o.log, Clock: o.clock})
	if err := u.disks.open(o); err != nil {
		return err
	}
	sources := source.CatalogConfig{
		IndexDir: r.IndexDir, StorageLimit: r.StorageLimit, StorageIOPS: r.StorageIOPS, MaxObject: r.MaxMemory,
		Stores: u.stores, Spool: u.disks.blocks(), Logger: o.log, Clock: o.clock,
	}
	if u.disks.tier != nil {
		sources.Kept = u.disks.tier
	}
	u.catalog, err = source.OpenCatalog(sources)
	if err != nil && sources.IndexDir != "" && o.config.Source.IndexDir == "auto" { // as a state.dir of auto
		o.log.Warn("no index is saved: each start reads the lists of files again", "folder", sources.IndexDir,
			"error", err)
		sources.IndexDir = ""
		u.catalog, err = source.OpenCatalog(sources)
	}
	if err != nil {
		return err
	}
	pages := arena.Probe()
	o.log.Info("memory of the tiers", "pages", pages.Why)
	if u.store, err = tiers.Open(tiers.Config{VerifyEvery: o.config.Tiers.VerifyEvery, Pages: pages}); err != nil {
		return err
	}
	if u.state, err = openState(o); err != nil {
		return err
	}
	u.gpu = gpu.Open()
	if o.config.Prep.Isolation == "process" {
		u.decoders, err = sandbox.Open(sandbox.Config{
			Children: r.Workers, Command: o.decode, Limits: imageLimits(o.config.Prep, r), Log: o.log,
		})
	}
	return err
}

// outside decodes images in the place of the engine's workers; nil = they do.
func (u *resources) outside() prep.Outside {
	if u.decoders == nil {
		return nil // and no *sandbox.Pool that is nil
	}
	return u.decoders
}

// stopDecoders has no process that decodes be started any more.
func (u *resources) stopDecoders() {
	if u.decoders != nil {
		u.decoders.Stop()
	}
}

// decoding says where images are decoded, for people.
func (u *resources) decoding() string {
	if u.decoders == nil {
		return "in the daemon"
	}
	s, n := u.decoders.State(), u.decoders.Counts()
	return fmt.Sprintf("in processes of their own (%d started, %d crashed, %d ended from outside): %s", n.Started,
		n.Crashed, n.Ended, s.String())
}

// StoreSettings gives internal/store the settings of places that a configuration has.
func StoreSettings(c *config.Config) func(scheme, place string) store.Settings {
	return func(scheme, place string) store.Settings { return store.Settings(c.Store(scheme, place)) }
}

// storeStats is what was read over a network, as clients get it.
func (u *resources) storeStats() []*larderv1.StoreStats {
	all := u.stores.Counters()
	out := make([]*larderv1.StoreStats, len(all))
	for i, c := range all {
		out[i] = &larderv1.StoreStats{Name: c.Name, Reads: c.Reads, Lists: c.Lists, Bytes: c.Bytes, Retries: c.Retries,
			Hedges: c.Hedges, Errors: c.Errors, Money: c.Money}
	}
	return out
}

// policyEntries sizes the sketch of tinylfu: as many entries as a tier of 8 GiB holds of ImageNet.
const policyEntries = 1 << 16

// newEvictor makes the policy of a tier. close ends the policies that have something to end.
func (u *resources) newEvictor(_ ident.Form, policy string, r *xrand.Rand) (cachepolicy.Evictor, error) {
	e, err := tinylfu.Make(policy, r, cachepolicy.Given{}, policyEntries)
	if c, ok := e.(interface{ Close() }); ok && err == nil {
		u.evictors = append(u.evictors, c.Close)
	}
	return e, err
}

// close closes what is open. No engine may use it any more.
func (u *resources) close(log *slog.Logger) (problems []error) {
	if u.decoders != nil {
		u.decoders.Close()
	}
	problems = append(problems, u.state.close())
	for _, end := range u.evictors {
		end()
	}
	if u.store != nil {
		problems = append(problems, u.store.Close())
	}
	if u.catalog != nil {
		if n, waited := u.catalog.Throttled(); n > 0 {
			log.Info("reads waited for the storage limit", "reads", n, "waited", waited)
		}
		problems = append(problems, u.catalog.Close())
	}
	problems = append(problems, u.disks.close()...)
	if u.stores != nil {
		u.stores.Close()
	}
	if u.gpu != nil {
		if err := u.gpu.Close(); err != nil {
			log.Debug("close NVML", "error", err)
		}
	}
	return problems
}
