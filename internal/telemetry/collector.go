package telemetry

import (
	"runtime"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	larderv1 "larder/proto/larder/v1"
)

// StatsFunc returns the counters of this moment, or nil when the daemon cannot tell (it is starting or stopping). It
// must return soon and is called concurrently.
type StatsFunc func() *larderv1.Stats

// counter is one field of larder.v1 Counters, which is a metric of the daemon and one of each job.
type counter struct {
	name, help string
	get        func(*larderv1.Counters) float64
}

var counters = []counter{
	{"source_reads_total", "Samples read from storage.", func(c *larderv1.Counters) float64 { return float64(c.GetSourceReads()) }},
	{"source_bytes_total", "Bytes read from storage.", func(c *larderv1.Counters) float64 { return float64(c.GetSourceBytes()) }},
	{"decodes_total", "Images decoded.", func(c *larderv1.Counters) float64 { return float64(c.GetDecodes()) }},
	{"augments_total", "Random suffixes of recipes run.", func(c *larderv1.Counters) float64 { return float64(c.GetAugments()) }},
	{"samples_delivered_total", "Samples delivered to clients.", func(c *larderv1.Counters) float64 { return float64(c.GetSamplesDelivered()) }},
	{"batches_delivered_total", "Batches delivered to clients.", func(c *larderv1.Counters) float64 { return float64(c.GetBatchesDelivered()) }},
	{"quarantined_total", "Samples that could not be prepared.", func(c *larderv1.Counters) float64 { return float64(c.GetQuarantined()) }},
}

// forms are always shown, so that a rate exists before the first hit.
var forms = []string{"encoded", "decoded", "augmented"}

type collector struct {
	stats StatsFunc

	up, build, uptime, rss, memory                   *prometheus.Desc
	total, perJob                                    []*prometheus.Desc
	hits, evictions, jobHits                         *prometheus.Desc
	wait                                             *prometheus.Desc
	tierBytes, tierBudget, tierEntries               *prometheus.Desc
	predicted, dataset                               *prometheus.Desc
	jobs, jobRanks, jobSubset, jobEpoch, jobViolated *prometheus.Desc
	ringBytes                                        *prometheus.Desc
	gpuMemory, gpuUsed, gpuBusy                      *prometheus.Desc
}

