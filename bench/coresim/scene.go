package coresim

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"larder/bench/fair"
	"larder/bench/measure"
	"larder/dsa"
	"larder/internal/coordinator"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/units"
	"larder/internal/xrand"
	"larder/jobs"
	store "larder/tiers"
	"larder/tiers/arena"
)

// World is a machine, a dataset and jobs: what larder bench sim simulates and larder bench live sets up for real.
type World struct {
	Seed    uint64
	Objects int // ids are below it
	// What is known of the objects, by id. Sizes and Decoded are bytes; a cost is that of one core.
	Sizes, Decoded  []uint32
	Decode, Augment []time.Duration
	Labels          []int32 // nil = they have none

	Finish  time.Duration // copying an augmented sample into a batch
	InPlace float64       // what decoding and augmenting in one costs, as a part of both; 0 = 1
	Workers int
	Cores   int
	Storage Storage
	Memory  float64 // bytes a second
	Tiers   coordinator.TierConfig
	Jobs    []Job
}

// Job is one training run.
type Job struct {
	Name     string
	Order    string // fixed, strict, stratified, stratified(B), epoch; empty = the order of the dataset
	Seed     uint64 // of order fixed
	Subset   []uint32
	Batch    int
	Ranks    int // 0 = 1
	Prefetch int // batches prepared ahead; 0 = 2
	Epochs   int
	DropLast bool
	Even     bool
	Start    time.Duration
	Leave    time.Duration // 0 = when its epochs are over
	Step     time.Duration // of a batch
	Jitter   float64       // each step is longer or shorter by up to this part of it, uniformly
	Phases   []Phase       // in place of Step, in turn, over and over
	Recipe   string        // jobs of one word prepare alike
	Share    bool          // augmented samples, with jobs of the same recipe and subset's dataset
	Bytes    int64         // of an augmented sample
}

// Phase is a stretch of batches that take alike.
type Phase struct {
	Batches int
	Step    time.Duration
}

// StepAt is how long a rank works on its n-th batch. It is a pure function, so that a simulated and a real client are
// equally fast.
func (j *Job) StepAt(seed uint64, rank, n int) time.Duration {
	step := j.Step
	if len(j.Phases) > 0 {
		all := 0
		for _, p := range j.Phases {
			all += p.Batches
		}
		at := n % all
		for _, p := range j.Phases {
			if at < p.Batches {
				step = p.Step
				break
			}
			at -= p.Batches
		}
	}
	if j.Jitter > 0 {
		h := xrand.Hash(seed, 0x73746570, xrand.Hash(words(j.Name)...), uint64(rank), uint64(n))
		step += time.Duration(float64(step) * j.Jitter * (2*float64(h>>11)*0x1p-53 - 1))
	}
	return step
}

func words(s string) []uint64 {
	out := make([]uint64, len(s))
	for i := range len(s) {
		out[i] = uint64(s[i])
	}
	return out
}

// minTile is the fewest samples of a subset that a tile of it may have, as of internal/engine.
const minTile = 64

// mode reads the name of an order that a daemon knows, and lowers its tiles as a daemon does.
func (j *Job) mode() (mode dsa.Mode, tiles int, err error) {
	if j.Order == "" {
		return dsa.Sequential, 0, nil
	}
	name, arg, ok := strings.Cut(j.Order, "(")
	if ok && name == dsa.Stratified.String() {
		text, closed := strings.CutSuffix(arg, ")")
		if tiles, err = strconv.Atoi(text); err != nil || !closed || tiles < 1 || tiles > dsa.MaxTiles {
			return 0, 0, errs.New(errs.Invalid, "order", fmt.Sprintf("write stratified(B) with 1 to %d tiles B", dsa.MaxTiles),
				"order %.40q does not name a number of tiles", j.Order)
		}
		return dsa.Stratified, min(tiles, max(dsa.DefaultTiles, len(j.Subset)/minTile)), nil
	}
	mode, err = dsa.ParseMode(j.Order)
	return mode, 0, err
}

