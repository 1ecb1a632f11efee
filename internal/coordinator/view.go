package coordinator

import (
	"slices"
	"time"

	"larder/internal/ident"
	"larder/jobs"
)

// Stats counts what the core decided and what came back, since it began.
type Stats struct {
	SourceReads, SourceBytes, Decodes, Augments uint64
	Hits                                        [ident.NumForms]uint64
	FromBlocks                                  jobs.FromBlocks
	Evictions                                   [ident.NumForms]uint64
	InPlace                                     uint64 // decodes that were written straight into their batch
	Prefetched                                  uint64 // augments that idle workers made before any job picked them
	Quarantined                                 uint64 // distinct objects
	Samples, Batches                            uint64 // delivered
	Wait                                        time.Duration
	PolicyCalls                                 uint64  // calls of the tiers' policies
	Violations                                  uint64  // bugs of larder, caught
	Why                                         string  // of the present split
	Model, Binding                              string  // which decided it; what limits the jobs, by the model
	Predicted                                   float64 // samples a second, by the model; 0 = not known
}

func (fl *flights) countHit(s *stream, f ident.Form) {
	fl.step.stats.Hits[f]++
	s.job.Stats.Hits[f]++
	fl.roster.datasets[s.dataset].stats.Hits[f]++
}

// countWork counts work of a flight for its job, while that lives, and for its dataset.
func (fl *flights) countWork(f *flight, add func(*jobs.Stats)) {
	add(&fl.roster.datasets[f.dataset].stats)
	if s := fl.roster.streams[f.job]; s != nil {
		add(&s.job.Stats)
	}
}

// DatasetView is what was done for all jobs on a dataset.
type DatasetView struct {
	ID    ident.DatasetID
	Stats jobs.Stats // without Bad
	Bad   int        // distinct samples that could not be prepared
	Live  int        // jobs
	// Storage is how reliable what it is read from was.
	Storage StorageView
}

// Datasets returns the datasets that jobs drew from, in the order in which they came.
func (c *Core) Datasets() []DatasetView {
	out := make([]DatasetView, len(c.roster.datasets))
	for i := range c.roster.datasets {
		d := &c.roster.datasets[i]
		out[i] = DatasetView{ID: d.id, Stats: d.stats, Bad: d.bad.Len(), Storage: c.flights.storageView(i)}
	}
	for _, s := range c.roster.order {
		out[s.dataset].Live++
	}
	return out
}

// TierView is one tier at a moment.
type TierView struct {
	Form            ident.Form
	Budget, Used    int64
	Entries         int
	Hits, Evictions uint64
	Policy          string
	Auto            bool
}

// Stats returns the counters.
func (c *Core) Stats() Stats {
	s := c.step.stats
	s.Why += c.tiering.tooSmall() + c.flights.unkept()
	s.PolicyCalls = c.needs.index.Asked()
	return s
}

// Tiers returns the tiers in order of form.
func (c *Core) Tiers() []TierView {
	out := make([]TierView, 0, len(tierForms))
	for _, f := range tierForms {
		p := c.cfg.Tiers.Policy[f]
		if p == "" {
			p = "need"
		}
		out = append(out, TierView{Form: f, Budget: c.tiering.budgets[f], Used: c.needs.index.Used(f),
			Entries: c.needs.index.Entries(f),
			Hits:    c.step.stats.Hits[f], Evictions: c.step.stats.Evictions[f], Policy: p, Auto: c.tiering.auto[f]})
	}
	return out
}

// Quotas returns the datasets with floors or caps, in the order of the configuration.
func (c *Core) Quotas() []QuotaView { return c.tiering.quotas() }

// Reserve says that a job id was used in an earlier run: it is not used again. For the start of a daemon.
func (c *Core) Reserve(id ident.JobID) { c.life.jobs.Reserve(id) }

// Jobs returns live jobs, and with ended also those that ended lately, by id.
func (c *Core) Jobs(ended bool) []jobs.Job {
	var out []jobs.Job
	for j := range c.life.jobs.All() {
		if ended || !j.State.Ended() {
			out = append(out, c.view(j))
		}
	}
	return out
}

// Job returns the newest job of that name.
func (c *Core) Job(name string) (jobs.Job, bool) {
	j := c.life.jobs.Named(name)
	if j == nil {
		return jobs.Job{}, false
	}
	return c.view(j), true
}

// JobByID returns a job.
func (c *Core) JobByID(id ident.JobID) (jobs.Job, bool) {
	j := c.life.jobs.Get(id)
	if j == nil {
		return jobs.Job{}, false
	}
	return c.view(j), true
}

// view copies a job, so that it can be read outside of the loop.
func (c *Core) view(j *jobs.Job) jobs.Job {
	v := *j
	v.Ranks = append([]jobs.Rank(nil), j.Ranks...)
	for i := range v.Ranks {
		v.Ranks[i].Slots = append([]jobs.Slot(nil), j.Ranks[i].Slots...)
	}
	v.Ledgers = make([]*jobs.Ledger, len(j.Ledgers))
	for i, l := range j.Ledgers {
		v.Ledgers[i] = l.Copy()
	}
	v.Facts = c.facts(j)
	v.Stats.Bad = slices.Clip(j.Stats.Bad) // what is in it never changes, and what is added goes elsewhere
	return v
}