// NewCollector returns a Prometheus collector that asks stats at every scrape.
func NewCollector(stats StatsFunc) prometheus.Collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("larder_"+name, help, labels, nil)
	}
	c := &collector{
		stats:       stats,
		up:          d("up", "Whether the daemon could tell its counters (1) or was starting or stopping (0)."),
		build:       d("build_info", "Always 1; the labels tell the build.", "version", "go_version", "decoder", "parity"),
		uptime:      d("uptime_seconds", "Time since the daemon started."),
		rss:         d("rss_bytes", "Resident memory of the daemon."),
		memory:      d("memory_limit_bytes", "Memory the daemon may use (memory.limit)."),
		hits:        d("hits_total", "Samples found in a tier, by form.", "form"),
		evictions:   d("evictions_total", "Samples evicted from a tier, by form.", "form"),
		jobHits:     d("job_hits_total", "Samples of a job found in a tier, by form.", "job", "form"),
		wait:        d("wait_seconds_total", "Time a job's next() waited for a batch.", "job"),
		tierBytes:   d("tier_bytes", "Bytes a tier holds, never above its budget.", "form"),
		tierBudget:  d("tier_budget_bytes", "Bytes a tier may hold.", "form"),
		tierEntries: d("tier_entries", "Samples a tier holds.", "form"),
		predicted:   d("predicted_samples_per_second", "What the model of the tiers predicts for all jobs together; the labels tell the model and what limits it.", "model", "binding"),
		dataset:     d("dataset_tier_bytes", "Bytes that a dataset with a floor or a cap has of all tiers together.", "dataset"),
		jobs:        d("jobs", "Jobs by state.", "state"),
		jobRanks:    d("job_ranks_attached", "Ranks of a job that a client holds.", "job"),
		jobSubset:   d("job_subset_samples", "Samples in the subset of a job.", "job"),
		jobEpoch:    d("job_epoch", "Epoch a job is in.", "job"),
		jobViolated: d("job_epochs_violated", "Recent epochs of a job that were not exactly once; anything but 0 is a bug of larder.", "job"),
		ringBytes:   d("job_ring_bytes", "Shared memory of a job's rings.", "job"),
		gpuMemory:   d("gpu_memory_bytes", "Memory of a GPU.", "uuid", "name"),
		gpuUsed:     d("gpu_memory_used_bytes", "Used memory of a GPU.", "uuid", "name"),
		gpuBusy:     d("gpu_utilization_ratio", "Busy part of a GPU's processors, 0 to 1.", "uuid", "name"),
	}
	for _, k := range counters {
		c.total = append(c.total, d(k.name, k.help))
		c.perJob = append(c.perJob, d("job_"+k.name, k.help+" Of one job.", "job"))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range append(append([]*prometheus.Desc{c.up, c.build, c.uptime, c.rss, c.memory, c.hits, c.evictions, c.jobHits,
		c.wait, c.tierBytes, c.tierBudget, c.tierEntries, c.predicted, c.dataset, c.jobs, c.jobRanks, c.jobSubset, c.jobEpoch, c.jobViolated,
		c.ringBytes, c.gpuMemory, c.gpuUsed, c.gpuBusy}, c.total...), c.perJob...) {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	s := c.stats()
	if s == nil {
		gauge(c.up, 0)
		return
	}
	gauge(c.up, 1)
	parity := "false"
	if s.GetParity() {
		parity = "true"
	}
	gauge(c.build, 1, valid(s.GetVersion()), runtime.Version(), valid(s.GetDecoder()), parity)
	gauge(c.uptime, s.GetUptime().AsDuration().Seconds())
	gauge(c.rss, float64(s.GetRssBytes()))
	gauge(c.memory, float64(s.GetMemoryLimit()))
	t := s.GetTotals()
	for i, k := range counters {
		count(c.total[i], k.get(t))
	}
	for _, f := range forms {
		count(c.hits, float64(t.GetHits()[f]), f)
		count(c.evictions, float64(t.GetEvictions()[f]), f)
	}
	seen := map[string]bool{}
	for _, tier := range s.GetTiers() {
		f := valid(tier.GetForm())
		if seen[f] {
			continue
		}
		seen[f] = true
		gauge(c.tierBytes, float64(tier.GetUsed()), f)
		gauge(c.tierBudget, float64(tier.GetBudget()), f)
		gauge(c.tierEntries, float64(tier.GetEntries()), f)
	}
	if p := s.GetSplit(); p.GetPredicted() > 0 {
		gauge(c.predicted, p.GetPredicted(), valid(p.GetModel()), valid(p.GetBinding()))
	}
	seen = map[string]bool{}
	for _, x := range s.GetSplit().GetDatasets() {
		if n := valid(x.GetDataset()); !seen[n] {
			seen[n] = true
			gauge(c.dataset, float64(x.GetUsed()), n)
		}
	}
	c.collectJobs(s, gauge, count)
	seen = map[string]bool{}
	for _, g := range s.GetDevices() {
		id, name := valid(g.GetUuid()), valid(g.GetName())
		if seen[id] {
			continue
		}
		seen[id] = true
		gauge(c.gpuMemory, float64(g.GetMemoryBytes()), id, name)
		gauge(c.gpuUsed, float64(g.GetMemoryUsed()), id, name)
		gauge(c.gpuBusy, float64(g.GetUtilization())/100, id, name)
	}
}

func (c *collector) collectJobs(s *larderv1.Stats, gauge, count func(*prometheus.Desc, float64, ...string)) {
	states := map[larderv1.JobState]int{}
	newest := map[string]*larderv1.Job{}
	for _, j := range s.GetJobs() {
		states[j.GetState()]++
		// A job that ended and a new one of its name are one time series, which restarts, as after a restart.
		if n := valid(j.GetSpec().GetName()); newest[n] == nil || newest[n].GetId() < j.GetId() {
			newest[n] = j
		}
	}
	for v := range larderv1.JobState_name {
		if st := larderv1.JobState(v); st != larderv1.JobState_JOB_STATE_UNSPECIFIED {
			gauge(c.jobs, float64(states[st]), stateLabel(st))
		}
	}
	names := make([]string, 0, len(newest))
	for n := range newest {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		j := newest[n]
		for i, k := range counters {
			count(c.perJob[i], k.get(j.GetCounters()), n)
		}
		for _, f := range forms {
			count(c.jobHits, float64(j.GetCounters().GetHits()[f]), n, f)
		}
		count(c.wait, j.GetCounters().GetWaitSeconds(), n)
		attached, ring, epoch, violated := 0, uint64(0), uint32(0), 0
		for _, r := range j.GetRanks() {
			ring += r.GetRingBytes()
			epoch = max(epoch, r.GetEpoch())
			if r.GetAttached() {
				attached++
			}
		}
		for _, e := range j.GetEpochs() {
			if e.GetState() == "violated" {
				violated++
			}
		}
		gauge(c.jobRanks, float64(attached), n)
		gauge(c.jobSubset, float64(j.GetSubsetSize()), n)
		gauge(c.jobEpoch, float64(epoch), n)
		gauge(c.jobViolated, float64(violated), n)
		gauge(c.ringBytes, float64(ring), n)
	}
}

func stateLabel(s larderv1.JobState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "JOB_STATE_"))
}

// valid makes a label value: Prometheus takes UTF-8 only, and an error here would blind every other metric.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// NewRegistry returns a registry with the daemon's metrics, those of its process and of the Go runtime.
func NewRegistry(stats StatsFunc) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(NewCollector(stats), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
