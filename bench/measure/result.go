// Package measure says what a run of jobs on one cache is measured by, whether it was simulated or real: the shape of
// the JSON that larder bench live, larder bench sim and larder whatif write (docs/format/live.md), and the Collector
// that makes it from what clients saw.
//
// It knows no coordinator and no daemon: the code that runs the jobs reports to the Collector what each client asked
// for and got, and sets the counts that only it knows (reads, decodes, hits).
package measure

import "larder/bench/fair"

// Kind is the "kind" of the JSON.
const Kind = "live"

// Result is the JSON of larder bench live, larder bench sim and larder whatif.
type Result struct {
	Kind     string            `json:"kind"`            // live
	Title    string            `json:"title,omitempty"` // the scenario's purpose, or the trace's name
	Facts    map[string]string `json:"facts,omitempty"` // machine, seeds, versions, hash of the scenario
	Scenario string            `json:"scenario"`        // file, or what else named the demand
	Seed     uint64            `json:"seed"`
	Runs     []Run             `json:"runs"`             // in the order in which they were made
	Errors   []Difference      `json:"errors,omitempty"` // simulated beside measured, by count; only when both were run
	Changes  []string          `json:"changes,omitempty"`
	Limits   []string          `json:"limits,omitempty"` // what the figures cannot know, in sentences
}

// Sources of a Run.
const (
	Simulated = "simulated" // the daemon's own coordinator in virtual time
	Measured  = "measured"  // a real daemon on real files
)

// Run is one run of all jobs. Times are seconds since it began; for a simulated run they are virtual.
type Run struct {
	Source   string  `json:"source"` // simulated | measured
	Label    string  `json:"label"`  // what differs between runs of a file: a repetition, before or after a change
	Seed     uint64  `json:"seed"`
	Makespan float64 `json:"makespan_seconds"`
	CutOff   bool    `json:"cut_off,omitempty"` // it was ended by --max-virtual-time: everything is up to then

	Counts      Counts  `json:"counts"`
	Unique      int     `json:"unique"` // samples that some job wants
	PerUnique   Ratios  `json:"per_unique"`
	LowerBound  Bound   `json:"lower_bound"`
	OverBound   Ratios  `json:"over_bound"` // counts ÷ lower bound; 0 where the bound is 0
	ExactlyOnce bool    `json:"exactly_once"`
	Jain        float64 `json:"jain"` // of what each job reached of the speed that it has without waiting

	Jobs  []Job  `json:"jobs"`
	Tiers []Tier `json:"tiers"`
	CPU   *CPU   `json:"cpu,omitempty"`

	Recovery *Recovery `json:"recovery,omitempty"` // measured: what became of it when its daemon was killed

	Events uint64 `json:"events,omitempty"` // simulated: picks and events that the coordinator handled
	// simulated: that the simulation took; 0 when it is not reported
	WallSeconds float64  `json:"wall_seconds,omitempty"`
	Trace       string   `json:"trace_xxhash64,omitempty"` // simulated: of every decision in order
	Failures    []string `json:"failures,omitempty"`       // what went wrong; such a run counts nothing
}

// Counts are totals of a run.
type Counts struct {
	SourceReads uint64 `json:"source_reads"`
	SourceBytes uint64 `json:"source_bytes"`
	Decodes     uint64 `json:"decodes"`
	InPlace     uint64 `json:"decoded_in_place"` // of the decodes: written straight into the batch that alone wanted them
	Augments    uint64 `json:"augments"`
	Samples     uint64 `json:"samples_delivered"`
	Batches     uint64 `json:"batches_delivered"`
	Quarantined uint64 `json:"quarantined"`
	// simulated: of the augments, those that idle workers made before anybody had picked them
	Prefetched uint64 `json:"prefetched"`
}

// Ratios are counts divided by something.
type Ratios struct {
	Reads    float64 `json:"reads"`
	Decodes  float64 `json:"decodes"`
	Augments float64 `json:"augments"`
}

// Bound is what no order, policy or foresight could go below, with the batches that clients and workers hold counted as
// a cache of their own; CacheOnly leaves those out, so that it may be undercut a little by jobs that sit in each
// other's windows.
type Bound struct {
	Reads     int `json:"reads"`
	Decodes   int `json:"decodes"`
	Augments  int `json:"augments"`
	Buffers   int `json:"buffered_samples"`
	CacheOnly struct {
		Reads   int `json:"reads"`
		Decodes int `json:"decodes"`
	} `json:"cache_only"`
}

