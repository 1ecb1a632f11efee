package coordinator

import (
	"larder/dsa"
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/tiers/residency"
)

// needs keeps which jobs each cached entry serves and which of them still need it: it ranks every entry of the tiers by
// the jobs that still need it, and keeps the sampler informed of what is cached. It evicts by itself only what no job
// needs.
type needs struct {
	step    *step
	roster  *roster
	sampler *dsa.Sampler
	index   *residency.Index
	flying  *flying // the forms that are being made

	refresh          refresh          // needs being recomputed in slices
	sweep            sweep            // the same for augmented entries that are neutral
	undecodedObjects []ident.ObjectID // objects of which a decoded form left in this Step
}

// unserved is the jobs whose prefix the object is not decoded for, and is not about to be.
func (ne *needs) unserved(x ident.ObjectID) bits.JobSet { return ne.without(x, ne.flying.of(x)) }

// undecoded is the jobs for whose prefix no decoded sample is resident: those that an encoded one would serve.
func (ne *needs) undecoded(x ident.ObjectID) bits.JobSet { return ne.without(x, nil) }

// without is the jobs for whose prefix the object is not decoded, neither in a tier nor by these flights of it.
func (ne *needs) without(x ident.ObjectID, flying *flight) bits.JobSet {
	var jobs bits.JobSet
	for i := range ne.roster.prefixes {
		p := &ne.roster.prefixes[i]
		if p.jobs == 0 {
			continue
		}
		k := ident.Key{Object: x, Form: ident.Decoded, Recipe: p.id}
		if f := flying.making(k); f != nil && f.visible && !f.alone {
			continue
		}
		if _, there := ne.seen(k); !there {
			jobs |= p.jobs
		}
	}
	return jobs
}

// relevel enters in the sampler in which form an object is cached, and for whom.
func (ne *needs) relevel(x ident.ObjectID) { ne.enterLevels(x, ident.Key{}) }

