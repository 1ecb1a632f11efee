package coordinator

import (
	"larder/internal/ident"
	"larder/tiers/residency"
)

// takeTurn gives the next sample of a job its place among the work of all jobs: start-time fair queueing (Goyal, Vin,
// Cheng 1996) with samples as the unit. Jobs that are behind with their work get equal samples per second whatever
// their batch sizes and windows; a job that is seldom behind is served at once, because its turns do not run ahead of
// the clock.
func (c *flights) takeTurn(s *stream) uint64 {
	s.turn = max(s.turn, c.turn) + 1
	return s.turn
}

// startTurn is the turn at which work on an object is begun so that it is done in turn, when that of its row is turn:
// the least slack first. A sample that is expected to take as long as n others of its job occupies one worker while the
// others do n-1 samples each, so it is begun that many turns earlier and holds up no batch; what is planned bounds how
// far ahead. Decoding takes time in proportion to the stored bytes, so they are what is expected. Only the order of the
// work follows from it: which samples a job gets, and in which order, was decided before. (Log-normal costs with an
// outlier of 20 times in a hundred, 12 workers at 95 % load, batches of 32: 16 ahead training stalls for 2.7 % of the
// time instead of 13.3 %, 4 ahead for 23.5 instead of 26.7 %.)
func (c *flights) startTurn(s *stream, x ident.ObjectID, turn uint64) uint64 {
	n := c.cfg.Bytes(x) / max(s.stored.mean(1), 1)
	if n < 2 || s.stored.n == 0 {
		return turn
	}
	return turn - min(uint64(n-1)*uint64(max(c.cfg.InFlight/2, 1)), turn)
}

// source finds where row i of a batch comes from: an entry, a flight, or a new flight.
func (c *flights) source(d *delivery, i int) {
	x, s := d.rows[i].object, d.s
	c.tiering.claim(x, s.dataset)
	key := ident.Key{Object: x, Form: ident.Decoded, Recipe: c.roster.prefixes[s.prefix].id}
	if s.isGone(x) {
		c.reservePlace(s, key)
		c.failRow(d, i, removed(x))
		return
	}
	if bad, ok := c.quarantine[key]; ok {
		c.reservePlace(s, key)
		c.failRow(d, i, bad)
		return
	}
	if s.group != nil && c.sourceShared(d, i) {
		c.needs.renew(x)
		return
	}
	if h, ok := c.index.Lookup(key); ok {
		c.hit(s, ident.Decoded)
		c.useEntry(d, i, h, key)
	} else if f := c.flying.get(key); f != nil {
		if c.shareFlight(f) {
			c.hit(s, ident.Decoded)
		}
		c.join(f, d, i)
	} else if f, h := c.launch(key, s, d.rows[i].turn, c.wantsAlone(s, x)); f != nil {
		c.join(f, d, i)
	} else {
		c.hit(s, ident.Decoded)
		c.useEntry(d, i, h, key)
	}
	c.needs.renew(x)
}

// useEntry fills a row from a resident entry, at once or when its bytes are there.
func (c *flights) useEntry(d *delivery, i int, h residency.Handle, key ident.Key) {
	c.index.Hit(h)
	if !c.index.Ready(h) {
		c.join(c.flying.get(key), d, i)
		return
	}
	c.index.Pin(h)
	d.rows[i].pin = pin{h, true}
	c.fill(d, i, Source{Key: key})
}

// join makes a row wait for a flight, or use its working copy when it is there.
func (c *flights) join(f *flight, d *delivery, i int) {
	d.rows[i].flight = f
	if f.phase == flightCopied {
		f.users++
		c.fill(d, i, Source{Key: f.key, Flight: f.id})
		return
	}
	f.rows = append(f.rows, waiter{d, i})
	turn := d.rows[i].turn
	if f.key.Form == ident.Decoded {
		turn = c.startTurn(d.s, f.key.Object, turn)
	}
	c.hurry(f, turn)
}

// fill has the executor write a row.
func (c *flights) fill(d *delivery, i int, from Source) { c.step.emit(c.filling(d, i, from)) }

// filling says how a row is written, and that the write has begun.
func (c *flights) filling(d *delivery, i int, from Source) *Fill {
	w := &d.rows[i]
	w.state = rowFilling
	s := d.s
	d.fills[i] = Fill{Delivery: d.id, Row: i, Job: s.job.ID, Rank: d.rank, Inc: d.inc, Slot: d.slot, Object: w.object,
		From: from,
		Seed: s.seed, Instance: d.instance, Turn: w.turn} // the row is not being filled, so an earlier one has no reader
	return &d.fills[i]
}

// reservePlace gives a sample that cannot be prepared the place in a tier that it would have if it could: an entry
// without bytes, admitted and evicted like any other. Without it bad samples would never be cached. Cached samples are
// picked first, so the good ones of a shared cell would come early in the epoch (mean position .37 with half of a cell
// bad). No choice may depend on whether a sample is bad. The cost is a share of the tier: the share of bad samples
// among all picked samples.
func (c *flights) reservePlace(s *stream, key ident.Key) {
	x := key.Object
	if h, ok := c.index.Lookup(key); ok {
		c.index.Hit(h)
	} else if c.flying.get(key) == nil {
		need, stored := c.needs.needOf(s, x, c.roster.prefixes[s.prefix].jobs), c.cfg.Bytes(x)
		h, ok := c.index.Admit(key, c.cfg.Granule(ident.Decoded, c.tiering.decodedBytes(s, stored*6)), need, c.needs.evicted)
		if ok {
			c.index.SetReady(h)
		} else {
			ekey := ident.Key{Object: x, Form: ident.Encoded}
			if _, there := c.index.Lookup(ekey); !there {
				if h, ok := c.index.Admit(ekey, c.cfg.Granule(ident.Encoded, stored), need, c.needs.evicted); ok &&
					c.index.Pins(h) == 0 {
					c.index.SetReady(h)
				}
			}
		}
		c.needs.relevel(x)
	}
	c.needs.renew(x)
}

type waiter struct {
	d   *delivery
	row int
}
