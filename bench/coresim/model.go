package coresim

import (
	"io"
	"time"

	"larder/bench/measure"
	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/ident"
	"larder/jobs"
)

// Client is a model of one job's training script; all its ranks behave alike.
type Client struct {
	Spec   jobs.Spec
	Sample dsa.JobSpec
	Prefix ident.RecipeID
	Suffix ident.RecipeID
	Share  bool
	Key    ident.RecipeID
	Data   ident.DatasetID // of its samples
	Names  []string        // of that dataset
	Start  time.Duration   // when it registers
	Step   time.Duration   // time it works on a batch
	Epochs int             // epochs it iterates, then it leaves
	// Break leaves every epoch of that number modulo after half of its batches, as a script's break does; 0 = never.
	Break int
	// Die kills rank 0's client (SIGKILL: no goodbye) when it got that many batches in all; 0 = never.
	Die int
	// Back is how long after its death another client takes rank 0 over; 0 = never.
	Back time.Duration
	// Steps are the times of single ranks in place of Step.
	Steps []time.Duration
	// Next is the time of the n-th batch of a rank in place of Step and Steps; nil = those.
	Next func(rank, n int) time.Duration
	// Leave is when it goes away, before its epochs are over; 0 = never. Only with a Collector.
	Leave time.Duration
	// Augmented is the bytes of one of its augmented samples; 0 = Model.Augment.
	Augmented int64
	// Measure is what the Collector gets to know of it.
	Measure measure.Demand
	// Hang keeps it at a batch for the rest of the run when it got that many batches in all, without dying; 0 = never.
	Hang int
	// Change gives the job another subset when a rank got that many batches in all: asked for by rank 0, or by each rank
	// alike.
	Change map[int][]ident.ObjectID
	Alike  bool
	// Pause pauses the job when rank 0 got that many batches in all, for PauseFor; 0 = never.
	Pause    int
	PauseFor time.Duration
	// Cuts are times at which the connection of a rank is cut, of one rank after the other. It comes back after Away.
	Cuts []time.Duration
	Away time.Duration
	// Given are the batches of an epoch that the client asks for; with Spec.Given alone.
	Given func(epoch uint32) [][]ident.ObjectID
	// Then resumes, in a job of its own, what is left of the epoch when rank 0 got Stop batches in all and the job is
	// killed; nil = never.
	Then *Client
	Stop int
	// Making says who makes its samples: with Workers, the Model's Outside.
	Making coordinator.Making
}

// DataChange is something that happens to the dataset of all jobs: their subsets are selected again.
type DataChange struct {
	At   time.Duration
	Add  []ident.ObjectID // new objects, which every subset selects
	Gone []ident.ObjectID // objects that cannot be read any more
}

// Selection is a subset that a job was given and the first epoch of it.
type Selection struct {
	Epoch  uint32
	Subset []ident.ObjectID
}

// Storage is what objects are read from, by all workers and readers together: a token bucket as source.storage_limit is
// one, and a latency.
type Storage struct {
	Bandwidth float64       // bytes a second; 0 = no limit
	IOPS      float64       // objects a second; 0 = no limit
	Latency   time.Duration // of each read, beside what it waits
	Readers   int           // that read ahead of the workers while reads are slow, as those of internal/engine
}

