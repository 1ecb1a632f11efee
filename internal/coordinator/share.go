package coordinator

import (
	"larder/internal/ident"
	"larder/tiers/residency"
)

// instance is the augmentation a stream works on now (design.md G3): epoch + offset.
func (s *stream) instance() uint32 { return s.job.Epoch + s.job.Offset }

// key4 names an augmented sample of the group.
func (g *group) key4(x ident.ObjectID, instance uint32) ident.Key {
	return ident.Key{Object: x, Form: ident.Augmented, Recipe: g.suffix, Group: g.id, Instance: instance}
}

// sharers counts members that still need x in that instance.
func (c *Core) sharers(g *group, x ident.ObjectID, instance uint32) int {
	n := 0
	for _, m := range g.members {
		if m.joined && m.job.Active && m.instance() == instance && c.sampler.Needs(m.job.ID, x) {
			n++
		}
	}
	return n
}

// setSharers ranks an augmented entry by who still wants it; nobody = it leaves.
func (c *Core) setSharers(g *group, h residency.Handle, k ident.Key) {
	n := c.sharers(g, k.Object, k.Instance)
	c.index.SetNeed(h, n)
	if n == 0 && c.index.Ready(h) {
		if c.index.Drop(h) {
			c.emit(FreeKey{Key: k})
		}
		c.relevel(k.Object)
	}
}

// reshare ranks an augmented entry that has just landed: those who wanted it may have left meanwhile.
func (c *Core) reshare(k ident.Key) {
	if k.Form != ident.Augmented {
		return
	}
	if h, ok := c.index.Lookup(k); ok {
		c.setSharers(c.groups[k.Group-1], h, k)
	}
}

// sourceShared finds or begins the augmented sample of a share group; false when nobody else will want it, so that the
// row is better augmented straight into its slot.
func (c *Core) sourceShared(d *delivery, i int) bool {
	s, g, x := d.s, d.s.group, d.rows[i].object
	instance := d.epoch + s.job.Offset
	key := g.key4(x, instance)
	if h, ok := c.index.Lookup(key); ok {
		c.hit(s, ident.Augmented)
		c.useEntry(d, i, h, key)
		return true
	}
	if f := c.flights[key]; f != nil {
		c.hit(s, ident.Augmented)
		c.join(f, d, i)
		return true
	}
	need := c.sharers(g, x, instance)
	if need == 0 || s.augBytes == 0 {
		return false
	}
	entry, admitted := c.index.Admit(key, c.cfg.Granule(ident.Augmented, s.augBytes), need, c.evicted)
	if admitted && c.index.Ready(entry) { // evicted a moment ago and still being read: taken back
		c.relevel(x)
		c.hit(s, ident.Augmented)
		c.useEntry(d, i, entry, key)
		return true
	}
	f := c.newFlight(key, s, d.rows[i].turn)
	f.seed, f.instance = g.seed, instance
	if admitted {
		c.index.Pin(entry)
		f.entry = pin{entry, true}
	}
	dkey := ident.Key{Object: x, Form: ident.Decoded, Recipe: c.prefixes[s.prefix].id}
	p := c.flights[dkey]
	h, ready := c.index.Lookup(dkey)
	ready = ready && c.index.Ready(h)
	if ready || p != nil {
		c.hit(s, ident.Decoded)
	} else if p, h = c.launch(dkey, s, d.rows[i].turn); p == nil {
		ready = true
	}
	switch {
	case ready:
		c.index.Hit(h)
		c.index.Pin(h)
		f.source = pin{h, true}
		c.enqueue(f)
	case p.done:
		f.parent = p
		p.users++
		c.enqueue(f)
	default:
		f.parent = p
		p.augments = append(p.augments, f)
	}
	c.join(f, d, i)
	c.relevel(x)
	return true
}
