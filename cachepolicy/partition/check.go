package partition

import (
	"math"

	"larder/internal/errs"
	"larder/internal/units"
)

// Limits of a Demand. maxBudget and maxSamples keep sums of bytes far from overflow.
const (
	maxBudget  = 1 << 60
	maxSamples = 1 << 40
	maxRecipes = 1024 // of all datasets: the solver's work grows with the cube
	maxLarge   = 1e18 // of any rate or size that is not +Inf
)

// check refuses a Demand that no model can work with; the error names the field.
func (d *Demand) check() error {
	if d.Budget < 0 || d.Budget > maxBudget {
		return errs.New(errs.Invalid, "budget", "give the bytes of all tiers together", "a budget of %d bytes", d.Budget)
	}
	if f := d.Fairness; f != nil && !(*f >= 0 && *f <= 1) {
		return errs.New(errs.Invalid, "fairness", "0 looks at the total alone, 1 keeps every job's fair share",
			"fairness %v is not between 0 and 1", *f)
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
		{"machine.cache", m.Cache, false}, {"machine.nic", m.NIC, false}, {"machine.pcie", m.PCIe, false}, {"machine.storage",
			m.Storage, false},
		{"machine.gradient_nic", m.GradientNIC, true}, {"machine.gradient_pcie", m.GradientPCIe, true},
	} {
		if err := checkRate(x.name, x.value, x.zero, !x.zero); err != nil {
			return err
		}
	}
	if !(m.Waiting >= 0 && m.Waiting <= 1) {
		return errs.New(errs.Invalid, "machine.waiting", "0 is the bottleneck law",
			"a waiting part of %v is not between 0 and 1", m.Waiting)
	}
	if len(d.Datasets) == 0 {
		return errs.New(errs.Invalid, "datasets", "name at least one dataset with one recipe and one job",
			"there is no dataset to split memory for")
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
		return errs.New(errs.Invalid, subject("samples"), "count the distinct samples that jobs want",
			"dataset %.80q has %d samples", s.Name, s.Samples)
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
			return errs.New(errs.Invalid, subject("jobs"), "leave recipes out that no job uses", "recipe %.80q has no job",
				r.Name)
		case r.Sharers < 1 || r.Sharers > len(r.Jobs):
			return errs.New(errs.Invalid, subject("sharers"), "1 = no job shares; at most all its jobs share",
				"%d of %d jobs share augmented samples", r.Sharers, len(r.Jobs))
		case !(r.DecodeDegree == 0 || r.DecodeDegree >= 1 && r.DecodeDegree <= 1e6):
			return errs.New(errs.Invalid, subject("decode_degree"), "1 = every job decodes for itself",
				"one decode serves %v jobs", r.DecodeDegree)
		case !(r.AugmentDegree == 0 || r.AugmentDegree >= 1 && r.AugmentDegree <= float64(r.Sharers)):
			return errs.New(errs.Invalid, subject("augment_degree"), "1 = every job augments for itself; at most all that share",
				"one augmentation serves %v of %d jobs", r.AugmentDegree, r.Sharers)
		case !(r.Degree >= 1 && r.Degree <= 1e6):
			return errs.New(errs.Invalid, subject("degree"), "1 = every job reads for itself", "a sharing degree of %v",
				r.Degree)
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
