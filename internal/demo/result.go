package demo

import (
	"fmt"
	"time"
)

// Result is everything a demo found out; --json prints it, and the report draws it.
type Result struct {
	Version string    `json:"version"`
	Command string    `json:"command"` // repeats the demo
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"` // of the whole demo

	Machine Machine `json:"machine"`
	Dataset Dataset `json:"dataset"`

	Seed        uint64 `json:"seed"`
	Epochs      int    `json:"epochs"`
	Share       string `json:"share"`
	MemoryBytes int64  `json:"memory_bytes"` // of all tiers of all daemons of one run together

	Unique     int `json:"unique_samples"` // wanted by at least one job
	Deliveries int `json:"deliveries"`     // samples all jobs together must receive in one run

	Unshared RunStats `json:"unshared"`
	Shared   RunStats `json:"shared"`

	Audit   Audit    `json:"audit"`
	Saved   bool     `json:"saved_work"` // sharing made reads and decodes fewer
	OK      bool     `json:"ok"`         // Saved, and the audit found nothing
	Verdict []string `json:"verdict"`    // in words

	Report string `json:"report,omitempty"` // path
	Kept   string `json:"kept,omitempty"`   // folder with images, configurations and logs
}

// Machine is where it ran.
type Machine struct {
	OS      string `json:"os"`
	CPU     string `json:"cpu"`
	Cores   int    `json:"cores"`
	Decoder string `json:"decoder"`
}

// Dataset is what was drawn.
type Dataset struct {
	Samples  int     `json:"samples"`
	Classes  int     `json:"classes"`
	Bytes    int64   `json:"bytes"`
	MinBytes int64   `json:"min_bytes"`
	MaxBytes int64   `json:"max_bytes"`
	Decoded  int64   `json:"decoded_bytes"` // all images as uint8 RGB
	Seconds  float64 `json:"draw_seconds"`
}

// RunStats is one of the two: every job with a daemon of its own, or all with one.
type RunStats struct {
	Daemons     int     `json:"daemons"`
	Seconds     float64 `json:"seconds"` // from the common start until the last job is done
	SourceReads uint64  `json:"source_reads"`
	SourceBytes uint64  `json:"source_bytes"`
	Decodes     uint64  `json:"decodes"`
	Augments    uint64  `json:"augments"`
	Delivered   uint64  `json:"samples_delivered"`
	CPUSeconds  float64 `json:"cpu_seconds"` // of the daemons, user and system
	PeakRSS     uint64  `json:"peak_rss_bytes"`
	// OthersCPU is the part of the machine's processor time that programs which are no part of the demo took, 0 to 1.
	OthersCPU float64 `json:"others_cpu"`

	Jobs     []JobRun  `json:"jobs"`
	Counters []Counted `json:"counters"` // over time, for the plots
}

// JobRun is what one job saw of a run.
type JobRun struct {
	Name        string     `json:"name"`
	Subset      string     `json:"subset"`
	Samples     int        `json:"samples"` // of its subset
	Batch       int        `json:"batch_size"`
	StepMillis  float64    `json:"step_ms"`
	Seconds     float64    `json:"seconds"`
	WaitSeconds float64    `json:"wait_seconds"` // waiting for batches
	Epochs      []EpochRun `json:"epochs"`
	Points      []Point    `json:"points"`
}

// EpochRun says when an epoch of a job ran, in seconds since the common start.
type EpochRun struct {
	Start float64 `json:"start"`
	End   float64 `json:"end"`
}

// Point is how far a job was at a moment.
type Point struct {
	Seconds float64 `json:"t"`
	Rows    int64   `json:"rows"`
}

// Counted is the sum of all daemons' counters at a moment.
type Counted struct {
	Seconds float64 `json:"t"`
	Reads   uint64  `json:"reads"`
	Decodes uint64  `json:"decodes"`
}

// Rate is samples a second over all jobs.
func (r *RunStats) Rate() float64 {
	var rows int64
	for i := range r.Jobs {
		if p := r.Jobs[i].Points; len(p) > 0 {
			rows += p[len(p)-1].Rows
		}
	}
	return ratio(float64(rows), r.Seconds)
}

// Wait is the seconds all jobs together waited for batches.
func (r *RunStats) Wait() float64 {
	var w float64
	for i := range r.Jobs {
		w += r.Jobs[i].WaitSeconds
	}
	return w
}

// Bounds are what no loader can go below in one run: every wanted sample must be read and decoded once, and augmented
// once for each time a job needs it in a new shape. Jobs that share augmented samples need as many shapes as epochs.
func (r *Result) Bounds() (reads, decodes, augments int) {
	augments = r.Deliveries
	if r.Share == "augmented" {
		augments = r.Unique * r.Epochs
	}
	return r.Unique, r.Unique, augments
}

// sameTime is how much two runs may differ before one is called faster: the noise of a machine that does other things
// too.
const sameTime = 0.05

// busyMachine is the part of the processor time in other hands from which on seconds are not to be trusted: four
// daemons get more of a contended processor than one.
const busyMachine = .15

// judge fills Saved, OK and Verdict.
func (r *Result) judge() {
	u, s := &r.Unshared, &r.Shared
	r.Saved = s.Decodes < u.Decodes && s.SourceReads < u.SourceReads
	r.OK = r.Saved && r.Audit.OK()
	switch {
	case !r.Saved:
		r.say("Sharing saved nothing here: %s source reads instead of %s, %s decodes instead of %s.",
			count(s.SourceReads), count(u.SourceReads), count(s.Decodes), count(u.Decodes))
	default:
		r.say("Sharing did the same job with %s fewer source reads and %s fewer decodes.",
			times(float64(u.SourceReads), float64(s.SourceReads)), times(float64(u.Decodes), float64(s.Decodes)))
	}
	cpu := fmt.Sprintf("the daemons needed %.1f s of processor time, unshared %.1f s", s.CPUSeconds, u.CPUSeconds)
	switch {
	case s.Seconds < u.Seconds*(1-sameTime):
	case s.Seconds <= u.Seconds*(1+sameTime):
		r.say("It did not make the jobs faster on this machine (%.1f s, unshared %.1f s); %s.", s.Seconds, u.Seconds, cpu)
	default:
		r.say("It made the jobs slower on this machine (%.1f s, unshared %.1f s); %s.", s.Seconds, u.Seconds, cpu)
	}
	if others := max(u.OthersCPU, s.OthersCPU); others > busyMachine {
		r.say("Other programs took up to %.0f%% of the machine's processor time meanwhile, so the seconds say little.",
			100*others)
	}
	if r.Audit.Repeats > 0 {
		r.say("%s of %s pictures had pixels that their job had seen before.", count(r.Audit.Repeats), count(r.Audit.Pictures))
	}
}

func (r *Result) say(format string, args ...any) {
	r.Verdict = append(r.Verdict, fmt.Sprintf(format, args...))
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// times prints how often b goes into a: "3.2x".
func times(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1fx", a/b)
}

// count prints an integer with a comma between groups of three digits.
func count[T int | int64 | uint64](n T) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
