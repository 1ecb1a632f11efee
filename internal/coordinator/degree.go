package coordinator

import (
	"fmt"

	"larder/cachepolicy"
	"larder/internal/ident"
)

// minDegree is how many samples jobs must have had for their sharing to be measured.
const minDegree = 256

// minUnserved is the part of the samples that no tier serves below which the others say too little of how many jobs one read, or one
// augmentation, serves; what was measured last counts on then.
const minUnserved = 0.25

// mark is where counting began.
type mark struct{ samples, decodes, augments uint64 }

// recountDegree lets the sharing of all jobs be measured anew: who shares has changed.
func (c *Core) recountDegree() {
	for _, s := range c.order {
		s.since = mark{s.job.Stats.Samples, s.job.Stats.Decodes, s.job.Stats.Augments}
	}
	for i := range c.prefixes {
		c.prefixes[i].degree = 0
	}
	for _, g := range c.groups {
		g.degree = 0
	}
}

// degree is how many jobs one read and one decode serve, among those of a dataset whose recipes begin alike (cachepolicy.Recipe.Degree),
// counted without what tiers serve, for the model counts that apart.
//
// Of n samples, n(1-a-p) are served by neither tier and decoded once for g of them; n*a are served augmented, and of r of them one is made
// anew, from a decoded sample where the tier has more than it serves (cachepolicy's mix).
func (c *Core) degree(name string, set *cachepolicy.Dataset) float64 {
	bytes, prefix := 0.0, -1
	for _, q := range set.Recipes {
		if q.Prefix == name {
			bytes = max(bytes, q.Decoded)
		}
	}
	held := min(1, float64(c.index.Used(ident.Decoded))/max(1, bytes*float64(set.Samples)))
	augmented := c.augmentedPart()
	jobs, samples, together, decodes := 0, 0.0, 0.0, 0.0
	for _, s := range c.order {
		if s.job.Paused || fmt.Sprint(c.datasets[s.dataset].id) != set.Name || c.prefixes[s.prefix].id.String() != name {
			continue
		}
		jobs++
		prefix = s.prefix
		n, a := float64(s.job.Stats.Samples-s.since.samples), 0.0
		decodes += float64(s.job.Stats.Decodes - s.since.decodes)
		if s.group != nil && s.group.shares() {
			a = augmented
			refills := max(a-max(held-(1-a), 0), 0) // what is not made from a decoded sample
			decodes -= n * refills / float64(len(s.group.members))
		}
		samples += n
		together += n * max(1-a-held, 0)
	}
	if jobs < 2 {
		return 1
	}
	enough := samples >= max(minDegree, float64(set.Samples)/2)
	if last := &c.prefixes[prefix].degree; enough && together >= minUnserved*samples && decodes > 0 {
		*last = min(max(1, together/decodes), float64(jobs))
	}
	if last := c.prefixes[prefix].degree; last > 0 {
		return min(last, float64(jobs))
	}
	return max(1, float64(jobs)/cachepolicy.StratifiedDegree)
}

// augmentDegree is how many jobs of a share group one augmentation serves that no tier keeps (cachepolicy.Recipe.AugmentDegree): of n
// samples, n(1-a) are augmented once for so many of them, and n*a/r are made for the tier.
func (c *Core) augmentDegree(g *group) float64 {
	a, r := c.augmentedPart(), float64(len(g.members))
	samples, augments, wanted := 0.0, 0.0, 0
	for _, s := range g.members {
		samples += float64(s.job.Stats.Samples - s.since.samples)
		augments += float64(s.job.Stats.Augments - s.since.augments)
		wanted = max(wanted, len(s.sample.Subset))
	}
	augments -= samples * a / r
	if samples >= max(minDegree, float64(wanted)/2) && 1-a >= minUnserved && augments > 0 {
		g.degree = min(max(1, samples*(1-a)/augments), r)
	}
	if g.degree > 0 {
		return min(g.degree, r)
	}
	return max(1, r/cachepolicy.StratifiedDegree)
}

// augmentedPart is the part of what share groups want that the augmented tier has room for.
func (c *Core) augmentedPart() float64 {
	wanted := 0.0
	for _, g := range c.groups {
		if m := g.members[0]; g.shares() && m.augBytes > 0 {
			wanted += float64(c.cfg.Granule(ident.Augmented, m.augBytes)) * float64(len(m.sample.Subset))
		}
	}
	if wanted == 0 {
		return 0
	}
	return min(1, float64(c.index.Budget(ident.Augmented))/wanted)
}
