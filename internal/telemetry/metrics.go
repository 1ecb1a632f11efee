package telemetry

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	larderv1 "larder/proto/larder/v1"
)

// Metric describes one family of time series.
type Metric struct {
	Name    string   // begins with larder_
	Labels  []string // the first is "job" where each job has its own series
	Counter bool     // otherwise a gauge
	Help    string   // a sentence
}

// Metrics lists every family that larder itself exports, in the order of the reference. The Go runtime and the process
// have more, with the prefixes go_ and process_.
func Metrics() []Metric {
	out := make([]Metric, len(families))
	for i, f := range families {
		out[i] = f.Metric
	}
	return out
}

// family is a Metric that series can be sent of.
type family struct {
	Metric
	desc *prometheus.Desc
}

// families are filled by gauge and counter, in the order of the declarations below.
var families []*family

func define(m Metric) *family {
	m.Name = "larder_" + m.Name
	f := &family{m, prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)}
	families = append(families, f)
	return f
}

func gauge(name, help string, labels ...string) *family {
	return define(Metric{Name: name, Help: help, Labels: labels})
}

func counter(name, help string, labels ...string) *family {
	return define(Metric{Name: name, Help: help, Labels: labels, Counter: true})
}

// send reports the value of one series; labels are in the order of the definition.
func (f *family) send(out chan<- prometheus.Metric, v float64, labels ...string) {
	kind := prometheus.GaugeValue
	if f.Counter {
		kind = prometheus.CounterValue
	}
	out <- prometheus.MustNewConstMetric(f.desc, kind, v, labels...)
}

// count is a field of larder.v1 Counters, which is a metric of the daemon and one of each job.
type count struct {
	daemon, job *family
	get         func(*larderv1.Counters) float64
}

// The metrics of the daemon.
var (
	upMetric = gauge("up",
		"1 when the daemon can report its counters, 0 while it starts or stops.")
	buildMetric = gauge("build_info",
		"Always 1; the labels describe the build.", "version", "go_version", "decoder", "parity")
	uptimeMetric = gauge("uptime_seconds", "Time since the daemon started.")
	rssMetric    = gauge("rss_bytes", "Resident memory of the daemon.")
	limitMetric  = gauge("memory_limit_bytes", "Memory that the daemon may use (memory.limit).")

	daemonCounts = []*family{
		counter("source_reads_total", "Reads of samples from storage, and of blocks."),
		counter("source_bytes_total", "Bytes read from storage."),
		counter("decodes_total", "Images decoded."),
		counter("augments_total", "Random suffixes of recipes run."),
		counter("samples_delivered_total", "Samples delivered to clients."),
		counter("batches_delivered_total", "Batches delivered to clients."),
		counter("quarantined_total", "Distinct samples that could not be prepared."),
	}

	storeCounts = []*family{
		counter("store_reads_total", "Requests sent to a store for objects and about objects.", "store"),
		counter("store_lists_total", "Requests sent to a store for lists of objects.", "store"),
		counter("store_bytes_total", "Bytes of a store's answers.", "store"),
		counter("store_retries_total", "Requests to a store that repeated a failed one.", "store"),
		counter("store_hedges_total", "Second requests to a store beside a slow one.", "store"),
		counter("store_errors_total", "Reads and lists of a store that failed in the end.", "store"),
		counter("store_money_total", "What a store cost by the prices of the configuration (stores.NAME.price_get).",
			"store"),
	}

	diskCounts = []*family{
		counter("disk_tier_hits_total", "Reads of remote samples that the disk tier served."),
		counter("disk_tier_misses_total", "Reads of remote samples that the disk tier could not serve."),
		counter("disk_tier_hit_bytes_total", "Bytes of samples read from the disk tier."),
		counter("disk_tier_written_bytes_total", "Bytes of samples written to the disk tier."),
		counter("disk_tier_evictions_total", "Samples and blocks that left the disk tier for others."),
		counter("disk_tier_refused_total", "Samples that the disk tier did not take, as it holds what is needed as much."),
		counter("disk_tier_skipped_total", "Samples that came faster than the disk writes, or while it rested."),
		counter("disk_tier_damaged_total", "Entries and files of the disk tier that were not what was written."),
		counter("disk_tier_errors_total", "Errors of the disk of the disk tier."),
	}
	diskBytes   = gauge("disk_tier_bytes", "Bytes of disk that the disk tier takes, never above its size.")
	diskSize    = gauge("disk_tier_size_bytes", "Bytes of disk that the disk tier may take.")
	diskEntries = gauge("disk_tier_entries", "Samples that the disk tier holds.")
	diskWorks   = gauge("disk_tier_up", "1 while the disk tier reads and writes, 0 while it does less.")

	hitsMetric      = counter("hits_total", "Samples found in a tier; form is encoded, decoded or augmented.", "form")
	evictionsMetric = counter("evictions_total", "Samples evicted from a tier.", "form")
	tierBytes       = gauge("tier_bytes", "Bytes that a tier holds, never above its budget.", "form")
	tierBudget      = gauge("tier_budget_bytes", "Bytes that a tier may hold.", "form")
	tierEntries     = gauge("tier_entries", "Samples that a tier holds.", "form")
	predictedMetric = gauge("predicted_samples_per_second",
		"What the model of the tiers predicts for all jobs together; binding is what limits them.", "model", "binding")
	datasetWaiting = gauge("dataset_jobs_waiting_for_storage",
		"Jobs that wait for the storage of a dataset, which fails; there is a series once it has failed.", "dataset")
	datasetOutages = counter("dataset_storage_outages_total",
		"Times that the storage of a dataset began to fail, each of several disks for itself.", "dataset")
	datasetOutage = counter("dataset_storage_outage_seconds_total",
		"Time in which the storage of a dataset failed, an outage in progress included.", "dataset")
	datasetBytes = gauge("dataset_tier_bytes",
		"Bytes of all tiers together that a dataset with a floor or a cap has.", "dataset")
	jobsMetric      = gauge("jobs", "Jobs by state: joining, live, suspect, dead, done.", "state")
	workersAttached = gauge("workers", "Worker processes of clients that are attached.")
	workersWaiting  = gauge("worker_tasks_waiting", "Samples that wait for a worker process.")
	workerTasks     = counter("worker_tasks_total", "Samples made by worker processes.")
	workerRetries   = counter("worker_retries_total", "Samples given to a worker process again.")
	workerRefused   = counter("worker_refused_total", "Records of worker processes that did not fit their schema.")
	workerFailed    = counter("worker_failed_total", "Samples that worker processes could not make.")
	workerLate      = counter("worker_late_total", "Worker processes that did not answer within sample_timeout.")
	workerDeaths    = counter("worker_deaths_total", "Worker processes that ended with samples in hand.")
	workerSeconds   = counter("worker_seconds_total",
		"Time of worker processes; step is decode, augment or in_place.", "step")

	gpuMemory = gauge("gpu_memory_bytes", "Memory of a GPU; there is no series without a driver.", "uuid", "name")
	gpuUsed   = gauge("gpu_memory_used_bytes", "Used memory of a GPU.", "uuid", "name")
	gpuBusy   = gauge("gpu_utilization_ratio", "Busy part of a GPU's processors, 0 to 1.", "uuid", "name")
)

