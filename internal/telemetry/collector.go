package telemetry

import (
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	larderv1 "larder/proto/larder/v1"
)

// StatsFunc returns the counters of this moment, or nil when the daemon cannot report them (it is starting or
// stopping). It must return soon and is called concurrently.
type StatsFunc func() *larderv1.Stats

// forms are always reported, so that a rate exists before the first hit.
var forms = []string{"encoded", "decoded", "augmented"}

// mostOutages bounds the series of datasets whose storage failed: as many as jobs can live at once.
const mostOutages = 64

// found is where samples of a job are found: forms, and blocks that were read for the job itself or for another one.
var found = append(slices.Clone(forms), "block", "shared_block")

type collector struct{ stats StatsFunc }

// NewCollector returns a Prometheus collector that calls stats at every scrape.
func NewCollector(stats StatsFunc) prometheus.Collector { return collector{stats} }

// Describe implements prometheus.Collector.
func (collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range families {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	s := c.stats()
	if s == nil {
		upMetric.send(out, 0)
		return
	}
	upMetric.send(out, 1)
	collectDaemon(out, s)
	collectTiers(out, s)
	collectStores(out, s)
	collectOutages(out, s)
	collectDisk(out, s.GetDisk())
	collectJobs(out, s)
	seen := map[string]bool{}
	for _, g := range s.GetDevices() {
		id, name := valid(g.GetUuid()), valid(g.GetName())
		if seen[id] {
			continue
		}
		seen[id] = true
		gpuMemory.send(out, float64(g.GetMemoryBytes()), id, name)
		gpuUsed.send(out, float64(g.GetMemoryUsed()), id, name)
		gpuBusy.send(out, float64(g.GetUtilization())/100, id, name)
	}
}

func collectDaemon(out chan<- prometheus.Metric, s *larderv1.Stats) {
	parity := strconv.FormatBool(s.GetParity())
	buildMetric.send(out, 1, valid(s.GetVersion()), runtime.Version(), valid(s.GetDecoder()), parity)
	uptimeMetric.send(out, s.GetUptime().AsDuration().Seconds())
	rssMetric.send(out, float64(s.GetRssBytes()))
	limitMetric.send(out, float64(s.GetMemoryLimit()))
	t := s.GetTotals()
	for _, k := range counts {
		k.daemon.send(out, k.get(t))
	}
	k := s.GetWorkers()
	workersAttached.send(out, float64(k.GetAttached()))
	workersWaiting.send(out, float64(k.GetWaiting()))
	workerTasks.send(out, float64(k.GetTasks()))
	workerRetries.send(out, float64(k.GetRetries()))
	workerRefused.send(out, float64(k.GetRefused()))
	workerFailed.send(out, float64(k.GetFailed()))
	workerLate.send(out, float64(k.GetLate()))
	workerDeaths.send(out, float64(k.GetDeaths()))
	for _, step := range []string{"decode", "augment", "in_place"} {
		workerSeconds.send(out, k.GetSeconds()[step], step)
	}
	for _, f := range forms {
		hitsMetric.send(out, float64(t.GetHits()[f]), f)
		evictionsMetric.send(out, float64(t.GetEvictions()[f]), f)
	}
}

func collectTiers(out chan<- prometheus.Metric, s *larderv1.Stats) {
	seen := map[string]bool{}
	for _, tier := range s.GetTiers() {
		f := valid(tier.GetForm())
		if seen[f] {
			continue
		}
		seen[f] = true
		tierBytes.send(out, float64(tier.GetUsed()), f)
		tierBudget.send(out, float64(tier.GetBudget()), f)
		tierEntries.send(out, float64(tier.GetEntries()), f)
	}
	if p := s.GetSplit(); p.GetPredicted() > 0 {
		predictedMetric.send(out, p.GetPredicted(), valid(p.GetModel()), valid(p.GetBinding()))
	}
	seen = map[string]bool{}
	for _, x := range s.GetSplit().GetDatasets() {
		if n := valid(x.GetDataset()); !seen[n] {
			seen[n] = true
			datasetBytes.send(out, float64(x.GetUsed()), n)
		}
	}
}

func collectStores(out chan<- prometheus.Metric, s *larderv1.Stats) {
	seen := map[string]bool{}
	for _, x := range s.GetStores() {
		n := valid(x.GetName())
		if seen[n] {
			continue
		}
		seen[n] = true
		for i, v := range []float64{float64(x.GetReads()), float64(x.GetLists()), float64(x.GetBytes()),
			float64(x.GetRetries()), float64(x.GetHedges()), float64(x.GetErrors()), x.GetMoney()} {
			storeCounts[i].send(out, v, n)
		}
	}
}

// collectOutages reports the datasets whose storage has failed, the first mostOutages of them by id.
func collectOutages(out chan<- prometheus.Metric, s *larderv1.Stats) {
	seen := map[string]bool{}
	for _, x := range s.GetDatasets() {
		n := valid(x.GetDataset().GetName())
		if x.GetOutages() == 0 || seen[n] || len(seen) == mostOutages {
			continue
		}
		seen[n] = true
		datasetWaiting.send(out, float64(x.GetJobsWaiting()), n)
		datasetOutages.send(out, float64(x.GetOutages()), n)
		datasetOutage.send(out, x.GetOutageSeconds(), n)
	}
}

func collectDisk(out chan<- prometheus.Metric, d *larderv1.DiskTier) {
	if d == nil {
		return
	}
	for i, v := range []uint64{d.GetHits(), d.GetMisses(), d.GetHitBytes(), d.GetWrittenBytes(), d.GetEvictions(),
		d.GetRefused(), d.GetSkipped(), d.GetDamaged(), d.GetErrors()} {
		diskCounts[i].send(out, float64(v))
	}
	works := 0.
	if d.GetState() == "" {
		works = 1
	}
	diskBytes.send(out, float64(d.GetUsed()))
	diskSize.send(out, float64(d.GetSize()))
	diskEntries.send(out, float64(d.GetEntries()))
	diskWorks.send(out, works)
}

func collectJobs(out chan<- prometheus.Metric, s *larderv1.Stats) {
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
			jobsMetric.send(out, float64(states[st]), stateLabel(st))
		}
	}
	names := make([]string, 0, len(newest))
	for n := range newest {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		collectJob(out, n, newest[n])
	}
}

func collectJob(out chan<- prometheus.Metric, name string, j *larderv1.Job) {
	for _, k := range counts {
		k.job.send(out, k.get(j.GetCounters()), name)
	}
	for _, f := range found {
		jobHits.send(out, float64(j.GetCounters().GetHits()[f]), name, f)
	}
	waitMetric.send(out, j.GetCounters().GetWaitSeconds(), name)
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
	jobRanks.send(out, float64(attached), name)
	jobSubset.send(out, float64(j.GetSubsetSize()), name)
	jobEpoch.send(out, float64(epoch), name)
	jobViolated.send(out, float64(violated), name)
	jobRings.send(out, float64(ring), name)
}

func stateLabel(s larderv1.JobState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "JOB_STATE_"))
}

// valid makes a label value: Prometheus takes UTF-8 only, and an error here would hide every other metric.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// NewRegistry returns a registry with the metrics of the daemon, of its process and of the Go runtime.
func NewRegistry(stats StatsFunc) *prometheus.Registry {
	r := prometheus.NewRegistry()
	process := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
	r.MustRegister(NewCollector(stats), collectors.NewGoCollector(), process)
	return r
}
