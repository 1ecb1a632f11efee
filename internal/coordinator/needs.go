package coordinator

import (
	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/tiers/residency"
)

// needs is what is cached for whom, and who still needs it: it ranks every entry of the tiers by the jobs that still
// need it, and keeps the sampler informed of what is cached. It evicts nothing of its own accord but what no job needs.
type needs struct {
	step    *step
	roster  *roster
	sampler *dsa.Sampler
	index   *residency.Index
	flying  *flying // what is about to be there

	refresh refresh          // needs being recomputed in slices
	bared   []ident.ObjectID // objects of which a decoded form left in this Step
}

// unserved is the jobs whose prefix the object is not decoded for, and is not about to be.
func (c *needs) unserved(x ident.ObjectID) bits.JobSet { return c.without(x, c.flying.of(x)) }

// undecoded is the jobs for whose prefix no decoded sample is resident: those that an encoded one would serve.
func (c *needs) undecoded(x ident.ObjectID) bits.JobSet { return c.without(x, nil) }

// without is the jobs for whose prefix the object is not decoded, neither in a tier nor by these flights of it.
func (c *needs) without(x ident.ObjectID, flying *flight) bits.JobSet {
	var jobs bits.JobSet
	for i := range c.roster.prefixes {
		p := &c.roster.prefixes[i]
		if p.jobs == 0 {
			continue
		}
		k := ident.Key{Object: x, Form: ident.Decoded, Recipe: p.id}
		if f := flying.making(k); f != nil && !f.alone {
			continue
		}
		if _, there := c.index.Lookup(k); !there {
			jobs |= p.jobs
		}
	}
	return jobs
}

// relevel enters in the sampler in which form an object is cached, and for whom.
func (c *needs) relevel(x ident.ObjectID) { c.enterLevels(x, ident.Key{}) }

func (c *needs) enterLevels(x ident.ObjectID, not ident.Key) {
	l := c.level(x, not)
	c.sampler.SetLevelFor(x, l.own, l.jobs, l.rest)
}

// level says how far an object is prepared: to own for jobs, to rest for the others.
type level struct {
	own, rest uint8
	jobs      bits.JobSet
}

// The levels of dsa.SetLevelFor.
const (
	isEncoded   = 1
	isDecoded   = 2
	isAugmented = 3
)

// level finds in which forms an object is cached or about to be, except by the entry of key not, and by what is
// prepared for one row alone. A decoded form serves the jobs of its prefix, an augmented one the members of its group
// that work on its instance, an encoded one every job. The sampler distinguishes two levels: where there are three,
// that some jobs could have it augmented is left out.
func (c *needs) level(x ident.ObjectID, not ident.Key) level {
	flying := c.flying.of(x)
	here := func(k ident.Key) bool {
		if f := flying.making(k); f != nil && !f.alone {
			return true
		}
		_, ok := c.index.Lookup(k)
		return ok && k != not
	}
	var decoded, augmented, all bits.JobSet
	for i := range c.roster.prefixes {
		p := &c.roster.prefixes[i]
		all |= p.jobs
		if p.jobs != 0 && here(ident.Key{Object: x, Form: ident.Decoded, Recipe: p.id}) {
			decoded |= p.jobs
		}
	}
	for _, g := range c.roster.groups {
		for i := range g.members {
			if k, first := g.keyOf(x, i); first && here(k) {
				augmented |= g.at(k.Instance)
			}
		}
	}
	rest := uint8(0)
	if (all == 0 || decoded|augmented != all) && here(ident.Key{Object: x, Form: ident.Encoded}) {
		rest = isEncoded
	}
	others := all &^ augmented
	switch {
	case augmented != 0 && decoded&others == others:
		return level{isAugmented, isDecoded, augmented}
	case augmented != 0 && decoded&others == 0:
		return level{isAugmented, rest, augmented}
	case decoded|augmented == 0:
		return level{rest, rest, allJobs}
	case decoded|augmented == all:
		return level{isDecoded, isDecoded, allJobs} // also for who joins in a moment
	default:
		return level{isDecoded, rest, decoded | augmented}
	}
}

// neutralNeed ranks what only a job without an exchangeable order brought into memory: it takes
// free room, leaves first, and displaces nothing, so that it is no label a shuffled job's choices could follow.
const neutralNeed = -1

// allJobs is the set of all jobs, for need.
const allJobs = ^bits.JobSet(0)

// need ranks a form of a sample for its tier: those of the jobs it serves that still need the sample.
func (c *needs) need(x ident.ObjectID, of bits.JobSet) int {
	if c.sampler.Neutral(x) {
		return neutralNeed
	}
	return c.sampler.NeedOf(x, of)
}

