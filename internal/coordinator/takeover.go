package coordinator

import (
	"larder/internal/ident"
	"larder/tiers/residency"
)

// What jobs that are not visible have in memory, or are having made, is used by visible jobs too, and must change none
// of their choices. So a visible job that comes upon it decides as if it were not there, and only then saves the work.

// underWay is the flight that makes k, as the stream may see it: one that is not visible sees all.
func (fl *flights) underWay(s *stream, k ident.Key) *flight {
	f := fl.flying.get(k)
	if f != nil && s.visible() && !f.visible {
		return nil
	}
	return f
}

// takeOver makes a flight that was begun for jobs that are not visible also that of a visible one, for which it was
// decided whether the decoded tier keeps the result. What it was handed out without is filled by another flight when
// this one is over.
func (fl *flights) takeOver(f *flight, s *stream, entry residency.Handle, admitted, alone bool) {
	if admitted && !f.entry.held {
		fl.holdEntry(f, s, entry)
	}
	if f.phase == flightInPlace { // the row waits for its end, and is sourced again
		f.counted = append(f.counted, s)
	} else {
		f.visible, f.alone = true, alone && !admitted
	}
	switch {
	case s.making.Workers:
	case f.waits() && !f.encoded.held:
		fl.holdStored(f, s)
	default:
		fl.holdOriginal(f, s, admitted)
	}
	fl.needs.relevel(f.key.Object)
}

// waits reports whether it is still open what the executor is to keep of a flight.
func (f *flight) waits() bool { return f.phase == flightQueued || f.phase == flightAway }

// later is what another flight fills when this one is over, for a job.
type later struct {
	entry, encoded pin
	job            ident.JobID
}

// holdEntry pins the entry that is to have the result of a flight, once, however many visible rows come to it.
func (fl *flights) holdEntry(f *flight, s *stream, entry residency.Handle) {
	if f.later.entry.held && f.later.entry.h == entry {
		return
	}
	fl.needs.unpin(f.later.entry)
	f.later.entry = pin{}
	fl.index.Pin(entry)
	if f.waits() {
		f.entry = pin{entry, true}
		return
	}
	f.later.entry, f.later.job = pin{entry, true}, s.job.ID
}

// holdOriginal is wantOriginal for what a flight makes. Another flight brings them.
func (fl *flights) holdOriginal(f *flight, s *stream, decoded bool) {
	if p := fl.wantOriginal(f.key.Object, s, decoded); p.held {
		fl.needs.unpin(f.later.encoded)
		f.later.encoded, f.later.job = p, s.job.ID
	}
}

// wantOriginal decides whether the encoded tier keeps the original bytes of a sample that the decoded tier will keep,
// or not, and pins their entry if no flight is bringing them.
func (fl *flights) wantOriginal(x ident.ObjectID, s *stream, decoded bool) pin {
	if h, there := fl.needs.seen(ident.Key{Object: x, Form: ident.Encoded}); there {
		if fl.index.Ready(h) {
			fl.index.Hit(h)
		}
		return pin{}
	}
	h, kept := fl.keepStored(x, s, decoded)
	if !kept || fl.index.Ready(h) || fl.index.Pins(h) > 0 { // pinned: a flight is bringing them
		return pin{}
	}
	fl.index.Pin(h)
	return pin{h, true}
}

// makeLater begins the flight that fills what a flight that is over could not fill any more.
func (fl *flights) makeLater(f *flight) {
	l := f.later
	f.later = later{}
	s := fl.roster.streams[l.job]
	for _, p := range []*pin{&l.entry, &l.encoded} {
		switch {
		case !p.held:
		case s == nil || !fl.index.Resident(p.h):
			fl.needs.drop(*p)
			*p = pin{}
		case fl.index.Ready(p.h):
			fl.needs.unpin(*p)
			*p = pin{}
		}
	}
	if l.entry.held || l.encoded.held {
		fl.fillEntries(f.key, s, l)
	}
}

// fillEntries begins a flight for entries that have no bytes yet. If these are the original bytes alone, visible jobs
// do not know of the sample that it makes.
func (fl *flights) fillEntries(key ident.Key, s *stream, l later) {
	f := fl.newFlight(key, s, fl.turn+1)
	f.refill, f.visible = true, l.entry.held
	f.entry, f.encoded, f.from = l.entry, l.encoded, ident.Stored
	fl.enqueue(f)
}

// bringOriginal decides whether the encoded tier keeps the original bytes of a sample that a visible job finds decoded,
// and has them read then, as they would be if it were not there.
func (fl *flights) bringOriginal(key ident.Key, s *stream) {
	if s.making.Workers {
		return
	}
	if f := fl.flying.get(key); f != nil {
		fl.holdOriginal(f, s, true)
	} else if p := fl.wantOriginal(key.Object, s, true); p.held {
		fl.fillEntries(key, s, later{encoded: p})
	}
}

// giveUpLater is for a sample that cannot be prepared: its entry keeps its place, see reservePlace.
func (fl *flights) giveUpLater(f *flight) {
	if f.later.entry.held {
		fl.index.SetReady(f.later.entry.h)
	}
	fl.needs.unpin(f.later.entry)
	fl.needs.drop(f.later.encoded)
	f.later = later{}
}

// asker is a job that waits for the flight, a visible one if there is any.
// REQUIRES: some row waits.
func (f *flight) asker() *stream {
	for i := range f.rows {
		if s := f.rows[i].d.s; s.visible() {
			return s
		}
	}
	return f.rows[0].d.s
}

// visibleUsers is how many rows of visible jobs, and flights for them, wait for the flight.
func (f *flight) visibleUsers() (n int) {
	for i := range f.rows {
		if f.rows[i].d.s.visible() {
			n++
		}
	}
	for _, a := range f.augments {
		if a.visible {
			n++
		}
	}
	return n
}