func (ne *needs) enterLevels(x ident.ObjectID, not ident.Key) {
	l := ne.level(x, not)
	ne.sampler.SetLevelFor(x, l.own, l.jobs, l.rest)
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

// level finds in which forms an object is cached or about to be, except by the entry of key not, by what is neutral,
// and by what is prepared for one row alone. A decoded form serves the jobs of its prefix, an augmented one the members
// of its group that work on its instance, an encoded one every job. The sampler distinguishes two levels: where there
// are three, that some jobs could have it augmented is left out.
func (ne *needs) level(x ident.ObjectID, not ident.Key) level {
	flying := ne.flying.of(x)
	here := func(k ident.Key) bool {
		if f := flying.making(k); f != nil && f.visible && !f.alone {
			return true
		}
		_, ok := ne.seen(k)
		return ok && k != not
	}
	var decoded, augmented, all bits.JobSet
	for i := range ne.roster.prefixes {
		p := &ne.roster.prefixes[i]
		all |= p.jobs
		if p.jobs != 0 && here(ident.Key{Object: x, Form: ident.Decoded, Recipe: p.id}) {
			decoded |= p.jobs
		}
	}
	for _, g := range ne.roster.groups {
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

// neutralNeed ranks what only a job that is not visible brought into memory: it takes free room, leaves first, in
// favour of any other newcomer, and displaces nothing. So it lies in room that would be free without it. The sampler
// does not know of it, and it has no part in needs. When a visible job comes upon it, what would be decided for a
// sample that is not there is decided for it (flights.launch); then it is neutral no more.
const neutralNeed = -1

// neutral reports whether an entry owes its place to jobs alone that are not visible.
func (ne *needs) neutral(h residency.Handle) bool { return ne.index.Need(h) < 0 }

// seen finds a resident entry that is not neutral.
func (ne *needs) seen(k ident.Key) (residency.Handle, bool) {
	h, ok := ne.index.Lookup(k)
	return h, ok && !ne.neutral(h)
}

// find finds a resident entry as the stream may see it: one that is not visible sees all.
func (ne *needs) find(s *stream, k ident.Key) (residency.Handle, bool) {
	h, ok := ne.index.Lookup(k)
	return h, ok && (!s.visible() || !ne.neutral(h))
}

// setNeed ranks an entry again, unless it is neutral.
func (ne *needs) setNeed(h residency.Handle, need int) {
	if !ne.neutral(h) {
		ne.index.SetNeed(h, need)
	}
}

// allJobs is the set of all jobs, for need.
const allJobs = ^bits.JobSet(0)

// need ranks a form of a sample for its tier: those of the jobs it serves that still need the sample.
func (ne *needs) need(x ident.ObjectID, of bits.JobSet) int { return ne.sampler.NeedOf(x, of) }

// needOf is need for what stream s is about to load.
func (ne *needs) needOf(s *stream, x ident.ObjectID, of bits.JobSet) int {
	if !s.visible() {
		return neutralNeed
	}
	return ne.need(x, of)
}

// renew ranks the entries of x again after one more job got it.
func (ne *needs) renew(s *stream, x ident.ObjectID) {
	if !s.visible() {
		for _, g := range ne.roster.groups {
			if g == s.group {
				ne.renewShared(g, x)
			}
		}
		return
	}
	for i := range ne.roster.prefixes {
		p := &ne.roster.prefixes[i]
		k := ident.Key{Object: x, Form: ident.Decoded, Recipe: p.id}
		if h, ok := ne.index.Lookup(k); ok {
			ne.setNeed(h, ne.need(x, p.jobs))
		}
	}
	ne.renewEncoded(x)
	for _, g := range ne.roster.groups {
		if g.members[0].visible() {
			ne.renewShared(g, x)
		}
	}
}

func (ne *needs) renewShared(g *group, x ident.ObjectID) {
	for i := range g.members {
		k, first := g.keyOf(x, i)
		if h, ok := ne.index.Lookup(k); first && ok {
			ne.setSharers(g, h, k)
		}
	}
}

func (ne *needs) renewEncoded(x ident.ObjectID) {
	k := ident.Key{Object: x, Form: ident.Encoded}
	if h, ok := ne.index.Lookup(k); ok {
		ne.setNeed(h, ne.need(x, ne.undecoded(x)))
	}
}

// noteDeparture notes that an entry leaves the index: from now on the encoded sample may serve the jobs that it served.
func (ne *needs) noteDeparture(k ident.Key) {
	if k.Form == ident.Decoded && ne.index.Entries(ident.Encoded) > 0 {
		ne.undecodedObjects = append(ne.undecodedObjects, k.Object)
	}
}

// rankEncoded ranks encoded samples again whose decoded form has left in this Step: while it was there they served
// no job that it served.
func (ne *needs) rankEncoded() {
	for _, x := range ne.undecodedObjects {
		ne.renewEncoded(x)
	}
	ne.undecodedObjects = ne.undecodedObjects[:0]
}

// refresh recomputes needs of everything resident that is not neutral, after an epoch began, a job left or stalled: in
// slices, so that one step stays short. Until it is through, some victims are chosen by an older need; nothing else
// depends on it. What is admitted meanwhile has its need from the start. It goes by object, and what is neutral costs
// it nothing, so how far it is does not depend on jobs that are not visible.
type refresh struct {
	phase refreshPhase
	at    ident.ObjectID // the object to look at next
	until ident.ObjectID // where the round began
}

// refreshPhase is where a round is.
//
//	none ─▶ up ─▶ rest ─▶ none
//	         ▲     │
//	         └─────┘ (another round is asked for: this one becomes a full one from here)
type refreshPhase uint8

const (
	refreshNone refreshPhase = iota
	refreshUp                // from where the round began to the last object
	refreshRest              // from the first object to where the round began
)

// refreshPerStep is how many entries one Step looks at, of any form.
const refreshPerStep = 512

// refreshNeeds starts a round over all entries from the current place, because of something that a job did. A round
// that is under way is extended to a full one instead of being restarted.
func (ne *needs) refreshNeeds(s *stream) {
	switch {
	case s.visible():
		ne.refresh.phase, ne.refresh.until = refreshUp, ne.refresh.at
	case s.group != nil:
		ne.sweep.left = ne.index.Slots()
	}
}

// sweep is a round over all places of the index for augmented samples that are neutral and that no job of their group
// will take any more. They would stay for good where all jobs are not visible, because these displace nothing.
type sweep struct {
	at   int // the place to look at next
	left int // places to look at
}

func (ne *needs) sweepSlice() {
	sw := &ne.sweep
	n := min(refreshPerStep, sw.left)
	if n == 0 {
		return
	}
	sw.left -= n
	sw.at = ne.index.Some(sw.at, n, func(h residency.Handle, k ident.Key) {
		if k.Form == ident.Augmented && ne.neutral(h) {
			ne.setSharers(ne.roster.groupOf(k.Group), h, k)
		}
	})
}

// hasWork reports whether a slice of ranking, or of the sampler's work, is left for the next Step.
func (ne *needs) hasWork() bool {
	return ne.refresh.phase != refreshNone || ne.sweep.left > 0 || ne.sampler.Work(0)
}

// entries lists what is resident in a form.
func (ne *needs) entries(f ident.Form) []ident.Key {
	keys := make([]ident.Key, 0, ne.index.Entries(f))
	ne.index.Each(f, func(_ residency.Handle, k ident.Key) { keys = append(keys, k) })
	return keys
}

func (ne *needs) refreshSlice() {
	r := &ne.refresh
	if r.phase == refreshNone {
		return
	}
	end := ident.ObjectID(dsa.MaxObjects)
	if r.phase == refreshRest {
		end = r.until
	}
	next, n := ne.index.Walk(r.at, end, refreshPerStep, ne.refreshEntry)
	ne.step.spent.refresh += n
	switch r.at = next; {
	case next < end:
	case r.phase == refreshUp && r.until > 0:
		r.phase, r.at = refreshRest, 0
	case r.phase == refreshUp:
		r.phase, r.at = refreshNone, 0
	default:
		r.phase = refreshNone
	}
}

func (ne *needs) refreshEntry(h residency.Handle, k ident.Key) {
	switch k.Form {
	case ident.Augmented:
		ne.setSharers(ne.roster.groupOf(k.Group), h, k)
		ne.relevel(k.Object) // whose instance it is may have changed
	case ident.Decoded:
		ne.setNeed(h, ne.need(k.Object, ne.roster.prefixes[ne.roster.prefixOf(k.Recipe)].jobs))
		ne.relevel(k.Object) // whom it serves may have changed
	default:
		ne.setNeed(h, ne.need(k.Object, ne.undecoded(k.Object)))
	}
}