// Model is the world around the coordinator.
type Model struct {
	Seed    uint64
	Workers int
	Cores   int           // that the workers have; 0 = one each
	Ahead   int           // preparations handed out beyond what the workers take, as coordinator.Config.Ahead
	Read    time.Duration // per object from storage, by the worker; only without Storage
	Storage *Storage
	Memory  float64 // bytes a second that rows are copied with, by all workers together; 0 = no limit
	Decode  func(ident.ObjectID) time.Duration
	Fill    time.Duration                      // augmenting a sample, and writing or copying its row
	Suffix  func(ident.ObjectID) time.Duration // augmenting a decoded sample into its row, in place of Fill; nil = Fill
	Finish  time.Duration                      // copying an augmented sample into its row, with Suffix
	InPlace func(ident.ObjectID) time.Duration // decoding straight into a row; nil = Decode and Fill, or Suffix
	Granule int64                              // bytes that entries are rounded up to; 0 = exact
	Measure time.Duration                      // between two reports of measured rates; 0 = there are none but Rates
	// Collect receives what clients see; nil = it is kept in the Result, and what the coordinator asks for is checked.
	Collect *measure.Collector
	// Decisions takes all that was decided, in order, as bytes; nil = only its hash is made.
	Decisions io.Writer
	// Progress is called with the virtual time now and then; an error that it returns ends the run. nil = no calls.
	Progress func(now time.Duration, samples uint64) error
	Bytes    func(ident.ObjectID) int64 // stored
	Decoded  func(ident.ObjectID) int64
	Augment  int64                     // bytes of an augmented sample
	Bad      map[ident.ObjectID]string // cannot be decoded
	Lose     int                       // loses a cached entry at every n-th use; 0 = never
	Tiers    coordinator.TierConfig
	Resize   map[time.Duration]coordinator.TierConfig
	Rates    map[time.Duration]coordinator.Rates // as measured from then on
	Data     []DataChange
	Block    int64           // bytes of a block of a job of mode Blocks
	Restarts []time.Duration // when the daemon dies, and another one restores its jobs; not with Data or Change
	Lease    time.Duration
	Usable   func(int64) int64 // as coordinator.Config
	Refill   func(sharers int) bool
	// Outside makes what carries out the work of jobs whose samples workers of clients make; nil = there are none.
	Outside func(Desk) Outside
	// Check runs Core.Check after every n-th step; 0 = never.
	Check int
}

// Received is what one client saw of one epoch.
type Received struct {
	Job      string
	Rank     int
	Epoch    uint32
	IDs      []ident.ObjectID // in order
	Sizes    []int            // of batches
	Bad      []jobs.Bad
	Ended    bool // the client was notified that it is over
	Again    bool // by a client that took the rank over from a dead one
	Begun    time.Duration
	Finished time.Duration // 0 = it was not
	Account  *jobs.Ledger
	Instance map[ident.ObjectID]uint32
}

// Result is the outcome of a run.
type Result struct {
	Stats    coordinator.Stats
	Epochs   []*Received // in order of their beginning
	Elapsed  time.Duration
	Hash     uint64 // of every effect in order: equal seeds must give equal hashes
	Peak     [ident.NumForms]int64
	Solves   int // times that the split was asked for
	Copies   int // largest number of working copies at once
	Failures []string
	Jobs     []jobs.Job             // at the end
	Paused   int                    // pauses
	Cuts     int                    // connections that were cut
	Restarts int                    // daemons that died
	Resumed  []Resumed              // jobs that resumed what another one left of an epoch
	Subsets  map[string][]Selection // by job, in the order given; a later one for the same epoch replaces the earlier
	Tiers    []coordinator.TierView // at the end
	Events   uint64                 // that the coordinator handled, and picks
	Picks    uint64                 // among Events
	CutOff   bool                   // at the limit of virtual time; only with a Collector
}

// Resumed is a job that resumed what another one left of an epoch.
type Resumed struct {
	Job, From string
	Epoch     uint32
	Before    []ident.ObjectID // what that one had of the epoch
}

// Subset is what a job was to draw in an epoch.
func (r *Result) Subset(job string, epoch uint32) []ident.ObjectID {
	var out []ident.ObjectID
	for _, s := range r.Subsets[job] {
		if s.Epoch <= epoch {
			out = s.Subset
		}
	}
	return out
}

// trusts reports whether the coordinator is believed to know what is stored, and what clients see is only measured.
// Else all is checked and kept.
func (m *Model) trusts() bool { return m.Collect != nil }