// Spec is what the coordinator gets to know of the job.
func (j *Job) Spec() jobs.Spec {
	s := jobs.Spec{Name: j.Name, Subset: len(j.Subset), Batch: j.Batch, World: max(j.Ranks, 1), DropLast: j.DropLast,
		Even: j.Even, Slots: j.Prefetch + 2, Epochs: uint32(j.Epochs)}
	if j.Prefetch == 0 {
		s.Slots = 4
	}
	return s
}

// Options are how a World is run.
type Options struct {
	MaxTime   time.Duration // of virtual time; 0 = a day
	MaxMemory int64         // bytes; 0 = no limit
	Progress  func(now time.Duration, samples, of uint64) error
	Decisions io.Writer // see Model.Decisions
}

// Notes returns in sentences what is simulated otherwise than requested, as a daemon reports to a job at its
// registration.
func (w *World) Notes() []string {
	var out []string
	for i := range w.Jobs {
		j := &w.Jobs[i]
		if _, tiles, err := j.mode(); err == nil && tiles > 0 && j.Order != fmt.Sprintf("%s(%d)", dsa.Stratified, tiles) {
			out = append(out, fmt.Sprintf("Job %s: %d tiles are used for order %s: with fewer than %d of its %d samples in a "+
				"tile nothing would be left to share.", j.Name, tiles, j.Order, minTile, len(j.Subset)))
		}
	}
	return out
}

// Requests is how many samples all jobs take together, if none leaves early.
func (w *World) Requests() uint64 {
	n := uint64(0)
	for i := range w.Jobs {
		n += uint64(len(w.Jobs[i].Subset)) * uint64(w.Jobs[i].Epochs)
	}
	return n
}

// Estimate is about how many bytes of memory a run takes: what the coordinator keeps of an object and of an entry,
// positions and orders of each job, its positions in past epochs, and 24 bytes a batch for the bounds.
func (w *World) Estimate() int64 {
	n := int64(w.Objects)*96 + 32<<20
	for i := range w.Jobs {
		j := &w.Jobs[i]
		n += int64(len(j.Subset))*24 + int64(w.Objects)*4
		n += int64(len(j.Subset)) * int64(j.Epochs) / int64(max(j.Batch, 1)) * 24
		if j.Epochs > 1 {
			n += fair.Bytes(len(j.Subset), fair.LagsOf(w.Objects*(i+1)), j.Epochs)
		}
	}
	entries := int64(0)
	for _, f := range []ident.Form{ident.Encoded, ident.Decoded, ident.Augmented} {
		size := w.Tiers.Sizes[f]
		if size < 0 {
			size = w.Tiers.Total
		}
		entries += min(int64(w.Objects), size/max(1, w.mean(f)))
	}
	return n + entries*80
}

func (w *World) mean(f ident.Form) int64 {
	sum, list := int64(0), w.Sizes
	switch f {
	case ident.Decoded:
		list = w.Decoded
	case ident.Augmented:
		for i := range w.Jobs {
			sum = max(sum, w.Jobs[i].Bytes)
		}
		return sum
	case ident.Encoded, ident.Stored, ident.NumForms:
	}
	for _, v := range list {
		sum += int64(v)
	}
	return sum / int64(max(1, len(list)))
}

// Check says what cannot be run: INVALID_ARGUMENT, or RESOURCE_EXCEEDED with the estimate.
func (w *World) Check(o Options) error {
	bad := func(subject, hint, format string, args ...any) error {
		return errs.New(errs.Invalid, subject, hint, format, args...)
	}
	n := w.Objects
	if n < 1 || n > dsa.MaxObjects || len(w.Sizes) != n || len(w.Decoded) != n || len(w.Decode) != n ||
		len(w.Augment) != n {
		return bad("samples", fmt.Sprintf("1 to %d samples, each with sizes and costs", dsa.MaxObjects),
			"%d samples with %d sizes and %d costs cannot be simulated", n, len(w.Sizes), len(w.Decode))
	}
	if len(w.Jobs) < 1 || len(w.Jobs) > dsa.MaxJobs {
		return bad("jobs", fmt.Sprintf("1 to %d jobs", dsa.MaxJobs), "%d jobs cannot draw from one dataset", len(w.Jobs))
	}
	for i := range w.Jobs {
		j := &w.Jobs[i]
		if j.Epochs < 1 {
			return bad(j.Name, "give it at least one epoch", "job %s: %d epochs", j.Name, j.Epochs)
		}
		for _, p := range j.Phases {
			if p.Batches < 1 {
				return bad(j.Name, "give each phase at least one batch", "job %s: a phase of %d batches", j.Name, p.Batches)
			}
		}
		if err := j.Spec().Validate(); err != nil {
			return err
		}
		if _, _, err := j.mode(); err != nil {
			return err
		}
		for _, x := range j.Subset {
			if int(x) >= n {
				return bad(j.Name, "", "job %s wants sample %d of %d", j.Name, x, n)
			}
		}
	}
	if need := w.Estimate(); o.MaxMemory > 0 && need > o.MaxMemory {
		return errs.New(errs.ResourceExceeded, "samples", "lower samples, jobs or epochs, or raise --max-memory",
			"simulating %d jobs on %d samples needs about %s of memory, the limit is %s", len(w.Jobs), n, units.Size(need),
			units.Size(o.MaxMemory))
	}
	return nil
}

