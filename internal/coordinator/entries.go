package coordinator

import (
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/tiers/residency"
)

// evicted is called by the index for an entry that leaves. Its bytes are freed at once when no reader has them pinned,
// otherwise at the last unpin.
func (ne *needs) evicted(h residency.Handle, k ident.Key) {
	ne.step.stats.Evictions[k.Form]++
	if ne.index.Pins(h) == 0 {
		ne.step.emit(FreeKey{Key: k})
	}
	ne.noteDeparture(k)
	ne.enterLevels(k.Object, k) // the index still shows the entry while it calls
}

func (ne *needs) unpin(p pin) {
	if p.held && ne.index.Unpin(p.h) {
		ne.step.emit(FreeKey{Key: ne.index.Key(p.h)}) // readable until the next Admit
	}
}

// drop takes a pinned entry out of the index for good and drops the pin.
func (ne *needs) drop(p pin) {
	if !p.held {
		return
	}
	k := ne.index.Key(p.h)
	ne.index.Drop(p.h)
	ne.noteDeparture(k)
	if ne.index.Unpin(p.h) {
		ne.step.emit(FreeKey{Key: k})
	}
	ne.relevel(k.Object)
}

// forgetPerStep is how many places of the index one Forget looks at.
const forgetPerStep = 512

// forget takes entries of objects out of the tiers. One that is in use leaves with its last reader, as one that is
// evicted does.
func (ne *needs) forget(e Forget) {
	r := Reply{}
	if all := ne.index.Slots(); e.From >= 0 && e.From < all {
		var out []residency.Handle
		n := min(forgetPerStep, all-e.From)
		ne.index.Some(e.From, n, func(h residency.Handle, k ident.Key) {
			if e.Objects.Has(uint32(k.Object)) {
				out = append(out, h)
			}
		})
		for _, h := range out {
			r.Freed += ne.index.Bytes(h)
			ne.index.Pin(h)
			ne.drop(pin{h, true})
		}
		if e.From+n < all {
			r.Next = e.From + n
		}
	}
	ne.step.reply(e.Token, r)
}

// sharers ranks x in an instance by who still wants it: members that work on that instance; far below them those that
// may come to it in their next epoch, a little more when that is near; and those that have not begun. Without those
// behind, what a job makes that is ahead of its group serves no other job.
func (ne *needs) sharers(g *group, x ident.ObjectID, instance uint32) int {
	n := 0
	for _, m := range g.members {
		j := m.job
		switch {
		case !j.Begun():
			if j.Member.Has(uint32(x)) {
				n++
			}
		case !j.Active():
		case m.instance() == instance:
			if ne.sampler.Needs(j.ID, x) {
				n += now
			}
		case m.instance() < instance && m.hasNextEpoch() && j.Member.Has(uint32(x)):
			n++
			if ne.sampler.Remaining(j.ID) <= j.Spec.Subset/4 {
				n++
			}
		}
	}
	return n
}

// now is what a member that works on an instance weighs in sharers: more than all those that may come to it.
const now = 2 * bits.MaxJobs

// setSharers ranks an augmented entry by who still wants it; without such a job it leaves.
func (ne *needs) setSharers(g *group, h residency.Handle, k ident.Key) {
	n := 0
	if g != nil {
		n = ne.sharers(g, k.Object, k.Instance)
	}
	ne.setNeed(h, n)
	if n == 0 && ne.index.Ready(h) {
		if ne.index.Drop(h) {
			ne.step.emit(FreeKey{Key: k})
		}
		ne.relevel(k.Object)
	}
}

// rerankShared ranks an augmented entry that was just made: the jobs that wanted it may have left meanwhile.
func (ne *needs) rerankShared(k ident.Key) {
	if k.Form != ident.Augmented {
		return
	}
	if h, ok := ne.index.Lookup(k); ok {
		ne.setSharers(ne.roster.groupOf(k.Group), h, k)
	}
}
