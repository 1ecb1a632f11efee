package ring

import "time"

// pace decides when a client tells the daemon of the slots that it gave back in its release words: as late as it can
// without ever waiting for a batch because of it. Telling costs a system call and wakes the daemon, so one call for
// several slots is best; but a slot that the daemon does not know of is a batch that it does not prepare.
//
// The client tells when it has [pace.margin] unread batches left. That is few where a slot is filled again much faster
// than the client uses batches up, and all where it is not. A client that is about to sleep tells anyway, so no value
// of margin can make it wait for ever.
type pace struct {
	slots int
	eager int           // batches for which the client tells with each slot: it had to wait
	step  time.Duration // the client's time for a batch: the shortest of late, which grows; 0 = not known
	fill  time.Duration // from learning of a slot to its next batch: the longest of late, which shrinks; 0 = not known

	last  time.Time   // when it gave a slot back last
	freed []time.Time // by slot: when the daemon learned of it, or should have for its place in a group; zero = filled
}

const (
	fades = 8  // an extreme of late loses one part of so many with each batch
	wary  = 64 // batches without groups, once a client waited because of them
)

func newPace(slots int) pace { return pace{slots: slots, freed: make([]time.Time, slots)} }

// told notes that the daemon learned at now of slots that were given back, the oldest first.
func (p *pace) told(now time.Time, all []Given) {
	for i := range all {
		g := &all[i]
		p.freed[g.Slot] = now.Add(time.Duration(i) * p.step) // it is needed so much later than the first one
		at := now.Add(-g.Ago)
		if !p.last.IsZero() {
			p.stepped(at.Sub(p.last) - g.Waited)
		}
		p.last = at
	}
}

// stepped notes how long the client worked on a batch.
func (p *pace) stepped(d time.Duration) {
	d = max(d, time.Microsecond)
	if p.step == 0 {
		p.step = d
	}
	p.step = min(d, p.step+p.step/fades+time.Microsecond)
}

// sent notes that a batch is about to be handed over at now. waits: its client sleeps in next(). step is the batch's
// number in its epoch: what the first ones took says nothing, because their slots may have waited for the epoch.
func (p *pace) sent(now time.Time, slot, step int, waits bool) {
	if p.eager > 0 {
		p.eager--
	}
	at := p.freed[slot]
	p.freed[slot] = time.Time{}
	if at.IsZero() || step < p.slots {
		return
	}
	fill := max(now.Sub(at), time.Microsecond)
	if all := p.slots - 1; waits && p.margin() < all && fill < time.Duration(all)*p.step {
		p.eager = wary // without groups it would have been there
	}
	p.fill = max(fill, p.fill-p.fill/fades)
}

// margin is with how many unread batches the client tells. Twice the time of filling a slot must pass before it has
// used those up. A group has at most three slots, or half of a larger ring.
func (p *pace) margin() int {
	all := p.slots - 1
	if p.eager > 0 || p.fill == 0 || p.step == 0 {
		return all
	}
	least := max(1, p.slots-max(3, p.slots/2))
	if 2*p.fill > time.Duration(all)*p.step {
		return all
	}
	return min(max(least, int((2*p.fill+p.step-1)/p.step)), all)
}
