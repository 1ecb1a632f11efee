package partition

import (
	"fmt"
	"math"

	"larder/internal/errs"
	"larder/internal/nearest"
	"larder/internal/units"
)

// Demand is everything a Model decides from: what the machine was measured to do, what a sample weighs in each
// form, and who reads what. Rates are in samples or bytes a second and are positive; +Inf says that something never is
// the limit. All of them come from measurements; none has a default, because a wrong rate gives a wrong split silently.
type Demand struct {
	Budget   int64     // bytes for all tiers together
	Fixed    *Sizes    // tiers whose size was given; nil = none
	Machine  Machine   // shared by all
	Datasets []Dataset // at least one; names are unique
	Fairness *float64  // no job may fall below this part of its fair share, 0 to 1; nil = 1 (see Model)
}

// Sizes are sizes that somebody fixed, in bytes; a negative one is left to the model.
type Sizes struct{ Encoded, Decoded, Augmented int64 }

// Free leaves all sizes to the model.
var Free = Sizes{-1, -1, -1}

// Machine is what all jobs share. NIC and PCIe are of one node and multiplied by Nodes; Cache and Storage are of the
// whole cluster, as a trainer sees them (seneca.md 1.1). On one machine NIC and PCIe are +Inf.
type Machine struct {
	Nodes        int     // n, at least 1
	Cache        float64 // B_cache: bytes a second out of the cache; on one machine its memory bandwidth
	NIC          float64 // B_NIC, bytes a second of a node
	PCIe         float64 // B_PCIe, bytes a second of a node
	Storage      float64 // B_storage, bytes a second
	GradientNIC  float64 // C_nw: bytes of gradients on the network for each sample (a batch's, divided by its size); may be 0
	GradientPCIe float64 // C_PCIe: the same on PCIe
	Waiting      float64 // part of the other resources' work that the most loaded one does not hide, 0 to 1; 0 = the bottleneck law itself
	MissesFill   bool    // every miss is also written to the cache (a remote cache that is filling); charged as Encoded bytes
}

// Dataset is the samples that active jobs want of one dataset; all its recipes share the encoded tier.
type Dataset struct {
	Name    string
	Samples int64   // distinct samples that any active job wants
	Stored  float64 // S_data: mean bytes read from storage for a sample
	Encoded float64 // mean bytes of a sample in the encoded tier (the same, and what the allocator adds)
	Recipes []Recipe
}

// Recipe is a recipe and the jobs that use it on a dataset. Jobs whose augmented samples are shared with different
// others are different Recipes of one Prefix.
type Recipe struct {
	Name          string
	Prefix        string  // recipes of a dataset with equal, non-empty prefixes share their decoded samples
	Samples       int64   // distinct samples its jobs want; 0 = all of the dataset's
	Decoded       float64 // mean bytes of a decoded sample
	Augmented     float64 // mean bytes of an augmented sample
	DecodeAugment float64 // T_D+A: samples a second a node prepares from encoded bytes to the batch, all workers together
	Augment       float64 // T_A: from a decoded sample to the batch
	Finish        float64 // from an augmented sample to the batch; +Inf when that is nothing, as the paper has it
	Sharers       int     // r: jobs that use one augmented instance, at least 1; 1 = nobody shares
	Degree        float64 // g: jobs served by one read, and the decode of what it read, when their picks fall together; at least 1
	DecodeDegree  float64 // g_E: the same by one decode of what the encoded tier holds, which jobs need not take together; 0 = Degree
	AugmentDegree float64 // of the Sharers, those served by one augmentation that no tier keeps, when their picks fall together; 0 = 1
	Jobs          []Job   // at least one
}

// Job is one job of a recipe.
type Job struct {
	Ingest float64 // n x T_GPU: samples a second that the training takes, on all its nodes; +Inf when not known
}

// RecipePlan is the split of one recipe, and what it gives.
type RecipePlan struct {
	Name               string
	Decoded, Augmented int64   // bytes; a prefix that several recipes share is counted at the first of them
	Mix                Mix     // how its samples are served
	Rate               float64 // samples a second of all its jobs together
	FairShare          float64 // what they would have if every job owned an equal part of the budget
}

// Mix is the parts of a recipe's samples that are served from each form; the sum is 1.
type Mix struct{ Stored, Encoded, Decoded, Augmented float64 }

