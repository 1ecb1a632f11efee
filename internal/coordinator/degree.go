package coordinator

import (
	"fmt"
	"math"

	"larder/cachepolicy/partition"
	"larder/internal/ident"
	"larder/tiers/residency"
)

// minDegree is how many samples jobs must have had for their sharing to be measured.
const minDegree = 256

// minUnserved is the part of the samples that must be read, decoded or augmented for jobs together; fewer say too
// little of how many of them one read, decode or augmentation serves, and what was measured last counts on.
const minUnserved = 0.2

// mark is where counting began.
type mark struct{ samples, reads, decodes, augments uint64 }

// parts are what tiers hold of what jobs want, each 0 to 1.
type parts struct{ encoded, decoded, augmented float64 }

// shifted is by how much a part must change for counting to restart: what was read while a tier filled says nothing
// of it once it is full.
const shifted = 0.05

// sharing is what is known of the jobs of one dataset whose recipes begin alike.
type sharing struct {
	held parts // since counting began
	// Jobs that one read served, and one decode of what the encoded tier holds, when that was measured last; 0 = not
	// measured for these jobs.
	read, decode float64
}

// sharing returns that of a stream's dataset and prefix.
func (ti *tiering) sharing(s *stream) *sharing {
	d := &ti.roster.datasets[s.dataset]
	for s.prefix >= len(d.sharing) {
		d.sharing = append(d.sharing, sharing{})
	}
	return &d.sharing[s.prefix]
}

// recountDegree restarts the measurement of the sharing of all jobs: who shares has changed.
func (ti *tiering) recountDegree() {
	for _, s := range ti.roster.order {
		s.mark()
		*ti.sharing(s) = sharing{}
	}
	for _, g := range ti.roster.groups {
		g.degree = 0
	}
}

// mark begins to count.
func (s *stream) mark() {
	n := &s.job.Stats
	s.since = mark{n.Samples, n.SourceReads, n.Decodes, n.Augments}
}

// restartShiftedCounts restarts counting where the tiers hold another part of what jobs want than when counting began.
// What was measured counts on until enough was seen.
func (ti *tiering) restartShiftedCounts() {
	entries, scale := ti.sampledEntries()
	augmented := ti.augmentedPart()
	type kind struct{ dataset, prefix int }
	seen := map[kind]bool{} // its jobs are to be marked
	for _, s := range ti.roster.order {
		k := kind{s.dataset, s.prefix}
		again, ok := seen[k]
		if !ok {
			now := ti.heldOf(s, entries, scale)
			now.augmented = augmented
			p := ti.sharing(s)
			again = math.Abs(now.encoded-p.held.encoded) > shifted || math.Abs(now.decoded-p.held.decoded) > shifted ||
				math.Abs(now.augmented-p.held.augmented) > shifted
			if again {
				p.held = now
			}
			seen[k] = again
		}
		if again {
			s.mark()
		}
	}
}

// lookedAt is how many places of the index are sampled to estimate what the tiers hold: within a hundredth of the
// truth.
const lookedAt = 1 << 13

// sampledEntries returns a sample of the resident encoded and decoded entries; each stands for scale of them.
func (ti *tiering) sampledEntries() (keys []ident.Key, scale float64) {
	all := ti.index.Slots()
	see := func(_ residency.Handle, k ident.Key) {
		if k.Form == ident.Encoded || k.Form == ident.Decoded {
			keys = append(keys, k)
		}
	}
	if all <= lookedAt {
		ti.index.Some(0, all, see)
		return keys, 1
	}
	const slice = 64
	for i := range lookedAt / slice {
		ti.index.Some(i*(all/(lookedAt/slice)), slice, see)
	}
	return keys, float64(all) / lookedAt
}

// heldOf is what the tiers hold of a job's subset, in its encoded form and with its prefix.
func (ti *tiering) heldOf(s *stream, entries []ident.Key, scale float64) (p parts) {
	prefix := ti.roster.prefixes[s.prefix].id
	for _, k := range entries {
		switch {
		case !s.job.Member.Has(uint32(k.Object)):
		case k.Form == ident.Encoded:
			p.encoded += scale
		case k.Recipe == prefix:
			p.decoded += scale
		}
	}
	n := max(1, float64(len(s.sample.Subset)))
	return parts{encoded: min(1, p.encoded/n), decoded: min(1, p.decoded/n)}
}

// degrees are how many jobs one read serves, and one decode of what the encoded tier holds, among those of a dataset
// whose recipes begin alike (partition.Recipe.Degree, DecodeDegree); counted without what tiers serve, for the model
// counts that apart.
//
// Of n samples let tiers serve the parts a, d and e by cachepolicy's mix. The rest is read and decoded once for Degree
// of them, n*e are decoded once for DecodeDegree, and of r that are served augmented one is made again: from what the
// encoded tier has beyond e, else it is read. (What the decoded tier has beyond d is a source too; there is some only
// where nothing else is read or decoded.)
func (ti *tiering) degrees(name string, set *partition.Dataset) (read, decode float64) {
	var p *sharing
	var jobs, samples, stored, kept, reads, decodes float64
	for _, s := range ti.roster.order {
		if s.job.Paused() || fmt.Sprint(ti.roster.datasets[s.dataset].id) != set.Name ||
			ti.roster.prefixes[s.prefix].id.String() != name {
			continue
		}
		p = ti.sharing(s)
		n := float64(s.job.Stats.Samples - s.since.samples)
		a, r := 0.0, 1.0
		if s.group != nil && s.group.shares() {
			a, r = p.held.augmented, float64(len(s.group.members))
		}
		d := min(1-a, p.held.decoded)
		e := min(1-a-d, p.held.encoded)
		fromEncoded := min(a, p.held.encoded-e)
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
	if samples >= max(minDegree, float64(set.Samples)/2) {
		if stored >= minUnserved*samples && reads > 0 {
			p.read = max(1, stored/reads)
		}
		if kept >= minUnserved*samples && decodes > 0 {
			p.decode = max(1, kept/decodes)
		}
	}
	or := func(x float64) float64 {
		if x == 0 {
			x = max(1, jobs/partition.StratifiedDegree)
		}
		return min(x, jobs)
	}
	return or(p.read), or(p.decode)
}

// augmentDegree is how many jobs of a share group one augmentation serves that no tier keeps
// (partition.Recipe.AugmentDegree): of n samples, n(1-a) are augmented once for so many of them, and n*a/r are made
// for the tier.
func (ti *tiering) augmentDegree(g *group) float64 {
	a, r := ti.sharing(g.members[0]).held.augmented, float64(len(g.members))
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
	return max(1, r/partition.StratifiedDegree)
}

// augmentedPart is the part of what share groups want that the augmented tier has room for.
func (ti *tiering) augmentedPart() float64 {
	wanted := 0.0
	for _, g := range ti.roster.groups {
		if m := g.members[0]; g.shares() && m.augBytes > 0 {
			wanted += float64(ti.cfg.Granule(ident.Augmented, m.augBytes)) * float64(len(m.sample.Subset))
		}
	}
	if wanted == 0 {
		return 0
	}
	return min(1, float64(ti.index.Budget(ident.Augmented))/wanted)
}
