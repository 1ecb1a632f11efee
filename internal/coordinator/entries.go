package coordinator

import (
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/tiers/residency"
)

// evicted is called by the index for an entry that leaves. Unread bytes go at once; others at their last
// unpin.
func (c *needs) evicted(h residency.Handle, k ident.Key) {
	c.step.stats.Evictions[k.Form]++
	if c.index.Pins(h) == 0 {
		c.step.emit(FreeKey{Key: k})
	}
	c.left(k)
	c.enterLevels(k.Object, k) // the index still shows the entry while it calls
}

func (c *needs) unpin(p pin) {
	if p.held && c.index.Unpin(p.h) {
		c.step.emit(FreeKey{Key: c.index.Key(p.h)}) // readable until the next Admit
	}
}

// drop takes a pinned entry out of the index for good and drops the pin.
func (c *needs) drop(p pin) {
	if !p.held {
		return
	}
	k := c.index.Key(p.h)
	c.index.Drop(p.h)
	c.left(k)
	if c.index.Unpin(p.h) {
		c.step.emit(FreeKey{Key: k})
	}
	c.relevel(k.Object)
}

// forgetPerStep is how many places of the index one Forget looks at.
const forgetPerStep = 512

// forget takes entries of objects out of the tiers. One that is in use leaves with its last reader, as one that is
// evicted does.
func (c *needs) forget(e Forget) {
	r := Reply{}
	if all := c.index.Slots(); e.From >= 0 && e.From < all {
		var out []residency.Handle
		n := min(forgetPerStep, all-e.From)
		c.index.Some(e.From, n, func(h residency.Handle, k ident.Key) {
			if e.Objects.Has(uint32(k.Object)) {
				out = append(out, h)
			}
		})
		for _, h := range out {
			r.Freed += c.index.Bytes(h)
			c.index.Pin(h)
			c.drop(pin{h, true})
		}
		if e.From+n < all {
			r.Next = e.From + n
		}
	}
	c.step.reply(e.Token, r)
}

// sharers ranks x in an instance by who still wants it: members that work on that instance; far below them those that
// may come to it in their next epoch, a little more when that is near; and those that have not begun. Without those
// behind, what a job makes that is ahead of its group serves no other job.
func (c *needs) sharers(g *group, x ident.ObjectID, instance uint32) int {
	n := 0
	for _, m := range g.members {
		j := m.job
		switch {
		case !j.Begun:
			if j.Member.Has(uint32(x)) {
				n++
			}
		case !j.Active:
		case m.instance() == instance:
			if c.sampler.Needs(j.ID, x) {
				n += now
			}
		case m.instance() < instance && m.goesOn() && j.Member.Has(uint32(x)):
			n++
			if c.sampler.Remaining(j.ID) <= j.Spec.Subset/4 {
				n++
			}
		}
	}
	return n
}

// now is what a member that works on an instance weighs in sharers: more than all those that may come to it.
const now = 2 * bits.MaxJobs

// setSharers ranks an augmented entry by who still wants it; without such a job it leaves.
func (c *needs) setSharers(g *group, h residency.Handle, k ident.Key) {
	n := 0
	if g != nil {
		n = c.sharers(g, k.Object, k.Instance)
	}
	c.index.SetNeed(h, n)
	if n == 0 && c.index.Ready(h) {
		if c.index.Drop(h) {
			c.step.emit(FreeKey{Key: k})
		}
		c.relevel(k.Object)
	}
}

// reshare ranks an augmented entry that has just landed: those who wanted it may have left meanwhile.
func (c *needs) reshare(k ident.Key) {
	if k.Form != ident.Augmented {
		return
	}
	if h, ok := c.index.Lookup(k); ok {
		c.setSharers(c.roster.groupOf(k.Group), h, k)
	}
}