// Job is one job of a run.
type Job struct {
	Name       string  `json:"name"`
	Order      string  `json:"order"`
	Subset     int     `json:"subset"` // samples of an epoch
	Batch      int     `json:"batch"`
	Epochs     int     `json:"epochs"` // complete ones
	Samples    uint64  `json:"samples"`
	Batches    uint64  `json:"batches"`
	Began      float64 `json:"began_seconds"` // registered
	Ended      float64 `json:"ended_seconds"`
	FirstBatch float64 `json:"first_batch_seconds"` // after it registered
	FirstEpoch float64 `json:"first_epoch_seconds"` // that its first epoch took; 0 = it was not finished
	Throughput float64 `json:"samples_per_second"`  // from its registration to its end
	Stepping   float64 `json:"step_seconds"`        // that it worked on batches, all together
	Speed      float64 `json:"part_of_full_speed"`  // stepping ÷ (stepping + waiting)
	Wait       Wait    `json:"wait"`
	Exact      bool    `json:"exactly_once"`
	Lost       int     `json:"lost"`     // samples that epochs lacked at their end
	Repeated   int     `json:"repeated"` // that came again in an epoch
	Foreign    int     `json:"foreign"`  // that it did not ask for
	Quality    Quality `json:"order_quality"`

	// MeanPositions reports whether some samples were always early or always late, over the epochs that were the job's
	// subset, each sample once; null = there were no two of them in a row, or its order is not random.
	MeanPositions *fair.Figures `json:"mean_positions"`

	Reads    uint64  `json:"source_reads"` // that were made for it first
	Decodes  uint64  `json:"decodes"`
	Augments uint64  `json:"augments"`
	Hits     Hits    `json:"hits"`
	Over     []Point `json:"throughput_over_time,omitempty"`
}

// Point is the samples a second that a job got up to a time, in seconds since the run began; from the point before on,
// or from its registration.
type Point struct {
	At         float64 `json:"at_seconds"`
	Throughput float64 `json:"samples_per_second"`
}

// Wait is how long next() waited for a batch, in seconds.
type Wait struct {
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
	Total float64 `json:"total"`
	// Histogram has the number of waits up to 1 µs, 2 µs, 4 µs and so on.
	Histogram []int `json:"histogram_of_powers_of_2_us,omitempty"`
}

// Quality is how random the orders of a job were; each figure stands beside the value that uniformly random orders
// exceed once in about a thousand such runs. Null = too few epochs, or nothing to tell apart.
type Quality struct {
	// PositionKS is the largest distance (Kolmogorov-Smirnov) between the positions of samples that a cache could tell
	// apart and uniform ones: samples that the same jobs want, quarters by stored size, quarters by id; over all epochs
	// together, looked at 128 places of an epoch.
	PositionKS      *float64 `json:"position_ks"`
	PositionKSLimit float64  `json:"position_ks_limit"`
	PositionGroup   string   `json:"position_group,omitempty"` // where it is
	// EpochCorrelation is the mean rank correlation of a sample's positions in consecutive epochs.
	EpochCorrelation      *float64 `json:"epoch_correlation"`
	EpochCorrelationLimit float64  `json:"epoch_correlation_limit"`
	// LabelChi2 is the mean over full batches of chi-square of their labels, by its expectation: 1 for random batches.
	LabelChi2      *float64 `json:"label_chi2"`
	LabelChi2Limit float64  `json:"label_chi2_limit"`
}

// Hits are samples found in memory when they were picked, by form. They come last, and prefetch is no hit: a hit rate
// alone misleads.
type Hits struct {
	Encoded   uint64 `json:"encoded"`
	Decoded   uint64 `json:"decoded"`
	Augmented uint64 `json:"augmented"`
	// Rate is the part of the delivered samples that were hits in any form.
	Rate float64 `json:"rate"`
}

// Count notes what the daemon counted of a job, and computes the rate of its hits.
func (j *Job) Count(reads, decodes, augments uint64, hits Hits) {
	j.Reads, j.Decodes, j.Augments, j.Hits = reads, decodes, augments, hits
	if j.Samples > 0 {
		j.Hits.Rate = min(1, float64(hits.Encoded+hits.Decoded+hits.Augmented)/float64(j.Samples))
	}
}

// Tier is the cache of one form.
type Tier struct {
	Form      string `json:"form"`
	Policy    string `json:"policy"`
	Budget    int64  `json:"budget_bytes"` // at the end
	Peak      int64  `json:"peak_bytes"`
	Hits      uint64 `json:"hits"`
	Evictions uint64 `json:"evictions"`
}

// CPU is the processor time of a measured run.
type CPU struct {
	Daemon  float64 `json:"daemon_seconds"`
	Clients float64 `json:"clients_seconds"`
	// PerThousand is seconds of all processes for 1,000 delivered samples.
	PerThousand float64 `json:"seconds_per_1000_samples"`
	PeakRSS     int64   `json:"daemon_peak_rss_bytes"`
	// Others is the part of the machine's processor time that went to other work meanwhile, 0 to 1.
	Others float64 `json:"others"`
}

// Difference is a count of the simulator beside the medians of the measured runs.
type Difference struct {
	What      string    `json:"what"`
	Simulated float64   `json:"simulated"`
	Measured  []float64 `json:"measured"`
	Median    float64   `json:"measured_median"`
	Error     float64   `json:"error"`   // simulated ÷ median - 1
	Allowed   *float64  `json:"allowed"` // null = it is reported, not judged
	Timing    bool      `json:"depends_on_timing"`
	OK        bool      `json:"ok"`
}