// Run simulates. The errors are those of Check, of the tiers' configuration, and what Progress returns.
func (w *World) Run(o Options) (*measure.Run, error) {
	if err := w.Check(o); err != nil {
		return nil, err
	}
	if o.MaxTime <= 0 {
		o.MaxTime = 24 * time.Hour
	}
	all := measure.Samples{Count: w.Objects, Size: func(x uint32) int64 { return int64(w.Sizes[x]) }}
	if w.Labels != nil {
		all.Label = func(x uint32) int { return int(w.Labels[x]) }
	}
	c := measure.New(all)
	storage := w.Storage
	storage.Readers = readers
	inPlace := w.InPlace
	if inPlace == 0 {
		inPlace = 1
	}
	m := Model{
		Seed: w.Seed, Workers: w.Workers, Cores: w.Cores, Ahead: readers, Storage: &storage, Memory: w.Memory,
		Granule: arena.Granule, Measure: 2 * time.Second, Finish: w.Finish,
		Decode: func(x ident.ObjectID) time.Duration { return w.Decode[x] }, Suffix: func(x ident.ObjectID) time.Duration {
			return w.Augment[x]
		},
		InPlace: func(x ident.ObjectID) time.Duration {
			return time.Duration(inPlace * float64(w.Decode[x]+w.Augment[x]))
		},
		Bytes: func(x ident.ObjectID) int64 { return int64(w.Sizes[x]) }, Decoded: func(x ident.ObjectID) int64 {
			return int64(w.Decoded[x])
		},
		Tiers: w.Tiers, Usable: store.Usable, Collect: c, Decisions: o.Decisions,
	}
	if o.Progress != nil {
		of := w.Requests()
		m.Progress = func(now time.Duration, samples uint64) error { return o.Progress(now, samples, of) }
	}
	res, err := Run(m, w.clients(), o.MaxTime)
	if err != nil {
		return nil, err
	}
	r := &measure.Run{Source: measure.Simulated, Seed: w.Seed, CutOff: res.CutOff, Events: res.Events,
		Trace: fmt.Sprintf("%016x", res.Hash), Failures: res.Failures}
	FillCounts(r, res.Stats)
	for _, t := range res.Tiers {
		r.Tiers = append(r.Tiers, measure.Tier{Form: t.Form.String(), Policy: t.Policy, Budget: t.Budget,
			Peak: res.Peak[t.Form], Hits: t.Hits, Evictions: t.Evictions})
	}
	if res.CutOff {
		c.Cut(o.MaxTime)
	}
	c.Finish(r, w.Capacity())
	for i := range r.Jobs {
		for k := range res.Jobs {
			if s := &res.Jobs[k].Stats; res.Jobs[k].Spec.Name == r.Jobs[i].Name {
				r.Jobs[i].Count(s.SourceReads, s.Decodes, s.Augments, measure.Hits{Encoded: s.Hits[ident.Encoded],
					Decoded: s.Hits[ident.Decoded], Augmented: s.Hits[ident.Augmented]})
			}
		}
	}
	return r, nil
}

const readers = 16 // as of internal/engine

