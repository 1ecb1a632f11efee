package partition

import "fmt"

// RecipePlan is the split of one recipe and the rate that the split gives.
type RecipePlan struct {
	Name               string
	Decoded, Augmented int64   // bytes; those of a shared prefix are counted at the first of its recipes
	Mix                Mix     // how its samples are served
	Rate               float64 // samples a second of all its jobs together
	FairShare          float64 // the same if every job owned an equal part of the budget
}

// Mix holds the parts of a recipe's samples that are served from each form; the sum is 1.
type Mix struct{ Stored, Encoded, Decoded, Augmented float64 }

// DatasetPlan is the split of one dataset.
type DatasetPlan struct {
	Name    string
	Encoded int64 // bytes
	Recipes []RecipePlan
}

// Split returns the bytes of the dataset in each tier.
func (d DatasetPlan) Split() Split {
	s := Split{Encoded: d.Encoded}
	for _, r := range d.Recipes {
		s.Decoded += r.Decoded
		s.Augmented += r.Augmented
	}
	return s
}

// Candidate is a split that was evaluated.
type Candidate struct {
	Name    string
	Split   Split
	Rate    float64 // predicted samples a second of all jobs together
	Binding Resource
	Load    [NumResources]float64 // part of each resource that is used; model bottleneck only
	Unfair  bool                  // some job would fall below its fair share
}

// Plan is a decision: Split.Total() is at most Budget. It is less only where more memory would slow the jobs down,
// because the cache is slower than storage, or where all sizes are fixed.
type Plan struct {
	Model      string
	Split      Split
	Datasets   []DatasetPlan // in the order of the demand; bytes that no sample needs are in Split alone
	Rate       float64       // predicted samples a second of all jobs together
	Binding    Resource      // what limits it
	Load       [NumResources]float64
	Candidates []Candidate // the chosen one first
	Why        string      // one sentence for people
}

// Resource is what can limit the throughput.
type Resource uint8

// The resources of the Seneca paper. Training is the jobs' own speed, no resource of the machine: its entry of Load is
// the part of the jobs that run at the speed of their training.
const (
	Storage Resource = iota
	CPU
	MemoryBandwidth
	Network
	PCIe
	Training
	NumResources // NumResources is their number.
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
