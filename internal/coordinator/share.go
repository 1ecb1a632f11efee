package coordinator

import (
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/tiers/residency"
)

// instance is the augmentation a stream works on now (guarantee G3): epoch + offset.
func (s *stream) instance() uint32 { return s.job.Epoch + s.job.Offset }

// augmentedKey names an augmented sample of the group.
func (g *group) augmentedKey(x ident.ObjectID, instance uint32) ident.Key {
	return ident.Key{Object: x, Form: ident.Augmented, Recipe: g.suffix, Group: g.id, Instance: instance}
}

// keyOf names x in the instance that member i works on; first = no member before it works on the same.
func (g *group) keyOf(x ident.ObjectID, i int) (k ident.Key, first bool) {
	at := g.members[i].instance()
	for _, m := range g.members[:i] {
		if m.instance() == at {
			return ident.Key{}, false
		}
	}
	return g.augmentedKey(x, at), true
}

// at is who works on an instance.
func (g *group) at(instance uint32) bits.JobSet {
	var set bits.JobSet
	for _, m := range g.members {
		if m.instance() == instance {
			set |= m.set
		}
	}
	return set
}

// shares reports whether anything can be shared: a lone member takes every instance once, so nothing of it is worth a
// byte.
func (g *group) shares() bool { return len(g.members) > 1 }

// hasNextEpoch reports whether a job that has begun will have another epoch.
func (s *stream) hasNextEpoch() bool {
	return !s.job.Draining() && (s.job.Spec.Epochs == 0 || s.job.Epoch+1 < s.job.Spec.Epochs)
}

// sourceShared finds or begins the augmented sample of a share group; false when no other job will want it, so that the
// row is better augmented straight into its slot.
func (fl *flights) sourceShared(d *delivery, i int) bool {
	s, g, x := d.s, d.s.group, d.rows[i].object
	instance := d.instance
	key := g.augmentedKey(x, instance)
	if h, ok := fl.index.Lookup(key); ok {
		fl.countHit(s, ident.Augmented)
		fl.useEntry(d, i, h, key)
		return true
	}
	if f := fl.flying.get(key); f != nil {
		fl.countHit(s, ident.Augmented)
		fl.join(f, d, i)
		return true
	}
	need := fl.needs.sharers(g, x, instance)
	if need == 0 || s.augBytes == 0 {
		return false
	}
	if !s.visible() {
		need = neutralNeed
	}
	f, h := fl.launchShared(key, s, d.rows[i].turn, need)
	if f == nil {
		fl.countHit(s, ident.Augmented)
		fl.useEntry(d, i, h, key)
		return true
	}
	fl.join(f, d, i)
	fl.needs.relevel(x)
	return true
}

// launchShared begins the flight of an augmented sample that others of the group of s want too. As with launch, an
// entry that was evicted a moment ago and is still being read is kept after all, and there is no flight.
func (fl *flights) launchShared(key ident.Key, s *stream, turn uint64, need int) (*flight, residency.Handle) {
	entry, admitted := fl.index.Admit(key, fl.cfg.Granule(ident.Augmented, s.augBytes), need, fl.needs.evicted)
	if admitted && fl.index.Ready(entry) {
		fl.needs.relevel(key.Object)
		return nil, entry
	}
	f := fl.newFlight(key, s, turn)
	f.seed, f.instance = s.group.seed, key.Instance
	if admitted {
		fl.index.Pin(entry)
		f.entry = pin{entry, true}
	}
	dkey := ident.Key{Object: key.Object, Form: ident.Decoded, Recipe: fl.roster.prefixes[s.prefix].id}
	p := fl.underWay(s, dkey)
	h, ready := fl.needs.find(s, dkey)
	ready = ready && fl.index.Ready(h)
	if ready || p != nil {
		if ready || fl.shareFlight(p, s) {
			fl.countHit(s, ident.Decoded)
		}
	} else if p, h = fl.launch(dkey, s, turn, false); p == nil {
		ready = true
	}
	switch {
	case ready:
		fl.index.Hit(h)
		fl.index.Pin(h)
		f.source = pin{h, true}
		fl.enqueue(f)
	case p.phase == flightCopied:
		f.parent = p
		p.users++
		fl.enqueue(f)
	default:
		f.parent = p
		p.augments = append(p.augments, f)
	}
	return f, 0
}

// Bounds of refill.
const (
	refillTries = 8 // samples looked at for one that is worth it
	refillAhead = 2 // members of an instance that must want it
)

// refill augments what several members of a group will take, while workers are idle and a client waits, if the model
// says that it pays (refillPays). It takes free room only, displaces nothing, and reads nothing: what it starts from is
// decoded, or about to be. The sample is drawn blindly from those that are needed and cached as decided at commits,
// so that it reveals nothing of a sample.
func (fl *flights) refill() {
	if fl.cfg.Refill == nil && !fl.tiering.spareWork() {
		return
	}
	for _, g := range fl.roster.groups {
		if !g.shares() {
			continue
		}
		for _, m := range g.members {
			together := g.at(m.instance()).Len()
			if fl.running >= fl.cfg.InFlight || fl.queue.Len()+fl.onCopies.Len() > 0 || !fl.clientWaits() {
				return
			}
			if m.making.Workers || together < refillAhead || !m.joined() || !m.job.Active() || m.augBytes == 0 ||
				!fl.tiering.refillPays(m, together) {
				continue
			}
			fl.refillOne(m)
			fl.dispatch()
		}
	}
}

func (fl *flights) refillOne(s *stream) {
	bytes := fl.cfg.Granule(ident.Augmented, s.augBytes)
	if fl.index.Used(ident.Augmented)+bytes > fl.index.Budget(ident.Augmented) {
		return
	}
	for range refillTries {
		x := s.sample.Subset[fl.rng.IntN(len(s.sample.Subset))]
		key := s.group.augmentedKey(x, s.instance())
		need := fl.needs.sharers(s.group, x, key.Instance)
		dkey := ident.Key{Object: x, Form: ident.Decoded, Recipe: fl.roster.prefixes[s.prefix].id}
		if need < refillAhead*now || fl.flying.get(key) != nil || s.isGone(x) {
			continue
		}
		if _, there := fl.index.Lookup(key); there {
			continue
		}
		if _, there := fl.index.Lookup(dkey); !there && fl.flying.get(dkey) == nil {
			continue
		}
		if fl.isQuarantined(dkey) {
			continue
		}
		if f, _ := fl.launchShared(key, s, fl.turn+1, need); f != nil {
			f.refill = true
			fl.step.stats.Prefetched++
		}
		fl.needs.relevel(x)
		return
	}
}

// clientWaits reports whether a client waits for a batch.
func (fl *flights) clientWaits() bool {
	for _, s := range fl.roster.order {
		for r := range s.job.Ranks {
			if k := &s.job.Ranks[r]; k.Attached() && !k.Holds() && s.batchUnderWay(r) {
				return true
			}
		}
	}
	return false
}
