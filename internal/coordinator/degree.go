package coordinator

import (
	"fmt"

	"larder/cachepolicy"
	"larder/internal/ident"
)

// minDegree is how many samples jobs must have had for their sharing to be measured.
const minDegree = 256

// minUnserved is the part of the samples that must be read, decoded or augmented for jobs together; fewer say too little of how many of them
// one read, decode or augmentation serves, and what was measured last counts on.
const minUnserved = 0.2

// mark is where counting began.
type mark struct{ samples, reads, decodes, augments uint64 }

// recountDegree lets the sharing of all jobs be measured anew: who shares has changed.
func (c *Core) recountDegree() {
	for _, s := range c.order {
		n := &s.job.Stats
		s.since = mark{n.Samples, n.SourceReads, n.Decodes, n.Augments}
	}
	for i := range c.prefixes {
		c.prefixes[i].readDegree, c.prefixes[i].decodeDegree = 0, 0
	}
	for _, g := range c.groups {
		g.degree = 0
	}
}

// degrees are how many jobs one read serves, and one decode of what the encoded tier holds, among those of a dataset whose recipes begin alike
// (cachepolicy.Recipe.Degree, DecodeDegree); counted without what tiers serve, for the model counts that apart.
//
// Of n samples let tiers serve the parts a, d and e by cachepolicy's mix. The rest is read and decoded once for Degree of them, n*e are decoded
// once for DecodeDegree, and of r that are served augmented one is made anew: from what the encoded tier has beyond e, else it is read. (What
// the decoded tier has beyond d is a source too; there is some only where nothing else is read or decoded.)
func (c *Core) degrees(name string, set *cachepolicy.Dataset) (read, decode float64) {
	bytes, prefix := 0.0, -1
	for _, q := range set.Recipes {
		if q.Prefix == name {
			bytes = max(bytes, q.Decoded)
		}
	}
	decoded, encoded := c.held(ident.Decoded, bytes, set), c.held(ident.Encoded, set.Encoded, set)
	augmented := c.augmentedPart()
	var jobs, samples, stored, kept, reads, decodes float64
	for _, s := range c.order {
		if s.job.Paused || fmt.Sprint(c.datasets[s.dataset].id) != set.Name || c.prefixes[s.prefix].id.String() != name {
			continue
		}
		prefix = s.prefix
		n := float64(s.job.Stats.Samples - s.since.samples)
		a, r := 0.0, 1.0
		if s.group != nil && s.group.shares() {
			a, r = augmented, float64(len(s.group.members))
		}
		d := min(1-a, decoded)
		e := min(1-a-d, encoded)
		fromEncoded := min(a, encoded-e)
		own := float64(s.job.Stats.SourceReads - s.since.reads)
		jobs++
		samples += n
		stored += n * (1 - a - d - e)
		kept += n * e
		reads += own - n*(a-fromEncoded)/r
		decodes += float64(s.job.Stats.Decodes-s.since.decodes) - own - n*fromEncoded/r
	}
	if jobs < 2 {
		return 1, 1
	}
	p := &c.prefixes[prefix]
	if samples >= max(minDegree, float64(set.Samples)/2) {
		if stored >= minUnserved*samples && reads > 0 {
			p.readDegree = max(1, stored/reads)
		}
		if kept >= minUnserved*samples && decodes > 0 {
			p.decodeDegree = max(1, kept/decodes)
		}
	}
	or := func(x float64) float64 {
		if x == 0 {
			x = max(1, jobs/cachepolicy.StratifiedDegree)
		}
		return min(x, jobs)
	}
	return or(p.readDegree), or(p.decodeDegree)
}

// held is the part of a dataset's samples that a tier holds, of so many bytes each.
func (c *Core) held(f ident.Form, bytes float64, set *cachepolicy.Dataset) float64 {
	return min(1, float64(c.index.Used(f))/max(1, bytes*float64(set.Samples)))
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