// needOf is need for what stream s is about to load.
func (c *needs) needOf(s *stream, x ident.ObjectID, of bits.JobSet) int {
	if s.sample.Mode == dsa.Sequential && c.sampler.Level(x) == 0 {
		return neutralNeed
	}
	return c.need(x, of)
}

// dropNeutral gives up a neutral entry that a shuffled job came upon when an admission in its own right would have
// failed: the tier is full and no other job needs it. It reports whether it did.
func (c *needs) dropNeutral(h residency.Handle, k ident.Key) bool {
	if c.index.Need(h) != neutralNeed || c.sampler.Neutral(k.Object) || c.sampler.Need(k.Object) > 0 ||
		c.index.Used(k.Form)+c.index.Bytes(h) <= c.index.Budget(k.Form) {
		return false
	}
	c.index.Pin(h)
	c.drop(pin{h, true})
	return true
}

// renew ranks the entries of x again after one more job got it.
func (c *needs) renew(x ident.ObjectID) {
	for i := range c.roster.prefixes {
		p := &c.roster.prefixes[i]
		k := ident.Key{Object: x, Form: ident.Decoded, Recipe: p.id}
		if h, ok := c.index.Lookup(k); ok {
			if !c.dropNeutral(h, k) {
				c.index.SetNeed(h, c.need(x, p.jobs))
			}
		}
	}
	c.renewEncoded(x)
	for _, g := range c.roster.groups {
		for i := range g.members {
			k, first := g.keyOf(x, i)
			if h, ok := c.index.Lookup(k); first && ok {
				c.setSharers(g, h, k)
			}
		}
	}
}

func (c *needs) renewEncoded(x ident.ObjectID) {
	k := ident.Key{Object: x, Form: ident.Encoded}
	if h, ok := c.index.Lookup(k); ok && !c.dropNeutral(h, k) {
		c.index.SetNeed(h, c.need(x, c.undecoded(x)))
	}
}

// left notes that an entry leaves: what it served may be served by the encoded sample from now on.
func (c *needs) left(k ident.Key) {
	if k.Form == ident.Decoded && c.index.Entries(ident.Encoded) > 0 {
		c.bared = append(c.bared, k.Object)
	}
}

// rankEncoded ranks encoded samples again whose decoded form has left in this Step: while it was there they served
// no job that it served.
func (c *needs) rankEncoded() {
	for _, x := range c.bared {
		c.renewEncoded(x)
	}
	c.bared = c.bared[:0]
}

// refresh recomputes needs of everything resident after an epoch began, a job left or stalled: in slices, so that one
// step stays short. Until it is through, some victims are chosen by an older need; nothing else depends on it. What is
// admitted meanwhile has its need from the start.
type refresh struct {
	at   int // the place to look at next
	left int // entries to look at
	of   int // of so many: what comes behind them puts those off that were to be looked at last
}

// refreshPerStep is how many entries one Step looks at, of any form and dead ones included.
const refreshPerStep = 512

// refreshNeeds has all entries looked at once from where it is: one that is under way need not restart for them to
// be.
func (c *needs) refreshNeeds() {
	c.refresh.left, c.refresh.of = c.index.Slots(), c.index.Slots()
}

// entries lists what is resident in a form.
func (c *needs) entries(f ident.Form) []ident.Key {
	keys := make([]ident.Key, 0, c.index.Entries(f))
	c.index.Each(f, func(_ residency.Handle, k ident.Key) { keys = append(keys, k) })
	return keys
}

func (c *needs) refreshSlice() {
	r := &c.refresh
	if r.left == 0 {
		return
	}
	r.left, r.of = r.left+c.index.Slots()-r.of, c.index.Slots()
	n := min(refreshPerStep, r.left)
	c.step.spent.refresh += n
	r.left -= n
	r.at = c.index.Some(r.at, n, func(h residency.Handle, k ident.Key) {
		switch k.Form {
		case ident.Augmented:
			c.setSharers(c.roster.groupOf(k.Group), h, k)
			c.relevel(k.Object) // whose instance it is may have changed
		case ident.Decoded:
			c.index.SetNeed(h, c.need(k.Object, c.roster.prefixes[c.roster.prefixOf(k.Recipe)].jobs))
			c.relevel(k.Object) // whom it serves may have changed
		default:
			c.index.SetNeed(h, c.need(k.Object, c.undecoded(k.Object)))
		}
	})
}
