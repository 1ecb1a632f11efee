package partition

// Demand is everything that a Model decides from: what the machine was measured to do, what a sample weighs in each
// form, and who reads what. Rates are in samples or bytes a second and are positive; +Inf says that something is never
// the limit. No rate has a default, because a wrong rate gives a wrong split without any sign of it.
type Demand struct {
	Budget   int64     // bytes for all tiers together
	Fixed    *Sizes    // tiers whose size is given; nil = none
	Machine  Machine   // shared by all jobs
	Datasets []Dataset // at least one; names are unique
	Fairness *float64  // no job may fall below this part of its fair share, 0 to 1; nil = 1 (package comment)
}

// Sizes are tier sizes in bytes that the user has fixed. A negative size is left to the model.
type Sizes struct{ Encoded, Decoded, Augmented int64 }

// Free leaves all sizes to the model.
var Free = Sizes{-1, -1, -1}

// Machine is what all jobs share. NIC and PCIe are those of one node, and count Nodes times; Cache and Storage are
// those of the whole cluster, as a trainer sees them. On one machine NIC and PCIe are +Inf.
type Machine struct {
	Nodes        int     // at least 1
	Cache        float64 // bytes a second out of the cache; on one machine its memory bandwidth
	NIC          float64 // bytes a second of a node's network
	PCIe         float64 // bytes a second of a node's PCIe
	Storage      float64 // bytes a second
	GradientNIC  float64 // bytes of gradients on the network for each sample (a batch's, divided by its size); may be 0
	GradientPCIe float64 // the same on PCIe
	// part of the other resources' work that the most loaded one does not hide, 0 to 1; 0 = the pure law
	Waiting    float64
	MissesFill bool // every miss is also written to the cache (a remote cache that fills); charged as Encoded bytes
}

// Dataset is the samples of one dataset that active jobs need. All its recipes share the encoded tier.
type Dataset struct {
	Name    string
	Samples int64   // distinct samples that any active job needs
	Stored  float64 // mean bytes that a sample takes to read from storage
	Encoded float64 // mean bytes of a sample in the encoded tier, with what the allocator adds
	Recipes []Recipe
}

// Recipe is a recipe on a dataset and the jobs that use it. Jobs that share augmented samples with different others are
// different Recipes of one Prefix.
type Recipe struct {
	Name          string
	Prefix        string  // recipes of a dataset with equal, non-empty prefixes share their decoded samples
	Samples       int64   // distinct samples that its jobs need; 0 = all of the dataset's
	Decoded       float64 // mean bytes of a decoded sample
	Augmented     float64 // mean bytes of an augmented sample
	DecodeAugment float64 // samples a second that a node takes from encoded bytes to the batch, all workers together
	Augment       float64 // the same from a decoded sample to the batch
	Finish        float64 // the same from an augmented sample to the batch; +Inf where that takes no time, as in the paper
	Sharers       int     // jobs that use one augmented instance, at least 1; 1 = no sharing
	// jobs that one read, and the decode of what it read, serves when their picks coincide; at least 1
	Degree        float64
	DecodeDegree  float64 // jobs that one decode of an encoded sample in memory serves; 0 = Degree
	AugmentDegree float64 // of the Sharers, those that one augmentation serves that no tier keeps; 0 = 1
	Jobs          []Job   // at least one
}

// Job is one job of a recipe.
type Job struct {
	Ingest float64 // samples a second that the training takes, on all its nodes; +Inf where it is not known
}

// Measured reports whether every rate and size is known, that is, not 0. While a daemon is young some are not; then
// SimpleSplit decides.
func (d *Demand) Measured() bool {
	if d.Machine.Cache == 0 || d.Machine.Storage == 0 || d.Machine.NIC == 0 || d.Machine.PCIe == 0 ||
		len(d.Datasets) == 0 {
		return false
	}
	for i := range d.Datasets {
		s := &d.Datasets[i]
		if s.Samples == 0 || s.Stored == 0 || s.Encoded == 0 || len(s.Recipes) == 0 {
			return false
		}
		for j := range s.Recipes {
			r := &s.Recipes[j]
			if r.Decoded == 0 || r.Augmented == 0 || r.DecodeAugment == 0 || r.Augment == 0 || r.Finish == 0 ||
				len(r.Jobs) == 0 {
				return false
			}
		}
	}
	return true
}

// wanted returns how many samples the recipe's jobs need.
func (r *Recipe) wanted(s *Dataset) float64 {
	if r.Samples == 0 {
		return float64(s.Samples)
	}
	return float64(r.Samples)
}

// fairness returns Fairness, or its default.
func (d *Demand) fairness() float64 {
	if d.Fairness == nil {
		return 1
	}
	return *d.Fairness
}

// free returns the fixed sizes, and the bytes that they leave to the other tiers.
func (d *Demand) free() (Sizes, int64) {
	f := Free
	if d.Fixed != nil {
		f = *d.Fixed
	}
	return f, d.Budget - max(f.Encoded, 0) - max(f.Decoded, 0) - max(f.Augmented, 0)
}