// The metrics of each job.
var (
	waitMetric = counter("wait_seconds_total",
		"Time that the job's next() waited for a batch, a wait in progress included, summed over its ranks.", "job")

	jobCounts = []*family{
		counter("job_source_reads_total", "Reads of samples, and of blocks, from storage for the job.", "job"),
		counter("job_source_bytes_total", "Bytes read from storage for the job.", "job"),
		counter("job_decodes_total", "Images decoded for the job.", "job"),
		counter("job_augments_total", "Random suffixes run for the job.", "job"),
		counter("job_samples_delivered_total", "Samples delivered to the job.", "job"),
		counter("job_batches_delivered_total", "Batches delivered to the job.", "job"),
		counter("job_quarantined_total",
			"Samples of the job that could not be prepared, counted in every epoch again.", "job"),
	}

	jobHits = counter("job_hits_total",
		"Samples of the job found in a tier, or in a block in memory (order blocks): read for it, or for another job.",
		"job", "form")
	jobRanks    = gauge("job_ranks_attached", "Ranks that a client holds.", "job")
	jobSubset   = gauge("job_subset_samples", "Samples in the job's subset.", "job")
	jobEpoch    = gauge("job_epoch", "Epoch of the foremost rank.", "job")
	jobViolated = gauge("job_epochs_violated",
		"Recent epochs that were not exactly once; anything but 0 is a bug of larder.", "job")
	jobRings = gauge("job_ring_bytes", "Shared memory of the job's rings.", "job")
)

// counts pairs the counters of the daemon with those of each job.
var counts = func() []count {
	get := []func(*larderv1.Counters) float64{
		func(c *larderv1.Counters) float64 { return float64(c.GetSourceReads()) },
		func(c *larderv1.Counters) float64 { return float64(c.GetSourceBytes()) },
		func(c *larderv1.Counters) float64 { return float64(c.GetDecodes()) },
		func(c *larderv1.Counters) float64 { return float64(c.GetAugments()) },
		func(c *larderv1.Counters) float64 { return float64(c.GetSamplesDelivered()) },
		func(c *larderv1.Counters) float64 { return float64(c.GetBatchesDelivered()) },
		func(c *larderv1.Counters) float64 { return float64(c.GetQuarantined()) },
	}
	out := make([]count, len(get))
	for i := range get {
		out[i] = count{daemonCounts[i], jobCounts[i], get[i]}
	}
	return out
}()

// PerJob reports whether each job has a series of the metric.
func (m Metric) PerJob() bool { return slices.Contains(m.Labels, "job") }