// FillCounts takes the coordinator's counters over.
func FillCounts(r *measure.Run, s coordinator.Stats) {
	r.Counts = measure.Counts{SourceReads: s.SourceReads, SourceBytes: s.SourceBytes, Decodes: s.Decodes,
		InPlace: s.InPlace, Augments: s.Augments,
		Samples: s.Samples, Batches: s.Batches, Quarantined: s.Quarantined, Prefetched: s.Prefetched}
}

func (w *World) clients() []Client {
	subsets := map[*uint32][]ident.ObjectID{} // lookups only
	var out []Client
	for i := range w.Jobs {
		j := &w.Jobs[i]
		ids := subsets[&j.Subset[0]]
		if len(ids) != len(j.Subset) {
			ids = make([]ident.ObjectID, len(j.Subset))
			for k, x := range j.Subset {
				ids[k] = ident.ObjectID(x)
			}
			subsets[&j.Subset[0]] = ids
		}
		mode, tiles, _ := j.mode() // checked
		spec := j.Spec()
		recipe := xrand.Hash(append(words(j.Recipe), 1)...)
		group := ""
		if j.Share {
			group = j.Recipe + "/shared"
		}
		out = append(out, Client{
			Spec: spec, Sample: dsa.JobSpec{Mode: mode, Tiles: tiles, Seed: j.Seed,
				Subset: ids}, Prefix: 1, Suffix: ident.RecipeID(recipe), Share: j.Share, Key: ident.RecipeID(xrand.Mix(recipe)),
			Names: []string{"data"}, Start: j.Start, Leave: j.Leave, Epochs: j.Epochs, Augmented: j.Bytes, Next: func(rank,
				n int) time.Duration {
				return j.StepAt(w.Seed, rank, n)
			},
			Measure: w.demand(i, spec.Slots, mode, group),
		})
	}
	return out
}

// Demand is what a Collector needs to know of a job, from the code that runs it for real.
func (w *World) Demand(job int) measure.Demand {
	j := &w.Jobs[job]
	mode, _, _ := j.mode()
	group := ""
	if j.Share {
		group = j.Recipe + "/shared"
	}
	return w.demand(job, j.Spec().Slots, mode, group)
}

func (w *World) demand(job, slots int, mode dsa.Mode, group string) measure.Demand {
	j := &w.Jobs[job]
	order := j.Order
	if order == "" {
		order = "sequential"
	}
	return measure.Demand{Name: j.Name, Order: order, Subset: j.Subset, Batch: j.Batch, World: max(j.Ranks, 1),
		Buffered: slots * j.Batch * max(j.Ranks, 1), Group: group,
		InOrder: mode == dsa.Sequential, OneDraw: mode == dsa.Epoch}
}

// Capacity is how many samples all memory could hold at most in forms that save a read, and a decode: the smallest
// ones.
func (w *World) Capacity() measure.Capacity {
	size := func(f ident.Form) int64 {
		if n := w.Tiers.Sizes[f]; n >= 0 {
			return n
		}
		return w.Tiers.Total
	}
	fits := func(sizes []uint32, budget int64) int {
		n := 0
		for _, v := range slices.Sorted(slices.Values(sizes)) {
			if budget -= int64(v); budget < 0 {
				break
			}
			n++
		}
		return n
	}
	augmented := 0
	if least := w.leastAugmented(); least > 0 {
		augmented = int(min(size(ident.Augmented)/least, math.MaxInt32))
	}
	encoded, decoded := fits(w.Sizes, size(ident.Encoded)), fits(w.Decoded, size(ident.Decoded))
	if w.Tiers.Sizes[ident.Encoded] < 0 || w.Tiers.Sizes[ident.Decoded] < 0 { // they share what there is
		return measure.Capacity{Reads: max(encoded, decoded) + augmented, Decodes: decoded + augmented}
	}
	return measure.Capacity{Reads: encoded + decoded + augmented, Decodes: decoded + augmented}
}

func (w *World) leastAugmented() int64 {
	least := int64(0)
	for i := range w.Jobs {
		if b := w.Jobs[i].Bytes; w.Jobs[i].Share && b > 0 && (least == 0 || b < least) {
			least = b
		}
	}
	return least
}