// DatasetPlan is the split of one dataset.
type DatasetPlan struct {
	Name    string
	Encoded int64 // bytes
	Recipes []RecipePlan
}

// Split sums the dataset's bytes.
func (d DatasetPlan) Split() Split {
	s := Split{Encoded: d.Encoded}
	for _, r := range d.Recipes {
		s.Decoded += r.Decoded
		s.Augmented += r.Augmented
	}
	return s
}

// Candidate is a split that was looked at.
type Candidate struct {
	Name    string
	Split   Split
	Rate    float64 // predicted samples a second of all jobs together
	Binding Resource
	Load    [NumResources]float64 // part of each resource that is used; model bottleneck only
	Unfair  bool                  // some job would fall below its fair share
}

// Plan is a decision: Split.Total() is at most Budget. It is less only where more memory would slow the jobs down, because
// the cache is slower than storage, or where all sizes are fixed.
type Plan struct {
	Model      string
	Split      Split
	Datasets   []DatasetPlan // in the order of the demand; what is beyond everything wanted is in Split alone
	Rate       float64       // predicted samples a second of all jobs together
	Binding    Resource      // what limits it
	Load       [NumResources]float64
	Candidates []Candidate // the chosen one first
	Why        string      // one sentence for people
}

// Resource is what can limit the throughput.
type Resource uint8

// The resources of seneca.md 1.6. Ingest is the training itself; Load has no entry that counts for it.
const (
	Storage Resource = iota
	CPU
	MemoryBandwidth
	Network
	PCIe
	Training
	NumResources
)

// String names the resource for people and in reports.
func (r Resource) String() string {
	switch r {
	case Storage:
		return "storage"
	case CPU:
		return "cpu"
	case MemoryBandwidth:
		return "memory bandwidth"
	case Network:
		return "network"
	case PCIe:
		return "pcie"
	case Training:
		return "training"
	default:
		return fmt.Sprintf("resource(%d)", uint8(r))
	}
}

// Model decides how many bytes each form gets.
//
// The objective is the samples a second of all jobs together, under the condition that no job falls below Fairness
// times its fair share: what it would get if every job owned an equal part of the budget and its recipe's part were
// split best for that recipe alone. That division is itself a candidate, so the condition can always be met. Where tiers
// do not limit, jobs get equally many samples a second (the daemon serves them in turn) up to what their training takes.
//
// Implementations are pure and deterministic: equal demands give equal plans.
type Model interface {
	// Name is the name New took.
	Name() string
	// Partition solves the model. Errors are *errs.Error INVALID_ARGUMENT or RESOURCE_EXCEEDED (fixed sizes beyond the
	// budget) that name the value.
	Solve(d Demand) (Plan, error)
	// Predict says what a given split would give. Bytes of a form are divided among datasets and recipes in proportion to
	// what they want of it, as a tier without quotas does. The split need not obey Budget or Fixed.
	Predict(d Demand, s Split) (Candidate, error)
}

// Bottleneck and Seneca are the models of New.
const (
	Bottleneck = "bottleneck"
	Seneca     = "seneca"
)

// Models lists the models, the default first.
func Models() []string { return []string{Bottleneck, Seneca} }

// New returns the model of that name, "" is the default. An unknown name is a *errs.Error
// INVALID_ARGUMENT that names the nearest.
func New(name string) (Model, error) {
	switch name {
	case "", Bottleneck:
		return bottleneck{}, nil
	case Seneca:
		return seneca{}, nil
	}
	return nil, errs.New(errs.Invalid, "model", nearest.DidYouMean(name, Models()), "unknown model %.40q", name)
}

// StratifiedDegree is what jobs of one recipe lose against reading everything once for all, where their Degree is not measured yet: four jobs
// staggered by a quarter, order stratified, 20 % of the samples cached (docs/sampler.md). r jobs have a Degree of r / StratifiedDegree then.
const StratifiedDegree = 1.25

// MeasuredWaiting is Machine.Waiting of a larder on one machine: the smallest part with which the law chooses what is
// measured to be best. The law lets a job read from storage at all times while it decodes at all times. Hits and misses
// come evenly (docs/design/orders.md), so that is nearly so; but without any waiting the law prefers a split that loads
// storage and cores equally, which comes to 0.74 of the best. bench/live/waiting.py fits it to sweeps of
// bench/live/tiers.py. (It was 0.25 while hits came in a row, and fitted at one storage rate only.)
const MeasuredWaiting = 0.05

