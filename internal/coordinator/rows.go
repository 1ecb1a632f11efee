package coordinator

import (
	"larder/internal/bits"
	"larder/internal/ident"
	"larder/tiers/residency"
)

// takeTurn gives the next sample of a job its place among the work of all jobs: start-time fair queueing (Goyal, Vin,
// Cheng 1996) with samples as the unit. Jobs that are behind with their work get equal samples per second whatever
// their batch sizes and windows; a job that is seldom behind is served at once, because its turns do not run ahead of
// the clock.
func (fl *flights) takeTurn(s *stream) uint64 {
	s.turn = max(s.turn, *fl.clockOf(s)) + 1
	return s.turn
}

// startTurn is the turn at which work on an object is begun so that it is done in turn, when that of its row is turn:
// the least slack first. A sample that is expected to take as long as n others of its job occupies one worker while the
// others do n-1 samples each, so it is begun that many turns earlier and holds up no batch; what is planned bounds how
// far ahead. Decoding takes time in proportion to the stored bytes, so they are what is expected. Only the order of the
// work follows from it: which samples a job gets, and in which order, was decided before. (Log-normal costs with an
// outlier of 20 times in a hundred, 12 workers at 95 % load, batches of 32: 16 ahead training stalls for 2.7 % of the
// time instead of 13.3 %, 4 ahead for 23.5 instead of 26.7 %.)
func (fl *flights) startTurn(s *stream, x ident.ObjectID, turn uint64) uint64 {
	if s.making.Workers { // nothing of theirs is stored
		return turn
	}
	n := fl.cfg.Bytes(x) / max(s.stored.mean(1), 1)
	if n < 2 || s.stored.n == 0 {
		return turn
	}
	return turn - min(uint64(n-1)*uint64(max(fl.cfg.InFlight/2, 1)), turn)
}

// source finds where row i of a batch comes from: an entry, a flight, or a new flight.
func (fl *flights) source(d *delivery, i int) {
	x, s := d.rows[i].object, d.s
	fl.tiering.claim(x, s.dataset)
	key := ident.Key{Object: x, Form: ident.Decoded, Recipe: fl.roster.prefixes[s.prefix].id}
	if s.isGone(x) {
		fl.reservePlace(s, key)
		fl.failRow(d, i, removed(x))
		return
	}
	if bad, ok := fl.quarantine[key]; ok {
		fl.reservePlace(s, key)
		fl.failRow(d, i, bad)
		return
	}
	k := fl.keepingOf(s)
	if s.group != nil && fl.sourceShared(d, i) {
		fl.needs.renew(s, x)
		return
	}
	if h, ok := fl.needs.find(s, key); ok {
		k.allowance.Hit(k.costs)
		fl.countHit(s, ident.Decoded)
		fl.useEntry(d, i, h, key)
	} else if f := fl.underWay(s, key); f != nil {
		if fl.shareFlight(f, s) {
			k.allowance.Hit(k.costs)
			fl.countHit(s, ident.Decoded)
		}
		fl.join(f, d, i)
	} else if f, h := fl.launch(key, s, d.rows[i].turn, fl.wantsAlone(s, x)); f != nil {
		fl.join(f, d, i)
	} else {
		fl.countHit(s, ident.Decoded)
		fl.useEntry(d, i, h, key)
	}
	fl.needs.renew(s, x)
}

// useEntry fills a row from a resident entry, at once or when its bytes are there.
func (fl *flights) useEntry(d *delivery, i int, h residency.Handle, key ident.Key) {
	fl.index.Hit(h)
	if !fl.index.Ready(h) {
		fl.join(fl.flying.get(key), d, i)
		return
	}
	fl.index.Pin(h)
	d.rows[i].pin = pin{h, true}
	fl.fill(d, i, Source{Key: key})
}

// join makes a row wait for a flight, or use its working copy when it is there.
func (fl *flights) join(f *flight, d *delivery, i int) {
	d.rows[i].flight = f
	if f.phase == flightCopied {
		f.users++
		fl.fill(d, i, Source{Key: f.key, Flight: f.id})
		return
	}
	if f.rows = append(f.rows, waiter{d, i}); len(f.rows) == 1 {
		fl.passOn(f)
	}
	turn := d.rows[i].turn
	if f.key.Form == ident.Decoded {
		turn = fl.startTurn(d.s, f.key.Object, turn)
	}
	fl.moveForward(f, turn)
}

// fill has the executor write a row.
func (fl *flights) fill(d *delivery, i int, from Source) { fl.step.emit(fl.filling(d, i, from)) }

// filling says how a row is written, and that the write has begun.
func (fl *flights) filling(d *delivery, i int, from Source) *Fill {
	w := &d.rows[i]
	w.state = rowFilling
	s := d.s
	d.fills[i] = Fill{Delivery: d.id, Row: i, Job: s.job.ID, Rank: d.rank, Inc: d.inc, Slot: d.slot, Object: w.object,
		From: from,
		Seed: s.seed, Instance: d.instance + w.at, Turn: w.turn,
		Beside: w.turn} // the row is not being filled, so an earlier one has no reader
	if s.making.Workers {
		d.fills[i].Beside = fl.besideTurn(s)
	}
	return &d.fills[i]
}

// reservePlace gives a sample that cannot be prepared the place in a tier that it would have if it could: an entry
// without bytes, admitted and evicted like any other. Without it bad samples would never be cached. Cached samples are
// picked first, so the good ones of a shared cell would come early in the epoch (mean position .37 with half of a cell
// bad). No choice may depend on whether a sample is bad. The cost is a share of the tier: the share of bad samples
// among all picked samples.
func (fl *flights) reservePlace(s *stream, key ident.Key) {
	x := key.Object
	if h, ok := fl.needs.find(s, key); ok {
		fl.index.Hit(h)
	} else if fl.underWay(s, key) == nil {
		alone := fl.wantsAlone(s, x)
		if alone {
			fl.keepingOf(s)
		}
		if h, ok := fl.admitDecoded(key, s, alone); ok {
			fl.index.SetReady(h)
		} else if !s.making.Workers {
			fl.reserveStored(s, x, fl.roster.prefixes[s.prefix].jobs)
		}
		fl.needs.relevel(x)
	}
	fl.needs.renew(s, x)
}

// reserveStored is reservePlace in the encoded tier, for a sample that is not to be kept decoded.
func (fl *flights) reserveStored(s *stream, x ident.ObjectID, of bits.JobSet) {
	h, there := fl.needs.find(s, ident.Key{Object: x, Form: ident.Encoded})
	if !there {
		h, there = fl.admitStored(x, fl.needs.needOf(s, x, of))
	}
	if there && !fl.index.Ready(h) && fl.index.Pins(h) == 0 { // else a flight of another recipe is bringing it
		fl.index.SetReady(h)
	}
}

type waiter struct {
	d   *delivery
	row int
}