// Measured tells whether every rate and size is known: none is 0. A Demand that is not measured is no error while a
// daemon is young; SimpleSplit decides then.
func (d *Demand) Measured() bool {
	if d.Machine.Cache == 0 || d.Machine.Storage == 0 || d.Machine.NIC == 0 || d.Machine.PCIe == 0 || len(d.Datasets) == 0 {
		return false
	}
	for i := range d.Datasets {
		s := &d.Datasets[i]
		if s.Samples == 0 || s.Stored == 0 || s.Encoded == 0 || len(s.Recipes) == 0 {
			return false
		}
		for j := range s.Recipes {
			r := &s.Recipes[j]
			if r.Decoded == 0 || r.Augmented == 0 || r.DecodeAugment == 0 || r.Augment == 0 || r.Finish == 0 || len(r.Jobs) == 0 {
				return false
			}
		}
	}
	return true
}

// maxBudget and maxSamples keep sums of bytes far from overflow.
const (
	maxBudget  = 1 << 60
	maxSamples = 1 << 40
	maxRecipes = 1024 // of all datasets: the solver's work grows with the cube
	maxLarge   = 1e18 // of any rate or size that is not +Inf
)

// check refuses what no model can work with; the error names the field.
func (d *Demand) check() error {
	if d.Budget < 0 || d.Budget > maxBudget {
		return errs.New(errs.Invalid, "budget", "give the bytes of all tiers together", "a budget of %d bytes", d.Budget)
	}
	if f := d.Fairness; f != nil && !(*f >= 0 && *f <= 1) {
		return errs.New(errs.Invalid, "fairness", "0 looks at the total alone, 1 keeps every job's fair share", "fairness %v is not between 0 and 1", *f)
	}
	if f := d.Fixed; f != nil {
		sum := int64(0)
		for _, n := range [...]int64{f.Encoded, f.Decoded, f.Augmented} {
			if n > maxBudget {
				return errs.New(errs.Invalid, "tiers", "give bytes that a machine can have", "a tier of %d bytes", n)
			}
			sum += max(n, 0)
		}
		if sum > d.Budget {
			return errs.New(errs.ResourceExceeded, "tiers", "lower a tier or raise tiers.total",
				"fixed tiers of %s together exceed the %s of all tiers", units.Size(sum), units.Size(d.Budget))
		}
	}
	m := &d.Machine
	if m.Nodes < 1 || m.Nodes > 1<<20 {
		return errs.New(errs.Invalid, "machine.nodes", "count this machine as 1", "%d nodes", m.Nodes)
	}
	for _, x := range []struct {
		name  string
		value float64
		zero  bool
	}{
		{"machine.cache", m.Cache, false}, {"machine.nic", m.NIC, false}, {"machine.pcie", m.PCIe, false}, {"machine.storage", m.Storage, false},
		{"machine.gradient_nic", m.GradientNIC, true}, {"machine.gradient_pcie", m.GradientPCIe, true},
	} {
		if err := checkRate(x.name, x.value, x.zero, !x.zero); err != nil {
			return err
		}
	}
	if !(m.Waiting >= 0 && m.Waiting <= 1) {
		return errs.New(errs.Invalid, "machine.waiting", "0 is the bottleneck law", "a waiting part of %v is not between 0 and 1", m.Waiting)
	}
	if len(d.Datasets) == 0 {
		return errs.New(errs.Invalid, "datasets", "name at least one dataset with one recipe and one job", "there is no dataset to split memory for")
	}
	names := map[string]bool{}
	recipes := 0
	for i := range d.Datasets {
		s := &d.Datasets[i]
		if names[s.Name] {
			return errs.New(errs.Invalid, s.Name, "put its recipes into one dataset", "dataset %.80q is there twice", s.Name)
		}
		names[s.Name] = true
		if recipes += len(s.Recipes); recipes > maxRecipes {
			return errs.New(errs.Invalid, "datasets", "leave some out", "more than %d recipes", maxRecipes)
		}
		if err := s.check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Dataset) check() error {
	subject := func(field string) string { return s.Name + "." + field }
	if s.Samples < 1 || s.Samples > maxSamples {
		return errs.New(errs.Invalid, subject("samples"), "count the distinct samples that jobs want", "dataset %.80q has %d samples", s.Name, s.Samples)
	}
	if err := checkRate(subject("stored"), s.Stored, false, false); err != nil {
		return err
	}
	if err := checkRate(subject("encoded"), s.Encoded, false, false); err != nil {
		return err
	}
	if len(s.Recipes) == 0 {
		return errs.New(errs.Invalid, s.Name, "leave datasets out that no job reads", "dataset %.80q has no recipe", s.Name)
	}
	for i := range s.Recipes {
		r := &s.Recipes[i]
		subject := func(field string) string { return s.Name + "/" + r.Name + "." + field }
		for _, x := range []struct {
			name  string
			value float64
			rate  bool
		}{
			{"decoded", r.Decoded, false}, {"augmented", r.Augmented, false},
			{"decode_augment", r.DecodeAugment, true}, {"augment", r.Augment, true}, {"finish", r.Finish, true},
		} {
			if err := checkRate(subject(x.name), x.value, false, x.rate); err != nil {
				return err
			}
		}
		switch {
		case r.Samples < 0 || r.Samples > s.Samples:
			return errs.New(errs.Invalid, subject("samples"), "count the distinct samples its jobs want, 0 = all",
				"%d samples of a dataset that has %d", r.Samples, s.Samples)
		case len(r.Jobs) == 0:
			return errs.New(errs.Invalid, subject("jobs"), "leave recipes out that no job uses", "recipe %.80q has no job", r.Name)
		case r.Sharers < 1 || r.Sharers > len(r.Jobs):
			return errs.New(errs.Invalid, subject("sharers"), "1 = nobody shares; at most all its jobs share",
				"%d of %d jobs share augmented samples", r.Sharers, len(r.Jobs))
		case !(r.DecodeDegree == 0 || r.DecodeDegree >= 1 && r.DecodeDegree <= 1e6):
			return errs.New(errs.Invalid, subject("decode_degree"), "1 = every job decodes for itself", "one decode serves %v jobs", r.DecodeDegree)
		case !(r.AugmentDegree == 0 || r.AugmentDegree >= 1 && r.AugmentDegree <= float64(r.Sharers)):
			return errs.New(errs.Invalid, subject("augment_degree"), "1 = every job augments for itself; at most all that share",
				"one augmentation serves %v of %d jobs", r.AugmentDegree, r.Sharers)
		case !(r.Degree >= 1 && r.Degree <= 1e6):
			return errs.New(errs.Invalid, subject("degree"), "1 = every job reads for itself", "a sharing degree of %v", r.Degree)
		}
		for _, j := range r.Jobs {
			if err := checkRate(subject("jobs.ingest"), j.Ingest, false, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkRate refuses NaN, negative numbers, zero unless it is allowed, and infinity unless that is.
func checkRate(name string, v float64, zero, inf bool) error {
	const hint = "measure it with larder profile"
	switch {
	case math.IsNaN(v):
		return errs.New(errs.Invalid, name, hint, "%s is not a number", name)
	case v < 0:
		return errs.New(errs.Invalid, name, hint, "%s is negative: %v", name, v)
	case v == 0 && !zero:
		return errs.New(errs.Invalid, name, hint, "%s is zero", name)
	case math.IsInf(v, 1) && !inf, v > maxLarge && !math.IsInf(v, 1), v > 0 && v < 1/maxLarge:
		return errs.New(errs.Invalid, name, hint, "%s is no usable number: %v", name, v)
	}
	return nil
}

// wanted is how many samples the recipe's jobs want.
func (r *Recipe) wanted(s *Dataset) float64 {
	if r.Samples == 0 {
		return float64(s.Samples)
	}
	return float64(r.Samples)
}

// fairness returns the factor of the fair share.
func (d *Demand) fairness() float64 {
	if d.Fairness == nil {
		return 1
	}
	return *d.Fairness
}

// free returns the fixed sizes, and the bytes that are left for the others.
func (d *Demand) free() (Sizes, int64) {
	f := Free
	if d.Fixed != nil {
		f = *d.Fixed
	}
	return f, d.Budget - max(f.Encoded, 0) - max(f.Decoded, 0) - max(f.Augmented, 0)
}
